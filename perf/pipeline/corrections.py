"""Clocks of traces: which apparent delays there are between them, and latencies as one clock would have shown them."""

from collections.abc import Mapping, Sequence
from typing import Final

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812

from perf.pipeline.clocks import ApparentDelay, ClockModel

WINDOWS: Final = 500
"""Windows of time a run is divided into, of a second at least: the fastest exchange of each counts."""
SHORTEST_NS: Final = 1_000_000_000
_ALWAYS: Final = (-(1 << 62), 1 << 62, 0, 0, 0.0, 0.0)


def window_width(span_ns: int) -> int:
    return max(SHORTEST_NS, -(-span_ns // WINDOWS))


def find_delays(stages: DataFrame, widths: Mapping[str, int]) -> list[ApparentDelay]:
    """The fastest exchange between every two clocks in each window of a run, whichever stage it is of."""
    if not widths:
        return []
    width = F.create_map(*(F.lit(part) for entry in widths.items() for part in entry))
    axis = F.when(F.col("clock_from") < F.col("clock_to"), F.col("from_ns")).otherwise(F.col("to_ns"))
    found = (
        stages.where("clock_from <> clock_to")
        .select("run", "clock_from", "clock_to", "raw_ns", axis.alias("axis"), "wall_raw_ns")
        .groupBy("run", "clock_from", "clock_to", F.floor(F.col("axis") / width[F.col("run")]).alias("window"))
        .agg(F.min(F.struct("raw_ns", "axis", "wall_raw_ns")).alias("least"), F.count(F.lit(1)).alias("count"))
        .collect()
    )
    delays = [
        ApparentDelay(
            row["run"], row["clock_from"], row["clock_to"], row["least"]["axis"], row["least"]["raw_ns"],
            row["least"]["wall_raw_ns"], row["count"],
        )
        for row in found
    ]  # fmt: skip
    return sorted(delays, key=lambda delay: (delay.run, delay.clock_from, delay.clock_to, delay.axis_ns))


def correct(session: SparkSession, stages: DataFrame, models: Sequence[ClockModel]) -> DataFrame:
    """`latency_ns`, as the reference's clock would have shown it, and `margin_ns`, how far off it may be at most.

    The margin is 0 within one clock, and nothing where only wall clocks say how clocks relate. A latency that touches a
    moment when a clock stepped is not known.
    """
    rows = [
        (
            model.run, model.clock, piece.begin_ns, piece.end_ns, piece.at_ns, piece.to_ns, piece.rate,
            piece.margin_ns,
        )
        for model in models
        for piece in model.pieces
    ]  # fmt: skip
    rows += [(run, clock, *_ALWAYS) for run, clock in {(model.run, model.reference) for model in models}]
    same = F.col("clock_from") == F.col("clock_to")
    if not rows:
        return stages.withColumns(
            {"latency_ns": F.when(same, F.col("raw_ns")), "margin_ns": F.when(same, F.lit(0.0))}
        ).drop("from_ns", "to_ns", "wall_raw_ns")
    pieces = session.createDataFrame(
        rows, "run string, clock string, begin bigint, end bigint, at bigint, other bigint, rate double, margin double"
    )
    frame = stages
    for end in ("from", "to"):
        own = F.col(f"{end}_ns")
        table = F.broadcast(pieces.select(*(F.col(name).alias(f"{name}_{end}_") for name in pieces.columns)))
        here = (
            (F.col(f"clock_{end}") == F.col(f"clock_{end}_"))
            & (F.col("run") == F.col(f"run_{end}_"))
            & (own >= F.col(f"begin_{end}_"))
            & (own < F.col(f"end_{end}_"))
            & ~same
        )
        frame = frame.join(table, here, "left")

    def reference(end: str) -> Column:
        passed = F.col(f"{end}_ns") - F.col(f"at_{end}_")
        return F.col(f"other_{end}_") + passed + F.round(F.col(f"rate_{end}_") * passed).cast("long")

    margin = F.col("margin_from_") + F.col("margin_to_")
    apparent = reference("to") - reference("from")
    # Below zero by less than the margin is as good as zero.
    between = F.when((apparent < 0) & (-apparent <= margin), F.lit(0)).otherwise(apparent)
    return frame.select(
        *(name for name in stages.columns if name not in ("from_ns", "to_ns", "wall_raw_ns")),
        F.when(same, F.col("raw_ns")).otherwise(between).alias("latency_ns"),
        F.when(same, F.lit(0.0)).otherwise(margin).alias("margin_ns"),
    )
