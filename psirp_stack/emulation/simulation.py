"""A network on a virtual clock: real nodes, real frames, no sockets, and hours of traffic in moments.

Everything follows from the seed. Nodes can be killed (they forget all but their stores) and started again, links cut
and mended, while applications go on.
"""

import random
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TypeVar

from identifiers import Identifier, ItemId
from psirp_stack.control.codes import Code, ServiceRole
from psirp_stack.control.messages import ScopePolicy
from psirp_stack.control.role_grants import RoleTrust
from psirp_stack.control.tag_source import DerivedTags, TagSource
from psirp_stack.graph import Graph
from psirp_stack.links.clock import VirtualClock
from psirp_stack.links.impairment import ImpairedLink, Impairment
from psirp_stack.links.in_process import InProcessLink, pair
from psirp_stack.links.interface import CarrierState, Link
from psirp_stack.node import attachment
from psirp_stack.node.applications import Application
from psirp_stack.node.attachment import (
    Asked,
    Consumed,
    Done,
    ItemsFound,
    ReceivedVersion,
    ScopeChanged,
    Skipped,
    Told,
    VersionGot,
    Why,
)
from psirp_stack.node.core import Node
from psirp_stack.node.settings import NodeObserver, NodeSettings
from psirp_stack.node.signatures import NodeSignatures
from psirp_stack.rendezvous import Rendezvous, RendezvousConfig
from psirp_stack.transport.versions import in_memory

Result = TypeVar("Result")

WALL_MS_AT_START = 1_700_000_000_000
QUEUE_LIMIT = 100_000
PERFECT = Impairment()

Tap = Callable[[str, str, bytes], None]
"""Told of a frame: who sends it, the neighbour it is for, its bytes."""


@dataclass(slots=True)
class _Cable:
    """A link between two nodes: both carriers, and whether it is cut."""

    ends: tuple[str, str]
    cut: bool = False
    carriers: list[InProcessLink] = field(default_factory=list)


