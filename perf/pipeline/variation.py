"""Variation itself: of delays, from one publication to the next, over time; and which part of the way makes it."""

import math
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

import numpy as np
from pyspark.sql import DataFrame, Row
from pyspark.sql import functions as F  # noqa: N812

from perf.pipeline.buckets import bucket, middle_of
from perf.pipeline.distributions import GROUP, MS, SUMS, shown_value
from perf.pipeline.resampling import DRAWINGS, FEWEST_BLOCKS, SURE, Floats, enough_for, serial_correlation
from perf.pipeline.stitching import LIKE_LOAD, PARTS
from perf.pipeline.tables import HomogeneityRow, LatencyRow, PartRow, StabilityRow, TimeRow, VariationRow

FORGETS: Final = 16
"""RFC 3550: a new difference counts a sixteenth."""
FEWEST_SLICES: Final = 10
SHORTEST_PIECE: Final = 5
"""Slices between two changes."""
SIGNIFICANT: Final = 0.01
CARRY: Final = "carry"
_SEED: Final = 23

Group = tuple[str, str, str, str, float]
Figure = Callable[[Floats, Floats, Floats], float]
"""Of counts of two samples by bucket, and the middles of buckets."""


@dataclass(slots=True)
class _Steps:
    """Differences to the publication before, as counts by signed bucket; and sums for the correlation with it."""

    counts: dict[int, int] = field(default_factory=lambda: defaultdict(int))
    """A bucket's number, below zero for differences below zero; those of zero are at 0."""
    sums: list[float] = field(default_factory=lambda: [0.0] * 6)
    recent: float = 0.0
    flows: int = 0


SUMMED: Final = ("n", "x", "y", "xx", "yy", "xy")


def variation_rows(latencies: DataFrame, rolled: DataFrame, latency: Sequence[LatencyRow]) -> list[VariationRow]:
    steps = _steps(latencies)
    pdv = {
        (row.run, row.stage, row.domain, row.by, row.value): row.p999_ms - row.least_ms
        for row in latency
        if enough_for(0.999, row.count)
    }
    rows = []
    arrays = rolled.groupBy(*GROUP).agg(
        *(F.sum(name).alias(name) for name in SUMS[:3]),
        F.collect_list("bucket").alias("buckets"),
        F.collect_list("count").alias("counts"),
    )
    for row in arrays.collect():
        key = (row["run"], row["stage"], row["domain"], row["by"], shown_value(row["by"], row["value"]))
        mean = row["sum"] / row["count"]
        deviation = math.sqrt(max(row["squares"] / row["count"] - mean**2, 0.0))
        ipdv = _ipdv(steps[key]) if key in steps else NO_STEPS
        rows.append(
            VariationRow(
                *key, row["count"], deviation / MS, deviation / mean if mean else 0.0, _mad(row) / MS, pdv.get(key),
                ipdv.steps, ipdv.p1_ms, ipdv.p50_ms,
                ipdv.p99_ms, ipdv.abs_mean_ms, ipdv.rfc3550_ms, ipdv.autocorrelation,
            )
        )  # fmt: skip
    return sorted(rows, key=lambda row: (row.run, row.stage, row.domain, row.by, row.value))


def _mad(row: Row) -> float:
    """The median distance from the median, from buckets: within 1/1024 of the median."""
    counts = np.array(row["counts"], dtype=np.float64)
    values = np.array([middle_of(number) for number in row["buckets"]])
    return weighted_median(np.abs(values - weighted_median(values, counts)), counts)


def weighted_median(values: Floats, counts: Floats) -> float:
    order = np.argsort(values, kind="stable")
    upto = np.cumsum(counts[order])
    return float(values[order][np.searchsorted(upto, upto[-1] / 2)])


