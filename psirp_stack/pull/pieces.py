"""The pieces of one version on their way: which are there, which were asked for, and how many at a time.

Twice as many are asked for while all that was asked for comes, half as many when something stays away.
"""

from psirp_stack.pull.messages import OfferedVersion
from psirp_stack.transport.messages import Range, segment_count
from psirp_stack.transport.source import ranges_of

FIRST_WINDOW = 32
LARGEST_WINDOW = 128
SMALLEST_WINDOW = 4


class PieceWindow:
    """How many pieces may be under way; lives as long as the request, over several versions."""

    def __init__(self) -> None:
        self.size = FIRST_WINDOW

    def grow(self) -> None:
        self.size = min(2 * self.size, LARGEST_WINDOW)

    def shrink(self) -> None:
        self.size = max(self.size // 2, SMALLEST_WINDOW)


class VersionBody:
    """One version, put together from pieces."""

    def __init__(self, offered: OfferedVersion, piece_size: int, window: PieceWindow) -> None:
        self.offered = offered
        self.piece_size = piece_size
        self.parts: dict[int, bytes] = {}
        self._count = segment_count(offered.body_size, piece_size)
        self._window = window
        self._next = 0
        self._under_way: set[int] = set()

    @property
    def is_whole(self) -> bool:
        return len(self.parts) == self._count

    def add(self, place: int, content: bytes) -> bool:
        """Whether this is a piece that was lacking."""
        last = self._count - 1
        if not 0 <= place <= last or place in self.parts:
            return False
        if len(content) != (self.piece_size if place < last else self.offered.body_size - last * self.piece_size):
            return False
        self.parts[place] = content
        self._under_way.discard(place)
        if not self._under_way:
            self._window.grow()
        return True

    def to_ask(self) -> tuple[Range, ...]:
        """What to ask for now; empty while enough is under way."""
        if len(self._under_way) > self._window.size // 2:
            return ()
        numbers: list[int] = []
        room = self._window.size - len(self._under_way)
        while self._next < self._count and len(numbers) < room:
            if self._next not in self.parts:
                numbers.append(self._next)
            self._next += 1
        self._under_way.update(numbers)
        return ranges_of(numbers)

    def to_ask_again(self) -> tuple[Range, ...]:
        """Something stayed away: the first of what is missing."""
        self._window.shrink()
        missing = (place for place in range(self._count) if place not in self.parts)
        numbers = [number for number, _ in zip(missing, range(max(self._window.size, 1)), strict=False)]
        self._under_way = set(numbers)
        # What was asked for beyond these is looked at again when these are here.
        self._next = numbers[-1] + 1 if numbers else self._count
        return ranges_of(numbers)

    def join(self) -> bytes:
        return b"".join(self.parts[place] for place in range(self._count))
