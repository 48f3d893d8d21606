"""How much an item's reader takes: what it set, less what it was given and has not consumed."""

from psirp_stack.transport.config import VERSION_COST
from psirp_stack.transport.receiver_context import ReceiverContext


class ReaderRoom:
    """The room of one item."""

    __slots__ = ("_context", "_set", "_unconsumed", "offered")

    def __init__(self, context: ReceiverContext) -> None:
        self._context = context
        self._set: int | None = None
        self._unconsumed = 0
        self.offered = context.config.room_bytes
        """What publishers were last told."""

    @property
    def bytes(self) -> int:
        """Bytes that the reader takes now."""
        if len(self._context.events) >= self._context.config.max_events:
            return 0
        if self._set is None:
            return self._context.config.room_bytes
        return max(0, self._set - self._unconsumed)

    def set(self, room: int) -> bool:
        """The reader says how much it takes in all; true when publishers should know of the change at once."""
        self._set = room
        return self._is_worth_telling

    def handed_up(self, cost: int) -> None:
        if self._set is not None:
            self._unconsumed += cost

    def consumed(self, cost: int) -> bool:
        """The reader is done with versions of this cost; true when publishers should know of it at once."""
        self._unconsumed = max(0, self._unconsumed - cost)
        return self._is_worth_telling

    def offer(self) -> int:
        """The room, to be told to a publisher."""
        self.offered = self.bytes
        return self.offered

    @property
    def _is_worth_telling(self) -> bool:
        room = self.bytes
        whole = self._set if self._set is not None else self._context.config.room_bytes
        return room - self.offered >= whole // 2 or self.offered < VERSION_COST <= room
