"""What one observed queue should have done: by formula, by simulation, and which assumption a difference is due to.

The simulation is run four times, each time with one assumption replaced by what was seen. So the step that moves the
mean from the formula to the measured value names the assumption that fails.
"""

from dataclasses import dataclass
from itertools import pairwise
from typing import Final

import numpy as np

from perf.models.assumptions import Assumption, SaturatedError
from perf.models.centres import MG1, MM1, Centre, MMc, OnOff
from perf.models.chains import HIGH_LOAD
from perf.models.distributions import MeasuredTimes, Times
from perf.models.estimates import FEWEST, AssumptionTest, ObservedQueue, variation
from perf.models.serving import serve_all, serve_some
from perf.models.simulator import Arrivals, AtTimes, poisson
from perf.models.timeline import Timeline, measured

CLOSE: Final = 0.20
"""A prediction within this share of what was measured is good."""
SHARES: Final = (0.95, 0.99)
REPLAYED: Final = 0.1
"""How far a replay may be from what was measured."""
_VARIES_LITTLE: Final = (0.75, 1.35)
_REPEATS: Final = 5


@dataclass(frozen=True, slots=True)
class PredictedTimes:
    """Seconds; None where the model has no answer."""

    mean: float | None
    p95: float | None
    p99: float | None


@dataclass(frozen=True, slots=True)
class QueueComparison:
    """One queue: what was measured, and what models make of its rate, services and connectivity."""

    name: str
    stays: int
    rate: float
    service: float
    servers: int | None
    """None: as many as anybody wants."""
    utilisation: float
    saturation: float | None
    model: str
    tests: tuple[AssumptionTest, ...]
    formula: PredictedTimes
    simulated: PredictedTimes
    measured: PredictedTimes
    steps: tuple[tuple[str, float], ...]
    """The mean after each assumption is replaced by what was seen."""

    @property
    def failing(self) -> tuple[Assumption, ...]:
        """Assumptions of the model that the tests refute."""
        return tuple(dict.fromkeys(test.assumption for test in self.tests if not test.holds))

    @property
    def error(self) -> float | None:
        """Of the formula's mean, relative to the measured one."""
        if self.formula.mean is None or not self.measured.mean:
            return None
        return self.formula.mean / self.measured.mean - 1

    @property
    def simulation_error(self) -> float | None:
        if self.simulated.mean is None or not self.measured.mean:
            return None
        return self.simulated.mean / self.measured.mean - 1

    @property
    def few(self) -> bool:
        return self.stays < FEWEST

    @property
    def believed(self) -> bool:
        """Whether its assumptions hold by test, so that the formula should be close."""
        return not self.failing and not self.few and self.utilisation <= HIGH_LOAD

    @property
    def cause(self) -> str:
        """What the difference between formula and measurement is due to; empty when there is none to speak of."""
        if self.error is not None and abs(self.error) <= CLOSE:
            return ""
        means = [("", self.formula.mean or 0.0), *self.steps]
        moved = [(abs(after - before), name) for (_, before), (name, after) in pairwise(means)]
        largest = max(moved)[1]
        load = (
            f"; at {self.utilisation:.0%} of saturation everything counts more" if self.utilisation > HIGH_LOAD else ""
        )
        return largest + load


def compare(seen: ObservedQueue, seed: int = 1) -> QueueComparison:
    services = seen.services
    servers = None if seen.nothing_waits and not len(seen.off) else seen.at_once
    centre = centre_for(seen, services, servers)
    formula = _by_formula(centre, seen, services, servers)
    steps, simulated = _by_simulation(seen, services, servers, seed)
    return QueueComparison(
        seen.name,
        seen.count,
        seen.rate,
        float(services.mean()),
        servers,
        0.0 if servers is None else centre.utilisation,
        None if servers is None else centre.saturation,
        "M/G/inf" if servers is None else _name(centre, services, servers),
        (*_relevant(seen.tests(), servers, centre), _replay_test(steps)),
        formula,
        simulated,
        _times(seen.responses),
        steps,
    )


def _replay_test(steps: tuple[tuple[str, float], ...]) -> AssumptionTest:
    """Arrivals and services exactly as they were, through a queue of this kind: what is missing then is no queue."""
    replayed, measured = steps[-2][1], steps[-1][1]
    off = replayed / measured - 1 if measured > 0 else 0.0
    return AssumptionTest(
        Assumption.WORK_CONSERVING, abs(off), REPLAYED,
        f"with arrivals and services as they were, such a queue gives a mean that is {off:+.0%} off",
    )  # fmt: skip


