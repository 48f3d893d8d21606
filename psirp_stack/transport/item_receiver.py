"""One item at a subscriber's node: versions put together, checked, and handed up in order, each once."""

from collections.abc import Hashable
from operator import attrgetter

from msgspec.structs import replace

from identifiers.identifier import ItemId
from psirp_stack.control.messages import OPEN_SCOPE, ScopePolicy
from psirp_stack.transport.accounts import SEGMENT_COST
from psirp_stack.transport.assembly import Assembly
from psirp_stack.transport.beginning import LOOK_BACK, Beginning
from psirp_stack.transport.config import MAX_CONTENT_BYTES, VERSION_COST
from psirp_stack.transport.early_segments import EarlySegments
from psirp_stack.transport.events import Dropped, VersionArrived, VersionSkipped
from psirp_stack.transport.frames import TransportFrame, is_usable
from psirp_stack.transport.messages import Announcement, Have, Retained, segment_count, valid_segment_size
from psirp_stack.transport.reader_room import ReaderRoom
from psirp_stack.transport.reassembly import Body
from psirp_stack.transport.receiver_context import ReceiverContext, Since
from psirp_stack.transport.recent_versions import RecentVersions
from psirp_stack.transport.requests import RepairRequests
from psirp_stack.transport.source import PublisherSequence, Slot
from psirp_stack.transport.source_state import SourceState
from psirp_stack.transport.version_check import parts_as_announced, refusal
from psirp_stack.transport.versions import Version

MAX_REFUSALS = 3
JOIN_DELAY = 0.1
"""Seconds in which a publisher should have said something by itself."""


