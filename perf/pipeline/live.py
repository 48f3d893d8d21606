"""The same definitions while a run goes on: Structured Streaming over the trace directories of its processes.

Every process writes a file every other second, so files of one publication come from several directories, in any order.
Records wait until nothing more of their publication has come for `SETTLED` seconds, and everybody who still writes has
written since; then they go through the same stitching as in the batch analysis. A publication that has no end yet waits
longer. Waiting is by when records come and not by their clocks, which may be hours apart. What comes after its
publication was counted is late: it is counted as such, and changes nothing. So are rows that are no record.
"""

import tempfile
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from functools import reduce
from pathlib import Path
from typing import Final

import msgspec
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.streaming.query import StreamingQuery
from rich.console import Console
from rich.live import Live
from rich.table import Table

from perf.pipeline.buckets import bucket, middle_of
from perf.pipeline.clocks import ApparentDelay, model_clocks
from perf.pipeline.corrections import correct, find_delays
from perf.pipeline.reading import BROKEN, spark_schema, usable
from perf.pipeline.stitching import PUBLICATION, stitch
from perf.traces.formats import Format
from perf.traces.run import TRACES, load_run
from perf.traces.schema import COLUMN_NAMES, CONTROL_STAGE, TraceStep

MS: Final = 1e6
SETTLED: Final = 3.0
"""Seconds after the last record of a publication that has an end."""
PATIENCE: Final = 30.0
"""Of one that has none."""
IDLE: Final = 6.0
"""A process of which nothing came for so long does not hold up the others."""
REMEMBERED: Final = 120.0
"""Seconds for which it is known which publications were counted."""
WINDOW_SECONDS: Final = 10
WINDOWS_KEPT: Final = 360
CLOCK_WINDOW_NS: Final = 1_000_000_000
CLOCK_WINDOWS_KEPT: Final = 600
TRIGGER: Final = "1 second"
FILES_A_TRIGGER: Final = 64
SNAPSHOT: Final = "live.json"
SHOWN: Final = 20
QUANTILES: Final = (0.5, 0.9, 0.99, 0.999)
PARTITIONS: Final = 2