def _steps(latencies: DataFrame) -> dict[Group, _Steps]:
    """Of all, and of each load; differences to a publication of another load are of none."""
    step, before = F.col("step_ns"), (F.col("latency_ns") - F.col("step_ns")).cast("double")
    now = F.col("latency_ns").cast("double")
    # A flow's jitter at its end: every difference counts what is left of it by then.
    left = F.pow(F.lit(1 - 1 / FORGETS), F.col("newer").cast("double")) / FORGETS
    found = (
        latencies.where("step_ns is not null")
        .groupBy(
            "run", "stage", "domain", "load", (F.col("like").bitwiseAND(LIKE_LOAD) != 0).alias("same"),
            (F.signum(step.cast("double")) * (bucket(F.abs(step)) + 1)).cast("long").alias("bucket"),
        )
        .agg(
            F.count(F.lit(1)).alias("n"),
            F.sum(now).alias("x"),
            F.sum(before).alias("y"),
            F.sum(now * now).alias("xx"),
            F.sum(before * before).alias("yy"),
            F.sum(now * before).alias("xy"),
            F.sum(F.abs(step).cast("double") * left).alias("recent"),
            F.count_if(F.col("newer") == 0).alias("flows"),
        )
        .groupBy("run", "stage", "domain", "load", "same")
        .agg(
            F.collect_list("bucket").alias("buckets"),
            F.collect_list("n").alias("counts"),
            *(F.sum(name).alias(name) for name in (*SUMMED, "recent", "flows")),
        )
        .collect()
    )  # fmt: skip
    steps: dict[Group, _Steps] = defaultdict(_Steps)
    for row in found:
        groups: list[Group] = [(row["run"], row["stage"], row["domain"], "all", 0.0)]
        if row["load"] is not None and row["same"]:
            groups.append((row["run"], row["stage"], row["domain"], "load", row["load"]))
        for group in groups:
            one = steps[group]
            for number, count in zip(row["buckets"], row["counts"], strict=True):
                one.counts[number] += count
            one.sums = [known + row[name] for known, name in zip(one.sums, SUMMED, strict=True)]
            if group[3] == "all":
                one.recent += row["recent"]
                one.flows += row["flows"]
    return steps


class _Ipdv(NamedTuple):
    steps: int
    p1_ms: float | None
    p50_ms: float | None
    p99_ms: float | None
    abs_mean_ms: float | None
    rfc3550_ms: float | None
    autocorrelation: float | None


NO_STEPS: Final = _Ipdv(0, None, None, None, None, None, None)


def _ipdv(steps: _Steps) -> _Ipdv:
    numbers = sorted(steps.counts)
    values = np.array([math.copysign(middle_of(abs(number) - 1), number) if number else 0.0 for number in numbers])
    counts = np.array([steps.counts[number] for number in numbers], dtype=np.float64)
    total = int(counts.sum())
    upto = np.cumsum(counts)

    def at(quantile: float) -> float | None:
        if quantile != 0.5 and not enough_for(quantile, total):
            return None
        return float(values[np.searchsorted(upto, quantile * total)]) / MS

    return _Ipdv(
        total, at(0.01), at(0.5), at(0.99), float((np.abs(values) * counts).sum() / total) / MS,
        steps.recent / steps.flows / MS if steps.flows else None, _correlation(steps.sums),
    )  # fmt: skip


def _correlation(sums: Sequence[float]) -> float | None:
    n, x, y, xx, yy, xy = sums
    spread = (xx / n - (x / n) ** 2) * (yy / n - (y / n) ** 2)
    return float((xy / n - x * y / n**2) / math.sqrt(spread)) if n > 2 and spread > 0 else None


# Do domains vary alike?


def homogeneity_rows(
    pairs: Mapping[tuple[str, str], tuple[Sequence[Floats], Sequence[Floats], Floats]],
) -> list[HomogeneityRow]:
    """By run and stage: blocks of local and crossed deliveries of the same publications, and edges of buckets."""
    rows = []
    for (run, stage), (first, second, edges) in sorted(pairs.items()):
        one, two = np.vstack(list(first)), np.vstack(list(second))
        if len(one) < FEWEST_BLOCKS:
            continue
        middles = (edges[:-1] + edges[1:]) / 2
        for name, test, effect in (
            ("Brown-Forsythe", brown_forsythe, distance_ratio),
            ("Kruskal-Wallis", kruskal_wallis, share_larger),
        ):
            found = float(test(one.sum(axis=0), two.sum(axis=0), middles))
            p, low, high = _by_blocks(one, two, middles, found, test, effect)
            rows.append(
                HomogeneityRow(
                    run, stage, name, found, p, float(effect(one.sum(axis=0), two.sum(axis=0), middles)), low, high,
                    len(one),
                )
            )  # fmt: skip
    return rows


