"""One item at its publisher: versions, the filters they go along, the receivers, and what those asked for."""

from collections.abc import Iterable, Iterator
from concurrent.futures import Future
from itertools import chain

from identifiers.identifier import ItemId
from psirp_stack.control.messages import FilterGrant
from psirp_stack.transport.congestion import Congestion
from psirp_stack.transport.events import ReceiverCaughtUp, ReceiverLeftBehind, VersionAcknowledged
from psirp_stack.transport.frames import is_usable, leads_somewhere, segment_size_for
from psirp_stack.transport.hooks import PacketSigner
from psirp_stack.transport.item_frames import ItemFrames
from psirp_stack.transport.joining import start_for
from psirp_stack.transport.messages import MIN_SEGMENT_BYTES, Ask, Have, Range, Want
from psirp_stack.transport.peer import Answer, Peer, new_peer
from psirp_stack.transport.positions import Positions
from psirp_stack.transport.repairs import Repairs
from psirp_stack.transport.sender_context import SenderContext
from psirp_stack.transport.stragglers import far_behind
from psirp_stack.transport.stream import VersionStream
from psirp_stack.transport.versions import Version, Versions

LATE_AFTER = 1.0
"""Seconds after which those who come are late for a version: others have it, or had it."""


class ItemSender:
    """State of one item."""

    def __init__(self, context: SenderContext, item: ItemId, versions: Versions) -> None:
        self.context = context
        self.item = item
        self.key = bytes(item)
        self.versions = versions
        self.positions = Positions(versions, 2 * context.config.push_versions, context.wall_ms)
        self.frames = ItemFrames(context, self.key, self.positions)
        self.generation = -1
        self.streams: list[VersionStream] = []
        self.peers: dict[str, Peer] = {}
        self.ready = False
        self._peers_due: float | None = None
        self._repairs = Repairs(context, self.frames)
        self._alone: list[VersionStream] = []
        """Streams to receivers that are behind."""
        self._turn = 0
        self._repairs_turn = False
        self._acknowledged = self.positions.last

    # Versions.

    def set_packet_signer(self, signer: PacketSigner | None) -> None:
        self.frames.packet_signer = signer

    def add(self, version: Version, now: float) -> "Future[None] | None":
        return self.positions.add(version, now)

    def pending(self) -> tuple[int, int]:
        """Bytes and versions that somebody who is waited for has not confirmed."""
        waited_for = [stream for stream in self.streams if stream.has_active]
        waited_for += [stream for stream in self._alone if stream.alone is not None and not stream.alone.behind]
        positions = self.positions
        if not waited_for:
            return positions.end - positions.start_of(positions.newest + 1), positions.last - positions.newest
        low = min(stream.low for stream in waited_for)
        acked = min(peer.acked for peer in self.peers.values() if not peer.behind)
        return positions.end - low, positions.last - acked

    def trim(self, now: float) -> None:
        """Let go of old versions that nobody who is waited for still needs."""
        waited_for = [peer.acked for peer in self.peers.values() if not peer.behind]
        keep_from = min(waited_for) + 1 if waited_for else self.positions.last + 1
        self.positions.trim(self.context.wall_ms(now), keep_from)

    # Grants.

    def grant(self, filters: Iterable[FilterGrant], now: float) -> None:
        """Send along these filters from now on. Who stays keeps its place; who is new begins at the current version."""
        former, self.peers, self.streams, self._alone = self.peers, {}, [], []
        granted = [grant for grant in filters if grant.subscribers and leads_somewhere(grant.fid)]
        self._resize(min((grant.mtu for grant in granted), default=None), former)
        for grant in granted:
            stream = VersionStream(self, grant.fid, grant.mtu)
            staying, new = [], []
            for name in grant.subscribers:
                if name == self.context.name or name in self.peers:
                    continue
                peer = former.get(name)
                if peer is None:
                    peer = new_peer(name, stream, self.positions.newest, self.context.config, now)
                    new.append(peer)
                else:
                    staying.append(peer)
                self.peers[name] = stream.members[name] = peer
            if not stream.members:
                continue
            self._place(stream, staying, new, now)
            self.streams.append(stream)
        self._note_joining()
        self._repairs.keep_only(self.peers.values())

    def _place(self, stream: VersionStream, staying: list[Peer], new: list[Peer], now: float) -> None:
        """Where a new filter's stream begins."""
        if staying:
            stream.take_over(max(staying, key=lambda peer: (peer.stream.next_number, peer.stream.next_segment)).stream)
        elif self.is_late_for(self.positions.newest, now):
            stream.next_number = self.positions.newest + 1
            for peer in new:
                self._repairs.queue(peer, self.positions.newest, True, ())
        else:
            stream.next_number = max(self.positions.newest, 1)
        for peer in staying:
            peer.stream, peer.alone = stream, None
            peer.way = None  # it led along links that may be gone
            peer.touched = now
            peer.round_trip.backoff = 1
            peer.path.forget_way()
        stream.refresh(now)
        if any(self._is_waiting(peer) for peer in staying):
            stream.announce = stream.begun >= self.positions.oldest
        elif staying and new and stream.begun >= self.positions.newest > 0:
            late = self.is_late_for(self.positions.newest, now)
            sent = 0 if late else self._sent_segments(stream, self.positions.newest)
            for peer in new:
                self._repairs.queue(peer, self.positions.newest, True, range(sent))

    def is_late_for(self, number: int, now: float) -> bool:
        """Whether who comes now is told of a version, and asks for its segments: the nearest who has them answers."""
        out = self.positions.outgoing(number) if number > 0 else None
        return out is not None and self.frames.is_on_request(out) and self.positions.age_of(number, now) > LATE_AFTER

    def revoke(self) -> None:
        self.peers, self.streams, self._alone = {}, [], []
        self._repairs.keep_only(())
        self._note_joining()

    def _resize(self, mtu: int | None, former: dict[str, Peer]) -> None:
        """Cut to the longest frame that fits on all ways. What is cut otherwise already is announced anew."""
        if mtu is None:
            return
        size = max(segment_size_for(mtu, self.frames.packet_signer is not None), MIN_SEGMENT_BYTES)
        if size != self.positions.segment_size:
            for stream in {id(peer.stream): peer.stream for peer in former.values()}.values():
                if stream.next_segment > 0:
                    stream.next_segment = stream.next_segment * self.positions.segment_size // size
            self.positions.cut_anew(size)
            for peer in former.values():
                peer.jobs.clear()

    def _note_joining(self) -> None:
        self.frames.joining = min((peer.joined for peer in self.peers.values() if not peer.confirmed), default=0)

    # Sending.

    def next_frame(self, now: float) -> bytes | None:
        self._repairs_turn = not self._repairs_turn
        if self._repairs_turn and self._repairs:
            return self._repairs.next_frame(now) or self._fresh(now)
        return self._fresh(now) or self._repairs.next_frame(now)

    def _fresh(self, now: float) -> bytes | None:
        streams = self.streams + self._alone if self._alone else self.streams
        for _ in range(len(streams)):
            self._turn = (self._turn + 1) % len(streams)
            frame = streams[self._turn].next_frame(now)
            if frame is not None:
                self.context.counters.fresh_frames += 1
                return frame
        return None

    def way_to(self, peer: Peer, size: int) -> bytes:
        """A filter to one receiver."""
        return self._repairs.way_to(peer, size)

    def _sent_to(self, peer: Peer, number: int) -> int:
        """How many segments of a version went to a receiver; the others will come by themselves."""
        if peer.alone is not None and number <= peer.alone.last:
            return self._sent_segments(peer.alone, number)
        return self._sent_segments(peer.stream, number)

    def _sent_segments(self, stream: VersionStream, number: int) -> int:
        """How many segments of a version went along a filter; the others will come by themselves."""
        if number < stream.next_number:
            out = self.positions.outgoing(number)
            return 0 if out is None else out.segments
        return max(stream.next_segment, 0) if number == stream.next_number else 0

    # What receivers say.

    def receive(self, message: Want | Have | Ask, way: bytes, now: float) -> None:
        counters = self.context.counters
        peer = self.peers.get(message.subscriber)
        if peer is None:
            counters.strangers += 1
            return
        if isinstance(message, Ask) and message.token:
            peer.token = message.token
        if message.epoch != self.versions.epoch and not (isinstance(message, Ask) and message.join):
            counters.outdated += 1
            self._repairs.tell_retained(peer, Answer())
            return
        if is_usable(way):
            peer.way = way
        peer.unanswered = 0
        peer.heard = peer.touched = now
        if not isinstance(message, Ask):
            peer.beyond = message.arrivals.beyond
            peer.stream.reported(peer, message.arrivals, now)
        if isinstance(message, Have):
            self._on_have(peer, message, now)
            return
        if message.have > self.positions.last:
            counters.outdated += 1
            return
        joining = isinstance(message, Ask) and message.join
        if not joining and (message.have >= peer.acked or not peer.confirmed or message.boot != peer.boot):
            self._moved(peer, message.have, message.progress, message.room, message.boot, now)
        if isinstance(message, Want):
            self._on_want(peer, message, now)
        else:
            self._on_ask(peer, message, now)

    def _on_have(self, peer: Peer, have: Have, now: float) -> None:
        if have.number > self.positions.last:
            self.context.counters.outdated += 1
            return
        if peer.confirmed and peer.boot == have.boot and have.number < peer.acked:
            return  # overtaken by a later one
        self._moved(peer, have.number, have.progress, have.room, have.boot, now)

    def _moved(self, peer: Peer, number: int, progress: int, room: int, boot: int, now: float) -> None:
        """Take in what a receiver has."""
        if not peer.confirmed or peer.boot != boot:
            peer.confirmed, peer.boot = True, boot
            peer.need_since = None
            self._note_joining()
        limit = self.positions.start_of(peer.acked + 1) + peer.room
        if (number, progress) > (peer.acked, peer.progress) or self.positions.start_of(number + 1) + room > limit:
            peer.need_since = None
            peer.round_trip.backoff = 1
        peer.acked, peer.room = number, room
        peer.progress = progress if number < self.positions.last else 0
        for done in [job for job in peer.jobs if job <= number]:
            del peer.jobs[done]
        stream = peer.stream
        lag = stream.position - self.positions.start_of(number + 1) - peer.progress
        alone = peer.alone
        if not peer.is_abreast and lag <= stream.bound and (alone is None or alone.is_done):
            self._rejoin(peer)
            peer.need_since = None
            self.context.tell(ReceiverCaughtUp(self.item, peer.name))
        if peer.alone is not None:
            peer.alone.refresh(now)
        self._settle(stream, now)
        if peer.is_abreast or number >= stream.begun:
            return
        if peer.alone is None:
            self._catch_up(peer, now)
        elif peer.alone.is_done and number >= peer.alone.last:
            # Meanwhile the others were sent more, of which too little came here.
            peer.alone.follow_up(peer)

    def _catch_up(self, peer: Peer, now: float) -> None:
        """A receiver lacks much that was sent. It is sent that alone, if there are others who need not wait for it."""
        stream = peer.stream
        if any(other.confirmed and other.is_abreast and other is not peer for other in stream.members.values()):
            peer.alone = VersionStream(self, stream.fid, stream.mtu, peer)
            peer.alone.follow_up(peer)
            peer.alone.refresh(now)
            self._alone.append(peer.alone)
        else:
            peer.behind = False
            stream.begin_after(peer.acked)
        self._settle(stream, now)

    def _rejoin(self, peer: Peer) -> None:
        """It has what the others have, or nearly so."""
        if peer.alone is not None:
            self._alone.remove(peer.alone)
        peer.behind, peer.alone = False, None

    def _promote(self, stream: VersionStream, now: float) -> None:
        """The others are gone: the stream goes on where one is who was sent to alone."""
        waiting = [peer for peer in stream.members.values() if peer.alone is not None and not peer.behind]
        if waiting:
            peer = min(waiting, key=lambda peer: peer.acked)
            self._rejoin(peer)
            stream.begin_after(peer.acked)
            stream.refresh(now)

    def _settle(self, stream: VersionStream, now: float) -> None:
        """After a member moved: the window, and what everybody has."""
        stream.refresh(now)
        if not stream.has_active and self._alone:
            self._promote(stream, now)
        waited_for = [peer.acked for peer in self.peers.values() if not peer.behind]
        if waited_for and (acked := min(waited_for)) > self._acknowledged:
            self._acknowledged = acked
            self.context.tell(VersionAcknowledged(self.item, self.versions.epoch, acked))

    def _on_want(self, peer: Peer, want: Want, now: float) -> None:
        stream = peer.stream
        if want.number < self.versions.oldest:
            self._tell_gone(peer)
            return
        out = self.positions.outgoing(want.number) if want.number <= stream.begun else None
        if out is None:
            self.context.counters.outdated += 1
            return
        if want.segment_size != out.segment_size:
            self._repairs.queue(peer, want.number, True, (), want.copies)
            return
        sent = self._sent_to(peer, want.number)
        most = self.context.config.push_bytes // out.segment_size + 1
        if any(first < sent for first, _ in want.ranges):
            self._repairs.queue(peer, want.number, False, _first(most, want.ranges, sent), want.copies)

    def _on_ask(self, peer: Peer, ask: Ask, now: float) -> None:
        if ask.join:
            self._on_join(peer, ask, now)
        elif not ask.ranges:
            self._repairs.tell_retained(peer, Answer())
        stream = peer.stream
        room = min(ask.room, self.context.config.push_bytes)
        left = self.context.config.push_versions
        oldest = self.versions.oldest
        for first, last in ask.ranges:
            if first < oldest:
                self._tell_gone(peer)
            for number in range(max(first, oldest, 1), min(last, stream.begun) + 1):
                if left <= 0 or room <= 0:
                    return
                if peer.alone is not None and number > peer.alone.begun:
                    continue  # it is going to come
                left -= 1
                room -= self._push(peer, number, room, ask.copies)

    def _push(self, peer: Peer, number: int, room: int, copies: int) -> int:
        """Send a version's metadata and as many of its segments as there is room for; say how much that is."""
        out = self.positions.outgoing(number)
        if out is None:
            return 0
        segments = min(self._sent_to(peer, number), room // out.segment_size + 1)
        self._repairs.queue(peer, number, True, range(segments), copies)
        return out.version.cost

    def _on_join(self, peer: Peer, ask: Ask, now: float) -> None:
        """Say where a receiver begins, and let it begin there."""
        if peer.boot != ask.boot and peer.confirmed:
            peer.joined = self.positions.newest + 1  # it began anew
        answer = start_for(ask, peer.joined, self.positions, now)
        start = answer.start
        self.context.counters.gone += not answer.known
        self._repairs.tell_retained(peer, Answer(start, answer.known, answer.follows))
        self._moved(peer, start - 1, 0, ask.room, ask.boot, now)
        stream = peer.stream
        lag = stream.position - self.positions.start_of(start)
        if lag > stream.bound and start < stream.begun and peer.alone is None:
            self._catch_up(peer, now)
            return
        if peer.alone is not None:
            return
        room = min(ask.room, self.context.config.push_bytes)
        last = min(peer.stream.begun, start + self.context.config.push_versions - 1)
        for number in range(start, last + 1):
            if room > 0 and self.is_late_for(number, now):
                self._repairs.queue(peer, number, True, (), ask.copies)
            elif room > 0:
                room -= self._push(peer, number, room, ask.copies)

    def _tell_gone(self, peer: Peer) -> None:
        """What it asks for is not retained any more."""
        self.context.counters.gone += 1
        self._repairs.tell_retained(peer, Answer())

    # Time.

    def _is_waiting(self, peer: Peer) -> bool:
        """Whether there is something that the receiver should have confirmed, or should make room for."""
        stream = peer.stream
        return peer.acked < stream.next_number - 1 or stream.next_segment >= 0 or stream.is_blocked_by(peer)

    def handle_timer(self, now: float) -> None:
        """Leave behind who does not move, probe who is silent."""
        if self._peers_due is None or now < self._peers_due:
            return  # it is time for what is paced
        config = self.context.config
        for peer in self.peers.values():
            if not self._is_waiting(peer):
                peer.need_since = None
                continue
            if peer.need_since is None:
                peer.need_since = now
            elif not peer.behind and now >= peer.need_since + config.left_behind_after:
                self.leave_behind(peer, now)
            if now >= self._probe_due(peer):
                peer.touched = now
                peer.unanswered += 1
                peer.round_trip.timed_out()
                if peer is peer.stream.ruling or peer.alone is not None:
                    (peer.alone or peer.stream).congestion.congested(Congestion.LOST, now)
                self._probe(peer)

    def leave_behind(self, peer: Peer, now: float) -> None:
        """Others no longer wait for it."""
        peer.behind = True
        self.context.counters.left_behind += 1
        self.context.tell(ReceiverLeftBehind(self.item, peer.name, peer.acked))
        self._settle(peer.stream, now)
        peer.stream.skip_if_nobody_waits()

    def make_room(self, now: float) -> None:
        """Too much waits: let it not be for the sake of a few."""
        for peer in far_behind(self.peers.values(), self.positions, self.context.config.max_pending_bytes):
            self.leave_behind(peer, now)

    def _probe(self, peer: Peer) -> None:
        """Repeat the metadata of the last version: the answer says what is missing."""
        self.context.counters.probes += 1
        number = peer.stream.begun
        if number < self.versions.oldest:
            self._tell_gone(peer)
        elif number not in peer.jobs:
            self._repairs.queue(peer, number, True, ())

    def _probe_due(self, peer: Peer) -> float:
        if peer.behind:
            wait = peer.round_trip.initial * (1 << min(peer.unanswered, 16))
            return peer.touched + min(wait, self.context.config.slowest_probe)
        return max(peer.touched, peer.stream.sent_at) + peer.round_trip.timeout + self.context.config.ack_delay

    def arm(self, now: float) -> float | None:
        """When `handle_timer` is needed next."""
        due: float | None = None
        for peer in self.peers.values():
            if not self._is_waiting(peer):
                continue
            if peer.need_since is None:
                peer.need_since = now
            when = max(self._probe_due(peer), now)
            if not peer.behind:
                when = min(when, peer.need_since + self.context.config.left_behind_after)
            due = when if due is None or when < due else due
        self._peers_due = due
        paced = [stream.congestion.next_at for stream in chain(self.streams, self._alone) if stream.paced]
        if self._repairs.paced_until is not None:
            paced.append(self._repairs.paced_until)
        return min((due, *paced) if due is not None else paced, default=None)


def _first(most: int, ranges: Iterable[Range], end: int) -> Iterator[int]:
    """The first `most` numbers below `end` in the ranges."""
    numbers = chain.from_iterable(range(first, min(last + 1, end)) for first, last in ranges)
    return iter([number for _, number in zip(range(most), numbers, strict=False)])