def centre_for(seen: ObservedQueue, services: Times, servers: int | None) -> Centre:
    """The simplest model that what was seen allows."""
    rate, service = seen.rate, max(float(services.mean()), 1e-12)
    if len(seen.off) > 1 and len(seen.on):
        return OnOff(rate, service, float(seen.on.mean()), float(seen.off.mean()), float((seen.off**2).mean()))
    if servers is not None and servers > 1:
        return MMc(rate, service, servers)
    low, high = _VARIES_LITTLE
    if low <= variation(services) <= high:
        return MM1(rate, service)
    return MG1(rate, service, float((services**2).mean()))


def _name(centre: Centre, services: Times, servers: int) -> str:
    low, high = _VARIES_LITTLE
    if servers > 1 and not low <= variation(services) <= high:
        return "M/G/c"
    return centre.name


def _relevant(tests: tuple[AssumptionTest, ...], servers: int | None, centre: Centre) -> tuple[AssumptionTest, ...]:
    """Without a queue nothing is assumed of it; a model that takes any service does not ask for exponential ones."""
    if servers is None:
        return ()
    takes_any = isinstance(centre, MG1 | MMc)
    return tuple(test for test in tests if not (takes_any and test.assumption is Assumption.EXPONENTIAL_SERVICE))


def _by_formula(centre: Centre, seen: ObservedQueue, services: Times, servers: int | None) -> PredictedTimes:
    if servers is None:
        own = _times(services)
        return PredictedTimes(own.mean, own.p95, own.p99)
    try:
        mean = centre.mean_response()
        if isinstance(centre, MMc):  # Lee and Longton: the wait grows with the variation of services
            mean = centre.service + (mean - centre.service) * (1 + variation(services)) / 2
            return PredictedTimes(mean, None, None)
        p95, p99 = (centre.quantile(share) for share in SHARES)
    except SaturatedError:
        return PredictedTimes(None, None, None)
    return PredictedTimes(mean, p95, p99)


def _by_simulation(
    seen: ObservedQueue, services: Times, servers: int | None, seed: int
) -> tuple[tuple[tuple[str, float], ...], PredictedTimes]:
    """Means as one assumption after the other is replaced, and the times when only services are independent."""
    random = np.random.default_rng(seed)
    line = _line(seen)
    mean = float(services.mean())
    drawn, own = MeasuredTimes(services), MeasuredTimes(services, in_order=True)
    exactly: Arrivals = AtTimes(seen.queued - seen.queued[0])

    def run(arrivals: Arrivals, some: MeasuredTimes | None) -> Times:
        at = arrivals.times(random, seen.count)
        served = random.exponential(mean, len(at)) if some is None else some.draw(random, len(at))
        return _responses(at, served, servers, line)

    def again(arrivals: Arrivals, some: MeasuredTimes | None) -> Times:
        return np.concatenate([run(arrivals, some) for _ in range(_REPEATS)])

    plain = again(poisson(seen.rate), None)
    any_service = again(poisson(seen.rate), drawn)
    as_spaced = again(exactly, drawn)
    as_served = run(exactly, own)
    steps = (
        ("this run is short: another one with the same figures would differ", float(plain.mean())),
        ("the distribution of services", float(any_service.mean())),
        ("the spacing of arrivals", float(as_spaced.mean())),
        ("correlation: services depend on each other or on arrivals", float(as_served.mean())),
        ("something that is no queue of this kind: order, other work, other servers", float(seen.responses.mean())),
    )
    return steps, _times(as_spaced)


def _line(seen: ObservedQueue) -> Timeline | None:
    """The connectivity as it was, from the first arrival on; over and over again if it is not long enough."""
    if not len(seen.off):
        return None
    begin = float(seen.queued[0])
    periods: list[tuple[bool, float]] = []
    at = begin
    for down, off in zip(seen.down, seen.off, strict=True):
        if down + off <= begin:
            continue
        periods.append((True, max(float(down) - at, 0.0)))
        periods.append((False, float(down + off) - max(float(down), at)))
        at = float(down + off)
    last = float(seen.done.max())
    periods.append((True, max(last - at, float(seen.on.mean()) if len(seen.on) else 1.0)))
    return measured(periods)


def responses_of(seen: ObservedQueue, at: Times, services: Times) -> Times:
    """How long messages stay that come at these times, in a queue like the one that was seen."""
    servers = None if seen.nothing_waits and not len(seen.off) else seen.at_once
    return _responses(at, services, servers, _line(seen))


def _responses(at: Times, services: Times, servers: int | None, line: Timeline | None) -> Times:
    if servers is None:
        return services
    if servers == 1:
        return serve_all(at, services, line)[1] - at
    return serve_some(at, services, None, servers=servers)[1] - at


def _times(responses: Times) -> PredictedTimes:
    p95, p99 = np.quantile(responses, SHARES)
    return PredictedTimes(float(responses.mean()), float(p95), float(p99))
