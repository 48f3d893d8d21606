"""One queue, first come first served: how long a message stays, and at which rate the queue saturates.

Each model is a frozen value with its assumptions; asking a saturated one for a mean raises `SaturatedError`.
"""

import math
from dataclasses import dataclass
from typing import ClassVar, Protocol

from perf.models.assumptions import Assumption, ModelError, SaturatedError, check_not_negative, check_positive

_EVERY_QUEUE = (Assumption.POISSON, Assumption.INDEPENDENT_SERVICE, Assumption.STAYS, Assumption.WORK_CONSERVING)


class Centre(Protocol):
    """What all models of one queue can say."""

    name: ClassVar[str]
    assumptions: ClassVar[tuple[Assumption, ...]]

    @property
    def rate(self) -> float: ...

    @property
    def saturation(self) -> float:
        """The rate at which it can just not serve everything any more."""

    @property
    def utilisation(self) -> float:
        """The share of its capacity that is used; saturated from 1 on."""

    def mean_response(self) -> float:
        """Waiting and service together, in seconds."""

    def quantile(self, share: float) -> float | None:
        """The time within which this share of messages has left; None where there is no closed form."""


def _check_stable(centre: "MM1 | MG1 | MMc | OnOff") -> None:
    if centre.rate >= centre.saturation:
        raise SaturatedError(f"the queue ({centre.name})", centre.rate, centre.saturation)


@dataclass(frozen=True, slots=True)
class MM1:
    """M/M/1: one server, exponential service of mean `service`."""

    name: ClassVar[str] = "M/M/1"
    assumptions: ClassVar[tuple[Assumption, ...]] = (
        *_EVERY_QUEUE,
        Assumption.EXPONENTIAL_SERVICE,
        Assumption.UNBOUNDED,
    )
    rate: float
    service: float

    def __post_init__(self) -> None:
        check_not_negative(rate=self.rate)
        check_positive(service=self.service)

    @property
    def saturation(self) -> float:
        return 1 / self.service

    @property
    def utilisation(self) -> float:
        return self.rate * self.service

    def mean_response(self) -> float:
        _check_stable(self)
        return self.service / (1 - self.utilisation)

    def quantile(self, share: float) -> float:
        """The response time is exponential."""
        return -math.log(1 - share) * self.mean_response()


@dataclass(frozen=True, slots=True)
class MG1:
    """M/G/1 (Pollaczek and Khinchine): any service times, of which mean and second moment are known."""

    name: ClassVar[str] = "M/G/1"
    assumptions: ClassVar[tuple[Assumption, ...]] = (*_EVERY_QUEUE, Assumption.UNBOUNDED)
    rate: float
    service: float
    second_moment: float

    def __post_init__(self) -> None:
        check_not_negative(rate=self.rate)
        check_positive(service=self.service)
        if not self.second_moment >= self.service**2 * (1 - 1e-9):
            raise ModelError(
                f"the second moment of service is {self.second_moment:g}; it cannot be below the mean's square, "
                f"{self.service**2:g}"
            )

    @property
    def saturation(self) -> float:
        return 1 / self.service

    @property
    def utilisation(self) -> float:
        return self.rate * self.service

    def mean_response(self) -> float:
        _check_stable(self)
        return self.service + self.rate * self.second_moment / (2 * (1 - self.utilisation))

    def quantile(self, share: float) -> None:
        """Two moments do not say."""


@dataclass(frozen=True, slots=True)
class MMc:
    """M/M/c (Erlang C): several servers behind one queue."""

    name: ClassVar[str] = "M/M/c"
    assumptions: ClassVar[tuple[Assumption, ...]] = MM1.assumptions
    rate: float
    service: float
    servers: int

    def __post_init__(self) -> None:
        check_not_negative(rate=self.rate)
        check_positive(service=self.service, servers=self.servers)

    @property
    def saturation(self) -> float:
        return self.servers / self.service

    @property
    def utilisation(self) -> float:
        return self.rate * self.service / self.servers

    def waits(self) -> float:
        """How likely a message finds all servers busy."""
        _check_stable(self)
        offered = self.rate * self.service
        blocked = 1.0  # Erlang B by its recursion, which cannot overflow; C follows from B
        for servers in range(1, self.servers + 1):
            blocked = offered * blocked / (servers + offered * blocked)
        return blocked / (1 - self.utilisation * (1 - blocked))

    def mean_response(self) -> float:
        return self.service + self.waits() * self.service / (self.servers * (1 - self.utilisation))

    def quantile(self, share: float) -> float:
        """Inverts P(response > t): exponential service behind a wait that is exponential, if there is one."""
        mu = 1 / self.service
        spare = self.servers * mu * (1 - self.utilisation)
        waits = self.waits()

        def beyond(t: float) -> float:
            if math.isclose(spare, mu, rel_tol=1e-9):
                return math.exp(-mu * t) * (1 + waits * mu * t)
            ratio = waits * mu / (spare - mu)
            return math.exp(-mu * t) * (1 + ratio) - ratio * math.exp(-spare * t)

        return first_below(beyond, 1 - share, self.mean_response())


