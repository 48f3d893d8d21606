"""Time for links: a scheduler that an event loop or a test can stand behind."""

import heapq
from collections.abc import Callable
from itertools import count
from typing import Protocol


class Scheduler(Protocol):
    """What a link needs of time. `asyncio` loops are adapted in `psirp_stack.forwarding_node`."""

    def now(self) -> float:
        """Seconds on a clock that never goes back."""

    def call_at(self, when: float, action: Callable[[], object]) -> object:
        """Run `action` once the clock shows `when`; actions for the same moment run in the order they were given."""


class VirtualClock:
    """A scheduler whose time passes only when `run` is called: hours of traffic in a moment, the same every time."""

    def __init__(self, start: float = 0.0) -> None:
        self._now = start
        self._order = count()
        self._pending: list[tuple[float, int, Callable[[], object]]] = []

    def now(self) -> float:
        return self._now

    def call_at(self, when: float, action: Callable[[], object]) -> None:
        heapq.heappush(self._pending, (max(when, self._now), next(self._order), action))

    @property
    def pending(self) -> int:
        return len(self._pending)

    def run(self, until: float = float("inf"), *, most: int = 1_000_000) -> int:
        """Run what is due up to `until`, and what that schedules; say how many actions ran.

        Ends with an error after `most` actions, so that a network that feeds itself does not hang a test.
        """
        done = 0
        while self._pending and self._pending[0][0] <= until:
            if done == most:
                raise RuntimeError(f"more than {most} actions without coming to rest")
            self._now, _, action = heapq.heappop(self._pending)
            action()
            done += 1
        if until != float("inf"):
            self._now = max(self._now, until)
        return done
