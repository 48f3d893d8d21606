"""One item at its publisher: versions, the filters they go along, the receivers, and what those asked for."""

import hashlib
import random
from collections import deque
from collections.abc import Iterable, Iterator
from concurrent.futures import Future
from dataclasses import dataclass, field
from itertools import chain

from identifiers.identifier import ItemId
from psirp_stack.control.messages import FilterGrant
from psirp_stack.forwarding_model import TABLES, Tags
from psirp_stack.transport.config import TransportConfig
from psirp_stack.transport.events import ReceiverCaughtUp, ReceiverLeftBehind, SenderEvent, VersionAcknowledged
from psirp_stack.transport.frames import (
    DATA_OVERHEAD,
    control_frame,
    first_way,
    is_usable,
    segment_frame,
    segment_prefix,
    segment_size_for,
    signed_segment,
)
from psirp_stack.transport.hooks import PacketSigner, RouteTo, WallClock
from psirp_stack.transport.messages import (
    INLINE_ATTRIBUTES_BYTES,
    MIN_SEGMENT_BYTES,
    Announcement,
    Ask,
    Have,
    Range,
    Retained,
    Want,
    encode,
    segment_count,
)
from psirp_stack.transport.peer import Job, Peer, new_peer
from psirp_stack.transport.stream import Stream
from psirp_stack.transport.versions import Version, Versions
from psirp_stack.wire.codec import ZERO_ID, build
from psirp_stack.wire.numbers import HeaderType

DEFAULT_SEGMENT_BYTES = 1024


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
    counters: SenderCounters = field(default_factory=SenderCounters)
    events: deque[SenderEvent] = field(default_factory=deque)

    def tell(self, event: SenderEvent) -> None:
        if len(self.events) >= self.config.max_events:
            self.events.popleft()
            self.counters.events_lost += 1
        self.events.append(event)


class Outgoing:
    """A version, cut for the wire."""

    __slots__ = ("body", "segment_size", "segments", "start", "version", "version_id")

    def __init__(self, version: Version, start: int, segment_size: int) -> None:
        self.version = version
        self.version_id = version.version_id
        self.start = start
        inline = len(version.attributes) <= INLINE_ATTRIBUTES_BYTES
        self.body = version.content if inline else version.attributes + version.content
        self.segment_size = segment_size
        self.segments = segment_count(len(self.body), segment_size)


