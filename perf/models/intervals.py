"""How sure a simulated mean is: independent runs, and the interval that Student's t gives around their mean."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from perf.models.assumptions import ModelError
from perf.pipeline.statistics import student_p

CONFIDENCE: Final = 0.95


@dataclass(frozen=True, slots=True)
class MeanInterval:
    mean: float
    margin: float
    runs: int

    def contains(self, value: float) -> bool:
        return abs(value - self.mean) <= self.margin


def replicate(measure: Callable[[int], float], runs: int, seed: int) -> MeanInterval:
    """`measure` gets the seed of each run."""
    return interval_of([measure(seed + number) for number in range(runs)])


def interval_of(values: Sequence[float]) -> MeanInterval:
    if len(values) < 2:
        raise ModelError(f"an interval needs at least 2 runs, not {len(values)}")
    mean = sum(values) / len(values)
    deviation = math.sqrt(sum((value - mean) ** 2 for value in values) / (len(values) - 1))
    return MeanInterval(mean, _t(len(values) - 1) * deviation / math.sqrt(len(values)), len(values))


def _t(degrees: int) -> float:
    """Where two-sided p falls to what confidence leaves."""
    low, high = 0.0, 1000.0
    while high - low > 1e-9:
        middle = (low + high) / 2
        low, high = (middle, high) if student_p(middle, degrees) > 1 - CONFIDENCE else (low, middle)
    return high
