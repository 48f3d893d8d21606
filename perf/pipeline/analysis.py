"""The whole analysis: run directories in, small tables out.

Rows are stitched once into a working directory; every table is then an aggregate over that, and only aggregates come
to the driver.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from pyspark.sql import Column, DataFrame, Observation, SparkSession
from pyspark.sql import functions as F  # noqa: N812

from perf.pipeline.clocks import ApparentDelay, ClockOffset, estimate_offsets
from perf.pipeline.correlation import correlation_rows
from perf.pipeline.distributions import MS, count_cells, histogram_rows, latency_rows, rank_tests, time_rows
from perf.pipeline.reading import observed_usable, read_traces
from perf.pipeline.stitching import PUBLICATION, Ending, stitch
from perf.pipeline.tables import (
    ClockRow,
    CorrelationRow,
    DifferenceRow,
    EndingRow,
    FileRow,
    HistogramRow,
    LatencyRow,
    LoadRow,
    QualityRow,
    RunNodeRow,
    SaturationRow,
    TimeRow,
)
from perf.traces.files import FileState, Inventory, take_inventory
from perf.traces.schema import Domain

ROWS_A_PARTITION: Final = 400_000
KEEPS_UP: Final = 0.95
"""A load is kept up with when at least this share of it is completed a second."""
CROSSING_STAGES: Final = ("end_to_end", "fan_out")


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
    loads: Sequence[LoadRow]
    saturation: Sequence[SaturationRow]
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
    tick("looking at files")
    inventory = take_inventory(directories)
    partitions = partitions_for(inventory.known_rows, session.sparkContext.defaultParallelism)
    session.conf.set("spark.sql.shuffle.partitions", str(partitions))
    tick("stitching publications")
    observation = Observation("records")
    records = observed_usable(read_traces(session, inventory), [run.run for run in inventory.runs], observation)
    stitched_path = (work / "stitched").resolve().as_uri()
    stitch(records, partitions).write.mode("overwrite").parquet(stitched_path)
    counts = {name: int(count) for name, count in observation.get.items()}
    stitched = session.read.parquet(stitched_path)
    tick("comparing clocks")
    stages = stitched.where(F.col("stage") != PUBLICATION)
    offsets = estimate_offsets(find_crossings(stages))
    corrected = correct(session, stages, offsets)
    latencies = corrected.where("latency_ns >= 0")
    nodes, spans, negative = _nodes_and_spans(corrected)
    tick("counting latencies")
    cells = count_cells(latencies).localCheckpoint()
    tick("percentiles")
    latency = latency_rows(latencies, cells)
    tick("rank tests")
    crossing = _crossing(cells, latency, [run.run for run in inventory.runs])
    between = _between_runs(cells, latency, [run.run for run in inventory.runs])
    tick("correlation")
    correlation = correlation_rows(latencies)
    tick("variation over time")
    over_time = time_rows(latencies, spans)
    tick("losses and loads")
    publications = stitched.where(F.col("stage") == PUBLICATION)
    loads = _loads(publications)
    return Analysis(
        inventory=inventory,
        files=_file_rows(inventory),
        quality=_quality(inventory, counts, negative),
        latency=latency,
        crossing=crossing,
        between_runs=between,
        correlation=correlation,
        endings=_endings(publications),
        loads=loads,
        saturation=_saturation(loads),
        over_time=over_time,
        histogram=histogram_rows(cells),
        clocks=[_clock_row(offset) for offset in offsets],
        nodes=nodes,
    )


def partitions_for(rows: int, cores: int) -> int:
    """Enough that one partition's sort stays in memory, few enough that small runs do not wait for empty tasks."""
    return max(min(cores, 2), min(4096, -(-rows // ROWS_A_PARTITION)))


def correct(session: SparkSession, stages: DataFrame, offsets: Sequence[ClockOffset]) -> DataFrame:
    """`latency_ns`: what `raw_ns` would be if all clocks showed the same time."""
    rows = [(offset.run, offset.clock, round(offset.offset_ns)) for offset in offsets if offset.estimated]
    frame = stages
    for end in ("from", "to"):
        table = session.createDataFrame(rows, f"run string, clock_{end} string, ahead_{end} bigint")
        frame = frame.join(F.broadcast(table), ["run", f"clock_{end}"], "left")
    ahead = F.coalesce(F.col("ahead_to"), F.lit(0)) - F.coalesce(F.col("ahead_from"), F.lit(0))
    # Times of one clock were subtracted on that clock: nothing to correct there, and `ahead` is 0.
    return frame.withColumn("latency_ns", F.col("raw_ns") - ahead).drop("ahead_from", "ahead_to")


def find_crossings(stages: DataFrame) -> list[ApparentDelay]:
    """The smallest apparent delay between every two clocks that a publication went between."""
    between = stages.where("clock_from <> clock_to")
    found = between.groupBy("run", "stage", "clock_from", "clock_to").agg(
        F.min("raw_ns").alias("least"), F.count(F.lit(1)).alias("count")
    )
    best: dict[tuple[str, str, str], ApparentDelay] = {}
    # The shortest stage says most about the clocks: it has the least delay in it.
    for row in found.collect():
        key = (row["run"], row["clock_from"], row["clock_to"])
        if key not in best or row["least"] < best[key].least_ns:
            best[key] = ApparentDelay(*key, row["least"], row["count"])
    return list(best.values())


def _nodes_and_spans(corrected: DataFrame) -> tuple[list[RunNodeRow], dict[str, tuple[int, int]], int]:
    found = (
        corrected.groupBy("run", "node", "clock_to")
        .agg(
            F.count(F.lit(1)).alias("rows"),
            (F.max("wall_ahead_ns") - F.min("wall_ahead_ns")).alias("moved"),
            F.min("start_ns").alias("begin"),
            F.max("start_ns").alias("end"),
            F.sum(F.when(F.col("latency_ns") < 0, 1).otherwise(0)).alias("negative"),
        )
        .collect()
    )
    spans: dict[str, tuple[int, int]] = {}
    for row in found:
        begin, end = spans.get(row["run"], (row["begin"], row["end"]))
        spans[row["run"]] = (min(begin, row["begin"]), max(end, row["end"]))
    nodes = [RunNodeRow(row["run"], row["node"], row["clock_to"], row["rows"], row["moved"] / MS) for row in found]
    return sorted(nodes, key=lambda row: (row.run, row.node, row.clock)), spans, sum(row["negative"] for row in found)


def _medians(latency: Sequence[LatencyRow]) -> dict[tuple[str, str, str], float]:
    return {(row.run, row.stage, row.domain): row.p50_ms for row in latency if row.by == "all"}


def _crossing(cells: DataFrame, latency: Sequence[LatencyRow], runs: Sequence[str]) -> list[DifferenceRow]:
    """Publications that crossed PSIRP against those that stayed in their domain, run by run."""
    medians = _medians(latency)
    rows = []
    # `domain` is what is compared, so the run takes its place as the group.
    both = cells.where(F.col("stage").isin(*CROSSING_STAGES)).select(
        "stage", F.col("run").alias("domain"), F.col("domain").alias("side"), "bucket", "count"
    )
    tests = rank_tests(both, F.col("side") == Domain.PUSH.value, F.col("side") == Domain.PSIRP.value)
    for (stage, run), test in sorted(tests.items()):
        if run in runs:
            rows.append(
                DifferenceRow(
                    stage, run, Domain.PUSH.value, Domain.PSIRP.value, test.first, test.second,
                    medians[run, stage, Domain.PUSH.value], medians[run, stage, Domain.PSIRP.value],
                    test.u, test.z, test.p, test.slower, test.significant,
                )
            )  # fmt: skip
    return rows


def _between_runs(cells: DataFrame, latency: Sequence[LatencyRow], runs: Sequence[str]) -> list[DifferenceRow]:
    """Every later run against the first."""
    medians = _medians(latency)
    rows = []
    for other in runs[1:]:
        tests = rank_tests(cells, F.col("run") == runs[0], F.col("run") == other)
        for (stage, domain), test in sorted(tests.items()):
            rows.append(
                DifferenceRow(
                    stage, domain, runs[0], other, test.first, test.second, medians[runs[0], stage, domain],
                    medians[other, stage, domain], test.u, test.z, test.p, test.slower, test.significant,
                )
            )  # fmt: skip
    return rows


def _endings(publications: DataFrame) -> list[EndingRow]:
    def ended(how: str) -> Column:
        return F.sum(F.when(F.col("ending") == how, 1).otherwise(0)).alias(how)

    found = publications.groupBy("run").agg(
        F.count(F.lit(1)).alias("publications"),
        *(ended(how) for how in (Ending.COMPLETE, Ending.LOST, Ending.NO_START, Ending.NO_END)),
        *(F.sum(name).alias(name) for name in ("deliveries", "given_up", "twice", "same")),
    )
    rows = [
        EndingRow(
            row["run"], row["publications"], row[Ending.COMPLETE], row[Ending.LOST], row[Ending.NO_START],
            row[Ending.NO_END], row["deliveries"], row["given_up"], row["twice"], row["same"],
        )
        for row in found.collect()
    ]  # fmt: skip
    return sorted(rows, key=lambda row: row.run)


def _loads(publications: DataFrame) -> list[LoadRow]:
    complete = F.col("ending") == Ending.COMPLETE
    found = publications.where("load is not null").groupBy("run", "load").agg(
        F.count(F.lit(1)).alias("publications"),
        F.sum(F.when(complete, 1).otherwise(0)).alias("completed"),
        F.min("start_ns").alias("begin"),
        F.max("last_delivered").alias("end"),
    )  # fmt: skip
    rows = []
    for row in found.collect():
        seconds = (row["end"] - row["begin"]) / 1e9 if row["end"] is not None else 0.0
        # n arrivals at a steady rate span n - 1 intervals.
        achieved = (row["completed"] - 1) / seconds if seconds > 0 and row["completed"] > 1 else None
        keeps_up = achieved is not None and achieved >= KEEPS_UP * row["load"]
        rows.append(LoadRow(row["run"], row["load"], row["publications"], row["completed"], achieved, keeps_up))
    return sorted(rows, key=lambda row: (row.run, row.load))


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


def _quality(inventory: Inventory, counts: dict[str, int], negative: int) -> list[QualityRow]:
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
        QualityRow("latencies below zero, left out", negative),
        QualityRow("records dropped while tracing", sum(run.dropped for run in inventory.runs)),
        QualityRow("records removed by rotation", sum(run.removed for run in inventory.runs)),
        QualityRow("runs without an end", sum(run.ended_ns is None for run in inventory.runs)),
    ]
    return [row for row in rows if row.count or row.what in ("files read", "rows read")]


def _clock_row(offset: ClockOffset) -> ClockRow:
    return ClockRow(
        offset.run, offset.reference, offset.clock, offset.offset_ns / MS, offset.margin_ns / MS,
        offset.estimated, offset.crossings,
    )  # fmt: skip
