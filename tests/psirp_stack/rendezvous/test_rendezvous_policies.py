"""Who may publish and subscribe: open and restricted scopes, their owners, and what a changed policy does."""

from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from psirp_stack.authentication.signing import Signable, Signer
from psirp_stack.control.codes import Code
from psirp_stack.control.messages import (
    ROOT_SCOPE,
    Declaration,
    DeclarationsRefused,
    Declare,
    PublishItem,
    PublishScope,
    ScopePolicy,
    SubscribeItem,
    SubscribeScope,
    UnpublishScope,
)
from psirp_stack.rendezvous import RendezvousConfig
from tests.psirp_stack.rendezvous.rendezvous_support import NOW_MS, Desk, S, T, X, Y, ident, signer

Owner, Friend, Stranger = (signer(n) for n in (1, 2, 3))


@pytest.fixture
def desk(tmp_path: Path) -> Iterator[Desk]:
    made = Desk(tmp_path / "rendezvous.db", RendezvousConfig(portion=8))
    yield made
    made.close()


def signed(request: Signable, by: Signer, node: str, at: int = NOW_MS) -> Signable:
    return msgspec.structs.replace(request, credential=by.credential(request, node, at))


def code(desk: Desk, node: str, request: Signable, by: Signer, as_node: str | None = None, at: int = NOW_MS) -> Code:
    proved = signed(request, by, as_node or node, at)
    assert not isinstance(proved, Declaration)
    return desk.code(node, proved)


def restricted(*, publishers: bool = True, subscribers: bool = False) -> ScopePolicy:
    keys = (Owner.key.hash, Friend.key.hash)
    return ScopePolicy(keys if publishers else None, keys if subscribers else None)


def test_a_restricted_scope_takes_publishers_by_key(desk: Desk) -> None:
    assert code(desk, "o", PublishScope(1, S, ROOT_SCOPE, restricted()), Owner) is Code.SUCCESS
    assert code(desk, "f", PublishItem(1, S, X), Friend) is Code.SUCCESS
    assert code(desk, "x", PublishItem(1, S, X), Stranger) is Code.NOT_ALLOWED
    assert desk.code("x", PublishItem(2, S, X)) is Code.BAD_SIGNATURE
    assert desk.explain(S, X).publishers == ("f",)
    desk.ok("anybody", SubscribeItem(1, S, X))
    assert desk.matches[-1].policy == restricted()
    assert len(desk.explain(S, X).refusals) == 2


def test_a_restricted_scope_takes_subscribers_by_key(desk: Desk) -> None:
    assert code(desk, "o", PublishScope(1, S, ROOT_SCOPE, restricted(publishers=False, subscribers=True)), Owner) == 0
    desk.ok("anybody", PublishItem(1, S, X))
    assert desk.code("x", SubscribeItem(1, S, X)) is Code.BAD_SIGNATURE
    assert desk.code("x", SubscribeScope(2, S)) is Code.BAD_SIGNATURE
    assert code(desk, "x", SubscribeItem(3, S, X), Stranger) is Code.NOT_ALLOWED
    assert code(desk, "f", SubscribeItem(1, S, X), Friend) is Code.SUCCESS
    assert code(desk, "f", SubscribeScope(2, S), Friend) is Code.SUCCESS


def test_each_scope_has_a_policy_of_its_own_and_the_parents_says_who_makes_children(desk: Desk) -> None:
    assert code(desk, "o", PublishScope(1, S, ROOT_SCOPE, restricted()), Owner) is Code.SUCCESS
    assert desk.code("x", PublishScope(1, T, S)) is Code.BAD_SIGNATURE
    assert code(desk, "x", PublishScope(2, T, S), Stranger) is Code.NOT_ALLOWED
    assert code(desk, "f", PublishScope(1, T, S), Friend) is Code.SUCCESS
    desk.ok("x", PublishItem(3, T, X))


def test_a_credential_counts_once_for_one_node_one_request_and_a_short_time(desk: Desk) -> None:
    assert code(desk, "o", PublishScope(1, S, ROOT_SCOPE, restricted()), Owner) is Code.SUCCESS
    assert code(desk, "x", PublishItem(1, S, X), Friend, as_node="f") is Code.BAD_SIGNATURE
    stale, early = NOW_MS - 6 * 60_000, NOW_MS + 6 * 60_000
    assert code(desk, "f", PublishItem(1, S, X), Friend, at=stale) is Code.BAD_SIGNATURE
    assert code(desk, "f", PublishItem(1, S, X), Friend, at=early) is Code.BAD_SIGNATURE
    proved = signed(PublishItem(2, S, X), Friend, "f")
    assert isinstance(proved, PublishItem)
    assert desk.code("f", msgspec.structs.replace(proved, rid=Y)) is Code.BAD_SIGNATURE
    assert desk.code("f", proved) is Code.SUCCESS
    assert desk.code("f", proved) is Code.BAD_SIGNATURE
    assert desk.ask("f", proved).reason == "its sequence number was seen before, or is too old to know"


