"""Latency tables from counts by bucket: means, exact percentiles, jitter, slices of time.

Percentiles are exact (nearest rank), in two passes that both grow linearly: the first counts rows by bucket, which
says in which bucket a rank lies and how far in; the second looks only at the rows of those buckets and counts their
values. Neither sorts all rows, and neither keeps more than counts.
"""

import math
from collections.abc import Sequence
from typing import Final

from pyspark.sql import Column, DataFrame, Row, Window
from pyspark.sql import functions as F  # noqa: N812

from perf.pipeline.buckets import LATENCY_BITS, PAYLOAD_BITS, bucket, lowest_of, middle_of, payload_class
from perf.pipeline.stitching import LIKE_HOP, LIKE_LOAD, LIKE_PAYLOAD
from perf.pipeline.tables import HistogramRow, LatencyRow, TimeRow

MS: Final = 1e6
QUANTILES: Final = (0.25, 0.5, 0.75, 0.9, 0.99, 0.999)
GROUP: Final = ("run", "stage", "domain", "by", "value")
PLOT_BITS: Final = 3
SLICES: Final = 60
SUMS: Final = ("count", "sum", "squares", "steps", "step_count", "unmeasured")
CLASSES: Final = {"all": 0, "payload": LIKE_PAYLOAD, "hop": LIKE_HOP, "load": LIKE_LOAD}
"""What a row is grouped by, and what says that the publication before was of the same class."""


def count_cells(latencies: DataFrame) -> DataFrame:
    """Counts and sums by everything that tables are grouped by, and by bucket. Small, whatever the rows."""
    return (
        latencies.withColumn("bucket", bucket(F.col("latency_ns")))
        .groupBy("run", "stage", "domain", payload_class(F.col("payload")).alias("payload"), "hop", "load", "bucket")
        .agg(
            F.count(F.lit(1)).alias("count"),
            F.sum(F.col("latency_ns").cast("double")).alias("sum"),
            F.sum(F.pow(F.col("latency_ns").cast("double"), 2.0)).alias("squares"),
            F.min("latency_ns").alias("least"),
            F.max("latency_ns").alias("most"),
            *(part for name, bit in CLASSES.items() for part in _steps(name, bit)),
            F.max("margin_ns").alias("margin"),
            F.count_if(F.col("margin_ns").isNull()).alias("unmeasured"),
        )
    )


def _steps(name: str, bit: int) -> list[Column]:
    """Differences to the publication before, where that is of the same class."""
    step = F.abs(F.col("step_ns"))
    if bit:
        step = F.when(F.col("like").bitwiseAND(bit) != 0, step)
    return [F.sum(step.cast("double")).alias(f"steps_{name}"), F.count(step).alias(f"step_count_{name}")]


def dimensions(payload: Column, carried: Sequence[str] = ()) -> Column:
    """The groups that a row belongs to; without what it does not say. `carried` are columns of each class."""

    def of(name: str, value: Column) -> Column:
        more = [F.col(f"{column}_{name}").alias(column) for column in carried]
        return F.struct(F.lit(name).alias("by"), value.cast("double").alias("value"), *more)

    return F.array(of("all", F.lit(0)), of("payload", payload), of("hop", F.col("hop")), of("load", F.col("load")))


def _by_dimension(frame: DataFrame, payload: Column, carried: Sequence[str] = ()) -> DataFrame:
    spread = frame.withColumn("of", F.explode(dimensions(payload, carried)))
    names = [f"of.{name}" for name in ("by", "value", *carried)]
    return spread.select("*", *names).drop("of").where("value is not null")


def roll(cells: DataFrame) -> DataFrame:
    """Counts and sums by the groups of the tables, and by bucket."""
    return (
        _by_dimension(cells, F.col("payload"), ("steps", "step_count"))
        .groupBy(*GROUP, "bucket")
        .agg(
            *(F.sum(name).alias(name) for name in SUMS),
            F.min("least").alias("least"),
            *(F.max(name).alias(name) for name in ("most", "margin")),
        )
    )


def latency_rows(latencies: DataFrame, rolled: DataFrame) -> list[LatencyRow]:
    totals = rolled.groupBy(*GROUP).agg(
        *(F.sum(name).alias(name) for name in SUMS),
        F.min("least").alias("least"),
        *(F.max(name).alias(name) for name in ("most", "margin")),
    )
    values = {(*_group(row), row["quantile"]): float(row["latency_ns"]) for row in _exact(latencies, rolled).collect()}
    rows = [_latency_row(row, [values[(*_group(row), quantile)] for quantile in QUANTILES]) for row in totals.collect()]
    return sorted(rows, key=lambda row: (row.run, row.stage, row.domain, row.by, row.value))


def _group(row: Row) -> tuple[object, ...]:
    return tuple(row[name] for name in GROUP)


