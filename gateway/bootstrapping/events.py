"""What happened between this gateway and the managers and requesters of zones: small values, in the past tense."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ZoneAnnounced:
    """This gateway is known as the manager of a zone."""

    zone: str


@dataclass(frozen=True, slots=True)
class RequestsHeard:
    """A gateway elsewhere said what it wants of a zone managed here."""

    zone: str
    requester: str
    wanted: int


@dataclass(frozen=True, slots=True)
class TopicDecided:
    """A topic of a zone managed here is followed for gateways elsewhere, or is not."""

    topic: str
    accepted: bool
    reason: str


@dataclass(frozen=True, slots=True)
class TopicReleased:
    """No gateway elsewhere wants a topic any more."""

    topic: str


@dataclass(frozen=True, slots=True)
class UpstreamDelivered:
    """A topic's own hub pushed content here."""

    topic: str
    size: int


@dataclass(frozen=True, slots=True)
class UpstreamDropped:
    """Something that was pushed here as a topic's content was not taken: badly signed, or not to be published."""

    topic: str
    hub: str
    reason: str


@dataclass(frozen=True, slots=True)
class ZoneAsked:
    """This gateway said what it wants of a zone."""

    zone: str
    wanted: int


@dataclass(frozen=True, slots=True)
class SubscriptionRefused:
    """A subscriber here was denied a topic, with these words."""

    topic: str
    reason: str


@dataclass(frozen=True, slots=True)
class SignallingFailed:
    """The network did not take a message, or brought one that is none; it is sent again, or passed over."""

    zone: str
    reason: str


BootstrappingEvent = (
    ZoneAnnounced
    | RequestsHeard
    | TopicDecided
    | TopicReleased
    | UpstreamDelivered
    | UpstreamDropped
    | ZoneAsked
    | SubscriptionRefused
    | SignallingFailed
)
