"""What delivery tells an observer: small, typed, past tense."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from push_hub.model import Content, HubSubscription


@dataclass(frozen=True, slots=True)
class PublicationAccepted:
    publication: int
    topic: str
    size: int
    at: float
    content: Content | None = None
    """What was accepted: the same object, not a copy."""


@dataclass(frozen=True, slots=True)
class BacklogRefused:
    """The backlog was above its bound."""

    topic: str
    at: float


class Delivered(NamedTuple):
    """A tuple, because tens of thousands a second are made, and a frozen dataclass takes more than twice as long."""

    publication: int
    subscription: HubSubscription
    status: int
    attempts: int
    at: float
    stay: Sequence[int] | None = None
    """When it came to the queue and when it was sent, in nanoseconds, and how many were there; of first tries only, and
    only if somebody follows queues."""


@dataclass(frozen=True, slots=True)
class DeliveryFailed:
    publication: int
    subscription: HubSubscription
    reason: str
    attempts: int
    given_up: bool
    at: float


@dataclass(frozen=True, slots=True)
class SubscriptionGone:
    """The callback answered 410."""

    subscription: HubSubscription
    at: float


@dataclass(frozen=True, slots=True)
class FanoutFinished:
    """Every subscriber was sent to, or is written down as still owed."""

    publication: int
    at: float


@dataclass(frozen=True, slots=True)
class OutcomesSaved:
    """What became of some deliveries is on disk. `deliveries`: how many a crash cannot repeat any more."""

    deliveries: int
    at: float


@dataclass(frozen=True, slots=True)
class DeliveryStoreFailed:
    """The store could not be written or read; it is tried again, and deliveries wait meanwhile."""

    reason: str
    at: float


DeliveryEvent = (
    PublicationAccepted
    | BacklogRefused
    | Delivered
    | DeliveryFailed
    | SubscriptionGone
    | FanoutFinished
    | OutcomesSaved
    | DeliveryStoreFailed
)
Observer = Callable[[DeliveryEvent], None]
