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
def request_table(tmp_path: Path) -> Iterator[Desk]:
    made = Desk(tmp_path / "rendezvous.db", RendezvousConfig(portion=8))
    yield made
    made.close()


def signed(request: Signable, by: Signer, node: str, at: int = NOW_MS) -> Signable:
    return msgspec.structs.replace(request, credential=by.credential(request, node, at))


def code(
    request_table: Desk, node: str, request: Signable, by: Signer, as_node: str | None = None, at: int = NOW_MS
) -> Code:
    proved = signed(request, by, as_node or node, at)
    assert not isinstance(proved, Declaration)
    return request_table.code(node, proved)


def restricted(*, publishers: bool = True, subscribers: bool = False) -> ScopePolicy:
    keys = (Owner.key.hash, Friend.key.hash)
    return ScopePolicy(keys if publishers else None, keys if subscribers else None)


def test_a_restricted_scope_takes_publishers_by_key(request_table: Desk) -> None:
    assert code(request_table, "o", PublishScope(1, S, ROOT_SCOPE, restricted()), Owner) is Code.SUCCESS
    assert code(request_table, "f", PublishItem(1, S, X), Friend) is Code.SUCCESS
    assert code(request_table, "x", PublishItem(1, S, X), Stranger) is Code.NOT_ALLOWED
    assert request_table.code("x", PublishItem(2, S, X)) is Code.BAD_SIGNATURE
    assert request_table.explain(S, X).publishers == ("f",)
    request_table.ok("anybody", SubscribeItem(1, S, X))
    assert request_table.matches[-1].policy == restricted()
    assert len(request_table.explain(S, X).refusals) == 2


def test_a_restricted_scope_takes_subscribers_by_key(request_table: Desk) -> None:
    assert (
        code(request_table, "o", PublishScope(1, S, ROOT_SCOPE, restricted(publishers=False, subscribers=True)), Owner)
        == 0
    )
    request_table.ok("anybody", PublishItem(1, S, X))
    assert request_table.code("x", SubscribeItem(1, S, X)) is Code.BAD_SIGNATURE
    assert request_table.code("x", SubscribeScope(2, S)) is Code.BAD_SIGNATURE
    assert code(request_table, "x", SubscribeItem(3, S, X), Stranger) is Code.NOT_ALLOWED
    assert code(request_table, "f", SubscribeItem(1, S, X), Friend) is Code.SUCCESS
    assert code(request_table, "f", SubscribeScope(2, S), Friend) is Code.SUCCESS


def test_each_scope_has_a_policy_of_its_own_and_the_parents_says_who_makes_children(request_table: Desk) -> None:
    assert code(request_table, "o", PublishScope(1, S, ROOT_SCOPE, restricted()), Owner) is Code.SUCCESS
    assert request_table.code("x", PublishScope(1, T, S)) is Code.BAD_SIGNATURE
    assert code(request_table, "x", PublishScope(2, T, S), Stranger) is Code.NOT_ALLOWED
    assert code(request_table, "f", PublishScope(1, T, S), Friend) is Code.SUCCESS
    request_table.ok("unsigned", PublishItem(3, T, X))


def test_a_credential_counts_once_for_one_node_one_request_and_a_short_time(request_table: Desk) -> None:
    assert code(request_table, "o", PublishScope(1, S, ROOT_SCOPE, restricted()), Owner) is Code.SUCCESS
    assert code(request_table, "x", PublishItem(1, S, X), Friend, as_node="f") is Code.BAD_SIGNATURE
    stale, early = NOW_MS - 6 * 60_000, NOW_MS + 6 * 60_000
    assert code(request_table, "f", PublishItem(1, S, X), Friend, at=stale) is Code.BAD_SIGNATURE
    assert code(request_table, "f", PublishItem(1, S, X), Friend, at=early) is Code.BAD_SIGNATURE
    proved = signed(PublishItem(2, S, X), Friend, "f")
    assert isinstance(proved, PublishItem)
    assert request_table.code("f", msgspec.structs.replace(proved, rid=Y)) is Code.BAD_SIGNATURE
    assert request_table.code("f", proved) is Code.SUCCESS
    assert request_table.code("f", proved) is Code.BAD_SIGNATURE
    assert request_table.ask("f", proved).reason == "its sequence number was seen before, or is too old to know"


