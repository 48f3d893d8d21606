"""What a forwarder remembers, both of it bounded: routes it has worked out, and filters that may come round again."""

from collections import OrderedDict
from typing import Generic, TypeVar

from psirp_stack.forwarding_model import LinkNumber

Entry = TypeVar("Entry")


class RouteCache(Generic[Entry]):
    """A map in two generations: when the younger is full it becomes the older, and the older is let go.

    So what is in use stays, at the price of one dictionary lookup. `younger` stays the same object for good: a loop
    over a batch may hold on to it.
    """

    __slots__ = ("limit", "older", "turnovers", "younger")

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.turnovers = 0
        self.younger: dict[bytes, Entry] = {}
        self.older: dict[bytes, Entry] = {}

    def find(self, key: bytes) -> Entry | None:
        entry = self.younger.get(key)
        if entry is None:
            entry = self.older.pop(key, None)
            if entry is not None:
                self.remember(key, entry)
        return entry

    def remember(self, key: bytes, entry: Entry) -> None:
        if len(self.younger) >= self.limit:
            self.older = dict(self.younger)
            self.younger.clear()
            self.turnovers += 1
        self.younger[key] = entry

    def clear(self) -> None:
        self.younger.clear()
        self.older.clear()

    def __len__(self) -> int:
        return len(self.younger) + len(self.older)


class LoopMemory:
    """Filters that name another way back into this node, by the link each of them first came from."""

    __slots__ = ("evictions", "first_seen", "limit", "window")

    def __init__(self, limit: int, window: float) -> None:
        self.limit = limit
        self.window = window
        self.evictions = 0
        self.first_seen: OrderedDict[bytes, tuple[LinkNumber | None, float]] = OrderedDict()
        """Least recently renewed first."""

    def expire(self, now: float) -> None:
        first_seen = self.first_seen
        while first_seen and next(iter(first_seen.values()))[1] < now - self.window:
            first_seen.popitem(last=False)

    def is_repeat(self, fid: bytes, may_return: bool, arrival: LinkNumber | None, now: float) -> bool:
        """Whether a filter comes a second time, by another link than the first; remembers it if it may return."""
        self.expire(now)
        first_seen = self.first_seen
        first = first_seen.get(fid)
        if first is not None and first[0] != arrival:
            return True
        if may_return:
            if first is None and len(first_seen) >= self.limit:
                first_seen.popitem(last=False)
                self.evictions += 1
            first_seen[fid] = (arrival, now)
            first_seen.move_to_end(fid)
        return False

    def clear(self) -> None:
        self.first_seen.clear()

    def __len__(self) -> int:
        return len(self.first_seen)
