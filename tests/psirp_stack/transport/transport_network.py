"""A simulated network for transport tests: forwarders on impaired links under a virtual clock, a sender and a receiver
at each node, and a stand-in for the topology manager that plans one filter for a list of subscribers."""

import random
from collections import Counter, deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from identifiers.identifier import Identifier, ItemId
from psirp_stack.control.messages import OPEN_SCOPE, FilterGrant
from psirp_stack.forwarder import Forwarder
from psirp_stack.forwarding_model import FILTER_BYTES, MAX_FILTER_FILL, TABLES, ForwardingTable, Tags
from psirp_stack.links.clock import VirtualClock
from psirp_stack.links.impairment import ImpairedLink, Impairment
from psirp_stack.links.in_process import InProcessLink, pair
from psirp_stack.transport.config import TransportConfig
from psirp_stack.transport.events import Dropped, VersionArrived, VersionSkipped
from psirp_stack.transport.receiver import Receiver
from psirp_stack.transport.sender import Sender
from psirp_stack.transport.versions import RetentionLimits, VersionsFor, in_memory
from psirp_stack.wire.numbers import HeaderType

WALL_START_MS = 1_700_000_000_000
GOOD = Impairment(delay=0.001)

Hooks = dict[str, Callable[..., object]]


def item_named(number: int) -> ItemId:
    return ItemId(Identifier(number.to_bytes(32, "big")), Identifier((number + 1).to_bytes(32, "big")))


ITEM = item_named(7)


def wall_ms(now: float) -> int:
    return WALL_START_MS + int(now * 1000)


@dataclass
class Host:
    """A node: forwarder, sender, receiver, and what its application saw."""

    name: str
    forwarder: Forwarder
    sender: Sender
    receiver: Receiver
    arrived: list[VersionArrived] = field(default_factory=list)
    skipped: list[VersionSkipped] = field(default_factory=list)
    dropped: list[Dropped] = field(default_factory=list)
    consumes: bool = True
    pumped: bool = False
    wake_at: float = float("inf")
    up: bool = True

    @property
    def numbers(self) -> list[int]:
        return [version.number for version in self.arrived]

    @property
    def contents(self) -> list[bytes]:
        return [version.content for version in self.arrived]


