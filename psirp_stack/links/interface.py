"""What every link offers, and what everything above a link may rely on.

A link carries frames (the bytes after an Ethernet header) to one neighbour. Sending never raises for what the network
does: a frame that cannot go is counted and `send` says False. Received frames come in batches, because one readiness
event of a socket often brings many and the receiver then pays once for what it does per batch.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Protocol, runtime_checkable

DEFAULT_BATCH = 64
"""Frames taken from a carrier at one readiness event, so that one busy link does not starve the others."""
DEFAULT_QUEUE_LIMIT = 4096


class CarrierState(Enum):
    """What a carrier knows of itself, without any frame telling."""

    DOWN = "nothing gets through"
    DOUBTFUL = "somebody said that the other end is not there: perhaps not for long, perhaps not truly"
    UP = "frames may get through again"


CarrierListener = Callable[[CarrierState], object]
Receiver = Callable[[Sequence[bytes]], object]
"""Called with the frames that arrived, in order of arrival."""


@dataclass(frozen=True, slots=True)
class LinkAccount:
    """What a link has to say for itself."""

    sealed: bool = False
    proved: bool = False
    """The neighbour has proved that it knows the domain's secret."""
    drops: dict[str, int] = field(default_factory=dict)
    shortage: str | None = None
    """What the operator should know of the carrier's buffers."""


@dataclass(slots=True)
class LinkCounters:
    """What one end of a link has done. A frame offered to `send` is in `sent` or in one of the refusals."""

    sent: int = 0
    sent_bytes: int = 0
    received: int = 0
    received_bytes: int = 0
    oversized: int = 0
    """Refused: longer than the MTU."""
    queue_full: int = 0
    """Refused: no room in a queue or in the kernel's buffers (ENOBUFS, EAGAIN)."""
    send_errors: int = 0
    """Refused: interface down, peer gone or any other error of the carrier."""
    receive_errors: int = 0
    """Errors reported by the carrier while receiving, such as an interface that went down."""
    from_strangers: int = 0
    """Arrived from somebody who is not the configured neighbour, and were dropped."""
    after_close: int = 0
    """Refused or dropped because the link was closed."""


class Link(Protocol):
    """One end of a link."""

    @property
    def mtu(self) -> int:
        """Longest frame in bytes that can be sent."""

    @property
    def counters(self) -> LinkCounters: ...

    def on_receive(self, receiver: Receiver | None) -> None:
        """Say who gets the frames that arrive from now on."""

    def send(self, frame: bytes) -> bool:
        """Hand one frame to the carrier; False when it was refused, which a counter explains."""

    def close(self) -> None:
        """Let go of the carrier. Closing twice is fine; sending afterwards is counted and refused."""


@runtime_checkable
class BatchLink(Protocol):
    """A link that takes a batch at once and pays once for what it does per batch. All carriers here do."""

    def send_many(self, frames: Sequence[bytes]) -> int:
        """As `send` for each of the frames in order; says how many were accepted. The sequence is only lent.

        When there is no room for one, those behind it are refused as well: nothing overtakes.
        """


@runtime_checkable
class TellingLink(Protocol):
    """A carrier that says when it goes down or comes back. All carriers here do; what wraps one does not."""

    def on_carrier(self, listener: CarrierListener | None) -> None: ...


class ReadableLink(Link, Protocol):
    """A link on a file descriptor: whoever runs the event loop watches it and calls `drain`."""

    def fileno(self) -> int: ...

    def drain(self, limit: int = DEFAULT_BATCH) -> int:
        """Read about `limit` frames without blocking and hand them on as one batch; say how many were read.

        What the carrier delivers as one piece is read whole.
        """
