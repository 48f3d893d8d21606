"""Experiments: a network with a schedule of events and workloads, on a virtual clock or live, and what came of it.

    outcome = simulate(load(Path("experiment.toml")), Path("var/experiment"))
    outcome.rows                          # one for each reader of each workload: published, received, delays

The same file runs live with `EmulatedNetwork` and `perform`. A delay is the time from an application's publishing to
the version's arrival at a reader, by one clock.
"""

import asyncio
import math
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

from psirp_stack.control.codes import ServiceRole
from psirp_stack.control.tag_source import DerivedTags, PlacedTags, TagSource
from psirp_stack.emulation.network import EmulatedNetwork, socket_of
from psirp_stack.emulation.plan import NetworkPlan, TagChoice
from psirp_stack.emulation.schedule import TimedEvent, TimedWorkload
from psirp_stack.emulation.simulation import SimulatedApplication, SimulatedNetwork, Tap
from psirp_stack.node.api import Client, NotAttachedError, PsirpError
from psirp_stack.node.attachment import ReceivedVersion
from psirp_stack.node.settings import NodeObserver, NodeSettings
from psirp_stack.node.shell import transport_beside
from psirp_stack.pull.service import VersionCacheConfig

SETTLE_SECONDS = 5.0
"""A simulated network is left alone for so long before the experiment begins."""
AFTER_SECONDS = 5.0
"""What is under way when the experiment ends may still arrive."""


@dataclass(slots=True)
class ReaderRecord:
    """What one reader of one workload got."""

    workload: TimedWorkload
    reader: str
    delays: dict[int, float] = field(default_factory=dict)
    """By the number of the publication."""
    repeated: int = 0
    skipped: int = 0
    """Versions that the network said it cannot have any more."""

    def arrived(self, number: int, delay: float) -> None:
        if number in self.delays:
            self.repeated += 1
        else:
            self.delays[number] = delay


Row = Mapping[str, str | int | float | None]


@dataclass(slots=True)
class ExperimentOutcome:
    """What came of it."""

    seconds: float
    published: dict[int, int]
    """Publications that were accepted, by workload."""
    readers: list[ReaderRecord]
    events: list[tuple[float, str]]
    frames: int = 0
    """Sent on all links together."""
    lost: int = 0
    """Frames that bad links lost, or had no room for."""

    @property
    def rows(self) -> list[Row]:
        return [self._row(record) for record in self.readers]

    def _row(self, record: ReaderRecord) -> Row:
        delays = sorted(record.delays.values())
        return {
            "workload": record.workload.number,
            "publisher": record.workload.publisher,
            "reader": record.reader,
            "published": self.published.get(record.workload.number, 0),
            "received": len(delays),
            "repeated": record.repeated,
            "skipped": record.skipped,
            "median s": _percentile(delays, 0.5),
            "p99 s": _percentile(delays, 0.99),
            "most s": delays[-1] if delays else None,
        }

    def as_document(self) -> dict[str, object]:
        return {
            "seconds": self.seconds,
            "frames": self.frames,
            "lost": self.lost,
            "events": [{"at": at, "event": text} for at, text in self.events],
            "readers": self.rows,
        }


def _percentile(values: list[float], share: float) -> float | None:
    return values[max(0, math.ceil(share * len(values)) - 1)] if values else None


class _Book:
    """Publications by number, when they were published, and who read them when."""

    def __init__(self, plan: NetworkPlan, now: Callable[[], float]) -> None:
        self._now = now
        self._sent: dict[tuple[int, int], float] = {}
        self._numbers = {load.number: 0 for load in plan.workloads}
        self.accepted = {load.number: 0 for load in plan.workloads}
        self.readers = [ReaderRecord(load, name) for load in plan.workloads for name in load.subscribers]

    def next_content(self, load: TimedWorkload) -> bytes:
        self._numbers[load.number] += 1
        number = self._numbers[load.number]
        self._sent[load.number, number] = self._now()
        return (b"%d %d " % (load.number, number)).ljust(load.size, b".")

    def read(self, record: ReaderRecord, content: bytes) -> None:
        head = content.split(b" ", 2)
        key = int(head[0]), int(head[1])
        began = self._sent.get(key)
        if began is not None and key[0] == record.workload.number:
            record.arrived(key[1], self._now() - began)


# On a virtual clock.


def settings_of(plan: NetworkPlan) -> Callable[[NodeSettings], NodeSettings]:
    """What the plan changes at each node."""

    def change(given: NodeSettings) -> NodeSettings:
        cache = plan.cache_of(given.name)
        config = VersionCacheConfig(cache.bytes, cache.strategy)
        changed = replace(given, cache=config, transport=transport_beside(plan.cache.bytes))
        return changed if plan.change is None else plan.change(changed)

    return change


