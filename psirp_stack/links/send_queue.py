"""What waits for a line: frames that keep the network together first, then the rest, both bounded.

Hellos, link state, messages of the courier, acknowledgements and requests are few and small. If they waited behind
data, or were dropped with it, neighbours would take each other for dead because there is much to send.
"""

from collections import deque

from psirp_stack.control.frames import is_control
from psirp_stack.wire.numbers import NEXT_OFFSET, HeaderType

DEFAULT_LIMIT = 256
"""Frames of each kind."""
_REQUESTS = frozenset({int(HeaderType.SUBSCRIBE_DATA), int(HeaderType.SUBSCRIBE_METADATA)})


def goes_first(frame: bytes) -> bool:
    """Whether a frame is of the control plane, or says what a receiver has or misses."""
    return len(frame) > NEXT_OFFSET and (frame[NEXT_OFFSET] in _REQUESTS or is_control(frame))


class SendQueue:
    """Two queues of at most `limit` frames each; neither can fill the other's room."""

    __slots__ = ("_data", "_first", "limit")

    def __init__(self, limit: int = DEFAULT_LIMIT) -> None:
        self.limit = limit
        self._first: deque[bytes] = deque()
        self._data: deque[bytes] = deque()

    def __len__(self) -> int:
        return len(self._first) + len(self._data)

    def push(self, frame: bytes) -> bool:
        """Let a frame wait; False when there is no room for its kind."""
        queue = self._first if goes_first(frame) else self._data
        if len(queue) >= self.limit:
            return False
        queue.append(frame)
        return True

    def put_back(self, frame: bytes) -> None:
        """What was taken and could not be sent is the next again, within its kind."""
        (self._first if goes_first(frame) else self._data).appendleft(frame)

    def pop(self) -> bytes | None:
        if self._first:
            return self._first.popleft()
        return self._data.popleft() if self._data else None
