"""The few formulas of statistics that are needed, on numbers that Spark has already summed up. No Spark, no scipy.

Student's t and Wilson's score are enough here; scipy would be a large dependency for two functions.
"""

import math
from typing import Final

SIGNIFICANT: Final = 0.01
_TINY: Final = 1e-300
_ENOUGH: Final = 1e-15
_MOST_TERMS: Final = 10_000


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


def wilson(count: int, of: int, z: float = 1.959964) -> tuple[float, float]:
    """Where a share lies, by Wilson's score: also for shares that are nearly none or nearly all."""
    share = count / of
    middle = share + z * z / (2 * of)
    away = z * math.sqrt(share * (1 - share) / of + z * z / (4 * of * of))
    return (middle - away) / (1 + z * z / of), (middle + away) / (1 + z * z / of)


def share_difference(first: int, of_first: int, second: int, of_second: int) -> tuple[float, float]:
    """Where the difference of two shares lies (Newcombe's interval)."""
    one, two = first / of_first, second / of_second
    (low_one, high_one), (low_two, high_two) = wilson(first, of_first), wilson(second, of_second)
    away = two - one
    return (
        away - math.hypot(two - low_two, high_one - one),
        away + math.hypot(high_two - two, one - low_one),
    )
