"""A chain of queues as somebody describes it: what it should do, by formula and by simulation, and what if."""

import math
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import msgspec
import numpy as np

from perf.models.assumptions import ModelError, SaturatedError
from perf.models.centres import MG1, MM1, MM1K, Centre, MMc, OnOff
from perf.models.chains import HIGH_LOAD, SUMS_HOLD
from perf.models.connectivity import Connectivity, Expiry
from perf.models.distributions import Always, Distribution, Exponential, LogNormal
from perf.models.serving import Fate
from perf.models.simulator import (
    Alternating,
    SimulatedQueue,
    SimulatedRun,
    SimulatedSource,
    SimulatedWorld,
    poisson,
    simulate,
)

LARGEST_FILE: Final = 1 << 20
MOST_QUEUES: Final = 200
MOST_MESSAGES: Final = 5_000_000
BURSTS_MATTER: Final = 0.2


class DescribedQueue(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Times in seconds. `service` and its squared `variation`: 1 is exponential."""

    name: str
    service: float
    variation: float = 1.0
    servers: int = 1
    places: int | None = None
    on: float | None = None
    off: float = 0.0
    link_on: float | None = None
    link_off: float = 0.0

    @property
    def connectivity(self) -> Connectivity | None:
        return Connectivity(self.on, self.off) if self.on is not None and self.off > 0 else None

    @property
    def link(self) -> Connectivity | None:
        return Connectivity(self.link_on, self.link_off) if self.link_on is not None and self.link_off > 0 else None

    def distribution(self) -> Distribution:
        if math.isclose(self.variation, 1.0):
            return Exponential(self.service)
        return Always(self.service) if self.variation == 0 else LogNormal(self.service, self.variation)

    def centre(self, rate: float) -> Centre:
        """Raises `ModelError` for what no formula is for."""
        if self.connectivity is not None:
            return OnOff(rate, self.service, self.connectivity.on, self.connectivity.off)
        if self.places is not None:
            return MM1K(rate, self.service, self.places)
        if self.servers > 1:
            return MMc(rate, self.service, self.servers)
        if math.isclose(self.variation, 1.0):
            return MM1(rate, self.service)
        return MG1(rate, self.service, self.distribution().second_moment)

    def lost(self, rate: float) -> float:
        """The share that finds no place or a link that is down."""
        dropped = MM1K(rate, self.service, self.places).dropped() if self.places is not None else 0.0
        return 1 - (1 - dropped) * (1.0 if self.link is None else self.link.share)


class Scenario(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    rate: float
    queues: tuple[DescribedQueue, ...]
    lifetime: float | None = None

    @property
    def first_to_saturate(self) -> tuple[DescribedQueue, float]:
        """And the rate of the whole from which it cannot keep up."""
        return min(capacities(self), key=lambda one: one[1])


@dataclass(frozen=True, slots=True)
class WhatIfChange:
    """A new value, or a factor."""

    value: float
    is_factor: bool = False

    @classmethod
    def parse(cls, text: str, what: str) -> "WhatIfChange":
        try:
            number = float(text[1:] if text[:1] in ("x", "/") else text)
        except ValueError:
            raise ModelError(f"{what} {text}: expected a number, or x2 or /2 for twice or half of what it is") from None
        if not (math.isfinite(number) and number > 0):
            raise ModelError(f"{what} {text}: expected a number above 0")
        if text[:1] == "x":
            return cls(number, True)
        return cls(1 / number, True) if text[:1] == "/" else cls(number)

    def of(self, value: float) -> float:
        return value * self.value if self.is_factor else self.value


@dataclass(frozen=True, slots=True)
class WhatIf:
    rate: WhatIfChange | None = None
    workers: WhatIfChange | None = None
    service: WhatIfChange | None = None
    lifetime: WhatIfChange | None = None

    def __bool__(self) -> bool:
        return any((self.rate, self.workers, self.service, self.lifetime))

    def of(self, scenario: Scenario) -> Scenario:
        lifetime = scenario.lifetime
        if self.lifetime is not None:
            if self.lifetime.is_factor and lifetime is None:
                raise ModelError("the lifetime has nothing to multiply: the description has none")
            lifetime = self.lifetime.of(lifetime or 0.0)
        return Scenario(
            scenario.rate if self.rate is None else self.rate.of(scenario.rate),
            tuple(map(self._of_queue, scenario.queues)),
            lifetime,
        )

    def _of_queue(self, queue: DescribedQueue) -> DescribedQueue:
        servers = queue.servers
        if self.workers is not None and queue.connectivity is None and queue.places is None:
            servers = max(1, round(self.workers.of(queue.servers)))
        service = queue.service if self.service is None else self.service.of(queue.service)
        return msgspec.structs.replace(queue, servers=servers, service=service)


def read_scenario(path: Path) -> Scenario:
    try:
        text = path.read_bytes()
    except OSError as error:
        raise ModelError(f"{path}: {error.strerror}") from None
    if len(text) > LARGEST_FILE:
        raise ModelError(f"{path} is larger than {LARGEST_FILE} bytes; it is no description")
    try:
        scenario = msgspec.convert(tomllib.loads(text.decode("utf-8")), Scenario)
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, msgspec.ValidationError, RecursionError) as error:
        raise ModelError(f"{path}: {error}") from None
    try:
        check(scenario)
    except ModelError as error:
        raise ModelError(f"{path}: {error}") from None
    return scenario


def check(scenario: Scenario) -> None:
    """Names what is wrong."""
    _positive("rate", scenario.rate)
    if scenario.lifetime is not None:
        _positive("lifetime", scenario.lifetime)
    if not 0 < len(scenario.queues) <= MOST_QUEUES:
        raise ModelError(f"queues: {len(scenario.queues)} of them; expected 1 to {MOST_QUEUES}")
    names = [queue.name for queue in scenario.queues]
    if len(set(names)) < len(names):
        raise ModelError("queues: two have the same name")
    for queue in scenario.queues:
        where = f"queue {queue.name}"
        _positive(f"{where}: service", queue.service)
        for name in ("on", "link_on"):
            if getattr(queue, name) is not None:
                _positive(f"{where}: {name}", getattr(queue, name))
        for name in ("variation", "off", "link_off"):
            if not (math.isfinite(getattr(queue, name)) and getattr(queue, name) >= 0):
                raise ModelError(f"{where}: {name} is {getattr(queue, name):g}; expected a number of at least 0")
        for name, count in (("servers", queue.servers), ("places", queue.places)):
            if count is not None and not 1 <= count <= 100_000:
                raise ModelError(f"{where}: {name} is {count}; expected 1 to 100000")
        if queue.servers > 1 and (queue.connectivity is not None or queue.places is not None):
            raise ModelError(f"{where}: several servers cannot be together with on and off, or with places")
        if queue.places is not None and queue.connectivity is not None:
            raise ModelError(f"{where}: places cannot be together with on and off: there is no formula")


def _positive(what: str, value: float) -> None:
    if not (math.isfinite(value) and value > 0):
        raise ModelError(f"{what} is {value:g}; expected a number above 0")


def capacities(scenario: Scenario) -> list[tuple[DescribedQueue, float]]:
    """Messages a second at the beginning of the chain from which each queue cannot keep up. What is lost before a queue
    does not load it."""
    found, reaches = [], 1.0
    for queue in scenario.queues:
        found.append((queue, queue.centre(scenario.rate * reaches).saturation / reaches))
        reaches *= 1 - queue.lost(scenario.rate * reaches)
    return found


@dataclass(frozen=True, slots=True)
class QueueOutlook:
    """Seconds; None past saturation or without a formula."""

    name: str
    model: str
    rate: float
    utilisation: float
    saturates_at: float
    mean: float | None
    p95: float | None
    p99: float | None
    simulated_mean: float | None
    simulated_p95: float | None
    simulated_p99: float | None
    success: float
    simulated_success: float | None


@dataclass(frozen=True, slots=True)
class ScenarioOutlook:
    scenario: Scenario
    queues: tuple[QueueOutlook, ...]
    mean: float | None
    success: float
    simulated_mean: float | None
    simulated_p95: float | None
    simulated_p99: float | None
    simulated_success: float | None
    balanced: bool
    """Whether the simulation accounts for every message."""
    warnings: tuple[str, ...]


def look_ahead(scenario: Scenario, messages: int = 100_000, seed: int = 1) -> ScenarioOutlook:
    check(scenario)
    if not 1 <= messages <= MOST_MESSAGES:
        raise ModelError(f"messages: {messages}; expected 1 to {MOST_MESSAGES}")
    limits = dict(zip((queue.name for queue in scenario.queues), (at for _, at in capacities(scenario)), strict=True))
    saturated = [queue for queue in scenario.queues if queue.places is None and scenario.rate >= limits[queue.name]]
    # A queue that grows without end has no response time to simulate; what expires lets others live.
    run = None if saturated and scenario.lifetime is None else simulate(world_of_scenario(scenario), messages, seed)
    warnings = [
        f"{queue.name} is saturated: it gets {scenario.rate:g} messages/s and can serve {limits[queue.name]:.4g}"
        for queue in saturated
    ]
    rows: list[QueueOutlook] = []
    held: list[Connectivity] = []
    reaches = 1.0
    for queue in scenario.queues:
        row = _outlook(queue, scenario.rate * reaches, limits[queue.name], run)
        rows.append(row)
        if row.mean and row.simulated_mean and scenario.lifetime is None:
            off = row.mean / row.simulated_mean - 1
            if held and abs(off) > BURSTS_MATTER:
                warnings.append(
                    f"{queue.name}: the formula is {off:+.0%} off the simulation, because what comes before is "
                    "connected now and then and lets go of bursts"
                )
        if row.mean is not None and row.utilisation > HIGH_LOAD and queue.places is None:
            warnings.append(f"{queue.name} is at {row.utilisation:.0%} of its saturation: small errors are large ones")
        if queue.connectivity is not None:
            held.append(queue.connectivity)
            if row.utilisation > SUMS_HOLD and len(scenario.queues) > 1:
                warnings.append(f"{queue.name} is busy and lets go of bursts: sums are too low")
        reaches *= 1 - queue.lost(scenario.rate * reaches)
    means = [row.mean for row in rows if row.mean is not None]
    success = reaches
    if scenario.lifetime is not None:
        success *= Expiry(tuple(held)).within(scenario.lifetime)
        warnings.append("messages expire: the formula's success takes service times for negligible, and it has no mean")
    known = scenario.lifetime is None and len(means) == len(rows)
    times = None if run is None else run.responses()
    p95, p99 = (None, None) if times is None or not len(times) else map(float, np.quantile(times, (0.95, 0.99)))
    return ScenarioOutlook(
        scenario,
        tuple(rows),
        sum(means) if known else None,
        success,
        None if times is None or not len(times) else float(times.mean()),
        p95,
        p99,
        None if run is None else run.success(),
        run is None or run.ledger.balanced,
        tuple(warnings),
    )


def _outlook(queue: DescribedQueue, rate: float, saturates_at: float, run: SimulatedRun | None) -> QueueOutlook:
    centre = queue.centre(rate)
    mean = p95 = p99 = None
    try:
        mean = centre.mean_response()
        if isinstance(centre, MMc):  # Lee and Longton: the wait grows with the variation of services
            mean = queue.service + (mean - queue.service) * (1 + queue.variation) / 2
        if not isinstance(centre, MMc) or math.isclose(queue.variation, 1.0):
            p95, p99 = centre.quantile(0.95), centre.quantile(0.99)
    except SaturatedError:
        pass
    visits = None if run is None else run.visits[queue.name]
    stayed = np.empty(0) if visits is None else visits.responses
    seen: tuple[float | None, float | None, float | None] = (None, None, None)
    if len(stayed):
        most = np.quantile(stayed, (0.95, 0.99))
        seen = float(stayed.mean()), float(most[0]), float(most[1])
    went_on = None
    if run is not None and visits is not None and len(visits.done):
        who = visits.messages
        lost = int(((run.fates[who] == Fate.LOST) & (run.ended[who] == visits.done)).sum())
        went_on = (len(stayed) - lost) / len(visits.done)
    return QueueOutlook(
        queue.name, centre.name, rate, centre.utilisation, saturates_at, mean, p95, p99, *seen,
        1 - queue.lost(rate), went_on,
    )  # fmt: skip


def world_of_scenario(scenario: Scenario) -> SimulatedWorld:
    queues = scenario.queues
    following = [*(((queue.name, 1.0),) for queue in queues[1:]), ()]
    connectivity: dict[str, Alternating] = {}
    for queue in queues:
        for name, party in ((queue.name, queue.connectivity), (f"behind {queue.name}", queue.link)):
            if party is not None:
                connectivity[name] = Alternating(Exponential(party.on), Exponential(party.off))
    simulated = tuple(
        SimulatedQueue(
            queue.name,
            queue.distribution(),
            to,
            servers=queue.servers,
            served_while=queue.name if queue.connectivity is not None else None,
            loses_on=f"behind {queue.name}" if queue.link is not None else None,
            expires=scenario.lifetime is not None,
            places=queue.places,
        )
        for queue, to in zip(queues, following, strict=True)
    )
    source = SimulatedSource("source", poisson(scenario.rate), queues[0].name, scenario.lifetime)
    return SimulatedWorld((source,), simulated, dict(connectivity))


def lifetime_for(scenario: Scenario, success: float) -> float:
    """The smallest lifetime that reaches a share of success, by formula; refused when losses alone are more."""
    if not 0 < success < 1:
        raise ModelError(f"--success {success:g}: expected a share above 0 and below 1")
    reaches, held = 1.0, []
    for queue in scenario.queues:
        reaches *= 1 - queue.lost(scenario.rate * reaches)
        if queue.connectivity is not None:
            held.append(queue.connectivity)
    if success >= reaches:
        raise ModelError(f"no lifetime reaches {success:.2%}: links and full queues lose all but {reaches:.2%} anyway")
    return Expiry(tuple(held)).lifetime_for(success / reaches)


def at_rates(scenario: Scenario, rates: "list[float]", messages: int, seed: int) -> list[ScenarioOutlook]:
    return [look_ahead(msgspec.structs.replace(scenario, rate=rate), messages, seed) for rate in rates]
