"""Which intent check is next: fair between the networks that callbacks are in, bounded for each. No I/O, no clock.

Rows are known by their number and the name in their callback, each in one of three states: in line, running, or
waiting for its time. A network gets few checks at a time however many names it has, so that nobody can aim the hub at
it, and one that does not answer holds up nobody else. Names that nobody has connected to have half of the places.
"""

import heapq
from dataclasses import dataclass

from serving.fairness import FairQueue, KnownPrefixes


@dataclass(slots=True)
class _Row:
    name: str
    prefix: str
    """What it is counted under."""


class CheckQueue:
    """`queue` and `wait` bring rows in; `ripen`, then `next` say what to start; `finished` what became of it."""

    def __init__(self, concurrency: int, per_prefix: int, prefixes: KnownPrefixes) -> None:
        self._prefixes = prefixes
        self._lines: FairQueue[int] = FairQueue(concurrency, per_prefix, max(1, concurrency // 2))
        self._rows: dict[int, _Row] = {}
        self._queued: set[int] = set()
        self._running: dict[int, str] = {}
        """By row, the prefix whose share it uses."""
        self._asked_again: set[int] = set()
        self._waiting: dict[int, tuple[float, str]] = {}
        """By row, its time, and the prefix that it waits under."""
        self._timers: list[tuple[float, int]] = []
        self._pending_on: dict[str, int] = {}
        self._retries_on: dict[str, int] = {}

    def __len__(self) -> int:
        return len(self._rows)

    @property
    def running(self) -> int:
        return self._lines.shares.held

    def pending_on(self, name: str) -> int:
        """Rows of the network that this name is in, in any state."""
        return self._pending_on.get(self._prefixes.of(name), 0)

    def retries_on(self, name: str) -> int:
        """Rows of the network that this name is in which wait for their time."""
        return self._retries_on.get(self._prefixes.of(name), 0)

    @property
    def next_time(self) -> float | None:
        """When `ripen` has something to do."""
        return self._timers[0][0] if self._timers else None

    def queue(self, row: int, name: str) -> None:
        """To be checked as soon as its turn comes."""
        if row in self._running:
            self._asked_again.add(row)  # its number may be a new request's by now: look at it when this run is over
            return
        if row in self._queued:
            return
        self._unwait(row)
        self._queued.add(row)
        self._lines.put(self._enrol(row, name), name, row)

    def wait(self, row: int, name: str, at: float) -> None:
        """A row from the store, to be checked at its time."""
        self._put_off(row, name, at)

    def ripen(self, now: float) -> None:
        while self._timers and self._timers[0][0] <= now:
            at, row = heapq.heappop(self._timers)
            waiting = self._waiting.get(row)
            if waiting is not None and waiting[0] == at:  # otherwise it was queued meanwhile by a newer request
                self.queue(row, self._rows[row].name)

    def next(self) -> int | None:
        """The row to check now; it counts as running until `finished`."""
        found = self._lines.take()
        if found is None:
            return None
        prefix, row = found
        self._queued.discard(row)
        self._running[row] = prefix
        return row

    def moved(self, row: int, prefix: str) -> bool:
        """A running check is about to connect to this prefix; False when that has its share already."""
        if not self._lines.move(self._running[row], prefix):
            return False
        self._running[row] = prefix
        return True

    def finished(self, row: int, again: float | None, now: float) -> None:
        """Its check is over. `again`: when to look at the row again, if ever."""
        prefix = self._running.pop(row)
        if row in self._asked_again:
            self._asked_again.discard(row)
            again = now
        if again is None:
            _take_away(self._pending_on, self._rows.pop(row).prefix)
        else:
            self._put_off(row, self._rows[row].name, again)
        self._lines.release(prefix)

    def enter(self, name: str) -> str | None:
        """A check that is not a row's takes a place: says under which prefix; None when there is no place."""
        prefix = self._prefixes.of(name)
        return prefix if self._lines.acquire(prefix) else None

    def move(self, before: str, after: str) -> bool:
        """As `moved`, for a check that is not a row's."""
        return self._lines.move(before, after)

    def leave(self, prefix: str) -> None:
        """Follows `enter`."""
        self._lines.release(prefix)

    def _enrol(self, row: int, name: str) -> str:
        """Count a row where its name is known to be now."""
        prefix = self._prefixes.of(name)
        known = self._rows.get(row)
        if known is not None:
            _take_away(self._pending_on, known.prefix)
        self._rows[row] = _Row(name, prefix)
        _add(self._pending_on, prefix)
        return prefix

    def _put_off(self, row: int, name: str, at: float) -> None:
        self._unwait(row)
        prefix = self._enrol(row, name)
        _add(self._retries_on, prefix)
        self._waiting[row] = (at, prefix)
        heapq.heappush(self._timers, (at, row))

    def _unwait(self, row: int) -> None:
        found = self._waiting.pop(row, None)
        if found is not None:
            _take_away(self._retries_on, found[1])


def _add(numbers: dict[str, int], key: str) -> None:
    numbers[key] = numbers.get(key, 0) + 1


def _take_away(numbers: dict[str, int], key: str) -> None:
    """Prefixes with nothing are forgotten: there may be very many of them over time."""
    left = numbers.get(key, 0) - 1
    if left > 0:
        numbers[key] = left
    else:
        numbers.pop(key, None)
