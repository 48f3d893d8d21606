"""Steps become latencies: one row per stage of a publication, and one row that says how the publication ended.

Raw rows are shuffled once, by publication, and sorted once; every window below is a prefix of that order, so Spark
adds no other exchange and no other sort. A window keeps one publication in memory at a time and spills when it is
wide. The result depends on the rows only, not on the files or the order they came in.
"""

from collections.abc import Sequence
from functools import reduce
from typing import Final

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F  # noqa: N812

from perf.pipeline.buckets import payload_class
from perf.pipeline.reading import STEP_CODES, rounded
from perf.traces.schema import CONTROL_STEPS, RESOURCE_STEPS, STAGES, Domain, LatencyStage, StepOutcome, TraceStep

PUBLICATION: Final = "publication"
"""The `stage` of the rows that tell how a publication ended."""
KEY: Final = ("key", "run", "publication")
"""`key` is a hash of the two: Spark compares the first eight bytes of what it sorts by, and those should tell."""
PARTS: Final = ("part_fetch", "part_store", "part_hand_over", "part_relay", "part_fan_out")
UNSAID: Final = "at "
LIKE_PAYLOAD: Final = 1
LIKE_HOP: Final = 2
LIKE_LOAD: Final = 4
ORDER: Final = ("node", "code", "delivery", "hop", "outcome")
STARTS: Final = (TraceStep.PINGED, TraceStep.ACCEPTED, TraceStep.SUBSCRIBE_ARRIVED)


class Ending:
    """How a publication ended, as far as its traces tell."""

    COMPLETE: Final = "complete"
    NO_START: Final = "no start"
    NO_END: Final = "no end"
    NOT_RECEIVED: Final = "not received"
    """Given to PSIRP, and received by nobody that traces tell of: lost or not observed, which `coverage` tells."""
    LOST: Final = "lost"
    NOT_OBSERVED: Final = "not observed"


def stitch(records: DataFrame, partitions: int) -> DataFrame:
    """Usable records in, latencies out; `raw_ns` is a difference of monotonic times, whichever clocks they are from."""
    codes = F.create_map(*(F.lit(part) for step, code in STEP_CODES.items() for part in (step.value, code)))
    of_publications = records.where(~F.col("step").isin([step.value for step in RESOURCE_STEPS]))
    narrow = of_publications.select(
        "run", "publication", codes[F.col("step")].cast("byte").alias("code"), "domain", "node", "topic", "payload",
        item_id().alias("item"), "hop", "delivery", rounded(F.col("load")).alias("load"), "monotonic_ns",
        "wall_ns", "clock", "outcome",
    )  # fmt: skip
    shuffled = narrow.withColumn("key", F.xxhash64("run", "publication")).repartition(partitions, "key")
    rows = _with_windows(shuffled.withColumn("delivery", told_apart()))
    stages = rows.select(*_common_columns(), F.explode(_stage_rows()).alias("of")).where("of.start is not null")
    return _with_successive_differences(_latencies(stages), partitions)


def item_id() -> Column:
    """What publications of one topic share in both domains, as a hash. Forwarders know the item alone."""
    return F.xxhash64("run", F.coalesce("topic", F.concat("sid", "rid")))


def told_apart() -> Column:
    """Records of the first schema do not say to whom they delivered: at another time it was to another subscriber."""
    unsaid = F.col("delivery").isNull() & _is(TraceStep.DELIVERED)
    return F.when(unsaid, F.concat(F.lit(UNSAID), "monotonic_ns")).otherwise(F.col("delivery"))


def _is(step: TraceStep) -> Column:
    return F.col("code") == F.lit(STEP_CODES[step]).cast("byte")


def _first(step: TraceStep) -> Column:
    """The first good time of a step; wall first, because only that orders times of several clocks."""
    return F.min(F.when(_is(step) & F.col("counts"), F.struct("wall_ns", "monotonic_ns", "clock", "node")))


