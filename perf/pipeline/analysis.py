"""The whole analysis: run directories in, small tables out.

Rows are stitched once into a working directory; every table is then an aggregate over that, and only aggregates come
to the driver.
"""

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from pyspark.sql import Column, DataFrame, Observation, SparkSession
from pyspark.sql import functions as F  # noqa: N812

from perf.pipeline.clocks import ClockModel
from perf.pipeline.comparisons import between_rows, count_blocks, crossing_rows, pairs_of, strata_of
from perf.pipeline.correlation import correlation_rows
from perf.pipeline.distributions import MS, count_cells, histogram_rows, latency_rows, roll, time_rows
from perf.pipeline.drilldown import depth_rows, place_rows, slow_rows
from perf.pipeline.losses import receiver_rows, receivers, settle_endings
from perf.pipeline.prepared import SeenNode, prepare, spans_of
from perf.pipeline.stitching import Ending
from perf.pipeline.tables import (
    ClockRow,
    CorrelationRow,
    DepthRow,
    DifferenceRow,
    EndingRow,
    FileRow,
    HistogramRow,
    HoleRow,
    HomogeneityRow,
    LatencyRow,
    LoadRow,
    PartRow,
    PlaceRow,
    QualityRow,
    ReceiverRow,
    RunNodeRow,
    SaturationRow,
    SlowRow,
    StabilityRow,
    TimeRow,
    VariationRow,
)
from perf.pipeline.variation import homogeneity_rows, part_rows, stability_rows, variation_rows
from perf.traces.coverage import EVER, Observed, find_coverage
from perf.traces.files import FileState, Inventory, broken_inside

KEEPS_UP: Final = 0.95
"""A load is kept up with when at least this share of it is completed a second."""


@dataclass(frozen=True, slots=True)
class Analysis:
    """Every table of a report."""

    inventory: Inventory
    files: Sequence[FileRow]
    quality: Sequence[QualityRow]
    latency: Sequence[LatencyRow]
    crossing: Sequence[DifferenceRow]
    between_runs: Sequence[DifferenceRow]
    correlation: Sequence[CorrelationRow]
    endings: Sequence[EndingRow]
    receivers: Sequence[ReceiverRow]
    coverage: Sequence[HoleRow]
    loads: Sequence[LoadRow]
    saturation: Sequence[SaturationRow]
    variation: Sequence[VariationRow]
    homogeneity: Sequence[HomogeneityRow]
    stability: Sequence[StabilityRow]
    parts: Sequence[PartRow]
    places: Sequence[PlaceRow]
    slowest: Sequence[SlowRow]
    queue_depth: Sequence[DepthRow]
    over_time: Sequence[TimeRow]
    histogram: Sequence[HistogramRow]
    clocks: Sequence[ClockRow]
    nodes: Sequence[RunNodeRow]


