"""A receiver as the publisher sees it: what it has, how much more it takes, how to reach it, what it asked for."""

from collections import OrderedDict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from psirp_stack.control.rtt import RoundTrip
from psirp_stack.transport.config import TransportConfig
from psirp_stack.transport.congestion import PathMeasure

if TYPE_CHECKING:
    from psirp_stack.transport.stream import VersionStream


PATIENCE = 3.0
"""Time-outs without a word after which others do not wait any more."""


@dataclass(slots=True)
class PeerSend:
    """Something to send to one receiver alone: a version's metadata, some of its segments, or what is retained."""

    number: int
    metadata: int
    """How often the metadata is still to be sent."""
    segments: dict[int, int]
    """Those that are to be sent, and how often each."""


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
    beyond: int = 0
    """Bytes that are there, but not in their turn yet."""
    confirmed: bool = False
    """Whether it was heard at all."""
    boot: int = 0
    behind: bool = False
    way: bytes | None = None
    """The filter that its last message collected."""
    heard: float = 0.0
    touched: float = 0.0
    """When it was last heard or probed."""
    need_since: float | None = None
    """Since when it has not moved although there is something for it."""
    unanswered: int = 0
    path: PathMeasure = field(default_factory=PathMeasure)
    alone: "VersionStream | None" = None
    """While it lacks much that others have: it is sent to it alone, at a pace of its own."""
    jobs: "OrderedDict[int, PeerSend]" = field(default_factory=OrderedDict)
    answer: "Answer | None" = None
    """Tell it what is retained."""
    token: int = 0
    """Of its last question."""
    queued: bool = False

    def is_silent(self, now: float) -> bool:
        """Whether it says nothing although it has been asked to, for a time in which it should have."""
        return now - self.heard >= PATIENCE * self.round_trip.timeout / self.round_trip.backoff

    @property
    def is_abreast(self) -> bool:
        """Whether the filter's stream waits for it."""
        return not self.behind and self.alone is None


def new_peer(name: str, stream: "VersionStream", newest: int, config: TransportConfig, now: float) -> Peer:
    """One who is to get the current version and all later ones."""
    round_trip = RoundTrip(config.initial_timeout, config.min_timeout, config.max_timeout)
    return Peer(name, stream, newest + 1, max(0, newest - 1), config.room_bytes, round_trip, heard=now, touched=now)
