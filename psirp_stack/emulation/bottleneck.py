"""Flows that share one slow link, on a virtual clock: what gets through, how evenly, and what is sent in vain.

p0, p1, ... publish to s0, s1, ... through the link between `left` and `right`. They always have something to send.
"""

from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from identifiers import Identifier, ItemId
from psirp_stack.control.codes import ServiceRole
from psirp_stack.emulation.simulation import SimulatedApplication, SimulatedNetwork
from psirp_stack.graph import Graph
from psirp_stack.links.impairment import Impairment
from psirp_stack.transport.frames import is_segment

LEFT, RIGHT = "left", "right"
VERSION_BYTES = 50_000
VERSIONS_AHEAD = 8
STEP = 0.05
FAST = Impairment(delay=0.001)


@dataclass(frozen=True, slots=True)
class SharedLink:
    """What was found on the slow link."""

    goodput: tuple[float, ...]
    """Bits of content a second, of each flow."""
    utilisation: float
    """The share of the link's bandwidth that content took."""
    waste: float
    """Segments that crossed the link, or were dropped there, and were of no use, of all that were sent to it."""
    adjacencies_lost: int

    @property
    def fairness(self) -> float:
        """Jain's index: 1 when all get the same, 1/n when one gets all."""
        return jain(self.goodput)


def jain(shares: tuple[float, ...]) -> float:
    squares = sum(share * share for share in shares)
    return sum(shares) ** 2 / (len(shares) * squares) if squares else 0.0


class Bottleneck:
    """The network, with its flows under way. Run it in steps, then ask what happened."""

    def __init__(self, flows: int, slow: Impairment, data: Path, *, receivers: int = 1, seed: int = 1) -> None:
        """Each flow has so many `receivers` behind the slow link."""
        publishers = [f"p{flow}" for flow in range(flows)]
        subscribers = [f"s{flow}.{place}" for flow in range(flows) for place in range(receivers)]
        names = [LEFT, RIGHT, *publishers, *subscribers]
        place_of = {name: place for place, name in enumerate(names)}
        edges = [(0, 1), *((0, place_of[name]) for name in publishers), *((1, place_of[name]) for name in subscribers)]
        graph = Graph.from_edges(names, edges)
        self.offered: Counter[bytes] = Counter()
        """Segments that were sent to the slow link, by what tells them apart."""
        self._slow = slow
        self.network = SimulatedNetwork(
            graph,
            data,
            seed=seed,
            roles={RIGHT: ServiceRole.RENDEZVOUS | ServiceRole.TOPOLOGY},
            impairment=FAST,
            impairments={(LEFT, RIGHT): slow, (RIGHT, LEFT): slow},
            tap=self._sent,
        )
        self._publishers: list[SimulatedApplication] = []
        self._subscribers: list[list[SimulatedApplication]] = []
        self.items = [ItemId(Identifier(b"\x51" * 32), Identifier(bytes([flow + 1]) * 32)) for flow in range(flows)]
        self._published = [0] * flows
        self.adjacencies_lost = 0
        self.network.run(5.0)
        for flow, item in enumerate(self.items):
            self._publishers.append(self.network.application(f"p{flow}"))
            readers = [self.network.application(f"s{flow}.{place}") for place in range(receivers)]
            for reader in readers:
                reader.subscribe(item)
            self._subscribers.append(readers)
        self.network.run(3.0)

    def measure(self, warm_up: float, seconds: float) -> SharedLink:
        """Let the flows run, and say what happened after the warm-up."""
        self._run(warm_up)
        before = [self._received(flow) for flow in range(len(self.items))]
        offered = self.offered.copy()
        self.adjacencies_lost = 0
        self._run(seconds)
        goodput = tuple(
            (self._received(flow) - before[flow]) * VERSION_BYTES * 8 / seconds for flow in range(len(self.items))
        )
        self.offered.subtract(offered)
        sent = sum(self.offered.values())
        again = sent - sum(1 for count in self.offered.values() if count > 0)
        return SharedLink(goodput, sum(goodput) / self._slow.bandwidth, again / max(sent, 1), self.adjacencies_lost)

    def close(self) -> None:
        self.network.close()

    def _received(self, flow: int) -> float:
        """Versions that the slowest of a flow's readers has."""
        return min(len(reader.received[self.items[flow]]) for reader in self._subscribers[flow])

    def _run(self, seconds: float) -> None:
        end = self.network.clock.now() + seconds
        while self.network.clock.now() < end - STEP / 2:
            for flow, publisher in enumerate(self._publishers):
                while self._published[flow] < self._received(flow) + VERSIONS_AHEAD:
                    self._published[flow] += 1
                    content = b"%d/%d " % (flow, self._published[flow])
                    publisher.publish(self.items[flow], content.ljust(VERSION_BYTES, b"."))
            self.network.run(STEP)
            graph = self.network.graph
            for name, node in self.network.nodes.items():
                self.adjacencies_lost += len(graph.out_links[graph.node(name)]) - len(node.link_state.neighbours())

    def _sent(self, sender: str, receiver: str, frame: bytes) -> None:
        if (sender, receiver) == (LEFT, RIGHT) and is_segment(frame):
            # Item, version and number: what a segment is, however often it is sent.
            self.offered[frame[44:148]] += 1
