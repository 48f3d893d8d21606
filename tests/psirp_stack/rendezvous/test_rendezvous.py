"""The rendezvous, one behaviour a test. Numbers in names are those of the checks an emulator is held to."""

import random
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import pytest

from psirp_stack.control.codes import Code, Function, control_scope
from psirp_stack.control.messages import (
    ROOT_SCOPE,
    KeepAlive,
    Match,
    PublishItem,
    PublishScope,
    SubscribeItem,
    SubscribeScope,
    UnpublishItem,
    UnpublishScope,
    UnsubscribeItem,
    UnsubscribeScope,
)
from psirp_stack.rendezvous import DeclaredRole, RendezvousConfig, declarations_digest
from psirp_stack.rendezvous.declarations import WHOLE_SCOPE
from psirp_stack.rendezvous.events import BoundReached
from tests.psirp_stack.rendezvous.rendezvous_support import Desk, S, T, U, X, Y, ident


@pytest.fixture
def request_table(tmp_path: Path) -> Iterator[Desk]:
    made = Desk(tmp_path / "rendezvous.db")
    yield made
    made.close()


@pytest.fixture
def strict(tmp_path: Path) -> Iterator[Desk]:
    made = Desk(tmp_path / "strict.db", RendezvousConfig(create_scopes=False, portion=4, lease=10))
    yield made
    made.close()


def who(match: Match | None) -> tuple[tuple[str, ...], tuple[str, ...]]:
    assert match is not None
    return match.publishers, match.subscribers


# 6. Republishing a scope gives subscribers of the new parent one SCOPE_PUBLISHED with the new path only.


def test_6_republishing_tells_subscribers_of_the_new_parent_once_and_nobody_else(request_table: Desk) -> None:
    request_table.ok("a", PublishScope(1, S))
    request_table.ok("a", PublishScope(2, T))
    request_table.ok("a", PublishScope(3, U, S))
    request_table.ok("old", SubscribeScope(1, S))
    request_table.ok("new", SubscribeScope(1, T))
    assert request_table.scope_events("old") == [("+", S, U)]
    assert request_table.scope_events("new") == []
    request_table.ok("a", PublishScope(4, U, T))
    request_table.run()
    assert request_table.scope_events("new") == [("+", T, U)]
    assert request_table.scope_events("old") == []
    request_table.ok("a", PublishScope(5, U, T))
    request_table.run()
    assert request_table.scope_events("new") == []


# 7. Subscribe before publish and publish before subscribe end in the same state and one START_PUBLISH.


@pytest.mark.parametrize("subscribe_first", [True, False])
def test_7_both_orders_end_in_the_same_state_and_one_match(request_table: Desk, subscribe_first: bool) -> None:
    requests = [("s", SubscribeItem(1, S, X)), ("p", PublishItem(1, S, X))]
    for node, request in requests if subscribe_first else reversed(requests):
        request_table.ok(node, request)
    assert [who(match) for match in request_table.matches] == [(("p",), ("s",))]
    explanation = request_table.explain(S, X)
    assert (explanation.scope_exists, explanation.item_exists) == (True, True)
    assert (explanation.publishers, explanation.subscribers) == (("p",), ("s",))


@pytest.mark.parametrize("publisher_first", [True, False])
def test_nothing_is_left_of_an_item_when_both_sides_have_gone(request_table: Desk, publisher_first: bool) -> None:
    request_table.ok("p", PublishItem(1, S, X))
    request_table.ok("s", SubscribeItem(1, S, X))
    withdrawals = [("p", UnpublishItem(2, S, X)), ("s", UnsubscribeItem(2, S, X))]
    for node, request in withdrawals if publisher_first else reversed(withdrawals):
        request_table.ok(node, request)
    assert who(request_table.matches[-1]) == ((), ())
    assert not request_table.explain(S, X).scope_exists
    statistics = request_table.rendezvous.statistics()
    assert (statistics.scopes, statistics.items, statistics.memberships) == (0, 0, 0)


