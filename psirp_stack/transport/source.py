"""One publisher of an item as a receiver sees it: where its order stands, what is missing, how to reach it."""

from dataclasses import dataclass

from psirp_stack.control.rtt import RoundTrip
from psirp_stack.transport.accounts import SLOT_COST, ByteAccount
from psirp_stack.transport.config import VERSION_COST, TransportConfig
from psirp_stack.transport.messages import MAX_RANGES, Announcement, ArrivalReport, Range
from psirp_stack.transport.reassembly import Body
from psirp_stack.transport.source_state import SILENT, SourceInput, SourceState, after
from psirp_stack.wire.codec import AuthenticationHeader

MAX_WAIT_FACTOR = 8
"""A version that stays away is asked for ever more slowly, up to so many time-outs apart."""


@dataclass(slots=True)
class Slot:
    """A version that was not handed up yet. Without an announcement nothing but its number is known."""

    number: int
    due: float
    """When to ask for it, if it is not complete then."""
    tries: int = 0
    asked: float = 0.0
    announcement: Announcement | None = None
    version_id: bytes = b""
    length: int = 0
    authentication: AuthenticationHeader | None = None
    body: Body | None = None
    """None while there is no room for it."""
    complete: bool = False
    refusals: int = 0
    refused_try: int = 0
    """The request after which it was refused last."""
    refused: bool = False
    """Given up: its signature does not count."""
    attributes: bytes = b""
    content: bytes = b""
    hops: int | None = None
    """Links that the announcement travelled."""

    @property
    def held(self) -> int:
        """Bytes of it that are there, as a publisher counts them."""
        if self.complete:
            return len(self.content) + len(self.attributes) + VERSION_COST
        body = self.body
        return 0 if body is None else min(len(body.parts) * body.segment_size, body.size)

    def reset(self, due: float) -> None:
        """Know nothing but the number again."""
        self.announcement = self.authentication = self.body = None
        self.version_id = self.attributes = self.content = b""
        self.complete = False
        self.due = due


