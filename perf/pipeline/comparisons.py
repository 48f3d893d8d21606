"""Crossed against local deliveries of the same publications, and one run against another, with intervals."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812

from perf.pipeline import resampling
from perf.pipeline.buckets import bucket
from perf.pipeline.resampling import BLOCK_BITS, BLOCKS, Blocks, Floats
from perf.pipeline.tables import DifferenceRow, LatencyRow
from perf.traces.schema import Domain

MS: Final = 1e6
FEW: Final = 20
"""Publications below which nothing is claimed."""
CROSSING_STAGES: Final = ("end_to_end", "fan_out")
_SEED: Final = 17

Sample = tuple[str, str, str]
"""Run, stage, domain."""


@dataclass(frozen=True, slots=True)
class Stratum:
    """An offered load of a run (or all that was offered without one): when it began, how long a block of it is."""

    run: str
    load: float | None
    begin_ns: int
    width_ns: int


@dataclass(slots=True)
class BlockCounts:
    """By sample and load: counts by block and bucket. `both` are deliveries of publications that have both kinds."""

    every: dict[Sample, dict[float | None, dict[tuple[int, int], int]]] = field(
        default_factory=lambda: defaultdict(lambda: defaultdict(lambda: defaultdict(int)))
    )
    both: dict[Sample, dict[float | None, dict[tuple[int, int], int]]] = field(
        default_factory=lambda: defaultdict(lambda: defaultdict(lambda: defaultdict(int)))
    )


def strata_of(spans: Mapping[tuple[str, float | None], tuple[int, int]]) -> list[Stratum]:
    return [
        Stratum(run, load, begin, max(1, -(-(end - begin + 1) // BLOCKS)))
        for (run, load), (begin, end) in sorted(spans.items(), key=str)
    ]


def count_blocks(session: SparkSession, latencies: DataFrame, strata: Sequence[Stratum]) -> BlockCounts:
    """One pass; what comes back is bounded by blocks and buckets."""
    rows = [(one.run, one.load, one.begin_ns, one.width_ns) for one in strata]
    counts = BlockCounts()
    if not rows:
        return counts
    table = session.createDataFrame(rows, "run_ string, load_ double, begin bigint, width bigint")
    here = (F.col("run") == F.col("run_")) & F.col("load").eqNullSafe(F.col("load_"))
    block = F.floor((F.col("start_ns") - F.col("begin")) / F.col("width")).cast("int")
    found = (
        latencies.join(F.broadcast(table), here)
        .groupBy(
            "run", "stage", "domain", "load", "both", block.alias("block"),
            bucket(F.col("latency_ns"), BLOCK_BITS).alias("bucket"),
        )
        .agg(F.count(F.lit(1)).alias("count"))
        .groupBy("run", "stage", "domain", "load", "both")
        .agg(*(F.collect_list(name).alias(name) for name in ("block", "bucket", "count")))
        .collect()
    )  # fmt: skip
    for row in found:
        sample = (row["run"], row["stage"], row["domain"])
        for where, number, count in zip(row["block"], row["bucket"], row["count"], strict=True):
            counts.every[sample][row["load"]][where, number] += count
            if row["both"]:
                counts.both[sample][row["load"]][where, number] += count
    return counts


def crossing_rows(
    counts: BlockCounts, latency: Sequence[LatencyRow], pairs: Mapping[str, int], runs: Sequence[str]
) -> list[DifferenceRow]:
    """Publications that were delivered in their own domain and across PSIRP: each is compared with itself."""
    margins = _margins(latency)
    rows = []
    for stage in CROSSING_STAGES:
        for run in runs:
            local, crossed = (counts.both.get((run, stage, domain.value)) for domain in (Domain.PUSH, Domain.PSIRP))
            if not local or not crossed or not pairs.get(run):
                continue
            sides = _aligned(local, crossed)
            if sides is None:
                continue
            margin = margins.get((run, stage, Domain.PSIRP.value))
            rows += _rows(
                stage, run, (Domain.PUSH.value, Domain.PSIRP.value), pairs[run], sides, margin, together=True
            )  # fmt: skip
    return rows


def pairs_of(
    counts: BlockCounts, runs: Sequence[str]
) -> dict[tuple[str, str], tuple[Sequence[Floats], Sequence[Floats], Floats]]:
    """By run and stage: blocks of local and crossed deliveries of the same publications, and edges of their buckets."""
    pairs: dict[tuple[str, str], tuple[Sequence[Floats], Sequence[Floats], Floats]] = {}
    for stage in CROSSING_STAGES:
        for run in runs:
            local, crossed = (counts.both.get((run, stage, domain.value)) for domain in (Domain.PUSH, Domain.PSIRP))
            sides = _aligned(local, crossed) if local and crossed else None
            if sides is not None:
                pairs[run, stage] = (sides[0].strata, sides[1].strata, sides[0].edges)
    return pairs


def between_rows(
    counts: BlockCounts, latency: Sequence[LatencyRow], publications: Mapping[str, int], runs: Sequence[str]
) -> list[DifferenceRow]:
    """Every later run against the first, stage by stage."""
    margins = _margins(latency)
    rows = []
    for other in runs[1:]:
        for _, stage, domain in sorted(key for key in counts.every if key[0] == runs[0]):
            one, two = (counts.every.get((run, stage, domain)) for run in (runs[0], other))
            if not one or not two:
                continue
            known = [margins.get((run, stage, domain)) for run in (runs[0], other)]
            margin = None if None in known else sum(value for value in known if value is not None)
            sides = _separate(one, two)
            fewer = min(publications.get(run, 0) for run in (runs[0], other))
            rows += _rows(stage, domain, (runs[0], other), fewer, sides, margin, together=False)
    return rows


def _margins(latency: Sequence[LatencyRow]) -> dict[Sample, float | None]:
    return {(row.run, row.stage, row.domain): row.margin_ms for row in latency if row.by == "all"}


def _rows(
    stage: str,
    within: str,
    names: tuple[str, str],
    publications: int,
    sides: tuple[Blocks, Blocks],
    margin: float | None,
    *,
    together: bool,
) -> list[DifferenceRow]:
    first, second = sides
    measures = resampling.measures_of(first.edges, min(first.count, second.count))
    rows = []
    for name, found in resampling.differences(first.strata, second.strata, measures, _SEED, together=together).items():
        # An offset of clocks moves a whole distribution: how wide that is does not depend on it.
        moved = 0.0 if name in ("interquartile range", "deviation") and margin is not None else margin
        rows.append(
            DifferenceRow(
                stage, within, names[0], names[1], name, publications, first.count, second.count,
                found.first, found.second, found.difference, found.low, found.high, margin,
                min(first.blocks, second.blocks), publications >= FEW and resampling.credible(found, moved),
            )
        )  # fmt: skip
    return rows


def _aligned(
    local: Mapping[float | None, Mapping[tuple[int, int], int]],
    crossed: Mapping[float | None, Mapping[tuple[int, int], int]],
) -> tuple[Blocks, Blocks] | None:
    """The loads and blocks that both have."""
    buckets = _buckets(local, crossed)
    first: list[Floats] = []
    second: list[Floats] = []
    for load in sorted(local.keys() & crossed.keys(), key=str):
        shared = {block for block, _ in local[load]} & {block for block, _ in crossed[load]}
        if not shared:
            continue
        tables = [
            resampling.table_of({key: n for key, n in side[load].items() if key[0] in shared}, buckets)
            for side in (local, crossed)
        ]
        one, two = resampling.long_enough(tables)
        first.append(one)
        second.append(two)
    if not first:
        return None
    edges = resampling.edges_of(buckets, MS)
    return Blocks(tuple(first), edges), Blocks(tuple(second), edges)


def _separate(
    one: Mapping[float | None, Mapping[tuple[int, int], int]],
    two: Mapping[float | None, Mapping[tuple[int, int], int]],
) -> tuple[Blocks, Blocks]:
    """Loads that both runs had, if they had any in common: other loads are no matter of a comparison."""
    shared = one.keys() & two.keys()
    buckets = _buckets(one, two)
    edges = resampling.edges_of(buckets, MS)

    def of(side: Mapping[float | None, Mapping[tuple[int, int], int]]) -> Blocks:
        loads = sorted(shared or side.keys(), key=str)
        tables = (resampling.long_enough([resampling.table_of(side[load], buckets)])[0] for load in loads)
        return Blocks(tuple(tables), edges)

    return of(one), of(two)


def _buckets(*sides: Mapping[float | None, Mapping[tuple[int, int], int]]) -> list[int]:
    numbers = [number for side in sides for cells in side.values() for _, number in cells]
    return list(range(min(numbers), max(numbers) + 1))
