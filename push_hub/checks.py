"""Which intent check is next: fair between callback hosts, bounded for each. No I/O, no clock.

Rows are known by their number only, each in one of three states: in its host's line, running, or waiting for its
time. A host gets few checks at a time however many wait for it, so that nobody can aim the hub at a host, and a host
that does not answer holds up nobody else.
"""

import heapq
from collections import deque


class CheckQueue:
    """`queue` and `wait` bring rows in; `ripen`, then `next` say what to start; `finished` what became of it."""

    def __init__(self, concurrency: int, per_host: int) -> None:
        self._concurrency = concurrency
        self._per_host = per_host
        self._lines: dict[str, deque[int]] = {}
        self._turn: deque[str] = deque()
        self._in_turn: set[str] = set()
        self._queued: set[int] = set()
        self._running: set[int] = set()
        self._asked_again: set[int] = set()
        self._synchronous = 0
        self._running_on: dict[str, int] = {}
        self._waiting: dict[int, tuple[float, str]] = {}
        self._timers: list[tuple[float, int]] = []
        self._pending_on: dict[str, int] = {}
        self._retries_on: dict[str, int] = {}

    def __len__(self) -> int:
        return len(self._queued) + len(self._running) + len(self._waiting)

    @property
    def running(self) -> int:
        return len(self._running) + self._synchronous

    def pending_on(self, host: str) -> int:
        """Rows of this host, in any state."""
        return self._pending_on.get(host, 0)

    def retries_on(self, host: str) -> int:
        """Rows of this host that wait for their time."""
        return self._retries_on.get(host, 0)

    @property
    def next_time(self) -> float | None:
        """When `ripen` has something to do."""
        return self._timers[0][0] if self._timers else None

    def queue(self, row: int, host: str) -> None:
        """To be checked as soon as its turn comes."""
        if row in self._running:
            self._asked_again.add(row)  # its number may be a new request's by now: look at it when this run is over
            return
        if row in self._queued:
            return
        if not self._unwait(row):
            _add(self._pending_on, host)
        self._queued.add(row)
        self._lines.setdefault(host, deque()).append(row)
        self._give_turn(host)

    def wait(self, row: int, host: str, at: float) -> None:
        """A row from the store, to be checked at its time."""
        if row not in self._queued and row not in self._running and row not in self._waiting:
            _add(self._pending_on, host)
        self._put_off(row, host, at)

    def ripen(self, now: float) -> None:
        while self._timers and self._timers[0][0] <= now:
            at, row = heapq.heappop(self._timers)
            waiting = self._waiting.get(row)
            if waiting is not None and waiting[0] == at:  # otherwise it was queued meanwhile by a newer request
                self.queue(row, waiting[1])

    def next(self) -> tuple[int, str] | None:
        """The row to check now and its host; it counts as running until `finished`."""
        while self._turn and self.running < self._concurrency:
            host = self._turn.popleft()
            self._in_turn.discard(host)
            line = self._lines.get(host)
            if not line:
                continue
            row = line.popleft()
            if not line:
                del self._lines[host]
            self._queued.discard(row)
            self._running.add(row)
            _add(self._running_on, host)
            self._give_turn(host)
            return row, host
        return None

    def finished(self, row: int, host: str, again: float | None, now: float) -> None:
        """Its check is over. `again`: when to look at the row again, if ever."""
        self._running.discard(row)
        if row in self._asked_again:
            self._asked_again.discard(row)
            again = now
        if again is None:
            _take_away(self._pending_on, host)
        else:
            self._put_off(row, host, again)
        self._leave(host)

    def enter(self, host: str) -> bool:
        """A check that is not a row's takes a place at its host; False when there is none."""
        if self._running_on.get(host, 0) >= self._per_host or self.running >= self._concurrency:
            return False
        _add(self._running_on, host)
        self._synchronous += 1
        return True

    def leave(self, host: str) -> None:
        """Follows `enter`."""
        self._synchronous -= 1
        self._leave(host)

    def _leave(self, host: str) -> None:
        _take_away(self._running_on, host)
        self._give_turn(host)

    def _put_off(self, row: int, host: str, at: float) -> None:
        if row not in self._waiting:
            _add(self._retries_on, host)
        self._waiting[row] = (at, host)
        heapq.heappush(self._timers, (at, row))

    def _unwait(self, row: int) -> bool:
        found = self._waiting.pop(row, None)
        if found is None:
            return False
        _take_away(self._retries_on, found[1])
        return True

    def _give_turn(self, host: str) -> None:
        free = self._running_on.get(host, 0) < self._per_host
        if free and self._lines.get(host) and host not in self._in_turn:
            self._turn.append(host)
            self._in_turn.add(host)


def _add(numbers: dict[str, int], key: str) -> None:
    numbers[key] = numbers.get(key, 0) + 1


def _take_away(numbers: dict[str, int], key: str) -> None:
    """Hosts with nothing are forgotten: there may be very many of them over time."""
    left = numbers.get(key, 0) - 1
    if left > 0:
        numbers[key] = left
    else:
        numbers.pop(key, None)