def test_only_the_owner_changes_a_policy_or_takes_the_scope_away(desk: Desk) -> None:
    assert desk.code("o", PublishScope(1, S, ROOT_SCOPE, restricted())) is Code.BAD_SIGNATURE
    assert code(desk, "o", PublishScope(2, S, ROOT_SCOPE, restricted()), Owner) is Code.SUCCESS
    assert code(desk, "f", PublishScope(1, S, ROOT_SCOPE, ScopePolicy()), Friend) is Code.NOT_ALLOWED
    assert code(desk, "elsewhere", PublishScope(1, S, ROOT_SCOPE, ScopePolicy()), Owner) is Code.SUCCESS
    desk.ok("x", PublishItem(1, S, X))
    desk.restart()
    assert code(desk, "f", PublishScope(2, S, ROOT_SCOPE, restricted()), Friend) is Code.NOT_ALLOWED
    assert code(desk, "o", PublishScope(3, S, ROOT_SCOPE, restricted()), Owner) is Code.SUCCESS
    assert desk.code("f", UnpublishScope(3, S)) is Code.NOT_ALLOWED
    assert code(desk, "elsewhere", UnpublishScope(2, S), Owner) is Code.SUCCESS


def test_a_scope_that_came_by_use_may_be_claimed_but_not_one_that_somebody_made(desk: Desk) -> None:
    desk.ok("x", PublishItem(1, S, X))
    assert code(desk, "o", PublishScope(1, S, ROOT_SCOPE, restricted()), Owner) is Code.SUCCESS
    assert desk.explain(S, X).publishers == ()
    desk.ok("x", PublishScope(2, T))
    assert code(desk, "o", PublishScope(2, T, ROOT_SCOPE, restricted()), Owner) is Code.NOT_ALLOWED
    assert code(desk, "x", PublishScope(3, T, ROOT_SCOPE, restricted()), Stranger) is Code.SUCCESS


@pytest.mark.parametrize("crash", [False, True])
def test_a_new_policy_puts_out_those_who_may_not_and_tells_them(desk: Desk, crash: bool) -> None:
    rids = [ident(n) for n in range(1, 31)]
    assert code(desk, "o", PublishScope(1, S, ROOT_SCOPE, ScopePolicy()), Owner) is Code.SUCCESS
    for number, rid in enumerate(rids[:3], 1):
        assert code(desk, "f", PublishItem(number, S, rid), Friend) is Code.SUCCESS
    desk.bulk(("x", PublishItem(1, S, rid)) for rid in rids)
    desk.bulk(("s", SubscribeItem(1, S, rid)) for rid in rids)
    desk.ok("s", SubscribeScope(2, S))
    desk.inbox.clear()
    desk.run()
    desk.matches.clear()
    assert code(desk, "o", PublishScope(2, S, ROOT_SCOPE, restricted()), Owner) is Code.SUCCESS
    if crash:
        desk.restart()
    desk.run()
    assert [desk.explain(S, rid).publishers for rid in rids] == [("f",)] * 3 + [()] * 27
    told = [message for message in desk.inbox["x"] if isinstance(message, DeclarationsRefused)]
    assert sorted(entry.rid for message in told for entry in message.refused) == rids
    assert {entry.code for message in told for entry in message.refused} == {Code.NOT_ALLOWED}
    latest = {match.rid: match for match in desk.matches}
    assert {match.policy for match in latest.values()} == {restricted()}
    assert [latest[rid].publishers for rid in rids] == [("f",)] * 3 + [()] * 27
    assert not [message for message in desk.inbox.get("s", []) if isinstance(message, DeclarationsRefused)]


def test_declarations_are_proved_one_by_one(desk: Desk) -> None:
    assert code(desk, "o", PublishScope(1, S, ROOT_SCOPE, restricted()), Owner) is Code.SUCCESS
    entries = (
        signed(Declaration(0, S, X), Friend, "f"),
        signed(Declaration(0, S, Y), Stranger, "f"),
        Declaration(0, T, X),
        signed(Declaration(0, S, ident(7)), Friend, "another"),
    )
    chosen = tuple(entry for entry in entries if isinstance(entry, Declaration))
    assert desk.code("f", Declare(1, 1, 0, 1, chosen)) is Code.NOT_ALLOWED
    (told,) = desk.inbox["f"]
    assert isinstance(told, DeclarationsRefused)
    assert [(entry.rid, entry.code) for entry in told.refused] == [
        (Y, Code.NOT_ALLOWED),
        (ident(7), Code.BAD_SIGNATURE),
    ]
    assert desk.explain(S, X).publishers == desk.explain(T, X).publishers == ("f",)
