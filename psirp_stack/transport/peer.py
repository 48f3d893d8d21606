"""A receiver as the publisher sees it: what it has, how much more it takes, how to reach it, what it asked for."""

from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from psirp_stack.control.rtt import RoundTrip
from psirp_stack.transport.config import TransportConfig

if TYPE_CHECKING:
    from psirp_stack.transport.stream import VersionStream


@dataclass(slots=True)
class PeerSend:
    """Something to send to one receiver alone: a version's metadata, some of its segments, or what is retained."""

    number: int
    metadata: int
    """How often the metadata is still to be sent."""
    segments: Iterator[int]


@dataclass(frozen=True, slots=True)
class Answer:
    """What a receiver is told beside what is retained."""

    start: int | None = None
    """Where it begins, if it joins."""
    known: bool = True
    """Whether the version that it named was found."""
    follows: bool = False
    """Whether it begins right after that version."""


@dataclass(slots=True)
class Peer:
    """One receiver of one item."""

    name: str
    stream: "VersionStream"
    joined: int
    """One above the newest version when it came: the first that is new to everybody."""
    acked: int
    """All versions up to this one are there."""
    room: int
    round_trip: RoundTrip
    progress: int = 0
    """Bytes of the next version that are there."""
    confirmed: bool = False
    """Whether it was heard at all."""
    boot: int = 0
    behind: bool = False
    way: bytes | None = None
    """The filter that its last message collected."""
    touched: float = 0.0
    """When it was last heard or probed."""
    need_since: float | None = None
    """Since when it has not moved although there is something for it."""
    unanswered: int = 0
    timed: int = 0
    """The last version that gave a measurement of the round trip."""
    repaired: int = 0
    """The highest version of which something was sent again: says nothing about round trips."""
    jobs: "OrderedDict[int, PeerSend]" = field(default_factory=OrderedDict)
    answer: "Answer | None" = None
    """Tell it what is retained."""
    token: int = 0
    """Of its last question."""
    queued: bool = False


def new_peer(name: str, stream: "VersionStream", newest: int, config: TransportConfig, now: float) -> Peer:
    """One who is to get the current version and all later ones."""
    round_trip = RoundTrip(config.initial_timeout, config.min_timeout, config.max_timeout)
    return Peer(name, stream, newest + 1, max(0, newest - 1), config.room_bytes, round_trip, touched=now)
