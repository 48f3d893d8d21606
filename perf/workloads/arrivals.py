"""When publications are due: an open-loop schedule, made before anything is sent. Sans-I/O.

Nobody waits for an answer: a publication is due at its time whether the ones before it have arrived or not, and its
delay counts from that time, not from when a busy sender got round to it. Otherwise every stall would hide the very
publications that it delayed (coordinated omission).
"""

import random
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

MOST_ARRIVALS: Final = 2_000_000
BURST: Final = 20


class ArrivalShape(StrEnum):
    STEADY = "steady"
    """At equal distances."""
    POISSON = "poisson"
    """At random, as many independent publishers would."""
    BURSTS = "bursts"
    """`BURST` at once, then a pause, at the same mean rate."""


@dataclass(frozen=True, slots=True)
class ArrivalStep:
    """One stretch of a schedule."""

    rate: float
    """Publications a second, on average."""
    seconds: float
    shape: ArrivalShape = ArrivalShape.STEADY

    def __post_init__(self) -> None:
        if self.rate <= 0 or self.seconds <= 0:
            raise ValueError(f"a step has a rate and a length above 0, not {self.rate:g}/s for {self.seconds:g} s")
        if self.rate * self.seconds > MOST_ARRIVALS:
            raise ValueError(f"a step has at most {MOST_ARRIVALS:,} publications")


@dataclass(frozen=True, slots=True)
class DuePublication:
    """A publication that is due."""

    number: int
    at: float
    """Seconds after the beginning."""
    load: float


def times_of(step: ArrivalStep, rng: random.Random) -> Iterator[float]:
    """Seconds after the step's beginning, in order, all below its length."""
    match step.shape:
        case ArrivalShape.STEADY:
            for number in range(round(step.rate * step.seconds)):
                yield min(number / step.rate, step.seconds)
        case ArrivalShape.POISSON:
            at = rng.expovariate(step.rate)
            while at < step.seconds:
                yield at
                at += rng.expovariate(step.rate)
        case ArrivalShape.BURSTS:
            for number in range(round(step.rate * step.seconds)):
                yield min(number // BURST * BURST / step.rate, step.seconds)


def schedule(steps: Iterable[ArrivalStep], seed: int) -> list[DuePublication]:
    """All steps, one after the other; the same for the same seed."""
    rng = random.Random(seed)  # noqa: S311 - a reproducible history
    found: list[DuePublication] = []
    begin = 0.0
    for step in steps:
        found += (
            DuePublication(number, begin + at, step.rate)
            for number, at in enumerate(times_of(step, rng), start=len(found))
        )
        begin += step.seconds
    return found


class Pacer:
    """Says what is due, and when to ask again. Who asks late gets everything that became due meanwhile."""

    def __init__(self, arrivals: Sequence[DuePublication]) -> None:
        self._arrivals = arrivals
        self._next = 0

    @property
    def left(self) -> int:
        return len(self._arrivals) - self._next

    def due(self, passed: float) -> Sequence[DuePublication]:
        """What became due since the last time, `passed` seconds after the beginning."""
        first = self._next
        while self._next < len(self._arrivals) and self._arrivals[self._next].at <= passed:
            self._next += 1
        return self._arrivals[first : self._next]

    def next_at(self) -> float | None:
        """Seconds after the beginning; None when nothing is left."""
        return self._arrivals[self._next].at if self.left else None
