"""Where to look next: by gateway, topic and subscriber; the slowest deliveries with the parts of their way; and whether
a queue that was long when somebody came made it late."""

from typing import Final

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F  # noqa: N812

from perf.pipeline.resampling import enough_for
from perf.pipeline.stitching import PARTS, UNSAID
from perf.pipeline.tables import DepthRow, PlaceRow, SlowRow

MS: Final = 1e6
WORST: Final = 50
"""Of each kind and run: those with the highest p99, or median where there are too few for one."""
SLOWEST: Final = 20
"""Deliveries of each run."""
ACCURACY: Final = 10_000
FEWEST: Final = 20


def place_rows(latencies: DataFrame) -> list[PlaceRow]:
    """Percentiles are approximate: within a ten-thousandth of the rank."""
    told = F.col("delivery").isNotNull() & ~F.col("delivery").startswith(UNSAID)

    def of(kind: str, name: Column) -> Column:
        return F.struct(F.lit(kind).alias("kind"), name.alias("name"))

    kinds = F.array(
        of("gateway", F.col("node")),
        of("topic", F.col("topic")),
        of("subscriber", F.when(told, F.concat_ws(" ", "node", "delivery"))),
    )
    grouped = (
        latencies.where("stage = 'end_to_end'")
        .select("run", "domain", "latency_ns", F.explode(kinds).alias("of"))
        .where("of.name is not null")
        .groupBy("run", "domain", "of.kind", "of.name")
        .agg(
            F.count(F.lit(1)).alias("count"),
            F.percentile_approx("latency_ns", F.array(F.lit(0.5), F.lit(0.99)), F.lit(ACCURACY)).alias("shares"),
            F.max("latency_ns").alias("most"),
        )
    )
    worst = Window.partitionBy("run", "domain", "kind").orderBy(
        F.desc(F.when(F.col("count") >= FEWEST, F.col("shares")[1]).otherwise(F.lit(0))), "name"
    )
    found = grouped.withColumn("place", F.row_number().over(worst)).where(F.col("place") <= WORST).collect()
    rows = [
        PlaceRow(
            row["run"], row["kind"], row["name"], row["domain"], row["count"], row["shares"][0] / MS,
            row["shares"][1] / MS if enough_for(0.99, row["count"]) else None, row["most"] / MS,
        )
        for row in found
    ]  # fmt: skip
    return sorted(rows, key=lambda row: (row.run, row.kind, row.domain, -(row.p99_ms or row.p50_ms), row.name))


def slow_rows(latencies: DataFrame, records: DataFrame) -> list[SlowRow]:
    """The second pass over the records only looks for the names of a few publications."""
    slowest = Window.partitionBy("run").orderBy(F.desc("latency_ns"), "key", "node", "delivery")
    found = (
        latencies.where("stage = 'end_to_end'")
        .withColumn("place", F.row_number().over(slowest))
        .where(F.col("place") <= SLOWEST)
        .select(
            "run", "key", "domain", "topic", "node", "delivery", "start_ns", "load", "payload", "latency_ns",
            "margin_ns", *PARTS,
        )
        .collect()
    )  # fmt: skip
    if not found:
        return []
    key = F.xxhash64("run", "publication")
    names = {
        row["key"]: row["publication"]
        for row in records.select(key.alias("key"), "publication")
        .where(F.col("key").isin(sorted({row["key"] for row in found})))
        .distinct()
        .collect()
    }
    rows = []
    for row in found:
        fetch, store, hand_over, relay, fan_out = (None if row[part] is None else row[part] / MS for part in PARTS)
        others = sum(part or 0.0 for part in (fetch, store, hand_over, relay, fan_out))
        carry = row["latency_ns"] / MS - others if row["domain"] == "psirp" else None
        unsaid = row["delivery"] is None or row["delivery"].startswith(UNSAID)
        rows.append(
            SlowRow(
                row["run"], names[row["key"]], row["topic"], row["domain"], row["node"],
                None if unsaid else row["delivery"], row["start_ns"], row["load"], row["payload"],
                row["latency_ns"] / MS, None if row["margin_ns"] is None else row["margin_ns"] / MS,
                fetch, store, hand_over, carry, relay, fan_out,
            )
        )  # fmt: skip
    return sorted(rows, key=lambda row: (row.run, -row.latency_ms, row.publication, row.node))


def depth_rows(records: DataFrame) -> list[DepthRow]:
    """Stays in queues by how many were found there: 0, 1, 2 to 3, 4 to 7, and so on."""
    depth = F.when(F.col("queue") == 0, 0).otherwise(F.floor(F.log2(F.col("queue") + F.lit(1e-9))) + 1).cast("int")
    response = F.col("monotonic_ns") - F.col("queued_ns")
    found = (
        records.where("queued_ns is not null and resource is not null and queue is not null and outcome = 'ok'")
        .groupBy("run", "node", "resource", depth.alias("depth"))
        .agg(
            F.count(F.lit(1)).alias("stays"),
            F.avg(response).alias("mean"),
            F.percentile_approx(response, F.array(F.lit(0.5), F.lit(0.99)), F.lit(ACCURACY)).alias("shares"),
        )
        .collect()
    )
    rows = []
    for row in found:
        low = 0 if row["depth"] == 0 else 1 << (row["depth"] - 1)
        high = 0 if row["depth"] == 0 else (1 << row["depth"]) - 1
        rows.append(
            DepthRow(
                row["run"], row["node"], row["resource"], low, high, row["stays"], row["mean"] / MS,
                row["shares"][0] / MS, row["shares"][1] / MS if enough_for(0.99, row["stays"]) else None,
            )
        )  # fmt: skip
    return sorted(rows, key=lambda row: (row.run, row.node, row.resource, row.found_from))
