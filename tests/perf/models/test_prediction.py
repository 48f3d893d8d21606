"""Predictions of what was simulated: close where assumptions hold by test, and where not the right one is named."""

import numpy as np
import pytest

from perf.models.assumptions import Assumption, ModelError
from perf.models.distributions import Always, Exponential, LogNormal
from perf.models.estimates import ObservedQueue
from perf.models.prediction import QueueComparison, compare
from perf.models.simulator import (
    Alternating,
    Arrivals,
    Renewals,
    SimulatedQueue,
    SimulatedRun,
    SimulatedSource,
    SimulatedWorld,
    poisson,
    simulate,
)


def observed(run: SimulatedRun, name: str, connectivity: str | None = None) -> ObservedQueue:
    visits = run.visits[name]
    if connectivity is None:
        return ObservedQueue(name, visits.queued, visits.started, visits.done)
    line = run.timelines[connectivity]
    count = int(np.searchsorted(line.ends, visits.done.max()))
    off = line.begins[1 : count + 1] - line.ends[:count]
    on = (line.ends - line.begins)[:count]
    return ObservedQueue(name, visits.queued, visits.started, visits.done, off, on, line.ends[:count])


def seen(arrivals: Arrivals, queue: SimulatedQueue, messages: int = 20_000, **parties: Alternating) -> QueueComparison:
    world = SimulatedWorld((SimulatedSource("source", arrivals, queue.name),), (queue,), parties)
    return compare(observed(simulate(world, messages, 1), queue.name, next(iter(parties), None)))


@pytest.mark.parametrize(
    ("queue", "rate", "model"),
    [
        (SimulatedQueue("q", Exponential(0.1)), 3.0, "M/M/1"),
        (SimulatedQueue("q", Exponential(0.1)), 7.0, "M/M/1"),
        (SimulatedQueue("q", Always(0.1)), 7.0, "M/G/1"),
        (SimulatedQueue("q", LogNormal(0.1, 3.0)), 5.0, "M/G/1"),
        (SimulatedQueue("q", Exponential(0.1), servers=3), 20.0, "M/M/c"),
        (SimulatedQueue("q", Exponential(0.1), servers=80), 20.0, "M/G/inf"),
    ],
)
def test_where_assumptions_hold_the_formula_is_close(queue: SimulatedQueue, rate: float, model: str) -> None:
    found = seen(poisson(rate), queue)
    assert found.model == model
    assert found.believed, found.tests
    assert found.error is not None
    assert abs(found.error) < 0.2
    assert abs(found.simulation_error or 0.0) < 0.1
    assert found.cause == ""
    assert found.simulated.p95 == pytest.approx(found.measured.p95, rel=0.1)


def test_connected_now_and_then() -> None:
    session = Alternating(Exponential(20), Always(10))
    found = seen(poisson(2.0), SimulatedQueue("q", Exponential(0.125), served_while="c"), c=session)
    assert found.model == "ON/OFF"
    assert found.service == pytest.approx(0.125, rel=0.05), "what it was interrupted by is no service"
    assert abs(found.error or 1.0) < 0.2
    assert Assumption.EXPONENTIAL_OFF in found.failing


@pytest.mark.parametrize(
    ("arrivals", "queue", "failing", "cause"),
    [
        (Renewals(Always(0.2)), SimulatedQueue("q", Exponential(0.1)), Assumption.POISSON, "the spacing of arrivals"),
        (
            Renewals(LogNormal(0.2, 8.0)), SimulatedQueue("q", Exponential(0.1)), Assumption.POISSON,
            "the spacing of arrivals",
        ),
    ],
    ids=["steady", "bursts"],
)  # fmt: skip
def test_where_they_do_not_the_one_that_fails_is_named(
    arrivals: Arrivals, queue: SimulatedQueue, failing: Assumption, cause: str
) -> None:
    found = seen(arrivals, queue)
    assert not found.believed
    assert failing in found.failing
    assert found.cause == cause
    assert abs(found.simulation_error or 1.0) < 0.1, "the simulation takes arrivals as they were"


def test_services_that_hang_together_are_named() -> None:
    random = np.random.default_rng(1)
    count = 20_000
    queued = np.cumsum(random.exponential(0.2, count))
    services = np.repeat(random.exponential(0.1, count // 50), 50)
    started, done = np.empty(count), np.empty(count)
    free = 0.0
    for number in range(count):
        started[number] = max(queued[number], free)
        free = done[number] = started[number] + services[number]
    found = compare(ObservedQueue("q", queued, started, done))
    assert Assumption.INDEPENDENT_SERVICE in found.failing
    assert found.cause.startswith("correlation")


def test_a_queue_that_does_not_keep_up_has_no_mean() -> None:
    found = seen(poisson(12.0), SimulatedQueue("q", Exponential(0.1)), 5000)
    assert found.formula.mean is None
    assert found.error is None
    assert found.utilisation > 1
    assert "saturation everything counts more" in found.cause


def test_few_stays_are_not_believed() -> None:
    assert seen(poisson(3.0), SimulatedQueue("q", Exponential(0.1)), 50).few
    with pytest.raises(ModelError, match="at least 2"):
        ObservedQueue("q", *(np.array([1.0]),) * 3)
