"""One item at a subscriber's node: versions put together, checked, and handed up in order, each once."""

import hashlib
from collections import OrderedDict, deque
from collections.abc import Callable
from dataclasses import dataclass, field
from operator import attrgetter

from identifiers.identifier import ItemId
from psirp_stack.control.messages import OPEN_SCOPE, ScopePolicy
from psirp_stack.transport.config import MAX_CONTENT_BYTES, VERSION_COST, TransportConfig
from psirp_stack.transport.events import Dropped, ReceiverEvent, VersionArrived, VersionSkipped
from psirp_stack.transport.frames import ControlFrame, is_usable
from psirp_stack.transport.hooks import PacketVerifier, PublicationVerifier, WallClock
from psirp_stack.transport.messages import (
    MAX_COPIES,
    Announcement,
    Ask,
    Have,
    Retained,
    Want,
    segment_count,
    valid_segment_size,
)
from psirp_stack.transport.reassembly import Body, Early
from psirp_stack.transport.source import Slot, Source, ranges_of
from psirp_stack.transport.versions import content_ids
from psirp_stack.wire.codec import MetadataHeader

Since = bytes | tuple[int, int]
"""The last version a subscriber has: its id, or its epoch and number."""

WANTS_AT_ONCE = 8
ASKED_AT_ONCE = 64
MAX_GUESSES = 3
MAX_REFUSALS = 3
TRIES_PER_COPY = 3
JOIN_DELAY = 0.1
"""Seconds in which a publisher should have said something by itself."""
EARLY_SECONDS = 5.0

Say = Callable[["ItemReceiver", Source, Want | Have | Ask], None]


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
    """Of an earlier epoch of the publisher."""
    tampered: int = 0
    refused: int = 0
    """By the signature check."""
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
    say: Say
    counters: ReceiverCounters = field(default_factory=ReceiverCounters)
    events: deque[ReceiverEvent] = field(default_factory=deque)
    held: int = 0
    """Bytes of segments that are not handed up."""
    urgent: dict[Source, "ItemReceiver"] = field(default_factory=dict)
    """To whom an acknowledgement goes out at once."""

    def tell(self, event: ReceiverEvent) -> None:
        """Queue an event. Versions always find room: without room none is put together."""
        if len(self.events) >= self.config.max_events and not isinstance(event, VersionArrived):
            self.counters.events_lost += 1
        else:
            self.events.append(event)