class ItemReceiver:
    """State of one subscribed item."""

    def __init__(
        self, context: ReceiverContext, item: ItemId, life: int, since: Since | None, future_only: bool, now: float
    ) -> None:
        self.context = context
        self.item = item
        self.key = bytes(item)
        self.policy: ScopePolicy = OPEN_SCOPE
        self.served_by: str | None = None
        self.sources: dict[str, PublisherSequence] = {}
        self._beginning = Beginning(since, future_only, now)
        self._room = ReaderRoom(context)
        self._requests = RepairRequests(self, life, self._beginning, self._room)
        self._early = EarlySegments(context)
        self._assembly = Assembly(self._room, self._early)
        self._recent = RecentVersions(context.config.recent_versions)

    # Flow control.

    def set_room(self, room: int, now: float) -> None:
        if self._room.set(room):
            self._tell_room(now)

    def consumed(self, cost: int, now: float) -> None:
        if self._room.consumed(cost):
            self._tell_room(now)

    def _tell_room(self, now: float) -> None:
        """There is much more room than publishers know of; what waited for it goes on."""
        for source in self.sources.values():
            if source.state is SourceState.FOLLOWING:
                self.context.urgent[source] = self
                source.hurry(now)

    def has_version(self, publisher: str, version: Version, now: float) -> None:
        self._beginning.handed_up(version.version_id, now)
        self._recent.is_repeated(version.version_id, version.attributes, (publisher, version.epoch))

    # What arrives.

    def segment(
        self, version_id: bytes, number: int, payload: bytes, link: Hashable, now: float, *, marked: bool = False
    ) -> bool:
        """Take in a segment; true when something is to be asked for at once."""
        context = self.context
        context.counters.segments += 1
        body = self._assembly.body(version_id)
        if body is None:
            self._segment_without_body(version_id, number, payload, link, now)
            return False
        if not body.lacks(number, payload):
            context.counters.duplicates += 1
            return False
        if not body.add(number, payload, now):
            context.counters.reassembly_full += 1
            return False
        body.touched = now
        source = body.source
        source.heard = now
        source.unanswered = 0
        source.unacked_bytes += len(payload)
        source.came(body.number, number + 1, marked, now)
        if body.timed is not None and (measured := body.round_trip(number, now)) is not None:
            source.round_trip.answered(now - measured, now, 1)
        if not body.missing:
            self._completed(body, now)
        elif source.unacked_bytes >= source.ack_bytes:
            # A long version is more than the window.
            context.urgent[source] = self
        else:
            self._acknowledge_soon(source, now)
        return source.gap_is_due(body, now)

    def _segment_without_body(self, version_id: bytes, number: int, payload: bytes, link: Hashable, now: float) -> None:
        """A segment whose metadata is late or lost waits for it a while."""
        counters = self.context.counters
        if self._assembly.has_no_room_for(version_id):
            counters.no_room += 1
            return
        if version_id in self._recent:
            counters.duplicates += 1
            return
        if self._early.add(version_id, number, payload, link, now):
            source = self._latest_source()
            if source is not None and source.expected is not None and source.guess_due is None:
                source.guess_due, source.guesses = now + self.context.config.reorder_delay, 0

    def _latest_source(self) -> PublisherSequence | None:
        return max(self.sources.values(), key=attrgetter("heard"), default=None)

    def announcement(
        self,
        control: TransportFrame,
        way: bytes,
        announced: Announcement,
        now: float,
        hops: int | None = None,
        link: Hashable = None,
        *,
        marked: bool = False,
    ) -> None:
        """A version was announced, perhaps whole. Until the receiver knows where to begin, `seqnum` tells it."""
        # Where every packet is signed, segments come by themselves.
        body = b"" if self.policy.every_packet_signed else announced.body
        announced = replace(announced, body=b"")
        slot = self._announced(control, way, announced, now, hops, link, marked=marked)
        if body and slot is not None and slot.body is not None and slot.body.version_id == control.vrid:
            self.segment(control.vrid, 0, body, link, now, marked=marked)

    def _announced(
        self,
        control: TransportFrame,
        way: bytes,
        announced: Announcement,
        now: float,
        hops: int | None,
        link: Hashable,
        *,
        marked: bool,
    ) -> Slot | None:
        """Believe an announcement, or not; gives the version's slot if it has one."""
        counters = self.context.counters
        length, segment_size, joining = control.length, announced.segment_size, control.seqnum
        size = length + announced.attributes_in_body
        if (
            length > MAX_CONTENT_BYTES
            or not valid_segment_size(segment_size, size)
            or not announced.has_valid_attributes
            or control.max_seqnum != max(segment_count(size, segment_size) - 1, 0)
        ):
            counters.malformed += 1
            return None
        if size + segment_count(size, segment_size) * SEGMENT_COST > self.context.config.reassembly_bytes_per_source:
            counters.too_fine += 1
            return None
        source = self._believed(control, announced, way, now)
        if source is None:
            return None
        if not source.account.used:
            source.account = self.context.accounts.source(link)
        if source.expected is None:
            signed = control.authentication is not None
            start = self._beginning.announced_start(joining, announced.settled_ms, signed, now)
            if start is not None:
                self._begin(source, start, now)
            else:
                source.start_unknown(now)
        if source.expected is not None and announced.number < source.expected:
            counters.duplicates += 1
            self._acknowledge_soon(source, now)
            return None
        slot = source.slot_for(announced.number, now)
        if slot is None:
            counters.too_far_ahead += 1
            source.question(now)
            return None
        source.guess_due = None
        if slot.announcement is None:
            if slot.tries:
                source.round_trip.answered(slot.asked, now, slot.tries)
            source.came(announced.number, 0, marked, now)
            if announced.ack_bytes:
                source.ack_bytes = min(announced.ack_bytes, self.context.config.ack_bytes)
            slot.announcement, slot.version_id, slot.length = announced, control.vrid, length
            slot.authentication = control.authentication
            slot.hops = hops
            slot.tries = 0
            slot.due = now
            if self._open(source, slot, now) and announced.on_request and slot.body is not None:
                slot.body.touched = now - source.tail_delay  # nothing comes unless it is asked for
            return slot
        counters.duplicates += 1
        body = slot.body
        if body is not None and body.segment_size != announced.segment_size and slot.version_id == control.vrid:
            body.resize(announced.segment_size, now)
            slot.announcement = announced
        source.hurry(now)
        self._acknowledge_soon(source, now)
        return slot

    def retained(self, message: Retained, way: bytes, now: float) -> None:
        source = self.sources.get(message.publisher)
        if source is None:
            self.context.counters.not_ours += 1
            return
        if message.token != source.token:
            self.context.counters.unproved += 1
            source.question(now)
            return
        if message.epoch != source.epoch:
            source = self._new_life(source, message.epoch, now)
        self._was_heard(source, way, now)
        if source.expected is None:
            if message.start is not None and source.join_tries:
                self._told_start(source, message, message.start, now)
            else:
                source.start_unknown(now)
        source.newest = max(source.newest, message.newest)
        source.fill(now)
        self._let_go_before(source, message.oldest, now)

    def _told_start(self, source: PublisherSequence, message: Retained, start: int, now: float) -> None:
        if not message.known:
            reason = "the version to go on from is not retained; beginning with the oldest that is"
            self._skip(source, 0, start - 1, reason)
        elif start > 1 and not self._beginning.accepts(source, message.settled_ms, now):
            if start > message.oldest:
                source.join_due = now
                return
            self._skip(source, start - 1, start - 1, "published after the subscription, and not retained any more")
        if message.settled_ms is None:
            # It goes on exactly where another one stopped: what was there before and comes again was said again.
            self._recent.forget()
        self._begin(source, start, now)

    def _begin(self, source: PublisherSequence, start: int, now: float) -> None:
        """The publisher said where we begin: what is before that is not for us, what is there already is handed up."""
        for number in [number for number in source.slots if number < start]:
            self._close(source, source.slots[number])
            source.forget(number)
        source.begin(start, now)
        self._hand_up(source, now)
        self._acknowledge_soon(source, now)

    def _believed(
        self, control: TransportFrame, announced: Announcement, way: bytes, now: float
    ) -> PublisherSequence | None:
        """The publisher's state, if the announcement counts; nothing has changed if it does not.

        What is signed wrongly does not count. Nor does what somebody says in the name of a publisher that is known to
        be in another epoch: that publisher is asked, and its answer counts.
        """
        source = self.sources.get(announced.publisher)
        if source is None or not source.has_announced(announced.number, control.vrid, announced):
            reason = refusal(self.context, self.item, control, announced, now)
            if reason is not None:
                self._refused(source, announced, reason, now)
                return None
        if source is None:
            source = self._new_source(announced.publisher, now)
        if source.epoch == 0:
            source.epoch = announced.epoch
        elif source.epoch != announced.epoch:
            self.context.counters.outdated += 1
            source.question(now)
            return None
        self._was_heard(source, way, now)
        return source

    def _was_heard(self, source: PublisherSequence, way: bytes, now: float) -> None:
        source.was_heard(now)
        if is_usable(way):
            source.way = way

    def _new_life(self, source: PublisherSequence, epoch: int, now: float) -> PublisherSequence:
        """The publisher itself says that it is in another epoch than it was heard in."""
        if source.epoch and source.expected is not None and source.expected <= source.newest:
            self._skip(source, source.expected, source.newest, "the publisher began a new life without them")
        self._let_go(source)
        fresh = PublisherSequence(source.name, source.config, now, source.account, LOOK_BACK, source.token)
        fresh.epoch, fresh.way, fresh.round_trip = epoch, source.way, source.round_trip
        fresh.join_tries, fresh.questioned_at = source.join_tries, source.questioned_at
        self.context.urgent.pop(source, None)
        self.sources[source.name] = fresh
        return fresh

    def _new_source(self, publisher: str, now: float) -> PublisherSequence:
        if len(self.sources) >= self.context.config.max_sources:
            others = [source for source in self.sources.values() if source.name != self.served_by]
            oldest = min(others, key=attrgetter("heard"))
            self._let_go(oldest)
            self.context.urgent.pop(oldest, None)
            del self.sources[oldest.name]
            self.context.counters.sources_forgotten += 1
        source = self.sources[publisher] = PublisherSequence(
            publisher,
            self.context.config,
            now,
            self.context.accounts.source(None),
            LOOK_BACK,
            self.context.random.getrandbits(62) | 1,
        )
        return source

    def _let_go(self, source: PublisherSequence) -> None:
        """Forget what a publisher left unfinished."""
        for slot in list(source.slots.values()):
            self._close(source, slot)
            source.forget(slot.number)

    def _close(self, source: PublisherSequence, slot: Slot) -> None:
        self._assembly.close(source, slot, self.sources.values())

    def _let_go_before(self, source: PublisherSequence, oldest: int, now: float) -> None:
        """Versions before this one cannot be had any more; what is there of them is handed up all the same."""
        if source.expected is None or source.expected >= oldest:
            return
        ready = sorted(number for number, slot in source.slots.items() if number < oldest and slot.complete)
        for number in [*ready, oldest]:
            if source.expected < number:
                self._skip(source, source.expected, number - 1, "no longer retained by the publisher")
                for gone in [gone for gone in source.slots if gone < number]:
                    self._close(source, source.slots[gone])
                    source.forget(gone)
                source.expected = number
            self._hand_up(source, now)
        source.newest = max(source.newest, source.expected - 1)
        source.fill(now)
        self._acknowledge_soon(source, now)

    def _skip(self, source: PublisherSequence, first: int, last: int, reason: str) -> None:
        self.context.counters.skipped += last - first + 1
        self.context.tell(VersionSkipped(self.item, source.name, source.epoch, first, last, reason))

    # Putting together.

    def _open(self, source: PublisherSequence, slot: Slot, now: float) -> bool:
        """Make a place for a version's content, if there is room for it; true when content is awaited now."""
        body = self._assembly.open(source, slot, now)
        if body is None:
            return False
        if not body.missing:
            self._completed(body, now)
            return False
        return True

    def _completed(self, body: Body, now: float) -> None:
        """All segments are there: check them, and hand up what is in order."""
        content = self._assembly.finish(body)
        for source in list(self.sources.values()):
            slots = [slot for slot in source.slots.values() if slot.body is body]
            for slot in slots:
                slot.body = None
                announced = slot.announcement
                if announced is None:
                    continue
                parts = parts_as_announced(slot, announced, content)
                if parts is None:
                    self.context.counters.tampered += 1
                    self.context.tell(
                        Dropped(self.item, f"version {slot.number}: the content is not what was announced")
                    )
                    slot.reset(now)
                    slot.tries, slot.asked = 1, now - source.round_trip.timeout
                    continue
                slot.complete, slot.attributes, slot.content = True, parts.attributes, parts.content
                source.account.force(len(parts.content))
            if slots:
                self._hand_up(source, now)

    def _refused(self, source: PublisherSequence | None, announced: Announcement, reason: str, now: float) -> None:
        """An announcement whose signature does not count may be a forgery of one that is to come. A version that is
        known to exist is asked for again, and given up only when the publisher was asked several times: otherwise one
        that cannot be proved would stop all that follow."""
        self.context.counters.refused += 1
        self.context.tell(Dropped(self.item, f"version {announced.number}: {reason}"))
        slot = source.slots.get(announced.number) if source is not None and source.epoch == announced.epoch else None
        if source is None or slot is None or slot.announcement is not None or slot.tries <= slot.refused_try:
            return
        slot.refused_try = slot.tries
        slot.refusals += 1
        if slot.refusals >= MAX_REFUSALS:
            slot.refused = slot.complete = True
            if source.expected is not None:
                self._skip(source, slot.number, slot.number, reason)
            self._hand_up(source, now)

    def _hand_up(self, source: PublisherSequence, now: float) -> None:
        """Everything that is complete and has its turn."""
        context = self.context
        expected = source.expected
        if expected is None:
            return
        moved = False
        while (slot := source.slots.get(expected)) is not None and slot.complete:
            source.forget(expected)
            expected = source.expected = expected + 1
            moved = True
            source.account.release(len(slot.content))
            announced = slot.announcement
            cost = len(slot.content) + len(slot.attributes) + VERSION_COST
            source.unacked_versions += 1
            if announced is None or slot.refused or self._is_repeated(source, slot):
                continue
            context.counters.delivered += 1
            self._beginning.handed_up(slot.version_id, now)
            self._room.handed_up(cost)
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
        source.fill(now)
        config = context.config
        if source.unacked_versions >= config.ack_versions or source.unacked_bytes >= source.ack_bytes:
            context.urgent[source] = self
        else:
            self._acknowledge_soon(source, now)

    def _is_repeated(self, source: PublisherSequence, slot: Slot) -> bool:
        """Whether another publisher, or this one in an earlier life, has sent the same publication."""
        repeated = self._recent.is_repeated(slot.version_id, slot.attributes, (source.name, source.epoch))
        self.context.counters.equal_versions += repeated
        return repeated

    # Answers.

    def _acknowledge_soon(self, source: PublisherSequence, now: float) -> None:
        if source.ack_due is None and source.expected is not None:
            source.ack_due = now + self.context.config.ack_delay

    def have(self, source: PublisherSequence, now: float) -> Have | None:
        """What to tell a publisher now."""
        return self._requests.acknowledgement(source, now)

    def served(self, publisher: str | None, policy: ScopePolicy, now: float) -> None:
        self.served_by, self.policy = publisher, policy
        if publisher is None:
            return
        source = self.sources.get(publisher) or self._new_source(publisher, now)
        source.heard = now
        source.was_named()
        if source.expected is None:
            source.start_unknown(now + JOIN_DELAY)
        else:
            # It may have begun a new life, or lost its way to us: say where we are.
            source.ack_due = now + JOIN_DELAY

    # Time.

    def handle_timer(self, now: float) -> float | None:
        """Ask for what is overdue; says when to be called next."""
        due: float | None = None
        self._early.expire(now)
        for source in self.sources.values():
            when = self._handle_source(source, now)
            if when is not None and (due is None or when < due):
                due = when
        expires = self._early.due
        return expires if due is None or (expires is not None and expires < due) else due

    def _handle_source(self, source: PublisherSequence, now: float) -> float | None:
        config = self.context.config
        times: list[float] = []
        if source.question_due is not None:
            if source.question_due <= now:
                self._requests.question(source, now)
            else:
                times.append(source.question_due)
        if source.is_silent:
            return min(times, default=None)
        waiting = source.state is SourceState.JOINING or any(not slot.complete for slot in source.slots.values())
        if waiting and now - source.heard > config.reassembly_timeout:
            self._put_to_sleep(source)
            return min(times, default=None)
        if source.expected is None:
            if source.join_due is not None and source.join_due <= now:
                source.join_tries += 1
                source.join_due = now + source.patience
                self._requests.join(source, now)
            if source.join_due is not None:
                times.append(source.join_due)
        else:
            times += self._requests.overdue(source, now, self._open, bool(self._early))
        if source.ack_due is not None:
            if source.ack_due <= now:
                self.context.urgent[source] = self
                source.ack_due = None
            else:
                times.append(source.ack_due)
        return min(times, default=None)

    def _put_to_sleep(self, source: PublisherSequence) -> None:
        """Nobody answers: free what is held, and wait to hear from the publisher."""
        source.does_not_answer()
        unfinished = [slot for slot in source.slots.values() if not slot.complete]
        for slot in unfinished:
            self._close(source, slot)
            source.forget(slot.number)
        if unfinished:
            self.context.counters.timed_out += len(unfinished)
            numbers = f"{unfinished[0].number} to {unfinished[-1].number}"
            self.context.tell(Dropped(self.item, f"versions {numbers}: {source.name!r} does not answer"))

    def close(self) -> None:
        """Give back all memory."""
        for source in self.sources.values():
            self._let_go(source)
            self.context.urgent.pop(source, None)
        self._early.clear()
