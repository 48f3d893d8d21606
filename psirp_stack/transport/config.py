"""Every bound and delay of the transport, in one place."""

from dataclasses import dataclass

MAX_CONTENT_BYTES = 16 * 1024 * 1024
VERSION_COST = 512
"""What a version costs in flow control beside its content and attributes, so that empty ones are not free."""


@dataclass(frozen=True, slots=True)
class TransportConfig:
    """The defaults suit links of 1 Mbit/s to 1 Gbit/s and round trips up to some hundred milliseconds."""

    window_bytes: int = 512 * 1024
    """Under way along one filter, at most; how much it is follows what the network takes (`congestion.py`)."""
    first_window_bytes: int = 16 * 1024
    """What it begins with, about ten segments (RFC 6928)."""
    max_pending_bytes: int = 32 * 1024 * 1024
    """Published and not confirmed by all: `publish` refuses beyond."""
    max_pending_versions: int = 4096
    push_bytes: int = 128 * 1024
    """Sent to one receiver for one request."""
    push_versions: int = 64
    on_request_above: int = MAX_CONTENT_BYTES + 1
    """Of larger versions, those who come late are sent the metadata alone. They ask for the segments, and the nearest
    node that has them answers; for networks whose nodes keep versions (`pull/`)."""
    left_behind_after: float = 20.0
    """Seconds without progress after which the others no longer wait for a receiver."""
    slowest_probe: float = 15.0
    """Seconds between two attempts to reach a receiver that was left behind."""

    ack_delay: float = 0.02
    ack_bytes: int = 64 * 1024
    ack_versions: int = 16
    min_ack_bytes: int = 8 * 1024
    """A publisher with a small window asks for acknowledgements after so many bytes instead."""
    reorder_delay: float = 0.01
    """How long a gap may last before it is taken for a loss."""
    reorder_segments: int = 16
    """So many segments behind a gap say the same, sooner."""
    tail_delay: float = 0.05
    """How long to wait for the rest of a version before the first measured round trip."""
    initial_timeout: float = 0.5
    min_timeout: float = 0.05
    max_timeout: float = 4.0
    reassembly_bytes: int = 64 * 1024 * 1024
    """Held by a node for versions that are not handed up yet, bookkeeping included."""
    reassembly_bytes_per_link: int = 48 * 1024 * 1024
    """The same, of what came by one link."""
    reassembly_bytes_per_source: int = 32 * 1024 * 1024
    """The same, of one publisher of one item."""
    reassembly_timeout: float = 30.0
    """A publisher that was not heard for so long is not asked any more, and what it left unfinished is let go."""
    early_bytes: int = 256 * 1024
    """Segments held for one item whose metadata has not arrived yet."""
    early_versions: int = 64
    max_ahead: int = 1024
    """Versions of one publisher known of beyond the next one to hand up."""
    max_sources: int = 8
    """Publishers of one item whose place is remembered."""
    recent_versions: int = 256
    """Version ids remembered for each item, to tell what another publisher has sent already."""
    room_bytes: int = 1024 * 1024
    """What a receiver offers for an item whose reader did not set a room."""
    max_events: int = 65_536

    def __post_init__(self) -> None:
        for name in self.__slots__:
            if getattr(self, name) <= 0:
                raise ValueError(f"{name} is {getattr(self, name)}: expected more than 0")
