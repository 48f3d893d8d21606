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
from psirp_stack.rendezvous import Outcome, RendezvousConfig, Role, declarations_digest
from psirp_stack.rendezvous.declarations import WHOLE_SCOPE
from psirp_stack.rendezvous.events import LeaseEnded, WorkFailed
from psirp_stack.rendezvous.session import Session
from storage import StorageFullError
from tests.psirp_stack.rendezvous.rendezvous_support import Desk, S, X, Y, ident


@pytest.fixture
def desk(tmp_path: Path) -> Iterator[Desk]:
    made = Desk(tmp_path / "rendezvous.db", RendezvousConfig(lease=30, portion=4))
    yield made
    made.close()


def who(match: Match | None) -> tuple[tuple[str, ...], tuple[str, ...]]:
    assert match is not None
    return match.publishers, match.subscribers


def test_a_lease_is_renewed_by_keep_alives_and_by_requests(desk: Desk) -> None:
    desk.ok("p", PublishItem(1, S, X))
    desk.ok("q", PublishItem(1, S, X))
    digest = declarations_digest([(Role.PUBLISHES, S, X)])
    for step in range(1, 11):
        desk.run(until=1000.0 + step * 20)
        desk.ok("p", KeepAlive(step, 1, digest))
        desk.ok("q", PublishItem(1, S, X))
    assert desk.explain(S, X).publishers == ("p", "q")
    desk.run(until=desk.now + 31)
    assert desk.explain(S, X).publishers == ()
    assert [event.node for event in desk.events if isinstance(event, LeaseEnded)] == ["p", "q"]


def test_the_end_of_a_lease_withdraws_everything_once_and_only_of_that_node(desk: Desk) -> None:
    rids = [ident(n) for n in range(1, 20)]
    desk.bulk(("p", PublishItem(1, S, rid)) for rid in rids)
    desk.bulk(("s", SubscribeItem(1, S, rid)) for rid in rids)
    desk.ok("s", SubscribeScope(1, S))
    desk.run()
    desk.inbox.clear()
    desk.matches.clear()
    desk.run(until=1020)
    assert desk.code("p", KeepAlive(1, 1, 7)) is Code.OUT_OF_STEP
    desk.run(until=1031)
    assert sorted((match.rid, who(match)) for match in desk.matches) == [(rid, (("p",), ())) for rid in rids]
    assert desk.rendezvous.statistics().nodes == 1
    desk.ok("s", KeepAlive(2, 1, 0))
    assert desk.code("s", KeepAlive(3, 1, declarations_digest([(Role.WATCHES, S, WHOLE_SCOPE)]))) is Code.OUT_OF_STEP


def test_leases_begin_anew_when_the_rendezvous_restarts_and_end(desk: Desk) -> None:
    desk.ok("p", PublishItem(1, S, X))
    desk.now += 1000
    desk.restart()
    desk.run()
    assert desk.explain(S, X).publishers == ("p",)
    desk.run(until=desk.now + 31)
    assert desk.explain(S, X).publishers == ()


def test_withdrawing_goes_on_after_a_crash(desk: Desk) -> None:
    desk.bulk(("p", PublishItem(1, S, ident(n))) for n in range(1, 30))
    desk.bulk(("s", SubscribeItem(1, S, ident(n))) for n in range(1, 30))
    desk.now += 31
    for _ in range(3):
        future = desk.rendezvous.handle_timer(desk.now)
        assert future is not None
        desk.take(future.result(20))
    desk.restart()
    desk.run()
    assert all(desk.explain(S, ident(n)).publishers == () for n in range(1, 30))
    assert desk.rendezvous.statistics().memberships == 0


