"""Lives of nodes: leases, keep-alives, declaring everything anew, coming back with a higher boot."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from psirp_stack.control.codes import Code
from psirp_stack.control.messages import (
    Declaration,
    DeclarationsRefused,
    Declare,
    KeepAlive,
    Match,
    PublishItem,
    SubscribeItem,
    SubscribeScope,
    TopologyStarted,
    UnpublishItem,
    UnsubscribeItem,
)
from psirp_stack.rendezvous import DeclaredRole, RendezvousConfig, RequestOutcome, declarations_digest
from psirp_stack.rendezvous.declarations import WHOLE_SCOPE
from psirp_stack.rendezvous.events import LeaseEnded, WorkFailed
from psirp_stack.rendezvous.session import RendezvousSession
from storage import StorageFullError
from tests.psirp_stack.rendezvous.rendezvous_support import Desk, S, X, Y, ident


@pytest.fixture
def request_table(tmp_path: Path) -> Iterator[Desk]:
    made = Desk(tmp_path / "rendezvous.db", RendezvousConfig(lease=30, portion=4))
    yield made
    made.close()


def who(match: Match | None) -> tuple[tuple[str, ...], tuple[str, ...]]:
    assert match is not None
    return match.publishers, match.subscribers


def test_a_lease_is_renewed_by_keep_alives_and_by_requests(request_table: Desk) -> None:
    request_table.ok("p", PublishItem(1, S, X))
    request_table.ok("q", PublishItem(1, S, X))
    digest = declarations_digest([(DeclaredRole.PUBLISHES, S, X)])
    for step in range(1, 11):
        request_table.run(until=1000.0 + step * 20)
        request_table.ok("p", KeepAlive(step, 1, digest))
        request_table.ok("q", PublishItem(1, S, X))
    assert request_table.explain(S, X).publishers == ("p", "q")
    request_table.run(until=request_table.now + 31)
    assert request_table.explain(S, X).publishers == ()
    assert [event.node for event in request_table.events if isinstance(event, LeaseEnded)] == ["p", "q"]


def test_the_end_of_a_lease_withdraws_everything_once_and_only_of_that_node(request_table: Desk) -> None:
    rids = [ident(n) for n in range(1, 20)]
    request_table.bulk(("p", PublishItem(1, S, rid)) for rid in rids)
    request_table.bulk(("s", SubscribeItem(1, S, rid)) for rid in rids)
    request_table.ok("s", SubscribeScope(1, S))
    request_table.run()
    request_table.inbox.clear()
    request_table.matches.clear()
    request_table.run(until=1020)
    assert request_table.code("p", KeepAlive(1, 1, 7)) is Code.OUT_OF_STEP
    request_table.run(until=1031)
    assert sorted((match.rid, who(match)) for match in request_table.matches) == [(rid, (("p",), ())) for rid in rids]
    assert request_table.rendezvous.statistics().nodes == 1
    request_table.ok("s", KeepAlive(2, 1, 0))
    assert (
        request_table.code("s", KeepAlive(3, 1, declarations_digest([(DeclaredRole.WATCHES, S, WHOLE_SCOPE)])))
        is Code.OUT_OF_STEP
    )


def test_leases_begin_anew_when_the_rendezvous_restarts_and_end(request_table: Desk) -> None:
    request_table.ok("p", PublishItem(1, S, X))
    request_table.now += 1000
    request_table.restart()
    request_table.run()
    assert request_table.explain(S, X).publishers == ("p",)
    request_table.run(until=request_table.now + 31)
    assert request_table.explain(S, X).publishers == ()


def test_withdrawing_goes_on_after_a_crash(request_table: Desk) -> None:
    request_table.bulk(("p", PublishItem(1, S, ident(n))) for n in range(1, 30))
    request_table.bulk(("s", SubscribeItem(1, S, ident(n))) for n in range(1, 30))
    request_table.now += 31
    for _ in range(3):
        future = request_table.rendezvous.handle_timer(request_table.now)
        assert future is not None
        request_table.take(future.result(20))
    request_table.restart()
    request_table.run()
    assert all(request_table.explain(S, ident(n)).publishers == () for n in range(1, 30))
    assert request_table.rendezvous.statistics().memberships == 0


def test_keep_alive_compares_digests(request_table: Desk) -> None:
    request_table.ok("n", KeepAlive(1, 1, 0))
    request_table.ok("n", PublishItem(2, S, X))
    request_table.ok("n", SubscribeItem(3, S, Y))
    request_table.ok("n", SubscribeScope(4, S))
    mine = [(DeclaredRole.PUBLISHES, S, X), (DeclaredRole.SUBSCRIBES, S, Y), (DeclaredRole.WATCHES, S, WHOLE_SCOPE)]
    request_table.ok("n", KeepAlive(5, 1, declarations_digest(mine)))
    assert request_table.code("n", KeepAlive(6, 1, declarations_digest(mine[1:]))) is Code.OUT_OF_STEP
    request_table.ok("n", UnpublishItem(7, S, X))
    request_table.ok("n", KeepAlive(8, 1, declarations_digest(mine[1:])))
    request_table.restart()
    request_table.ok("n", KeepAlive(9, 1, declarations_digest(mine[1:])))


@pytest.mark.parametrize("parts", [1, 3])
def test_declaring_replaces_all_with_one_match_for_each_item_that_differs(request_table: Desk, parts: int) -> None:
    rids = [ident(n) for n in range(1, 13)]
    request_table.bulk(("s", SubscribeItem(1, S, rid)) for rid in rids)
    request_table.bulk(("p", PublishItem(1, S, rid)) for rid in rids[:8])
    request_table.run()
    request_table.matches.clear()
    entries = [(0, S, rid) for rid in rids[4:]]
    assert {reply.code for reply in request_table.declare("p", entries, parts=parts)} == {Code.SUCCESS}
    request_table.run()
    changed = {match.rid: who(match) for match in request_table.matches}
    assert len(changed) == len(request_table.matches)
    assert changed == dict.fromkeys(rids[:4], ((), ("s",))) | dict.fromkeys(rids[8:], (("p",), ("s",)))
    request_table.ok("p", KeepAlive(99, 1, declarations_digest((DeclaredRole.PUBLISHES, S, rid) for rid in rids[4:])))
    assert [request_table.explain(S, rid).publishers for rid in rids] == [()] * 4 + [("p",)] * 8


def test_a_declaration_that_stays_half_done_replaces_nothing(request_table: Desk) -> None:
    request_table.ok("p", PublishItem(1, S, X))
    first = Declare(2, 1, 0, 2, (Declaration(0, S, Y),))
    request_table.ok("p", first)
    request_table.run()
    assert request_table.explain(S, X).publishers == ("p",)
    assert request_table.code("p", Declare(3, 1, 1, 3, ())) is Code.OUT_OF_STEP
    assert request_table.code("p", Declare(3, 1, 2, 2, ())) is Code.WRONG_IDS
    request_table.ok("p", first)  # begins again
    request_table.ok("p", PublishItem(4, S, ident(9)))  # what comes in between is kept
    request_table.ok("p", Declare(5, 1, 1, 2, ()))
    request_table.run()
    assert request_table.explain(S, X).publishers == ()
    assert request_table.explain(S, Y).publishers == request_table.explain(S, ident(9)).publishers == ("p",)
    request_table.ok("p", Declare(5, 1, 1, 2, ()))  # the last part once more, as after a crash
    request_table.ok(
        "p",
        KeepAlive(6, 1, declarations_digest([(DeclaredRole.PUBLISHES, S, Y), (DeclaredRole.PUBLISHES, S, ident(9))])),
    )


def test_refused_parts_of_a_declaration_are_named_and_the_rest_counts(request_table: Desk) -> None:
    bad = Declaration(3, S, X), Declaration(2, S, X), Declaration(0, bytes(32), X)
    reply = request_table.ask("p", Declare(1, 1, 0, 1, (Declaration(0, S, X), *bad)))
    assert reply.code == Code.UNKNOWN_REQUEST
    assert "3 of 4" in reply.reason
    (told,) = request_table.inbox["p"]
    assert isinstance(told, DeclarationsRefused)
    assert told.number == 1
    codes = [Code.UNKNOWN_REQUEST, Code.WRONG_IDS, Code.WRONG_IDS]
    assert [(entry.role, entry.sid, entry.code) for entry in told.refused] == [
        (entry.role, entry.sid, code) for entry, code in zip(bad, codes, strict=True)
    ]
    request_table.ok("p", KeepAlive(2, 1, declarations_digest([(DeclaredRole.PUBLISHES, S, X)])))
    assert request_table.explain(S, X).refusals[0].startswith("Declare of p: WRONG_IDS")


def test_a_new_life_replaces_what_the_former_declared(request_table: Desk) -> None:
    request_table.ok("s", SubscribeItem(1, S, X))
    request_table.ok("s", SubscribeItem(2, S, Y))
    request_table.ok("p", PublishItem(1, S, X))
    request_table.ok("p", PublishItem(2, S, Y))
    request_table.matches.clear()
    request_table.ok("p", PublishItem(1, S, X), boot=2)
    request_table.run()
    # X is said again: the node has forgotten what topology told its former life. Y is withdrawn.
    assert [(match.rid, who(match)) for match in request_table.matches] == [(X, (("p",), ("s",))), (Y, ((), ("s",)))]
    assert request_table.code("p", PublishItem(3, S, Y), boot=1) is Code.OUT_OF_STEP
    assert request_table.explain(S, Y).publishers == ()


def test_a_new_life_that_has_nothing_is_in_step_at_once(request_table: Desk) -> None:
    request_table.ok("p", PublishItem(1, S, X))
    request_table.ok("p", KeepAlive(1, 2, 0), boot=2)
    request_table.run()
    assert request_table.explain(S, X).publishers == ()
    assert request_table.rendezvous.statistics().nodes == 0


def test_a_scope_subscriber_is_told_again_in_a_new_life_but_not_when_it_declares_again(request_table: Desk) -> None:
    request_table.bulk(("p", PublishItem(1, S, ident(n))) for n in range(1, 11))
    watch = [(2, S, WHOLE_SCOPE)]
    for boot, times in ((1, 10), (1, 0), (2, 10), (2, 0)):
        request_table.declare("w", watch, boot)
        request_table.run()
        assert len(request_table.scope_events("w")) == times
    request_table.ok("p", PublishItem(1, S, X))
    assert request_table.scope_events("w") == [("+", S, X)]


def test_a_node_that_declares_without_end_is_held_back(request_table: Desk) -> None:
    codes = [request_table.declare("p", [(0, S, X)])[0].code for _ in range(20)]
    assert set(codes) == {Code.SUCCESS, Code.LIMIT_REACHED}
    request_table.run()
    assert request_table.declare("p", [(0, S, X)])[0].code == Code.SUCCESS


def test_unsubscribing_counts_for_all_that_a_node_is_declaring(request_table: Desk) -> None:
    request_table.ok("s", SubscribeItem(1, S, X))
    request_table.ok("s", Declare(2, 1, 0, 2, (Declaration(1, S, X),)))
    request_table.ok("s", UnsubscribeItem(3, S, X))
    request_table.ok("s", Declare(4, 1, 1, 2, ()))
    request_table.run()
    assert request_table.explain(S, X).subscribers == ()


def test_a_lease_that_ends_while_the_store_fails_is_ended_later(
    request_table: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    request_table.ok("p", PublishItem(1, S, X))
    request_table.ok("s", SubscribeItem(1, S, X))
    request_table.run()
    request_table.now += 31
    with monkeypatch.context() as patch:
        patch.setattr(RendezvousSession, "finish", failing)
        for _ in range(3):
            future = request_table.rendezvous.handle_timer(request_table.now)
            assert future is None or future.result(20) == RequestOutcome()
        assert (
            request_table.rendezvous.handle_topology(TopologyStarted(1), request_table.now).result(20)
            == RequestOutcome()
        )
        reply = request_table.ask("q", PublishItem(1, S, Y))
        assert reply.code == Code.LIMIT_REACHED
        assert reply.reason == "nothing was changed: the disk is full"
    assert [event.work for event in request_table.events if isinstance(event, WorkFailed)]
    request_table.events.clear()
    assert request_table.explain(S, X).publishers == ("p",)
    request_table.run(until=request_table.now + 2)
    assert request_table.explain(S, X).publishers == request_table.explain(S, X).subscribers == ()
    assert who(request_table.matches[-1]) == ((), ())


def failing(_: RendezvousSession) -> None:
    raise StorageFullError("the disk is full")
