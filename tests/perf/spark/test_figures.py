"""The pipeline on records made by hand: every figure here was computed on paper (see `hand_made`)."""

import math

import pytest

from perf.pipeline.analysis import Analysis
from perf.pipeline.prepared import partitions_for
from perf.pipeline.statistics import correlation_p, share_difference, student_p, wilson
from perf.pipeline.tables import (
    ClockRow,
    CorrelationRow,
    EndingRow,
    LatencyRow,
    LoadRow,
    QualityRow,
    SaturationRow,
)
from tests.perf.spark.hand_made import run_one, run_two

pytestmark = [pytest.mark.timeout(600), pytest.mark.filterwarnings("ignore::ResourceWarning")]


def latency(analysis: Analysis, run: str, stage: str, domain: str, by: str = "all", value: float = 0) -> LatencyRow:
    wanted = (run, stage, domain, by, value)
    (row,) = [row for row in analysis.latency if (row.run, row.stage, row.domain, row.by, row.value) == wanted]
    return row


def test_end_to_end_across_psirp(analysis: Analysis) -> None:
    row = latency(analysis, "one", "end_to_end", "psirp")  # 8 10 13 15 from b to a, 5 from a to b
    assert row.count == 5
    assert row.mean_ms == pytest.approx(10.2)
    assert (row.least_ms, row.p50_ms, row.p90_ms, row.p99_ms, row.p999_ms, row.most_ms) == (5, 10, 15, 15, 15, 15)
    assert row.iqr_ms == 13 - 8
    assert row.jitter_ms == pytest.approx((2 + 3 + 2) / 3)


def test_end_to_end_in_one_domain(analysis: Analysis) -> None:
    row = latency(analysis, "one", "end_to_end", "push")  # 4 5 6 7, and 2 of the lost one
    assert (row.count, row.mean_ms, row.p50_ms, row.most_ms, row.iqr_ms) == (5, pytest.approx(4.8), 5, 7, 6 - 4)
    assert row.jitter_ms == pytest.approx((1 + 1 + 1 + 5) / 4)


@pytest.mark.parametrize(
    ("stage", "domain", "values"),
    [
        ("fetch", "push", [1, 1, 1, 1]),
        ("store", "push", [2, 2, 2, 2]),
        ("hand_over", "psirp", [1, 1, 1, 1, 1, 1]),
        ("carry", "psirp", [2, 4, 6, 8, 2]),
        ("relay", "psirp", [1, 1, 1, 1, 1]),
        ("fan_out", "psirp", [1, 1, 2, 2, 1]),
        ("fan_out", "push", [1, 2, 3, 4, 2]),
    ],
)
def test_every_stage(analysis: Analysis, stage: str, domain: str, values: list[int]) -> None:
    row = latency(analysis, "one", stage, domain)
    middle = sorted(values)[math.ceil(len(values) / 2) - 1]
    assert (row.count, row.p50_ms, row.most_ms) == (len(values), middle, max(values))
    assert row.mean_ms == pytest.approx(sum(values) / len(values))


def test_by_payload_hop_and_load(analysis: Analysis) -> None:
    for number, lowest in enumerate((256, 384, 448, 512)):  # the classes of 300, 400, 500, 600
        row = latency(analysis, "one", "carry", "psirp", "payload", lowest)
        assert (row.count, row.p50_ms) == (1, 2 + 2 * number)
    assert latency(analysis, "one", "carry", "psirp", "hop", 2).count == 5
    assert latency(analysis, "one", "end_to_end", "psirp", "hop", 2).p50_ms == 10
    assert latency(analysis, "one", "end_to_end", "push", "hop", 0).count == 5
    assert latency(analysis, "one", "end_to_end", "push", "load", 9).mean_ms == pytest.approx(5.5)
    assert not [row for row in analysis.latency if row.run == "two" and row.by == "load"]


def test_crossed_against_local(analysis: Analysis) -> None:
    """p1 to p4 were delivered in both ways: 4 5 6 7 beside 8 10 13 15. Four are too few for any claim."""
    (row,) = [row for row in analysis.crossing if row.stage == "end_to_end" and row.measure == "p50"]
    assert (row.within, row.first, row.second, row.publications) == ("one", "push", "psirp", 4)
    assert (row.first_count, row.second_count, row.blocks) == (4, 4, 4)
    assert (row.first_ms, row.second_ms) == pytest.approx((5, 10), rel=1 / 64)
    assert row.low_ms <= row.difference_ms <= row.high_ms
    assert not row.certain


