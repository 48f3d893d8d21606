"""A stranger on the wire who has read all the documentation: real nodes over UDP in a domain with a secret, forged
announcements and segments, and recordings of what neighbours said."""

import asyncio
import random
import socket
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from identifiers import Identifier, ItemId
from psirp_stack.control.messages import FilterGrant
from psirp_stack.control.tag_source import DerivedTags
from psirp_stack.node.api import Client
from psirp_stack.node.attachment import ReceivedVersion
from psirp_stack.node.config import DomainFile, LinkFile, NodeFile, NodeRole, TimesFile
from psirp_stack.node.shell import RunningNode
from psirp_stack.transport.sender import Sender
from psirp_stack.transport.versions import in_memory
from psirp_stack.wire.numbers import FID_BYTES
from tests.psirp_stack.simulated import scope
from tests.waiting import until

ITEM = ItemId(Identifier(scope(3)), Identifier(scope(4)))
SEED = "a seed that everybody may know"
TABLE = 0


def free_socket() -> socket.socket:
    sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    sock.bind(("127.0.0.1", 0))
    sock.setblocking(False)
    return sock


def address(sock: socket.socket) -> str:
    host, port = sock.getsockname()
    return f"{host}:{port}"


@dataclass
class Wire:
    """Two neighbours whose datagrams pass through here, and the address of a neighbour that the second one awaits."""

    sockets: list[socket.socket] = field(default_factory=lambda: [free_socket() for _ in range(3)])
    targets: list[tuple[str, int]] = field(default_factory=list)
    heard: list[tuple[int, bytes]] = field(default_factory=list)
    passes: bool = True

    def connect(self, *targets: str) -> None:
        for target in targets:
            host, _, port = target.rpartition(":")
            self.targets.append((host, int(port)))
        loop = asyncio.get_running_loop()
        for side in (0, 1):
            loop.add_reader(self.sockets[side], self._relay, side)

    def _relay(self, side: int) -> None:
        """What comes to a side's socket is from that side's node, and goes to the other node."""
        data = self.sockets[side].recv(65_536)
        self.heard.append((side, data))
        if self.passes:
            self.say(1 - side, data)

    def say(self, side: int, data: bytes) -> None:
        """To a node, from the address of its neighbour."""
        self.sockets[side].sendto(data, self.targets[side])

    def say_from_unused(self, data: bytes) -> None:
        self.sockets[2].sendto(data, self.targets[2])

    def close(self) -> None:
        for sock in self.sockets:
            asyncio.get_running_loop().remove_reader(sock)
            sock.close()


@dataclass
class World:
    wire: Wire
    publisher: RunningNode
    subscriber: RunningNode


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    secret = tmp_path / "domain.secret"
    secret.write_text("nobody on the wire knows this\n")
    secret.chmod(0o600)
    wire = Wire()
    places = [free_socket() for _ in range(3)]
    a, b, unused = map(address, places)
    for place in places:
        place.close()
    domain = DomainFile(seed=SEED, secret_file="domain.secret", rendezvous=("a",), topology=("a",))
    times = TimesFile(hello=0.1, lease=5.0)
    links = (LinkFile(udp=a, peer=address(wire.sockets[0])),)
    roles = (NodeRole.RENDEZVOUS, NodeRole.TOPOLOGY)
    publisher = await RunningNode.start(
        NodeFile(name="a", roles=roles, data="a", socket="a.sock", domain=domain, links=links, times=times), tmp_path
    )
    links = (LinkFile(udp=b, peer=address(wire.sockets[1])), LinkFile(udp=unused, peer=address(wire.sockets[2])))
    subscriber = await RunningNode.start(
        NodeFile(name="b", socket="b.sock", domain=domain, links=links, times=times), tmp_path
    )
    wire.connect(a, b, unused)
    yield World(wire, publisher, subscriber)
    await publisher.close()
    await subscriber.close()
    wire.close()


def forged_publication(content: bytes) -> list[bytes]:
    """Announcement and segments of a version that node `a` never published, in a filter that leads into `b`."""
    tags = DerivedTags(SEED.encode())
    fid = tags.internal_tags("b")[TABLE].to_bytes(FID_BYTES - 1, "big") + bytes((TABLE,))
    sender = Sender(
        "a",
        tags.internal_tags("a"),
        in_memory(1 << 38),
        route_to=lambda name: (fid, 1400),
        wall_ms=lambda now: 1_900_000_000_000,
        rng=random.Random(1),
    )
    sender.publish(ITEM, b"nothing", b"", 0.0)
    sender.grant(ITEM, 1, (FilterGrant(fid, ("b",), 1400),), 0.0)
    frames: list[bytes] = []
    for turn in range(20):
        if turn == 2:
            sender.publish(ITEM, content, b"", turn / 10)
        due = sender.next_timer()
        if due is not None and due <= turn / 10:
            sender.handle_timer(turn / 10)
        while (frame := sender.next_frame(turn / 10)) is not None:
            frames.append(frame)
    return frames


async def test_what_a_stranger_forges_is_not_delivered(world: World, tmp_path: Path) -> None:
    """From the address of a neighbour that is configured and not there, and from that of the neighbour that is."""
    async with await Client.attach(tmp_path / "a.sock") as a, await Client.attach(tmp_path / "b.sock") as b:
        got: list[bytes] = []

        def receive(publication: ReceivedVersion) -> None:
            got.append(publication.content)

        await b.subscribe(*_split(ITEM), receive)
        await a.publish(*_split(ITEM), b"genuine 1")
        await until(lambda: got == [b"genuine 1"])
        before = world.subscriber.node.forwarder.statistics.received
        # Nothing honest shall be counted meanwhile.
        world.wire.passes = False
        forged = forged_publication(b"forged")
        assert len(forged) > 2
        for frame in forged:
            world.wire.say_from_unused(frame)
            world.wire.say(1, frame)
        link = world.subscriber.link(2)
        await until(lambda: link.counters.received >= len(forged))
        world.wire.passes = True
        await a.publish(*_split(ITEM), b"genuine 2")
        await until(lambda: got[-1:] == [b"genuine 2"])
        assert got == [b"genuine 1", b"genuine 2"]
        assert before <= world.subscriber.node.forwarder.statistics.received


def _split(item: ItemId) -> tuple[Identifier, Identifier]:
    return item.sid, item.rid


async def test_recordings_neither_keep_a_dead_neighbour_alive_nor_take_a_living_one_down(world: World) -> None:
    """Everything that was ever said on the wire, said again to whom it was said, while nobody honest speaks."""
    b = world.subscriber.node
    await until(lambda: b.link_state.neighbours() == {"a": 1})
    # A whole life of the neighbour with farewell: hellos of a node that hears nobody are among it.
    recorded = [data for side, data in world.wire.heard if side == 0]
    for data in recorded:
        world.wire.say(1, data)
    heard = world.subscriber.link(1).counters
    wanted = heard.received + len(recorded)
    await until(lambda: heard.received >= wanted)
    assert b.link_state.neighbours() == {"a": 1}, "a living neighbour was taken down"
    world.wire.passes = False

    def silent() -> bool:
        for data in recorded[-20:]:
            world.wire.say(1, data)
        return not b.link_state.neighbours()

    await until(silent, 20.0, "a dead neighbour is kept alive")
