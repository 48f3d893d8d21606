"""From what queues and connections tell to trace records. Called from any thread, on the data path: it only keeps."""

import time
from array import array
from collections.abc import Sequence
from typing import Final

from perf.traces.blocks import Block, Coded, Constant, Values
from perf.traces.cpu import ProcessorMeter
from perf.traces.run import clock_id
from perf.traces.schema import COLUMN_NAMES, SCHEMA_VERSION, Domain, StepOutcome, TraceStep
from perf.traces.writer import TraceWriter
from storage.queues import ConnectionChange, QueueStay

_PSIRP: Final = frozenset({"source", "forwarder", "link"})
_ENDS: Final = {end: StepOutcome(end) for end in ("ok", "failed", "refused", "lost")}


class QueueTracer:
    """The queues of one node. Give `observe` to whoever follows queues."""

    def __init__(self, writer: TraceWriter, node: str) -> None:
        self._run = writer.run.run
        self._node = node
        self._clock = clock_id()
        self._meter = ProcessorMeter()
        self.observe = writer.channel(self._block).put

    def _block(self, events: Sequence[QueueStay | ConnectionChange]) -> Block:
        """On the writer's thread. What processors did since the last block stands in it too."""
        used = [
            QueueStay(one.resource, "", one.begin_ns, one.end_ns - one.used_ns, one.end_ns, 0, "ok")
            for one in self._meter.sample()
        ]
        events = [*events, *used]
        ahead = time.time_ns() - time.monotonic_ns()
        stays = [event if isinstance(event, QueueStay) else None for event in events]
        done = array("q", [event.done_ns if isinstance(event, QueueStay) else event.at_ns for event in events])
        names = [event.resource for event in events]
        steps = [
            TraceStep.SERVED if isinstance(event, QueueStay) else TraceStep.UP if event.is_up else TraceStep.DOWN
            for event in events
        ]
        columns: dict[str, Values] = dict.fromkeys(COLUMN_NAMES, Constant(None))
        columns |= {
            "run": Constant(self._run),
            "publication": Constant(""),
            "step": coded(steps),
            "domain": coded([Domain.PSIRP if name.partition("/")[0] in _PSIRP else Domain.PUSH for name in names]),
            "node": Constant(self._node),
            "topic": coded([stay.about or None if stay is not None else None for stay in stays]),
            "monotonic_ns": done,
            "wall_ns": array("q", [at + ahead for at in done]),
            "clock": Constant(self._clock),
            "outcome": coded([StepOutcome.OK if stay is None else _ENDS[stay.end] for stay in stays]),
            "schema": Constant(SCHEMA_VERSION),
            "resource": coded(names),
            "queued_ns": [None if stay is None else stay.queued_ns for stay in stays],
            "started_ns": [None if stay is None else stay.started_ns for stay in stays],
            "queue": [None if stay is None else stay.found for stay in stays],
        }
        return Block(len(events), columns)


def coded(values: Sequence[str | int | None]) -> Coded:
    distinct = list(dict.fromkeys(values))
    places = {value: place for place, value in enumerate(distinct)}
    return Coded(array("q", [places[value] for value in values]), distinct)
