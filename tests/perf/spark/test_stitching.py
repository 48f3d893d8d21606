"""Stitching: the answer depends on the records only, not on the files they lie in or the order they come in."""

import itertools
import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark.sql import Row, SparkSession
from pyspark.sql import functions as F  # noqa: N812

from perf.pipeline.buckets import bucket, bucket_of, lowest_of, middle_of
from perf.pipeline.reading import rounded, spark_schema
from perf.pipeline.stitching import stitch
from perf.traces.schema import TraceRecord, TraceStep
from tests.perf.spark.hand_made import run_one

pytestmark = pytest.mark.timeout(600)


def stitched(session: SparkSession, files: list[list[TraceRecord]], partitions: int = 2) -> list[Row]:
    frames = [session.createDataFrame([tuple(map(plain, record)) for record in file], spark_schema()) for file in files]
    frame = frames[0]
    for other in frames[1:]:
        frame = frame.unionByName(other)
    return sorted(stitch(frame, partitions).collect(), key=str)


def plain(value: object) -> object:
    return str(value) if isinstance(value, str) else value


@pytest.fixture(scope="module")
def expected(session: SparkSession) -> list[Row]:
    return stitched(session, [run_one()], 1)


@settings(max_examples=6)
@given(
    order=st.permutations(run_one()),
    cuts=st.lists(st.integers(1, len(run_one()) - 1), max_size=3, unique=True),
    partitions=st.integers(1, 5),
)
def test_any_interleaving_of_files_gives_the_same_answer(
    session: SparkSession, expected: list[Row], order: list[TraceRecord], cuts: list[int], partitions: int
) -> None:
    edges = [0, *sorted(cuts), len(order)]
    files = [order[begin:end] for begin, end in itertools.pairwise(edges)]
    assert stitched(session, files, partitions) == expected


@settings(max_examples=3)
@given(again=st.lists(st.sampled_from(range(len(run_one()))), min_size=1, max_size=10))
def test_a_record_that_was_written_again_changes_only_the_count_of_copies(
    session: SparkSession, expected: list[Row], again: list[int]
) -> None:
    def without_copies(rows: list[Row]) -> list[dict[str, object]]:
        return [{name: value for name, value in row.asDict().items() if name != "same"} for row in rows]

    records = run_one()
    found = stitched(session, [records, [records[number] for number in again]])
    assert without_copies(found) == without_copies(expected)
    copies = [sum(row["same"] or 0 for row in rows) for rows in (expected, found)]
    assert copies[1] - copies[0] == len(again)


def test_buckets_in_spark_are_those_in_python(session: SparkSession) -> None:
    near = [(1 << power) + off for power in range(0, 56, 3) for off in (-1, 0, 1)]
    values = sorted({0, 7, 999_999, *near})
    frame = session.createDataFrame([(value,) for value in values], "v bigint")
    for row in frame.select("v", bucket(F.col("v")).alias("b"), bucket(F.col("v"), 2).alias("c")).collect():
        assert (row["b"], row["c"]) == (bucket_of(row["v"]), bucket_of(row["v"], 2))


@given(st.integers(0, 1 << 60), st.sampled_from([2, 3, 10]))
def test_a_bucket_is_narrow_and_in_order(value: int, bits: int) -> None:
    number = bucket_of(value, bits)
    low = lowest_of(number, bits)
    assert low <= value < lowest_of(number + 1, bits)
    assert bucket_of(low, bits) == number
    assert abs(middle_of(number, bits) - value) <= max(value, 1) * 2.0**-bits


def test_loads_are_rounded_to_three_digits(session: SparkSession) -> None:
    loads = [0.3, 1.0, 9.0, 12.5, 99.96, 100.0, 999.4, 1000.0, 1234.0, 98_765.4, 3e9, math.pi]
    frame = session.createDataFrame([(load,) for load in loads], "load double")
    found = [row[0] for row in frame.select(rounded(F.col("load"))).collect()]
    assert found == [0.3, 1, 9, 12.5, 100, 100, 999, 1000, 1230, 98_800, 3e9, 3.14]


def test_stays_in_queues_and_connectivity_are_no_part_of_a_publications_way(
    session: SparkSession, expected: list[Row]
) -> None:
    first = run_one()[0]
    others = [
        first._replace(step=TraceStep.SERVED, resource="intake", queued_ns=1, started_ns=2, queue=0),
        first._replace(step=TraceStep.UP, publication="", resource="link/a"),
        first._replace(step=TraceStep.DOWN, publication="", resource="link/a"),
    ]
    assert stitched(session, [run_one(), others]) == expected
