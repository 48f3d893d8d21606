"""A chain of queues with figures: what each queue and the whole should do, by formula.

Each queue is solved alone and the means are added, as the text has it. That is optimistic where an ON/OFF queue lets
go of bursts, so a prediction says by itself when it leaves the range in which sums were seen to hold.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from perf.models.assumptions import Assumption, ModelError, SaturatedError
from perf.models.centres import MM1, Centre, OnOff, Unreliable
from perf.models.connectivity import Connectivity, Expiry
from perf.models.patterns import ChainQueue, Pattern

SUMS_HOLD: Final = 0.15
"""Of saturation: above it, sums over ON/OFF queues were 5 to 35 % too low."""
HIGH_LOAD: Final = 0.85
"""Of saturation: above it, a small error of the rate is a large one of the mean."""


@dataclass(frozen=True, slots=True)
class ChainSetting:
    """What a pattern is predicted for. Queues without a service time of their own have `service`."""

    rate: float
    service: float
    services: Mapping[str, float] = field(default_factory=dict)
    connectivity: Mapping[str, Connectivity] = field(default_factory=dict)
    """By party; who is not named is always connected."""
    link: Connectivity | None = None
    """Of the links that unreliable queues lose to."""
    lifetime: float | None = None

    def service_of(self, queue: ChainQueue) -> float:
        return self.services.get(queue.name, self.service)

    def party_of(self, queue: ChainQueue) -> Connectivity | None:
        found = None if queue.party is None else self.connectivity.get(queue.party)
        return found if found is not None and found.off > 0 else None


@dataclass(frozen=True, slots=True)
class QueuePrediction:
    """`mean` is None past saturation."""

    queue: ChainQueue
    model: str
    rate: float
    utilisation: float
    saturation: float
    mean: float | None
    lost: float
    """The share that the link loses behind this queue."""
    assumptions: tuple[Assumption, ...]


@dataclass(frozen=True, slots=True)
class ChainPrediction:
    queues: tuple[QueuePrediction, ...]
    mean: float | None
    """End to end; None when a queue is saturated or messages expire, which sums do not see."""
    success: float
    warnings: tuple[str, ...]

    @property
    def first_to_saturate(self) -> QueuePrediction:
        return max(self.queues, key=lambda one: one.utilisation)


def centre_of(queue: ChainQueue, setting: ChainSetting, rate: float) -> Centre:
    service, party = setting.service_of(queue), setting.party_of(queue)
    if party is not None:
        return OnOff(rate, service, party.on, party.off)
    if queue.lost_on_link and setting.link is not None:
        return Unreliable(rate, service, setting.link.on, setting.link.off)
    return MM1(rate, service)


def predict_chain(pattern: Pattern, setting: ChainSetting) -> ChainPrediction:
    if not pattern.queues:
        raise ModelError("the chain has no queue")
    rate = setting.rate
    rows, warnings = [], []
    passed = 1.0
    for queue in pattern.queues:
        centre = centre_of(queue, setting, rate)
        lost = setting.link.off / (setting.link.on + setting.link.off) if queue.lost_on_link and setting.link else 0.0
        try:
            mean = centre.mean_response()
        except SaturatedError as error:
            mean = None
            warnings.append(f"{queue.name} is saturated: {error}")
        rows.append(
            QueuePrediction(
                queue, centre.name, rate, centre.utilisation, centre.saturation, mean, lost, centre.assumptions
            )
        )
        passed *= 1 - lost
        rate *= 1 - lost
    success = passed
    if setting.lifetime is not None:
        held = tuple(party for queue in pattern.queues if (party := setting.party_of(queue)) is not None)
        success *= Expiry(held).within(setting.lifetime)
        warnings.append("expiry is predicted for negligible service times; the mean is not: simulate")
    warnings += _warnings(rows)
    means = [row.mean for row in rows]
    known = setting.lifetime is None and all(mean is not None for mean in means)
    return ChainPrediction(
        tuple(rows), sum(mean for mean in means if mean is not None) if known else None, success, tuple(warnings)
    )


def _warnings(rows: list[QueuePrediction]) -> list[str]:
    found = []
    bursts = [row for row in rows if row.model == OnOff.name and row.utilisation > SUMS_HOLD]
    if bursts:
        most = max(bursts, key=lambda row: row.utilisation)
        found.append(
            f"{most.queue.name} is at {most.utilisation:.0%} of its saturation and lets go of bursts: sums are too low "
            f"above {SUMS_HOLD:.0%}; believe the simulation"
        )
    found += [
        f"{row.queue.name} is at {row.utilisation:.0%} of its saturation: a small error of the rate is a large one of "
        "the mean"
        for row in rows
        if row.mean is not None and row.utilisation > HIGH_LOAD
    ]
    return found
