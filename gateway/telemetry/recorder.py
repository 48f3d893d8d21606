"""The flight recorder: the way of each topic's last publications through this gateway, step by step.

A ping or an arrival from the network begins a way; the hub's publication number and the network's version id join what
belongs together. The version id is the same in every domain, so the ways that two gateways recorded of one publication
can be laid side by side. Everything is bounded; what is older is forgotten.
"""

from collections import OrderedDict, deque
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import islice
from typing import TypeVar

from gateway.telemetry.plain import without_keys
from identifiers import Topic, TopicError
from push_hub.delivery.events import Delivered, DeliveryFailed, FanoutFinished, PublicationAccepted
from push_hub.events import PingArrived
from push_hub.intake.events import DocumentRefused, FetchFailed, TopicFetched

Key = TypeVar("Key", int, str)

MAX_TOPICS = 500
WAYS_PER_TOPIC = 20
STEPS_PER_WAY = 40
DELIVERIES_SHOWN = 8
"""Of a publication's deliveries, so many are shown one by one; the others are counted."""
PENDING_STEPS = 8


@lru_cache(maxsize=4096)
def key_of(name: str) -> str:
    """One key for all spellings of a topic: the hub keeps a subscriber's, the network has the canonical one."""
    try:
        return Topic.parse(name).url.partition("://")[2]
    except TopicError:
        return name


@dataclass(frozen=True, slots=True)
class RecordedStep:
    at: float
    domain: str
    """`push` or `psirp`."""
    what: str
    detail: str = ""


@dataclass(slots=True)
class PublicationPath:
    """One publication's steps."""

    topic: str
    began: float
    publication: int | None = None
    version: str | None = None
    from_network: bool = False
    steps: list[RecordedStep] = field(default_factory=list)
    delivered: int = 0
    failed: int = 0
    last_delivery: float | None = None
    left_out: int = 0
    finished: bool = False
    """Everybody here was sent to."""

    def add(self, step: RecordedStep) -> None:
        if len(self.steps) < STEPS_PER_WAY:
            self.steps.append(step)
        else:
            self.left_out += 1


@dataclass(slots=True)
class _Topic:
    ways: deque[PublicationPath] = field(default_factory=lambda: deque(maxlen=WAYS_PER_TOPIC))
    pending: deque[RecordedStep] = field(default_factory=lambda: deque(maxlen=PENDING_STEPS))