class ItemSender:
    """State of one item."""

    def __init__(self, context: SenderContext, item: ItemId, versions: Versions) -> None:
        self.context = context
        self.item = item
        self.key = bytes(item)
        self.versions = versions
        self.generation = -1
        self.streams: list[Stream] = []
        self.peers: dict[str, Peer] = {}
        self.segment_size = DEFAULT_SEGMENT_BYTES
        self.packet_signer: PacketSigner | None = None
        self.newest = 0
        self.ready = False
        self.due: float | None = None
        self._last = versions.next_number - 1
        self._starts: dict[int, int] = {}
        self._end = 0
        for number, cost in versions.costs():
            self._starts[number] = self._end
            self._end += cost
        self._outgoing: dict[int, Outgoing] = {}
        self._stored: dict[int, Future[None]] = {}
        self._busy: deque[Peer] = deque()
        self._turn = 0
        self._repairs_turn = False
        self._joining = 0
        """What unheard receivers need to know to begin: the lowest `joined` among them, 0 when all were heard."""
        self._acknowledged = self._last
        self.sync()

    # Versions.

    @property
    def oldest(self) -> int:
        return self.versions.oldest

    def start_of(self, number: int) -> int:
        """The position at which a version begins; those no longer retained count as beginning with the oldest."""
        if number > self._last:
            return self._end
        start = self._starts.get(number)
        return self._starts.get(self.versions.oldest, self._end) if start is None else start

    def add(self, version: Version) -> "Future[None] | None":
        stored = self.versions.add(version)
        if stored is not None:
            self._stored[version.number] = stored
        self._last = version.number
        self._starts[version.number] = self._end
        self._end += version.cost
        self.sync()
        return stored

    def stored(self, number: int) -> "Future[None] | None":
        """The promise that a version gets on disk; None when it is there."""
        return self._stored.get(number)

    def sync(self) -> None:
        """Take in which versions are stored for good, and that some could not be."""
        self.newest = self.versions.newest
        kept = self.versions.next_number - 1
        while self._last > kept:
            self._end = self._starts.pop(self._last)
            self._outgoing.pop(self._last, None)
            self._stored.pop(self._last, None)
            self._last -= 1
        if self._stored:
            for number in [number for number in self._stored if number <= self.newest]:
                del self._stored[number]

    def pending(self) -> tuple[int, int]:
        """Bytes and versions that somebody who is waited for has not confirmed."""
        waited_for = [stream for stream in self.streams if stream.has_active]
        if not waited_for:
            return self._end - self.start_of(self.newest + 1), self._last - self.newest
        low = min(stream.low for stream in waited_for)
        acked = min(peer.acked for peer in self.peers.values() if not peer.behind)
        return self._end - low, self._last - acked

    def trim(self, now: float) -> None:
        """Let go of old versions that nobody who is waited for still needs."""
        waited_for = [peer.acked for peer in self.peers.values() if not peer.behind]
        keep_from = min(waited_for) + 1 if waited_for else self._last + 1
        before = self.versions.oldest
        self.versions.trim(self.context.wall_ms(now), min(keep_from, self.newest))
        for number in range(before, self.versions.oldest):
            self._starts.pop(number, None)
            self._outgoing.pop(number, None)

    def outgoing(self, number: int) -> Outgoing | None:
        out = self._outgoing.get(number)
        if out is None:
            version = self.versions.get(number)
            if version is None:
                return None
            out = Outgoing(version, self.start_of(number), self.segment_size)
            if len(self._outgoing) >= 2 * self.context.config.push_versions:
                # Catching up goes through versions that are not in flight: those made first are done first.
                del self._outgoing[next(iter(self._outgoing))]
            self._outgoing[number] = out
        return out

    # Grants.

    def grant(self, filters: Iterable[FilterGrant], now: float) -> None:
        """Send along these filters from now on. Who stays keeps its place; who is new begins at the current version."""
        former, self.peers, self.streams = self.peers, {}, []
        granted = [grant for grant in filters if grant.subscribers and is_usable(grant.fid)]
        self._resize(min((grant.mtu for grant in granted), default=None), former)
        for grant in granted:
            stream = Stream(self, grant.fid, grant.mtu)
            staying, new = [], []
            for name in grant.subscribers:
                if name == self.context.name or name in self.peers:
                    continue
                peer = former.get(name)
                if peer is None:
                    peer = new_peer(name, stream, self.newest, self.context.config, now)
                    new.append(peer)
                else:
                    staying.append(peer)
                self.peers[name] = stream.members[name] = peer
            if not stream.members:
                continue
            self._place(stream, staying, new, now)
            self.streams.append(stream)
        self._note_joining()
        self._busy = deque(peer for peer in self.peers.values() if peer.queued)

    def _place(self, stream: Stream, staying: list[Peer], new: list[Peer], now: float) -> None:
        """Where a new filter's stream begins."""
        if staying:
            furthest = max(staying, key=lambda peer: (peer.stream.next_number, peer.stream.next_segment)).stream
            stream.next_number, stream.next_segment = furthest.next_number, furthest.next_segment
            stream.window = furthest.window
        else:
            stream.next_number = max(self.newest, 1)
        for peer in staying:
            peer.stream = stream
            peer.way = None  # it led along links that may be gone
            peer.touched = now
            peer.round_trip.backoff = 1
        stream.refresh()
        if any(self._is_waiting(peer) for peer in staying):
            stream.announce = stream.begun >= self.oldest
        elif staying and new and stream.begun >= self.newest > 0:
            for peer in new:
                self._queue(peer, self.newest, True, range(self._sent_segments(stream, self.newest)))

    def revoke(self) -> None:
        self.peers, self.streams = {}, []
        self._busy.clear()
        self._note_joining()

    def _resize(self, mtu: int | None, former: dict[str, Peer]) -> None:
        """Cut to the longest frame that fits on all ways. What is cut otherwise already is announced anew."""
        if mtu is None:
            return
        size = max(segment_size_for(mtu, self.packet_signer is not None), MIN_SEGMENT_BYTES)
        if size != self.segment_size:
            for stream in {id(peer.stream): peer.stream for peer in former.values()}.values():
                if stream.next_segment > 0:
                    stream.next_segment = stream.next_segment * self.segment_size // size
            self.segment_size = size
            self._outgoing.clear()
            for peer in former.values():
                peer.jobs.clear()

    def _note_joining(self) -> None:
        self._joining = min((peer.joined for peer in self.peers.values() if not peer.confirmed), default=0)

    # Sending.

    def next_frame(self, now: float) -> bytes | None:
        self._repairs_turn = not self._repairs_turn
        if self._repairs_turn and self._busy:
            return self._repair(now) or self._fresh(now)
        return self._fresh(now) or self._repair(now)

    def _fresh(self, now: float) -> bytes | None:
        streams = self.streams
        for _ in range(len(streams)):
            self._turn = (self._turn + 1) % len(streams)
            frame = streams[self._turn].next_frame(now)
            if frame is not None:
                self.context.counters.fresh_frames += 1
                return frame
        return None

    def _repair(self, now: float) -> bytes | None:
        """The next frame that one receiver asked for; receivers take turns."""
        busy = self._busy
        while busy:
            peer = busy[0]
            frame = self._frame_for(peer, now)
            if frame is not None:
                busy.rotate(-1)
                return frame
            peer.queued = False
            busy.popleft()
        return None

    def _frame_for(self, peer: Peer, now: float) -> bytes | None:
        if peer.retained is not None:
            start, known = peer.retained
            peer.retained = None
            return self._retained_frame(peer, start, known)
        while peer.jobs:
            number, job = next(iter(peer.jobs.items()))
            out = self.outgoing(number)
            if out is None:
                del peer.jobs[number]
                continue
            if job.metadata:
                job.metadata -= 1
                self.context.counters.repaired_announcements += 1
                fid = self._way_to(peer, 0)
                return self.announcement_frame(out, fid, (fid[-1] + peer.unanswered) % TABLES)
            segment = next(job.segments, None)
            if segment is None or segment >= out.segments:
                del peer.jobs[number]
                continue
            self.context.counters.repaired_segments += 1
            at = segment * out.segment_size
            payload = out.body[at : at + out.segment_size]
            prefix = segment_prefix(self._way_to(peer, DATA_OVERHEAD + len(payload)), self.key, out.version_id)
            if self.packet_signer is None:
                return segment_frame(prefix, segment, payload)
            return build(self.packet_signer(signed_segment(prefix, segment, payload), self.context.wall_ms(now)))
        return None

    def _way_to(self, peer: Peer, size: int) -> bytes:
        """A filter to one receiver. Unanswered attempts take turns with those there are."""
        ways = [peer.way] if peer.way is not None else []
        if not ways or peer.unanswered:
            route = self.context.route_to(peer.name)
            if route is not None and route[1] >= size and is_usable(route[0]):
                ways.append(route[0])
            ways.append(peer.stream.fid)
        return ways[peer.unanswered % len(ways)]

    def announcement_frame(self, out: Outgoing, fid: bytes, table: int) -> bytes:
        self.context.counters.announcements += 1
        version = out.version
        inline = len(version.attributes) <= INLINE_ATTRIBUTES_BYTES
        payload = encode(
            Announcement(
                self.context.name,
                version.epoch,
                version.number,
                version.published_ms,
                version.attributes if inline else hashlib.sha256(version.attributes).digest(),
                0 if inline else len(version.attributes),
                version.sha256,
                self.versions.oldest,
                out.segment_size,
            )
        )
        return control_frame(
            HeaderType.PUBLISH_METADATA,
            fid,
            self.key,
            version.version_id,
            self._joining,
            first_way(self.context.internal, table if table < TABLES else 0),
            payload,
            length=len(version.content),
            max_seqnum=max(out.segments - 1, 0),
            authentication=version.authentication,
        )

    def _retained_frame(self, peer: Peer, start: int | None, known: bool) -> bytes:
        versions = self.versions
        payload = encode(
            Retained(self.context.name, peer.name, versions.epoch, versions.oldest, self.newest, start, known)
        )
        fid = self._way_to(peer, 0)
        way = first_way(self.context.internal, (fid[-1] + peer.unanswered) % TABLES)
        return control_frame(HeaderType.PUBLISH_METADATA, fid, self.key, ZERO_ID, 0, way, payload)

    def _queue(self, peer: Peer, number: int, metadata: bool, segments: Iterable[int], copies: int = 1) -> None:
        if copies > 1:
            segments = [segment for segment in segments for _ in range(copies)]
        peer.jobs[number] = Job(number, copies if metadata else 0, iter(segments))
        self._mark_busy(peer)

    def _mark_busy(self, peer: Peer) -> None:
        if not peer.queued:
            peer.queued = True
            self._busy.append(peer)

    def _sent_segments(self, stream: Stream, number: int) -> int:
        """How many segments of a version went along a filter; the others will come by themselves."""
        if number < stream.next_number:
            out = self.outgoing(number)
            return 0 if out is None else out.segments
        return max(stream.next_segment, 0) if number == stream.next_number else 0

    # What receivers say.

    def receive(self, message: Want | Have | Ask, way: bytes, now: float) -> None:
        counters = self.context.counters
        peer = self.peers.get(message.subscriber)
        if peer is None:
            counters.strangers += 1
            return
        if message.epoch != self.versions.epoch and not (isinstance(message, Ask) and message.join):
            counters.outdated += 1
            self._tell_retained(peer, None, True)
            return
        if is_usable(way):
            peer.way = way
        peer.unanswered = 0
        peer.touched = now
        if isinstance(message, Have):
            self._on_have(peer, message, now)
            return
        if message.have > self._last:
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
        stream = peer.stream
        if have.number > self._last:
            self.context.counters.outdated += 1
            return
        if peer.confirmed and peer.boot == have.boot and have.number < peer.acked:
            return  # overtaken by a later one
        timed = stream.timed
        if timed is not None and peer.timed < timed[0] <= have.number:
            peer.timed = timed[0]
            if peer.repaired < timed[0]:
                peer.round_trip.answered(timed[1], now - min(have.held_us / 1e6, max(0.0, now - timed[1])), 1)
        self._moved(peer, have.number, have.progress, have.room, have.boot, now)

    def _moved(self, peer: Peer, number: int, progress: int, room: int, boot: int, now: float) -> None:
        """Take in what a receiver has."""
        if not peer.confirmed or peer.boot != boot:
            peer.confirmed, peer.boot = True, boot
            peer.need_since = None
            self._note_joining()
        limit = self.start_of(peer.acked + 1) + peer.room
        if (number, progress) > (peer.acked, peer.progress) or self.start_of(number + 1) + room > limit:
            peer.need_since = None
            peer.round_trip.backoff = 1
        peer.acked, peer.room = number, room
        peer.progress = progress if number < self._last else 0
        for done in [job for job in peer.jobs if job <= number]:
            del peer.jobs[done]
        stream = peer.stream
        lag = stream.position - self.start_of(number + 1) - peer.progress
        if peer.behind and lag <= stream.window:
            peer.behind = False
            peer.need_since = None
            self.context.tell(ReceiverCaughtUp(self.item, peer.name))
        elif not peer.behind and lag > 2 * self.context.config.window_bytes and number < stream.begun - 1:
            # It came back from far away. It gets what it asks for, and the others need not wait.
            peer.behind = True
        if peer.behind and room and not peer.jobs and number < stream.begun:
            self._probe(peer)
        self._settle(stream)

    def _settle(self, stream: Stream) -> None:
        """After a member moved: the window, and what everybody has."""
        stream.refresh()
        waited_for = [peer.acked for peer in self.peers.values() if not peer.behind]
        if waited_for and (acked := min(waited_for)) > self._acknowledged:
            self._acknowledged = acked
            self.context.tell(VersionAcknowledged(self.item, self.versions.epoch, acked))

    def _on_want(self, peer: Peer, want: Want, now: float) -> None:
        stream = peer.stream
        if want.number < self.versions.oldest:
            self._tell_retained(peer, None, True)
            return
        out = self.outgoing(want.number) if want.number <= stream.begun else None
        if out is None:
            self.context.counters.outdated += 1
            return
        peer.repaired = max(peer.repaired, stream.begun)
        if want.segment_size != out.segment_size:
            self._queue(peer, want.number, True, (), want.copies)
            return
        sent = self._sent_segments(stream, want.number)
        most = self.context.config.push_bytes // out.segment_size + 1
        if any(first < sent for first, _ in want.ranges):
            stream.lost_something(now, peer.round_trip.smoothed or self.context.config.initial_timeout)
            self._queue(peer, want.number, False, _first(most, want.ranges, sent), want.copies)

    def _on_ask(self, peer: Peer, ask: Ask, now: float) -> None:
        if ask.join:
            self._on_join(peer, ask, now)
        stream = peer.stream
        room = min(ask.room, self.context.config.push_bytes)
        left = self.context.config.push_versions
        peer.repaired = max(peer.repaired, stream.begun)
        if ask.ranges:
            stream.lost_something(now, peer.round_trip.smoothed or self.context.config.initial_timeout)
        oldest = self.versions.oldest
        for first, last in ask.ranges:
            if first < oldest:
                self._tell_retained(peer, None, True)
            for number in range(max(first, oldest, 1), min(last, stream.begun) + 1):
                if left <= 0 or room <= 0:
                    return
                left -= 1
                room -= self._push(peer, number, room, ask.copies)

    def _push(self, peer: Peer, number: int, room: int, copies: int) -> int:
        """Send a version's metadata and as many of its segments as there is room for; say how much that is."""
        out = self.outgoing(number)
        if out is None:
            return 0
        segments = min(self._sent_segments(peer.stream, number), room // out.segment_size + 1)
        self._queue(peer, number, True, range(segments), copies)
        return out.version.cost

    def _on_join(self, peer: Peer, ask: Ask, now: float) -> None:
        """Say where a receiver begins, and let it begin there."""
        versions = self.versions
        known = True
        if peer.boot != ask.boot and peer.confirmed:
            peer.joined = self.newest + 1  # it began anew
        if ask.since_number is not None or ask.since_id is not None:
            found = None
            if ask.since_number is not None and ask.since_number[0] == versions.epoch:
                found = ask.since_number[1]
            elif ask.since_id is not None:
                found = versions.number_of(ask.since_id)
            known = found is not None and versions.oldest - 1 <= found <= self.newest
            start = found + 1 if found is not None and known else versions.oldest
        else:
            start = peer.joined if ask.future_only else max(peer.joined - 1, 1)
            start = max(start, versions.oldest)
        self._tell_retained(peer, start, known)
        self._moved(peer, start - 1, 0, ask.room, ask.boot, now)
        room = min(ask.room, self.context.config.push_bytes)
        last = min(peer.stream.begun, start + self.context.config.push_versions - 1)
        for number in range(start, last + 1):
            if room > 0:
                room -= self._push(peer, number, room, ask.copies)

    def _tell_retained(self, peer: Peer, start: int | None, known: bool) -> None:
        if not known or start is None:
            self.context.counters.gone += 1
        if peer.retained is None or start is not None:
            peer.retained = (start, known)
        self._mark_busy(peer)

    # Time.

    def _is_waiting(self, peer: Peer) -> bool:
        """Whether there is something that the receiver should have confirmed, or should make room for."""
        stream = peer.stream
        return peer.acked < stream.next_number - 1 or stream.next_segment >= 0 or stream.is_blocked_by(peer)

    def handle_timer(self, now: float) -> None:
        """Leave behind who does not move, probe who is silent."""
        config = self.context.config
        for peer in self.peers.values():
            if not self._is_waiting(peer):
                peer.need_since = None
                continue
            if peer.need_since is None:
                peer.need_since = now
            elif not peer.behind and now >= peer.need_since + config.left_behind_after:
                peer.behind = True
                self.context.counters.left_behind += 1
                self.context.tell(ReceiverLeftBehind(self.item, peer.name, peer.acked))
                self._settle(peer.stream)
                peer.stream.skip_if_nobody_waits()
            if now >= self._probe_due(peer):
                peer.touched = now
                peer.unanswered += 1
                peer.round_trip.timed_out()
                peer.repaired = max(peer.repaired, peer.stream.begun)
                self._probe(peer)
        self.arm(now)

    def _probe(self, peer: Peer) -> None:
        """Repeat the metadata of the last version: the answer says what is missing."""
        self.context.counters.probes += 1
        number = peer.stream.begun
        if number < self.versions.oldest:
            self._tell_retained(peer, None, True)
        elif number not in peer.jobs:
            self._queue(peer, number, True, ())

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
        self.due = due
        return due


def _first(most: int, ranges: Iterable[Range], end: int) -> Iterator[int]:
    """The first `most` numbers below `end` in the ranges."""
    numbers = chain.from_iterable(range(first, min(last + 1, end)) for first, last in ranges)
    return iter([number for _, number in zip(range(most), numbers, strict=False)])
