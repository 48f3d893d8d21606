"""Traces whose truth is known, each with a fault that once made a report say what was not so.

All are runs of one analysis. Delays are the same in all of them (one seed): the first has good clocks and no fault.
"""

from dataclasses import replace

import pytest
from pyspark.sql import SparkSession

from gateway.cli.cmd_report import more_lost, regressions
from perf.pipeline.analysis import Analysis, analyse
from perf.pipeline.tables import DifferenceRow, LatencyRow, ReceiverRow
from perf.report import statements
from perf.traces.run import TRACES
from perf.traces.synth import SynthConfig, synthesise

pytestmark = pytest.mark.timeout(600)
GOOD = SynthConfig(
    6_500, seed=5, loads=(60.0,), clock_offset_ns=0, loss=0.0, duplicates=0.0, topics=4, ns_a_byte=0.0, batch=150
)
WORLDS = {
    "good": GOOD,
    "one-way": replace(GOOD, clock_offset_ns=-3_200_000, backward=0.0),
    "step": replace(GOOD, wall_step_ns=50_000_000),
    "drift": replace(GOOD, drift=0.0002, clock_offset_ns=3_200_000),
    "missed": replace(GOOD, loss=0.3),
    "tail": replace(GOOD, slow=0.05),
    "hole": GOOD,
}


@pytest.fixture(scope="module")
def seen(session: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Analysis:
    folder = tmp_path_factory.mktemp("truths")
    for name, config in WORLDS.items():
        synthesise(folder / name, config, name=name)
    file = folder / "hole" / TRACES / "gw-a-000002.parquet"
    file.write_bytes(file.read_bytes()[:-100])
    return analyse(session, [folder / name for name in WORLDS], folder / "work")


def crossing(seen: Analysis, run: str, measure: str = "p50") -> DifferenceRow:
    (row,) = [row for row in seen.crossing if (row.within, row.stage, row.measure) == (run, "end_to_end", measure)]
    return row


def end_to_end(seen: Analysis, run: str, domain: str = "psirp") -> LatencyRow:
    (row,) = [
        row for row in seen.latency if (row.run, row.stage, row.domain, row.by) == (run, "end_to_end", domain, "all")
    ]
    return row


def receiver(seen: Analysis, run: str, node: str) -> ReceiverRow:
    (row,) = [row for row in seen.receivers if (row.run, row.node, row.subscriber) == (run, node, None)]
    return row


def test_crossing_costs_what_was_put_in(seen: Analysis) -> None:
    row = crossing(seen, "good")
    assert row.certain
    assert row.margin_ms is not None
    assert 0 < row.margin_ms < row.difference_ms / 2
    assert row.low_ms < row.difference_ms < row.high_ms
    assert 0.5 < row.difference_ms < 3.0
    (line,) = [line for line in statements.crossing(seen.crossing) if line.startswith("good:")]
    assert "adds" in line


def test_with_traffic_in_one_direction_nothing_is_claimed_and_nothing_left_out(seen: Analysis) -> None:
    row = crossing(seen, "one-way")
    assert row.margin_ms is None
    assert not row.certain
    assert end_to_end(seen, "one-way").count == end_to_end(seen, "one-way", "push").count
    assert end_to_end(seen, "one-way").margin_ms is None
    assert not [clock for clock in seen.clocks if clock.run == "one-way" and clock.estimated]
    (line,) = [line for line in statements.crossing(seen.crossing) if line.startswith("one-way:")]
    assert "could not be compared" in line


def test_a_wall_clock_that_is_set_moves_no_latency(seen: Analysis) -> None:
    assert crossing(seen, "step").difference_ms == pytest.approx(crossing(seen, "good").difference_ms, abs=0.05)
    assert end_to_end(seen, "step").p99_ms == pytest.approx(end_to_end(seen, "good").p99_ms, abs=0.05)
    assert max(row.wall_moved_ms for row in seen.nodes if row.run == "step") == pytest.approx(50)


def test_a_clock_that_drifts_is_followed(seen: Analysis) -> None:
    (clock,) = [clock for clock in seen.clocks if clock.run == "drift"]
    assert clock.clock == "boot-b"  # the other is its reference: it is slower than that
    assert clock.drift_ppm == pytest.approx(-200, abs=10)
    row, good = end_to_end(seen, "drift"), end_to_end(seen, "good")
    assert row.count == good.count  # nothing came out below zero
    assert (row.p50_ms, row.p99_ms) == pytest.approx((good.p50_ms, good.p99_ms), abs=0.05)
    assert not [row for row in seen.quality if "below zero" in row.what]


def test_a_receiver_that_misses_a_third_is_noticed(seen: Analysis) -> None:
    row = receiver(seen, "missed", "gw-a")
    assert row.missed_share == pytest.approx(0.3, abs=0.06)
    assert row.unknown == 0
    assert receiver(seen, "good", "gw-a").missed == 0
    assert any(line.startswith("missed: gw-a missed") for line in statements.losses(seen.receivers))
    assert more_lost(seen.receivers, ["good", "missed"])
    assert not more_lost(seen.receivers, ["good", "tail"])


def test_what_a_broken_file_held_is_not_called_lost(seen: Analysis) -> None:
    (ending,) = [row for row in seen.endings if row.run == "hole"]
    assert ending.lost == 0
    assert ending.not_observed > 80
    row = receiver(seen, "hole", "gw-a")
    assert (row.missed, row.unknown > 80) == (0, True)
    (hole,) = [row for row in seen.coverage if row.run == "hole"]
    assert (hole.node, hole.why) == ("gw-a", "gw-a-000002.parquet: corrupt")
    assert hole.from_s is not None
    assert hole.to_s is not None
    assert hole.to_s - hole.from_s == pytest.approx(150 / 60, abs=1.0)
    # And of the others nothing is unknown.
    assert not [row for row in seen.receivers if row.run != "hole" and row.unknown]


def test_a_tail_is_a_regression(seen: Analysis) -> None:
    def worse(run: str) -> set[tuple[str, str]]:
        return {
            (row.stage, row.measure)
            for row in regressions([row for row in seen.between_runs if row.second == run], 5.0)
            if row.within == "psirp"
        }

    assert ("end_to_end", "p99") in worse("tail")
    assert ("carry", "deviation") in worse("tail")
    assert ("end_to_end", "deviation") in worse("tail")
    assert not worse("hole")
    assert not worse("drift")
