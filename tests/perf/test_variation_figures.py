"""Formulas of variation, beside scipy and beside figures computed on paper."""

import numpy as np
import pytest
from scipy import stats

from perf.pipeline.resampling import (
    EstimatedDifference,
    credible,
    deviation_of,
    differences,
    enough_for,
    long_enough,
    quantile_of,
    resemblance,
)
from perf.pipeline.statistics import student_p
from perf.pipeline.tables import TimeRow
from perf.pipeline.variation import (
    brown_forsythe,
    change_points,
    homogeneity_rows,
    kruskal_wallis,
    share_larger,
    stability_rows,
    trend,
    weighted_median,
)
from perf.report.plots import without_gaps

EDGES = np.arange(0.0, 41.0)
MIDDLES = (EDGES[:-1] + EDGES[1:]) / 2


def counted(values: "np.ndarray[tuple[int], np.dtype[np.float64]]") -> "np.ndarray[tuple[int], np.dtype[np.float64]]":
    return np.histogram(values, EDGES)[0].astype(np.float64)


def samples(seed: int = 1) -> tuple["np.ndarray[tuple[int], np.dtype[np.float64]]", ...]:
    rng = np.random.default_rng(seed)
    return tuple(
        np.clip(np.floor(rng.gamma(shape, scale, 400)), 0, 39) + 0.5 for shape, scale in ((4.0, 2.0), (4.0, 3.0))
    )


def test_brown_forsythe_and_kruskal_wallis_are_those_of_scipy() -> None:
    one, two = samples()
    first, second = counted(one), counted(two)
    assert brown_forsythe(first, second, MIDDLES) == pytest.approx(stats.levene(one, two, center="median").statistic)
    assert kruskal_wallis(first, second, MIDDLES) == pytest.approx(stats.kruskal(one, two).statistic)
    larger = stats.mannwhitneyu(two, one).statistic / (len(one) * len(two))
    assert share_larger(first, second, MIDDLES) == pytest.approx(larger)


def test_trend_is_theil_sen_and_mann_kendall() -> None:
    rng = np.random.default_rng(3)
    times = np.arange(30.0)
    values = 5 + 0.1 * times + rng.normal(0, 1, 30)
    slope, p = trend(times, values)
    assert slope == pytest.approx(stats.theilslopes(values, times).slope)
    # Kendall's tau by its normal approximation is that test, but for the correction of continuity.
    assert p == pytest.approx(stats.kendalltau(times, values, method="asymptotic").pvalue, abs=0.02)


def test_levels_that_change_are_found_and_noise_is_none() -> None:
    rng = np.random.default_rng(4)
    level = np.concatenate([rng.normal(5, 0.2, 25), rng.normal(7, 0.2, 20), rng.normal(5, 0.2, 15)])
    found = change_points(level)
    assert len(found) == 2
    assert found == pytest.approx([25, 45], abs=1)
    assert change_points(rng.normal(5, 1, 60)) == []
    rows = [TimeRow("r", "push", second, 100, value, value) for second, value in enumerate(level)]
    (row,) = stability_rows(rows)
    assert row.slices == 60
    assert row.changes == ", ".join(str(place) for place in found)
    assert stability_rows(rows[:9]) == []


def test_a_difference_of_variation_is_found_and_equal_ones_are_not() -> None:
    def blocks(scale: float, seed: int) -> "np.ndarray[tuple[int, int], np.dtype[np.float64]]":
        rng = np.random.default_rng(seed)
        return np.array([counted(np.clip(rng.normal(20, scale, 50), 0, 39.9)) for _ in range(20)])

    pairs = {
        ("r", "equal"): ([blocks(3, 1)], [blocks(3, 2)], EDGES),
        ("r", "wider"): ([blocks(3, 3)], [blocks(6, 4)], EDGES),
    }
    rows = {(row.stage, row.test): row for row in homogeneity_rows(pairs)}
    assert rows["wider", "Brown-Forsythe"].p < 0.01
    assert rows["wider", "Brown-Forsythe"].effect_low > 1.7
    assert rows["wider", "Brown-Forsythe"].effect_high < 2.3
    assert rows["equal", "Brown-Forsythe"].p > 0.05
    low, high = (getattr(rows["equal", "Kruskal-Wallis"], name) for name in ("effect_low", "effect_high"))
    assert low < 0.5 < high


