"""Content on its way in: the segments that are there, and which are missing."""

from typing import TYPE_CHECKING

from psirp_stack.transport.accounts import SEGMENT_COST, ByteAccount
from psirp_stack.transport.messages import MAX_RANGES, Range, segment_count

if TYPE_CHECKING:
    from psirp_stack.transport.source import PublisherSequence


class Body:
    """The bytes of one version id, put together from segments. Holds only what arrived."""

    __slots__ = (
        "asked_through",
        "gap_since",
        "held",
        "highest",
        "next_missing",
        "parts",
        "segment_size",
        "segments",
        "size",
        "source",
        "timed",
        "touched",
        "version_id",
    )

    def __init__(
        self, version_id: bytes, size: int, segment_size: int, now: float, source: "PublisherSequence"
    ) -> None:
        self.version_id = version_id
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
        self.gap_since: float | None = None
        """When a segment arrived before one with a lower number, and nothing was asked since."""
        self.asked_through = -1
        """Gaps up to here were asked for."""
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

    def add(self, number: int, payload: bytes) -> bool:
        """Put a segment that is lacking in its place; False when there is no room for it."""
        cost = len(payload) + SEGMENT_COST
        if not self.source.account.charge(cost):
            return False
        parts = self.parts
        parts[number] = payload
        self.held += cost
        if number == self.next_missing:
            number += 1
            while number in parts:
                number += 1
            self.next_missing = number
            self.highest = max(self.highest, number - 1)
        elif number > self.highest:
            self.highest = number
        return True

    def asked(self, now: float) -> None:
        """What is missing is being asked for."""
        self.gap_since = None
        first = max(self.asked_through + 1, self.next_missing)
        # What was asked for before is asked for again, so it tells nothing any more.
        self.timed = (first, self.highest, now) if first < self.highest else None
        self.asked_through = max(self.highest, self.asked_through)

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

    def missing_ranges(self) -> tuple[Range, ...]:
        """What is missing, from the front, in no more ranges than a message holds."""
        ranges: list[Range] = []
        at = self.next_missing
        for there in sorted(number for number in self.parts if number > at):
            if there > at:
                ranges.append((at, there - 1))
                if len(ranges) == MAX_RANGES:
                    return tuple(ranges)
            at = there + 1
        if at < self.segments:
            ranges.append((at, self.segments - 1))
        return tuple(ranges)

    def clear(self) -> None:
        """Let go of all segments."""
        self.source.account.release(self.held)
        self.parts = {}
        self.held = 0
        self.highest = self.asked_through = -1
        self.next_missing = 0
        self.gap_since = self.timed = None

    def resize(self, segment_size: int) -> None:
        """Go on with segments of another size: what was there from the front stays."""
        front = b"".join(self.parts[number] for number in range(self.next_missing))
        self.clear()
        self.segment_size = segment_size
        self.segments = segment_count(self.size, segment_size)
        for number in range(len(front) // segment_size):
            self.add(number, front[number * segment_size : (number + 1) * segment_size])

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