def tags_of(plan: NetworkPlan) -> TagSource:
    seed = plan.seed.encode()
    if plan.placement is not None:
        return plan.placement(plan.graph, seed)
    return PlacedTags(plan.graph, seed) if plan.tags is TagChoice.PLACED else DerivedTags(seed)


def simulated_network(
    plan: NetworkPlan,
    data: Path,
    *,
    tap: Tap | None = None,
    observer_of: Callable[[str], NodeObserver] | None = None,
) -> SimulatedNetwork:
    """The plan's network on a virtual clock. `data` holds the stores of those who may be the rendezvous."""
    roles = {
        name: (ServiceRole.RENDEZVOUS if name in plan.rendezvous else 0)
        | (ServiceRole.TOPOLOGY if name in plan.topology else 0)
        for name in dict.fromkeys((*plan.rendezvous, *plan.topology))
    }
    ends = [tuple(sorted(pair)) for pair in plan.special]
    changing = [event.impair for event in plan.events if event.impair is not None]
    special = {(a, b): plan.impairment(a, b) for one, other in ends for a, b in ((one, other), (other, one))}
    return SimulatedNetwork(
        plan.graph,
        data,
        seed=zlib.crc32(plan.seed.encode()),
        roles=roles,
        impairment=plan.usual,
        impairments=special,
        may_change=changing,
        tags=tags_of(plan),
        settings=settings_of(plan),
        tap=tap,
        observer_of=observer_of,
    )


def simulate(
    plan: NetworkPlan,
    data: Path,
    *,
    network: SimulatedNetwork | None = None,
    tap: Tap | None = None,
    observer_of: Callable[[str], NodeObserver] | None = None,
) -> ExperimentOutcome:
    """Run the plan's experiment. `network`: one that `simulated_network` made, to be looked at afterwards."""
    mine = network is None
    network = network or simulated_network(plan, data, tap=tap, observer_of=observer_of)
    try:
        network.run(SETTLE_SECONDS)
        return _Simulation(plan, network).run()
    finally:
        if mine:
            network.close()


class _Simulation:
    def __init__(self, plan: NetworkPlan, network: SimulatedNetwork) -> None:
        self._plan = plan
        self._network = network
        self._clock = network.clock
        self._began = network.clock.now()
        self._book = _Book(plan, network.clock.now)
        self._happened: list[tuple[float, str]] = []
        self._readers: dict[int, SimulatedApplication] = {}
        """By the place of their record."""
        self._publishers: dict[int, SimulatedApplication] = {}

    def run(self) -> ExperimentOutcome:
        plan, clock = self._plan, self._clock
        seconds = plan.seconds or 0.0
        for event in plan.events:
            clock.call_at(self._began + event.at, partial(self._happen, event))
        for load in plan.workloads:
            clock.call_at(self._began, partial(self._attach, load))
            self._publish_at(load, 0)
        self._network.run(seconds + AFTER_SECONDS)
        _, lost = self._network.frames_sent_and_lost()
        sent = sum(
            self._network.carrier(a, b).counters.sent
            for one, other in self._plan.cables()
            for a, b in ((one, other), (other, one))
            if self._network.is_plugged(a, b)
        )
        return ExperimentOutcome(seconds, self._book.accepted, self._book.readers, self._happened, sent, lost)

    def _attach(self, load: TimedWorkload) -> None:
        self._publishers[load.number] = self._network.application(load.publisher)
        self._publishers[load.number].advertise(load.item)
        for place, record in enumerate(self._book.readers):
            if record.workload is load:
                reader = self._readers[place] = self._network.application(record.reader)
                reader.listener = partial(self._read, record)
                if load.get:
                    self._get_at(load, reader, 1)
                else:
                    reader.subscribe(load.item)

    def _read(self, record: ReaderRecord, version: ReceivedVersion | int) -> None:
        if isinstance(version, int):
            record.skipped += version
        else:
            self._book.read(record, version.content)

    def _publish_at(self, load: TimedWorkload, number: int) -> None:
        due = load.moment(number)
        if due is not None:
            self._clock.call_at(self._began + due, partial(self._publish, load, number))

    def _publish(self, load: TimedWorkload, number: int) -> None:
        publisher = self._publishers[load.number]
        if publisher.attached:
            publisher.publish(load.item, self._book.next_content(load))
            self._book.accepted[load.number] += 1
        self._publish_at(load, number + 1)

    def _get_at(self, load: TimedWorkload, reader: SimulatedApplication, number: int) -> None:
        due = load.moment(number)
        if due is not None:
            self._clock.call_at(self._began + due, partial(self._get, load, reader, number))

    def _get(self, load: TimedWorkload, reader: SimulatedApplication, number: int) -> None:
        if reader.attached:
            reader.get(load.item)
        self._get_at(load, reader, number + 1)

    def _happen(self, event: TimedEvent) -> None:
        network = self._network
        self._happened.append((self._clock.now() - self._began, event.text))
        if event.cut is not None:
            network.cut(*event.cut, silently=event.silently)
        elif event.mend is not None:
            network.mend(*event.mend)
        elif event.impair is not None:
            network.impair(*event.impair, event.quality)
        elif event.kill is not None and event.kill in network.nodes:
            network.kill(event.kill, silently=event.silently)
        elif event.revive is not None and event.revive not in network.nodes:
            network.start(event.revive)
            self._attach_again(event.revive)

    def _attach_again(self, node: str) -> None:
        """Applications come back with their node, and go on where they were."""
        for load in self._plan.workloads:
            if load.publisher == node:
                self._publishers[load.number].attach()
                self._publishers[load.number].advertise(load.item)
        for place, record in enumerate(self._book.readers):
            if record.reader == node:
                reader = self._readers[place]
                reader.attach()
                if not record.workload.get:
                    received = reader.received.get(record.workload.item)
                    reader.subscribe(record.workload.item, since=received[-1].version if received else None)


