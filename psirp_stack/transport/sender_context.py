"""What all items that a node publishes share: its name, its bounds, its counters and the events it tells."""

import random
from collections import deque
from dataclasses import dataclass, field

from psirp_stack.forwarding_model import Tags
from psirp_stack.transport.config import TransportConfig
from psirp_stack.transport.events import SenderEvent
from psirp_stack.transport.hooks import PacketSigner, RouteTo, WallClock


@dataclass(slots=True)
class SenderCounters:
    """What the publisher's side of a node has done, and why it refused."""

    published: int = 0
    equal_content: int = 0
    refused_full: int = 0
    announcements: int = 0
    fresh_frames: int = 0
    """Sent along a granted filter for the first time."""
    repaired_announcements: int = 0
    repaired_segments: int = 0
    probes: int = 0
    malformed: int = 0
    not_ours: int = 0
    """For another publisher, or about an item that this node does not publish."""
    strangers: int = 0
    """From somebody who is not among the granted subscribers."""
    outdated: int = 0
    """About another epoch, or about versions that were never sent."""
    gone: int = 0
    left_behind: int = 0
    events_lost: int = 0


@dataclass(slots=True)
class SenderContext:
    """What all items of a node share."""

    name: str
    config: TransportConfig
    internal: Tags
    route_to: RouteTo
    wall_ms: WallClock
    random: random.Random
    sign_answer: PacketSigner | None = None
    """Signs what receivers are told of what is retained."""
    tell_sending: bool = False
    """Whether events say when versions leave along filters."""
    counters: SenderCounters = field(default_factory=SenderCounters)
    events: deque[SenderEvent] = field(default_factory=deque)

    def tell(self, event: SenderEvent) -> None:
        if len(self.events) >= self.config.max_events:
            self.events.popleft()
            self.counters.events_lost += 1
        self.events.append(event)
