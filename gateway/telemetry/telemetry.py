"""The one listener behind metrics, dashboard and traces: counts what happened, and keeps the last of it.

`observe` runs on the data path, so a delivery costs a few dictionary lookups and nothing is written anywhere. It never
raises: a fault of its own is counted.
"""

import time
from collections import Counter, OrderedDict, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from exchange.model import EntryRefused, EntryTaken
from gateway.events import CrossingArrived, CrossingPublished, PublishFailed
from gateway.protocols.psirp.adapter import NETWORK
from gateway.telemetry.plain import Plain, plain
from gateway.telemetry.recorder import FlightRecorder, PublicationPath
from gateway.telemetry.series import EventRate, Latency
from psirp_stack.control.courier import ControlArrived, ControlSent
from push_hub.delivery.events import (
    BacklogRefused,
    Delivered,
    DeliveryFailed,
    DeliveryStoreFailed,
    FanoutFinished,
    OutcomesSaved,
    PublicationAccepted,
)
from push_hub.events import CanaryArrived, IntentConfirmed, IntentFailed, IntentRetried, PingArrived, PingRefused
from push_hub.intake.events import (
    DocumentRefused,
    FetchFailed,
    ParserGaveUp,
    ParsersDisagreed,
    PingsStored,
    PingsUnwanted,
    TopicFetched,
)
from push_hub.intake.trouble import FetchTrouble
from serving.events import LimitReached, RequestBroke, RequestRefused
from storage.clock import steady

EVENTS_KEPT = 300
PUBLICATIONS_KEPT = 20_000
"""Publications whose time of acceptance is remembered, so that the delay of their deliveries is known."""
PINGS_KEPT = 10_000
FAILURES_KEPT = 2_000
QUIET = frozenset(
    {
        CanaryArrived,
        ControlArrived,
        ControlSent,
        Delivered,
        EntryTaken,
        OutcomesSaved,
        PingArrived,
        PingsStored,
    }
)
"""Events that are counted and not listed: there are too many, or others say the same."""


@dataclass(frozen=True, slots=True)
class Happened:
    number: int
    at: float
    event: object

    def plain(self) -> Plain:
        known: Plain = {"number": self.number, "at": self.at, "event": type(self.event).__name__}
        return known | plain(self.event)