def test_keep_alive_compares_digests(desk: Desk) -> None:
    desk.ok("n", KeepAlive(1, 1, 0))
    desk.ok("n", PublishItem(2, S, X))
    desk.ok("n", SubscribeItem(3, S, Y))
    desk.ok("n", SubscribeScope(4, S))
    mine = [(Role.PUBLISHES, S, X), (Role.SUBSCRIBES, S, Y), (Role.WATCHES, S, WHOLE_SCOPE)]
    desk.ok("n", KeepAlive(5, 1, declarations_digest(mine)))
    assert desk.code("n", KeepAlive(6, 1, declarations_digest(mine[1:]))) is Code.OUT_OF_STEP
    desk.ok("n", UnpublishItem(7, S, X))
    desk.ok("n", KeepAlive(8, 1, declarations_digest(mine[1:])))
    desk.restart()
    desk.ok("n", KeepAlive(9, 1, declarations_digest(mine[1:])))


@pytest.mark.parametrize("parts", [1, 3])
def test_declaring_replaces_all_with_one_match_for_each_item_that_differs(desk: Desk, parts: int) -> None:
    rids = [ident(n) for n in range(1, 13)]
    desk.bulk(("s", SubscribeItem(1, S, rid)) for rid in rids)
    desk.bulk(("p", PublishItem(1, S, rid)) for rid in rids[:8])
    desk.run()
    desk.matches.clear()
    entries = [(0, S, rid) for rid in rids[4:]]
    assert {reply.code for reply in desk.declare("p", entries, parts=parts)} == {Code.SUCCESS}
    desk.run()
    changed = {match.rid: who(match) for match in desk.matches}
    assert len(changed) == len(desk.matches)
    assert changed == dict.fromkeys(rids[:4], ((), ("s",))) | dict.fromkeys(rids[8:], (("p",), ("s",)))
    desk.ok("p", KeepAlive(99, 1, declarations_digest((Role.PUBLISHES, S, rid) for rid in rids[4:])))
    assert [desk.explain(S, rid).publishers for rid in rids] == [()] * 4 + [("p",)] * 8


def test_a_declaration_that_stays_half_done_replaces_nothing(desk: Desk) -> None:
    desk.ok("p", PublishItem(1, S, X))
    first = Declare(2, 1, 0, 2, (Declaration(0, S, Y),))
    desk.ok("p", first)
    desk.run()
    assert desk.explain(S, X).publishers == ("p",)
    assert desk.code("p", Declare(3, 1, 1, 3, ())) is Code.OUT_OF_STEP
    assert desk.code("p", Declare(3, 1, 2, 2, ())) is Code.WRONG_IDS
    desk.ok("p", first)  # begins again
    desk.ok("p", PublishItem(4, S, ident(9)))  # what comes in between is kept
    desk.ok("p", Declare(5, 1, 1, 2, ()))
    desk.run()
    assert desk.explain(S, X).publishers == ()
    assert desk.explain(S, Y).publishers == desk.explain(S, ident(9)).publishers == ("p",)
    desk.ok("p", Declare(5, 1, 1, 2, ()))  # the last part once more, as after a crash
    desk.ok("p", KeepAlive(6, 1, declarations_digest([(Role.PUBLISHES, S, Y), (Role.PUBLISHES, S, ident(9))])))


def test_refused_parts_of_a_declaration_are_named_and_the_rest_counts(desk: Desk) -> None:
    bad = Declaration(3, S, X), Declaration(2, S, X), Declaration(0, bytes(32), X)
    reply = desk.ask("p", Declare(1, 1, 0, 1, (Declaration(0, S, X), *bad)))
    assert reply.code == Code.UNKNOWN_REQUEST
    assert "3 of 4" in reply.reason
    (told,) = desk.inbox["p"]
    assert isinstance(told, DeclarationsRefused)
    assert told.number == 1
    codes = [Code.UNKNOWN_REQUEST, Code.WRONG_IDS, Code.WRONG_IDS]
    assert [(entry.role, entry.sid, entry.code) for entry in told.refused] == [
        (entry.role, entry.sid, code) for entry, code in zip(bad, codes, strict=True)
    ]
    desk.ok("p", KeepAlive(2, 1, declarations_digest([(Role.PUBLISHES, S, X)])))
    assert desk.explain(S, X).refusals[0].startswith("Declare of p: WRONG_IDS")


