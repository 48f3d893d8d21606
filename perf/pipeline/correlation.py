"""Does delay depend on payload? Pearson on the values, Spearman on mid-ranks, each with a p value.

Ranks come from two small tables (rows by bucket of payload, rows by bucket of latency) that are broadcast to the rows,
so no row is shuffled or sorted for them. Payloads below 2 KiB have a bucket each.
"""

from typing import Final

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F  # noqa: N812

from perf.pipeline.buckets import bucket
from perf.pipeline.distributions import finite
from perf.pipeline.statistics import correlation_p
from perf.pipeline.tables import CorrelationRow

KEY: Final = ("run", "stage", "domain")
STAGES: Final = ("carry", "fan_out", "process_d", "total_push_d", "end_to_end")


def correlation_rows(latencies: DataFrame) -> list[CorrelationRow]:
    pairs = latencies.where(F.col("stage").isin(*STAGES) & F.col("payload").isNotNull()).select(
        *KEY,
        "payload",
        "latency_ns",
        bucket(F.col("payload")).alias("size"),
        bucket(F.col("latency_ns")).alias("bucket"),
    )
    ranked = pairs.join(_ranks(pairs, "size"), [*KEY, "size"]).join(_ranks(pairs, "bucket"), [*KEY, "bucket"])
    found = ranked.groupBy(*KEY).agg(
        F.count(F.lit(1)).alias("n"),
        _corr("payload", "latency_ns").alias("pearson"),
        _corr("rank_of_size", "rank_of_bucket").alias("spearman"),
    )
    rows = []
    for row in found.collect():
        n, pearson, spearman = row["n"], finite(row["pearson"]), finite(row["spearman"])
        rows.append(
            CorrelationRow(
                row["run"], row["stage"], row["domain"], n,
                pearson, None if pearson is None else finite(correlation_p(pearson, n)),
                spearman, None if spearman is None else finite(correlation_p(spearman, n)),
            )
        )  # fmt: skip
    return sorted(rows, key=lambda row: (row.run, row.stage, row.domain))


def _corr(one: str, other: str) -> Column:
    return F.corr(F.col(one).cast("double"), F.col(other).cast("double"))


def _ranks(pairs: DataFrame, name: str) -> DataFrame:
    counts = pairs.groupBy(*KEY, name).agg(F.count(F.lit(1)).alias("n"))
    running = Window.partitionBy(*KEY).orderBy(name).rowsBetween(Window.unboundedPreceding, Window.currentRow)
    middle = F.sum("n").over(running) - F.col("n") / 2 + 0.5
    return F.broadcast(counts.select(*KEY, name, middle.alias(f"rank_of_{name}")))