def _by_blocks(
    one: Floats, two: Floats, middles: Floats, found: float, test: Figure, effect: Figure
) -> tuple[float, float, float]:
    """If nothing differed, each block might as well have had its two sides exchanged: how often are they as far apart?
    And the interval of the effect, from blocks that are drawn again."""
    rng = np.random.default_rng(_SEED)
    swapped = rng.integers(0, 2, (DRAWINGS, len(one))).astype(np.float64)
    drawn = rng.multinomial(len(one), np.full(len(one), 1 / len(one)), DRAWINGS).astype(np.float64)
    as_far = 0
    for swap in swapped:
        left = (1 - swap) @ one + swap @ two
        right = swap @ one + (1 - swap) @ two
        as_far += test(left, right, middles) >= found * (1 - 1e-9)
    effects = [effect(weights @ one, weights @ two, middles) for weights in drawn]
    low, high = np.quantile(effects, [(1 - SURE) / 2, (1 + SURE) / 2], method="nearest")
    return (as_far + 1) / (DRAWINGS + 1), float(low), float(high)


def brown_forsythe(first: Floats, second: Floats, middles: Floats) -> float:
    """F of the distances from each sample's own median."""
    samples = [(np.abs(middles - weighted_median(middles, counts)), counts) for counts in (first, second)]
    total = sum(float(counts.sum()) for _, counts in samples)
    means = [float((away @ counts) / counts.sum()) for away, counts in samples]
    whole = sum(mean * float(counts.sum()) for mean, (_, counts) in zip(means, samples, strict=True)) / total
    between = sum(float(n.sum()) * (mean - whole) ** 2 for mean, (_, n) in zip(means, samples, strict=True))
    within = sum(float(counts @ (away - mean) ** 2) for mean, (away, counts) in zip(means, samples, strict=True))
    return between * (total - 2) / within if within > 0 else 0.0


def distance_ratio(first: Floats, second: Floats, middles: Floats) -> float:
    """Of mean distances from the median: how many times as much the second varies."""
    one, two = (
        float(np.abs(middles - weighted_median(middles, counts)) @ counts / counts.sum()) for counts in (first, second)
    )
    return two / one if one > 0 else math.inf


def kruskal_wallis(first: Floats, second: Floats, middles: Floats) -> float:
    """H, corrected for ties: values of one bucket are tied."""
    del middles
    both = first + second
    total = float(both.sum())
    rank = np.cumsum(both) - both / 2 + 0.5
    h = 12 / (total * (total + 1)) * sum(float(rank @ n) ** 2 / float(n.sum()) for n in (first, second))
    ties = 1 - float((both**3 - both).sum()) / (total**3 - total)
    return (h - 3 * (total + 1)) / ties if ties > 0 else 0.0


def share_larger(first: Floats, second: Floats, middles: Floats) -> float:
    """How likely a value of the second is above one of the first; a tie counts half."""
    del middles
    below = np.cumsum(first) - first / 2
    return float(second @ below / (first.sum() * second.sum()))


# Over time.


def stability_rows(over_time: Sequence[TimeRow]) -> list[StabilityRow]:
    groups: dict[tuple[str, str], list[TimeRow]] = defaultdict(list)
    for row in over_time:
        groups[row.run, row.domain].append(row)
    rows = []
    for (run, domain), slices in sorted(groups.items()):
        if len(slices) < FEWEST_SLICES:
            continue
        seconds = np.array([row.second for row in slices])
        medians = np.array([row.p50_ms for row in slices])
        slope, p = trend(seconds, medians)
        changes = ", ".join(f"{seconds[place]:.4g}" for place in change_points(medians))
        rows.append(
            StabilityRow(run, domain, len(slices), serial_correlation(medians), slope * 60, p, changes)
        )  # fmt: skip
    return rows