class Network:
    """Nodes joined by edges. Link numbers are the neighbour's index."""

    def __init__(
        self,
        edges: Iterable[tuple[int, int]],
        *,
        seed: int = 1,
        impairment: Impairment = GOOD,
        mtu: int = 1500,
        mtus: dict[tuple[int, int], int] | None = None,
        config: TransportConfig | None = None,
        limits: RetentionLimits | None = None,
        versions: dict[int, VersionsFor] | None = None,
        receiver_hooks: Hooks | None = None,
        routes: bool = True,
    ) -> None:
        self.clock = VirtualClock()
        self.rng = random.Random(seed)
        self.config = config or TransportConfig()
        self.routes = routes
        self.edges = sorted(set(edges))
        self.down: set[frozenset[int]] = set()
        self.mtus = {frozenset(edge): (mtus or {}).get(edge, mtu) for edge in self.edges}
        self.neighbours: dict[int, list[int]] = {}
        for one, other in self.edges:
            self.neighbours.setdefault(one, []).append(other)
            self.neighbours.setdefault(other, []).append(one)
        # One bit each as long as there are enough: no false positives, so that copies can be counted exactly.
        ids = [*(end for edge in self.edges for end in (edge, edge[::-1])), *self.neighbours]
        single = len(ids) <= FILTER_BYTES * 8
        self.tags: dict[object, Tags] = {
            name: (1 << at,) * TABLES if single else self._draw() for at, name in enumerate(ids)
        }
        self.crossed: Counter[tuple[int, int]] = Counter()
        self.crossed_kinds: Counter[tuple[tuple[int, int], int]] = Counter()
        self.boots = Counter[int]()
        self.versions = versions or {}
        self.limits = limits
        self.receiver_hooks = receiver_hooks or {}
        self.generation = 0
        self.links: dict[tuple[int, int], ImpairedLink] = {}
        self.hosts = [self._host(node) for node in sorted(self.neighbours)]
        for one, other in self.edges:
            self._join(one, other, impairment)

    def _draw(self) -> Tags:
        return tuple(sum(1 << bit for bit in self.rng.sample(range(248), 5)) for _ in range(TABLES))

    def _host(self, node: int) -> Host:
        table = ForwardingTable(
            {to: self.tags[node, to] for to in self.neighbours[node]},
            self.tags[node],
            {to: self.tags[to, node] for to in self.neighbours[node]},
        )
        forwarder = Forwarder(table)
        host = Host(f"n{node}", forwarder, self.new_sender(node), self.new_receiver(node))
        forwarder.deliver_to(lambda frame, node=node: self._deliver(node, frame))
        return host

    def new_sender(self, node: int) -> Sender:
        self.boots[node] += 1
        versions = self.versions.get(node) or in_memory(self.boots[node], self.limits)
        return Sender(
            f"n{node}",
            self.tags[node],
            versions,
            route_to=lambda name: self.route(node, name),
            wall_ms=wall_ms,
            rng=random.Random(node),
            config=self.config,
        )

    def new_receiver(self, node: int) -> Receiver:
        self.boots[node] += 1
        return Receiver(
            f"n{node}",
            self.boots[node],
            self.tags[node],
            route_to=lambda name: self.route(node, name),
            wall_ms=wall_ms,
            rng=random.Random(node),
            config=self.config,
            **self.receiver_hooks,  # type: ignore[arg-type]
        )

    def _join(self, one: int, other: int, impairment: Impairment) -> None:
        ends = pair(mtu=self.mtus[frozenset((one, other))], queue_limit=100_000, scheduler=self.clock)
        for (node, to), end in zip(((one, other), (other, one)), ends, strict=True):
            self._attach(node, to, end, impairment)

    def _attach(self, node: int, to: int, end: InProcessLink, impairment: Impairment) -> None:
        link = ImpairedLink(end, impairment, self.clock, self.rng.randrange(2**32))
        self.links[node, to] = link

        def send(frame: bytes) -> None:
            if frozenset((node, to)) not in self.down:
                self.crossed[node, to] += 1
                self.crossed_kinds[(node, to), frame[1]] += 1
                link.send(frame)

        self.hosts[node].forwarder.attach(to, send)
        end.on_receive(lambda batch: self._arrive(node, to, list(batch)))

    def _arrive(self, node: int, came_from: int, frames: list[bytes]) -> None:
        if frozenset((node, came_from)) not in self.down and self.hosts[node].up:
            self.hosts[node].forwarder.forward(frames, came_from, self.clock.now())

    def _deliver(self, node: int, frame: bytes) -> None:
        host = self.hosts[node]
        if frame[1] in (HeaderType.PUBLISH_DATA, HeaderType.PUBLISH_METADATA):
            host.receiver.receive(frame, self.clock.now())
        else:
            host.sender.receive(frame, self.clock.now())
        self.pump(node)

    def pump(self, node: int) -> None:
        """Let the node send and tell what it has, once at this moment."""
        host = self.hosts[node]
        if not host.pumped:
            host.pumped = True
            self.clock.call_at(self.clock.now(), lambda: self._pump(node))

    def _pump(self, node: int) -> None:
        host, now = self.hosts[node], self.clock.now()
        host.pumped = False
        if not host.up:
            return
        for core in (host.receiver, host.sender):
            due = core.next_timer()
            if due is not None and due <= now:
                core.handle_timer(now)
        while (event := host.receiver.next_event()) is not None:
            if isinstance(event, VersionArrived):
                host.arrived.append(event)
                if host.consumes:
                    host.receiver.consumed(event.item, event.cost, now)
            elif isinstance(event, VersionSkipped):
                host.skipped.append(event)
            else:
                host.dropped.append(event)
        for core in (host.receiver, host.sender):
            while (frame := core.next_frame(now)) is not None:
                host.forwarder.forward((frame,), None, now)
        due = min(
            (when for core in (host.receiver, host.sender) if (when := core.next_timer()) is not None), default=None
        )
        if due is not None and (due < host.wake_at or host.wake_at <= now):
            host.wake_at = due

            def wake() -> None:
                if host.wake_at <= self.clock.now():
                    host.wake_at = float("inf")
                self.pump(node)

            self.clock.call_at(due, wake)

    def run(self, seconds: float) -> None:
        self.clock.run(self.clock.now() + seconds, most=20_000_000)

    # What the topology manager does.

    def path_tree(self, source: int) -> dict[int, int]:
        parents = {source: source}
        queue = deque([source])
        while queue:
            node = queue.popleft()
            for to in self.neighbours[node]:
                if to not in parents and frozenset((node, to)) not in self.down and self.hosts[to].up:
                    parents[to] = node
                    queue.append(to)
        return parents

    def filter_to(self, source: int, targets: Iterable[int]) -> tuple[bytes, int] | None:
        parents = self.path_tree(source)
        bits, mtu = 0, 65_535
        for target in targets:
            if target not in parents:
                return None
            bits |= self.tags[target][0]
            node = target
            while node != source:
                bits |= self.tags[parents[node], node][0]
                mtu = min(mtu, self.mtus[frozenset((parents[node], node))])
                node = parents[node]
        assert bits.bit_count() <= MAX_FILTER_FILL, "the test's tree needs more than one filter"
        return bits.to_bytes(FILTER_BYTES, "big") + bytes(1), mtu

    def route(self, node: int, name: str) -> tuple[bytes, int] | None:
        return self.filter_to(node, [int(name[1:])]) if self.routes else None

    def grant(self, publisher: int, *groups: Iterable[int], item: ItemId = ITEM, tell: bool = True) -> None:
        """One filter for each group; subscribers that cannot be reached are left out, as a topology manager would."""
        self.generation += 1
        reachable = self.path_tree(publisher)
        filters = []
        for group in groups:
            members = [node for node in group if node in reachable]
            planned = self.filter_to(publisher, members)
            if members and planned is not None:
                filters.append(FilterGrant(planned[0], tuple(f"n{node}" for node in members), planned[1]))
        sender = self.hosts[publisher].sender
        assert sender.grant(item, self.generation, tuple(filters), self.clock.now())
        self.pump(publisher)
        if tell:
            for node in {node for group in groups for node in group} & set(reachable):
                self.hosts[node].receiver.served(item, f"n{publisher}", OPEN_SCOPE, self.clock.now())
                self.pump(node)

    def publish(self, node: int, content: bytes, attributes: bytes = b"", item: ItemId = ITEM) -> int:
        published = self.hosts[node].sender.publish(item, content, attributes, self.clock.now())
        self.pump(node)
        return published.version.number

    def subscribe(self, node: int, item: ItemId = ITEM, **how: object) -> None:
        self.hosts[node].receiver.subscribe(item, self.clock.now(), **how)  # type: ignore[arg-type]


def line(nodes: int) -> list[tuple[int, int]]:
    return [(node, node + 1) for node in range(nodes - 1)]


def star(leaves: int) -> list[tuple[int, int]]:
    """Node 0, then a hub, then the leaves: node 0 has one link."""
    return [(0, 1), *((1, leaf) for leaf in range(2, leaves + 2))]


def ring(nodes: int) -> list[tuple[int, int]]:
    return [*line(nodes), (0, nodes - 1)]
