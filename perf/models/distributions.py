"""Times that a simulation draws, and the moments that formulas take of them."""

import math
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray

from perf.models.assumptions import ModelError, check_not_negative, check_positive

Times = NDArray[np.float64]


class Distribution(Protocol):
    """Of times that are not negative."""

    @property
    def mean(self) -> float: ...

    @property
    def second_moment(self) -> float: ...

    def draw(self, random: Generator, count: int) -> Times: ...


@dataclass(frozen=True, slots=True)
class Exponential:
    mean: float

    def __post_init__(self) -> None:
        check_not_negative(mean=self.mean)

    @property
    def second_moment(self) -> float:
        return 2 * self.mean**2

    def draw(self, random: Generator, count: int) -> Times:
        return random.exponential(self.mean, count)


@dataclass(frozen=True, slots=True)
class Always:
    """The same time each time."""

    mean: float

    def __post_init__(self) -> None:
        check_not_negative(mean=self.mean)

    @property
    def second_moment(self) -> float:
        return self.mean**2

    def draw(self, random: Generator, count: int) -> Times:
        return np.full(count, self.mean)


@dataclass(frozen=True, slots=True)
class LogNormal:
    """By its mean and squared coefficient of variation: what service times often look like."""

    mean: float
    variation: float

    def __post_init__(self) -> None:
        check_positive(mean=self.mean, variation=self.variation)

    @property
    def second_moment(self) -> float:
        return self.mean**2 * (1 + self.variation)

    def draw(self, random: Generator, count: int) -> Times:
        spread = math.log1p(self.variation)
        return random.lognormal(math.log(self.mean) - spread / 2, math.sqrt(spread), count)


@dataclass(frozen=True)
class MeasuredTimes:
    """What was measured: drawn from at random, or in its own order again and again."""

    values: Times
    in_order: bool = False

    def __post_init__(self) -> None:
        if not len(self.values) or not np.isfinite(self.values).all() or (self.values < 0).any():
            raise ModelError("measured times must be there, finite and not negative")

    @property
    def mean(self) -> float:
        return float(self.values.mean())

    @property
    def second_moment(self) -> float:
        return float((self.values**2).mean())

    def draw(self, random: Generator, count: int) -> Times:
        return np.resize(self.values, count) if self.in_order else random.choice(self.values, count)
