"""The search for the highest rate that a system follows: `psph bench ingest` and `psph bench predict` share it."""

import math
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Final

from perf.bench.ingest_load import OfferedStep

FIRST_RATE: Final = 100.0

OfferRate = Callable[[float, float], Awaitable[OfferedStep]]
"""Offer a rate for so many seconds."""


@dataclass(frozen=True, slots=True)
class SearchSteps:
    coarse: float
    """Seconds of a step while the rate is doubled."""
    fine: float
    """Seconds of a step while it is narrowed down."""
    halvings: int
    highest: float = 12_800.0
    """No higher rate is tried."""


@dataclass(slots=True)
class FoundRate:
    """What the search for one system's highest rate saw."""

    best: OfferedStep | None = None
    steps: list[OfferedStep] = field(default_factory=list)
    half: OfferedStep | None = None
    overload: OfferedStep | None = None

    @property
    def rate(self) -> float:
        return math.nan if self.best is None else self.best.rate


async def find_rate(offer: OfferRate, steps: SearchSteps) -> FoundRate:
    """Doubles the rate until it is not followed, then narrows it down."""
    found = FoundRate()
    above = FIRST_RATE
    while above <= steps.highest and await _follows(offer, above, steps.coarse, found):
        above *= 2
    below = above / 2
    for _ in range(steps.halvings):
        middle = math.sqrt(above * below)
        if await _follows(offer, middle, steps.fine, found):
            below = middle
        else:
            above = middle
    return found


async def _follows(offer: OfferRate, rate: float, seconds: float, found: FoundRate) -> bool:
    """A rate that is not followed has a second chance, because the machine does other things too."""
    for _ in range(2):
        step = await offer(rate, seconds)
        found.steps.append(step)
        if step.is_followed:
            if found.best is None or rate > found.best.rate:
                found.best = step
            return True
    return False
