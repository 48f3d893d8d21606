"""Consecutive hops of a publication, paired: from when one node sent it to a neighbour until it was seen there.

A `forwarded` record names the neighbour (`peer`); whatever that node says next of the publication, one hop further, is
the other end. Where it was published no neighbour is named: all that is one hop away came from there.
"""

from dataclasses import dataclass
from typing import Final

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812

from perf.traces.schema import StepOutcome, TraceStep

SENT: Final = (TraceStep.PUBLISHED.value, TraceStep.FORWARDED.value)
SEEN: Final = (TraceStep.FORWARDED.value, TraceStep.RECEIVED.value)
OF_PUBLICATION: Final = ("run", "publication", "hop")


@dataclass(frozen=True, slots=True)
class LinkStayRow:
    """What publications took from one node to the next, where both have one clock."""

    run: str
    sender: str
    receiver: str
    crossings: int
    mean_ms: float
    p50_ms: float
    p95_ms: float


def link_stays(records: DataFrame) -> DataFrame:
    """One row for each publication and link: `sender`, `receiver`, `hop` (1 is the first), `left_ns`, `arrived_ns`."""
    good = records.where((F.col("outcome") == StepOutcome.OK.value) & F.col("hop").isNotNull())
    left = good.where(F.col("step").isin(*SENT)).groupBy(
        "run", "publication", (F.col("hop") + 1).alias("hop"), F.col("node").alias("sender"), "peer", "clock"
    )
    arrived = good.where(F.col("step").isin(*SEEN)).groupBy(*OF_PUBLICATION, F.col("node").alias("receiver"), "clock")
    paired = left.agg(F.min("monotonic_ns").alias("left_ns")).join(
        arrived.agg(F.min("monotonic_ns").alias("arrived_ns")), [*OF_PUBLICATION, "clock"]
    )
    from_publisher = F.col("peer").isNull() & (F.col("hop") == 1)
    return paired.where(from_publisher | (F.col("peer") == F.col("receiver"))).drop("peer", "clock")


def link_rows(records: DataFrame) -> list[LinkStayRow]:
    passed = (F.col("arrived_ns") - F.col("left_ns")) / 1e6
    found = (
        link_stays(records)
        .withColumn("ms", passed)
        .groupBy("run", "sender", "receiver")
        .agg(
            F.count("ms").alias("crossings"),
            F.avg("ms").alias("mean"),
            F.percentile("ms", F.array(F.lit(0.5), F.lit(0.95))).alias("shares"),
        )
    )
    rows = [
        LinkStayRow(
            row["run"], row["sender"], row["receiver"], row["crossings"], row["mean"], row["shares"][0],
            row["shares"][1],
        )
        for row in found.collect()
    ]  # fmt: skip
    return sorted(rows, key=lambda row: (row.run, row.sender, row.receiver))
