"""What happened between the gateway and its network, for whoever listens: small values, named in the past tense.

What the sessions of protocols take or refuse is told by the exchange: see `exchange.model.ExchangeEvent`.
"""

from dataclasses import dataclass

from exchange.model import OriginId, Profile
from gateway.model import Crossing
from identifiers import Identifier, ItemId


@dataclass(frozen=True, slots=True)
class CrossingOffered:
    """The network is being given a publication that entered here, by the adapter `via`."""

    item: ItemId
    name: str
    via: str
    body: bytes


@dataclass(frozen=True, slots=True)
class CrossingPublished:
    """A publication that entered here is in the network."""

    profile: Profile
    name: str
    item: ItemId
    version: Identifier
    size: int
    origin: OriginId


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
    | PublishFailed
    | ItemAsked
    | ItemSubscribed
    | GatewayStoreFailed
)
