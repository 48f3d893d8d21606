"""How sure a figure is: intervals by resampling blocks of time, without Spark.

Latencies of neighbouring publications resemble each other, often almost completely, so a million of them say less than
a million independent ones would. Blocks of time long enough that neighbouring blocks no longer resemble each other are
drawn again, with replacement, within each offered load; a figure of such a drawing varies as the figure of another run
would. What is compared within one run, local and crossed deliveries of the same publications, is drawn together: the
comparison is of pairs, and what both have in common cancels out.

Latencies come as counts by block and bucket: the whole distribution of a block, however many rows it was made of.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from perf.pipeline.buckets import lowest_of

BLOCKS: Final = 32
"""Of each load, to begin with."""
FEWEST_BLOCKS: Final = 8
ALIKE: Final = 0.3
"""Blocks whose medians correlate more than this with those of their neighbours are too short, and are joined."""
DRAWINGS: Final = 400
SURE: Final = 0.95
BLOCK_BITS: Final = 6
"""Buckets are at most 1/64 of their value wide here; a figure is interpolated within."""
BEYOND: Final = 10
"""A percentile is told when at least so many values lie beyond it."""
QUANTILES: Final = {"p50": 0.5, "p90": 0.9, "p99": 0.99, "p99.9": 0.999}

Floats = npt.NDArray[np.float64]
Measure = Callable[[Floats], Floats]
"""A figure of each row of counts by bucket."""


@dataclass(frozen=True, slots=True)
class Blocks:
    """Counts of one sample: for each stratum (an offered load) a table of blocks by buckets. `edges` has one more."""

    strata: tuple[Floats, ...]
    edges: Floats

    @property
    def count(self) -> int:
        return int(sum(table.sum() for table in self.strata))

    @property
    def blocks(self) -> int:
        return sum(len(table) for table in self.strata)


@dataclass(frozen=True, slots=True)
class EstimatedDifference:
    """Of one figure: second less first, and where it lies with a probability of `SURE`."""

    first: float
    second: float
    low: float
    high: float

    @property
    def difference(self) -> float:
        return self.second - self.first


def enough_for(quantile: float, count: float) -> bool:
    """Whether so many values say anything about that percentile."""
    return count * min(quantile, 1 - quantile) >= BEYOND - 1e-9


def quantile_of(edges: Floats, quantile: float) -> Measure:
    """Interpolated within its bucket."""

    def measure(counts: Floats) -> Floats:
        upto = np.cumsum(counts, axis=1)
        rank = quantile * upto[:, -1:]
        place = np.minimum((upto < rank).sum(axis=1), counts.shape[1] - 1)
        rows = np.arange(len(counts))
        inside = counts[rows, place]
        share = np.where(inside > 0, (rank[:, 0] - (upto[rows, place] - inside)) / np.maximum(inside, 1e-12), 0.5)
        result: Floats = edges[place] + np.clip(share, 0, 1) * (edges[place + 1] - edges[place])
        return result

    return measure


def deviation_of(edges: Floats) -> Measure:
    """The standard deviation."""
    middles = (edges[:-1] + edges[1:]) / 2

    def measure(counts: Floats) -> Floats:
        total = np.maximum(counts.sum(axis=1), 1)
        mean = counts @ middles / total
        result: Floats = np.sqrt(np.maximum(counts @ middles**2 / total - mean**2, 0))
        return result

    return measure


def measures_of(edges: Floats, count: int) -> dict[str, Measure]:
    """The figures that so many values can tell: percentiles that enough lie beyond, and two of variation."""
    told = {name: quantile_of(edges, q) for name, q in QUANTILES.items() if q == 0.5 or enough_for(q, count)}
    upper, lower = quantile_of(edges, 0.75), quantile_of(edges, 0.25)
    return {
        **told,
        "interquartile range": lambda counts: upper(counts) - lower(counts),
        "deviation": deviation_of(edges),
    }


def differences(
    first: Sequence[Floats], second: Sequence[Floats], measures: Mapping[str, Measure], seed: int, *, together: bool
) -> dict[str, EstimatedDifference]:
    """Of two samples, figure by figure. `together`: they were taken together, so a drawing takes the same blocks of
    both; otherwise they have nothing to do with each other, as two runs."""
    rng = np.random.default_rng(seed)
    if together:
        drawn = [_drawn([one, other], rng) for one, other in zip(first, second, strict=True)]
        ones, others = (np.sum([pair[side] for pair in drawn], axis=0) for side in (0, 1))
    else:
        ones, others = (np.sum([_drawn([table], rng)[0] for table in sample], axis=0) for sample in (first, second))
    one, other = _all(first), _all(second)
    found = {}
    for name, measure in measures.items():
        low, high = np.quantile(measure(others) - measure(ones), [(1 - SURE) / 2, (1 + SURE) / 2])
        found[name] = EstimatedDifference(float(measure(one)[0]), float(measure(other)[0]), float(low), float(high))
    return found


def _all(tables: Sequence[Floats]) -> Floats:
    total: Floats = np.sum([table.sum(axis=0) for table in tables], axis=0)[None, :]
    return total


def _drawn(tables: Sequence[Floats], rng: np.random.Generator) -> list[Floats]:
    """Counts by bucket of every drawing, for each table: all are drawn alike."""
    blocks = len(tables[0])
    weights = rng.multinomial(blocks, np.full(blocks, 1 / blocks), DRAWINGS).astype(np.float64)
    return [weights @ table for table in tables]


def long_enough(tables: Sequence[Floats]) -> list[Floats]:
    """Neighbouring blocks joined until their means resemble those of their neighbours no more, in all tables alike."""
    joined = [table for table in tables if len(table)]
    while joined and len(joined[0]) >= 2 * FEWEST_BLOCKS and any(resemblance(table) > ALIKE for table in joined):
        joined = [_pairs(table) for table in joined]
    return joined


def resemblance(table: Floats) -> float:
    """How much the mean of a block (of bucket numbers, so of logarithms nearly) correlates with that of the next."""
    total = table.sum(axis=1)
    there = total > 0
    if there.sum() < 4:
        return 0.0
    means = (table @ np.arange(table.shape[1]))[there] / total[there]
    return serial_correlation(means)


def serial_correlation(values: Floats) -> float:
    """Of each value with the next."""
    away = values - values.mean()
    square = float((away**2).sum())
    return 0.0 if square <= 0 else float((away[1:] * away[:-1]).sum() / square)


def _pairs(table: Floats) -> Floats:
    if len(table) % 2:
        table = np.vstack([table, np.zeros((1, table.shape[1]))])
    joined: Floats = table[0::2] + table[1::2]
    return joined


def table_of(cells: Mapping[tuple[int, int], int], buckets: Sequence[int]) -> Floats:
    """Counts by (block, bucket) as blocks by the given buckets; blocks that hold nothing are left out."""
    blocks = sorted({block for block, _ in cells})
    row = {block: place for place, block in enumerate(blocks)}
    column = {number: place for place, number in enumerate(buckets)}
    table = np.zeros((len(blocks), len(buckets)))
    for (block, number), count in cells.items():
        table[row[block], column[number]] += count
    return table


def edges_of(buckets: Sequence[int], scale: float) -> Floats:
    """Lower edges of buckets that run on without a gap, and the upper edge of the last."""
    return np.array([lowest_of(number, BLOCK_BITS) for number in (*buckets, buckets[-1] + 1)]) / scale


def credible(difference: EstimatedDifference, margin: float | None) -> bool:
    """Whether a difference is told as one: its interval, widened by what clocks may be off, is on one side of zero, and
    what they may be off is at most half of it."""
    if margin is None or math.isnan(difference.low):
        return False
    if abs(difference.difference) < 2 * margin:
        return False
    return difference.low - margin > 0 or difference.high + margin < 0
