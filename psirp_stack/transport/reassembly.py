"""Content on its way in: the segments that are there, and which are missing."""

from typing import TYPE_CHECKING

from psirp_stack.transport.messages import MAX_RANGES, Range, segment_count

if TYPE_CHECKING:
    from psirp_stack.transport.source import Source


class Body:
    """The bytes of one version id, put together from segments. Holds only what arrived."""

    __slots__ = (
        "asked_through",
        "gap_since",
        "held",
        "highest",
        "missing",
        "next_missing",
        "parts",
        "segment_size",
        "size",
        "source",
        "timed",
        "touched",
        "version_id",
    )

    def __init__(self, version_id: bytes, size: int, segment_size: int, now: float, source: "Source") -> None:
        self.version_id = version_id
        self.size = size
        self.source = source
        """Whose announcement it was begun for."""
        self.segment_size = segment_size
        self.parts: list[bytes | None] = [None] * segment_count(size, segment_size)
        self.missing = len(self.parts)
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

    def add(self, number: int, payload: bytes) -> bool:
        """Put a segment in its place; False when it is there, or is none of this content."""
        parts = self.parts
        last = len(parts) - 1
        if number > last or parts[number] is not None:
            return False
        expected = self.segment_size if number < last else self.size - last * self.segment_size
        if len(payload) != expected:
            return False
        parts[number] = payload
        self.missing -= 1
        self.held += expected
        if number == self.next_missing:
            number += 1
            while number <= last and parts[number] is not None:
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
        parts = self.parts
        at, end = self.next_missing, len(parts)
        while at < end and len(ranges) < MAX_RANGES:
            first = at
            while at < end and parts[at] is None:
                at += 1
            ranges.append((first, at - 1))
            while at < end and parts[at] is not None:
                at += 1
        return tuple(ranges)

    def clear(self) -> int:
        """Let go of all segments; says how many bytes that freed."""
        freed = self.held
        self.parts = [None] * len(self.parts)
        self.missing = len(self.parts)
        self.held = 0
        self.highest = self.asked_through = -1
        self.next_missing = 0
        self.gap_since = self.timed = None
        return freed

    def resize(self, segment_size: int) -> int:
        """Go on with segments of another size: what was there from the front stays. Says how many bytes were let go."""
        front = b"".join(part for part in self.parts[: self.next_missing] if part is not None)
        before = self.held
        self.segment_size = segment_size
        self.parts = [None] * segment_count(self.size, segment_size)
        self.clear()
        for number in range(len(front) // segment_size):
            self.add(number, front[number * segment_size : (number + 1) * segment_size])
        return before - self.held

    def join(self) -> bytes:
        """All of it, once nothing is missing."""
        parts = self.parts
        if len(parts) == 1 and parts[0] is not None:
            return parts[0]
        return b"".join(part for part in parts if part is not None)


class Early:
    """Segments of a version whose metadata has not arrived."""

    __slots__ = ("held", "parts", "since")

    def __init__(self, now: float) -> None:
        self.parts: dict[int, bytes] = {}
        self.held = 0
        self.since = now

    def add(self, number: int, payload: bytes) -> int:
        """Keep a segment; says how many bytes more that holds."""
        if number in self.parts:
            return 0
        self.parts[number] = payload
        self.held += len(payload)
        return len(payload)
