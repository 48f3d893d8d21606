"""What all items that a node subscribes to share: its name, its bounds, counters and events, and what they hold."""

import random
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from psirp_stack.transport.accounts import Accounts
from psirp_stack.transport.config import TransportConfig
from psirp_stack.transport.events import ReceiverEvent, VersionArrived
from psirp_stack.transport.hooks import PacketVerifier, PublicationVerifier, WallClock
from psirp_stack.transport.messages import Ask, Have, Want
from psirp_stack.transport.source import PublisherSequence

if TYPE_CHECKING:
    from psirp_stack.transport.item_receiver import ItemReceiver

Since = bytes | tuple[int, int]
"""The last version a subscriber has: its id, or its epoch and number."""

Say = Callable[["ItemReceiver", PublisherSequence, Want | Have | Ask], None]


@dataclass(slots=True)
class ReceiverCounters:
    """What the subscriber's side of a node has done, and why it did not use something."""

    delivered: int = 0
    segments: int = 0
    duplicates: int = 0
    """Segments and announcements of what is there already."""
    equal_versions: int = 0
    """Versions that another publisher had sent before."""
    skipped: int = 0
    malformed: int = 0
    not_ours: int = 0
    outdated: int = 0
    """Of another epoch than the publisher is known to be in."""
    unproved: int = 0
    """Answers to questions that were not asked."""
    tampered: int = 0
    refused: int = 0
    """By the signature check."""
    too_fine: int = 0
    """Announced in segments so small that keeping book of them takes more than a publisher's share of memory."""
    no_room: int = 0
    reassembly_full: int = 0
    early: int = 0
    early_lost: int = 0
    too_far_ahead: int = 0
    timed_out: int = 0
    sources_forgotten: int = 0
    asked: int = 0
    wanted: int = 0
    acknowledged: int = 0
    no_way: int = 0
    events_lost: int = 0


@dataclass(slots=True)
class ReceiverContext:
    """What all items of a node share."""

    name: str
    config: TransportConfig
    wall_ms: WallClock
    verify: PublicationVerifier | None
    verify_packet: PacketVerifier | None
    verify_answer: PacketVerifier | None
    random: random.Random
    say: Say
    accounts: Accounts
    """Who holds how much of what is not handed up."""
    counters: ReceiverCounters = field(default_factory=ReceiverCounters)
    events: deque[ReceiverEvent] = field(default_factory=deque)
    urgent: dict[PublisherSequence, "ItemReceiver"] = field(default_factory=dict)
    """To whom an acknowledgement goes out at once."""

    def tell(self, event: ReceiverEvent) -> None:
        """Queue an event. Versions always find room: without room none is put together."""
        if len(self.events) >= self.config.max_events and not isinstance(event, VersionArrived):
            self.counters.events_lost += 1
        else:
            self.events.append(event)