class SimulatedApplication:
    """An application attached to a simulated node. It handles what it gets at once, unless told to be slow."""

    def __init__(self, network: "SimulatedNetwork", node: str) -> None:
        self.received: dict[ItemId, list[ReceivedVersion]] = {}
        self.scopes: list[ScopeChanged] = []
        self.skipped: list[Skipped] = []
        self.told: list[Told] = []
        self.got: dict[int, list[VersionGot]] = {}
        """Versions that were asked for, by the number of the request."""
        self.slow = False
        self.listener: Callable[[ReceivedVersion | int], None] | None = None
        """Told of each version that comes, asked for once or subscribed to, and how many cannot be had any more."""
        self._network = network
        self._node = node
        self._numbers = 0
        self._waiting: list[ReceivedVersion] = []
        self._answers: dict[int, Told] = {}
        self._application: Application | None = None
        self.attach()

    def attach(self) -> None:
        self._application = self._network.nodes[self._node].attach("simulated", self._tell)

    def detach(self) -> None:
        node = self._network.nodes.get(self._node)
        if node is not None and self._application is not None:
            node.detach(self._application, self._network.clock.now())
            self._network.wake(self._node)
        self._application = None

    def publish(self, item: ItemId, content: bytes, attributes: bytes = b"") -> int:
        return self.ask(
            lambda number: attachment.Publish(number, bytes(item.sid), bytes(item.rid), content, attributes)
        )

    def advertise(self, item: ItemId) -> int:
        return self.ask(lambda number: attachment.Advertise(number, bytes(item.sid), bytes(item.rid)))

    def withdraw(self, item: ItemId) -> int:
        return self.ask(lambda number: attachment.Withdraw(number, bytes(item.sid), bytes(item.rid)))

    def subscribe(self, item: ItemId, since: bytes | None = None, future_only: bool = False) -> int:
        self.received.setdefault(item, [])
        return self.ask(
            lambda number: attachment.Subscribe(number, bytes(item.sid), bytes(item.rid), since, future_only)
        )

    @property
    def attached(self) -> bool:
        """Whether it is attached to a node that lives."""
        node = self._network.nodes.get(self._node)
        return node is not None and self._application in node.request_table.applications

    def contents(self, item: ItemId) -> list[bytes]:
        return [publication.content for publication in self.received.get(item, ())]

    def unsubscribe(self, item: ItemId) -> int:
        return self.ask(lambda number: attachment.Unsubscribe(number, bytes(item.sid), bytes(item.rid)))

    def publish_scope(self, sid: bytes, parent: bytes, policy: ScopePolicy | None = None) -> int:
        return self.ask(lambda number: attachment.LocalPublishScope(number, sid, parent, policy))

    def unpublish_scope(self, sid: bytes, parent: bytes) -> int:
        return self.ask(lambda number: attachment.LocalUnpublishScope(number, sid, parent))

    def subscribe_scope(self, sid: bytes) -> int:
        return self.ask(lambda number: attachment.LocalSubscribeScope(number, sid))

    def unsubscribe_scope(self, sid: bytes) -> int:
        return self.ask(lambda number: attachment.LocalUnsubscribeScope(number, sid))

    def get(self, item: ItemId, first: int = -1, last: int = -1) -> int:
        """Ask for versions once; they come into `got`, by the request's number."""
        return self.ask(lambda number: attachment.GetVersions(number, bytes(item.sid), bytes(item.rid), first, last))

    def explain(self, item: ItemId) -> int:
        return self.ask(lambda number: attachment.AskExplanation(number, bytes(item.sid), bytes(item.rid)))

    def ask(self, make: Callable[[int], Asked]) -> int:
        """Send a request and say its number; the answer comes when the clock runs."""
        self._numbers += 1
        self._send(make(self._numbers))
        return self._numbers

    def answer(self, number: int) -> Told | None:
        return self._answers.get(number)

    def code(self, number: int) -> Code | None:
        answer = self._answers.get(number)
        return Code(answer.code) if isinstance(answer, (Done, Why)) else None

    def consume_all(self) -> None:
        """Handle what waits, after a time of being slow."""
        self.slow = False
        waiting, self._waiting = self._waiting, []
        for publication in waiting:
            self._consume(publication)

    def _send(self, request: Asked | Consumed) -> None:
        node = self._network.nodes.get(self._node)
        if node is not None and self._application is not None:
            node.ask(self._application, request, self._network.clock.now())
            self._network.wake(self._node)

    def _tell(self, told: Told) -> None:
        self.told.append(told)
        match told:
            case ReceivedVersion():
                item = ItemId(Identifier(told.sid), Identifier(told.rid))
                self.received.setdefault(item, []).append(told)
                if self.listener is not None:
                    self.listener(told)
                if self.slow:
                    self._waiting.append(told)
                else:
                    clock = self._network.clock
                    clock.call_at(clock.now(), partial(self._consume, told))
            case ScopeChanged():
                self.scopes.append(told)
            case Skipped():
                self.skipped.append(told)
                if self.listener is not None:
                    self.listener(told.count)
            case VersionGot():
                if self.listener is not None:
                    self.listener(told.version)
                self.got.setdefault(told.number, []).append(told)
            case Done() | Why() | ItemsFound():
                self._answers[told.number] = told
            case _:
                pass

    def _consume(self, publication: ReceivedVersion) -> None:
        self._send(Consumed(publication.sid, publication.rid, len(publication.content)))