def test_a_new_life_replaces_what_the_former_declared(desk: Desk) -> None:
    desk.ok("s", SubscribeItem(1, S, X))
    desk.ok("s", SubscribeItem(2, S, Y))
    desk.ok("p", PublishItem(1, S, X))
    desk.ok("p", PublishItem(2, S, Y))
    desk.matches.clear()
    desk.ok("p", PublishItem(1, S, X), boot=2)
    desk.run()
    # X is said again: the node has forgotten what topology told its former life. Y is withdrawn.
    assert [(match.rid, who(match)) for match in desk.matches] == [(X, (("p",), ("s",))), (Y, ((), ("s",)))]
    assert desk.code("p", PublishItem(3, S, Y), boot=1) is Code.OUT_OF_STEP
    assert desk.explain(S, Y).publishers == ()


def test_a_new_life_that_has_nothing_is_in_step_at_once(desk: Desk) -> None:
    desk.ok("p", PublishItem(1, S, X))
    desk.ok("p", KeepAlive(1, 2, 0), boot=2)
    desk.run()
    assert desk.explain(S, X).publishers == ()
    assert desk.rendezvous.statistics().nodes == 0


def test_a_scope_subscriber_is_told_again_in_a_new_life_but_not_when_it_declares_again(desk: Desk) -> None:
    desk.bulk(("p", PublishItem(1, S, ident(n))) for n in range(1, 11))
    watch = [(2, S, WHOLE_SCOPE)]
    for boot, times in ((1, 10), (1, 0), (2, 10), (2, 0)):
        desk.declare("w", watch, boot)
        desk.run()
        assert len(desk.scope_events("w")) == times
    desk.ok("p", PublishItem(1, S, X))
    assert desk.scope_events("w") == [("+", S, X)]


def test_a_node_that_declares_without_end_is_held_back(desk: Desk) -> None:
    codes = [desk.declare("p", [(0, S, X)])[0].code for _ in range(20)]
    assert set(codes) == {Code.SUCCESS, Code.LIMIT_REACHED}
    desk.run()
    assert desk.declare("p", [(0, S, X)])[0].code == Code.SUCCESS


def test_unsubscribing_counts_for_all_that_a_node_is_declaring(desk: Desk) -> None:
    desk.ok("s", SubscribeItem(1, S, X))
    desk.ok("s", Declare(2, 1, 0, 2, (Declaration(1, S, X),)))
    desk.ok("s", UnsubscribeItem(3, S, X))
    desk.ok("s", Declare(4, 1, 1, 2, ()))
    desk.run()
    assert desk.explain(S, X).subscribers == ()


def test_a_lease_that_ends_while_the_store_fails_is_ended_later(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    desk.ok("p", PublishItem(1, S, X))
    desk.ok("s", SubscribeItem(1, S, X))
    desk.run()
    desk.now += 31
    with monkeypatch.context() as patch:
        patch.setattr(Session, "finish", failing)
        for _ in range(3):
            future = desk.rendezvous.handle_timer(desk.now)
            assert future is None or future.result(20) == Outcome()
        assert desk.rendezvous.handle_topology(TopologyStarted(1), desk.now).result(20) == Outcome()
        reply = desk.ask("q", PublishItem(1, S, Y))
        assert reply.code == Code.LIMIT_REACHED
        assert reply.reason == "nothing was changed: the disk is full"
    assert [event.work for event in desk.events if isinstance(event, WorkFailed)]
    desk.events.clear()
    assert desk.explain(S, X).publishers == ("p",)
    desk.run(until=desk.now + 2)
    assert desk.explain(S, X).publishers == desk.explain(S, X).subscribers == ()
    assert who(desk.matches[-1]) == ((), ())


def failing(_: Session) -> None:
    raise StorageFullError("the disk is full")