class Telemetry:
    def __init__(self, clock: Callable[[], float] = steady, wall: Callable[[], float] = time.time) -> None:
        """`wall` is compared with the times that other gateways say."""
        self._wall = wall
        self._clock = clock
        self.recorder = FlightRecorder()
        self.events: deque[Happened] = deque(maxlen=EVENTS_KEPT)
        self.counted: Counter[str] = Counter()
        """Events by name."""
        self.limits: Counter[str] = Counter()
        self.refused_requests: Counter[int] = Counter()
        self.fetches: Counter[str] = Counter()
        self.refused_documents: Counter[str] = Counter()
        """Documents that were not published, or not taken apart, by what is wrong with them."""
        self.canary_seconds: float | None = None
        """How long the hub's own canary took, the last time it arrived."""
        self.given_up = 0
        self.refused_entries = 0
        """Times that a protocol's session did not take a publication."""
        self.from_network = 0
        self.faults = 0
        """Events that could not be taken in."""
        self.delivered, self.failed, self.accepted = EventRate(), EventRate(), EventRate()
        self.published, self.arrived = EventRate(), EventRate()
        self.intake, self.delivery = Latency(), Latency()
        self.export, self.crossing = Latency(), Latency()
        self.last_failure: OrderedDict[int, tuple[float, str]] = OrderedDict()
        """Why a subscription's last delivery failed, by its number."""
        self.when_finished: Callable[[PublicationPath], None] | None = None
        """Told of each way that is over: everybody here was sent to, and the network has it or will not take it."""
        self._accepted_at: OrderedDict[int, float] = OrderedDict()
        self._pinged_at: OrderedDict[str, float] = OrderedDict()
        self._number = 0
        self._takers: dict[type, Callable[..., None]] = {
            Delivered: self._delivered,
            DeliveryFailed: self._failed,
            PublicationAccepted: self._accepted,
            FanoutFinished: self._finished,
            PingArrived: self._pinged,
            PingRefused: lambda event: self._no_ping((event.topic,)),
            PingsUnwanted: lambda event: self._no_ping(event.topics),
            TopicFetched: self._fetched,
            FetchFailed: self._fetch_failed,
            DocumentRefused: self._document_refused,
            ParserGaveUp: self._passed_on_whole,
            ParsersDisagreed: self._passed_on_whole,
            CanaryArrived: self._canary_arrived,
            CrossingPublished: self._crossed,
            CrossingArrived: self._arrived,
            EntryTaken: self._handed_over,
            EntryRefused: self._refused,
            PublishFailed: self._publish_failed,
            LimitReached: lambda event: self.limits.update((event.name,)),
            RequestRefused: lambda event: self.refused_requests.update((event.status,)),
        }

    def observe(self, event: object) -> None:
        kind = type(event)
        try:
            self.counted[kind.__name__] += 1
            taker = self._takers.get(kind)
            if taker is not None:
                taker(event)
            if kind not in QUIET:
                self._number += 1
                self.events.append(Happened(self._number, self._clock(), event))
        except Exception:
            self.faults += 1

    def count(self, *kinds: type) -> int:
        return sum(self.counted[kind.__name__] for kind in kinds)

    @property
    def verifications(self) -> dict[str, int]:
        return {
            "confirmed": self.count(IntentConfirmed),
            "retried": self.count(IntentRetried),
            "failed": self.count(IntentFailed),
        }

    @property
    def store_failures(self) -> int:
        return self.count(DeliveryStoreFailed)  # the control function's event has the same name

    @property
    def refused_publications(self) -> int:
        return self.count(BacklogRefused)

    @property
    def request_faults(self) -> int:
        return self.count(RequestBroke)

    # The hub.

    def _pinged(self, event: PingArrived) -> None:
        now = self._clock()
        self._pinged_at.setdefault(event.topic, now)
        if len(self._pinged_at) > PINGS_KEPT:
            self._pinged_at.popitem(last=False)
        self.recorder.pinged(event, now)

    def _no_ping(self, topics: Sequence[str]) -> None:
        for topic in topics:
            self._pinged_at.pop(topic, None)

    def _fetched(self, event: TopicFetched) -> None:
        self.fetches["changed" if event.changed else "unchanged"] += 1
        if not event.changed:
            self._pinged_at.pop(event.topic, None)
        self.recorder.fetched(event, self._clock())

    def _document_refused(self, event: DocumentRefused) -> None:
        self.refused_documents[event.trouble] += 1
        self._fetch_failed(event)

    def _passed_on_whole(self, _: ParserGaveUp | ParsersDisagreed) -> None:
        self.refused_documents[FetchTrouble.WHOLE] += 1

    def _canary_arrived(self, event: CanaryArrived) -> None:
        self.canary_seconds = event.seconds

    def _fetch_failed(self, event: FetchFailed | DocumentRefused) -> None:
        # A document that is refused is told of twice: as such, and as a fetch that came to nothing.
        self.fetches["refused" if isinstance(event, DocumentRefused) else "failed"] += 1
        if isinstance(event, FetchFailed):
            self._pinged_at.pop(event.topic, None)
        self.recorder.fetch_failed(event, self._clock())

    def _accepted(self, event: PublicationAccepted) -> None:
        self.accepted.add(event.at)
        self._accepted_at[event.publication] = event.at
        if len(self._accepted_at) > PUBLICATIONS_KEPT:
            self._accepted_at.popitem(last=False)
        pinged = self._pinged_at.pop(event.topic, None)
        if pinged is not None:
            self.intake.add(event.at - pinged, event.at)
        if self.recorder.accepted(event).from_network:
            self.from_network += 1

    def _delivered(self, event: Delivered) -> None:
        now = event.at
        self.delivered.add(now)
        accepted = self._accepted_at.get(event.publication)
        if accepted is not None:
            self.delivery.add(now - accepted, now)
        self.recorder.delivered(event)
        if self.last_failure and event.subscription.id in self.last_failure:
            del self.last_failure[event.subscription.id]

    def _failed(self, event: DeliveryFailed) -> None:
        self.failed.add(event.at)
        self.given_up += event.given_up
        self.last_failure[event.subscription.id] = (event.at, event.reason)
        self.last_failure.move_to_end(event.subscription.id)
        if len(self.last_failure) > FAILURES_KEPT:
            self.last_failure.popitem(last=False)
        self.recorder.delivery_failed(event)

    def _finished(self, event: FanoutFinished) -> None:
        way = self.recorder.finished(event)
        # A publication of this domain may be with everybody here before the network has it: then it is not over yet.
        if way is not None and way.version is not None:
            self._over(way)

    def _over(self, way: PublicationPath) -> None:
        if self.when_finished is not None:
            self.when_finished(way)

    # The network.

    def _crossed(self, event: CrossingPublished) -> None:
        now = self._clock()
        self.published.add(now)
        way = self.recorder.published(event.name, str(event.version), str(event.origin), event.size, now)
        if way.publication is not None and way.publication in self._accepted_at:
            self.export.add(now - self._accepted_at[way.publication], now)
        if way.finished:
            self._over(way)

    def _publish_failed(self, event: PublishFailed) -> None:
        way = self.recorder.refused(event.name, event.reason, self._clock())
        if way is not None and way.finished and event.lasting:
            self._over(way)

    def _arrived(self, event: CrossingArrived) -> None:
        if event.is_own:
            return
        now, published_at = self._clock(), event.published_ms / 1000
        self.arrived.add(now)
        self.crossing.add(self._wall() - published_at, now)
        origin = event.crossing.draft.origin
        said = None if origin is None else str(origin)
        self.recorder.arrived(event.name, str(event.version), said, published_at, event.size, now)

    def _refused(self, event: EntryRefused) -> None:
        if event.key.reader == NETWORK:
            return  # that is told as `PublishFailed`
        self.refused_entries += 1
        self.recorder.refused(event.entry.draft.name, event.reason, self._clock())

    def _handed_over(self, event: EntryTaken) -> None:
        self.recorder.handed_over(str(event.entry.origin), event.key.reader, self._clock())
