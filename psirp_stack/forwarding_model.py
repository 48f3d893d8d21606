"""What a forwarder knows and what it can decide: shared by the fast forwarder and the plain reference.

A forwarding identifier (FID) is a 32-byte field. Its first 31 bytes are the filter: an unsigned big-endian integer
of 248 bits. Its last byte is the index of the link-id table that the filter was built from. A link's tag in a table
is an integer with a few bits set, contained in the filter when the filter names that link.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

FILTER_BITS = 248
FILTER_BYTES = 31
FID_BYTES = 32
MAX_FILTER_FILL = FILTER_BITS // 2
TABLES = 8
TAG_BITS = 5
BROADCAST_FID = b"\xff" * FID_BYTES

Tags = tuple[int, ...]
"""One tag per table, in table order."""

LinkNumber = int
"""A node's own number for one of its links."""


class Drop(StrEnum):
    """Why a frame, or its copy for local delivery, went no further. Every frame that is not sent on has one."""

    MALFORMED = "malformed"
    TTL_EXPIRED = "ttl expired"
    OVERFULL = "filter more than half full"
    UNKNOWN_TABLE = "unknown table index"
    LOOP = "loop"
    NO_MATCH = "no link matches"


@dataclass(frozen=True, slots=True)
class Detour:
    """A way round a link that is down: a frame whose filter names the link gets the way's tags added to its filter.

    A filter that holds them all already came back from a way round that leads nowhere: it is not sent there again.
    """

    tags: Tags
    """Those of the link that is down."""
    way: Tags
    """By table: the tags of all links of the way to the same neighbour, in one."""
    out: LinkNumber
    """The first of them."""


@dataclass(frozen=True, slots=True)
class ForwardingTable:
    """Everything a forwarder needs to know of its node: replaced whole when the topology changes."""

    links: Mapping[LinkNumber, Tags]
    """Tags of the directed link from this node to the neighbour, by link."""
    internal: Tags
    """Tags of the node's own internal link: a match means «deliver up the stack here»."""
    incoming: Mapping[LinkNumber, Tags] = field(default_factory=dict)
    """Tags of the opposite direction, neighbour to this node: used to recognise loops."""
    detours: Sequence[Detour] = ()


@dataclass(frozen=True, slots=True)
class Decision:
    """What happens to one frame at one node."""

    out: tuple[LinkNumber, ...]
    """Links to send `frame` on, in ascending order."""
    deliver: bool
    """Whether the frame also goes up the stack of this node."""
    frame: bytes
    """The frame as it leaves: TTL decremented, reverse path extended, filter extended when it takes a way round."""
    drop: Drop | None = None
    """Set exactly when the frame is neither sent nor delivered."""
