"""Content on its way in: the segments that are there, and which are missing."""

from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING

from psirp_stack.transport.accounts import SEGMENT_COST, ByteAccount
from psirp_stack.transport.messages import MAX_RANGES, Range, segment_count

if TYPE_CHECKING:
    from psirp_stack.transport.source import PublisherSequence


@dataclass(slots=True)
class AskedSegments:
    """What is missing between these two, both included, was asked for together."""

    first: int
    last: int
    at: float
    tries: int = 1


class Body:
    """The bytes of one version id, put together from segments. Holds only what arrived."""

    __slots__ = (
        "asked",
        "asked_through",
        "gap_at",
        "gap_since",
        "held",
        "highest",
        "next_missing",
        "number",
        "parts",
        "segment_size",
        "segments",
        "size",
        "source",
        "tail_asked",
        "tail_tries",
        "timed",
        "touched",
        "version_id",
    )

    def __init__(
        self, version_id: bytes, number: int, size: int, segment_size: int, now: float, source: "PublisherSequence"
    ) -> None:
        self.version_id = version_id
        self.number = number
        """Of the version that it was begun for."""
        self.size = size
        self.source = source
        """Whose announcement it was begun for."""
        self.segment_size = segment_size
        self.parts: dict[int, bytes] = {}
        self.segments = segment_count(size, segment_size)
        self.held = 0
        self.highest = -1
        self.next_missing = 0
        self.touched = now
        self.asked_through = -1
        """What was missing up to here was asked for."""
        self.asked: deque[AskedSegments] = deque()
        """What was asked for, in parts that do not overlap, the longest ago first."""
        self.gap_since: float | None = None
        """When a segment arrived that shows that another one is missing which was not asked for."""
        self.gap_at = 0
        self.tail_asked: float | None = None
        """When what follows the highest segment was asked for."""
        self.tail_tries = 0
        self.timed: tuple[int, int, float] | None = None
        """Segments that were asked for once, and when: the first of them to arrive tells the round trip."""

    @property
    def missing(self) -> int:
        return self.segments - len(self.parts)

    def lacks(self, number: int, payload: bytes) -> bool:
        """Whether this is a segment of this content that is not there."""
        last = self.segments - 1
        if number > last or number in self.parts:
            return False
        return len(payload) == (self.segment_size if number < last else self.size - last * self.segment_size)

    def add(self, number: int, payload: bytes, now: float) -> bool:
        """Put a segment that is lacking in its place; False when there is no room for it."""
        cost = len(payload) + SEGMENT_COST
        if not self.source.account.charge(cost):
            return False
        parts = self.parts
        parts[number] = payload
        self.held += cost
        if number > self.highest + 1 and number > self.asked_through + 1 and self.gap_since is None:
            self.gap_since, self.gap_at = now, number
        if number == self.next_missing:
            number += 1
            while number in parts:
                number += 1
            self.next_missing = number
            self.highest = max(self.highest, number - 1)
        elif number > self.highest:
            self.highest = number
        return True

    def ask_for_gaps(self, now: float) -> list[Range]:
        """What is missing before the highest segment, and was not asked for."""
        first = self.asked_through + 1
        ranges, last = self._missing_in(max(first, self.next_missing), self.highest)
        self.gap_since = None if last == self.highest else now
        if ranges:
            self.asked.append(AskedSegments(ranges[0][0], last, now))
            if self.timed is None:
                self.timed = (ranges[0][0], last, now)
        self.asked_through = max(self.asked_through, last)
        return ranges

    def ask_again(self, now: float, patience: float) -> tuple[list[Range], int]:
        """What was asked for so long ago and is still missing; and how often that was."""
        found: list[Range] = []
        tries = 0
        while self.asked and self.asked[0].at + patience <= now and len(found) < MAX_RANGES:
            asked = self.asked.popleft()
            ranges, last = self._missing_in(max(asked.first, self.next_missing), asked.last)
            if not ranges:
                continue
            if len(found) + len(ranges) > MAX_RANGES:
                self.asked.appendleft(AskedSegments(ranges[0][0], asked.last, asked.at, asked.tries))
                break
            # What is asked for again tells no round trip.
            self.timed = None
            found += ranges
            tries = max(tries, asked.tries + 1)
            self.asked.append(AskedSegments(ranges[0][0], last, now, asked.tries + 1))
            if last < asked.last:
                self.asked.appendleft(AskedSegments(last + 1, asked.last, asked.at, asked.tries))
                break
        return found, tries

    def ask_for_tail(self, now: float) -> list[Range]:
        """What follows the highest segment; or else whatever is missing."""
        self.tail_asked = now
        self.tail_tries += 1
        first = max(self.highest, self.asked_through) + 1
        if first < self.segments:
            return [(first, self.segments - 1)]
        return self._missing_in(self.next_missing, self.highest)[0]

    @property
    def oldest_ask(self) -> float | None:
        """When what is missing was asked for, if anything was."""
        while self.asked and self.asked[0].last < self.next_missing:
            self.asked.popleft()
        return self.asked[0].at if self.asked else None

    @property
    def tail_is_missing(self) -> bool:
        """Whether something is missing of which nothing else will remind us."""
        if max(self.highest, self.asked_through) < self.segments - 1:
            return True
        return self.gap_since is None and not self.asked

    def round_trip(self, number: int, now: float) -> float | None:
        """The round trip that the arrival of a segment tells, if it does."""
        if self.timed is None or not self.timed[0] <= number <= self.timed[1]:
            return None
        asked, self.timed = self.timed[2], None
        return now - asked

    @property
    def progress(self) -> int:
        """Bytes from the beginning without a gap."""
        return min(self.next_missing * self.segment_size, self.size)

    @property
    def has_gap(self) -> bool:
        return self.next_missing <= self.highest

    def _missing_in(self, first: int, last: int) -> tuple[list[Range], int]:
        """What is missing between these two, in no more ranges than a message holds, and up to where that is all."""
        ranges: list[Range] = []
        parts = self.parts
        number = first
        while number <= last:
            if number in parts:
                number += 1
                continue
            if len(ranges) == MAX_RANGES:
                return ranges, number - 1
            begin = number
            while number <= last and number not in parts:
                number += 1
            ranges.append((begin, number - 1))
        return ranges, last

    def clear(self) -> None:
        """Let go of all segments."""
        self.source.account.release(self.held)
        self.parts = {}
        self.held = 0
        self.highest = self.asked_through = -1
        self.next_missing = 0
        self.gap_since = self.timed = self.tail_asked = None
        self.asked.clear()

    def resize(self, segment_size: int, now: float) -> None:
        """Go on with segments of another size: what was there from the front stays."""
        front = b"".join(self.parts[number] for number in range(self.next_missing))
        self.clear()
        self.segment_size = segment_size
        self.segments = segment_count(self.size, segment_size)
        for number in range(len(front) // segment_size):
            self.add(number, front[number * segment_size : (number + 1) * segment_size], now)

    def join(self) -> bytes:
        """All of it, once nothing is missing."""
        parts = self.parts
        return parts[0] if self.segments == 1 else b"".join(parts[number] for number in range(self.segments))


class Early:
    """Segments of a version whose metadata has not arrived."""

    __slots__ = ("account", "held", "parts", "since")

    def __init__(self, account: ByteAccount, now: float) -> None:
        self.account = account
        self.parts: dict[int, bytes] = {}
        self.held = 0
        self.since = now