def test_a_repeated_request_succeeds_and_says_nothing_again(request_table: Desk) -> None:
    for _ in range(3):
        request_table.ok("p", PublishScope(1, S))
        request_table.ok("p", PublishItem(2, S, X))
        request_table.ok("s", SubscribeItem(1, S, X))
        request_table.ok("s", SubscribeScope(2, S))
    request_table.run()
    assert len(request_table.matches) == 1
    assert request_table.scope_events("s") == [("+", S, X)]
    for _ in range(3):
        request_table.ok("s", UnsubscribeItem(3, S, X))
        request_table.ok("s", UnsubscribeScope(4, S))
        request_table.ok("p", UnpublishItem(3, S, X))
        request_table.ok("p", UnpublishScope(4, S))
    assert [who(match) for match in request_table.matches[1:]] == [(("p",), ()), ((), ())]


# 8. The last unsubscribe gives one STOP_PUBLISH; a dead application is equal to unsubscribing everything.


def test_8_the_last_unsubscribe_gives_one_match_without_subscribers(request_table: Desk) -> None:
    request_table.ok("p", PublishItem(1, S, X))
    request_table.ok("s", SubscribeItem(1, S, X))
    request_table.ok("t", SubscribeItem(1, S, X))
    request_table.matches.clear()
    request_table.ok("s", UnsubscribeItem(2, S, X))
    request_table.ok("t", UnsubscribeItem(2, S, X))
    assert [who(match) for match in request_table.matches] == [(("p",), ("t",)), (("p",), ())]


def test_8_a_node_that_falls_silent_is_equal_to_one_that_withdraws_everything(tmp_path: Path) -> None:
    seen = []
    for silent in (True, False):
        request_table = Desk(tmp_path / f"{silent}.db", RendezvousConfig(lease=30, portion=3))
        items = [ident(n) for n in range(1, 9)]
        for number, rid in enumerate(items, 2):
            request_table.ok("p", PublishItem(number, S, rid))
            request_table.ok("s", SubscribeItem(number, S, rid))
        request_table.ok("w", SubscribeScope(1, S))
        request_table.run()
        request_table.matches.clear()
        assert len(request_table.scope_events("w")) == len(items)
        if silent:
            for second in range(1, 60, 10):
                request_table.run(until=1000.0 + second)
                request_table.ok(
                    "s", KeepAlive(99, 1, declarations_digest((DeclaredRole.SUBSCRIBES, S, rid) for rid in items))
                )
                request_table.ok("w", KeepAlive(99, 1, declarations_digest([(DeclaredRole.WATCHES, S, WHOLE_SCOPE)])))
        else:
            for number, rid in enumerate(items, 20):
                request_table.ok("p", UnpublishItem(number, S, rid))
        told = sorted(request_table.scope_events("w"))
        said = sorted((match.rid, who(match)) for match in request_table.matches)
        assert said == [(rid, ((), ("s",))) for rid in items], "one match for each item"
        seen.append((said, told, [request_table.explain(S, rid).item_exists for rid in items]))
        request_table.close()
    assert seen[0] == seen[1]


# 10. With control packets lost and repeated the match still completes, and is said once.


def test_10_requests_that_arrive_several_times_give_one_match(request_table: Desk) -> None:
    """Loss shows here as repetition: the courier sends again what was not acknowledged, also after a restart."""
    rng = random.Random(10)
    rids = [ident(n) for n in range(1, 21)]
    for number, rid in enumerate(rids, 1):
        requests = [("p", PublishItem(number, S, rid)), ("s", SubscribeItem(number, S, rid))]
        rng.shuffle(requests)
        for node, request in requests:
            for _ in range(rng.randrange(1, 4)):
                request_table.ok(node, request)
        if number % 7 == 0:
            request_table.restart()
            for node, request in requests:
                request_table.ok(node, request)
    request_table.run()
    assert [(match.rid, who(match)) for match in request_table.matches] == [(rid, (("p",), ("s",))) for rid in rids]


# Scopes.


