"""What was seen of one queue, and which assumptions hold for it: by tests with a tolerance, not by belief.

With enough data every assumption is refuted at some level of significance. What matters is whether it is wrong by
enough to move a prediction, so each test has a distance, and a limit that chance alone seldom reaches.
"""

from dataclasses import dataclass, field
from typing import Final

import numpy as np

from perf.models.assumptions import Assumption, ModelError
from perf.models.distributions import Times

VARIATION: Final = (0.75, 1.35)
"""Squared coefficient of variation that still passes for exponential, whose own is 1."""
DISTANCE: Final = 0.08
"""Largest distance between the distribution and the exponential one of the same mean."""
CORRELATION: Final = 0.12
BURSTS: Final = 1.6
"""Variance over mean of arrivals in windows; 1 for Poisson."""
WINDOW_ARRIVALS: Final = 20
CHANCE: Final = 2.5
"""Standard errors that are added to each limit."""
FEWEST: Final = 100
NOTHING_WAITS: Final = 0.01
WAITS_WORTH: Final = 0.05


@dataclass(frozen=True, slots=True)
class AssumptionTest:
    """`found` and `limit` are distances: it holds while the first is not above the second."""

    assumption: Assumption
    found: float
    limit: float
    says: str

    @property
    def holds(self) -> bool:
        return self.found <= self.limit


@dataclass(frozen=True)
class ObservedQueue:
    """Stays in one queue, in the order of arrival. Times in seconds, of one clock."""

    name: str
    queued: Times
    started: Times
    done: Times
    off: Times = field(default_factory=lambda: np.empty(0))
    """Lengths of disconnected periods, if it has a connection."""
    on: Times = field(default_factory=lambda: np.empty(0))
    down: Times = field(default_factory=lambda: np.empty(0))
    """When each disconnected period of `off` began."""
    lost: int = 0
    """Stays that ended otherwise than well."""
    begun: float = 0.0
    """When the first stay began, by a clock that all queues of the run share."""

    def __post_init__(self) -> None:
        if len(self.queued) < 2:
            raise ModelError(f"{self.name}: {len(self.queued)} stays say nothing; at least 2 are needed")

    @property
    def count(self) -> int:
        return len(self.queued)

    @property
    def spacings(self) -> Times:
        return np.diff(self.queued)

    @property
    def rate(self) -> float:
        return (self.count - 1) / max(float(self.queued[-1] - self.queued[0]), 1e-12)

    @property
    def services(self) -> Times:
        """Without the time that it was disconnected in between."""
        spent: Times = self.done - self.started
        if not len(self.off):
            return spent
        return np.maximum(spent - (self._down_before(self.done) - self._down_before(self.started)), 0.0)

    def _down_before(self, times: Times) -> Times:
        before = np.concatenate([[0.0], np.cumsum(self.off)])
        place = np.searchsorted(self.down, times, side="right")
        inside = np.zeros(len(times))
        some = place > 0
        inside[some] = np.minimum(times[some] - self.down[place[some] - 1], self.off[place[some] - 1])
        total: Times = np.where(some, before[np.maximum(place - 1, 0)] + inside, 0.0)
        return total

    @property
    def responses(self) -> Times:
        return self.done - self.queued

    @property
    def at_once(self) -> int:
        """The most that were in service at one time."""
        times = np.concatenate([self.started, self.done])
        steps = np.concatenate([np.ones(self.count), -np.ones(self.count)])
        order = np.lexsort((steps, times))  # who leaves at a time makes room for who starts then
        return max(1, int(np.cumsum(steps[order]).max()))

    @property
    def nothing_waits(self) -> bool:
        """As if there were servers for everybody."""
        waits = self.started - self.queued
        worth = WAITS_WORTH * float((self.done - self.started).mean())
        return float((waits > worth).mean()) < NOTHING_WAITS

    def tests(self) -> tuple[AssumptionTest, ...]:
        return tuple(_tests(self))


def _tests(seen: ObservedQueue) -> "list[AssumptionTest]":
    spacings, services = seen.spacings, seen.services
    slack = CHANCE / np.sqrt(max(seen.count, 1))
    found = [
        _exponential(Assumption.POISSON, spacings, "spacing"),
        AssumptionTest(
            Assumption.POISSON, abs(_lag_correlation(spacings)), CORRELATION + slack,
            f"neighbouring spacings correlate by {_lag_correlation(spacings):+.2f}",
        ),
        _bursts(seen),
        _exponential(Assumption.EXPONENTIAL_SERVICE, services, "service"),
        AssumptionTest(
            Assumption.INDEPENDENT_SERVICE, abs(_lag_correlation(services)), CORRELATION + slack,
            f"neighbouring services correlate by {_lag_correlation(services):+.2f}",
        ),
    ]  # fmt: skip
    if len(seen.off) > 1:
        found += [
            _exponential(Assumption.EXPONENTIAL_ON, seen.on, "connected period"),
            _exponential(Assumption.EXPONENTIAL_OFF, seen.off, "disconnected period"),
        ]
    return found


def variation(times: Times) -> float:
    """Squared coefficient of variation."""
    mean = float(times.mean()) if len(times) else 0.0
    return float(times.var()) / mean**2 if mean > 0 else 0.0


def _exponential(assumption: Assumption, times: Times, what: str) -> AssumptionTest:
    """The worst of: squared variation outside its range, and distance of the distribution functions."""
    if not len(times) or times.mean() <= 0:
        return AssumptionTest(assumption, 1.0, 0.0, f"no {what} above zero was seen")
    squared = variation(times)
    ordered = np.sort(times)
    model = -np.expm1(-ordered / ordered.mean())
    ranks = np.arange(1, len(ordered) + 1) / len(ordered)
    distance = float(np.max(np.maximum(np.abs(ranks - model), np.abs(ranks - 1 / len(ordered) - model))))
    slack = CHANCE / np.sqrt(len(ordered))
    low, high = VARIATION
    # Squared variation of a sample varies about as 2/sqrt(n); scaled so that one limit does for both.
    beyond = max(low - squared, squared - high, 0.0) / 4
    return AssumptionTest(
        assumption, max(distance, beyond), DISTANCE + slack / 2,
        f"{what}: squared variation {squared:.2f} (exponential: 1), distance from exponential {distance:.2f}",
    )  # fmt: skip


def _bursts(seen: ObservedQueue) -> AssumptionTest:
    """Arrivals counted in windows, which tells of bursts and of rates that change."""
    span = float(seen.queued[-1] - seen.queued[0])
    windows = max(1, seen.count // WINDOW_ARRIVALS)
    if windows < 5 or span <= 0:
        return AssumptionTest(Assumption.POISSON, 0.0, BURSTS, "too few arrivals to see bursts")
    counts, _ = np.histogram(seen.queued - seen.queued[0], bins=windows, range=(0.0, span))
    dispersion = float(counts.var() / counts.mean())
    slack = CHANCE * float(np.sqrt(2 / windows))
    return AssumptionTest(
        Assumption.POISSON, dispersion, BURSTS + slack, f"arrivals in windows: variance over mean {dispersion:.2f}"
    )


def _lag_correlation(times: Times) -> float:
    if len(times) < 3:
        return 0.0
    first, second = times[:-1], times[1:]
    spread = float(first.std() * second.std())
    if spread <= 1e-12 * float(times.mean()) ** 2:  # all the same but for rounding: nothing depends on anything
        return 0.0
    return float(((first - first.mean()) * (second - second.mean())).mean() / spread)
