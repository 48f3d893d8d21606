"""What Spark says of queues and connectivity: figures over all stays, and a stretch of stays in order to model.

A stay is a record with `queued_ns`, whatever its step is. Estimates of the whole run come from one aggregation; what
depends on the order (spacing, correlation, who was in service at once) is looked at on one uninterrupted stretch of
each queue, because only that is small enough for one machine and whole enough to simulate.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from pyspark.sql import DataFrame, SparkSession, Window
from pyspark.sql import functions as F  # noqa: N812

from perf.models.estimates import ObservedQueue
from perf.pipeline.link_stays import LinkStayRow, link_rows
from perf.pipeline.reading import BROKEN, COLUMNAR, read_traces, usable
from perf.traces.files import Inventory
from perf.traces.schema import StepOutcome, TraceStep

STRETCH: Final = 50_000
"""Stays of one queue that are modelled."""
FEWEST: Final = 2
_S: Final = 1e9
PROCESSOR: Final = "cpu/"
"""Of resources that are no queues."""
KEY: Final = ("run", "node", "resource")


@dataclass(frozen=True, slots=True)
class ResourceRow:
    """One queue at one node over a whole run. `service` holds disconnections too, where there were any."""

    run: str
    node: str
    resource: str
    stays: int
    rate: float
    service_ms: float
    service_second_moment_ms2: float
    spacing_variation: float | None
    found_mean: float
    found_most: int
    response_mean_ms: float
    response_p50_ms: float
    response_p95_ms: float
    response_p99_ms: float
    not_ok: int
    lost: int


@dataclass(frozen=True, slots=True)
class ConnectivityRow:
    """Means of whole connected and disconnected periods."""

    run: str
    node: str
    resource: str
    disconnections: int
    on_s: float | None
    off_s: float | None
    off_second_moment_s2: float | None


@dataclass(frozen=True, slots=True)
class WholeWayRow:
    """From where publications of a run began to each subscriber: what came of them, and how long it took."""

    run: str
    publications: int
    seconds: float
    """From the first to the last of them."""
    delivered: int
    """Publications of which at least one delivery was made."""
    deliveries: int
    entry_nodes: str
    """Where publications began, with spaces between."""
    mean_ms: float | None
    p50_ms: float | None
    p95_ms: float | None
    p99_ms: float | None


@dataclass(frozen=True, slots=True)
class ProcessorRow:
    """How much of a processor was used by the event loop of a node, or of all cores by its process."""

    run: str
    node: str
    resource: str
    machine: str
    """What its clock is called: processes of one machine share it."""
    seconds: float
    used: float
    """A share of the time."""


@dataclass(frozen=True)
class ObservedResources:
    figures: Sequence[ResourceRow]
    connectivity: Sequence[ConnectivityRow]
    queues: Sequence[tuple[ResourceRow, ObservedQueue]]
    """With whom it is, and the stretch that is modelled."""
    ways: Sequence[WholeWayRow] = ()
    processors: Sequence[ProcessorRow] = ()
    links: Sequence[LinkStayRow] = ()


@dataclass(frozen=True, slots=True)
class TimeSpan:
    """The part of all runs that is looked at, by wall clocks."""

    from_ns: int = 0
    to_ns: int = 1 << 61


EVERYTHING: Final = TimeSpan()


def observe_resources(
    session: SparkSession, inventory: Inventory, stretch: int = STRETCH, span: TimeSpan = EVERYTHING
) -> ObservedResources:
    """No queues for runs of older schemas, which say nothing of them."""
    records = (
        read_traces(session, inventory)
        .where(usable())
        .where(F.col("wall_ns").between(span.from_ns, span.to_ns))
        .drop(BROKEN, COLUMNAR)
    )
    if records.where("resource is not null").isEmpty():
        return ObservedResources((), (), (), links=link_rows(records))
    records = records.cache()
    try:
        return _observed(records, stretch)
    finally:
        records.unpersist()


def _observed(records: DataFrame, stretch: int) -> ObservedResources:
    timed = records.where("queued_ns is not null and resource is not null").select(
        *KEY, "queued_ns", "started_ns", F.col("monotonic_ns").alias("done_ns"), "queue", "outcome", "clock"
    )
    is_processor = F.col("resource").startswith(PROCESSOR)
    stays = timed.where(~is_processor)
    figures = _figures(stays)
    rows, periods = _connectivity(records)
    queues = [(row, queue) for row in figures if (queue := _stretch(stays, row, stretch, periods)) is not None]
    processors = _processors(timed.where(is_processor))
    return ObservedResources(figures, rows, queues, _whole_ways(records), processors, link_rows(records))


def _processors(timed: DataFrame) -> list[ProcessorRow]:
    found = timed.groupBy(*KEY, "clock").agg(
        F.sum(F.col("done_ns") - F.col("queued_ns")).alias("passed"),
        F.sum(F.col("done_ns") - F.col("started_ns")).alias("used"),
    )
    rows = [
        ProcessorRow(
            row["run"], row["node"], row["resource"], row["clock"], row["passed"] / _S, row["used"] / row["passed"]
        )
        for row in found.collect()
        if row["passed"]
    ]
    return sorted(rows, key=lambda row: (row.run, row.node, row.resource))


def _whole_ways(records: DataFrame) -> list[WholeWayRow]:
    """A publication begins with its first ping, or where it was first accepted; every good delivery is an end."""
    of_publications = records.where("publication <> ''").where(F.col("outcome") == StepOutcome.OK.value)
    first = F.struct(
        (F.col("step") != TraceStep.PINGED.value).alias("late"), "monotonic_ns", "wall_ns", "clock", "node"
    )
    starts = (
        of_publications.where(F.col("step").isin(TraceStep.PINGED.value, TraceStep.ACCEPTED.value))
        .groupBy("run", "publication")
        .agg(F.min(first).alias("start"))
    )
    ends = of_publications.where(F.col("step") == TraceStep.DELIVERED.value).select(
        "run", "publication", F.col("monotonic_ns").alias("end_ns"), F.col("wall_ns").alias("end_wall"),
        F.col("clock").alias("end_clock"),
    )  # fmt: skip
    passed = F.when(
        F.col("end_clock") == F.col("start.clock"), F.col("end_ns") - F.col("start.monotonic_ns")
    ).otherwise(F.col("end_wall") - F.col("start.wall_ns"))
    joined = starts.join(ends, ["run", "publication"], "left").withColumn("ms", passed / 1e6)
    found = joined.groupBy("run").agg(
        F.count_distinct("publication").alias("publications"),
        ((F.max("start.wall_ns") - F.min("start.wall_ns")) / _S).alias("seconds"),
        F.count_distinct(F.when(F.col("ms").isNotNull(), F.col("publication"))).alias("delivered"),
        F.count("ms").alias("deliveries"),
        F.concat_ws(" ", F.array_sort(F.collect_set("start.node"))).alias("entry"),
        F.avg("ms").alias("mean"),
        F.percentile("ms", F.array(F.lit(0.5), F.lit(0.95), F.lit(0.99))).alias("shares"),
    )
    return [
        WholeWayRow(
            row["run"], row["publications"], row["seconds"], row["delivered"], row["deliveries"], row["entry"],
            row["mean"], *(row["shares"] or (None, None, None)),
        )
        for row in sorted(found.collect(), key=lambda row: str(row["run"]))
    ]  # fmt: skip


def _figures(stays: DataFrame) -> list[ResourceRow]:
    in_order = Window.partitionBy(*KEY).orderBy("queued_ns", "done_ns")
    served = F.col("outcome").isin(StepOutcome.OK.value, StepOutcome.LOST.value)
    rows = stays.withColumns(
        {
            "spacing": (F.col("queued_ns") - F.lag("queued_ns").over(in_order)) / _S,
            "service": F.when(served, (F.col("done_ns") - F.col("started_ns")) / 1e6),
            "response": F.when(served, (F.col("done_ns") - F.col("queued_ns")) / 1e6),
        }
    )
    found = rows.groupBy(*KEY).agg(
        F.count(F.lit(1)).alias("stays"),
        F.avg("spacing").alias("spacing"),
        F.var_pop("spacing").alias("spacing_var"),
        F.avg("service").alias("service"),
        F.avg(F.col("service") * F.col("service")).alias("second"),
        F.avg("queue").alias("found"),
        F.max("queue").alias("most"),
        F.avg("response").alias("mean"),
        F.percentile("response", F.array(F.lit(0.5), F.lit(0.95), F.lit(0.99))).alias("shares"),
        F.sum(F.when(F.col("outcome") != StepOutcome.OK.value, 1).otherwise(0)).alias("not_ok"),
        F.sum(F.when(F.col("outcome") == StepOutcome.LOST.value, 1).otherwise(0)).alias("lost"),
    )
    figures = [
        ResourceRow(
            row["run"], row["node"], row["resource"], row["stays"], 1 / row["spacing"], row["service"], row["second"],
            row["spacing_var"] / row["spacing"] ** 2, row["found"] or 0.0, row["most"] or 0, row["mean"],
            row["shares"][0], row["shares"][1], row["shares"][2], row["not_ok"], row["lost"],
        )
        for row in found.where("service is not null").collect()
        if row["stays"] >= FEWEST and row["spacing"]
    ]  # fmt: skip
    return sorted(figures, key=lambda row: (row.run, row.node, row.resource))


Periods = dict[tuple[str, str, str], tuple[list[float], list[float], list[float]]]
"""By resource: lengths of connected periods, of disconnected ones, and when those began."""


def _connectivity(records: DataFrame) -> tuple[list[ConnectivityRow], Periods]:
    changes = records.where(F.col("step").isin(TraceStep.UP.value, TraceStep.DOWN.value)).where("resource is not null")
    in_order = Window.partitionBy(*KEY).orderBy("monotonic_ns", "step")
    spells = (
        changes.withColumns(
            {
                "until_ns": F.lead("monotonic_ns").over(in_order),
                "then": F.lead("step").over(in_order),
            }
        )
        .where("until_ns is not null and then <> step")
        .select(*KEY, "step", "monotonic_ns", ((F.col("until_ns") - F.col("monotonic_ns")) / _S).alias("seconds"))
    )
    up = F.col("step") == TraceStep.UP.value
    found = spells.groupBy(*KEY).agg(
        F.sum(F.when(up, 0).otherwise(1)).alias("count"),
        F.avg(F.when(up, F.col("seconds"))).alias("on"),
        F.avg(F.when(~up, F.col("seconds"))).alias("off"),
        F.avg(F.when(~up, F.col("seconds") * F.col("seconds"))).alias("second"),
    )
    rows = [
        ConnectivityRow(row["run"], row["node"], row["resource"], row["count"], row["on"], row["off"], row["second"])
        for row in found.collect()
    ]
    periods: Periods = {}
    for row in spells.orderBy(*KEY, "monotonic_ns").limit(2 * STRETCH).collect():
        on, off, down = periods.setdefault((row["run"], row["node"], row["resource"]), ([], [], []))
        if row["step"] == TraceStep.UP.value:
            on.append(row["seconds"])
        else:
            off.append(row["seconds"])
            down.append(row["monotonic_ns"] / _S)
    return sorted(rows, key=lambda row: (row.run, row.node, row.resource)), periods


def _stretch(stays: DataFrame, row: ResourceRow, most: int, periods: Periods) -> ObservedQueue | None:
    """The first stays of a queue that were served, in the order of arrival."""
    chosen = stays.where(
        (F.col("run") == row.run)
        & (F.col("node") == row.node)
        & (F.col("resource") == row.resource)
        & F.col("outcome").isin(StepOutcome.OK.value, StepOutcome.LOST.value)
    )
    found = chosen.orderBy("queued_ns", "done_ns").limit(most).select("queued_ns", "started_ns", "done_ns").collect()
    if len(found) < FEWEST:
        return None
    times = np.array([tuple(one) for one in found], dtype=np.int64)
    first = times[0, 0]
    queued, started, done = ((times[:, column] - first) / _S for column in range(3))
    on, off, down = periods.get((row.run, row.node, served_while(row.resource)), ([], [], []))
    return ObservedQueue(
        f"{row.node} {row.resource}", queued, started, done,
        np.array(off), np.array(on), np.array(down) - first / _S, row.not_ok,
        first / _S,
    )  # fmt: skip


def served_while(resource: str) -> str:
    """Whose connectivity a queue waits for: `session/NAME` is up and down under the same name; queues of a simulation
    that wait for a party are called `QUEUE~PARTY`."""
    return resource.partition("~")[2] or resource
