"""From what PSIRP nodes tell their observers, and the frames they send, to trace records: live, emulated, simulated.

    tracer = NetworkTracer(writer)
    network = await EmulatedNetwork.start(plan, data, watcher=tracer)
    simulation = SimulatedNetwork(graph, data, tap=tracer.tap, observer_of=tracer.observer_of)

A version is followed by its announcement, the one frame of it that every receiver must get. A simulation passes a
clock of its own.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Final

from identifiers import ItemId
from perf.traces.blocks import block_of_records
from perf.traces.hub_events import Moment
from perf.traces.naming import name_of_version
from perf.traces.run import clock_id
from perf.traces.sampling import Sampler
from perf.traces.schema import Domain, StepOutcome, TraceRecord, TraceStep
from perf.traces.writer import TraceWriter
from psirp_stack.control.courier import ControlArrived, ControlSent
from psirp_stack.links.clock import VirtualClock
from psirp_stack.node.settings import NodeObserver
from psirp_stack.transport.events import VersionArrived, VersionPublished, VersionSkipped
from psirp_stack.transport.frames import ANNOUNCEMENT_OVERHEAD, DATA_OVERHEAD, links_travelled
from psirp_stack.wire.numbers import FORWARDING_BYTES, NEXT_OFFSET, SID_OFFSET, VRID_OFFSET, HeaderType

REMEMBERED_VERSIONS: Final = 100_000
_ANNOUNCED: Final = int(HeaderType.PUBLISH_METADATA)
_ITEM_AND_VERSION: Final = slice(FORWARDING_BYTES + SID_OFFSET, FORWARDING_BYTES + VRID_OFFSET + 32)
_SHORTEST: Final = min(DATA_OVERHEAD, ANNOUNCEMENT_OVERHEAD)

NameOf = Callable[[ItemId, bytes], str]


@dataclass(frozen=True, slots=True)
class TraceClock:
    """Where times are from, and what that clock is called."""

    name: str
    now: Callable[[], Moment]


def machine_clock() -> TraceClock:
    return TraceClock(clock_id(), lambda: (time.monotonic_ns(), time.time_ns()))


def virtual_clock(clock: VirtualClock, wall_ns_at_start: int) -> TraceClock:
    """Time as a simulation has it."""

    def now() -> Moment:
        passed = round(clock.now() * 1e9)
        return passed, wall_ns_at_start + passed

    return TraceClock("simulated", now)


@dataclass(frozen=True, slots=True)
class _Known:
    name: str
    item: ItemId
    size: int


class NetworkTracer:
    """All nodes of a network. Without `ends`, only what is forwarded: whoever is attached tells the rest itself."""

    def __init__(
        self,
        writer: TraceWriter,
        *,
        ends: bool = True,
        sampler: Sampler | None = None,
        name_of: NameOf = name_of_version,
        clock: TraceClock | None = None,
        load: float | None = None,
    ) -> None:
        self._run = writer.run.run
        self._put = writer.channel(block_of_records).put
        self._ends = ends
        self._sampler = sampler or Sampler()
        self._name_of = name_of
        self._clock = clock or machine_clock()
        self._versions: dict[bytes, _Known] = {}
        """By item and version id: versions that are traced."""
        self.load = load
        self.skipped = 0
        """Versions that a subscriber was told it cannot have any more: nobody knows what they were."""

    # A watcher of an emulated network.

    def observer_of(self, node: str) -> NodeObserver:
        return partial(self._observe, node)

    def sent(self, node: str, frame: bytes, peer: str | None = None) -> None:
        """A node sends a frame by one of its links, to a neighbour."""
        if frame[NEXT_OFFSET] == _ANNOUNCED and len(frame) >= _SHORTEST:
            known = self._versions.get(frame[_ITEM_AND_VERSION])
            if known is not None and (hop := links_travelled(frame)) > 0:
                self._record(known, TraceStep.FORWARDED, node, hop, peer)

    def tap(self, node: str, neighbour: str, frame: bytes) -> None:
        """The same, as a simulated network tells it."""
        self.sent(node, frame, neighbour)

    def _observe(self, node: str, event: object) -> None:
        match event:
            case VersionPublished():
                known = self._known(event.item, event.version_id, event.content)
                if known is not None and self._ends:
                    self._record(known, TraceStep.PUBLISHED, node, 0)
            case VersionArrived():
                known = self._known(event.item, event.version_id, event.content)
                if known is not None and self._ends:
                    self._record(known, TraceStep.RECEIVED, node, event.hops)
            case ControlSent() | ControlArrived():
                self._put(control_record(self._run, node, event, self._clock.now(), self._clock.name))
            case VersionSkipped():
                self.skipped += event.last - event.first + 1

    def _known(self, item: ItemId, version: bytes, content: bytes) -> _Known | None:
        key = bytes(item) + version
        known = self._versions.get(key)
        if known is None:
            name = self._name_of(item, content)
            if not self._sampler.takes(name):
                return None
            if len(self._versions) >= REMEMBERED_VERSIONS:
                del self._versions[next(iter(self._versions))]
            known = self._versions[key] = _Known(name, item, len(content))
        return known

    def _record(self, known: _Known, step: TraceStep, node: str, hop: int | None, peer: str | None = None) -> None:
        monotonic, wall = self._clock.now()
        self._put(
            TraceRecord(
                run=self._run,
                publication=known.name,
                step=step,
                domain=Domain.PSIRP,
                node=node,
                topic=None,
                sid=str(known.item.sid),
                rid=str(known.item.rid),
                payload=known.size if self._ends else None,
                hop=hop,
                delivery=None,
                attempt=None,
                load=self.load,
                monotonic_ns=monotonic,
                wall_ns=wall,
                clock=self._clock.name,
                outcome=StepOutcome.OK,
                peer=peer,
            )
        )


def control_record(run: str, node: str, event: ControlSent | ControlArrived, at: Moment, clock: str) -> TraceRecord:
    """The same name at both ends: who sent it in which life to whom, and its number."""
    sent = isinstance(event, ControlSent)
    return TraceRecord(
        run=run,
        publication=f"control/{event.source}.{event.boot}/{event.to}/{event.number}",
        step=TraceStep.CONTROL_SENT if sent else TraceStep.CONTROL_ARRIVED,
        domain=Domain.PSIRP,
        node=node,
        topic=None,
        sid=None,
        rid=None,
        payload=None,
        hop=None,
        delivery=None,
        attempt=None,
        load=None,
        monotonic_ns=at[0],
        wall_ns=at[1],
        clock=clock,
        outcome=StepOutcome.OK,
        peer=event.to if sent else event.source,
    )