def _with_windows(rows: DataFrame) -> DataFrame:
    again = Window.partitionBy(*KEY, *ORDER).orderBy("monotonic_ns", "wall_ns")
    at_node = Window.partitionBy(*KEY, "node")
    of_publication = Window.partitionBy(*KEY)
    in_order = Window.partitionBy(*KEY).orderBy(*ORDER, "monotonic_ns", "wall_ns")
    ok = F.col("outcome") == StepOutcome.OK.value
    rows = rows.withColumns(
        {
            "occurrence": F.row_number().over(again),
            "before_ns": F.lag("monotonic_ns").over(again),
        }
    )
    rows = rows.withColumns(
        {
            "counts": ok & (F.col("occurrence") == 1),
            "same_record": F.coalesce(F.col("before_ns") == F.col("monotonic_ns"), F.lit(False)),
        }
    )
    rows = rows.withColumns(
        {
            **{f"here_{step}": _first(step).over(at_node) for step in _starts(same_node=True)},
            "hops_here": F.max(F.when(_is(TraceStep.RECEIVED) & F.col("counts"), F.col("hop"))).over(at_node),
            "crossed": F.max(
                F.when(F.col("counts") & (_is(TraceStep.RECEIVED) | _is(TraceStep.RELAYED)), 1).otherwise(0)
            ).over(at_node),
        }
    )
    delivered = _is(TraceStep.DELIVERED)
    twice = ok & (F.col("occurrence") > 1) & ~F.col("same_record")

    def count(condition: Column) -> Column:
        return F.sum(F.when(condition, 1).otherwise(0)).over(of_publication)

    counted = F.col("counts")
    return rows.withColumns(
        {
            **{f"any_{step}": _first(step).over(of_publication) for step in _starts(same_node=False)},
            f"any_{TraceStep.FETCHED}": _first(TraceStep.FETCHED).over(of_publication),
            "size": F.max("payload").over(of_publication),
            "offered": F.max("load").over(of_publication),
            "starts": count(counted & F.col("code").isin([STEP_CODES[step] for step in STARTS])),
            "published": count(counted & _is(TraceStep.PUBLISHED)),
            "received": count(counted & _is(TraceStep.RECEIVED)),
            "deliveries": count(counted & delivered),
            "finished": count(counted & _is(TraceStep.FINISHED)),
            "twice": count(delivered & twice),
            "same": count(F.col("same_record")),
            "near": count(counted & delivered & (F.col("crossed") == 0)),
            "far": count(counted & delivered & (F.col("crossed") == 1)),
            "item": F.max(F.when(~_is(TraceStep.FORWARDED), F.col("item"))).over(of_publication),
            "given_up": count(delivered & (F.col("outcome") == StepOutcome.FAILED.value) & (F.col("occurrence") == 1)),
            "last_delivered": F.max(F.when(counted & delivered, F.col("wall_ns"))).over(of_publication),
            "place": F.row_number().over(in_order),
        }
    )


def _starts(*, same_node: bool) -> Sequence[TraceStep]:
    steps = [step for stage in STAGES if stage.same_node is same_node for step in stage.starts]
    return list(dict.fromkeys(steps))


def _common_columns() -> list[Column]:
    names = (
        "key", "run", "publication", "domain", "node", "topic", "delivery", "clock", "wall_ns", "monotonic_ns", "hop",
        "hops_here", "crossed", "size", "offered", "starts", "published", "received", "deliveries", "finished",
        "twice", "same", "given_up", "last_delivered", "near", "far", "item",
    )  # fmt: skip
    given = F.col(f"any_{TraceStep.PUBLISHED}").alias("given")
    return [*(F.col(name) for name in names), given, *(part.alias(name) for name, part in _parts().items())]


def _parts() -> dict[str, Column]:
    """What a delivery's way is made of, where both ends of a part are of one clock. What crosses is what is left."""

    def between(begin: Column, end: Column) -> Column:
        return F.when(begin["clock"] == end["clock"], end["monotonic_ns"] - begin["monotonic_ns"])

    pinged, fetched, accepted, published = (
        F.col(f"any_{step}") for step in (TraceStep.PINGED, TraceStep.FETCHED, TraceStep.ACCEPTED, TraceStep.PUBLISHED)
    )
    relayed, received = (F.col(f"here_{step}") for step in (TraceStep.RELAYED, TraceStep.RECEIVED))
    itself = F.struct("monotonic_ns", "clock")
    return {
        "part_fetch": between(pinged, fetched),
        "part_store": between(F.coalesce(fetched, pinged), accepted),
        "part_hand_over": F.when(F.col("crossed") == 1, between(accepted, published)),
        "part_relay": between(received, relayed),
        "part_fan_out": between(F.coalesce(relayed, F.col(f"here_{TraceStep.ACCEPTED}")), itself),
    }


def _stage_rows() -> Column:
    """The stages that end with this row, and the publication's own row beside its first one."""

    def start(stage: LatencyStage) -> Column:
        prefix = "here" if stage.same_node else "any"
        first = F.coalesce(*(F.col(f"{prefix}_{step}") for step in stage.starts))
        # From a step to the same step is from one node to another.
        return F.when(first["node"] != F.col("node"), first) if stage.end in stage.starts else first

    def of(stage: LatencyStage) -> Column:
        return F.struct(F.lit(stage.name).alias("stage"), start(stage).alias("start"))

    ends = dict.fromkeys(stage.end for stage in STAGES)
    chosen = F.array().cast(
        "array<struct<stage:string,start:struct<wall_ns:bigint,monotonic_ns:bigint,clock:string,node:string>>>"
    )
    for end in ends:
        of_end = F.array(*(of(stage) for stage in STAGES if stage.end is end))
        chosen = F.when(_is(end) & F.col("counts"), of_end).otherwise(chosen)
    itself = F.struct("wall_ns", "monotonic_ns", "clock", "node")
    first = F.coalesce(F.col(f"any_{TraceStep.PINGED}"), F.col(f"any_{TraceStep.ACCEPTED}"), itself)
    own = F.array(F.struct(F.lit(PUBLICATION).alias("stage"), first.alias("start")))
    is_control = F.col("code").isin([STEP_CODES[step] for step in CONTROL_STEPS])
    return F.when((F.col("place") == 1) & ~is_control, F.concat(chosen, own)).otherwise(chosen)