def analyse(
    session: SparkSession,
    directories: Sequence[Path],
    work: Path,
    tick: Callable[[str], None] = lambda label: None,
) -> Analysis:
    """`work` holds the stitched rows; the caller removes it. `tick` hears what comes next."""
    prepared = prepare(session, directories, work, tick)
    inventory, stages, publications, nodes, models = (
        prepared.inventory, prepared.stages, prepared.publications, prepared.nodes, prepared.clocks,
    )  # fmt: skip
    latencies, records, counts = prepared.latencies, prepared.records, dict(prepared.counts)
    runs = [run.run for run in inventory.runs]
    doubtful = Observation("doubtful")
    watched = prepared.corrected.observe(
        doubtful,
        F.count_if(F.col("latency_ns") < 0).alias("negative"),
        F.count_if(F.col("latency_ns").isNull()).alias("stepped"),
    )
    tick("counting latencies")
    cells = count_cells(watched.where("latency_ns >= 0")).localCheckpoint()
    counts |= {name: int(count) for name, count in doubtful.get.items()}
    tick("percentiles")
    rolled = roll(cells).localCheckpoint()
    latency = latency_rows(latencies, rolled)
    tick("variation")
    variation = variation_rows(latencies, rolled, latency)
    parts = part_rows(latencies, latency)
    tick("drill-down")
    places, slowest, depths = place_rows(latencies), slow_rows(latencies, records), depth_rows(records)
    tick("losses and loads")
    broken = broken_inside(inventory) if _lost_inside(inventory, counts) else ()
    observed = find_coverage(inventory, broken)
    known = receivers(stages).localCheckpoint()
    settled = settle_endings(session, publications, known, observed.holes)
    by_load = _by_load(publications)
    loads = _loads(by_load)
    tick("comparing")
    blocks = count_blocks(session, latencies, strata_of({(one.run, one.load): one.span for one in by_load}))
    tick("correlation")
    correlation = correlation_rows(latencies)
    tick("variation over time")
    over_time = time_rows(latencies, spans_of(nodes))
    return Analysis(
        inventory=inventory,
        files=_file_rows(inventory),
        quality=_quality(inventory, counts, observed),
        latency=latency,
        crossing=crossing_rows(blocks, latency, _total(by_load, "both"), runs),
        between_runs=between_rows(blocks, latency, _total(by_load, "publications"), runs),
        correlation=correlation,
        endings=_endings(publications, settled),
        receivers=receiver_rows(session, stages, publications, known, observed.holes),
        coverage=_hole_rows(observed, spans_of(nodes)),
        loads=loads,
        saturation=_saturation(loads),
        variation=variation,
        homogeneity=homogeneity_rows(pairs_of(blocks, runs)),
        stability=stability_rows(over_time),
        parts=parts,
        places=places,
        slowest=slowest,
        queue_depth=depths,
        over_time=over_time,
        histogram=histogram_rows(cells),
        clocks=_clock_rows(models, nodes),
        nodes=[node.row for node in nodes],
    )


def _clock_rows(models: Sequence[ClockModel], nodes: Sequence[SeenNode]) -> list[ClockRow]:
    ahead = {(node.row.run, node.row.clock): node.wall_ahead_ns for node in reversed(nodes)}
    begins: dict[tuple[str, str], int] = {}
    for node in nodes:
        key = (node.row.run, node.row.clock)
        begins[key] = min(begins.get(key, node.begin_ns), node.begin_ns)
    rows = []
    for model in models:
        own_ahead, reference_ahead = ahead.get((model.run, model.clock), 0), ahead.get((model.run, model.reference), 0)
        begin = begins.get((model.run, model.clock), 0) - own_ahead
        for number, piece in enumerate(model.pieces, start=1):
            at = max(piece.begin_ns, begin)
            offset = at + own_ahead - (piece.reference_ns(at) + reference_ahead)
            rows.append(
                ClockRow(
                    model.run, model.reference, model.clock, number, (at - begin) / 1e9, offset / MS,
                    # The piece maps its own time to the reference's: a clock that runs fast has a rate below 0.
                    (1 / (1 + piece.rate) - 1) * 1e6,
                    None if piece.margin_ns is None else piece.margin_ns / MS, piece.margin_ns is not None,
                    model.exchanges,
                )
            )  # fmt: skip
    return rows


def _hole_rows(observed: Observed, spans: Mapping[str, tuple[int, int]]) -> list[HoleRow]:
    """Holes that lie within the run: what was before and after it is no news."""
    rows = []
    for hole in observed.holes:
        begin, end = spans.get(hole.run, (0, 0))
        if hole.begin_ns < end and hole.end_ns > begin:
            first = None if hole.begin_ns == -EVER else (hole.begin_ns - begin) / 1e9
            last = None if hole.end_ns == EVER else (hole.end_ns - begin) / 1e9
            rows.append(HoleRow(hole.run, hole.node, first, last, hole.why))
    return rows


def _lost_inside(inventory: Inventory, counts: Mapping[str, int]) -> bool:
    """Whether fewer rows came than the files' footers promise."""
    return counts["columnar"] < sum(file.rows for file in inventory.readable if file.rows is not None)


@dataclass(frozen=True, slots=True)
class _Load:
    """Publications of one offered load; `both` had local and crossed deliveries."""

    run: str
    load: float | None
    publications: int
    completed: int
    both: int
    span: tuple[int, int]
    delivered_ns: int | None


