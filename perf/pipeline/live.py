"""The same definitions while a run goes on: Structured Streaming over its trace directory.

A publication's records meet in a session window: when nothing was heard of it for `GAP` and the watermark has passed,
its records go through the same stitching as in the batch analysis. Latencies are counted by time window and bucket;
counts of later micro-batches add up. What comes later than the watermark is dropped by Spark and counted here, and so
are rows that are no record. The watermark moves with the records: a run's last publications show when later ones come.
"""

import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

import msgspec
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.streaming.query import StreamingQuery
from rich.console import Console
from rich.live import Live
from rich.table import Table

from perf.pipeline.analysis import correct, find_crossings
from perf.pipeline.buckets import bucket, middle_of
from perf.pipeline.clocks import ApparentDelay, estimate_offsets
from perf.pipeline.reading import BROKEN, how_many, spark_schema, usable
from perf.pipeline.stitching import PUBLICATION, stitch
from perf.traces.formats import Format
from perf.traces.run import TRACES, load_run
from perf.traces.schema import COLUMN_NAMES

MS: Final = 1e6
GAP: Final = "5 seconds"
LATENESS: Final = "10 seconds"
WINDOW_SECONDS: Final = 10
WINDOWS_KEPT: Final = 360
TRIGGER: Final = "2 seconds"
FILES_A_TRIGGER: Final = 16
SNAPSHOT: Final = "live.json"
OBSERVED: Final = "records"
SHOWN: Final = 20
QUANTILES: Final = (0.5, 0.9, 0.99, 0.999)

Key = tuple[int, str, str]
"""Window, stage, domain."""


@dataclass(frozen=True, slots=True)
class LiveRow:
    """One stage in one window of time. Percentiles are from buckets: within 1/2048 of the exact value."""

    window: str
    stage: str
    domain: str
    count: int
    p50_ms: float
    p90_ms: float
    p99_ms: float
    p999_ms: float


@dataclass(slots=True)
class LiveState:
    """What the driver keeps: counts by window and bucket, bounded by `WINDOWS_KEPT`."""

    cells: dict[Key, dict[int, int]] = field(default_factory=lambda: defaultdict(lambda: defaultdict(int)))
    crossings: dict[tuple[str, str, str], ApparentDelay] = field(default_factory=dict)
    endings: dict[str, int] = field(default_factory=lambda: defaultdict(int))
    negative: int = 0
    records: int = 0
    unusable: int = 0
    late: int = 0
    last_batch: int = -1
    last_progress: str = ""

    def add(self, counts: Iterable[tuple[Key, int, int]]) -> None:
        for key, number, count in counts:
            self.cells[key][number] += count
        windows = sorted({key[0] for key in self.cells})
        for old in windows[:-WINDOWS_KEPT]:
            for key in [key for key in self.cells if key[0] == old]:
                del self.cells[key]

    def rows(self) -> list[LiveRow]:
        made = []
        for (window, stage, domain), counts in sorted(self.cells.items(), reverse=True):
            begin = datetime.fromtimestamp(window * WINDOW_SECONDS, UTC)
            values = [value / MS for value in quantiles_of(counts)]
            made.append(LiveRow(f"{begin:%H:%M:%S}", stage, domain, sum(counts.values()), *values))
        return made


