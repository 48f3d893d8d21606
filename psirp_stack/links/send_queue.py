"""What waits for a line: frames that keep the network together first, then the rest, both bounded.

Hellos, link state, messages of the courier, acknowledgements and requests are few and small. If they waited behind
data, or were dropped with it, neighbours would take each other for dead because there is much to send.
"""

from collections import deque

from psirp_stack.control.frames import is_control
from psirp_stack.wire.numbers import CONGESTION_MARK, MARKS_OFFSET, NEXT_OFFSET, HeaderType

DEFAULT_LIMIT = 256
"""Frames of each kind."""
_REQUESTS = frozenset({int(HeaderType.SUBSCRIBE_DATA), int(HeaderType.SUBSCRIBE_METADATA)})


def goes_first(frame: bytes) -> bool:
    """Whether a frame is of the control plane, or says what a receiver has or misses."""
    return len(frame) > NEXT_OFFSET and (frame[NEXT_OFFSET] in _REQUESTS or is_control(frame))


class SendQueue:
    """Two queues of at most `limit` frames each; neither can fill the other's room."""

    __slots__ = ("_data", "_first", "limit", "mark_from", "marked")

    def __init__(self, limit: int = DEFAULT_LIMIT, mark_from: int | None = None) -> None:
        """Data is marked where so many frames of it wait already; without a number, half of the limit."""
        self.limit = limit
        self.mark_from = -(-limit // 2) if mark_from is None else mark_from
        self._first: deque[bytes] = deque()
        self._data: deque[bytes] = deque()
        self.marked = 0
        """Frames that were marked because much waits already."""

    def __len__(self) -> int:
        return len(self._first) + len(self._data)

    def push(self, frame: bytes) -> bytes | None:
        """Let a frame wait, perhaps marked; gives what waits, None when there is no room for its kind."""
        first = goes_first(frame)
        queue = self._first if first else self._data
        if len(queue) >= self.limit:
            return None
        if not first and len(queue) >= self.mark_from and len(frame) > MARKS_OFFSET:
            frame = with_mark(frame)
            self.marked += 1
        queue.append(frame)
        return frame

    def put_back(self, frame: bytes) -> None:
        """What was taken and could not be sent is the next again, within its kind."""
        (self._first if goes_first(frame) else self._data).appendleft(frame)

    def pop(self) -> bytes | None:
        if self._first:
            return self._first.popleft()
        return self._data.popleft() if self._data else None


def with_mark(frame: bytes) -> bytes:
    """The frame with the mark of congestion, which its receiver tells the publisher of."""
    marks = frame[MARKS_OFFSET] | CONGESTION_MARK
    return frame[:MARKS_OFFSET] + bytes((marks,)) + frame[MARKS_OFFSET + 1 :]