def _by_load(publications: DataFrame) -> list[_Load]:
    found = publications.groupBy("run", "load").agg(
        F.count(F.lit(1)).alias("publications"),
        F.count_if(F.col("ending") == Ending.COMPLETE).alias("completed"),
        F.count_if("both").alias("both"),
        F.min("start_ns").alias("begin"),
        F.max("start_ns").alias("end"),
        F.max("last_delivered").alias("delivered"),
    )
    rows = [
        _Load(
            row["run"], row["load"], row["publications"], row["completed"], row["both"], (row["begin"], row["end"]),
            row["delivered"],
        )
        for row in found.collect()
    ]  # fmt: skip
    return sorted(rows, key=lambda row: (row.run, row.load or 0.0))


def _total(loads: Sequence[_Load], what: str) -> dict[str, int]:
    totals: dict[str, int] = defaultdict(int)
    for load in loads:
        totals[load.run] += getattr(load, what)
    return totals


def _endings(publications: DataFrame, settled: Mapping[tuple[str, str], int]) -> list[EndingRow]:
    def ended(how: str) -> Column:
        return F.count_if(F.col("ending") == how).alias(how)

    found = publications.groupBy("run").agg(
        F.count(F.lit(1)).alias("publications"),
        *(ended(how) for how in (Ending.COMPLETE, Ending.NO_START, Ending.NO_END)),
        *(F.sum(name).alias(name) for name in ("deliveries", "given_up", "twice", "same")),
    )
    rows = [
        EndingRow(
            row["run"], row["publications"], row[Ending.COMPLETE], settled.get((row["run"], Ending.LOST), 0),
            settled.get((row["run"], Ending.NOT_OBSERVED), 0), row[Ending.NO_START], row[Ending.NO_END],
            row["deliveries"], row["given_up"], row["twice"], row["same"],
        )
        for row in found.collect()
    ]  # fmt: skip
    return sorted(rows, key=lambda row: row.run)


def _loads(by_load: Sequence[_Load]) -> list[LoadRow]:
    rows = []
    for one in by_load:
        if one.load is None:
            continue
        seconds = (one.delivered_ns - one.span[0]) / 1e9 if one.delivered_ns is not None else 0.0
        # n arrivals at a steady rate span n - 1 intervals.
        achieved = (one.completed - 1) / seconds if seconds > 0 and one.completed > 1 else None
        keeps_up = achieved is not None and achieved >= KEEPS_UP * one.load
        rows.append(LoadRow(one.run, one.load, one.publications, one.completed, achieved, keeps_up))
    return rows


def _saturation(loads: Sequence[LoadRow]) -> list[SaturationRow]:
    rows = []
    for run in dict.fromkeys(row.run for row in loads):
        mine = [row for row in loads if row.run == run]
        failing = next((row for row in mine if not row.keeps_up), None)
        kept = [row.load for row in mine if row.keeps_up and (failing is None or row.load < failing.load)]
        rows.append(
            SaturationRow(run, failing is not None, kept[-1] if kept else None, failing.load if failing else None)
        )
    return rows


def _file_rows(inventory: Inventory) -> list[FileRow]:
    return [
        FileRow(file.run, file.path.name, file.state.value, file.version, file.rows, file.remark)
        for file in inventory.files
    ]


def _quality(inventory: Inventory, counts: Mapping[str, int], observed: Observed) -> list[QualityRow]:
    promised = sum(file.rows for file in inventory.readable if file.rows is not None)
    rows = [
        QualityRow("files read", len(inventory.readable)),
        *(
            QualityRow(f"files: {state.value}", sum(file.state is state for file in inventory.files))
            for state in FileState
        ),
        QualityRow("rows read", counts["rows"]),
        QualityRow("rows of an older schema", counts["older"]),
        QualityRow("rows that are no record", counts["unusable"]),
        QualityRow("rows lost to files that broke in the middle", promised - counts["columnar"]),
        QualityRow("latencies below zero, left out", counts["negative"]),
        QualityRow("latencies at a moment when a clock stepped, left out", counts["stepped"]),
        QualityRow("processes of which no file can be read", len(observed.unseen)),
        QualityRow("records dropped while tracing", sum(run.dropped for run in inventory.runs)),
        QualityRow("records removed by rotation", sum(run.removed for run in inventory.runs)),
        QualityRow("runs without an end", sum(run.ended_ns is None for run in inventory.runs)),
    ]
    return [row for row in rows if row.count or row.what in ("files read", "rows read")]