def test_items_need_a_scope(strict: Desk) -> None:
    assert strict.code("p", PublishItem(1, S, X)) is Code.FATHER_DOES_NOT_EXIST
    assert strict.code("p", PublishScope(2, T, S)) is Code.FATHER_DOES_NOT_EXIST
    strict.ok("p", PublishScope(3, S))
    strict.ok("p", PublishItem(4, S, X))


def test_publishing_makes_the_scope_when_the_policy_says_so_and_it_goes_with_its_last_item(request_table: Desk) -> None:
    request_table.ok("w", SubscribeScope(1, ROOT_SCOPE))
    request_table.ok("p", PublishItem(1, S, X))
    assert request_table.explain(S, X).scope_exists
    request_table.ok("p", UnpublishItem(2, S, X))
    assert not request_table.explain(S, X).scope_exists
    assert request_table.scope_events("w") == [("+", ROOT_SCOPE, S), ("-", ROOT_SCOPE, S)]


def test_the_root_scope_and_control_scopes_take_no_items(request_table: Desk) -> None:
    assert request_table.code("p", PublishItem(1, ROOT_SCOPE, X)) is Code.WRONG_IDS
    assert request_table.code("p", PublishItem(2, S, bytes(32))) is Code.WRONG_IDS
    for function in Function:
        assert request_table.code("p", PublishItem(3, control_scope(function), X)) is Code.WRONG_IDS
        assert request_table.code("p", SubscribeItem(4, control_scope(function), X)) is Code.WRONG_IDS
        assert request_table.code("p", PublishScope(5, control_scope(function))) is Code.WRONG_IDS
        assert request_table.code("p", SubscribeScope(6, control_scope(function))) is Code.WRONG_IDS
    assert request_table.code("p", PublishScope(7, ROOT_SCOPE, S)) is Code.WRONG_IDS
    assert request_table.code("p", UnpublishScope(8, ROOT_SCOPE, S)) is Code.WRONG_IDS


def test_a_scope_and_an_item_do_not_share_an_id_under_one_parent(request_table: Desk) -> None:
    request_table.ok("a", PublishScope(1, S))
    request_table.ok("a", PublishScope(2, T, S))
    assert request_table.code("a", PublishItem(3, S, T)) is Code.SCOPE_WITH_SAME_ID
    assert request_table.code("a", SubscribeItem(4, S, T)) is Code.SCOPE_WITH_SAME_ID
    request_table.ok("a", PublishItem(5, S, U))
    assert request_table.code("a", PublishScope(6, U, S)) is Code.ITEM_WITH_SAME_ID
    request_table.ok("a", PublishScope(7, U))  # elsewhere it may
    request_table.ok("a", PublishItem(8, T, U))


def test_circles_are_refused(request_table: Desk) -> None:
    request_table.ok("a", PublishScope(1, S))
    request_table.ok("a", PublishScope(2, T, S))
    request_table.ok("a", PublishScope(3, U, T))
    assert request_table.code("a", PublishScope(4, S, U)) is Code.WRONG_IDS
    assert request_table.code("a", PublishScope(5, S, S)) is Code.WRONG_IDS
    request_table.ok("a", PublishScope(6, U, S))


def test_a_scope_of_another_node_exists(request_table: Desk) -> None:
    request_table.ok("a", PublishScope(1, S))
    assert request_table.code("b", PublishScope(1, S)) is Code.EXISTS
    request_table.ok("a", PublishScope(2, S))


def test_a_scope_that_came_by_use_can_be_published_by_name(request_table: Desk) -> None:
    request_table.ok("w", SubscribeScope(1, S))
    request_table.ok("a", PublishScope(1, S))
    request_table.ok("w", UnsubscribeScope(2, S))
    assert request_table.explain(S, X).scope_exists
    assert request_table.code("b", PublishScope(1, S)) is Code.EXISTS


