"""The offset between clocks, from the fastest crossing each way (Cristian's and NTP's argument).

If the fastest crossing takes as long in one direction as in the other, half the difference of the two smallest
apparent delays is the offset. With crossings in one direction only, nothing tells delay from offset: the offset is
taken as 0 and the table says that it is only bounded. Several nodes are compared with a reference through whoever
they exchanged publications with.
"""

from collections import defaultdict, deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ApparentDelay:
    """The smallest apparent delay seen from one clock to another."""

    run: str
    clock_from: str
    clock_to: str
    least_ns: int
    count: int


@dataclass(frozen=True, slots=True)
class ClockOffset:
    """`offset_ns`: how much `clock` is ahead of `reference`; the truth lies within `offset_ns` +- `margin_ns`.

    `estimated` is False when only one direction was seen; then the offset is at most `least_ns` (at least, if that
    direction is from the clock to its reference).
    """

    run: str
    reference: str
    clock: str
    offset_ns: float
    margin_ns: float
    estimated: bool
    crossings: int


def estimate_offsets(crossings: Iterable[ApparentDelay]) -> list[ClockOffset]:
    by_run: dict[str, dict[tuple[str, str], ApparentDelay]] = defaultdict(dict)
    for crossing in crossings:
        by_run[crossing.run][crossing.clock_from, crossing.clock_to] = crossing
    return [offset for run in sorted(by_run) for offset in _of_run(run, by_run[run])]


def _of_run(run: str, seen: Mapping[tuple[str, str], ApparentDelay]) -> list[ClockOffset]:
    neighbours: dict[str, set[str]] = defaultdict(set)
    for one, other in seen:
        neighbours[one].add(other)
        neighbours[other].add(one)
    offsets: list[ClockOffset] = []
    placed: dict[str, tuple[float, float, bool]] = {}
    for reference in sorted(neighbours):
        if reference in placed:
            continue
        placed[reference] = (0.0, 0.0, True)
        waiting = deque([reference])
        while waiting:
            here = waiting.popleft()
            for there in sorted(neighbours[here]):
                if there in placed:
                    continue
                step, margin, known = _between(seen.get((here, there)), seen.get((there, here)))
                base, base_margin, base_known = placed[here]
                placed[there] = (base + step, base_margin + margin, known and base_known)
                waiting.append(there)
                count = sum(seen[pair].count for pair in ((here, there), (there, here)) if pair in seen)
                offsets.append(ClockOffset(run, reference, there, *placed[there], count))
    return offsets


def _between(out: ApparentDelay | None, back: ApparentDelay | None) -> tuple[float, float, bool]:
    """How far the far clock is ahead, how far off that may be at most, and whether both directions were seen."""
    if out is not None and back is not None:
        return (out.least_ns - back.least_ns) / 2, abs(out.least_ns + back.least_ns) / 2, True
    only = out or back
    return 0.0, float(abs(only.least_ns)) if only else 0.0, False
