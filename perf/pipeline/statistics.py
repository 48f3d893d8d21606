"""The few formulas of statistics that are needed, on numbers that Spark has already summed up. No Spark, no scipy.

Normal and Student's t distributions are enough here: a Mann-Whitney U of samples above twenty or so is normal to a
very good approximation, also with ties once its variance is corrected for them, and traces have thousands. scipy would
be a large dependency for two functions. Below `FEW` in either sample the answer says so.
"""

import math
from dataclasses import dataclass
from typing import Final

FEW: Final = 20
SIGNIFICANT: Final = 0.01
_TINY: Final = 1e-300
_ENOUGH: Final = 1e-15
_MOST_TERMS: Final = 10_000


def normal_p(z: float) -> float:
    """Two-sided p of a standard normal value."""
    return math.erfc(abs(z) / math.sqrt(2))


def student_p(t: float, degrees: float) -> float:
    """Two-sided p of Student's t."""
    if degrees <= 0 or math.isnan(t):
        return math.nan
    if math.isinf(t):
        return 0.0
    return incomplete_beta(degrees / 2, 0.5, degrees / (degrees + t * t))


def correlation_p(r: float, n: int) -> float:
    """Two-sided p that a correlation of n pairs is zero; for ranks (Spearman) it is the usual approximation."""
    if n < 3 or math.isnan(r):
        return math.nan
    if abs(r) >= 1:
        return 0.0
    return student_p(r * math.sqrt((n - 2) / (1 - r * r)), n - 2)


def incomplete_beta(a: float, b: float, x: float) -> float:
    """Regularised; by its continued fraction (Lentz), on the side where that converges fast."""
    if x <= 0:
        return 0.0
    if x >= 1:
        return 1.0
    if x > (a + 1) / (a + b + 2):
        return 1 - incomplete_beta(b, a, 1 - x)
    front = math.exp(math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b) + a * math.log(x) + b * math.log1p(-x)) / a
    c, d = 1.0, 1 - (a + b) * x / (a + 1)
    d = 1 / (d if abs(d) > _TINY else _TINY)
    value = d
    for m in range(1, _MOST_TERMS):
        for top in (
            m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m)),
            -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1)),
        ):
            d = 1 + top * d
            d = 1 / (d if abs(d) > _TINY else _TINY)
            c = 1 + top / c
            c = c if abs(c) > _TINY else _TINY
            value *= c * d
        if abs(c * d - 1) < _ENOUGH:
            break
    return front * value


@dataclass(frozen=True, slots=True)
class RankTest:
    """Mann-Whitney U of two samples. `slower` is how likely a value of the second is above one of the first."""

    first: int
    second: int
    u: float
    z: float
    p: float
    slower: float

    @property
    def few(self) -> bool:
        return min(self.first, self.second) < FEW

    @property
    def significant(self) -> bool:
        return self.p < SIGNIFICANT


def mann_whitney(first: int, second: int, rank_sum_of_first: float, ties: float) -> RankTest:
    """From the sum of mid-ranks of the first sample and the sum of t^3 - t over tied groups, continuity corrected."""
    if not first or not second:
        return RankTest(first, second, math.nan, math.nan, math.nan, math.nan)
    u = rank_sum_of_first - first * (first + 1) / 2
    both = first * second
    total = first + second
    variance = both / 12 * ((total + 1) - ties / (total * (total - 1)))
    away = u - both / 2
    if variance <= 0:
        return RankTest(first, second, u, 0.0, 1.0, 1 - u / both)
    z = math.copysign(max(abs(away) - 0.5, 0.0), away) / math.sqrt(variance)
    return RankTest(first, second, u, z, normal_p(z), 1 - u / both)