def test_unpublishing_a_scope_needs_it_empty_and_takes_one_branch(request_table: Desk) -> None:
    request_table.ok("w", SubscribeScope(1, ROOT_SCOPE))
    for number, (child, parent) in enumerate([(S, ROOT_SCOPE), (T, ROOT_SCOPE), (U, S), (U, T)]):
        request_table.ok("a", PublishScope(number, child, parent))
    request_table.ok("w", SubscribeScope(2, S))
    request_table.ok("w", SubscribeScope(3, T))
    request_table.scope_events("w")
    request_table.ok("a", PublishItem(10, U, X))
    assert request_table.code("a", UnpublishScope(11, S)) is Code.NOT_EMPTY
    request_table.ok("a", UnpublishScope(12, U, S))  # there is another branch, so the item does not matter
    assert request_table.scope_events("w") == [("-", S, U)]
    assert request_table.explain(U, X).item_exists
    assert request_table.code("a", UnpublishScope(13, U, T)) is Code.NOT_EMPTY
    assert request_table.code("a", UnpublishScope(14, U, S)) is Code.DOES_NOT_EXIST
    request_table.ok("a", UnpublishItem(15, U, X))
    request_table.ok("a", UnpublishScope(16, U, T))
    assert request_table.code("a", UnpublishScope(17, U, T)) is Code.SCOPE_DOES_NOT_EXIST
    request_table.ok("a", UnpublishScope(18, T))
    assert request_table.scope_events("w") == [("-", T, U), ("-", ROOT_SCOPE, T)]


def test_scope_subscribers_hear_of_direct_children_only(request_table: Desk) -> None:
    request_table.ok("a", PublishScope(1, S))
    request_table.ok("w", SubscribeScope(1, S))
    request_table.ok("a", PublishScope(2, T, S))
    request_table.ok("a", PublishScope(3, U, T))
    request_table.ok("a", PublishItem(4, T, X))
    request_table.ok("a", PublishItem(5, S, Y))
    assert request_table.scope_events("w") == [("+", S, T), ("+", S, Y)]


@pytest.mark.parametrize("children", [3, 300])
def test_children_that_are_there_are_told_once_also_when_more_come_meanwhile(tmp_path: Path, children: int) -> None:
    request_table = Desk(tmp_path / "many.db", RendezvousConfig(portion=64))
    rng = random.Random(children)
    request_table.ok("a", PublishScope(1, S))
    ids = [rng.randbytes(32) for _ in range(children)]
    request_table.bulk(
        ("a", PublishScope(number, child, S) if number % 3 == 0 else PublishItem(number, S, child))
        for number, child in enumerate(ids, 2)
    )
    request_table.ok("w", SubscribeScope(1, S))
    late = [rng.randbytes(32) for _ in range(40)]
    for number, child in enumerate(late, 1000):
        future = request_table.rendezvous.handle_timer(request_table.now)
        if future is not None:
            request_table.take(future.result(20))
        request_table.ok("a", PublishScope(number, child, S) if number % 2 else PublishItem(number, S, child))
    request_table.run()
    events = request_table.scope_events("w")
    assert sorted(events) == sorted(("+", S, child) for child in ids + late)
    request_table.close()


def test_events_that_may_not_have_arrived_are_sent_again_after_a_crash_in_order(request_table: Desk) -> None:
    request_table.arrives = False
    request_table.ok("w", SubscribeScope(1, S))
    request_table.ok("p", PublishItem(1, S, X))
    request_table.ok("p", PublishItem(2, S, Y))
    request_table.ok("p", UnpublishItem(3, S, X))
    said = request_table.scope_events("w")
    assert said == [("+", S, X), ("+", S, Y), ("-", S, X)]
    request_table.arrives = True
    request_table.restart()
    assert request_table.scope_events("w") == said
    request_table.restart()
    assert request_table.scope_events("w") == []


def test_events_are_kept_up_to_a_bound_and_not_for_nodes_that_are_gone(tmp_path: Path) -> None:
    request_table = Desk(tmp_path / "events.db", RendezvousConfig(max_kept_events=5, lease=30), arrives=False)
    request_table.ok("w", SubscribeScope(1, S))
    request_table.bulk(("p", PublishItem(n, S, ident(n))) for n in range(1, 11))
    request_table.scope_events("w")
    request_table.restart()
    assert request_table.scope_events("w") == [("+", S, ident(n)) for n in range(6, 11)]
    request_table.run(until=request_table.now + 31)
    request_table.scope_events("w")
    request_table.restart()
    assert request_table.scope_events("w") == []
    assert BoundReached("max_kept_events") in request_table.events
    request_table.close()


