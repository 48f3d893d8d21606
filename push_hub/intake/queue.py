"""Which topic is fetched next. No I/O, no clock.

Rules: one fetch at a time for a topic; at most so many at once, so many for one network, and half of all for names that
nobody has connected to; networks take turns,
within one the names do, and within a name topics go in the order they were asked for. Asking for a topic that waits
changes nothing (the coming fetch will see what the ping was about); asking for one that is being fetched makes it
wait for one more turn, because the running fetch may have read the old content.
"""

import heapq
from dataclasses import dataclass

from serving.fairness import FairQueue, KnownPrefixes, name_in


@dataclass(slots=True)
class _Fetching:
    """`prefix`: whose share it uses; `again`: was it asked for meanwhile?"""

    prefix: str
    again: bool = False


class FetchQueue:
    def __init__(self, max_fetches: int, max_per_prefix: int, prefixes: KnownPrefixes) -> None:
        self._prefixes = prefixes
        self._lines: FairQueue[str] = FairQueue(max_fetches, max_per_prefix, max(1, max_fetches // 2))
        self._waiting: set[str] = set()
        self._active: dict[str, _Fetching] = {}
        self._later: dict[str, tuple[float, str]] = {}
        """By topic, its time, and the prefix that its retry is counted under."""
        self._retries_on: dict[str, int] = {}
        self._timers: list[tuple[float, str]] = []

    def __len__(self) -> int:
        """Topics that wait: now, later, or for another turn."""
        return len(self._waiting) + len(self._later) + sum(one.again for one in self._active.values())

    @property
    def active(self) -> int:
        return len(self._active)

    def __contains__(self, topic: str) -> bool:
        return topic in self._waiting or topic in self._later or topic in self._active

    def is_active(self, topic: str) -> bool:
        """Whether it is being fetched."""
        return topic in self._active

    def retries_near(self, topic: str) -> int:
        """Retries that wait for the network that this topic is in."""
        return self._retries_on.get(self._prefixes.of_url(topic), 0)

    def is_known_at(self, topic: str, prefix: str) -> bool:
        """Whether the topic waits under this prefix when it is asked for."""
        return self._prefixes.of_url(topic) == prefix

    def ask(self, topic: str) -> None:
        if topic in self._active:
            self._active[topic].again = True
        elif topic not in self._waiting:
            self._no_longer_later(topic)
            self._wait(topic)

    def ask_later(self, topic: str, at: float) -> None:
        """A retry. A topic that waits already, or is asked for before `at`, does not wait for it."""
        if topic in self:
            return
        prefix = self._prefixes.of_url(topic)
        self._later[topic] = (at, prefix)
        self._retries_on[prefix] = self._retries_on.get(prefix, 0) + 1
        heapq.heappush(self._timers, (at, topic))

    def next(self, now: float) -> str | None:
        """Take the next topic to fetch, or None when nothing can be started now."""
        while self._timers and self._timers[0][0] <= now:
            at, topic = heapq.heappop(self._timers)
            if self._is_due(topic, at):
                self._no_longer_later(topic)
                self._wait(topic)
        found = self._lines.take()
        if found is None:
            return None
        prefix, topic = found
        self._waiting.discard(topic)
        self._active[topic] = _Fetching(prefix)
        return topic

    def moved(self, topic: str, prefix: str) -> bool:
        """The fetch of a topic is about to connect to this prefix; False when that has its share already."""
        fetching = self._active[topic]
        if not self._lines.move(fetching.prefix, prefix):
            return False
        fetching.prefix = prefix
        return True

    def finished(self, topic: str) -> bool:
        """A fetch ended. True when the topic was asked for meanwhile and now waits again."""
        fetching = self._active.pop(topic)
        self._lines.release(fetching.prefix)
        if fetching.again:
            self._wait(topic)
        return fetching.again

    def wake_at(self) -> float | None:
        """When a retry comes due."""
        while self._timers and not self._is_due(self._timers[0][1], self._timers[0][0]):
            heapq.heappop(self._timers)
        return self._timers[0][0] if self._timers else None

    def _is_due(self, topic: str, at: float) -> bool:
        found = self._later.get(topic)
        return found is not None and found[0] == at

    def _no_longer_later(self, topic: str) -> None:
        found = self._later.pop(topic, None)
        if found is not None:
            left = self._retries_on[found[1]] - 1
            if left:
                self._retries_on[found[1]] = left
            else:
                del self._retries_on[found[1]]

    def _wait(self, topic: str) -> None:
        self._waiting.add(topic)
        self._lines.put(self._prefixes.of_url(topic), name_in(topic), topic)