@dataclass(frozen=True, slots=True)
class MM1K:
    """M/M/1/K: `places` including the one in service; what finds them taken is dropped."""

    name: ClassVar[str] = "M/M/1/K"
    assumptions: ClassVar[tuple[Assumption, ...]] = (*_EVERY_QUEUE, Assumption.EXPONENTIAL_SERVICE, Assumption.BOUNDED)
    rate: float
    service: float
    places: int

    def __post_init__(self) -> None:
        check_positive(rate=self.rate, service=self.service, places=self.places)

    @property
    def saturation(self) -> float:
        """It never saturates, it drops; from this rate on it must."""
        return 1 / self.service

    @property
    def utilisation(self) -> float:
        return self.rate * self.service

    def _shares(self) -> list[float]:
        """How likely 0, 1, ... K messages are there."""
        load = self.utilisation
        top = max(1.0, load)  # powers of the smaller of load and 1/load: nothing overflows
        weights = [(load / top) ** n * (1 / top) ** (self.places - n) for n in range(self.places + 1)]
        total = sum(weights)
        return [weight / total for weight in weights]

    def dropped(self) -> float:
        """The share that finds no place."""
        return self._shares()[-1]

    def mean_response(self) -> float:
        """Of those that found a place."""
        number = sum(n * share for n, share in enumerate(self._shares()))
        return number / (self.rate * (1 - self.dropped()))

    def quantile(self, share: float) -> float:
        """Who finds n there waits for n + 1 exponential services."""
        shares = self._shares()[:-1]
        entered = sum(shares)
        mu = 1 / self.service

        def beyond(t: float) -> float:
            tail, term, total = 0.0, math.exp(-mu * t), 0.0
            for n, part in enumerate(shares):
                tail += term
                total += part / entered * tail
                term *= mu * t / (n + 1)
            return total

        return first_below(beyond, 1 - share, self.mean_response())


@dataclass(frozen=True, slots=True)
class OnOff:
    """A server that is connected and disconnected in turn, also while idle; what it interrupts it resumes.

    With exponential disconnections this is exact (Theorem 2 of the text it comes from). Other disconnections change
    only what an arrival still has to wait for: give their second moment.
    """

    name: ClassVar[str] = "ON/OFF"
    assumptions: ClassVar[tuple[Assumption, ...]] = (
        *MM1.assumptions,
        Assumption.EXPONENTIAL_ON,
        Assumption.EXPONENTIAL_OFF,
    )
    rate: float
    service: float
    on: float
    off: float
    off_second_moment: float | None = None
    """None: exponential, which is twice the square of the mean."""

    def __post_init__(self) -> None:
        check_not_negative(rate=self.rate, off=self.off)
        check_positive(service=self.service, on=self.on)
        if self.off_second_moment is not None and not self.off_second_moment >= self.off**2 * (1 - 1e-9):
            raise ModelError(
                f"the second moment of disconnections is {self.off_second_moment:g}; it cannot be below the mean's "
                f"square, {self.off**2:g}"
            )

    @property
    def connected(self) -> float:
        """The share of time."""
        return self.on / (self.on + self.off)

    @property
    def saturation(self) -> float:
        return self.connected / self.service

    @property
    def utilisation(self) -> float:
        return self.rate * self.service / self.connected

    def mean_response(self) -> float:
        _check_stable(self)
        second = 2 * self.off**2 if self.off_second_moment is None else self.off_second_moment
        # An arrival in an OFF period, which has probability OFF/(ON+OFF), waits for E[OFF^2]/(2 OFF) of it.
        residual = second / (2 * (self.on + self.off))
        return (residual + self.service / self.connected) / (1 - self.utilisation)

    def quantile(self, share: float) -> None:
        """No closed form: simulate."""


@dataclass(frozen=True, slots=True)
class Unreliable:
    """A server that always serves, in front of a link: what leaves while the link is down is lost."""

    name: ClassVar[str] = "unreliable M/M/1"
    assumptions: ClassVar[tuple[Assumption, ...]] = (*MM1.assumptions, Assumption.INDEPENDENT_PARTIES)
    rate: float
    service: float
    on: float
    off: float

    def __post_init__(self) -> None:
        check_not_negative(off=self.off)
        check_positive(on=self.on)

    @property
    def _queue(self) -> MM1:
        return MM1(self.rate, self.service)

    @property
    def saturation(self) -> float:
        return self._queue.saturation

    @property
    def utilisation(self) -> float:
        return self._queue.utilisation

    def lost(self) -> float:
        """Departures of M/M/1 are Poisson (Burke), so they see the link as it is on average."""
        return self.off / (self.on + self.off)

    def mean_response(self) -> float:
        return self._queue.mean_response()

    def quantile(self, share: float) -> float:
        return self._queue.quantile(share)


def first_below(falling: "FallingFunction", level: float, scale: float) -> float:
    """Where a falling function first is at most `level`; `scale` says where to begin to look."""
    high = scale
    while falling(high) > level:
        high *= 2
        if not math.isfinite(high):
            raise ModelError("the share asked for is never reached")
    low = 0.0
    for _ in range(200):
        middle = (low + high) / 2
        if falling(middle) > level:
            low = middle
        else:
            high = middle
        if high - low <= 1e-12 * high:
            break
    return high


class FallingFunction(Protocol):
    def __call__(self, t: float, /) -> float: ...