# Live.


async def perform(plan: NetworkPlan, network: EmulatedNetwork, data: Path) -> ExperimentOutcome:
    """Run the plan's experiment on a network that is up, with applications at its sockets."""
    loop = asyncio.get_running_loop()
    book = _Book(plan, loop.time)
    happened: list[tuple[float, str]] = []
    clients: list[Client] = []

    async def attached(node: str) -> Client:
        client = await Client.attach(socket_of(data, node), application="experiment")
        clients.append(client)
        return client

    try:
        publishers = {load.number: await attached(load.publisher) for load in plan.workloads}
        for load in plan.workloads:
            await publishers[load.number].advertise(load.item.sid, load.item.rid)
        asking: list[tuple[ReaderRecord, Client]] = []
        for record in book.readers:
            client = await attached(record.reader)
            if record.workload.get:
                asking.append((record, client))
                continue

            def listener(version: ReceivedVersion, record: ReaderRecord = record) -> None:
                book.read(record, version.content)

            item = record.workload.item
            await client.subscribe(item.sid, item.rid, listener, not_now=_later)
        began = loop.time()
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(_events(plan, network, began, happened))
            for load in plan.workloads:
                tasks.create_task(_publishing(load, publishers[load.number], book, began))
            for record, client in asking:
                tasks.create_task(_asking(record, client, book, began))
            tasks.create_task(asyncio.sleep(plan.seconds or 0.0))
        await asyncio.sleep(min(AFTER_SECONDS, 1.0))
    finally:
        for client in clients:
            await client.close()
    sent = sum(link.counters.sent for link in network.links.values())
    lost = network.frames_lost()
    return ExperimentOutcome(plan.seconds or 0.0, book.accepted, book.readers, happened, sent, lost)


def _later(_: str) -> None:
    """The rendezvous is away, as somebody may have wanted: the client asks again."""


async def _events(plan: NetworkPlan, network: EmulatedNetwork, began: float, happened: list[tuple[float, str]]) -> None:
    loop = asyncio.get_running_loop()
    for event in plan.events:
        await asyncio.sleep(began + event.at - loop.time())
        happened.append((loop.time() - began, event.text))
        if event.cut is not None and event.silently:
            network.impair(*event.cut, replace(plan.impairment(*event.cut), loss=1.0))
        elif event.cut is not None:
            network.cut(*event.cut)
        elif event.mend is not None:
            network.impair(*event.mend, plan.impairment(*event.mend))
            network.mend(*event.mend)
        elif event.impair is not None:
            network.impair(*event.impair, event.quality)
        elif event.kill is not None and event.kill in network.nodes:
            await network.kill(event.kill)
        elif event.revive is not None and event.revive not in network.nodes:
            await network.revive(event.revive)


async def _publishing(load: TimedWorkload, client: Client, book: _Book, began: float) -> None:
    """Open loop: when a publication is due is fixed, and one that takes long holds up none."""
    loop = asyncio.get_running_loop()

    async def publish() -> None:
        content = book.next_content(load)
        try:
            await client.publish(load.item.sid, load.item.rid, content)
        except (PsirpError, NotAttachedError):
            return
        book.accepted[load.number] += 1

    number = 0
    async with asyncio.TaskGroup() as tasks:
        while (due := load.moment(number)) is not None:
            await asyncio.sleep(began + due - loop.time())
            tasks.create_task(publish())
            number += 1


async def _asking(record: ReaderRecord, client: Client, book: _Book, began: float) -> None:
    loop, load = asyncio.get_running_loop(), record.workload
    number = 1
    while (due := load.moment(number)) is not None:
        await asyncio.sleep(began + due - loop.time())
        try:
            version = await client.get(load.item.sid, load.item.rid)
        except (PsirpError, NotAttachedError):
            version = None
        if version is not None:
            book.read(record, version.content)
        number += 1
