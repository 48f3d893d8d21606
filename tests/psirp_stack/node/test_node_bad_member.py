"""A member of the domain that turned bad, at the end of a line: what it writes in the names of others to nodes that are
not its neighbours, changes nothing there. It knows all names, lives, filters and ids, and the seed of the tags."""

from collections.abc import Callable
from dataclasses import replace

import pytest

from psirp_stack.control.codes import Function, ServiceRole
from psirp_stack.control.courier_wire import Piece
from psirp_stack.control.courier_wire import encode as encode_courier
from psirp_stack.control.frames import build_control
from psirp_stack.control.messages import (
    AgedState,
    Declare,
    Hello,
    KeepAlive,
    LinkState,
    LinkStateReceived,
    LinkStates,
    Message,
    UnsubscribeItem,
    encode,
)
from psirp_stack.control.relay_frames import Station, station_name, wrap
from psirp_stack.emulation.simulation import SimulatedNetwork
from psirp_stack.node.intents import IntentConfig
from psirp_stack.node.settings import NodeDrop
from psirp_stack.rendezvous import RendezvousConfig
from tests.psirp_stack.simulated import Networks, item, line

FAR_BOOT = 1 << 61
ITEM = item(7)
FAR, MIDDLE, NEAR, BAD = "n0", "n1", "n2", "n3"
LEASE = 2.0


def said_by(network: SimulatedNetwork, frames: list[bytes]) -> None:
    """By the bad member, into the network."""
    network.nodes[BAD].forwarder.forward(frames, None, network.clock.now())
    network.wake(BAD)


def filter_to(network: SimulatedNetwork, name: str) -> bytes:
    route = network.nodes[BAD].link_state.route_to(name)
    assert route is not None
    return route.fid


NEIGHBOURS_WORDS: dict[str, Message] = {
    "a later life": Hello(MIDDLE, FAR_BOOT, (FAR,), 1400),
    "hears nobody": Hello(MIDDLE, 1, (), 1400),
    "another neighbour": Hello("n9", 1, (FAR,), 1400),
    "states": LinkStates((AgedState(0, encode(LinkState(MIDDLE, FAR_BOOT, 1, 3, ()))),)),
    "acknowledgements": LinkStateReceived(MIDDLE, ((FAR, 1, 1, 0),)),
}


@pytest.mark.parametrize("relayed", [False, True], ids=["along a filter", "over a relay"])
@pytest.mark.parametrize("words", NEIGHBOURS_WORDS)
def test_only_neighbours_say_what_neighbours_say(networks: Networks, words: str, relayed: bool) -> None:
    """A link's other end is heard under the filter for all neighbours, which no forwarder passes on."""
    network = networks(line(4))
    far = network.nodes[FAR]
    before = far.link_state.graph()
    assert set(far.link_state.neighbours()) == {MIDDLE}
    fid = filter_to(network, FAR)
    for _ in range(10):
        frame = build_control(fid, Function.LINK_STATE, None, encode(NEIGHBOURS_WORDS[words]))
        if relayed:
            frame = wrap(filter_to(network, MIDDLE), MIDDLE, 9, (Station(station_name(FAR)),), frame)
        said_by(network, [frame])
        network.run(0.02)
        assert set(far.link_state.neighbours()) == {MIDDLE}
    network.run(3)
    assert set(far.link_state.neighbours()) == {MIDDLE}
    assert far.link_state.graph() == before
    assert far.drops[NodeDrop.FROM_AFAR] == 10


REQUESTS: dict[str, Callable[[int], Message]] = {
    "unsubscribes it": lambda number: UnsubscribeItem(number, bytes(ITEM.sid), bytes(ITEM.rid)),
    "declares that it has nothing": lambda number: Declare(number, FAR_BOOT, 0, 1, ()),
    "gives a sign of a later life": lambda number: KeepAlive(number, FAR_BOOT, 0),
}


@pytest.mark.parametrize("boot", [None, FAR_BOOT])
@pytest.mark.parametrize("name", REQUESTS)
def test_nodes_without_keys_too_are_neither_silenced_nor_unsubscribed_by_others(
    networks: Networks, name: str, boot: int | None
) -> None:
    network = networks(
        line(4),
        roles={MIDDLE: ServiceRole.RENDEZVOUS | ServiceRole.TOPOLOGY},
        rendezvous=RendezvousConfig(lease=LEASE),
        settings=lambda given: replace(given, intents=IntentConfig(keep_alive=LEASE / 4)),
    )
    subscriber, publisher = network.application(FAR), network.application(NEAR)
    subscriber.subscribe(ITEM)
    publisher.publish(ITEM, b"before")
    network.run(1)
    life = network.nodes[FAR].courier.boot if boot is None else boot
    for number in range(40):
        body = encode(REQUESTS[name](number))
        piece = Piece(FAR, life, number, number, int(Function.RENDEZVOUS), 0, 0, 1, False, body)
        fid = filter_to(network, MIDDLE)
        said_by(network, [build_control(fid, Function.RENDEZVOUS, MIDDLE, encode_courier(piece))])
        network.run(0.05)
    network.run(6)
    publisher.publish(ITEM, b"after")
    network.run(1)
    assert subscriber.contents(ITEM) == [b"before", b"after"]
    another = item(8)
    subscriber.subscribe(another)
    publisher.publish(another, b"something new")
    network.run(1)
    assert subscriber.contents(another) == [b"something new"]
