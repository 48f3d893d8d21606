"""Settings and bounds of link state, and the reasons for which it leaves a message without effect."""

from dataclasses import dataclass
from enum import StrEnum

from psirp_stack.control import messages


@dataclass(frozen=True, slots=True)
class LinkStateConfig:
    """Times in seconds, and bounds."""

    hello_interval: float = 0.3
    dead_after: int = 4
    """Silent intervals after which a neighbour is down."""
    refresh_interval: float = 300.0
    max_age: float = 1000.0
    originate_interval: float = 0.05
    """Least time between two link states of our own: the first change is told at once, further ones together."""
    flood_interval: float = 0.01
    """Least time between two bursts of link states on a link."""
    settle: float = 0.01
    """The graph is worked out so long after news,"""
    max_settle: float = 0.25
    """and up to so long while news keep coming."""
    initial_timeout: float = 0.5
    min_timeout: float = 0.05
    max_timeout: float = 4.0
    max_nodes: int = messages.MAX_NAMES

    def __post_init__(self) -> None:
        if self.dead_after < 1 or not 0 < self.refresh_interval < self.max_age or self.hello_interval <= 0:
            raise ValueError("expected dead_after >= 1, 0 < hello_interval and 0 < refresh_interval < max_age")


class LinkStateDrop(StrEnum):
    """Why a message had no effect."""

    MALFORMED = "malformed"
    UNKNOWN_LINK = "unknown link"
    NOT_LINK_STATE = "not a link-state message"
    OWN_NAME = "hello from a node with our name"
    STRANGER = "hello over a link that the fixed graph does not have"
    SECOND_NEIGHBOUR = "hello from a second node on a link"
    OLD_LIFE = "hello from a former life"
    NO_NEIGHBOUR = "link state before any hello"
    TOO_OLD = "link state too old"
    NO_ROOM = "link state from one node more than there is room for"
    CONTRADICTION = "link state that contradicts another"
    ROLE_NOT_GRANTED = "role claimed without a grant"
    """The rest of such a link state counts."""
