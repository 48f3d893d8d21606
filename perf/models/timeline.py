"""When somebody is connected: drawn, measured or put together, and never at its end, because it draws on.

The trick of the simulator is here. A server that is interrupted and resumes serves without interruption on a clock
that stands still while it is disconnected; so times are taken to that clock, queues are solved, and times taken back.
"""

from collections.abc import Callable, Sequence
from typing import Final

import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray

from perf.models.assumptions import ModelError
from perf.models.distributions import Distribution, Times

_DRAWN_AT_ONCE: Final = 4096
_MOST_PERIODS: Final = 5_000_000


class Timeline:
    """`begins[i]` to `ends[i]` are the connected periods, in order."""

    def __init__(self, more: Callable[[float], tuple[Times, Times]]) -> None:
        """`more(until)` gives the next periods, which reach beyond `until`."""
        self._more = more
        self.begins: Times = np.empty(0)
        self.ends: Times = np.empty(0)
        self.passed: Times = np.empty(0)
        """Connected time before each period."""

    def reach(self, until: float) -> None:
        """Know all periods up to a time."""
        while not len(self.ends) or self.ends[-1] <= until:
            begins, ends = self._more(until)
            if len(self.ends) + len(ends) > _MOST_PERIODS:
                raise ModelError(f"more than {_MOST_PERIODS:,} connected periods until {until:g} s: nothing is served")
            before = self.passed[-1] + self.ends[-1] - self.begins[-1] if len(self.ends) else 0.0
            lengths = ends - begins
            self.passed = np.concatenate([self.passed, before + np.cumsum(lengths) - lengths])
            self.begins = np.concatenate([self.begins, begins])
            self.ends = np.concatenate([self.ends, ends])

    def reach_clock(self, connected: float) -> None:
        """Know all periods up to a reading of the connected clock."""
        while not len(self.ends) or self.passed[-1] + self.ends[-1] - self.begins[-1] <= connected:
            last = float(self.ends[-1]) if len(self.ends) else 0.0
            self.reach(last + max(1.0, last))

    def clock(self, times: Times) -> Times:
        """How long it was connected before each of these times."""
        self.reach(float(times.max(initial=0.0)))
        place = np.searchsorted(self.begins, times, side="right") - 1
        inside = np.minimum(times, self.ends[place]) - self.begins[place]
        return np.where(place < 0, 0.0, self.passed[place] + inside)

    def wall(self, clock: Times) -> Times:
        """When the connected clock shows this; at the end of a period, not at the beginning of the next."""
        self.reach_clock(float(clock.max(initial=0.0)))
        place = np.maximum(np.searchsorted(self.passed, clock, side="left") - 1, 0)
        return self.begins[place] + (clock - self.passed[place])

    def resumed(self, times: Times) -> Times:
        """Each of these times if it is connected then, otherwise when it next is."""
        self.reach(float(times.max(initial=0.0)))
        place = np.searchsorted(self.ends, times, side="right")
        return np.maximum(times, self.begins[place])

    def connected(self, times: Times) -> NDArray[np.bool_]:
        at: NDArray[np.bool_] = self.resumed(times) == times
        return at


def drawn(on: Distribution, off: Distribution, random: Generator) -> Timeline:
    """Alternating periods; it begins connected or not as likely as it is on average."""
    if on.mean <= 0:
        raise ModelError("it is never connected: expected connected periods above 0 s")
    if off.mean == 0:
        return always()
    at = 0.0 if random.random() < on.mean / (on.mean + off.mean) else float(off.draw(random, 1)[0])

    def more(_until: float) -> tuple[Times, Times]:
        nonlocal at
        ups, downs = on.draw(random, _DRAWN_AT_ONCE), off.draw(random, _DRAWN_AT_ONCE)
        switches = at + np.cumsum(np.stack([ups, downs], 1).ravel())
        begins = np.concatenate([[at], switches[1:-1:2]])
        at = float(switches[-1])
        return begins, switches[::2]

    return Timeline(more)


def always() -> Timeline:
    """One period without an end that a finite calculation could reach."""
    end = 0.0

    def more(until: float) -> tuple[Times, Times]:
        nonlocal end
        begin, end = end, max(2 * until, 2 * end, 1e9)
        return np.array([begin]), np.array([end])

    return Timeline(more)


def measured(periods: Sequence[tuple[bool, float]]) -> Timeline:
    """(connected, seconds) as a trace has them, over and over again."""
    length = sum(seconds for _, seconds in periods)
    ups = [seconds for connected, seconds in periods if connected and seconds > 0]
    if not ups or any(seconds < 0 for _, seconds in periods):
        raise ModelError("a trace of connectivity needs periods of at least 0 s, one of them connected")
    edges = np.cumsum([0.0, *(seconds for _, seconds in periods)])
    chosen = [number for number, (connected, seconds) in enumerate(periods) if connected and seconds > 0]
    begins, ends = edges[chosen], edges[[number + 1 for number in chosen]]
    laps = 0

    def more(_until: float) -> tuple[Times, Times]:
        nonlocal laps
        laps += 1
        return begins + (laps - 1) * length, ends + (laps - 1) * length

    return Timeline(more)


def all_at_once(parties: Sequence[Timeline]) -> Timeline:
    """Connected while every one of them is."""
    known = 0.0

    def more(until: float) -> tuple[Times, Times]:
        nonlocal known
        horizon = max(until, known) * 2 + 1000.0
        for _ in range(60):
            begins, ends = _common(parties, known, horizon)
            if len(ends) and ends[-1] > until:
                known = horizon  # a period that goes on beyond it is given in two pieces
                return begins, ends
            horizon *= 2
        raise ModelError("they are never connected all at once")

    return Timeline(more)


def _common(parties: Sequence[Timeline], start: float, end: float) -> tuple[Times, Times]:
    edges = [np.array([start, end])]
    for party in parties:
        party.reach(end)
        edges += [party.begins, party.ends]
    cuts = np.unique(np.concatenate(edges))
    cuts = cuts[(cuts >= start) & (cuts <= end)]
    middles = (cuts[1:] + cuts[:-1]) / 2
    up = np.ones(len(middles), bool)
    for party in parties:
        up &= party.connected(middles)
    # Neighbouring pieces are one period.
    first = up & ~np.concatenate([[False], up[:-1]])
    last = up & ~np.concatenate([up[1:], [False]])
    return cuts[:-1][first], cuts[1:][last]