def test_one_run_against_the_other(analysis: Analysis) -> None:
    (row,) = [row for row in analysis.between_runs if row.stage == "end_to_end" and row.measure == "p50"]
    assert (row.within, row.first, row.second, row.first_count, row.second_count) == ("push", "one", "two", 1, 3)
    assert (row.first_ms, row.second_ms) == pytest.approx((2, 10), rel=1 / 64)  # only what was offered without a load
    assert not row.certain  # three publications


def test_delay_and_payload(analysis: Analysis) -> None:
    rows = {(row.stage, row.domain): row for row in analysis.correlation if row.run == "one"}
    r = 1200 / math.sqrt(50_000 * 29)
    row = rows["end_to_end", "psirp"]
    assert row == CorrelationRow(
        "one", "end_to_end", "psirp", 4, pytest.approx(r), pytest.approx(correlation_p(r, 4)), pytest.approx(1), 0
    )
    assert rows["end_to_end", "push"].pearson == pytest.approx(1)


def test_endings_and_loads(analysis: Analysis) -> None:
    # p6 was received by nobody: a got nothing afterwards either, so it may have left.
    assert list(analysis.endings) == [
        EndingRow("one", 9, 6, 0, 1, 1, 1, 11, 1, 1, 1),
        EndingRow("two", 3, 3, 0, 0, 0, 0, 3, 0, 0, 0),
    ]
    achieved = 3 / 0.316  # from 100 to 415, and the clock that showed 415 is 1 ms ahead
    assert list(analysis.loads) == [
        LoadRow("one", 9, 4, 4, pytest.approx(achieved), True),
        LoadRow("one", 1000, 2, 1, None, False),
    ]
    assert list(analysis.saturation) == [SaturationRow("one", True, 9, 1000)]


def test_clocks_and_nodes(analysis: Analysis) -> None:
    # The fastest each way took 2 ms; what drift could make of it in 0.8 s comes on top.
    margin = pytest.approx(2.4, abs=0.01)
    assert list(analysis.clocks) == [ClockRow("one", "ca", "cb", 1, 0, pytest.approx(-1), 0, margin, True, 10)]
    assert latency(analysis, "one", "end_to_end", "psirp").margin_ms == margin
    assert latency(analysis, "one", "end_to_end", "push").margin_ms == 0
    assert {(row.run, row.node, row.clock, row.wall_moved_ms) for row in analysis.nodes} == {
        ("one", "a", "ca", 0),
        ("one", "b", "cb", 0),
        ("two", "b", "cb", 0),
    }


def test_what_could_not_be_used_is_reported(analysis: Analysis) -> None:
    rows = len(run_one()) + len(run_two()) + 2
    assert QualityRow("rows read", rows) in analysis.quality
    assert QualityRow("rows that are no record", 2) in analysis.quality
    assert QualityRow("files: corrupt", 1) in analysis.quality
    assert QualityRow("runs without an end", 2) in analysis.quality
    assert {row.state for row in analysis.files if row.file == "trace-000009.parquet"} == {"corrupt"}


def test_plots_have_something_to_draw(analysis: Analysis) -> None:
    assert sum(row.count for row in analysis.histogram if row.stage == "end_to_end") == 13
    assert sum(row.count for row in analysis.over_time) == 13
    for row in analysis.histogram:
        assert row.from_ms < row.to_ms


def test_statistics_agree_with_published_tables() -> None:
    assert student_p(2.228139, 10) == pytest.approx(0.05, abs=1e-6)
    assert student_p(12.7062, 1) == pytest.approx(0.05, abs=1e-6)
    assert correlation_p(0.632, 10) == pytest.approx(0.05, abs=0.001)
    low, high = wilson(81, 263)  # Newcombe 1998, table I, method 3
    assert (low, high) == (pytest.approx(0.2553, abs=0.0001), pytest.approx(0.3662, abs=0.0001))
    low, high = share_difference(48, 80, 56, 70)  # Newcombe 1998b, method 10: 0.2 with 0.0524 to 0.3339
    assert (low, high) == (pytest.approx(0.0524, abs=0.0001), pytest.approx(0.3339, abs=0.0001))


def test_partitions_grow_with_rows() -> None:
    assert partitions_for(0, 2) == 2
    assert partitions_for(50_000_000, 2) == 125