class PublisherSequence:
    """A publisher's order, and its gaps."""

    __slots__ = (
        "_filled",
        "_frames",
        "_latest",
        "_latest_at",
        "_marked",
        "_missed",
        "account",
        "ack_bytes",
        "ack_due",
        "config",
        "epoch",
        "expected",
        "guess_due",
        "guesses",
        "heard",
        "join_due",
        "join_tries",
        "look_back",
        "name",
        "newest",
        "question_due",
        "questioned_at",
        "round_trip",
        "slots",
        "state",
        "token",
        "unacked_bytes",
        "unacked_versions",
        "unanswered",
        "way",
    )

    def __init__(
        self,
        name: str,
        config: TransportConfig,
        now: float,
        account: ByteAccount,
        look_back: float = 0.0,
        token: int = 1,
    ) -> None:
        self.name = name
        self.config = config
        self.account = account
        """What its versions hold is charged here."""
        self.epoch = 0
        """0 before anything of it was believed."""
        self.token = token
        """Who repeats it has got our question, and is whom the network knows by this name."""
        self.question_due: float | None = None
        """When to ask what there is, because somebody said in this name what does not fit."""
        self.questioned_at = float("-inf")
        self.expected: int | None = None
        """The next version to hand up; None before the publisher said where to begin."""
        self.newest = 0
        self.slots: dict[int, Slot] = {}
        self.way: bytes | None = None
        self.heard = now
        self.state = SourceState.HEARD
        self.unanswered = 0
        self.round_trip = RoundTrip(config.initial_timeout, config.min_timeout, config.max_timeout)
        self.join_due: float | None = None
        """When to ask where to begin, in the state for it."""
        self.join_tries = 0
        self.look_back = look_back
        """How much before the subscription something may have been published that is asked for all the same."""
        self.guess_due: float | None = None
        """When to ask for a version that is not known of: its segments came without its metadata."""
        self.guesses = 0
        self._frames = self._missed = self._marked = 0
        self._latest = (0, 0)
        self._latest_at = now
        self.ack_bytes = config.ack_bytes
        """What came and was not told of, at most."""
        self.ack_due: float | None = None
        self.unacked_versions = 0
        self.unacked_bytes = 0
        self._filled = 0
        """Up to here every version that is not handed up has a slot."""

    def begin(self, start: int, now: float) -> None:
        """Hand up from this version on."""
        self.state = after(self.state, SourceInput.START_NAMED)
        self.expected = start
        self.join_due = None
        self.join_tries = 0
        self._filled = start - 1
        self.newest = max(self.newest, start - 1)
        self.fill(now)

    def start_unknown(self, ask_at: float) -> None:
        """Ask where to begin, unless that is under way."""
        if self.state is SourceState.HEARD:
            self.state = after(self.state, SourceInput.START_UNKNOWN)
            self.join_due = ask_at

    def question(self, now: float) -> None:
        """Ask what there is, but not more often than it can answer: those who forge must not make us shout."""
        if self.question_due is None:
            self.question_due = max(now, self.questioned_at + self.round_trip.timeout)

    def does_not_answer(self) -> None:
        """Wait until it speaks: nothing is due until then."""
        self.state = after(self.state, SourceInput.DOES_NOT_ANSWER)
        self.join_due = self.ack_due = self.guess_due = None
        self._filled = 0

    @property
    def is_silent(self) -> bool:
        return self.state in SILENT

    @property
    def reached(self) -> tuple[int, int]:
        """The last version that was handed up, and how much of the next is there."""
        if self.expected is None:
            return 0, 0
        slot = self.slots.get(self.expected)
        return self.expected - 1, slot.body.progress if slot is not None and slot.body is not None else 0

    def came(self, number: int, place: int, marked: bool, now: float) -> None:
        """A frame came that was not there yet."""
        self._frames += 1
        self._marked += marked
        self._latest, self._latest_at = (number, place), now

    def missed_version(self, number: int) -> None:
        """Nothing of a version came. If later ones did it was lost; else it may not have been sent."""
        if number < self._latest[0]:
            self._missed += 1

    def arrivals(self, now: float) -> ArrivalReport:
        beyond = sum(slot.held for slot in self.slots.values()) - self.reached[1]
        held = max(0, int((now - self._latest_at) * 1e6))
        return ArrivalReport(self._frames, self._missed, self._marked, max(beyond, 0), self._latest, held)

    def fill(self, now: float) -> None:
        """Give every version that is known of a slot, as far ahead as is allowed."""
        if self.expected is None:
            return
        first = max(self._filled + 1, self.expected)
        last = min(self.newest, self.expected + self.config.max_ahead - 1)
        for number in range(first, last + 1):
            if number not in self.slots:
                if not self.account.charge(SLOT_COST):
                    last = number - 1
                    break
                self.slots[number] = Slot(number, now + self.config.reorder_delay)
        self._filled = max(self._filled, last)

    def forget(self, number: int) -> None:
        """A version needs no slot any more; its content was let go of."""
        if self.slots.pop(number, None) is not None:
            self.account.release(SLOT_COST)

    def has_announced(self, number: int, version_id: bytes, announced: Announcement) -> bool:
        """Whether this is said of a version that is known and was not handed up yet: it was believed then."""
        slot = self.slots.get(number)
        known = slot.announcement if slot is not None and self.epoch == announced.epoch else None
        return (
            slot is not None
            and known is not None
            and (slot.version_id, known.sha256, known.attributes)
            == (version_id, announced.sha256, announced.attributes)
        )

    def slot_for(self, number: int, now: float) -> Slot | None:
        """The slot of a version that was announced; None when it is too far ahead."""
        base = self.expected if self.expected is not None else min(self.slots, default=number)
        if not base - self.config.max_ahead < number < base + self.config.max_ahead:
            return None
        previous = self.slots.get(self.newest)
        if number > self.newest:
            # The version before is through: what is missing of it is lost rather than late.
            if previous is not None and not previous.complete and not previous.tries:
                previous.due = min(previous.due, now + self.config.reorder_delay)
            self.newest = number
        slot = self.slots.get(number)
        if slot is None:
            if len(self.slots) >= 2 * self.config.max_ahead or not self.account.charge(SLOT_COST):
                return None
            slot = self.slots[number] = Slot(number, now + self.tail_delay)
        self.fill(now)
        return slot

    @property
    def tail_delay(self) -> float:
        """How long to wait for what should come by itself."""
        smoothed = self.round_trip.smoothed
        return self.config.tail_delay if smoothed is None else max(self.config.tail_delay, 1.5 * smoothed)

    @property
    def patience(self) -> float:
        """How long to wait for an answer. Longer only when nothing at all is heard: where other frames come through, a
        request was just unlucky."""
        return self.round_trip.timeout * min(1 << min(max(self.unanswered - 1, 0), 8), MAX_WAIT_FACTOR)

    def gap_is_due(self, body: Body, now: float) -> bool:
        """Whether something behind the highest segment has to be asked for now."""
        return body.gap_since is not None and self._gap_due(body, body.gap_since) <= now

    def due_of(self, slot: Slot) -> float:
        """When to ask for what is missing of a version."""
        body = slot.body
        if body is None:
            return slot.asked + self.patience if slot.tries else slot.due
        times: list[float] = []
        if body.gap_since is not None:
            times.append(self._gap_due(body, body.gap_since))
        if (asked := body.oldest_ask) is not None:
            times.append(asked + self.patience)
        if body.tail_is_missing or not times:
            times.append(self._tail_due(slot, body))
        return min(times)

    def _gap_due(self, body: Body, since: float) -> float:
        """When segments behind a gap say that it is a loss."""
        if body.highest - body.gap_at >= self.config.reorder_segments:
            return since
        return since + self.config.reorder_delay

    def _tail_due(self, slot: Slot, body: Body) -> float:
        """When the rest of a version should have come. With a later one announced it should be there."""
        wait = self.config.reorder_delay if slot.number < self.newest else self.tail_delay
        due = body.touched + wait
        return due if body.tail_asked is None else max(due, body.tail_asked + self.patience)

    def ask_for_segments(self, slot: Slot, body: Body, now: float) -> tuple[list[Range], int]:
        """What is to be asked for now, and for the how-many-th time."""
        ranges, tries = body.ask_again(now, self.patience)
        if not ranges and self.gap_is_due(body, now):
            ranges = body.ask_for_gaps(now)
            # Once for each: what is asked for again may still wait for its turn at the publisher.
            self._missed += sum(last - first + 1 for first, last in ranges)
        if not ranges and body.tail_is_missing and self._tail_due(slot, body) <= now:
            ranges = body.ask_for_tail(now)
            tries = body.tail_tries
        return ranges, max(tries, 1)

    def was_heard(self, now: float) -> None:
        self.heard = now
        self.unanswered = 0
        if self.is_silent:
            self.state = after(self.state, SourceInput.SPOKE)
            self.fill(now)

    def was_named(self) -> None:
        """The topology manager says that it serves us: it may be heard again."""
        self.state = after(self.state, SourceInput.SPOKE)

    def hurry(self, now: float) -> None:
        """The publisher wants to know what is missing: do not wait longer than an answer takes."""
        timeout = self.round_trip.timeout
        for slot in self.slots.values():
            if not slot.complete:
                if slot.tries > 1 and slot.asked + timeout <= now:
                    slot.tries = 0
                if not slot.tries:
                    slot.due = min(slot.due, now + self.config.reorder_delay)


def ranges_of(numbers: list[int]) -> tuple[Range, ...]:
    """Ascending numbers as ranges, no more than a message holds."""
    ranges: list[Range] = []
    for number in numbers:
        if ranges and ranges[-1][1] == number - 1:
            ranges[-1] = (ranges[-1][0], number)
        elif len(ranges) == MAX_RANGES:
            break
        else:
            ranges.append((number, number))
    return tuple(ranges)
