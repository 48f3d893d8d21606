"""One granted filter: the place up to which versions were sent along it, and the window that bounds what is in flight.

All who are reached by the filter get the same frames. Positions are bytes from the beginning of the item's versions,
laid end to end, so that «in flight» and «room» are differences of two numbers.
"""

from copy import copy
from typing import TYPE_CHECKING

from psirp_stack.transport.congestion import Congestion, CongestionWindow
from psirp_stack.transport.events import VersionBegun, VersionSent
from psirp_stack.transport.frames import DATA_OVERHEAD
from psirp_stack.transport.messages import ArrivalReport
from psirp_stack.transport.peer import Peer
from psirp_stack.transport.stragglers import holding_up

if TYPE_CHECKING:
    from psirp_stack.transport.item_sender import ItemSender

NEVER = float("-inf")
MAX_TIMED = 2048
"""Frames whose time of sending is remembered."""


class VersionStream:
    """Sends every version of an item once, along one filter."""

    __slots__ = (
        "_furthest",
        "_sent",
        "_until",
        "alone",
        "announce",
        "cleared",
        "congestion",
        "fid",
        "has_active",
        "item",
        "limit",
        "low",
        "members",
        "mtu",
        "next_number",
        "next_segment",
        "paced",
        "ruling",
        "sent_at",
    )

    def __init__(self, item: "ItemSender", fid: bytes, mtu: int, alone: Peer | None = None) -> None:
        """`alone`: to this receiver, which is behind the others of the filter."""
        self.item = item
        self.fid = fid
        self.mtu = mtu
        self.members: dict[str, Peer] = {}
        self.alone = alone
        self._until = 0
        self.next_number = 1
        self.next_segment = -1
        """-1 for the metadata."""
        config = item.context.config
        self.congestion = CongestionWindow(config.first_window_bytes, config.window_bytes, item.positions.segment_size)
        self.ruling: Peer | None = None
        """Whose way takes least: its reports rule the window."""
        self.paced = False
        """There is something to send, and it is not time yet."""
        self.sent_at = NEVER
        self.announce = False
        """Repeat the metadata of the version sent last: the filter is new to those who were sent it along another."""
        self._sent: dict[tuple[int, int], float] = {}
        """When frames were sent, by version and place, in this order."""
        self.low = 0
        """The lowest position that all who are waited for have reached."""
        self._furthest = 0
        self.cleared = 0
        """The position that the one who rules has reached: what is beyond is under way to it."""
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

    def follow_up(self, peer: Peer) -> None:
        """Send to this receiver what comes after what it has, up to what the others were sent."""
        self.members[peer.name] = peer
        self._until = peer.stream.begun
        self.begin_after(peer.acked)

    def begin_after(self, number: int) -> None:
        """Send again what comes after this version."""
        self.next_number, self.next_segment = max(number + 1, self.item.positions.oldest, 1), -1

    @property
    def last(self) -> int:
        """The last version that is sent along the filter by now."""
        newest = self.item.positions.newest
        return newest if self.alone is None else min(newest, self._until)

    @property
    def is_done(self) -> bool:
        return self.next_number > self.last

    @property
    def bound(self) -> float:
        """Bytes that may be sent and not confirmed."""
        config = self.item.context.config
        return self.congestion.bound(config.ack_delay, self.ack_bytes)

    @property
    def ack_bytes(self) -> int:
        """After how many bytes receivers should say how far they are: several times in a window."""
        config = self.item.context.config
        return min(max(int(self.congestion.window) // 4, config.min_ack_bytes), config.ack_bytes)

    def refresh(self, now: float) -> None:
        """Take in what the members have and have room for."""
        low = limit = None
        positions = self.item.positions
        for peer in self.members.values():
            if peer.is_abreast or peer is self.alone:
                start = positions.start_of(peer.acked + 1)
                position = start + peer.progress + peer.beyond
                low = position if low is None or position < low else low
                limit = start + peer.room if limit is None or start + peer.room < limit else limit
        self.has_active = low is not None
        if low is None or limit is None:
            return
        self.low, self.limit = low, limit
        ruling = self._who_rules()
        cleared = low if ruling is None else positions.reached(ruling.acked, ruling.progress) + ruling.beyond
        if cleared > self.cleared:
            self.congestion.confirmed(cleared - self.cleared, now, self.item.context.config.ack_delay)
        self.cleared = cleared

    def _who_rules(self) -> Peer | None:
        """The member that was last found to take least, if it is still waited for."""
        ruling = self.ruling
        if ruling is None or self.members.get(ruling.name) is not ruling:
            return None
        return ruling if ruling.is_abreast or ruling is self.alone else None

    def reported(self, peer: Peer, arrivals: ArrivalReport, now: float) -> None:
        """Take in what a member's report says of the way to it."""
        alone = peer.alone
        stream = alone if alone is not None and arrivals.latest[0] <= alone.last else self
        sent = stream.sent_at_place(arrivals.latest)
        if sent is not None:
            held = min(arrivals.held_us / 1e6, max(0.0, now - sent))
            peer.round_trip.answered(sent, now - held, 1)
            peer.path.measured(now - held - sent)
        found = peer.path.take(arrivals, peer.boot, peer.round_trip)
        if not peer.is_abreast:
            if peer.alone is not None:
                peer.alone.obey(peer, found, now)
            return
        ruling = self._who_rules()
        if ruling is None or peer.path.price(peer.round_trip) > ruling.path.price(ruling.round_trip):
            self._let_rule(peer)
        if peer is self.ruling:
            self.obey(peer, found, now)

    def _let_rule(self, peer: Peer) -> None:
        self.ruling = peer
        self.cleared = self.item.positions.reached(peer.acked, peer.progress) + peer.beyond

    def obey(self, peer: Peer, found: Congestion, now: float) -> None:
        """Send as the way to this member wants it."""
        if peer.round_trip.smoothed is not None:
            self.congestion.measured(peer.round_trip.smoothed, peer.path.queues(peer.round_trip))
        if found is not Congestion.NONE:
            self.congestion.congested(found, now)

    def sent_at_place(self, place: tuple[int, int]) -> float | None:
        """When a frame was sent, if that is known."""
        return self._sent.get(place)

    def sent_again(self, number: int, place: int) -> None:
        """What comes of this frame may be of either copy: it tells no round trip."""
        self._sent.pop((number, place), None)

    def take_over(self, other: "VersionStream") -> None:
        """Go on where another filter's stream is."""
        self.next_number, self.next_segment = other.next_number, other.next_segment
        self._furthest = other._furthest
        self.take_pace(other)

    def take_pace(self, other: "VersionStream") -> None:
        self.congestion = copy(other.congestion)

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
        config = self.item.context.config
        while (begins is not None and begins >= self.limit) or place - self.low >= config.window_bytes:
            slow = holding_up(self.members.values(), self.item.positions, place, config.window_bytes, now)
            if not slow:
                return True
            for peer in slow:
                self.item.leave_behind(peer, now)
        if place - self.cleared >= self.bound:
            self.congestion.was_limited(now)
            if not self._another_rules(place, now):
                return True
        self.paced = not self.congestion.may_send(now)
        if self.paced:
            self.congestion.was_limited(now)
        return self.paced

    def _is_first_time(self, number: int) -> bool:
        """Whether a version was not sent along the filter before."""
        return self.alone is None and number > self._furthest

    def _another_rules(self, place: int, now: float) -> bool:
        """When the one whose word is waited for says nothing, and others do: go by them."""
        ruling = self._who_rules()
        if ruling is None or not ruling.is_silent(now):
            return False
        heard = [peer for peer in self.members.values() if peer.is_abreast and not peer.is_silent(now)]
        if not heard:
            return False
        self._let_rule(max(heard, key=lambda peer: peer.round_trip.smoothed or 0.0))
        return place - self.cleared < self.bound

    def next_frame(self, now: float) -> bytes | None:
        item = self.item
        self.paced = False
        if self.announce:
            self.announce = False
            out = item.positions.outgoing(self.begun)
            if out is not None:
                self.sent_again(self.begun, 0)
                return item.frames.announcement(out, self.fid, self.fid[-1], now, ack_bytes=self.ack_bytes)
        number = self.next_number
        if number > self.last:
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
            alone = self.alone is not None
            fid = self.fid if self.alone is None else item.way_to(self.alone, 0)
            whole = item.frames.fits_beside(out)
            frame = item.frames.announcement(
                out, fid, fid[-1], now, alone=alone, ack_bytes=self.ack_bytes, with_body=whole
            )
            if whole or (alone and item.is_late_for(number, now)):
                segment = out.segments - 1  # here it is, or the nearest node that has the segments sends them
            if item.context.tell_sending and self._is_first_time(number):
                item.context.tell(VersionBegun(item.item, number))
        else:
            at = segment * out.segment_size
            if self._is_held_up(out.start + at, None, now):
                return None
            size = min(out.segment_size, len(out.body) - at)
            fid = self.fid if self.alone is None else item.way_to(self.alone, DATA_OVERHEAD + size)
            frame = item.frames.segment(out, segment, fid, now)
        segment += 1
        self._sent[number, segment] = now
        if len(self._sent) > MAX_TIMED:
            del self._sent[next(iter(self._sent))]
        if segment >= out.segments:
            self.next_number, self.next_segment = number + 1, -1
            if item.context.tell_sending and self._is_first_time(number):
                item.context.tell(VersionSent(item.item, number))
            if self.alone is None:
                self._furthest = max(self._furthest, number)
        else:
            self.next_segment = segment
        self.sent_at = now
        self.congestion.sent(len(frame), now)
        return frame
