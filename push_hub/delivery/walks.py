"""The fan-out of a publication as a walk over its topic's subscribers, page by page, and whose turn it is.

Walks of one topic go one after the other, so that each subscriber gets its publications in order. Walks of different
topics take turns, a page each, so that a topic with few subscribers does not wait for the end of one with many.
"""

from array import array
from collections import deque
from collections.abc import Set
from enum import Enum

from push_hub.delivery.batch import DeliveredPage, Key
from push_hub.delivery.hosts import CallbackNetwork, Recipient
from push_hub.delivery.signing import PreparedPublication
from push_hub.model import HubSubscription

FIRST_SUCCESS = 200


class JobState(Enum):
    READY = 0
    WAITING = 1
    SENT = 2
    DONE = 3


READY, WAITING, SENT, DONE = JobState.READY, JobState.WAITING, JobState.SENT, JobState.DONE


class Pace(Enum):
    """What a delivery takes while it is under way: see `lanes`."""

    QUICK = 0
    UNPROVED = 1
    SLOW = 2


class DeliveryJob:
    """One delivery. `page` is None: a row on disk stands for it. `status`: once delivered. `since`: when it was sent or
    began to wait. `planned`: it is tried before its time, which was this. `stay`: when it came, when it was sent (both
    in nanoseconds) and how many were there when it came, if somebody follows that."""

    __slots__ = (
        "attempts",
        "network",
        "pace",
        "page",
        "parcel",
        "planned",
        "recipient",
        "since",
        "state",
        "status",
        "stay",
        "subscription",
        "token",
    )

    def __init__(
        self,
        subscription: HubSubscription,
        parcel: PreparedPublication,
        recipient: Recipient,
        page: "WalkPage | None",
        attempts: int,
    ) -> None:
        self.subscription = subscription
        self.parcel = parcel
        self.recipient = recipient
        self.network: CallbackNetwork = recipient.host.network
        self.page = page
        self.attempts = attempts
        self.pace = Pace.QUICK
        self.state = READY
        self.since = 0.0
        self.status = 0
        self.planned = 0.0
        self.token: object = None
        self.stay: list[int] | None = None

    @property
    def key(self) -> Key:
        return (self.subscription.id, self.parcel.id)


class WalkPage:
    """Some of a walk's subscribers. `open`: not settled and not written down. `detached`: left it as rows."""

    __slots__ = ("detached", "jobs", "last_id", "late", "open", "walk")

    def __init__(self, walk: "Walk", last_id: int) -> None:
        self.walk = walk
        self.last_id = last_id
        self.jobs: list[DeliveryJob] = []
        self.open = 0
        self.detached = 0
        self.late = False

    def close(self) -> DeliveredPage:
        """Let go of the jobs (each refers back to the page) and say who was delivered to at the first try."""
        delivered = [job for job in self.jobs if job.status and job.page is self]
        self.jobs = []
        return DeliveredPage(
            self.walk.publication,
            self.last_id,
            array("q", [job.subscription.id for job in delivered]).tobytes(),
            bytes([job.status - FIRST_SUCCESS for job in delivered]),
        )


class Walk:
    """`position`: the last subscriber that was loaded; what is on disk follows as pages are finished."""

    __slots__ = ("exhausted", "has_rows", "pages", "parcel", "position", "publication", "topic")

    def __init__(self, publication: int, topic: str, position: int, has_rows: Set[int] = frozenset()) -> None:
        self.publication = publication
        self.topic = topic
        self.position = position
        # Subscriptions that had a row for this publication at the start: they get it by that row, maybe have already.
        self.has_rows = has_rows
        self.parcel: PreparedPublication | None = None
        self.pages: deque[WalkPage] = deque()
        self.exhausted = False


class Turns:
    """Which walk loads a page next."""

    def __init__(self) -> None:
        self._topics: dict[str, deque[Walk]] = {}
        self._turns: deque[Walk] = deque()
        self.unfinished = 0

    def add(self, walk: Walk) -> None:
        """In the order of publication ids."""
        self.unfinished += 1
        queue = self._topics.get(walk.topic)
        if queue is None:
            self._topics[walk.topic] = deque((walk,))
            self._turns.append(walk)
        else:
            queue.append(walk)

    def next(self) -> Walk | None:
        """Take the walk whose turn it is; give it back with `again` when it has more pages."""
        return self._turns.popleft() if self._turns else None

    @property
    def is_somebody_left_out(self) -> bool:
        """Whether the walk whose turn it is has nothing loaded at all."""
        return bool(self._turns) and not self._turns[0].pages

    def again(self, walk: Walk) -> None:
        self._turns.append(walk)

    def finished(self, walk: Walk) -> None:
        """The next walk of the same topic, if there is one, takes its turn."""
        self.unfinished -= 1
        queue = self._topics[walk.topic]
        queue.popleft()
        if queue:
            self._turns.append(queue[0])
        else:
            del self._topics[walk.topic]
