"""What the transport tells the node: small values, named in the past tense."""

from dataclasses import dataclass

from identifiers.identifier import ItemId


@dataclass(frozen=True, slots=True)
class VersionPublished:
    """A new version of this node is stored and may be sent."""

    item: ItemId
    version_id: bytes
    content: bytes
    number: int = 0


@dataclass(frozen=True, slots=True)
class VersionAcknowledged:
    """All receivers that are not left behind have every version up to this one."""

    item: ItemId
    epoch: int
    number: int


@dataclass(frozen=True, slots=True)
class VersionBegun:
    """The first frame of a version has left along a filter. Told only if a node's settings ask for it."""

    item: ItemId
    number: int


@dataclass(frozen=True, slots=True)
class VersionSent:
    """The last one has."""

    item: ItemId
    number: int


@dataclass(frozen=True, slots=True)
class ReceiverLeftBehind:
    """A receiver made no progress for too long; the others no longer wait for it."""

    item: ItemId
    subscriber: str
    number: int
    """The last version it is known to have."""


@dataclass(frozen=True, slots=True)
class ReceiverCaughtUp:
    item: ItemId
    subscriber: str


SenderEvent = VersionAcknowledged | VersionBegun | VersionSent | ReceiverLeftBehind | ReceiverCaughtUp


@dataclass(frozen=True, slots=True)
class VersionArrived:
    """A whole version, checked, in its publisher's order."""

    item: ItemId
    publisher: str
    version_id: bytes
    epoch: int
    number: int
    attributes: bytes
    content: bytes
    published_ms: int
    signer: bytes | None
    """Hash of the key that signed it."""
    cost: int
    """What to give to `consumed` when the reader is done with it."""
    hops: int | None = None
    """Links that its announcement travelled."""


@dataclass(frozen=True, slots=True)
class VersionSkipped:
    """Versions that cannot be had any more."""

    item: ItemId
    publisher: str
    epoch: int
    first: int
    last: int
    reason: str


@dataclass(frozen=True, slots=True)
class Dropped:
    """Something that arrived for an item was not used."""

    item: ItemId
    reason: str


ReceiverEvent = VersionArrived | VersionSkipped | Dropped