class SimulatedNetwork:
    """Nodes by name, joined as a graph says."""

    def __init__(
        self,
        graph: Graph,
        data: Path,
        *,
        seed: int = 1,
        roles: Mapping[str, int] | None = None,
        impairment: Impairment = PERFECT,
        impairments: Mapping[tuple[str, str], Impairment] | None = None,
        tags: TagSource | None = None,
        settings: Callable[[NodeSettings], NodeSettings] = lambda given: given,
        rendezvous: RendezvousConfig | None = None,
        signatures: Callable[[str], NodeSignatures] = NodeSignatures,
        mtu: int = 1500,
        may_change: Iterable[tuple[str, str]] = (),
        tap: Tap | None = None,
        observer_of: Callable[[str], NodeObserver] | None = None,
    ) -> None:
        """`roles` by node name; without them, the first node has both. `data` holds the rendezvous' store.

        `impairments` of single links, by sender and receiver, go before the `impairment` of all. Those of `may_change`
        are made worse or better (`impair`) without going down.

        `tap` is told of every frame that a node sends by a link, before the link loses it or not; the observer of a
        node, what becomes of publications there.
        """
        self.clock = VirtualClock()
        self.graph = graph
        self.nodes: dict[str, Node] = {}
        self.impairment = impairment
        self._impairments = dict(impairments or {})
        self._data = data
        self._seed = seed
        self._rng = random.Random(seed)  # noqa: S311  (a reproducible history)
        self._roles = roles if roles is not None else {graph.names[0]: ServiceRole.RENDEZVOUS | ServiceRole.TOPOLOGY}
        self._tags = tags if tags is not None else DerivedTags(f"simulation {seed}".encode())
        self._settings = settings
        self._rendezvous_config = rendezvous if rendezvous is not None else RendezvousConfig()
        self._signatures = signatures
        self._mtu = mtu
        self._tap = tap
        self._observer_of = observer_of
        self._boots = 0
        self._cables: dict[frozenset[str], _Cable] = {}
        self._lines: list[ImpairedLink] = []
        self._stages: dict[tuple[str, str], ImpairedLink] = {}
        self._may_change = {frozenset(ends) for ends in may_change}
        self._stores: dict[str, Rendezvous] = {}
        self._woken: dict[str, float] = {}
        for tail, head in graph.links:
            if tail < head:
                ends = (graph.names[tail], graph.names[head])
                self._cables[frozenset(ends)] = _Cable(ends)
        for name in graph.names:
            self.start(name)

    def start(self, name: str) -> None:
        """Begin a life of a node; its links work as soon as both ends live."""
        self._boots += 1
        now = self.clock.now()
        roles = self._roles.get(name, 0)
        named = {role: [n for n, has in self._roles.items() if has & role] for role in ServiceRole}
        trust = RoleTrust(named)
        settings = NodeSettings(name, self._boots, self._tags, roles=int(roles), trust=trust)
        if roles & ServiceRole.RENDEZVOUS:
            path = self._data / f"{name}.sqlite"
            self._stores[name] = Rendezvous.open(path, self._rendezvous_config, now=now)
        self.nodes[name] = Node(
            self._settings(settings),
            now=now,
            rng=random.Random(self._rng.random()),  # noqa: S311
            wall_ms=lambda moment: WALL_MS_AT_START + int(moment * 1000),
            when_done=_at_once,
            versions_for=in_memory(self._boots),
            rendezvous=self._stores.get(name),
            signatures=self._signatures(name),
            observer=None if self._observer_of is None else self._observer_of(name),
        )
        for cable in self._cables.values():
            if name in cable.ends and not cable.cut and all(end in self.nodes for end in cable.ends):
                self._unplug(cable)
                self._plug(cable)
        self.wake(name)

    def kill(self, name: str, *, silently: bool = False) -> None:
        """End a node's life without a word: all that it knew is gone but what its store has committed.

        Its neighbours' carriers notice, unless it goes silently.
        """
        del self.nodes[name]
        self._woken.pop(name, None)
        for cable in self._cables.values():
            if name in cable.ends and silently:
                for carrier in cable.carriers:
                    carrier.on_receive(None)
            elif name in cable.ends:
                self._unplug(cable)
        store = self._stores.pop(name, None)
        if store is not None:
            store.close()

    def cut(self, a: str, b: str, *, silently: bool = False) -> None:
        """Cut a link. Its carriers notice, unless it fails silently: then nodes have to find out by themselves."""
        cable = self._cables[frozenset((a, b))]
        cable.cut = True
        for carrier in cable.carriers:
            if silently:
                carrier.on_receive(None)
            else:
                carrier.close()

    def mend(self, a: str, b: str) -> None:
        cable = self._cables[frozenset((a, b))]
        cable.cut = False
        self._unplug(cable)
        if all(end in self.nodes for end in cable.ends):
            self._plug(cable)

    def impair(self, a: str, b: str, quality: Impairment) -> None:
        """Make a link as bad, or as good, as this from now on. One that was perfect so far, and is not among those
        that `may_change`, goes down and comes up for it."""
        cable = self._cables[frozenset((a, b))]
        self._impairments[a, b] = self._impairments[b, a] = quality
        stages = [self._stages.get(ends) for ends in ((a, b), (b, a))]
        for stage in stages:
            if stage is not None:
                stage.impairment = quality
        if None in stages and not cable.cut and cable.carriers:
            self._unplug(cable)
            self._plug(cable)

    def application(self, node: str) -> SimulatedApplication:
        return SimulatedApplication(self, node)

    def run(self, seconds: float, most: int = 50_000_000) -> None:
        self.clock.run(self.clock.now() + seconds, most=most)

    def run_until(self, true: Callable[[], bool], seconds: float, step: float = 0.05) -> bool:
        """Let time pass until something is so, or until `seconds` are over; say whether it is."""
        end = self.clock.now() + seconds
        while not true():
            if self.clock.now() >= end:
                return False
            self.run(step)
        return True

    def close(self) -> None:
        for name in list(self.nodes):
            self.kill(name)

    def is_plugged(self, a: str, b: str) -> bool:
        return bool(self._cables[frozenset((a, b))].carriers)

    def carrier(self, sender: str, receiver: str) -> InProcessLink:
        """The sending end of a link, whose counters say what it carried."""
        cable = self._cables[frozenset((sender, receiver))]
        return cable.carriers[cable.ends.index(sender)]

    def frames_sent_and_lost(self) -> tuple[int, int]:
        """Frames that were sent by an impaired link, and those that such a link lost or had no room for."""
        lost = sum(line.impaired.lost + line.impaired.queue_full for line in self._lines)
        return sum(line.counters.sent for line in self._lines), lost

    def wake(self, name: str) -> None:
        """Have the clock call a node when it next has something to do."""
        node = self.nodes.get(name)
        when = None if node is None else node.next_timer()
        if node is None or when is None or self._woken.get(name, float("inf")) <= when:
            return
        self._woken[name] = when
        self.clock.call_at(when, partial(self._tick, name, node, when))

    def _tick(self, name: str, node: Node, when: float) -> None:
        if self.nodes.get(name) is not node or self._woken.get(name) != when:
            return
        del self._woken[name]
        node.handle_timer(self.clock.now())
        self.wake(name)

    def _plug(self, cable: _Cable) -> None:
        carriers = pair(mtu=self._mtu, queue_limit=QUEUE_LIMIT, scheduler=self.clock)
        cable.carriers = list(carriers)
        for name, carrier in zip(cable.ends, carriers, strict=True):
            other = cable.ends[1] if name == cable.ends[0] else cable.ends[0]
            number = self._number(name, other)
            node = self.nodes[name]
            link: Link = carrier
            impairment = self._impairments.get((name, other), self.impairment)
            self._stages.pop((name, other), None)
            if impairment != PERFECT or frozenset((name, other)) in self._may_change:
                bad = self._stages[name, other] = ImpairedLink(
                    carrier, impairment, self.clock, self._rng.getrandbits(32)
                )
                self._lines.append(bad)
                link = bad
            carrier.on_receive(partial(self._received, name, node, number))
            carrier.on_carrier(partial(self._carrier_is, name, node, number))
            send = link.send if self._tap is None else partial(self._send_tapped, name, other, link)
            node.add_link(number, send, self._mtu, self.clock.now())
            self.wake(name)

    def _send_tapped(self, name: str, other: str, link: Link, frame: bytes) -> bool:
        if self._tap is not None:
            self._tap(name, other, frame)
        return link.send(frame)

    def _unplug(self, cable: _Cable) -> None:
        for name in cable.ends:
            other = cable.ends[1] if name == cable.ends[0] else cable.ends[0]
            node = self.nodes.get(name)
            number = self._number(name, other)
            if node is not None and number in node.links:
                node.remove_link(number, self.clock.now())
                self.wake(name)
        for carrier in cable.carriers:
            carrier.close()
        cable.carriers = []

    def _number(self, name: str, other: str) -> int:
        return self.graph.link_number(self.graph.link(self.graph.node(name), self.graph.node(other)))

    def _carrier_is(self, name: str, node: Node, number: int, state: CarrierState) -> None:
        if self.nodes.get(name) is node and number in node.links:
            node.carrier_is(number, state, self.clock.now())
            self.wake(name)

    def _received(self, name: str, node: Node, number: int, frames: list[bytes]) -> None:
        if self.nodes.get(name) is node:
            node.receive(number, frames, self.clock.now())
            self.wake(name)


def _at_once(promise: Future[Result], then: Callable[[], None]) -> None:
    """In a simulation the disk takes no time."""
    promise.exception()
    then()
