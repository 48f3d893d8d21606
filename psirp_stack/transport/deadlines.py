"""Who is due when: a heap that forgets lazily, so that moving a deadline costs no search."""

import heapq
from itertools import count
from typing import Generic, TypeVar

Key = TypeVar("Key")


class Deadlines(Generic[Key]):
    """At most one moment for each key."""

    __slots__ = ("_due", "_heap", "_order")

    def __init__(self) -> None:
        self._heap: list[tuple[float, int, Key]] = []
        self._due: dict[Key, float] = {}
        self._order = count()

    def set(self, key: Key, when: float | None) -> None:
        if when is None:
            self._due.pop(key, None)
        elif self._due.get(key) != when:
            self._due[key] = when
            heapq.heappush(self._heap, (when, next(self._order), key))
            if len(self._heap) > 64 + 4 * len(self._due):
                self._heap = [(due, next(self._order), key) for key, due in self._due.items()]
                heapq.heapify(self._heap)

    def sooner(self, key: Key, when: float) -> None:
        """Be due at `when` unless that is so before."""
        if when < self._due.get(key, float("inf")):
            self.set(key, when)

    def when(self, key: Key) -> float | None:
        return self._due.get(key)

    def next(self) -> float | None:
        heap, due = self._heap, self._due
        while heap and due.get(heap[0][2]) != heap[0][0]:
            heapq.heappop(heap)
        return heap[0][0] if heap else None

    def pop_due(self, now: float) -> list[Key]:
        """The keys whose moment has come; they have none from now on."""
        popped = []
        while (first := self.next()) is not None and first <= now:
            key = heapq.heappop(self._heap)[2]
            del self._due[key]
            popped.append(key)
        return popped
