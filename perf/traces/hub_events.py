"""From what the hub tells its observers to trace records.

    tracer = HubTracer(writer, node="hub-a")
    hub = Hub(config, observer=tracer.observe)

`observe` runs on the data path. A delivery, of which there are many, becomes seven numbers in a chunk of memory that
was there before (objects that stay alive would wake the garbage collector); full chunks go to the writer's thread,
which turns them into columns. Everything else is rare and becomes a record at once.

Pings and fetches carry a topic but no publication: the first ping and the last fetch are remembered until the
publication that came of them is accepted, and become its first steps.
"""

import time
from array import array
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from struct import Struct
from typing import Final

from perf.traces.blocks import Block, Coded, Constant, Values, block_of_records
from perf.traces.run import clock_id
from perf.traces.sampling import Sampler
from perf.traces.schema import COLUMN_NAMES, SCHEMA_VERSION, Domain, StepOutcome, TraceRecord, TraceStep
from perf.traces.writer import TraceWriter
from push_hub.delivery.events import Delivered, DeliveryFailed, FanoutFinished, PublicationAccepted
from push_hub.events import PingArrived, PingRefused
from push_hub.intake.events import DocumentArrived, FetchFailed, PingsUnwanted, TopicFetched

REMEMBERED_PUBLICATIONS: Final = 100_000
REMEMBERED_TOPICS: Final = 100_000

_PACK: Final = Struct("=7q").pack_into
"""Publication, subscription, attempts, monotonic time, and the stay in the queue: came, sent, found; 0 for none."""
_NUMBERS: Final = 7
_ROW_BYTES: Final = 8 * _NUMBERS
_NO_STAY: Final = (0, 0, 0)
DELIVERY: Final = "delivery"
_CHUNK_BYTES: Final = 4096 * _ROW_BYTES
_CHUNKS_WAITING: Final = 64
NameOf = Callable[[PublicationAccepted], str]
"""The name of a publication in the run."""
Moment = tuple[int, int]
"""Monotonic and wall time, in nanoseconds."""


@dataclass(frozen=True, slots=True)
class _Known:
    """What later events of a publication do not repeat."""

    name: str
    topic: str
    size: int
    load: float | None


_FORGOTTEN: Final = _Known("", "", 0, None)


