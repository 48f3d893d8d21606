"""Runs made ready to be looked at with Spark: records, stitched rows, latencies on one clock. Reports begin here too.

spark = open_session()
runs = prepare(spark, [Path("run")], Path("work"))
runs.latencies.groupBy("stage", "domain").agg(F.median("latency_ns")).show()
"""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from pyspark.sql import DataFrame, Observation, SparkSession
from pyspark.sql import functions as F  # noqa: N812

from perf.pipeline.clocks import ClockModel, model_clocks
from perf.pipeline.corrections import correct, find_delays, window_width
from perf.pipeline.reading import observed_usable, read_traces, usable
from perf.pipeline.stitching import PUBLICATION, stitch
from perf.pipeline.tables import RunNodeRow
from perf.traces.files import Inventory, take_inventory
from perf.traces.run import RunError
from perf.traces.schema import CONTROL_STAGE

ROWS_A_PARTITION: Final = 400_000
STITCHED: Final = "stitched"
MS: Final = 1e6


@dataclass(frozen=True, slots=True)
class SeenNode:
    row: RunNodeRow
    begin_ns: int
    end_ns: int
    wall_ahead_ns: int
    """How far its wall clock was ahead of its monotonic one, at first."""


@dataclass(frozen=True)
class PreparedRuns:
    """Everything as DataFrames, read again whenever they are used; `work` must stay as long."""

    inventory: Inventory
    records: DataFrame
    """Usable records as they were written: the columns of docs/traces.md."""
    publications: DataFrame
    """One row for each publication: how it ended, how often it was delivered."""
    stages: DataFrame
    """One row for each stage of each publication; `raw_ns` is by the clocks of its ends, whatever they show."""
    corrected: DataFrame
    """The same with `latency_ns`, on one clock, and `margin_ns`; also those that cannot be known or are below zero."""
    clocks: Sequence[ClockModel]
    nodes: Sequence[SeenNode]
    counts: Mapping[str, int]
    """Rows that were read, and what was wrong with some."""

    @property
    def latencies(self) -> DataFrame:
        """One row for each latency: run, stage, domain, node, delivery, payload, hop, load, start_ns, latency_ns..."""
        return self.corrected.where("latency_ns >= 0")


def prepare(
    session: SparkSession,
    directories: Sequence[Path],
    work: Path,
    tick: Callable[[str], None] = lambda label: None,
) -> PreparedRuns:
    """`work` gets the stitched rows, as Parquet; the caller removes it. `tick` hears what comes next."""
    tick("looking at files")
    inventory = take_inventory(directories)
    partitions = partitions_for(inventory.known_rows, session.sparkContext.defaultParallelism)
    session.conf.set("spark.sql.shuffle.partitions", str(partitions))
    tick("stitching publications")
    observation = Observation("records")
    raw = read_traces(session, inventory)
    runs = [run.run for run in inventory.runs]
    path = (work / STITCHED).resolve().as_uri()
    stitch(observed_usable(raw, runs, observation), partitions).write.mode("overwrite").parquet(path)
    counts = {name: int(count) for name, count in observation.get.items()}
    if counts["rows"] == counts["unusable"]:
        raise RunError(nothing_usable(inventory, counts["rows"]))
    stitched = session.read.parquet(path)
    stages = stitched.where(F.col("stage") != PUBLICATION)
    tick("comparing clocks")
    nodes = _nodes(stages)
    several = {run for run in runs if len({node.row.clock for node in nodes if node.row.run == run}) > 1}
    widths = {run: window_width(end - begin) for run, (begin, end) in spans_of(nodes).items() if run in several}
    models = model_clocks(find_delays(stages, widths))
    return PreparedRuns(
        inventory=inventory,
        records=raw.where(usable() & F.col("run").isin(runs)),
        publications=stitched.where(F.col("stage") == PUBLICATION),
        stages=stages,
        corrected=correct(session, stages.where(F.col("stage") != CONTROL_STAGE), models),
        clocks=models,
        nodes=nodes,
        counts=counts,
    )


def nothing_usable(inventory: Inventory, rows: int) -> str:
    states = Counter(file.state.value for file in inventory.files)
    found = ", ".join(f"{count} {state}" for state, count in states.items()) or "no trace file"
    where = ", ".join(str(directory) for directory in inventory.directories)
    return f"{where}: there is no record that can be used ({found}; {rows:,} rows); did the run trace anything?"


def partitions_for(rows: int, cores: int) -> int:
    """Enough that one partition's sort stays in memory, few enough that small runs do not wait for empty tasks."""
    return max(min(cores, 2), min(4096, -(-rows // ROWS_A_PARTITION)))


def _nodes(stages: DataFrame) -> list[SeenNode]:
    found = (
        stages.groupBy("run", "node", "clock_to")
        .agg(
            F.count(F.lit(1)).alias("rows"),
            (F.max("wall_ahead_ns") - F.min("wall_ahead_ns")).alias("moved"),
            F.min("start_ns").alias("begin"),
            F.max("start_ns").alias("end"),
            F.min(F.struct("start_ns", "wall_ahead_ns"))["wall_ahead_ns"].alias("ahead"),
        )
        .collect()
    )
    nodes = [
        SeenNode(
            RunNodeRow(row["run"], row["node"], row["clock_to"], row["rows"], row["moved"] / MS),
            row["begin"], row["end"], row["ahead"],
        )
        for row in found
    ]  # fmt: skip
    return sorted(nodes, key=lambda node: (node.row.run, node.row.node, node.row.clock))


def spans_of(nodes: Sequence[SeenNode]) -> dict[str, tuple[int, int]]:
    """From the first start to the last of each run."""
    spans: dict[str, tuple[int, int]] = {}
    for node in nodes:
        begin, end = spans.get(node.row.run, (node.begin_ns, node.end_ns))
        spans[node.row.run] = (min(begin, node.begin_ns), max(end, node.end_ns))
    return spans
