"""Publications a second from one application to one and to sixteen, over one and three hops: for `psph bench psirp`.

    publisher, n0 ==n1==n2==.. one receiver, or sixteen nodes with a receiver each behind the last but one

Nodes are those of `psph node`, with the applications beside them, as a gateway is; all share one core, so what is told
is a second of processor time, of all nodes and applications together. A window of publications is under way at a time,
or one. Beside it, round by round, a bare loop: the same links, over which frames of the same length go from end to end,
received and sent on one by one, and nothing else is done. python-ndn's figures are those it publishes for one consumer
and one producer at NFD, on a machine like those that this was made on; there NFD has a core of its own.
"""

import asyncio
import contextlib
import statistics
import time
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack, ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from identifiers import Identifier
from perf.bench.family import Ticker
from perf.bench.ingest_systems import free_udp_ports
from psirp_stack.links.udp import UdpAddress, UdpLink, bound_socket
from psirp_stack.node.api import Client
from psirp_stack.node.attachment import ReceivedVersion
from psirp_stack.node.config import check
from psirp_stack.node.shell import RunningNode

NDN_SEQUENTIAL: Final = 1_500.0
NDN_WINDOWED: Final = 3_700.0
SIZE: Final = 1_000
SHAPES: Final = ((1, 1), (1, 3), (16, 1), (16, 3))
"""Receivers and hops."""
WINDOW: Final = 64
PATIENCE: Final = 60.0
FRAME: Final = b"f" * (SIZE + 200)
"""About as long as a segment with its headers."""
SCOPE: Final = Identifier(b"\x51" * 32)
ITEM: Final = Identifier(b"\x52" * 32)


@dataclass(slots=True)
class RateFound:
    receivers: int
    hops: int
    windowed: list[float] = field(default_factory=list)
    """Publications for a second of processor time."""
    sequential: list[float] = field(default_factory=list)
    frames_each: float = 0.0
    of_bare: list[float] = field(default_factory=list)
    """Frames for a second of processor time, of those that the bare loop moves in one."""

    @property
    def rate(self) -> float:
        return statistics.median(self.windowed)

    @property
    def rate_alone(self) -> float:
        return statistics.median(self.sequential)

    @property
    def part_of_bare(self) -> float:
        return statistics.median(self.of_bare)


def joined(receivers: int, hops: int) -> list[tuple[int, int]]:
    """Links of a line whose last hop goes to each receiver: nodes 0 to `hops - 1`, and behind them the receivers."""
    line = [(node, node + 1) for node in range(hops - 1)]
    return [*line, *((hops - 1, hops + number) for number in range(receivers))]


class RateNetwork:
    """Nodes in this process, with UDP between them, and one more that has the roles."""

    def __init__(self, receivers: int, hops: int) -> None:
        self.receivers = receivers
        self.hops = hops
        self.nodes: list[RunningNode] = []
        self.near: Client
        self._far: list[Client] = []
        self._arrived = 0
        self._awaited = 0
        self._all_there = asyncio.Event()

    async def start(self, folder: Path, stack: AsyncExitStack) -> None:
        edges = joined(self.receivers, self.hops)
        count = self.hops + self.receivers
        edges.append((0, count))
        ports = iter(free_udp_ports(2 * len(edges)))
        ends: list[list[dict[str, str]]] = [[] for _ in range(count + 1)]
        for one, other in edges:
            here, there = (f"127.0.0.1:{next(ports)}" for _ in range(2))
            ends[one].append({"udp": here, "peer": there})
            ends[other].append({"udp": there, "peer": here})
        roles = {"rendezvous": [f"n{count}"], "topology": [f"n{count}"]}
        for number in range(count + 1):
            document: dict[str, object] = {
                "name": f"n{number}",
                "domain": {**roles, "open": True},
                "links": ends[number],
            }
            if number == count:
                document |= {"roles": ["rendezvous", "topology"], "data": "roles"}
            node = await RunningNode.start(check(document), folder)
            stack.push_async_callback(node.close)
            self.nodes.append(node)
        self.near = await stack.enter_async_context(await Client.beside(self.nodes[0]))
        for number in range(self.receivers):
            far = await stack.enter_async_context(await Client.beside(self.nodes[self.hops + number]))
            await far.subscribe(SCOPE, ITEM, self._on_publication)
            self._far.append(far)
        async with asyncio.timeout(PATIENCE):
            while self._arrived < self.receivers:
                await self.near.publish(SCOPE, ITEM, b"warm" + bytes([self._arrived]))
                await asyncio.sleep(0.05)

    def _on_publication(self, _: ReceivedVersion) -> None:
        self._arrived += 1
        if self._arrived >= self._awaited:
            self._all_there.set()

    async def publish(self, numbers: Sequence[int], window: int) -> float:
        """Seconds of processor time until everybody has all of them."""
        self._arrived, self._awaited = 0, len(numbers) * self.receivers
        self._all_there.clear()
        waiting = iter(numbers)

        async def some() -> None:
            for number in waiting:
                await self.near.publish(SCOPE, ITEM, number.to_bytes(8, "big").ljust(SIZE, b"x"))

        began = time.process_time()
        async with asyncio.timeout(PATIENCE):
            await asyncio.gather(*(some() for _ in range(window)))
            await self._all_there.wait()
        return time.process_time() - began

    async def publish_alone(self, numbers: Sequence[int]) -> float:
        """The same, each when everybody has the one before."""
        return sum([await self.publish([number], 1) for number in numbers])

    def frames(self) -> int:
        """Sent over all links so far."""
        return sum(node.link(number).counters.sent for node in self.nodes for number in node.node.links)


