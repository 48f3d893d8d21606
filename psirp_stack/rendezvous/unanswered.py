"""Which matches the topology manager has not answered yet: those are said again after a crash."""

import heapq
from dataclasses import dataclass, field

HEAP_SLACK = 1024

ItemName = tuple[bytes, bytes]


@dataclass(slots=True)
class Unanswered:
    """The newest match of each item that is under way. Everything up to `answered` has been dealt with."""

    max_items: int
    answered: int
    _items: dict[ItemName, tuple[int, bool]] = field(default_factory=dict)
    _heap: list[int] = field(default_factory=list)
    _by_generation: dict[int, ItemName] = field(default_factory=dict)
    repeating: bool = False
    """True while matches of a former life of the rendezvous are still to be said again."""
    overflowed: bool = False
    """True: there were too many to keep, so nobody knows any more which were answered."""

    def said(self, item: ItemName, generation: int, gone: bool) -> bool:
        """A match was said. False when there are too many to keep."""
        former = self._items.get(item)
        if former is not None:
            if former[0] >= generation:
                return True
            del self._by_generation[former[0]]
        elif len(self._items) >= self.max_items:
            self.overflowed = True
            return False
        self._items[item] = generation, gone
        self._by_generation[generation] = item
        heapq.heappush(self._heap, generation)
        if len(self._heap) > 2 * len(self._items) + HEAP_SLACK:
            self._heap = sorted(self._by_generation)
        return True

    def is_answered(self, item: ItemName, generation: int, newest: int) -> bool | None:
        """Topology answered. True when nobody had or wanted the item; None when its match was not kept here."""
        known = self._items.get(item)
        if known is None:
            return None
        if known[0] > generation:
            return False
        del self._items[item]
        del self._by_generation[known[0]]
        while self._heap and self._heap[0] not in self._by_generation:
            heapq.heappop(self._heap)
        if not self.repeating and not self.overflowed:
            self.answered = max(self.answered, self._heap[0] - 1 if self._heap else newest)
        return known[1]

    def clear(self) -> None:
        """All matches are going to be said again."""
        self._items.clear()
        self._heap.clear()
        self._by_generation.clear()
        self.overflowed = False

    def __len__(self) -> int:
        return len(self._items)
