"""Which topic is fetched next. No I/O, no clock.

Rules: one fetch at a time for a topic; at most so many at once, and so many for one host; hosts take turns, and
within a host topics go in the order they were asked for. Asking for a topic that waits changes nothing (the
coming fetch will see what the ping was about); asking for one that is being fetched makes it wait for one more
turn, because the running fetch may have read the old content.
"""

import heapq
from collections import OrderedDict, deque
from urllib.parse import urlsplit


def host_of(url: str) -> str:
    try:
        return urlsplit(url).netloc.rpartition("@")[2].lower()
    except ValueError:
        return ""


class FetchQueue:
    def __init__(self, max_fetches: int, max_per_host: int) -> None:
        self._max_fetches = max_fetches
        self._max_per_host = max_per_host
        self._hosts: OrderedDict[str, deque[str]] = OrderedDict()
        """Hosts with waiting topics and a free place; the first is next."""
        self._held: dict[str, deque[str]] = {}
        """Hosts with waiting topics but no free place."""
        self._waiting: set[str] = set()
        self._active: dict[str, bool] = {}
        """Topic being fetched: was it asked for again?"""
        self._active_by_host: dict[str, int] = {}
        self._later: dict[str, float] = {}
        self._timers: list[tuple[float, str]] = []

    def __len__(self) -> int:
        """Topics that wait: now, later, or for another turn."""
        return len(self._waiting) + len(self._later) + sum(self._active.values())

    @property
    def active(self) -> int:
        return len(self._active)

    def __contains__(self, topic: str) -> bool:
        return topic in self._waiting or topic in self._later or topic in self._active

    def ask(self, topic: str) -> None:
        if topic in self._active:
            self._active[topic] = True
        elif topic not in self._waiting:
            self._later.pop(topic, None)
            self._wait(topic)

    def ask_later(self, topic: str, at: float) -> None:
        """A retry. A topic that waits already, or is asked for before `at`, does not wait for it."""
        if topic in self:
            return
        self._later[topic] = at
        heapq.heappush(self._timers, (at, topic))

    def next(self, now: float) -> str | None:
        """Take the next topic to fetch, or None when nothing can be started now."""
        while self._timers and self._timers[0][0] <= now:
            at, topic = heapq.heappop(self._timers)
            if self._later.get(topic) == at:
                del self._later[topic]
                self._wait(topic)
        if len(self._active) >= self._max_fetches or not self._hosts:
            return None
        host, topics = self._hosts.popitem(last=False)
        topic = topics.popleft()
        self._waiting.discard(topic)
        self._active[topic] = False
        running = self._active_by_host[host] = self._active_by_host.get(host, 0) + 1
        if topics:
            if running >= self._max_per_host:
                self._held[host] = topics
            else:
                self._hosts[host] = topics
        return topic

    def finished(self, topic: str) -> bool:
        """A fetch ended. True when the topic was asked for meanwhile and now waits again."""
        again = self._active.pop(topic)
        host = host_of(topic)
        running = self._active_by_host[host] - 1
        if running:
            self._active_by_host[host] = running
        else:
            del self._active_by_host[host]
        if host in self._held:
            self._hosts[host] = self._held.pop(host)
        if again:
            self._wait(topic)
        return again

    def wake_at(self) -> float | None:
        """When a retry comes due."""
        while self._timers and self._later.get(self._timers[0][1]) != self._timers[0][0]:
            heapq.heappop(self._timers)
        return self._timers[0][0] if self._timers else None

    def _wait(self, topic: str) -> None:
        host = host_of(topic)
        self._waiting.add(topic)
        if host in self._held:
            self._held[host].append(topic)
        elif host in self._hosts:
            self._hosts[host].append(topic)
        elif self._active_by_host.get(host, 0) >= self._max_per_host:
            self._held[host] = deque([topic])
        else:
            self._hosts[host] = deque([topic])
