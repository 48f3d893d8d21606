"""One granted filter: the place up to which versions were sent along it, and the window that bounds what is in flight.

All who are reached by the filter get the same frames. Positions are bytes from the beginning of the item's versions,
laid end to end, so that «in flight» and «room» are differences of two numbers.
"""

from typing import TYPE_CHECKING

from psirp_stack.transport.events import VersionBegun, VersionSent
from psirp_stack.transport.peer import Peer
from psirp_stack.transport.stragglers import holding_up

if TYPE_CHECKING:
    from psirp_stack.transport.item_sender import ItemSender

SHRINK = 0.7
NEVER = float("-inf")


class VersionStream:
    """Sends every version of an item once, along one filter."""

    __slots__ = (
        "announce",
        "fid",
        "has_active",
        "item",
        "limit",
        "low",
        "members",
        "mtu",
        "next_number",
        "next_segment",
        "sent_at",
        "shrunk_at",
        "timed",
        "window",
    )

    def __init__(self, item: "ItemSender", fid: bytes, mtu: int) -> None:
        self.item = item
        self.fid = fid
        self.mtu = mtu
        self.members: dict[str, Peer] = {}
        self.next_number = 1
        self.next_segment = -1
        """-1 for the metadata."""
        self.window = item.context.config.window_bytes
        self.shrunk_at = NEVER
        self.sent_at = NEVER
        self.announce = False
        """Repeat the metadata of the version sent last: the filter is new to those who were sent it along another."""
        self.timed: tuple[int, float] | None = None
        self.low = 0
        """The lowest position that all who are waited for have reached."""
        self.limit = 0
        """No version is begun from this position on."""
        self.has_active = False

    @property
    def begun(self) -> int:
        """The highest version of which something was sent."""
        return self.next_number if self.next_segment >= 0 else self.next_number - 1

    @property
    def position(self) -> int:
        """Up to where everything was sent."""
        start = self.item.positions.start_of(self.next_number)
        return start + self.next_segment * self.item.positions.segment_size if self.next_segment > 0 else start

    def refresh(self) -> None:
        """Take in what the members have and have room for."""
        low = limit = None
        for peer in self.members.values():
            if not peer.behind:
                start = self.item.positions.start_of(peer.acked + 1)
                position = start + peer.progress
                low = position if low is None or position < low else low
                limit = start + peer.room if limit is None or start + peer.room < limit else limit
        self.has_active = low is not None
        if low is not None and limit is not None:
            if low > self.low:
                grown = self.window + (low - self.low) // 8
                self.window = min(grown, self.item.context.config.window_bytes)
            self.low, self.limit = low, limit

    def lost_something(self, now: float, round_trip: float) -> None:
        """Somebody misses what was sent: be slower, but at most once in a round trip."""
        if now - self.shrunk_at >= round_trip:
            self.shrunk_at = now
            self.window = max(self.item.context.config.min_window_bytes, int(self.window * SHRINK))

    def is_blocked_by(self, peer: Peer) -> bool:
        """Whether a version waits that may not be begun because this member has no room."""
        item = self.item
        if self.next_segment >= 0 or self.next_number > item.positions.newest:
            return False
        return item.positions.start_of(self.next_number) >= item.positions.start_of(peer.acked + 1) + peer.room

    def skip_if_nobody_waits(self) -> None:
        """With everybody left behind nothing is sent along the filter: they catch up, each at its own pace."""
        if not self.has_active:
            self.next_number, self.next_segment = self.item.positions.newest + 1, -1

    def _is_held_up(self, place: int, begins: int | None, now: float) -> bool:
        """Whether somebody who is waited for has no room for a version that `begins` there, or confirmed too little."""
        while (begins is not None and begins >= self.limit) or place - self.low >= self.window:
            slow = holding_up(self.members.values(), self.item.positions, place, self.window, now)
            if not slow:
                return True
            for peer in slow:
                self.item.leave_behind(peer)
        return False

    def next_frame(self, now: float) -> bytes | None:
        item = self.item
        if self.announce:
            self.announce = False
            out = item.positions.outgoing(self.begun)
            if out is not None:
                return item.frames.announcement(out, self.fid, self.fid[-1], now)
        number = self.next_number
        if number > item.positions.newest:
            return None
        if not self.has_active:
            self.skip_if_nobody_waits()
            return None
        out = item.positions.outgoing(number)
        if out is None:
            # Left the retained window while nobody could be sent it.
            self.next_number, self.next_segment = max(item.positions.oldest, number + 1), -1
            return None
        segment = self.next_segment
        if segment < 0:
            if self._is_held_up(out.start, out.start, now):
                return None
            frame = item.frames.announcement(out, self.fid, self.fid[-1], now)
            segment = 0
            if item.context.tell_sending:
                item.context.tell(VersionBegun(item.item, number))
        else:
            at = segment * out.segment_size
            if self._is_held_up(out.start + at, None, now):
                return None
            frame = item.frames.segment(out, segment, self.fid, now)
            segment += 1
        if segment >= out.segments:
            self.next_number, self.next_segment = number + 1, -1
            if item.context.tell_sending:
                item.context.tell(VersionSent(item.item, number))
            if self.timed is None or self.timed[0] < number - 64 or self.low >= out.start:
                self.timed = (number, now)
        else:
            self.next_segment = segment
        self.sent_at = now
        return frame
