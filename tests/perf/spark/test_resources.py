"""What Spark says of queues: simulated runs, of which everything is known, come back with the same figures."""

from pathlib import Path

import numpy as np
import pytest
from pyspark.sql import SparkSession

from perf.models.distributions import Exponential
from perf.models.prediction import compare
from perf.models.recording import NODE, record
from perf.models.simulator import (
    Alternating,
    SimulatedQueue,
    SimulatedRun,
    SimulatedSource,
    SimulatedWorld,
    poisson,
    simulate,
)
from perf.pipeline.analysis import analyse
from perf.pipeline.resources import ObservedResources, observe_resources
from perf.traces.files import take_inventory

pytestmark = pytest.mark.timeout(600)


def world() -> SimulatedWorld:
    return SimulatedWorld(
        (SimulatedSource("source", poisson(2.0), "first", lifetime=60.0),),
        (
            SimulatedQueue("first", Exponential(0.1), (("second", 1.0),), served_while="session", expires=True),
            SimulatedQueue("second", Exponential(0.2), loses_on="link"),
        ),
        {
            "session": Alternating(Exponential(20), Exponential(10)),
            "link": Alternating(Exponential(30), Exponential(3)),
        },
    )


@pytest.fixture(scope="module")
def simulated() -> SimulatedRun:
    return simulate(world(), 3000, 7)


@pytest.fixture(scope="module")
def seen(session: SparkSession, simulated: SimulatedRun, tmp_path_factory: pytest.TempPathFactory) -> ObservedResources:
    folder = tmp_path_factory.mktemp("simulated")
    record(folder, simulated, {"lifetime": 60.0}, name="one")
    return observe_resources(session, take_inventory([folder]), 5000)


def test_figures_are_those_of_the_simulation(simulated: SimulatedRun, seen: ObservedResources) -> None:
    first, second = (row for row in seen.figures)
    assert (first.resource, second.resource) == ("first~session", "second")
    visits = simulated.visits["second"]
    assert second.stays == len(visits.done)
    assert second.node == NODE
    assert second.rate == pytest.approx(1 / np.diff(visits.queued).mean(), rel=1e-6)
    assert second.service_ms == pytest.approx(1e3 * (visits.done - visits.started).mean(), rel=1e-4)
    assert second.response_mean_ms == pytest.approx(1e3 * (visits.done - visits.queued).mean(), rel=1e-4)
    assert second.found_mean == pytest.approx(visits.found.mean())
    assert second.found_most == visits.found.max()
    assert second.lost == simulated.ledger.lost > 0
    assert first.not_ok == simulated.ledger.expired > 0


def test_connectivity_is_what_was_drawn(simulated: SimulatedRun, seen: ObservedResources) -> None:
    by_name = {row.resource: row for row in seen.connectivity}
    line, end = simulated.timelines["session"], simulated.ended.max()
    begins, ends = line.begins[line.begins <= end], line.ends[line.ends <= end]
    offs = begins[1:] - ends[: len(begins) - 1]
    assert by_name["session"].off_s == pytest.approx(offs.mean(), rel=1e-6)
    assert by_name["session"].off_second_moment_s2 == pytest.approx((offs**2).mean(), rel=1e-6)
    assert by_name["session"].on_s == pytest.approx((ends - begins[: len(ends)]).mean(), rel=0.01)
    assert by_name["link"].disconnections > 0


def test_predictions_of_what_was_simulated_are_close(seen: ObservedResources) -> None:
    by_name = {row.resource: compare(queue) for row, queue in seen.queues}
    first, second = by_name["first~session"], by_name["second"]
    assert first.model == "ON/OFF"
    assert second.model == "M/M/1"
    assert second.service == pytest.approx(0.2, rel=0.1)
    # What reaches the second comes in bursts that the first lets go: the test says so, and the cause is named.
    assert not second.believed
    assert second.error is not None
    assert second.error < -0.2
    assert second.cause == "the spacing of arrivals"
    assert abs(second.simulation_error or 1.0) < 0.1


def test_the_other_analysis_passes_stays_over(session: SparkSession, tmp_path: Path) -> None:
    run = simulate(world(), 300, 3)
    record(tmp_path / "run", run, {}, name="one")
    analysis = analyse(session, [tmp_path / "run"], tmp_path / "work")
    [ending] = analysis.endings
    assert ending.publications == 300
    assert ending.complete == run.ledger.delivered
    whole = [row for row in analysis.latency if (row.stage, row.by) == ("end_to_end", "all")]
    assert whole[0].mean_ms == pytest.approx(1e3 * run.responses().mean(), rel=1e-3)
    stays = sum(len(visits.done) for visits in run.visits.values())
    assert 0 < sum(row.stays for row in analysis.queue_depth) <= stays
    second = [row for row in analysis.queue_depth if row.resource == "second"]
    assert [row.found_from for row in second[:4]] == [0, 1, 2, 4]
    assert second[0].response_mean_ms < second[-1].response_mean_ms  # more in front, a longer stay
    assert not analysis.quality or all("no record" not in row.what for row in analysis.quality)