class ItemReceiver:
    """State of one subscribed item."""

    def __init__(
        self, context: ReceiverContext, item: ItemId, life: int, since: Since | None, future_only: bool
    ) -> None:
        self.context = context
        self.item = item
        self.key = bytes(item)
        self.life = life
        self.policy: ScopePolicy = OPEN_SCOPE
        self.served_by: str | None = None
        self.sources: dict[str, Source] = {}
        self._since = since
        self._future_only = future_only
        self._bodies: dict[bytes, Body] = {}
        self._unopened: set[bytes] = set()
        self._early: OrderedDict[bytes, Early] = OrderedDict()
        self._early_held = 0
        self._recent: OrderedDict[bytes, tuple[str, int]] = OrderedDict()
        """Version ids that were handed up, and whose order they count for."""
        self._room_set: int | None = None
        self._unconsumed = 0
        self._offered = context.config.room_bytes
        self._began = False

    # Flow control.

    @property
    def room(self) -> int:
        """Bytes that the reader takes now."""
        if len(self.context.events) >= self.context.config.max_events:
            return 0
        if self._room_set is None:
            return self.context.config.room_bytes
        return max(0, self._room_set - self._unconsumed)

    def set_room(self, room: int, now: float) -> None:
        self._room_set = room
        self._room_changed(now)

    def consumed(self, cost: int, now: float) -> None:
        self._unconsumed = max(0, self._unconsumed - cost)
        self._room_changed(now)

    def _room_changed(self, now: float) -> None:
        """Tell publishers when there is much more room than they know of, and go on with what waited for it."""
        room = self.room
        whole = self._room_set if self._room_set is not None else self.context.config.room_bytes
        if room - self._offered >= whole // 2 or (self._offered < VERSION_COST <= room):
            for source in self.sources.values():
                if source.expected is not None and not source.dormant:
                    self.context.urgent[source] = self
                    source.hurry(now)

    # What arrives.

    def segment(self, version_id: bytes, number: int, payload: bytes, now: float) -> None:
        context = self.context
        context.counters.segments += 1
        body = self._bodies.get(version_id)
        if body is None:
            self._segment_without_body(version_id, number, payload, now)
            return
        if context.held + len(payload) > context.config.reassembly_bytes:
            context.counters.reassembly_full += 1
            return
        if not body.add(number, payload):
            context.counters.duplicates += 1
            return
        context.held += len(payload)
        body.touched = now
        source = body.source
        source.heard = now
        source.unanswered = 0
        if body.timed is not None and (measured := body.round_trip(number, now)) is not None:
            source.round_trip.answered(now - measured, now, 1)
        if not body.missing:
            self._completed(body, now)
        elif number > body.next_missing and body.gap_since is None:
            body.gap_since = now
        elif body.progress % context.config.ack_bytes < len(payload):
            self._progressed(body)

    def _progressed(self, body: Body) -> None:
        """Every so often, tell how far the next version is: a long one is more than the window."""
        for source in self.sources.values():
            slot = source.slots.get(source.expected) if source.expected is not None else None
            if slot is not None and slot.body is body:
                self.context.urgent[source] = self

    def _segment_without_body(self, version_id: bytes, number: int, payload: bytes, now: float) -> None:
        """A segment whose metadata is late or lost waits for it a while."""
        counters, config = self.context.counters, self.context.config
        if version_id in self._unopened:
            counters.no_room += 1
            return
        if version_id in self._recent:
            counters.duplicates += 1
            return
        early = self._early.get(version_id)
        if early is None:
            while len(self._early) >= config.early_versions:
                self._drop_early(next(iter(self._early)))
                counters.early_lost += 1
            early = self._early[version_id] = Early(now)
            source = self._latest_source()
            if source is not None and source.expected is not None and source.guess_due is None:
                source.guess_due, source.guesses = now + config.reorder_delay, 0
        if (
            self._early_held + len(payload) > config.early_bytes
            or self.context.held + len(payload) > config.reassembly_bytes
        ):
            counters.early_lost += 1
            return
        counters.early += 1
        held = early.add(number, payload)
        self._early_held += held
        self.context.held += held

    def _latest_source(self) -> Source | None:
        return max(self.sources.values(), key=attrgetter("heard"), default=None)

    def _drop_early(self, version_id: bytes) -> Early:
        early = self._early.pop(version_id)
        self._early_held -= early.held
        self.context.held -= early.held
        return early

    def announcement(
        self, control: ControlFrame, way: bytes, announced: Announcement, now: float, hops: int | None = None
    ) -> None:
        """A version was announced. Until the receiver knows where to begin, `seqnum` tells it."""
        counters = self.context.counters
        length, segment_size, joining = control.length, announced.segment_size, control.seqnum
        size = length + announced.attributes_in_body
        if (
            length > MAX_CONTENT_BYTES
            or not valid_segment_size(segment_size, size)
            or control.max_seqnum != max(segment_count(size, segment_size) - 1, 0)
        ):
            counters.malformed += 1
            return
        source = self._heard(announced.publisher, announced.epoch, way, now)
        if source is None:
            return
        if source.expected is None:
            if joining and (self._since is None or self._began):
                self._begin(source, joining if self._future_only else max(joining - 1, 1), now)
            elif source.join_due is None:
                source.join_due = now
        self._let_go_before(source, announced.oldest, now)
        if source.expected is not None and announced.number < source.expected:
            counters.duplicates += 1
            self._acknowledge_soon(source, now)
            return
        slot = source.slot_for(announced.number, now)
        if slot is None:
            counters.too_far_ahead += 1
            return
        source.guess_due = None
        if slot.announcement is None:
            if slot.tries:
                source.round_trip.answered(slot.asked, now, slot.tries)
            slot.announcement, slot.version_id, slot.length = announced, control.vrid, length
            slot.authentication = control.authentication
            slot.hops = hops
            slot.tries = 0
            slot.due = now
            self._open(source, slot, now)
            return
        counters.duplicates += 1
        body = slot.body
        if body is not None and body.segment_size != announced.segment_size and slot.version_id == control.vrid:
            self.context.held -= body.resize(announced.segment_size)
            slot.announcement = announced
        source.hurry(now)
        self._acknowledge_soon(source, now)

    def retained(self, message: Retained, way: bytes, now: float) -> None:
        source = self._heard(message.publisher, message.epoch, way, now)
        if source is None:
            return
        if source.expected is None:
            if message.start is not None and source.join_tries:
                if not message.known:
                    reason = "the version to go on from is not retained; beginning with the oldest that is"
                    self._skip(source, 0, message.start - 1, reason)
                self._begin(source, message.start, now)
            elif source.join_due is None:
                source.join_due = now
        source.newest = max(source.newest, message.newest)
        source.fill(now)
        self._let_go_before(source, message.oldest, now)

    def _begin(self, source: Source, start: int, now: float) -> None:
        """The publisher said where we begin: what is before that is not for us, what is there already is handed up."""
        for number in [number for number in source.slots if number < start]:
            self._close(source.slots.pop(number))
        source.begin(start, now)
        self._hand_up(source, now)
        self._acknowledge_soon(source, now)

    def _heard(self, publisher: str, epoch: int, way: bytes, now: float) -> Source | None:
        """The publisher's state; None for one who speaks from an earlier life."""
        source = self.sources.get(publisher)
        if source is None:
            source = self._new_source(publisher, now)
        if epoch < source.epoch:
            self.context.counters.outdated += 1
            return None
        if epoch > source.epoch:
            if source.epoch and source.expected is not None and source.expected <= source.newest:
                self._skip(source, source.expected, source.newest, "the publisher began a new life without them")
            self._let_go(source)
            fresh = Source(publisher, source.config, now)
            fresh.epoch, fresh.way, fresh.round_trip = epoch, source.way, source.round_trip
            fresh.join_tries = source.join_tries
            self.context.urgent.pop(source, None)
            source = self.sources[publisher] = fresh
        source.was_heard(now)
        if is_usable(way):
            source.way = way
        return source

    def _new_source(self, publisher: str, now: float) -> Source:
        if len(self.sources) >= self.context.config.max_sources:
            others = [source for source in self.sources.values() if source.name != self.served_by]
            oldest = min(others, key=attrgetter("heard"))
            self._let_go(oldest)
            self.context.urgent.pop(oldest, None)
            del self.sources[oldest.name]
            self.context.counters.sources_forgotten += 1
        source = self.sources[publisher] = Source(publisher, self.context.config, now)
        return source

    def _let_go(self, source: Source) -> None:
        """Forget what a publisher left unfinished."""
        for slot in source.slots.values():
            self._close(slot)
        source.slots.clear()

    def _close(self, slot: Slot) -> None:
        """Let go of a version's content, unless another version has the same."""
        body, slot.body = slot.body, None
        if slot.complete:
            self.context.held -= len(slot.content)
        self._unopened.discard(slot.version_id)
        if body is not None and not any(
            other.body is body for source in self.sources.values() for other in source.slots.values()
        ):
            self.context.held -= body.clear()
            self._bodies.pop(body.version_id, None)

    def _let_go_before(self, source: Source, oldest: int, now: float) -> None:
        """Versions before this one cannot be had any more; what is there of them is handed up all the same."""
        if source.expected is None or source.expected >= oldest:
            return
        ready = sorted(number for number, slot in source.slots.items() if number < oldest and slot.complete)
        for number in [*ready, oldest]:
            if source.expected < number:
                self._skip(source, source.expected, number - 1, "no longer retained by the publisher")
                for gone in [gone for gone in source.slots if gone < number]:
                    self._close(source.slots.pop(gone))
                source.expected = number
            self._hand_up(source, now)
        source.newest = max(source.newest, source.expected - 1)
        source.fill(now)
        self._acknowledge_soon(source, now)

    def _skip(self, source: Source, first: int, last: int, reason: str) -> None:
        self.context.counters.skipped += last - first + 1
        self.context.tell(VersionSkipped(self.item, source.name, source.epoch, first, last, reason))

    # Putting together.

    def _open(self, source: Source, slot: Slot, now: float) -> bool:
        """Make a place for a version's content, if there is room for it; true when content is awaited now."""
        announced = slot.announcement
        if announced is None or slot.body is not None or slot.complete:
            return False
        size = slot.length + announced.attributes_in_body
        body = self._bodies.get(slot.version_id)
        if body is None:
            room = self.room
            open_bytes = sum(body.size for body in self._bodies.values()) if self._bodies else 0
            if room <= 0 or (slot.number != source.expected and open_bytes + size > max(room, self._offered)):
                self._unopened.add(slot.version_id)
                self._drop_early_of(slot.version_id)
                return False
            self._unopened.discard(slot.version_id)
            body = self._bodies[slot.version_id] = Body(slot.version_id, size, announced.segment_size, now, source)
        elif body.size != size:
            return False  # the same content with attributes of another length: its turn comes after the other's
        slot.body = body
        early = self._drop_early(slot.version_id) if slot.version_id in self._early else None
        if early is not None:
            for number, payload in early.parts.items():
                if body.add(number, payload):
                    self.context.held += len(payload)
        if not body.missing:
            self._completed(body, now)
            return False
        if body.has_gap:
            body.gap_since = now
        return True

    def _drop_early_of(self, version_id: bytes) -> None:
        if version_id in self._early:
            self._drop_early(version_id)

    def _completed(self, body: Body, now: float) -> None:
        """All segments are there: check them, and hand up what is in order."""
        del self._bodies[body.version_id]
        content = body.join()
        self.context.held -= body.held
        for source in list(self.sources.values()):
            slots = [slot for slot in source.slots.values() if slot.body is body]
            for slot in slots:
                slot.body = None
                announced = slot.announcement
                if announced is None:
                    continue
                split = announced.attributes_in_body
                attributes, own = (content[:split], content[split:]) if split else (announced.attributes, content)
                version_id, sha256 = content_ids(own)
                wrong = version_id != body.version_id or sha256 != announced.sha256
                if wrong or (split and hashlib.sha256(attributes).digest() != announced.attributes):
                    self.context.counters.tampered += 1
                    self.context.tell(
                        Dropped(self.item, f"version {slot.number}: the content is not what was announced")
                    )
                    slot.reset(now)
                    slot.tries, slot.asked = 1, now - source.round_trip.timeout
                    continue
                reason = self._refusal(slot, announced, attributes, now)
                if reason is not None:
                    self._refused(source, slot, reason, now)
                    continue
                slot.complete, slot.attributes, slot.content = True, attributes, own
                self.context.held += len(own)
            if slots:
                self._hand_up(source, now)

    def _refused(self, source: Source, slot: Slot, reason: str, now: float) -> None:
        """A version whose signature does not count may be a forgery of one that is to come, so it is asked for again;
        not for ever, or a publisher without the right to publish would stop everything."""
        self.context.counters.refused += 1
        self.context.tell(Dropped(self.item, f"version {slot.number}: {reason}"))
        slot.refusals += 1
        slot.reset(now)
        if slot.refusals < MAX_REFUSALS:
            slot.tries, slot.asked = 1, now
        else:
            slot.refused = slot.complete = True
            if source.expected is not None:
                self._skip(source, slot.number, slot.number, reason)

    def _refusal(self, slot: Slot, announced: Announcement, attributes: bytes, now: float) -> str | None:
        verify = self.context.verify
        if verify is None:
            return None
        header = MetadataHeader(bytes(self.item.sid), bytes(self.item.rid), slot.version_id, length=slot.length)
        normal = Announcement(
            announced.publisher,
            announced.epoch,
            announced.number,
            announced.published_ms,
            attributes,
            0,
            announced.sha256,
            oldest=0,
            segment_size=0,
        )
        return verify(self.item, header, normal, slot.authentication, self.context.wall_ms(now))

    def _hand_up(self, source: Source, now: float) -> None:
        """Everything that is complete and has its turn."""
        context = self.context
        expected = source.expected
        if expected is None:
            return
        moved = False
        while (slot := source.slots.get(expected)) is not None and slot.complete:
            del source.slots[expected]
            expected = source.expected = expected + 1
            moved = True
            context.held -= len(slot.content)
            announced = slot.announcement
            cost = len(slot.content) + len(slot.attributes) + VERSION_COST
            source.unacked_versions += 1
            source.unacked_cost += cost
            if announced is None or slot.refused or self._is_repeated(source, slot):
                continue
            context.counters.delivered += 1
            self._began = True
            if self._room_set is not None:
                self._unconsumed += cost
            signer = slot.authentication.signer if slot.authentication is not None else None
            context.tell(
                VersionArrived(
                    self.item,
                    source.name,
                    slot.version_id,
                    source.epoch,
                    slot.number,
                    slot.attributes,
                    slot.content,
                    announced.published_ms,
                    signer,
                    cost,
                    slot.hops,
                )
            )
        if not moved:
            return
        source.delivered_at = now
        source.fill(now)
        config = context.config
        if source.unacked_versions >= config.ack_versions or source.unacked_cost >= config.ack_bytes:
            context.urgent[source] = self
        else:
            self._acknowledge_soon(source, now)

    def _is_repeated(self, source: Source, slot: Slot) -> bool:
        """Whether another publisher, or this one in an earlier life, has sent the same content; once for each."""
        recent = self._recent
        origin = (source.name, source.epoch)
        before = recent.pop(slot.version_id, None)
        recent[slot.version_id] = origin
        if len(recent) > self.context.config.recent_versions:
            recent.popitem(last=False)
        if before is None or before == origin:
            return False
        self.context.counters.equal_versions += 1
        return True

    # Answers.

    def _acknowledge_soon(self, source: Source, now: float) -> None:
        if source.ack_due is None and source.expected is not None:
            source.ack_due = now + self.context.config.ack_delay

    def have(self, source: Source, now: float) -> Have | None:
        """What to tell a publisher now."""
        if source.expected is None:
            return None
        number, progress = self._reached(source)
        source.ack_due = None
        source.unacked_versions = source.unacked_cost = 0
        self._offered = self.room
        self.context.counters.acknowledged += 1
        held = max(0, int((now - source.delivered_at) * 1e6))
        return Have(self.context.name, self.life, source.name, source.epoch, number, progress, self._offered, held)

    def served(self, publisher: str | None, policy: ScopePolicy, now: float) -> None:
        self.served_by, self.policy = publisher, policy
        if publisher is None:
            return
        source = self.sources.get(publisher) or self._new_source(publisher, now)
        source.heard = now
        source.dormant = False
        if source.expected is None:
            if source.join_due is None:
                source.join_due = now + JOIN_DELAY
        else:
            # It may have begun a new life, or lost its way to us: say where we are.
            source.ack_due = now + JOIN_DELAY

    # Time.

    def handle_timer(self, now: float) -> float | None:
        """Ask for what is overdue; says when to be called next."""
        due: float | None = None
        for version_id in [name for name, early in self._early.items() if now >= early.since + EARLY_SECONDS]:
            self._drop_early(version_id)
            self.context.counters.early_lost += 1
        for source in self.sources.values():
            when = self._handle_source(source, now)
            if when is not None and (due is None or when < due):
                due = when
        if self._early:
            oldest = next(iter(self._early.values())).since + EARLY_SECONDS
            due = oldest if due is None or oldest < due else due
        return due

    def _handle_source(self, source: Source, now: float) -> float | None:
        config = self.context.config
        if source.dormant:
            return None
        waiting = source.join_due is not None or any(not slot.complete for slot in source.slots.values())
        if waiting and now - source.heard > config.reassembly_timeout:
            self._put_to_sleep(source)
            return None
        times: list[float] = []
        if source.expected is None:
            if source.join_due is not None and source.join_due <= now:
                source.join_tries += 1
                source.join_due = now + source.patience
                self._ask(source, [], source.join_tries, join=True)
            if source.join_due is not None:
                times.append(source.join_due)
        else:
            times += self._repair(source, now)
        if source.ack_due is not None:
            if source.ack_due <= now:
                self.context.urgent[source] = self
                source.ack_due = None
            else:
                times.append(source.ack_due)
        return min(times, default=None)

    def _put_to_sleep(self, source: Source) -> None:
        """Nobody answers: free what is held, and wait to hear from the publisher."""
        source.dormant = True
        source.join_due = source.ack_due = source.guess_due = None
        unfinished = [slot for slot in source.slots.values() if not slot.complete]
        for slot in unfinished:
            self._close(slot)
            slot.reset(slot.due)
        if unfinished:
            self.context.counters.timed_out += len(unfinished)
            numbers = f"{unfinished[0].number} to {unfinished[-1].number}"
            self.context.tell(Dropped(self.item, f"versions {numbers}: {source.name!r} does not answer"))

    def _repair(self, source: Source, now: float) -> list[float]:
        unknown: list[int] = []
        wants = 0
        times: list[float] = []
        has_room = self.room > 0
        for number in sorted(source.slots):
            slot = source.slots.get(number)
            if slot is None or slot.complete:
                continue
            if slot.announcement is not None and slot.body is None:
                if not has_room:
                    continue
                if not self._open(source, slot, now):
                    continue
                slot.due = min(slot.due, now)
            when = source.due_of(slot)
            if when > now:
                times.append(when)
            elif slot.body is not None:
                if wants < WANTS_AT_ONCE:
                    wants += 1
                    self._want(source, slot, now)
                times.append(source.due_of(slot) if slot.asked == now else now + config_step(source))
            else:
                if len(unknown) < ASKED_AT_ONCE and has_room:
                    unknown.append(number)
                    slot.tries += 1
                    slot.asked = now
                    times.append(source.due_of(slot))
                elif has_room:
                    times.append(now + config_step(source))
        if source.guess_due is not None:
            if source.guess_due <= now:
                source.guesses += 1
                unknown.append(source.newest + 1)
                more = source.guesses < MAX_GUESSES and bool(self._early)
                source.guess_due = now + source.round_trip.timeout if more else None
            if source.guess_due is not None:
                times.append(source.guess_due)
        if unknown:
            first = source.slots.get(unknown[0])
            self._ask(source, unknown, first.tries if first is not None else 1)
        return times

    def _reached(self, source: Source) -> tuple[int, int]:
        """The last version that was handed up, and how much of the next is there."""
        if source.expected is None:
            return 0, 0
        slot = source.slots.get(source.expected)
        return source.expected - 1, slot.body.progress if slot is not None and slot.body is not None else 0

    def _want(self, source: Source, slot: Slot, now: float) -> None:
        body = slot.body
        if body is None:
            return
        slot.tries += 1
        slot.asked = now
        body.asked(now)
        self.context.counters.wanted += 1
        source.unanswered += 1
        self._offered = self.room
        want = Want(
            self.context.name,
            self.life,
            source.name,
            source.epoch,
            slot.number,
            body.segment_size,
            body.missing_ranges(),
            self._offered,
            *self._reached(source),
            copies_for(slot.tries),
        )
        self._say(source, want)

    def _ask(self, source: Source, numbers: list[int], tries: int, join: bool = False) -> None:
        self.context.counters.asked += 1
        source.unanswered += 1
        self._offered = self.room
        since = self._since if join and not self._began else None
        ask = Ask(
            self.context.name,
            self.life,
            source.name,
            source.epoch,
            ranges_of(numbers),
            self._offered,
            *self._reached(source),
            join,
            self._future_only,
            since if isinstance(since, bytes) else None,
            since if isinstance(since, tuple) else None,
            copies_for(tries),
        )
        self._say(source, ask)

    def _say(self, source: Source, request: Want | Ask) -> None:
        for _ in range(request.copies):
            self.context.say(self, source, request)

    def close(self) -> None:
        """Give back all memory."""
        for source in self.sources.values():
            self._let_go(source)
            self.context.urgent.pop(source, None)
        for version_id in list(self._early):
            self._drop_early(version_id)


def copies_for(tries: int) -> int:
    """How often to say something, and to have it answered, that was lost so often."""
    return min(1 + tries // TRIES_PER_COPY, MAX_COPIES)


def config_step(source: Source) -> float:
    """How long what found no place in this round of requests waits for the next."""
    return source.config.reorder_delay