def test_only_the_owner_changes_a_policy_or_takes_the_scope_away(request_table: Desk) -> None:
    assert request_table.code("o", PublishScope(1, S, ROOT_SCOPE, restricted())) is Code.BAD_SIGNATURE
    assert code(request_table, "o", PublishScope(2, S, ROOT_SCOPE, restricted()), Owner) is Code.SUCCESS
    assert code(request_table, "f", PublishScope(1, S, ROOT_SCOPE, ScopePolicy()), Friend) is Code.NOT_ALLOWED
    assert code(request_table, "elsewhere", PublishScope(1, S, ROOT_SCOPE, ScopePolicy()), Owner) is Code.SUCCESS
    request_table.ok("x", PublishItem(1, S, X))
    request_table.restart()
    assert code(request_table, "f", PublishScope(2, S, ROOT_SCOPE, restricted()), Friend) is Code.NOT_ALLOWED
    assert code(request_table, "o", PublishScope(3, S, ROOT_SCOPE, restricted()), Owner) is Code.SUCCESS
    assert request_table.code("unsigned", UnpublishScope(3, S)) is Code.NOT_ALLOWED
    assert code(request_table, "elsewhere", UnpublishScope(2, S), Owner) is Code.SUCCESS


def test_a_scope_that_came_by_use_may_be_claimed_but_not_one_that_somebody_made(request_table: Desk) -> None:
    request_table.ok("x", PublishItem(1, S, X))
    assert code(request_table, "o", PublishScope(1, S, ROOT_SCOPE, restricted()), Owner) is Code.SUCCESS
    assert request_table.explain(S, X).publishers == ()
    request_table.ok("x", PublishScope(2, T))
    assert code(request_table, "o", PublishScope(2, T, ROOT_SCOPE, restricted()), Owner) is Code.NOT_ALLOWED
    assert code(request_table, "x", PublishScope(3, T, ROOT_SCOPE, restricted()), Stranger) is Code.SUCCESS


@pytest.mark.parametrize("crash", [False, True])
def test_a_new_policy_puts_out_those_who_may_not_and_tells_them(request_table: Desk, crash: bool) -> None:
    rids = [ident(n) for n in range(1, 31)]
    assert code(request_table, "o", PublishScope(1, S, ROOT_SCOPE, ScopePolicy()), Owner) is Code.SUCCESS
    for number, rid in enumerate(rids[:3], 1):
        assert code(request_table, "f", PublishItem(number, S, rid), Friend) is Code.SUCCESS
    request_table.bulk(("x", PublishItem(1, S, rid)) for rid in rids)
    request_table.bulk(("s", SubscribeItem(1, S, rid)) for rid in rids)
    request_table.ok("s", SubscribeScope(2, S))
    request_table.inbox.clear()
    request_table.run()
    request_table.matches.clear()
    assert code(request_table, "o", PublishScope(2, S, ROOT_SCOPE, restricted()), Owner) is Code.SUCCESS
    if crash:
        request_table.restart()
    request_table.run()
    assert [request_table.explain(S, rid).publishers for rid in rids] == [("f",)] * 3 + [()] * 27
    told = [message for message in request_table.inbox["x"] if isinstance(message, DeclarationsRefused)]
    assert sorted(entry.rid for message in told for entry in message.refused) == rids
    assert {entry.code for message in told for entry in message.refused} == {Code.NOT_ALLOWED}
    latest = {match.rid: match for match in request_table.matches}
    assert {match.policy for match in latest.values()} == {restricted()}
    assert [latest[rid].publishers for rid in rids] == [("f",)] * 3 + [()] * 27
    assert not [message for message in request_table.inbox.get("s", []) if isinstance(message, DeclarationsRefused)]


def test_declarations_are_proved_one_by_one(request_table: Desk) -> None:
    assert code(request_table, "o", PublishScope(1, S, ROOT_SCOPE, restricted()), Owner) is Code.SUCCESS
    entries = (
        signed(Declaration(0, S, X), Friend, "f"),
        signed(Declaration(0, S, Y), Stranger, "f"),
        Declaration(0, T, X),
        signed(Declaration(0, S, ident(7)), Friend, "another"),
    )
    chosen = tuple(entry for entry in entries if isinstance(entry, Declaration))
    assert request_table.code("f", Declare(1, 1, 0, 1, chosen)) is Code.NOT_ALLOWED
    (told,) = request_table.inbox["f"]
    assert isinstance(told, DeclarationsRefused)
    assert [(entry.rid, entry.code) for entry in told.refused] == [
        (Y, Code.NOT_ALLOWED),
        (ident(7), Code.BAD_SIGNATURE),
    ]
    assert request_table.explain(S, X).publishers == request_table.explain(T, X).publishers == ("f",)