class FlightRecorder:
    def __init__(self) -> None:
        self._topics: OrderedDict[str, _Topic] = OrderedDict()
        self._publications: OrderedDict[int, PublicationPath] = OrderedDict()
        self._versions: OrderedDict[str, PublicationPath] = OrderedDict()
        self._origins: OrderedDict[str, PublicationPath] = OrderedDict()

    def ways(self, topic: str) -> list[PublicationPath]:
        """A topic's last publications, newest first."""
        known = self._topics.get(key_of(topic))
        return [] if known is None else sorted(known.ways, key=lambda way: way.began, reverse=True)

    def recent(self, limit: int) -> list[str]:
        """Topics in which something happened, the last first."""
        names = (known.ways[-1].topic for known in reversed(self._topics.values()) if known.ways)
        return list(dict.fromkeys(islice(names, limit)))

    def way_of(self, publication: int | None, version: str | None) -> PublicationPath | None:
        way = None if publication is None else self._publications.get(publication)
        return way if way is not None or version is None else self._versions.get(version)

    def of_id(self, text: str) -> PublicationPath | None:
        """By a version's id, or by the origin of a publication."""
        return self._versions.get(text) or self._origins.get(text)

    # What happened.

    def pinged(self, event: PingArrived, now: float) -> None:
        self._topic(event.topic).pending.append(RecordedStep(now, "push", "the publisher pinged"))

    def fetched(self, event: TopicFetched, now: float) -> None:
        topic = self._topic(event.topic)
        if not event.changed:
            topic.pending.clear()  # nothing came of these pings
            return
        entries = "" if event.new_entries is None else f", {event.new_entries} new or changed entries"
        if topic.ways:
            # The hub says so once everything about the fetch is on disk, which is after the publication was accepted.
            topic.ways[-1].add(
                RecordedStep(now, "push", "the fetch was written down", f"status {event.status}{entries}")
            )

    def fetch_failed(self, event: FetchFailed | DocumentRefused, now: float) -> None:
        topic = self._topic(event.topic)
        topic.pending.append(RecordedStep(now, "push", "the fetch failed", event.reason))

    def accepted(self, event: PublicationAccepted) -> PublicationPath:
        topic = self._topic(event.topic)
        way = next((way for way in topic.ways if way.from_network and way.publication is None), None)
        if way is None:
            began = topic.pending[0].at if topic.pending else event.at
            way = PublicationPath(event.topic, began)
            way.steps.extend(topic.pending)
            topic.pending.clear()
            topic.ways.append(way)
        way.publication = event.publication
        way.add(
            RecordedStep(
                event.at, "push", "the hub accepted it", f"publication {event.publication}, {event.size} bytes"
            )
        )
        _remember(self._publications, event.publication, way)
        return way

    def published(self, topic: str, version: str, origin: str, size: int, now: float) -> PublicationPath:
        """The network took a publication of this domain. `topic` as the hub spells it."""
        known = self._topic(topic)
        way = next((way for way in known.ways if way.version is None and not way.from_network), None)
        if way is None:
            # It did not come by the hub: somebody published it by POST, or said it in a chat.
            way = PublicationPath(topic, now, finished=True)
            known.ways.append(way)
        way.version = version
        way.add(RecordedStep(now, "psirp", "published in the network", f"version {version}, {size} bytes"))
        _remember(self._versions, version, way)
        _remember(self._origins, origin, way)
        return way

    def arrived(self, topic: str, version: str, origin: str | None, published_at: float, size: int, now: float) -> None:
        way = PublicationPath(topic, min(published_at, now), version=version, from_network=True)
        way.add(RecordedStep(published_at, "psirp", "published by another gateway", f"version {version}, by its clock"))
        way.add(RecordedStep(now, "psirp", "arrived from the network", f"{size} bytes"))
        self._topic(topic).ways.append(way)
        _remember(self._versions, version, way)
        if origin is not None:
            _remember(self._origins, origin, way)

    def handed_over(self, origin: str, adapter: str, now: float) -> None:
        way = self._origins.get(origin)
        if way is not None and way.from_network:
            way.add(RecordedStep(now, adapter, f"taken by the {adapter} adapter"))

    def refused(self, topic: str, reason: str, now: float) -> PublicationPath | None:
        known = self._topics.get(key_of(topic))
        if known is not None and known.ways:
            known.ways[-1].add(RecordedStep(now, "psirp", "did not cross", reason))
            return known.ways[-1]
        return None

    def delivered(self, event: Delivered) -> PublicationPath | None:
        way = self._publications.get(event.publication)
        if way is None:
            return None
        way.delivered += 1
        way.last_delivery = event.at
        if way.delivered <= DELIVERIES_SHOWN:
            where = without_keys(event.subscription.callback)
            way.add(
                RecordedStep(event.at, "push", f"delivered, status {event.status}", f"{where}, try {event.attempts}")
            )
        return way

    def delivery_failed(self, event: DeliveryFailed) -> None:
        way = self._publications.get(event.publication)
        if way is None:
            return
        way.failed += 1
        what = "given up" if event.given_up else "a delivery failed"
        where = without_keys(event.subscription.callback)
        way.add(RecordedStep(event.at, "push", what, f"{event.reason}; {where}, try {event.attempts}"))

    def finished(self, event: FanoutFinished) -> PublicationPath | None:
        way = self._publications.get(event.publication)
        if way is not None:
            way.add(
                RecordedStep(
                    event.at, "push", "everyone was sent to", f"{way.delivered} delivered, {way.failed} failed"
                )
            )
            way.finished = True
        return way

    def _topic(self, topic_name: str) -> _Topic:
        name = key_of(topic_name)
        topic = self._topics.get(name)
        if topic is None:
            topic = self._topics[name] = _Topic()
            if len(self._topics) > MAX_TOPICS:
                self._topics.popitem(last=False)
        else:
            self._topics.move_to_end(name)
        return topic


def _remember(ways: "OrderedDict[Key, PublicationPath]", key: Key, way: PublicationPath) -> None:
    ways[key] = way
    if len(ways) > MAX_TOPICS * WAYS_PER_TOPIC:
        ways.popitem(last=False)