def _latencies(rows: DataFrame) -> DataFrame:
    start = F.col("of.start")
    two_clocks = start["clock"] != F.col("clock")
    is_publication = F.col("of.stage") == PUBLICATION
    crossed = (F.col("crossed") == 1) | (F.col("domain") == Domain.PSIRP.value)
    ending = (
        F.when(F.col("starts") == 0, Ending.NO_START)
        .when((F.col("published") > 0) & (F.col("received") == 0), Ending.NOT_RECEIVED)
        .when((F.col("deliveries") == 0) & (F.col("finished") == 0), Ending.NO_END)
        .otherwise(Ending.COMPLETE)
    )

    def only_publication(name: str) -> Column:
        return F.when(is_publication, F.col(name)).alias(name)

    # A publication's own row belongs to no flow: its name keeps such rows from meeting in one partition.
    flow = F.when(is_publication, F.col("key")).otherwise(
        F.xxhash64("run", "of.stage", "topic", start["node"], "node", "delivery")
    )
    return rows.select(
        "run",
        F.col("of.stage").alias("stage"),
        F.when(crossed, Domain.PSIRP.value).otherwise(Domain.PUSH.value).alias("domain"),
        flow.alias("flow"),
        "node",
        F.col("size").alias("payload"),
        F.coalesce(F.col("hop"), F.col("hops_here"), F.lit(0)).cast("int").alias("hop"),
        F.col("offered").alias("load"),
        start["wall_ns"].alias("start_ns"),
        start["clock"].alias("clock_from"),
        F.col("clock").alias("clock_to"),
        (F.col("wall_ns") - F.col("monotonic_ns")).alias("wall_ahead_ns"),
        F.when(two_clocks, start["monotonic_ns"]).alias("from_ns"),
        F.when(two_clocks, F.col("monotonic_ns")).alias("to_ns"),
        F.when(two_clocks, F.col("wall_ns") - start["wall_ns"]).alias("wall_raw_ns"),
        F.when(~is_publication, F.col("monotonic_ns") - start["monotonic_ns"]).alias("raw_ns"),
        F.when(is_publication, ending).alias("ending"),
        F.col("item").alias("item"),
        "delivery",
        ((F.col("near") > 0) & (F.col("far") > 0)).alias("both"),
        F.when(is_publication | (F.col("of.stage") == "end_to_end"), F.col("key")).alias("key"),
        F.when(is_publication, F.col("given")["wall_ns"]).alias("published_ns"),
        F.when(is_publication, F.col("given")["node"]).alias("publisher"),
        *(F.when(F.col("of.stage") == "end_to_end", F.col(name)).alias(name) for name in ("topic", *PARTS)),
        *map(only_publication, ("starts", "deliveries", "twice", "same", "given_up", "last_delivered")),
    )


def _with_successive_differences(stages: DataFrame, partitions: int) -> DataFrame:
    """Signed: delay less the delay of the publication before in the same flow. An offset of clocks cancels out.

    `like` says in what the two are of one class: a bit each for payload, hop and load.
    """
    flow = Window.partitionBy("flow").orderBy("start_ns", "raw_ns")
    spread = stages.repartition(partitions, "flow")
    of = F.struct("raw_ns", payload_class(F.col("payload")).alias("payload"), "hop", "load")
    before = F.col("before")
    bits = (
        F.when(before[name].eqNullSafe(value), bit).otherwise(0)
        for name, value, bit in (
            ("payload", payload_class(F.col("payload")), LIKE_PAYLOAD),
            ("hop", F.col("hop"), LIKE_HOP),
            ("load", F.col("load"), LIKE_LOAD),
        )
    )
    return (
        spread.withColumn("before", F.lag(of).over(flow))
        .withColumns(
            {
                "step_ns": F.col("raw_ns") - before["raw_ns"],
                # How many come after it in its flow: RFC 3550 forgets by a sixteenth with each.
                "newer": (F.count(F.lit(1)).over(Window.partitionBy("flow")) - F.row_number().over(flow)).cast("int"),
                "like": reduce(lambda one, other: one + other, bits).cast("byte"),
            }
        )
        .drop("before")
    )