@pytest.mark.parametrize("seed", range(5))
def test_intervals_hold_the_truth_although_neighbours_resemble_each_other(seed: int) -> None:
    """Latencies that wander (each is 0.95 of the one before): the same of both samples, 3 ms apart."""
    rng = np.random.default_rng(seed)
    wander = np.empty(6400)
    value = 0.0
    for place in range(len(wander)):
        value = 0.95 * value + rng.normal(0, 0.5)
        wander[place] = value
    one, two = (np.clip(15 + more + wander + rng.normal(0, 0.5, 6400), 0, 39.9) for more in (0, 3))
    tables = [np.array([counted(part) for part in np.split(sample, 32)]) for sample in (one, two)]
    joined = long_enough(tables)
    assert len(joined[0]) == len(joined[1])
    measures = {"p50": quantile_of(EDGES, 0.5), "deviation": deviation_of(EDGES)}
    found = differences([joined[0]], [joined[1]], measures, 1, together=True)
    assert found["p50"].low - 0.1 <= 3 <= found["p50"].high + 0.1
    assert found["p50"].high - found["p50"].low < 0.5  # what both have in common cancels out
    assert found["deviation"].low - 0.1 <= 0 <= found["deviation"].high + 0.1
    apart = differences([joined[0]], [joined[1]], measures, 1, together=False)
    assert apart["p50"].high - apart["p50"].low > found["p50"].high - found["p50"].low


def test_blocks_that_resemble_their_neighbours_are_joined() -> None:
    slow = np.array([counted(np.full(10, 10.5 + 10 * (block // 8 % 2))) for block in range(32)])
    assert resemblance(slow) > 0.3
    assert len(long_enough([slow])[0]) == 8
    assert long_enough([slow])[0].sum() == slow.sum()
    quick = np.array([counted(np.full(10, 10.5 + 10 * (block % 2))) for block in range(32)])
    assert len(long_enough([quick])[0]) == 32


@pytest.mark.parametrize(
    ("low", "high", "margin", "sure"),
    [
        (0.8, 1.2, 0.0, True),
        (0.8, 1.2, 0.4, True),
        (0.8, 1.2, 0.6, False),
        (0.3, 1.7, 0.4, False),
        (-0.1, 2.1, 0.0, False),
        (0.8, 1.2, None, False),
    ],
)
def test_what_is_told_as_a_difference(low: float, high: float, margin: float | None, sure: bool) -> None:
    assert credible(EstimatedDifference(1.0, 2.0, low, high), margin) is sure


def test_percentiles_need_values_beyond_them() -> None:
    assert not enough_for(0.99, 3)
    assert not enough_for(0.99, 999)
    assert enough_for(0.99, 1000)
    assert enough_for(0.01, 1000)
    assert not enough_for(0.999, 9000)


def test_the_weighted_median_and_quantiles_of_counts() -> None:
    assert weighted_median(np.array([3.0, 1.0, 2.0]), np.array([1.0, 5.0, 1.0])) == 1.0
    counts = np.array([[10.0, 0.0, 10.0]])
    edges = np.array([0.0, 1.0, 2.0, 3.0])
    assert quantile_of(edges, 0.25)(counts)[0] == pytest.approx(0.5)
    assert quantile_of(edges, 0.75)(counts)[0] == pytest.approx(2.5)


def test_bars_that_nobody_fell_into_are_drawn_as_none() -> None:
    bars = without_gaps([(1.0, 2.0, 5), (4.0, 5.0, 1)])
    assert bars.edges == (1.0, 2.0, 4.0, 5.0)
    assert bars.counts == (5, 0, 1)


@pytest.mark.parametrize(("t", "degrees"), [(0.3, 3), (2.0, 8), (-1.7, 30), (2.6, 2_000), (0.01, 200_000)])
def test_student_is_that_of_scipy(t: float, degrees: int) -> None:
    assert student_p(t, degrees) == pytest.approx(2 * stats.t.sf(abs(t), degrees), rel=1e-6)
