"""An application of a node, what it holds, and the bounds of what it may hold."""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

from identifiers import Identifier, ItemId
from psirp_stack.control.codes import Code
from psirp_stack.node.attachment import Asked, Done, ReceivedVersion, Told
from psirp_stack.transport.versions import Version

MAX_REASON = 300


@dataclass(frozen=True, slots=True)
class RequestTableConfig:
    """Bounds of what applications may hold."""

    max_applications: int = 256
    max_items_per_application: int = 100_000
    max_held_publications: int = 1024
    """Publications of one item that wait for room or for the rendezvous."""
    remote_room: int = 1024 * 1024
    """Bytes of one item from the network that applications of this node may hold without having handled them."""
    local_room: int = 4 * 1024 * 1024
    """The same of what is published on this node."""
    stuck_after: float = 30.0
    """Seconds after which others no longer wait for an application that handles nothing."""
    linger: float = 10.0
    """Seconds for which an item whose last publisher has gone is still delivered to those who lack some of it."""
    linger_unmatched: float = 2.0
    """The same while it is not known yet whether anybody wants the item; and after the latest version, whether anybody
    else does."""


@dataclass(slots=True, eq=False)
class HandedVersion:
    """A version that was handed to applications; `waiting` of them have not handled it."""

    item: ItemId
    cost: int
    since: float
    remote: bool
    """Whether it came from the network, whose flow control wants to know when it was handled."""
    waiting: int = 0


@dataclass(slots=True, eq=False)
class Application:
    """One attached application."""

    name: str
    tell: Callable[[Told], None]
    parcels: dict[ItemId, deque[HandedVersion]] = field(default_factory=dict)
    """By subscribed item: what it was handed and has not handled."""
    publishes: set[ItemId] = field(default_factory=set)
    watches: set[bytes] = field(default_factory=set)
    joining: set[ItemId] = field(default_factory=set)
    """Subscribed items that it is about to catch up with: what comes meanwhile is among that."""

    def done(self, request: Asked, code: Code, reason: str = "") -> None:
        """Answer a request."""
        self.tell(Done(request.number, code, reason[:MAX_REASON]))


def nobody(told: Told) -> None:
    """Stands in for an application that has gone: it hears nothing more."""


def item_of(sid: bytes, rid: bytes) -> ItemId:
    return ItemId(Identifier(sid), Identifier(rid))


def publication_of(item: ItemId, version: Version) -> ReceivedVersion:
    """A version that this node published, as its own applications see it."""
    return ReceivedVersion(
        bytes(item.sid),
        bytes(item.rid),
        version.version_id,
        version.epoch,
        version.number,
        version.published_ms,
        version.attributes,
        version.content,
    )
