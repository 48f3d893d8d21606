"""What happened in the hub's protocol part: small, past tense, for whoever observes. Cheap when nobody does."""

from collections.abc import Callable
from dataclasses import dataclass

from serving.events import LimitReached, RequestBroke, RequestRefused


@dataclass(frozen=True, slots=True)
class PartFailed:
    """A fault in what was put into the hub: a listener, or the operator's policy. The hub goes on without it."""

    part: str
    error: str


@dataclass(frozen=True, slots=True)
class IntentAsked:
    """Somebody asked to subscribe or unsubscribe; nothing has been looked at but the request itself."""

    mode: str
    topic: str
    callback: str


@dataclass(frozen=True, slots=True)
class IntentConfirmed:
    mode: str
    topic: str
    callback: str


@dataclass(frozen=True, slots=True)
class IntentRetried:
    topic: str
    callback: str
    reason: str
    at: float


@dataclass(frozen=True, slots=True)
class IntentFailed:
    mode: str
    topic: str
    callback: str
    reason: str


@dataclass(frozen=True, slots=True)
class SubscriptionEnded:
    topic: str
    callback: str
    reason: str


@dataclass(frozen=True, slots=True)
class PingArrived:
    """Told before anything comes of it, so that what comes of it can be told apart from what came before."""

    topic: str


@dataclass(frozen=True, slots=True)
class PingAccepted:
    """It is on disk, or what it led to."""

    topic: str


@dataclass(frozen=True, slots=True)
class PingRefused:
    """Nothing will come of one that arrived."""

    topic: str


@dataclass(frozen=True, slots=True)
class CanaryArrived:
    """A round of the hub's own canary went the whole way: from its ping to its callback."""

    seconds: float


@dataclass(frozen=True, slots=True)
class CanaryChanged:
    healthy: bool
    reason: str


HubEvent = (
    RequestRefused
    | RequestBroke
    | PartFailed
    | LimitReached
    | IntentAsked
    | IntentConfirmed
    | IntentRetried
    | IntentFailed
    | SubscriptionEnded
    | PingArrived
    | PingAccepted
    | PingRefused
    | CanaryArrived
    | CanaryChanged
)
Observer = Callable[[HubEvent], None]