def quantiles_of(counts: Mapping[int, int]) -> list[float]:
    """Nearest rank over buckets."""
    total = sum(counts.values())
    found = []
    for quantile in QUANTILES:
        left = max(1, -(-round(quantile * total * 1000) // 1000))
        for number in sorted(counts):
            left -= counts[number]
            if left <= 0:
                found.append(middle_of(number))
                break
    return found


def start(
    session: SparkSession, run: Path, state: LiveState, checkpoint: Path, *, trigger: str = TRIGGER
) -> StreamingQuery:
    """Begin to follow a run."""
    session.conf.set("spark.sql.shuffle.partitions", "2")
    # A run that has just begun has no file yet that would say which format it writes.
    stream = _files(session, run, Format.PARQUET).unionByName(_files(session, run, Format.JSON_LINES))
    observed = stream.withColumn("_fine", usable()).observe(
        OBSERVED, F.count(F.lit(1)).alias("records"), how_many(~F.col("_fine")).alias("unusable")
    )
    records = observed.where("_fine").drop("_fine", BROKEN)
    timed = records.withColumn("at", F.timestamp_micros((F.col("wall_ns") / 1000).cast("long")))
    sessions = (
        timed.withWatermark("at", LATENESS)
        .groupBy(F.session_window("at", GAP), "run", "publication")
        .agg(F.collect_list(F.struct(*COLUMN_NAMES)).alias("records"))
    )
    return (
        sessions.writeStream.outputMode("append")
        .foreachBatch(lambda batch, number: take_batch(state, batch, number))
        .option("checkpointLocation", str(checkpoint))
        .trigger(processingTime=trigger)
        .start()
    )


def _files(session: SparkSession, run: Path, form: Format) -> DataFrame:
    return (
        session.readStream.schema(spark_schema().add(BROKEN, "string"))
        .format("json" if form is Format.JSON_LINES else "parquet")
        .option("columnNameOfCorruptRecord", BROKEN)
        .option("pathGlobFilter", f"*.{form}")
        .option("maxFilesPerTrigger", str(FILES_A_TRIGGER))
        .load((run / TRACES).resolve().as_uri())
    )


def take_batch(state: LiveState, batch: DataFrame, number: int) -> None:
    """One micro-batch of whole publications. A batch that Spark repeats after a failure counts once."""
    if number <= state.last_batch:
        return
    state.last_batch = number
    records = batch.select(F.explode("records").alias("record")).select("record.*")
    stitched = stitch(records, 2).localCheckpoint()
    stages = stitched.where(F.col("stage") != PUBLICATION)
    for crossing in find_crossings(stages):
        key = (crossing.run, crossing.clock_from, crossing.clock_to)
        known = state.crossings.get(key)
        if known is None or crossing.least_ns < known.least_ns:
            state.crossings[key] = crossing
    corrected = correct(batch.sparkSession, stages, estimate_offsets(state.crossings.values()))
    counts = (
        corrected.select(
            F.floor(F.col("start_ns") / F.lit(WINDOW_SECONDS * 1_000_000_000)).alias("window"),
            "stage",
            "domain",
            F.when(F.col("latency_ns") >= 0, bucket(F.col("latency_ns"))).alias("bucket"),
        )
        .groupBy("window", "stage", "domain", "bucket")
        .count()
        .collect()
    )
    state.negative += sum(row["count"] for row in counts if row["bucket"] is None)
    state.add(
        ((row["window"], row["stage"], row["domain"]), row["bucket"], row["count"])
        for row in counts
        if row["bucket"] is not None
    )
    for row in stitched.where(F.col("stage") == PUBLICATION).groupBy("ending").count().collect():
        state.endings[row["ending"]] += row["count"]


def take_progress(state: LiveState, query: StreamingQuery) -> None:
    """Add what Spark says of its latest micro-batches. It remembers a hundred: ask more often than that."""
    for progress in query.recentProgress:
        if progress["timestamp"] <= state.last_progress:
            continue
        state.last_progress = progress["timestamp"]
        state.late += sum(operator["numRowsDroppedByWatermark"] for operator in progress["stateOperators"])
        seen = progress["observedMetrics"].get(OBSERVED)
        if seen is not None:
            state.records += seen["records"]
            state.unusable += seen["unusable"]


def follow(
    session: SparkSession,
    run: Path,
    out: Path,
    *,
    seconds: float | None = None,
    clock: Callable[[], float] = time.monotonic,
) -> LiveState:
    """Show a table that refreshes until Ctrl-C or `seconds` are over; also as `live.json`, for a dashboard."""
    state = LiveState()
    name = load_run(run).run
    out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as checkpoint, Live(console=Console(), auto_refresh=False) as screen:
        query = start(session, run, state, Path(checkpoint))
        # From here on: on a busy machine starting takes longer than somebody may want to look.
        until = None if seconds is None else clock() + seconds
        try:
            while query.isActive and (until is None or clock() < until):
                query.awaitTermination(1)
                take_progress(state, query)
                screen.update(as_table(name, state), refresh=True)
                write_snapshot(out, name, state)
        except KeyboardInterrupt:
            pass
        finally:
            query.stop()
    return state


def as_table(name: str, state: LiveState) -> Table:
    table = Table(title=f"{name}: windows of {WINDOW_SECONDS} s", caption=_caption(state))
    for heading in ("window", "stage", "domain", "count", "p50 ms", "p90 ms", "p99 ms", "p99.9 ms"):
        table.add_column(heading, justify="left" if heading in ("window", "stage", "domain") else "right")
    for row in state.rows()[:SHOWN]:
        figures = (row.p50_ms, row.p90_ms, row.p99_ms, row.p999_ms)
        table.add_row(row.window, row.stage, row.domain, f"{row.count:,}", *(f"{value:.4g}" for value in figures))
    return table


def _caption(state: LiveState) -> str:
    ends = ", ".join(f"{count:,} {how}" for how, count in sorted(state.endings.items())) or "none yet"
    return (
        f"publications: {ends}; records: {state.records:,}, of which {state.unusable:,} unusable and {state.late:,} "
        f"late; latencies below zero: {state.negative:,}"
    )


def write_snapshot(out: Path, name: str, state: LiveState) -> None:
    """As a whole or not at all: a dashboard may read it at any time."""
    document = {
        "run": name,
        "window_seconds": WINDOW_SECONDS,
        "endings": dict(state.endings),
        "records": state.records,
        "unusable": state.unusable,
        "late": state.late,
        "below_zero": state.negative,
        "rows": [asdict(row) for row in state.rows()],
    }
    fresh = out / f".{SNAPSHOT}.part"
    fresh.write_bytes(msgspec.json.encode(document))
    fresh.replace(out / SNAPSHOT)