# Generations, restarts, topology.


def test_generations_grow_also_when_items_vanish_and_the_rendezvous_restarts(request_table: Desk) -> None:
    for round_ in range(4):
        request_table.ok("p", PublishItem(1, S, X), boot=round_ + 1)
        request_table.ok("s", SubscribeItem(1, S, X), boot=round_ + 1)
        request_table.ok("s", UnsubscribeItem(2, S, X), boot=round_ + 1)
        request_table.ok("p", UnpublishItem(2, S, X), boot=round_ + 1)
        request_table.restart()
        request_table.run()
    generations = [match.generation for match in request_table.matches]
    assert len(generations) == 12
    assert all(later > earlier for earlier, later in pairwise(generations))


def test_matches_that_topology_did_not_answer_are_said_again_after_a_restart(request_table: Desk) -> None:
    request_table.answers = False
    for rid in (X, Y):
        request_table.ok("p", PublishItem(1, S, rid))
        request_table.ok("s", SubscribeItem(1, S, rid))
    request_table.ok("p", UnpublishItem(2, S, Y))
    request_table.ok("s", UnsubscribeItem(2, S, Y))
    first, *_, last = request_table.matches
    request_table.served(first)
    request_table.ok("q", PublishItem(1, T, X))  # the next write takes the mark along
    request_table.matches.clear()
    request_table.restart()
    request_table.run()
    assert [(match.rid, match.generation, who(match)) for match in request_table.matches] == [
        (Y, last.generation, ((), ()))
    ]
    request_table.served(request_table.matches[0])
    request_table.ok("q", PublishItem(2, T, Y))
    request_table.matches.clear()
    request_table.restart()
    request_table.run()
    assert request_table.matches == []


def test_a_topology_manager_that_starts_hears_all_matches_in_portions_with_higher_generations(tmp_path: Path) -> None:
    request_table = Desk(tmp_path / "all.db", RendezvousConfig(portion=16))
    rids = [ident(n) for n in range(1, 101)]
    request_table.bulk(("p", PublishItem(number, S, rid)) for number, rid in enumerate(rids))
    request_table.bulk(("s", SubscribeItem(number, S, rid)) for number, rid in enumerate(rids) if number % 2)
    newest = request_table.matches[-1].generation
    request_table.matches.clear()
    request_table.run()
    request_table.topology_started()
    assert request_table.run() > 50 // 16
    assert [match.rid for match in request_table.matches] == rids[1::2]
    assert min(match.generation for match in request_table.matches) > newest
    request_table.matches.clear()
    request_table.topology_started()
    future = request_table.rendezvous.handle_timer(request_table.now)
    assert future is not None
    request_table.take(future.result(20))
    request_table.restart()
    request_table.run()
    assert {match.rid for match in request_table.matches} == set(rids[1::2]), "a crash in the middle loses none"
    request_table.close()


def test_what_topology_could_not_serve_is_explained_also_after_a_restart(request_table: Desk) -> None:
    request_table.answers = False
    request_table.ok("p", PublishItem(1, S, X))
    request_table.ok("s", SubscribeItem(1, S, X))
    request_table.served(request_table.matches[-1], (("s", Code.UNREACHABLE),))
    assert request_table.explain(S, X).unserved == (("s", Code.UNREACHABLE),)
    request_table.restart()
    assert request_table.explain(S, X).unserved == (("s", Code.UNREACHABLE),)
    request_table.served(request_table.matches[-1])
    assert request_table.explain(S, X).unserved == ()


# Return codes reach the caller, by name, and why nothing arrives can be asked (2.4).


