"""Lost, or not observed? Counted for every receiver, after it is known when it was looked at.

A receiver is a node that received publications of a topic from PSIRP, or a subscriber whom a hub delivered some to.
From the first that it got to the last, it should have got all of that topic. One that it did not get while its node was
observed was missed. While its node was not observed nobody can know. After its last, it may have left.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812

from perf.pipeline.stitching import Ending
from perf.pipeline.tables import ReceiverRow
from perf.traces.coverage import EVER, Hole

PAD_NS: Final = 1_000_000_000
"""Around a hole: clocks differ, and what was sent before it may have arrived in it. Not at the ends of a run: there the
first and the last that a receiver got say more."""
WORST: Final = 50
"""Subscribers that a run's table names; of nodes, all."""
RECEIVER: Final = ("run", "node", "delivery")


def receivers(stages: DataFrame) -> DataFrame:
    """Every receiver of every topic, the span of what it got, and how much that is. `delivery` is empty for a node."""
    return _received(stages).groupBy(*RECEIVER, "item").agg(
        F.min("at").alias("first"), F.max("at").alias("last"), F.count(F.lit(1)).alias("got")
    )  # fmt: skip


def _received(stages: DataFrame) -> DataFrame:
    by_node = stages.where("stage = 'carry'").select("run", "node", F.lit("").alias("delivery"), "item", "start_ns")
    by_subscriber = stages.where("stage = 'end_to_end' and delivery is not null").select(
        "run", "node", "delivery", "item", "start_ns"
    )
    return by_node.unionByName(by_subscriber).withColumnRenamed("start_ns", "at")


def receiver_rows(
    session: SparkSession, stages: DataFrame, publications: DataFrame, known: DataFrame, holes: Sequence[Hole]
) -> list[ReceiverRow]:
    """What every receiver should have got, got, missed; and what nobody can know."""
    sent = publications.where("item is not null").select(
        "run", "item", "publisher", "published_ns", "start_ns", "starts"
    )
    at = F.when(F.col("delivery") == "", F.col("published_ns")).otherwise(
        F.when(F.col("starts") > 0, F.col("start_ns"))
    )
    own = (F.col("delivery") == "") & (F.col("publisher") == F.col("node"))
    due = (
        sent.join(known, ["run", "item"])
        .withColumn("at", at)
        .where((F.col("at") >= F.col("first")) & ~own)
        .withColumn("after", F.col("at") > F.col("last"))
    )
    expected = _observed(session, due, holes).groupBy(*RECEIVER).agg(
        F.count_if(~F.col("after") & F.col("observed")).alias("expected"),
        F.count_if(~F.col("after") & ~F.col("observed")).alias("unobserved"),
        F.count_if("after").alias("after"),
    )  # fmt: skip
    got = _observed(session, _received(stages), holes).groupBy(*RECEIVER).agg(
        F.count_if("observed").alias("received"), F.count_if(~F.col("observed")).alias("received_unobserved")
    )  # fmt: skip
    counted = expected.join(got, list(RECEIVER)).select(
        *RECEIVER,
        "expected",
        "received",
        F.greatest(F.col("expected") - F.col("received"), F.lit(0)).alias("missed"),
        F.greatest(F.col("unobserved") - F.col("received_unobserved"), F.lit(0)).alias("unknown"),
        "after",
    )
    counted = counted.localCheckpoint()
    nodes = counted.where("delivery = ''").collect()
    worst = (
        counted.where("delivery <> '' and (missed > 0 or unknown > 0)")
        .orderBy(F.desc("missed"), F.desc("unknown"), *RECEIVER)
        .limit(WORST)
        .collect()
    )
    rows = [
        ReceiverRow(
            row["run"], row["node"], row["delivery"] or None, row["expected"], row["received"], row["missed"],
            row["missed"] / row["expected"] if row["expected"] else None, row["unknown"], row["after"],
        )
        for row in (*nodes, *worst)
    ]  # fmt: skip
    return sorted(rows, key=lambda row: (row.run, row.node, row.subscriber or ""))


def settle_endings(
    session: SparkSession, publications: DataFrame, known: DataFrame, holes: Sequence[Hole]
) -> dict[tuple[str, str], int]:
    """Publications that nobody received, by run and ending: lost if a receiver that was observed, and got some before
    and some after, did not get it; otherwise not observed."""
    nobody = publications.where(F.col("ending") == Ending.NOT_RECEIVED).select(
        "run", "item", "key", "published_ns", "publisher"
    )
    there = known.where("delivery = ''").select("run", "item", "node", "first", "last")
    at = F.col("published_ns")
    expected = (F.col("node") != F.col("publisher")) & at.between(F.col("first"), F.col("last"))
    due = nobody.join(there, ["run", "item"], "left").withColumn("at", at)
    looked_at = _observed(session, due, holes).withColumn(
        "missed", F.coalesce(expected & F.col("observed"), F.lit(False))
    )
    each = looked_at.groupBy("run", "key").agg(F.max("missed").alias("missed"))
    found = each.groupBy("run", "missed").count().collect()
    return {(row["run"], Ending.LOST if row["missed"] else Ending.NOT_OBSERVED): row["count"] for row in found}


def _observed(session: SparkSession, rows: DataFrame, holes: Sequence[Hole]) -> DataFrame:
    """Adds `observed`: whether `at` lies in no hole of `node`."""
    if not holes:
        return rows.withColumn("observed", F.lit(True))
    table = session.createDataFrame(
        [(hole.run, hole.node, hole.begin_ns, hole.end_ns) for hole in _joined(holes)],
        "run_ string, node_ string, begin_ bigint, end_ bigint",
    )
    here: Column = (
        (F.col("run") == F.col("run_"))
        & (F.col("node") == F.col("node_"))
        & (F.col("at") >= F.col("begin_"))
        & (F.col("at") < F.col("end_"))
    )
    joined = rows.join(F.broadcast(table), here, "left")
    return joined.withColumn("observed", F.col("run_").isNull()).drop("run_", "node_", "begin_", "end_")


def _joined(holes: Sequence[Hole]) -> list[Hole]:
    """Padded; holes that meet then are one: a row must not find itself in two."""
    made: list[Hole] = []
    for hole in sorted(holes, key=lambda hole: (hole.run, hole.node, hole.begin_ns)):
        inner = hole.begin_ns > -EVER and hole.end_ns < EVER
        begin, end = (hole.begin_ns - PAD_NS, hole.end_ns + PAD_NS) if inner else (hole.begin_ns, hole.end_ns)
        last = made[-1] if made else None
        if last is not None and (last.run, last.node) == (hole.run, hole.node) and begin < last.end_ns:
            made[-1] = replace(last, end_ns=max(last.end_ns, end))
        else:
            made.append(replace(hole, begin_ns=begin, end_ns=end))
    return made