def trend(times: Floats, values: Floats) -> tuple[float, float]:
    """Theil-Sen's slope and Mann-Kendall's p."""
    n = len(times)
    first, second = np.triu_indices(n, 1)
    rises = values[second] - values[first]
    slope = float(np.median(rises / (times[second] - times[first])))
    s = float(np.sign(rises).sum())
    _, tied = np.unique(values, return_counts=True)
    variance = (n * (n - 1) * (2 * n + 5) - float((tied * (tied - 1) * (2 * tied + 5)).sum())) / 18
    z = (s - math.copysign(1, s)) / math.sqrt(variance) if s and variance > 0 else 0.0
    return slope, math.erfc(abs(z) / math.sqrt(2))


def change_points(values: Floats) -> list[int]:
    """Where the level changes: halves that differ more than they would in nearly any other order, and again in each."""
    return sorted(_changes(values, 0, np.random.default_rng(_SEED)))


def _changes(values: Floats, begin: int, rng: np.random.Generator) -> Iterator[int]:
    if len(values) < 2 * SHORTEST_PIECE:
        return
    place, range_ = _farthest_apart(values)
    more = sum(_farthest_apart(rng.permutation(values))[1] >= range_ for _ in range(199))
    if (more + 1) / 200 > SIGNIFICANT:
        return
    yield begin + place
    yield from _changes(values[:place], begin, rng)
    yield from _changes(values[place:], begin + place, rng)


def _farthest_apart(values: Floats) -> tuple[int, float]:
    """Where the sum of distances from the mean is largest, not too near to the ends. Ranks: an outlier is no level."""
    ranks = np.argsort(np.argsort(values, kind="stable"), kind="stable").astype(np.float64)
    sums = np.abs(np.cumsum(ranks - ranks.mean()))
    inner = sums[SHORTEST_PIECE - 1 : len(values) - SHORTEST_PIECE]
    place = int(np.argmax(inner))
    return place + SHORTEST_PIECE, float(inner[place])


# Which part of the way?


def part_rows(latencies: DataFrame, latency: Sequence[LatencyRow]) -> list[PartRow]:
    """Of whole ways only: a part that was not traced must not count as none."""
    tails = {
        (row.run, row.domain): row.p99_ms * MS
        for row in latency
        if row.by == "all" and row.stage == "end_to_end" and enough_for(0.99, row.count)
    }
    if not any(row.stage == "end_to_end" for row in latency):
        return []
    total = F.col("latency_ns").cast("double")
    known = [F.coalesce(F.col(name), F.lit(0)).cast("double") for name in PARTS]
    rest = total - sum(known[1:], known[0])
    parts = {**dict(zip(PARTS, known, strict=True)), CARRY: rest}
    edge = F.lit(None).cast("double")
    for (run, domain), value in tails.items():
        edge = F.when((F.col("run") == run) & (F.col("domain") == domain), value).otherwise(edge)
    tail = F.coalesce(total >= edge, F.lit(False))
    found = (
        latencies.where("stage = 'end_to_end' and part_fan_out is not null and part_store is not null")
        .groupBy("run", "domain")
        .agg(
            F.count(F.lit(1)).alias("n"),
            F.avg(total).alias("mean"),
            F.var_pop(total).alias("variance"),
            F.avg(F.when(tail, total)).alias("tail"),
            *(F.avg(part).alias(f"mean_{name}") for name, part in parts.items()),
            *(F.covar_pop(part, total).alias(f"with_{name}") for name, part in parts.items()),
            *(F.avg(F.when(tail, part)).alias(f"tail_{name}") for name, part in parts.items()),
        )
        .collect()
    )
    rows = []
    for row in found:
        slower = None if row["tail"] is None else row["tail"] - row["mean"]
        for name in parts:
            mean, in_tail = row[f"mean_{name}"], row[f"tail_{name}"]
            rows.append(
                PartRow(
                    row["run"], row["domain"], name.removeprefix("part_"), row["n"], mean / MS,
                    row[f"with_{name}"] / row["variance"] if row["variance"] else None,
                    None if in_tail is None else in_tail / MS, (in_tail - mean) / slower if slower else None,
                )
            )  # fmt: skip
    return sorted(rows, key=lambda row: (row.run, row.domain, -row.mean_ms))