def _exact(latencies: DataFrame, rolled: DataFrame) -> DataFrame:
    """The value at each rank: find its bucket, then count values inside that bucket only."""
    group = Window.partitionBy(*GROUP)
    running = group.orderBy("bucket").rowsBetween(Window.unboundedPreceding, Window.currentRow)
    quantiles = F.explode(F.array(*map(F.lit, QUANTILES))).alias("quantile")
    rank = F.greatest(F.ceil(F.col("quantile") * F.col("total") - F.lit(1e-9)), F.lit(1))
    wanted = (
        rolled.select(*GROUP, "bucket", "count", F.sum("count").over(running).alias("upto"),
                      F.sum("count").over(group).alias("total"))
        .select("*", quantiles)
        .withColumn("rank", rank)
        .where("rank <= upto and rank > upto - count")
        .select(*GROUP, "bucket", "quantile", (F.col("rank") - F.col("upto") + F.col("count")).alias("inside"))
    )  # fmt: skip
    here = F.broadcast(wanted.select(*GROUP, "bucket").distinct())
    rows = latencies.select(
        "run", "stage", "domain", "payload", "hop", "load", "latency_ns", bucket(F.col("latency_ns")).alias("bucket")
    )
    spread = _by_dimension(rows, payload_class(F.col("payload"))).join(here, [*GROUP, "bucket"])
    in_bucket = Window.partitionBy(*GROUP, "bucket").orderBy("latency_ns")
    counted = spread.groupBy(*GROUP, "bucket", "latency_ns").agg(F.count(F.lit(1)).alias("n"))
    placed = counted.withColumn(
        "upto", F.sum("n").over(in_bucket.rowsBetween(Window.unboundedPreceding, Window.currentRow))
    )
    found = placed.join(F.broadcast(wanted), [*GROUP, "bucket"]).where("inside <= upto and inside > upto - n")
    return found.select(*GROUP, "quantile", "latency_ns")


def shown_value(by: str, value: float) -> float:
    """A class of payloads by its smallest."""
    return float(lowest_of(int(value), PAYLOAD_BITS)) if by == "payload" else value


def _latency_row(row: Row, at: Sequence[float]) -> LatencyRow:
    p25, p50, p75, p90, p99, p999 = (value / MS for value in at)
    value = shown_value(row["by"], row["value"])
    return LatencyRow(
        row["run"], row["stage"], row["domain"], row["by"], value, row["count"], row["sum"] / row["count"] / MS,
        row["least"] / MS, p25, p50, p90, p99, p999, row["most"] / MS,
        row["steps"] / row["step_count"] / MS if row["step_count"] else None, p75 - p25,
        None if row["unmeasured"] else row["margin"] / MS,
    )  # fmt: skip


def histogram_rows(cells: DataFrame) -> list[HistogramRow]:
    """Coarser buckets, few enough for a plot: eight to an octave."""
    drop = LATENCY_BITS - PLOT_BITS
    shift = F.greatest(F.floor(F.col("bucket") / F.lit(1 << LATENCY_BITS)) - 1, F.lit(0)).cast("long")
    top = F.col("bucket") - shift * (1 << LATENCY_BITS)
    coarse = cells.select(
        "run", "stage", "domain", "count", shift.alias("shift"), F.floor(top / F.lit(1 << drop)).alias("top")
    )
    rows = coarse.groupBy("run", "stage", "domain", "shift", "top").agg(F.sum("count").alias("count")).collect()
    made = [
        HistogramRow(
            row["run"], row["stage"], row["domain"], (row["top"] << (row["shift"] + drop)) / MS,
            ((row["top"] + 1) << (row["shift"] + drop)) / MS, row["count"],
        )
        for row in rows
    ]  # fmt: skip
    return sorted(made, key=lambda row: (row.run, row.stage, row.domain, row.from_ms))


def time_rows(latencies: DataFrame, spans: dict[str, tuple[int, int]]) -> list[TimeRow]:
    """p50 and p99 end to end over the run, in slices; from buckets, so within 1/2048 of the exact value."""
    if not spans:
        return []
    begin = F.create_map(*(part for run, (start, _) in spans.items() for part in (F.lit(run), F.lit(start))))
    width = F.create_map(
        *(
            part
            for run, (start, end) in spans.items()
            for part in (F.lit(run), F.lit(max((end - start) // SLICES + 1, 1)))
        )
    )
    sliced = latencies.where("stage = 'end_to_end'").select(
        "run",
        "domain",
        F.floor((F.col("start_ns") - begin[F.col("run")]) / width[F.col("run")]).alias("slice"),
        bucket(F.col("latency_ns")).alias("bucket"),
    )
    counts = sliced.groupBy("run", "domain", "slice", "bucket").agg(F.count(F.lit(1)).alias("count"))
    group = Window.partitionBy("run", "domain", "slice")
    running = group.orderBy("bucket").rowsBetween(Window.unboundedPreceding, Window.currentRow)
    placed = counts.select("*", F.sum("count").over(running).alias("upto"), F.sum("count").over(group).alias("total"))
    half, most = (F.min(F.when(F.col("upto") >= F.ceil(F.col("total") * q), F.col("bucket"))) for q in (0.5, 0.99))
    found = placed.groupBy("run", "domain", "slice").agg(
        F.max("total").alias("count"), half.alias("p50"), most.alias("p99")
    )
    rows = []
    for row in found.collect():
        start, end = spans[row["run"]]
        second = row["slice"] * max((end - start) // SLICES + 1, 1) / 1e9
        p50, p99 = (middle_of(row[name]) / MS for name in ("p50", "p99"))
        rows.append(TimeRow(row["run"], row["domain"], second, row["count"], p50, p99))
    return sorted(rows, key=lambda row: (row.run, row.domain, row.second))


def finite(value: float | None) -> float | None:
    return None if value is None or math.isnan(value) else value