class HubTracer:
    """One hub's events as records of one node.

    `name_of` gives a publication the name it has in every domain. What a gateway brought from PSIRP is `relayed`, not
    `accepted`. `load` may be changed while it runs: a publication has the load at which it was accepted.
    """

    def __init__(
        self,
        writer: TraceWriter,
        node: str,
        *,
        sampler: Sampler | None = None,
        name_of: NameOf | None = None,
        load: float | None = None,
    ) -> None:
        self._run = writer.run.run
        self._node = node
        self._clock = clock_id()
        self._sampler = sampler or Sampler()
        self._everything = self._sampler.rate >= 1.0
        self._name_of = name_of or (lambda event: f"{node}/{event.publication}")
        self._known: dict[int, _Known] = {}
        """The publications that are traced."""
        self._pinged: dict[str, Moment] = {}
        """The first ping of a topic since its last publication."""
        self._fetched: dict[str, Moment] = {}
        self.load = load
        self.unknown = 0
        """Deliveries of publications that were accepted before tracing began, or forgotten since."""
        self._put_record = writer.channel(block_of_records).put
        self._put_chunk = writer.channel(self._block_of_deliveries, _CHUNKS_WAITING, _CHUNK_BYTES // _ROW_BYTES).put
        self._chunk = bytearray(_CHUNK_BYTES)
        self._filled = 0

    def observe(self, event: object, monotonic_ns: Callable[[], int] = time.monotonic_ns) -> None:
        """Cheap for deliveries: one clock and an append. Never raises for an event it does not know."""
        if type(event) is Delivered:
            if self._everything or event.publication in self._known:
                at_byte = self._filled
                # Of a sample of deliveries, nothing could be told about the queue.
                stay = event.stay if self._everything and event.stay is not None else _NO_STAY
                _PACK(
                    self._chunk,
                    at_byte,
                    event.publication,
                    event.subscription.id,
                    event.attempts,
                    monotonic_ns(),
                    *stay,
                )
                self._filled = at_byte + _ROW_BYTES
                if at_byte + _ROW_BYTES == _CHUNK_BYTES:
                    self.flush()
            return
        at = (monotonic_ns(), time.time_ns())
        match event:
            case DeliveryFailed():
                outcome = StepOutcome.FAILED if event.given_up else StepOutcome.RETRIED
                subscriber = str(event.subscription.id)
                self._record(event.publication, TraceStep.DELIVERED, at, outcome, subscriber, event.attempts)
            case PublicationAccepted():
                self._accepted(event, at)
            case FanoutFinished():
                self._record(event.publication, TraceStep.FINISHED, at)
                self.flush()
            case PingArrived():
                remember(self._pinged, event.topic, self._pinged.get(event.topic, at))
            case PingRefused():
                self._pinged.pop(event.topic, None)
            case PingsUnwanted():
                for topic in event.topics:
                    self._pinged.pop(topic, None)
            case DocumentArrived():
                remember(self._fetched, event.topic, at)
            case TopicFetched() if not event.changed:
                self._forget(event.topic)  # nothing came of these pings
            case FetchFailed() if event.retry_at is None:
                self._forget(event.topic)

    def flush(self) -> None:
        """Hand over the deliveries seen so far. Done at the end of every fan-out; call it before the writer closes."""
        if self._filled:
            self._put_chunk(bytes(self._chunk[: self._filled]))
            self._filled = 0

    def _forget(self, topic: str) -> None:
        self._pinged.pop(topic, None)
        self._fetched.pop(topic, None)

    def _accepted(self, event: PublicationAccepted, at: Moment) -> None:
        brought = event.content is not None and event.content.brought
        # What a gateway brought is no answer to a ping, which may be under way at the same time.
        pinged = None if brought else self._pinged.pop(event.topic, None)
        fetched = None if brought else self._fetched.pop(event.topic, None)
        name = self._name_of(event)
        if not self._sampler.takes(name):
            return
        if len(self._known) >= REMEMBERED_PUBLICATIONS:
            del self._known[next(iter(self._known))]
        self._known[event.publication] = _Known(name, event.topic, event.size, self.load)
        if pinged is not None:
            self._record(event.publication, TraceStep.PINGED, pinged)
        if fetched is not None:
            self._record(event.publication, TraceStep.FETCHED, fetched)
        self._record(event.publication, TraceStep.RELAYED if brought else TraceStep.ACCEPTED, at)

    def _record(
        self,
        publication: int,
        step: TraceStep,
        at: Moment,
        outcome: StepOutcome = StepOutcome.OK,
        delivery: str | None = None,
        attempt: int | None = None,
    ) -> None:
        known = self._known.get(publication)
        if known is None:
            return
        self._put_record(
            TraceRecord(
                run=self._run,
                publication=known.name,
                step=step,
                domain=Domain.PUSH,
                node=self._node,
                topic=known.topic,
                sid=None,
                rid=None,
                payload=known.size,
                hop=None,
                delivery=delivery,
                attempt=attempt,
                load=known.load,
                monotonic_ns=at[0],
                wall_ns=at[1],
                clock=self._clock,
                outcome=outcome,
            )
        )

    def _block_of_deliveries(self, chunks: Sequence[bytes]) -> Block:
        """On the writer's thread. Wall times are the monotonic ones plus the difference of the clocks now."""
        ahead = time.time_ns() - time.monotonic_ns()
        flat = array("q", b"".join(chunks))
        numbers = flat[0::_NUMBERS]
        distinct = list(dict.fromkeys(numbers))
        if not self._known.keys() >= set(distinct):
            flat = self._only_known(flat)
            numbers = flat[0::_NUMBERS]
            distinct = list(dict.fromkeys(numbers))
        known = [self._known.get(number, _FORGOTTEN) for number in distinct]
        places = {number: place for place, number in enumerate(distinct)}
        codes = array("q", map(places.__getitem__, numbers))
        monotonic = flat[3::_NUMBERS]
        stays = _stay_columns(flat)
        columns: dict[str, Values] = {
            "run": Constant(self._run),
            "publication": Coded(codes, [one.name for one in known]),
            "step": Constant(TraceStep.DELIVERED),
            "domain": Constant(Domain.PUSH),
            "node": Constant(self._node),
            "topic": Coded(codes, [one.topic for one in known]),
            "sid": Constant(None),
            "rid": Constant(None),
            "payload": Coded(codes, [one.size for one in known]),
            "hop": Constant(None),
            "delivery": flat[1::_NUMBERS],
            "attempt": flat[2::_NUMBERS],
            "load": _load_column(codes, known),
            "monotonic_ns": monotonic,
            "wall_ns": array("q", [time_ns + ahead for time_ns in monotonic]),
            "clock": Constant(self._clock),
            "outcome": Constant(StepOutcome.OK),
            "schema": Constant(SCHEMA_VERSION),
            **stays,
            "peer": Constant(None),
        }
        return Block(len(numbers), {name: columns[name] for name in COLUMN_NAMES})

    def _only_known(self, flat: "array[int]") -> "array[int]":
        kept = array("q")
        for start in range(0, len(flat), _NUMBERS):
            if flat[start] in self._known:
                kept.extend(flat[start : start + _NUMBERS])
        self.unknown += (len(flat) - len(kept)) // _NUMBERS
        return kept


def _stay_columns(flat: "array[int]") -> dict[str, Values]:
    """All deliveries of a block have stayed in the queue, or few have: then each is looked at."""
    queued, started, found = flat[4::_NUMBERS], flat[5::_NUMBERS], flat[6::_NUMBERS]
    if all(queued):
        return {"resource": Constant(DELIVERY), "queued_ns": queued, "started_ns": started, "queue": found}
    if not any(queued):
        return dict.fromkeys(("resource", "queued_ns", "started_ns", "queue"), Constant(None))
    known = [bool(at) for at in queued]
    return {
        "resource": [DELIVERY if one else None for one in known],
        "queued_ns": [at or None for at in queued],
        "started_ns": [at or None for at in started],
        "queue": [number if one else None for number, one in zip(found, known, strict=True)],
    }


def _load_column(codes: "array[int]", known: Sequence[_Known]) -> Values:
    loads = [one.load for one in known]
    return Constant(loads[0]) if len(set(loads)) == 1 else Coded(codes, loads)


def remember(moments: dict[str, Moment], topic: str, at: Moment) -> None:
    """Bounded: the oldest is forgotten first."""
    if len(moments) >= REMEMBERED_TOPICS and topic not in moments:
        del moments[next(iter(moments))]
    moments[topic] = at