class BareLinks:
    """The same links without nodes: frames from the first end to all receivers."""

    def __init__(self, receivers: int, hops: int, stack: ExitStack) -> None:
        self._receivers = receivers
        out: dict[int, list[UdpLink]] = {}
        into: dict[int, UdpLink] = {}
        for one, other in joined(receivers, hops):
            sockets = [bound_socket(UdpAddress("127.0.0.1", 0)) for _ in range(2)]
            addresses = [UdpAddress(*sock.getsockname()[:2]) for sock in sockets]
            here, there = (UdpLink(sockets[end], addresses[end ^ 1]) for end in range(2))
            for link in (here, there):
                stack.callback(link.close)
            out.setdefault(one, []).append(here)
            into[other] = there
        self._out = out
        self._into = [into[node] for node in sorted(into)]
        self._arrived = 0
        for node, link in into.items():
            link.on_receive(self._sender(out[node]) if node in out else self._count)

    @staticmethod
    def _sender(links: Sequence[UdpLink]) -> Callable[[Sequence[bytes]], None]:
        def send_on(frames: Sequence[bytes]) -> None:
            for frame in frames:
                for link in links:
                    link.send(frame)

        return send_on

    def _count(self, frames: Sequence[bytes]) -> None:
        self._arrived += len(frames)

    def move(self, bursts: int) -> tuple[int, float]:
        """Frames that were sent over all links, and seconds of processor time."""
        began, self._arrived = time.process_time(), 0
        before = self.sent
        for _ in range(bursts):
            for _ in range(WINDOW):
                for link in self._out[0]:
                    link.send(FRAME)
            for link in self._into:
                while link.drain():
                    pass
        seconds = time.process_time() - began
        assert self._arrived == bursts * WINDOW * self._receivers  # noqa: S101 - nothing is lost on the way
        return self.sent - before, seconds

    @property
    def sent(self) -> int:
        return sum(link.counters.sent for links in self._out.values() for link in links)


async def measure(folder: Path, rounds: int, count: int, tick: Ticker) -> list[RateFound]:
    """`count` publications a round; a fifth of them one by one."""
    found = []
    for receivers, hops in SHAPES:
        place = folder / f"{receivers}-{hops}"
        place.mkdir()
        one = RateFound(receivers, hops)
        async with AsyncExitStack() as stack:
            network = RateNetwork(receivers, hops)
            await network.start(place, stack)
            bare = BareLinks(receivers, hops, stack.enter_context(contextlib.ExitStack()))
            at = 1
            each = max(40, count // receivers)
            for _ in range(rounds):
                before = network.frames()
                seconds = await network.publish(range(at, at + each), WINDOW)
                frames = network.frames() - before
                bare_frames, bare_seconds = bare.move(max(1, 2 * count // WINDOW // receivers))
                one.windowed.append(each / seconds)
                one.frames_each = frames / each
                one.of_bare.append(frames / seconds / (bare_frames / bare_seconds))
                one.sequential.append(each // 5 / await network.publish_alone(range(at + each, at + each + each // 5)))
                at += 2 * each
        found.append(one)
        tick(f"rate, 1 to {receivers}, {hops} hops")
    return found