def test_withdrawing_what_is_not_there_is_named(request_table: Desk) -> None:
    assert request_table.code("a", UnpublishItem(1, S, X)) is Code.SCOPE_DOES_NOT_EXIST
    assert request_table.code("a", UnsubscribeScope(2, S)) is Code.SCOPE_DOES_NOT_EXIST
    assert request_table.code("a", UnpublishScope(3, S)) is Code.SCOPE_DOES_NOT_EXIST
    request_table.ok("b", PublishItem(1, S, X))
    assert request_table.code("a", UnpublishItem(4, S, Y)) is Code.ITEM_DOES_NOT_EXIST
    assert request_table.code("a", UnpublishItem(5, S, X)) is Code.DOES_NOT_EXIST
    assert request_table.code("a", UnsubscribeItem(6, S, X)) is Code.DOES_NOT_EXIST
    assert request_table.code("a", UnsubscribeScope(7, S)) is Code.DOES_NOT_EXIST


def test_refusals_are_remembered_for_those_who_ask_why(strict: Desk) -> None:
    for number in range(20):
        strict.code("p", PublishItem(number, S, X))
    explanation = strict.explain(S, X)
    assert not explanation.scope_exists
    assert len(explanation.refusals) == strict.config.max_refusals_per_item
    assert explanation.refusals[0].startswith("PublishItem of p: FATHER_DOES_NOT_EXIST: ")


def test_limits_are_named(tmp_path: Path) -> None:
    config = RendezvousConfig(
        max_nodes=3,
        max_items_per_node=2,
        max_scopes_per_node=2,
        max_subscribers_per_item=1,
        max_publishers_per_item=1,
        max_watchers_per_scope=1,
        max_parents_per_scope=2,
    )
    request_table = Desk(tmp_path / "limits.db", config)

    def limit(node: str, request: object) -> str:
        reply = request_table.ask(node, request)  # type: ignore[arg-type]
        assert reply.code == Code.LIMIT_REACHED
        return reply.reason.partition(":")[0]

    request_table.ok("a", SubscribeItem(1, S, X))
    request_table.ok("a", PublishItem(2, S, X))
    assert limit("a", SubscribeItem(3, S, Y)) == "max_items_per_node"
    assert limit("b", SubscribeItem(1, S, X)) == "max_subscribers_per_item"
    assert limit("b", PublishItem(2, S, X)) == "max_publishers_per_item"
    request_table.ok("b", SubscribeScope(3, S))
    assert limit("a", SubscribeScope(3, S)) == "max_watchers_per_scope"
    request_table.ok("b", SubscribeScope(4, ident(91)))
    assert limit("b", SubscribeScope(5, ident(92))) == "max_scopes_per_node"
    request_table.ok("b", PublishScope(6, ident(93)))
    request_table.ok("b", PublishScope(7, ident(94)))
    assert limit("b", PublishScope(8, ident(95))) == "max_scopes_per_node"
    request_table.ok("c", PublishScope(1, ident(94), ident(93)))
    assert limit("c", PublishScope(2, ident(94), ident(92 - 1))) == "max_parents_per_scope"
    assert limit("d", KeepAlive(1, 1, 0)) == "max_nodes"
    request_table.close()


def test_a_full_disk_is_answered_and_changes_nothing(tmp_path: Path) -> None:
    from psirp_stack.rendezvous import Rendezvous
    from psirp_stack.rendezvous.schema import MIGRATIONS
    from storage import Database

    database = Database.open(tmp_path / "small.db", MIGRATIONS, max_pages=34)
    rendezvous = Rendezvous(database, RendezvousConfig(), now=0.0)
    done = 0
    for number in range(1, 5000):
        (reply,) = rendezvous.handle("p", 1, PublishItem(number, S, ident(number)), 0.0, 0).result(20).replies
        if reply.code != Code.SUCCESS:
            break
        done = number
    assert 0 < done < 4999
    assert reply.code == Code.LIMIT_REACHED
    assert "no space left" in reply.reason
    assert rendezvous.statistics().items == done
    rendezvous.close()


def test_requests_after_the_end_are_answered(request_table: Desk) -> None:
    request_table.rendezvous.close()
    (reply,) = request_table.rendezvous.handle("p", 1, PublishItem(1, S, X), 0.0, 0).result(20).replies
    assert reply.code == Code.LIMIT_REACHED
    request_table.events.clear()
    request_table.restart()
