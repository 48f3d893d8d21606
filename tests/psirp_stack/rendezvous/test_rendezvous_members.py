"""A member that turns bad writes another node's name under its requests: nothing of that node's is changed by it."""

from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import pytest

from psirp_stack.authentication.signing import Signable, Signer
from psirp_stack.control.codes import Code
from psirp_stack.control.messages import (
    ROOT_SCOPE,
    Declaration,
    Declare,
    Explain,
    KeepAlive,
    PublishItem,
    PublishScope,
    RendezvousRequest,
    SubscribeItem,
    SubscribeScope,
    UnpublishItem,
    UnpublishScope,
    UnsubscribeItem,
    UnsubscribeScope,
)
from psirp_stack.rendezvous import RendezvousConfig
from psirp_stack.rendezvous.declarations import DeclaredRole
from psirp_stack.rendezvous.events import LeaseEnded
from tests.psirp_stack.rendezvous.rendezvous_support import NOW_MS, Desk, S, T, X, Y, signer

LEASE = 30.0
Victim, Bad = signer(1), signer(2)


@pytest.fixture
def table(tmp_path: Path) -> Iterator[Desk]:
    """`v` signs, publishes X, subscribes to Y, watches S and made T; `p` and `s` are its partners."""
    made = Desk(tmp_path / "rendezvous.db", RendezvousConfig(lease=LEASE))
    for request in (PublishItem(1, S, X), SubscribeItem(2, S, Y), SubscribeScope(3, S), PublishScope(4, T)):
        assert asked(made, request, Victim) is Code.SUCCESS
    made.ok("s", SubscribeItem(1, S, X))
    made.ok("p", PublishItem(1, S, Y))
    yield made
    made.close()


def asked(table: Desk, request: RendezvousRequest, by: Signer | None, boot: int = 1) -> Code:
    """A request in the name of `v`."""
    proved = request if by is None else signed(request, by)
    return table.code("v", proved, boot=boot)


def signed(request: RendezvousRequest, by: Signer, node: str = "v") -> RendezvousRequest:
    if isinstance(request, Declare):
        entries = tuple(_with_credential(entry, by, node) for entry in request.entries)
        request = msgspec.structs.replace(request, entries=entries)
    assert not isinstance(request, Explain)
    proved = _with_credential(request, by, node)
    assert not isinstance(proved, Declaration)
    return proved


def _with_credential(request: Signable, by: Signer, node: str) -> Signable:
    return msgspec.structs.replace(request, credential=by.credential(request, node, NOW_MS))


def state(table: Desk) -> object:
    x, y = table.explain(S, X), table.explain(S, Y)
    return (
        x.publishers,
        x.subscribers,
        y.publishers,
        y.subscribers,
        len(table.matches),
        table.explain(T, X).scope_exists,
    )


ATTACKS: dict[str, Callable[[int], RendezvousRequest]] = {
    "takes back what it publishes": lambda n: UnpublishItem(n, S, X),
    "unsubscribes it": lambda n: UnsubscribeItem(n, S, Y),
    "has it watch no more": lambda n: UnsubscribeScope(n, S),
    "takes its scope away": lambda n: UnpublishScope(n, T, ROOT_SCOPE),
    "declares that it has nothing": lambda n: Declare(n, 1, 0, 1, ()),
    "begins a new life for it": lambda n: Declare(n, 99, 0, 1, ()),
    "declares something else": lambda n: Declare(n, 1, 0, 1, (Declaration(DeclaredRole.PUBLISHES, S, Y),)),
    "publishes in its name": lambda n: PublishItem(n, S, Y),
    "gives a sign of life of a later life": lambda n: KeepAlive(n, 99, 0),
}


@pytest.mark.parametrize("by", [None, Bad], ids=["unsigned", "signed with its own key"])
@pytest.mark.parametrize("restarted", [False, True], ids=["", "after a restart of the rendezvous"])
@pytest.mark.parametrize("name", ATTACKS)
def test_nobody_asks_in_the_name_of_a_node_that_signs(
    table: Desk, name: str, by: Signer | None, restarted: bool
) -> None:
    if restarted:
        table.restart()
    before = state(table)
    for boot in (1, 99):
        assert asked(table, ATTACKS[name](10), by, boot=boot) is Code.BAD_SIGNATURE
    table.run(table.now + 1)
    assert state(table) == before
    assert asked(table, SubscribeItem(5, T, X), Victim) is Code.SUCCESS, "the victim goes on"


def test_what_the_victim_said_cannot_be_said_again(table: Desk) -> None:
    once = signed(UnpublishItem(6, S, X), Victim)
    assert table.code("v", once) is Code.SUCCESS
    assert asked(table, PublishItem(7, S, X), Victim) is Code.SUCCESS
    before = state(table)
    for boot in (1, 99):
        assert table.code("v", once, boot=boot) is Code.BAD_SIGNATURE
    assert state(table) == before


def test_a_lease_is_neither_taken_nor_kept_alive_by_others(table: Desk) -> None:
    for _ in range(3):
        table.run(table.now + LEASE / 4)
        for by in (None, Bad):
            assert asked(table, KeepAlive(table.number(), 1, 0), by) is Code.BAD_SIGNATURE
        table.code("p", KeepAlive(table.number(), 1, 0))
    table.run(table.now + LEASE / 4 + 1)
    over = {event.node for event in table.events if isinstance(event, LeaseEnded)}
    assert "v" in over
    assert "p" not in over
    assert table.explain(S, X).publishers == ()


def test_a_name_is_free_again_when_its_lease_has_ended(table: Desk) -> None:
    """Its node has another key after it was set up anew."""
    assert asked(table, PublishItem(5, S, X), Bad, boot=2) is Code.BAD_SIGNATURE
    table.run(table.now + LEASE + 1)
    assert asked(table, PublishItem(1, S, X), Bad, boot=2) is Code.SUCCESS
    assert asked(table, PublishItem(8, S, X), Victim, boot=3) is Code.BAD_SIGNATURE


def test_a_node_that_does_not_sign_is_taken_at_its_word(table: Desk) -> None:
    assert table.code("p", UnpublishItem(2, S, Y)) is Code.SUCCESS
