"""Has this sequence number been seen? A sliding window of bits for each stream of numbers, and a bound on streams.

The window lets numbers arrive out of order, up to its size, and refuses what is older: it cannot be told from a replay.
"""

from collections import OrderedDict

DEFAULT_WINDOW = 4096
DEFAULT_STREAMS = 65_536


class ReplayWindow:
    """The highest number seen, and which of those just below it were."""

    __slots__ = ("_highest", "_seen", "_size")

    def __init__(self, size: int = DEFAULT_WINDOW) -> None:
        self._size = size
        self._highest = -1
        self._seen = 0
        """Bit i stands for `highest - i`."""

    def accept(self, sequence: int) -> bool:
        """Note a number; False when it was seen before or is too old to know."""
        if sequence > self._highest:
            ahead = sequence - self._highest
            # Shifting by the whole distance would make a number as long as the jump.
            self._seen = 1 if ahead >= self._size else ((self._seen << ahead) | 1) & ((1 << self._size) - 1)
            self._highest = sequence
            return True
        behind = self._highest - sequence
        if behind >= self._size or self._seen >> behind & 1:
            return False
        self._seen |= 1 << behind
        return True


class ReplayGuard:
    """A window per stream. Beyond `max_streams` the one that was used longest ago is forgotten, and counted."""

    __slots__ = ("_max_streams", "_size", "_windows", "forgotten")

    def __init__(self, window: int = DEFAULT_WINDOW, max_streams: int = DEFAULT_STREAMS) -> None:
        if window < 1 or max_streams < 1:
            raise ValueError("a replay guard needs a window and room for a stream")
        self._windows: OrderedDict[bytes, ReplayWindow] = OrderedDict()
        self._size = window
        self._max_streams = max_streams
        self.forgotten = 0

    def accept(self, stream: bytes, sequence: int) -> bool:
        window = self._windows.get(stream)
        if window is None:
            if len(self._windows) >= self._max_streams:
                self._windows.popitem(last=False)
                self.forgotten += 1
            window = self._windows[stream] = ReplayWindow(self._size)
        else:
            self._windows.move_to_end(stream)
        return window.accept(sequence)
