"""What this gateway wants of other zones: the lists it publishes, and the answers it heard. No I/O, no clock.

Whoever uses it publishes `message(zone)` whenever something changed, and asks `due` when a renewal is.
"""

from dataclasses import dataclass, field

from gateway.bootstrapping.messages import RequestAnswer, RequestAnswers, RequestMode, TopicRequest, TopicRequests
from identifiers import Naming

RENEW_AT_FRACTION = 0.5
MAX_LIST_BYTES = 4 * 1024 * 1024
"""Names in the list for one zone, so that list and answers fit into a publication each."""


class TooManyWantedError(Exception):
    """The list for one zone is as long as it may be, or there are as many lists as there may be."""


@dataclass(slots=True)
class _Want:
    number: int
    since: float
    """When it was first wanted."""


@dataclass(slots=True)
class _Zone:
    renewed: float
    wants: dict[str, _Want] = field(default_factory=dict)
    answers: dict[str, RequestAnswer] = field(default_factory=dict)
    serial: int = 0
    heard: int = 0
    size: int = 0
    """Bytes of the names of what is wanted."""
    emptied: float = 0.0
    """Since when nothing is wanted."""


class RequesterTable:
    """Numbers only ever go up, also over restarts: the caller keeps `last_number` on disk before it sends a message."""

    def __init__(
        self,
        requester: str,
        naming: Naming,
        lease: float,
        max_per_zone: int,
        last_number: int = 0,
        max_zones: int = 10_000,
    ) -> None:
        self.requester = requester
        self.last_number = last_number
        self._naming = naming
        self._lease = lease
        self._max_per_zone = max_per_zone
        self._max_zones = max_zones
        self._zones: dict[str, _Zone] = {}

    @property
    def zones(self) -> tuple[str, ...]:
        """Zones that have been spoken to and not been left."""
        return tuple(self._zones)

    def wanted(self, zone: str) -> dict[str, float]:
        """Topics and since when each is wanted."""
        known = self._zones.get(zone)
        return {} if known is None else {topic: want.since for topic, want in known.wants.items()}

    def enter(self, zone: str, now: float) -> None:
        """Have a list for a zone, if only an empty one. Raises `TooManyWantedError`."""
        if zone not in self._zones:
            if len(self._zones) >= self._max_zones:
                raise TooManyWantedError(f"{self._max_zones} zones are asked for topics already, which is the limit")
            self._zones[zone] = _Zone(now, serial=self._next(), emptied=now)

    def want(self, zone: str, topic: str, now: float) -> bool:
        """True when the list changed. A topic that was denied before is asked for again. `TooManyWantedError`."""
        self.enter(zone, now)
        known = self._zones[zone]
        want = known.wants.get(topic)
        answer = None if want is None else self.answer(zone, topic)
        if want is not None and (answer is None or answer.accepted):
            return False
        size = len(topic.encode()) if want is None else 0
        if want is None and len(known.wants) >= self._max_per_zone:
            raise TooManyWantedError(f"{self._max_per_zone} topics of {zone} are wanted already, which is the limit")
        if known.size + size > MAX_LIST_BYTES:
            raise TooManyWantedError(f"the names of topics of {zone} that are wanted are {MAX_LIST_BYTES} bytes long")
        known.size += size
        known.wants[topic] = _Want(self._next(), now if want is None else want.since)
        known.serial = self.last_number
        return True

    def drop(self, zone: str, topic: str, now: float) -> bool:
        known = self._zones.get(zone)
        if known is None or known.wants.pop(topic, None) is None:
            return False
        known.answers.pop(topic, None)
        known.size -= len(topic.encode())
        known.serial = self._next()
        if not known.wants:
            known.emptied = now
        return True

    def due(self, now: float) -> list[str]:
        """Zones whose leases must be renewed; they are, in the next message."""
        late = [
            zone
            for zone, known in self._zones.items()
            if known.wants and now - known.renewed >= self._lease * RENEW_AT_FRACTION
        ]
        for zone in late:
            self.renew(zone, now)
        return late

    def renew(self, zone: str, now: float) -> None:
        known = self._zones[zone]
        for want in known.wants.values():
            want.number = self._next()
        known.serial = self._next()
        known.renewed = now

    def message(self, zone: str) -> TopicRequests:
        known = self._zones[zone]
        lease = max(1, round(self._lease))
        return TopicRequests(
            zone,
            self.requester,
            self._naming.scheme,
            self._naming.hash_name,
            known.serial,
            tuple(
                TopicRequest(RequestMode.SUBSCRIBE, topic, want.number, lease) for topic, want in known.wants.items()
            ),
        )

    def hear(self, message: RequestAnswers) -> list[RequestAnswer]:
        """The answers that were new. Those to requests that are none of ours are passed over."""
        known = self._zones.get(message.zone)
        if known is None or message.requester != self.requester or message.heard > self.last_number:
            return []
        known.heard = max(known.heard, message.heard)
        new: list[RequestAnswer] = []
        for answer in message.answers:
            before = known.answers.get(answer.topic)
            if answer.topic not in known.wants or answer == before:
                continue
            if before is None or answer.number >= before.number:
                known.answers[answer.topic] = answer
                new.append(answer)
        return new

    def answer(self, zone: str, topic: str) -> RequestAnswer | None:
        """What the manager says to the request as it is now; what it said to an accepted one holds for its renewal."""
        known = self._zones.get(zone)
        want = None if known is None else known.wants.get(topic)
        answer = None if known is None else known.answers.get(topic)
        if want is None or answer is None:
            return None
        return answer if answer.number >= want.number or answer.accepted else None

    def left(self, now: float) -> list[str]:
        """Zones of which nothing is wanted any more, and whose manager has heard that, or let all leases end since."""
        return [
            zone
            for zone, known in self._zones.items()
            if not known.wants and (known.heard >= known.serial or now - known.emptied > self._lease)
        ]

    def leave(self, zone: str) -> None:
        self._zones.pop(zone, None)

    def _next(self) -> int:
        self.last_number += 1
        return self.last_number
