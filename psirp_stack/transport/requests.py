"""What a receiver says to the publishers of one item: what it has, what it misses, and that it joins."""

from collections.abc import Callable
from typing import TYPE_CHECKING

from psirp_stack.transport.beginning import Beginning
from psirp_stack.transport.messages import MAX_COPIES, Ask, Have, Want
from psirp_stack.transport.reader_room import ReaderRoom
from psirp_stack.transport.receiver_context import ReceiverContext, Since
from psirp_stack.transport.source import PublisherSequence, Slot, ranges_of

if TYPE_CHECKING:
    from psirp_stack.transport.item_receiver import ItemReceiver

WANTS_AT_ONCE = 8
ASKED_AT_ONCE = 64
MAX_GUESSES = 3
TRIES_PER_COPY = 3


class RepairRequests:
    """Asks for what is overdue, and says where the receiver stands."""

    def __init__(self, item: "ItemReceiver", life: int, beginning: Beginning, room: ReaderRoom) -> None:
        self._item = item
        self._context: ReceiverContext = item.context
        self._life = life
        self._beginning = beginning
        self._room = room

    def acknowledgement(self, source: PublisherSequence, now: float) -> Have | None:
        """What to tell a publisher now."""
        if source.expected is None:
            return None
        number, progress = source.reached
        source.ack_due = None
        source.unacked_versions = source.unacked_bytes = 0
        self._context.counters.acknowledged += 1
        name, room = self._context.name, self._room.offer()
        return Have(name, self._life, source.name, source.epoch, number, progress, room, source.arrivals(now))

    def join(self, source: PublisherSequence, now: float) -> None:
        """Ask where to begin."""
        beginning = self._beginning
        waited_ms = beginning.waited_ms(source, now)
        self._ask(source, [], source.join_tries, True, beginning.since, waited_ms, source.token)

    def question(self, source: PublisherSequence, now: float) -> None:
        """Ask what there is."""
        source.question_due, source.questioned_at = None, now
        self._ask(source, [], 1, token=source.token)

    def overdue(
        self,
        source: PublisherSequence,
        now: float,
        open_slot: Callable[[PublisherSequence, Slot, float], bool],
        guesses: bool,
    ) -> list[float]:
        """Ask for what should be there and is not; says when to look again. `open_slot` makes a place for a version
        that there was no room for, `guesses`: segments are there whose version is not known."""
        unknown: list[int] = []
        wants = 0
        times: list[float] = []
        has_room = self._room.bytes > 0
        for number in sorted(source.slots):
            slot = source.slots.get(number)
            if slot is None or slot.complete:
                continue
            if slot.announcement is not None and slot.body is None:
                if not has_room:
                    continue
                if not open_slot(source, slot, now):
                    continue
                slot.due = min(slot.due, now)
            when = source.due_of(slot)
            if when > now:
                times.append(when)
            elif slot.body is not None:
                if wants < WANTS_AT_ONCE:
                    wants += 1
                    self._want(source, slot, now)
                    times.append(source.due_of(slot))
                else:
                    times.append(now + next_round(source))
            else:
                if len(unknown) < ASKED_AT_ONCE and has_room:
                    unknown.append(number)
                    if not slot.tries:
                        source.missed_version(number)
                    slot.tries += 1
                    slot.asked = now
                    times.append(source.due_of(slot))
                elif has_room:
                    times.append(now + next_round(source))
        if source.guess_due is not None:
            if source.guess_due <= now:
                source.guesses += 1
                unknown.append(source.newest + 1)
                more = source.guesses < MAX_GUESSES and guesses
                source.guess_due = now + source.round_trip.timeout if more else None
            if source.guess_due is not None:
                times.append(source.guess_due)
        if unknown:
            first = source.slots.get(unknown[0])
            self._ask(source, unknown, first.tries if first is not None else 1)
        return times

    def _want(self, source: PublisherSequence, slot: Slot, now: float) -> None:
        body = slot.body
        if body is None:
            return
        ranges, tries = source.ask_for_segments(slot, body, now)
        if not ranges:
            return
        slot.tries, slot.asked = tries, now
        self._context.counters.wanted += 1
        source.unanswered += 1
        want = Want(
            self._context.name,
            self._life,
            source.name,
            source.epoch,
            slot.number,
            body.segment_size,
            tuple(ranges),
            self._room.offer(),
            *source.reached,
            copies_for(tries),
            source.arrivals(now),
        )
        self._say(source, want)

    def _ask(
        self,
        source: PublisherSequence,
        numbers: list[int],
        tries: int,
        join: bool = False,
        since: Since | None = None,
        waited_ms: int = 0,
        token: int = 0,
    ) -> None:
        self._context.counters.asked += 1
        source.unanswered += 1
        ask = Ask(
            self._context.name,
            self._life,
            source.name,
            source.epoch,
            ranges_of(numbers),
            self._room.offer(),
            *source.reached,
            join,
            self._beginning.future_only,
            since if isinstance(since, bytes) else None,
            since if isinstance(since, tuple) else None,
            copies_for(tries),
            waited_ms,
            token,
        )
        self._say(source, ask)

    def _say(self, source: PublisherSequence, request: Want | Ask) -> None:
        for _ in range(request.copies):
            self._context.say(self._item, source, request)


def copies_for(tries: int) -> int:
    """How often to say something, and to have it answered, that was lost so often."""
    return min(1 + tries // TRIES_PER_COPY, MAX_COPIES)


def next_round(source: PublisherSequence) -> float:
    """How long what found no place in this round of requests waits for the next."""
    return source.config.reorder_delay
