"""What happened in the gateway, for whoever listens: small values, named in the past tense."""

from dataclasses import dataclass

from gateway.model import Crossing
from identifiers import Identifier, ItemId


@dataclass(frozen=True, slots=True)
class CrossingOffered:
    """The network is being given a publication of this domain."""

    item: ItemId
    crossing: Crossing


@dataclass(frozen=True, slots=True)
class CrossingPublished:
    """A publication of this domain is in the network."""

    kind: str
    name: str
    item: ItemId
    version: Identifier
    size: int


@dataclass(frozen=True, slots=True)
class CrossingArrived:
    """The network brought a publication; nobody here has it yet. `published_ms` is by its publisher's clock."""

    name: str
    item: ItemId
    version: Identifier
    published_ms: int
    size: int
    is_own: bool
    """It is one that this gateway published."""
    crossing: Crossing


@dataclass(frozen=True, slots=True)
class CrossingDelivered:
    """A publication from the network was taken by an adapter."""

    adapter: str
    name: str
    version: Identifier | None
    size: int


@dataclass(frozen=True, slots=True)
class DeliveryRefused:
    """An adapter did not take a publication; the reason says whether that is the end of it."""

    adapter: str
    name: str
    reason: str


@dataclass(frozen=True, slots=True)
class PublishFailed:
    """The network did not take a publication of this domain."""

    name: str
    reason: str
    lasting: bool


@dataclass(frozen=True, slots=True)
class ItemAsked:
    """The network is being asked for an item."""

    item: ItemId


@dataclass(frozen=True, slots=True)
class ItemSubscribed:
    """The network was asked for an item, or let go."""

    item: ItemId
    wanted: bool


@dataclass(frozen=True, slots=True)
class GatewayStoreFailed:
    """Something could not be read or written; it is tried again."""

    reason: str


GatewayEvent = (
    CrossingOffered
    | CrossingPublished
    | CrossingArrived
    | CrossingDelivered
    | DeliveryRefused
    | PublishFailed
    | ItemAsked
    | ItemSubscribed
    | GatewayStoreFailed
)
