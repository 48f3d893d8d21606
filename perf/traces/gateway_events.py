"""From what a gateway tells its observers to trace records: one publication through both domains.

The hub's events are those of `hub_events`; the crossing's come through the methods below, which whoever knows the
gateway's own events calls (this package stands below the gateway and does not).

A version that was published before it was asked for is on its way because of a subscription, not of a ping: it gets a
name of its own and begins with the subscription, so that what lay waiting at its publisher counts in no latency.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, TypeVar

from identifiers import ItemId
from perf.traces.blocks import block_of_records
from perf.traces.hub_events import HubTracer, Moment
from perf.traces.naming import ItemOf, publication_name
from perf.traces.psirp_events import control_record
from perf.traces.run import clock_id
from perf.traces.sampling import Sampler
from perf.traces.schema import Domain, StepOutcome, TraceRecord, TraceStep
from perf.traces.writer import TraceWriter
from psirp_stack.control.courier import ControlArrived, ControlSent
from push_hub.delivery.events import PublicationAccepted
from push_hub.events import IntentAsked

REMEMBERED: Final = 100_000
_MS: Final = 1_000_000

Key = TypeVar("Key")
Value = TypeVar("Value")


def now() -> Moment:
    return time.monotonic_ns(), time.time_ns()


@dataclass(frozen=True, slots=True)
class Arrived:
    """A publication that the network brought."""

    item: ItemId
    topic: str
    document: bytes
    origin: bytes
    published_ms: int
    hops: int | None
    """None when it was published on the gateway's own node."""


class GatewayTracer:
    """One gateway as one node of the traces, in both domains."""

    def __init__(
        self,
        writer: TraceWriter,
        node: str,
        item_of: ItemOf,
        *,
        sampler: Sampler | None = None,
        clock: Callable[[], Moment] = now,
    ) -> None:
        self._run = writer.run.run
        self._node = node
        self._item_of = item_of
        self._sampler = sampler or Sampler()
        self._now = clock
        self._clock_name = clock_id()
        self._put = writer.channel(block_of_records).put
        self._hub = HubTracer(writer, node, sampler=self._sampler, name_of=self._name_of)
        self._subscribed: dict[ItemId, Moment] = {}
        """When a subscriber last asked the hub for an item."""
        self._asked: dict[ItemId, tuple[Moment | None, Moment]] = {}
        """Items that the network was asked for and has not brought yet: when the hub was asked, and the network."""
        self._offered: dict[str, tuple[ItemId, str, int, Moment]] = {}
        """By topic: what the network is being given."""
        self._renamed: dict[str, str] = {}
        """What came because of a subscription: its name, by the one it would have had."""
        self._arrived: dict[bytes, tuple[str, ItemId, str, int]] = {}
        self._joins = 0

    def flush(self) -> None:
        self._hub.flush()

    # What the hub tells.

    def observe_hub(self, event: object) -> None:
        if type(event) is IntentAsked:
            item = self._item_of(event.topic) if event.mode == "subscribe" else None
            if item is not None:
                _keep(self._subscribed, item, self._now())
            return
        if isinstance(event, ControlSent | ControlArrived):
            self._put(control_record(self._run, self._node, event, self._now(), self._clock_name))
            return
        self._hub.observe(event)

    def _name_of(self, event: PublicationAccepted) -> str:
        item = self._item_of(event.topic)
        if item is None or event.content is None:
            return f"{self._node}/{event.publication}"
        name = publication_name(item, event.content.body)
        return self._renamed.get(name, name) if event.content.brought else name

    # Into the network.

    def offered(self, item: ItemId, topic: str, document: bytes, *, starts_here: bool = False) -> None:
        """The network is being given a publication. `starts_here`: no hub has told of it, so it begins now."""
        name = publication_name(item, document)
        at = self._now()
        _keep(self._offered, topic, (item, name, len(document), at))
        if starts_here:
            self._record(name, TraceStep.ACCEPTED, Domain.PUSH, item, topic, len(document), at)

    def published(self, topic: str) -> None:
        """The network took it. It was under way since it was offered: others may have it already."""
        known = self._offered.pop(topic, None)
        if known is not None:
            item, name, size, at = known
            self._record(name, TraceStep.PUBLISHED, Domain.PSIRP, item, topic, size, at, hop=0)

    def publish_failed(self, topic: str, *, lasting: bool) -> None:
        known = self._offered.pop(topic, None)
        if known is not None:
            item, name, size, at = known
            outcome = StepOutcome.FAILED if lasting else StepOutcome.RETRIED
            self._record(name, TraceStep.PUBLISHED, Domain.PSIRP, item, topic, size, at, hop=0, outcome=outcome)

    # Out of the network.

    def asked(self, item: ItemId) -> None:
        """The network is being asked for an item."""
        _keep(self._asked, item, (self._subscribed.pop(item, None), self._now()))

    def arrived(self, arrived: Arrived) -> None:
        at = self._now()
        item, size = arrived.item, len(arrived.document)
        name = publication_name(item, arrived.document)
        asked = self._asked.pop(item, None)
        if arrived.hops is None:  # published on this very node: it comes back, but crossed nothing
            _keep(self._arrived, arrived.origin, (name, item, arrived.topic, size))
            return
        if asked is not None and arrived.published_ms * _MS < asked[1][1]:
            self._joins += 1
            plain, name = name, f"{name}@{self._node}.{self._joins}"
            _keep(self._renamed, plain, name)
            if asked[0] is not None:
                self._record(name, TraceStep.SUBSCRIBE_ARRIVED, Domain.PUSH, item, arrived.topic, size, asked[0])
            self._record(name, TraceStep.SUBSCRIBE_ISSUED, Domain.PSIRP, item, arrived.topic, size, asked[1])
        else:
            self._renamed.pop(name, None)
        _keep(self._arrived, arrived.origin, (name, item, arrived.topic, size))
        self._record(name, TraceStep.RECEIVED, Domain.PSIRP, item, arrived.topic, size, at, hop=arrived.hops)

    def handed_over(self, origin: bytes, subscriber: str) -> None:
        """Somebody who is no hub took it."""
        known = self._arrived.get(origin)
        if known is not None:
            name, item, topic, size = known
            self._record(name, TraceStep.DELIVERED, Domain.PUSH, item, topic, size, self._now(), delivery=subscriber)

    def _record(
        self,
        name: str,
        step: TraceStep,
        domain: Domain,
        item: ItemId,
        topic: str,
        size: int,
        at: Moment,
        *,
        hop: int | None = None,
        delivery: str | None = None,
        outcome: StepOutcome = StepOutcome.OK,
    ) -> None:
        if not self._sampler.takes(name):
            return
        self._put(
            TraceRecord(
                run=self._run,
                publication=name,
                step=step,
                domain=domain,
                node=self._node,
                topic=topic,
                sid=str(item.sid),
                rid=str(item.rid),
                payload=size,
                hop=hop,
                delivery=delivery,
                attempt=None,
                load=None,
                monotonic_ns=at[0],
                wall_ns=at[1],
                clock=self._clock_name,
                outcome=outcome,
            )
        )


def _keep(memory: dict[Key, Value], key: Key, value: Value) -> None:
    """Bounded: the oldest is forgotten first."""
    if len(memory) >= REMEMBERED and key not in memory:
        del memory[next(iter(memory))]
    memory[key] = value
