"""Connected and disconnected: alone, all parties at once, and how likely a message passes within its lifetime."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from perf.models.assumptions import Assumption, ModelError, check_not_negative, check_positive


@dataclass(frozen=True, slots=True)
class Connectivity:
    """Mean connected and disconnected periods, in seconds."""

    on: float
    off: float

    def __post_init__(self) -> None:
        check_positive(on=self.on)
        check_not_negative(off=self.off)

    @property
    def share(self) -> float:
        """Of the time that it is connected."""
        return self.on / (self.on + self.off)


ALWAYS = Connectivity(1.0, 0.0)


def overall(parties: Sequence[Connectivity]) -> Connectivity:
    """A session is up while sender, receiver and link all are. Connected periods are exactly exponential, the others
    are not: their mean is right, and `OnOff` wants their measured second moment."""
    if not parties:
        return ALWAYS
    share = math.prod(party.share for party in parties)
    switching = [party for party in parties if party.off > 0]
    if not switching:
        return parties[0]
    on = 1 / sum(1 / party.on for party in switching)
    return Connectivity(on, on * (1 - share) / share)


OVERALL_ASSUMES = (Assumption.EXPONENTIAL_ON, Assumption.EXPONENTIAL_OFF, Assumption.INDEPENDENT_PARTIES)


@dataclass(frozen=True, slots=True)
class Expiry:
    """Messages that wait for reliable, independent ON/OFF hops one after the other; service takes no time.

    A hop is passed at once when it is connected, otherwise after an exponential rest of its disconnection. So a message
    walks through the hops that hold it up, and what is asked is when it has come through the last.
    """

    assumptions: ClassVar[tuple[Assumption, ...]] = (
        Assumption.NO_SERVICE_TIME,
        Assumption.EXPONENTIAL_OFF,
        Assumption.INDEPENDENT_PARTIES,
    )
    hops: tuple[Connectivity, ...]

    def within(self, seconds: float) -> float:
        """How likely a message is through within so many seconds."""
        if seconds < 0:
            return 0.0
        held = [(1 - hop.share, 1 / hop.off) for hop in self.hops if hop.off > 0]
        if not held:
            return 1.0
        return _absorbed(held, seconds)

    def lifetime_for(self, share: float) -> float:
        """The smallest lifetime with which this share of messages is delivered."""
        if not 0 <= share < 1:
            raise ModelError(f"the share to deliver is {share:g}; expected at least 0 and below 1")
        if self.within(0.0) >= share:
            return 0.0
        high = max(hop.off for hop in self.hops)
        while self.within(high) < share:
            high *= 2
        low = 0.0
        while high - low > 1e-9 * high:
            middle = (low + high) / 2
            if self.within(middle) < share:
                low = middle
            else:
                high = middle
        return high

    def mean(self) -> float:
        """Seconds until a message is through that never expires."""
        return sum((1 - hop.share) * hop.off for hop in self.hops)

    def mean_of_delivered(self, lifetime: float, steps: int = 400) -> float:
        """Seconds until a message is through, of those that are within their lifetime. By Simpson's rule."""
        last = self.within(lifetime)
        if last <= 0 or lifetime <= 0:
            return 0.0
        width = lifetime / steps
        beyond = [1 - self.within(step * width) / last for step in range(steps + 1)]
        return width / 3 * (beyond[0] + 4 * sum(beyond[1::2]) + 2 * sum(beyond[2:-1:2]) + beyond[-1])


def _absorbed(held: Sequence[tuple[float, float]], seconds: float) -> float:
    """The share that has passed stages, each met with a probability and left at a rate. By uniformisation, which is
    as good for equal rates as for different ones."""
    fastest = max(rate for _, rate in held)
    # at[i]: how likely a message is held at stage i now; what is in none of them is through.
    at, come = [], 1.0
    for chance, _ in held:
        at.append(come * chance)
        come *= 1 - chance
    jumps = fastest * seconds
    term = math.exp(-jumps) if jumps < 700 else 0.0
    if term == 0.0:  # so many jumps that the terms underflow: split the time
        return _absorbed_in_steps(held, seconds, math.ceil(jumps / 500), at)
    return 1 - sum(_after(held, at, fastest, jumps))


def _absorbed_in_steps(held: Sequence[tuple[float, float]], seconds: float, steps: int, at: Sequence[float]) -> float:
    fastest = max(rate for _, rate in held)
    for _ in range(min(steps, 10_000)):
        at = _after(held, at, fastest, fastest * seconds / steps)
    return 1 - sum(at)


def _after(held: Sequence[tuple[float, float]], at: Sequence[float], fastest: float, jumps: float) -> list[float]:
    term = math.exp(-jumps)
    now = list(at)
    total = [term * share for share in now]
    for number in range(1, math.ceil(jumps + 12 * math.sqrt(jumps + 1) + 30)):
        after = [0.0] * len(held)
        for stage, (_, rate) in enumerate(held):
            moves = now[stage] * rate / fastest
            after[stage] += now[stage] - moves
            for later in range(stage + 1, len(held)):
                chance = held[later][0]
                after[later] += moves * chance
                moves *= 1 - chance
        now = after
        term *= jumps / number
        total = [before + term * share for before, share in zip(total, now, strict=True)]
    return total