Key = tuple[int, str, str]
"""Window, stage, domain."""
Source = tuple[str, str, str]
"""Run, node, clock: who writes."""


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
    """What the driver keeps: counts by window and bucket, bounded by `WINDOWS_KEPT`; records that wait are Spark's."""

    cells: dict[Key, dict[int, int]] = field(default_factory=lambda: defaultdict(lambda: defaultdict(int)))
    delays: dict[tuple[str, str, str, int], ApparentDelay] = field(default_factory=dict)
    heard: dict[Source, float] = field(default_factory=dict)
    """When something last came of each source."""
    endings: dict[str, int] = field(default_factory=lambda: defaultdict(int))
    waiting: DataFrame | None = None
    counted: DataFrame | None = None
    """Keys of publications that were counted, and when."""
    negative: int = 0
    records: int = 0
    unusable: int = 0
    late: int = 0
    behind: float = 0.0
    """Seconds from the last record of a publication to when it was counted: of the slowest one, the last time."""
    last_batch: int = -1
    lock: threading.Lock = field(default_factory=threading.Lock)

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
    session: SparkSession,
    directories: Sequence[Path],
    state: LiveState,
    checkpoint: Path,
    *,
    trigger: str = TRIGGER,
    clock: Callable[[], float] = time.monotonic,
) -> StreamingQuery:
    """Begin to follow a run, of which every process has a directory."""
    session.conf.set("spark.sql.shuffle.partitions", str(PARTITIONS))
    # A run that has just begun has no file yet that would say which format it writes.
    streams = [_files(session, run, form) for run in directories for form in (Format.PARQUET, Format.JSON_LINES)]
    return (
        reduce(DataFrame.unionByName, streams)
        .writeStream.outputMode("append")
        .foreachBatch(lambda batch, number: take_batch(state, batch, number, clock()))
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


def take_batch(state: LiveState, batch: DataFrame, number: int, now: float) -> None:
    """Records that came. A batch that Spark repeats after a failure counts once."""
    with state.lock:
        if number <= state.last_batch:
            return
        state.last_batch = number
        marked = batch.withColumn("_fine", usable()).withColumns(
            {"key": F.xxhash64("run", "publication"), "came": F.lit(now)}
        )
        marked = marked.localCheckpoint()
        for row in marked.groupBy("_fine").count().collect():
            state.records += row["count"]
            state.unusable += 0 if row["_fine"] else row["count"]
        fine = marked.where("_fine").drop("_fine", BROKEN)
        for source in fine.select("run", "node", "clock").distinct().collect():
            state.heard[source["run"], source["node"], source["clock"]] = now
        if state.counted is not None:
            state.late += fine.join(state.counted, "key", "left_semi").count()
            fine = fine.join(state.counted, "key", "left_anti")
        together = fine if state.waiting is None else state.waiting.unionByName(fine)
        state.waiting = together.coalesce(PARTITIONS).localCheckpoint()


def settle(state: LiveState, now: float, wall_ns: int | None = None) -> None:
    """Count the publications of which nothing more is awaited. Call it again and again, also when nothing comes."""
    with state.lock:
        if state.waiting is None:
            return
        heard = [when for when in state.heard.values() if now - when < IDLE]
        # Whoever still writes has written since the last record of what is counted now.
        until = min([now - SETTLED, *heard])
        each = state.waiting.groupBy("key").agg(
            F.max("came").alias("came"), F.max("wall_ns").alias("last"), has_end().alias("ended")
        )
        ready = each.where(
            (F.col("ended") & (F.col("came") <= until)) | (F.col("came") <= now - PATIENCE)
        ).localCheckpoint()
        if ready.isEmpty():
            return
        records = state.waiting.join(ready.select("key"), "key", "left_semi").select(*COLUMN_NAMES)
        _count(state, stitch(records, PARTITIONS).localCheckpoint())
        moment = time.time_ns() if wall_ns is None else wall_ns
        (oldest,) = ready.where("ended").agg(F.min("last")).collect()
        if oldest[0] is not None:
            state.behind = (moment - oldest[0]) / 1e9
        done = ready.select("key", F.lit(now).alias("when"))
        if state.counted is not None:
            done = state.counted.where(F.col("when") > now - REMEMBERED).unionByName(done)
        state.counted = done.coalesce(PARTITIONS).localCheckpoint()
        state.waiting = state.waiting.join(ready.select("key"), "key", "left_anti").localCheckpoint()


def has_end() -> Column:
    """Whether a publication came to an end as far as its records tell: it was delivered, or all that it would be; and
    what was given to PSIRP was received."""

    def any_of(*steps: TraceStep) -> Column:
        return F.max(F.col("step").isin([step.value for step in steps]))

    crossed = ~any_of(TraceStep.PUBLISHED) | any_of(TraceStep.RECEIVED)
    ended = any_of(TraceStep.DELIVERED, TraceStep.FINISHED, TraceStep.CONTROL_ARRIVED)
    return ended & crossed


def _count(state: LiveState, stitched: DataFrame) -> None:
    stages = stitched.where(F.col("stage") != PUBLICATION)
    runs = {run for run, _, _ in state.heard}
    clocks = {(run, clock) for run, _, clock in state.heard}
    if len(clocks) > len(runs):
        for delay in find_delays(stages, dict.fromkeys(runs, CLOCK_WINDOW_NS)):
            _keep_delay(state, delay)
    models = model_clocks(state.delays.values())
    corrected = correct(stitched.sparkSession, stages.where(F.col("stage") != CONTROL_STAGE), models)
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


def _keep_delay(state: LiveState, delay: ApparentDelay) -> None:
    key = (delay.run, delay.clock_from, delay.clock_to, delay.axis_ns // CLOCK_WINDOW_NS)
    known = state.delays.get(key)
    if known is None or delay.least_ns < known.least_ns:
        state.delays[key] = delay
    of_pair = [other for other in state.delays if other[:3] == key[:3]]
    if len(of_pair) > CLOCK_WINDOWS_KEPT:
        del state.delays[min(of_pair, key=lambda other: other[3])]


def follow(
    session: SparkSession,
    directories: Sequence[Path],
    out: Path,
    *,
    seconds: float | None = None,
    clock: Callable[[], float] = time.monotonic,
) -> LiveState:
    """Show a table that refreshes until Ctrl-C or `seconds` are over; also as `live.json`, for a dashboard."""
    state = LiveState()
    name = ", ".join(dict.fromkeys(load_run(directory).run for directory in directories))
    out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as checkpoint, Live(console=Console(), auto_refresh=False) as screen:
        query = start(session, directories, state, Path(checkpoint))
        # From here on: on a busy machine starting takes longer than somebody may want to look.
        until = None if seconds is None else clock() + seconds
        try:
            while query.isActive and (until is None or clock() < until):
                query.awaitTermination(1)
                settle(state, time.monotonic())
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
        f"late; latencies below zero: {state.negative:,}; {state.behind:.0f} s behind"
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
        "behind_seconds": round(state.behind, 1),
        "rows": [asdict(row) for row in state.rows()],
    }
    fresh = out / f".{SNAPSHOT}.part"
    fresh.write_bytes(msgspec.json.encode(document))
    fresh.replace(out / SNAPSHOT)
