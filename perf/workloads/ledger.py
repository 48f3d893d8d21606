"""What a load generator knows by itself: which publication went where, and how late it was. Sans-I/O.

Beside the traces, not instead of them: a table at the end of a run, and the word that a load was not kept up with.
"""

from collections import defaultdict
from dataclasses import dataclass, field
from typing import Final

REMEMBERED: Final = 200_000


@dataclass(slots=True)
class _Pending:
    due: float
    load: float
    subscribers: int
    have: set[tuple[int, int]] = field(default_factory=set)
    """Hops and number of those who have it."""


@dataclass(slots=True)
class StepCount:
    """One offered load."""

    offered: int = 0
    completed: int = 0
    failed: int = 0
    """The hub did not take the ping."""
    shed: int = 0
    """Not even sent: too much was under way."""
    delays: list[float] = field(default_factory=list)
    """Of completed publications, in seconds, until the last subscriber had them."""


class WorkloadLedger:
    def __init__(self) -> None:
        self.steps: dict[float, StepCount] = defaultdict(StepCount)
        self.delays: dict[tuple[float, int], list[float]] = defaultdict(list)
        """Of every delivery, in seconds, by offered load and hops."""
        self.repeated = 0
        """Deliveries that somebody had already, or that are of nothing we know."""
        self._pending: dict[int, _Pending] = {}

    @property
    def waiting(self) -> int:
        return len(self._pending)

    def is_waiting(self, number: int) -> bool:
        return number in self._pending

    def offered(self, number: int, due: float, load: float, subscribers: int) -> None:
        if len(self._pending) >= REMEMBERED:
            del self._pending[next(iter(self._pending))]
        self._pending[number] = _Pending(due, load, subscribers)
        self.steps[load].offered += 1

    def failed(self, number: int) -> None:
        pending = self._pending.pop(number, None)
        if pending is not None:
            self.steps[pending.load].failed += 1

    def shed(self, load: float) -> None:
        self.steps[load].offered += 1
        self.steps[load].shed += 1

    def delivered(self, number: int, hop: int, subscriber: int, now: float) -> None:
        pending = self._pending.get(number)
        if pending is None or (hop, subscriber) in pending.have:
            self.repeated += 1
            return
        pending.have.add((hop, subscriber))
        self.delays[pending.load, hop].append(now - pending.due)
        if len(pending.have) == pending.subscribers:
            del self._pending[number]
            count = self.steps[pending.load]
            count.completed += 1
            count.delays.append(now - pending.due)

    def give_up(self) -> int:
        """Nothing more is waited for; says how many never arrived everywhere."""
        left = len(self._pending)
        self._pending.clear()
        return left
