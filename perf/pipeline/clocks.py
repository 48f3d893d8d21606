"""Clocks compared: offset, drift and steps between monotonic clocks, each with how far off it may be at most.

Whatever arrives at another clock arrives after it left. So every apparent delay is a bound of the offset, from above
in one direction and from below in the other, and the fastest of each second are the tight ones (Cristian's and NTP's
argument). Between two clocks a straight line is laid through the middle of these bounds: its slope is the drift. Where
no line that drifts credibly fits, a clock stepped: the line ends and another begins. The margin of a line is how far
any line that the bounds allow lies from it, so the truth is within it.

Monotonic clocks are compared, since nobody sets them: a wall clock that steps moves no latency. With exchanges in one
direction only nothing tells delay from offset: the wall clocks are believed, and the clock counts as not estimated.
"""

import heapq
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

import numpy as np
import numpy.typing as npt

FASTEST_DRIFT: Final = 500e-6
"""What Linux slews a clock by at most; good crystals drift by a twentieth of it."""
DRIFT_TAKES: Final = 5e9
"""Nanoseconds over which bounds must agree on a drift before one is assumed: over less, there is none."""
_HALVINGS: Final = 60
_LEVEL: Final = 1e-13
_FOREVER: Final = 1 << 62

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class ApparentDelay:
    """The fastest exchange between two clocks in one window of time: a difference of their monotonic times.

    `axis_ns` is when, by the clock whose name is the smaller one. `wall_ns` is the same difference of wall clocks.
    """

    run: str
    clock_from: str
    clock_to: str
    axis_ns: int
    least_ns: int
    wall_ns: int
    count: int


@dataclass(frozen=True, slots=True)
class ClockPiece:
    """From `begin_ns` to before `end_ns` of its own time a clock's `m` is `to_ns + (m - at_ns) * (1 + rate)` of the
    reference's; the truth is at most `margin_ns` away. No margin: only wall clocks say so."""

    begin_ns: int
    end_ns: int
    at_ns: int
    to_ns: int
    rate: float
    margin_ns: float | None

    def reference_ns(self, own_ns: int) -> int:
        return self.to_ns + (own_ns - self.at_ns) + round(self.rate * (own_ns - self.at_ns))


@dataclass(frozen=True, slots=True)
class ClockModel:
    """A clock against the reference of those that it can be compared with. What is in no piece is not known."""

    run: str
    reference: str
    clock: str
    pieces: tuple[ClockPiece, ...]
    exchanges: int

    @property
    def estimated(self) -> bool:
        return bool(self.pieces) and all(piece.margin_ns is not None for piece in self.pieces)


@dataclass(frozen=True, slots=True)
class _Line:
    """The offset of the second clock of a pair, from `begin` to `end` of the first one's time."""

    begin: int
    end: int
    at: int
    offset: int
    slope: float
    margin: float | None


@dataclass(slots=True)
class _Bounds:
    """What is known of one pair: how much the second clock is ahead, at most and at least."""

    above: list[tuple[int, int]] = field(default_factory=list)
    below: list[tuple[int, int]] = field(default_factory=list)
    walls: list[int] = field(default_factory=list)
    """How much it would be ahead if wall clocks were right."""
    count: int = 0


def model_clocks(delays: Iterable[ApparentDelay]) -> list[ClockModel]:
    """A model of every clock but one in each group of clocks that exchanged anything."""
    by_run: dict[str, dict[tuple[str, str], _Bounds]] = defaultdict(lambda: defaultdict(_Bounds))
    for delay in delays:
        first, second = sorted((delay.clock_from, delay.clock_to))
        bounds = by_run[delay.run][first, second]
        bounds.count += delay.count
        if delay.clock_from == first:
            bounds.above.append((delay.axis_ns, delay.least_ns))
            bounds.walls.append(delay.least_ns - delay.wall_ns)
        else:
            bounds.below.append((delay.axis_ns, -delay.least_ns))
            bounds.walls.append(delay.wall_ns - delay.least_ns)
    return [model for run in sorted(by_run) for model in _of_run(run, by_run[run])]


def _of_run(run: str, pairs: Mapping[tuple[str, str], _Bounds]) -> list[ClockModel]:
    """From each reference to whoever is best known by way of others: the smallest sum of margins."""
    lines = {pair: lines_of(bounds.above, bounds.below) or _by_walls(bounds) for pair, bounds in pairs.items()}
    neighbours: dict[str, set[str]] = defaultdict(set)
    for one, other in pairs:
        neighbours[one].add(other)
        neighbours[other].add(one)
    models: dict[str, ClockModel] = {}
    placed: set[str] = set()
    for reference in sorted(neighbours):
        if reference in placed:
            continue
        waiting: list[tuple[float, str, str]] = [(0.0, reference, "")]
        while waiting:
            cost, here, before = heapq.heappop(waiting)
            if here in placed:
                continue
            placed.add(here)
            if before:
                pair = (min(here, before), max(here, before))
                step = _pieces(lines[pair], own_is_first=here == pair[0])
                onward = models[before].pieces if before in models else None
                pieces = step if onward is None else _composed(step, onward)
                models[here] = ClockModel(run, reference, here, tuple(_disjoint(pieces)), pairs[pair].count)
            for there in neighbours[here] - placed:
                worst = max(_worst(line) for line in lines[min(here, there), max(here, there)])
                heapq.heappush(waiting, (cost + worst, there, here))
    return [models[clock] for clock in sorted(models)]


def _worst(line: _Line) -> float:
    """What wall clocks say is taken only where nothing better is."""
    return 1e18 if line.margin is None else line.margin


def lines_of(above: Sequence[tuple[int, int]], below: Sequence[tuple[int, int]]) -> list[_Line]:
    """The fewest lines that keep to all bounds, as long as each goes; empty when one side has none.

    Where bounds contradict each other within a moment, the clock stepped then, and no line covers that moment.
    """
    if not above or not below:
        return []
    base = above[0][1]
    start = min(above[0][0], below[0][0])
    points = sorted([(at, 0, offset) for at, offset in above] + [(at, 1, offset) for at, offset in below])
    at = np.array([point[0] - start for point in points], dtype=np.float64)
    is_below = np.array([point[1] for point in points], dtype=bool)
    offset = np.array([point[2] - base for point in points], dtype=np.float64)
    lines: list[_Line] = []
    first, total = 0, len(points)
    while first < total:
        last = _longest(at, is_below, offset, first)
        piece = slice(first, last)
        if is_below[piece].any() and not is_below[piece].all():
            slope, middle, margin = _through(at[piece], is_below[piece], offset[piece])
            zero = int(at[first])
            lines.append(
                _Line(
                    start + zero,
                    start + int(at[last - 1]),
                    start + zero,
                    base + round(middle + slope * zero),
                    slope,
                    margin,
                )
            )
        first = last
    return _spread(lines)


def _longest(at: Floats, is_below: npt.NDArray[np.bool_], offset: Floats, first: int) -> int:
    """The end of the longest run of bounds from `first` on that one line keeps to."""
    good, bad = first + 1, len(at) + 1
    width = 1
    while good + width < bad:
        if _fits(at, is_below, offset, first, good + width):
            good, width = good + width, 2 * width
        else:
            bad = good + width
            break
    while good + 1 < bad:
        middle = (good + bad) // 2
        if middle <= len(at) and _fits(at, is_below, offset, first, middle):
            good = middle
        else:
            bad = middle
    return good


def _fits(at: Floats, is_below: npt.NDArray[np.bool_], offset: Floats, first: int, last: int) -> bool:
    piece = slice(first, last)
    below = is_below[piece]
    if below.all() or not below.any():
        return True
    return _best_slope(at[piece], below, offset[piece], 0.0)[1] >= 0


def _room(slope: float, at: Floats, below: npt.NDArray[np.bool_], offset: Floats) -> float:
    """How far apart the bounds leave two lines of that slope; below 0 when no line fits."""
    level = offset - slope * at
    return float(level[~below].min() - level[below].max())


def _best_slope(at: Floats, below: npt.NDArray[np.bool_], offset: Floats, takes: float) -> tuple[float, float]:
    """The slope that leaves most room, and that room; less slope is preferred to room that `takes` says is little."""

    def liked(slope: float) -> float:  # concave
        return _room(slope, at, below, offset) - takes * abs(slope)

    low, high = -FASTEST_DRIFT, FASTEST_DRIFT
    for _ in range(_HALVINGS):
        third = (high - low) / 3
        if liked(low + third) < liked(high - third):
            low += third
        else:
            high -= third
    slope = (low + high) / 2
    if abs(slope) < _LEVEL:
        slope = 0.0
    return slope, _room(slope, at, below, offset)


def _through(at: Floats, below: npt.NDArray[np.bool_], offset: Floats) -> tuple[float, float, float]:
    """Slope, offset at time 0 and margin of the line in the middle."""
    slope, room = _best_slope(at, below, offset, DRIFT_TAKES)
    if room < 0:
        slope, room = _best_slope(at, below, offset, 0.0)
    level = offset - slope * at
    middle = float(level[below].max()) + room / 2
    extremes = [_last_slope(at, below, offset, slope, edge) for edge in (-FASTEST_DRIFT, FASTEST_DRIFT)]
    margin = 0.0
    for moment in (float(at[0]), float(at[-1]), float(at[0] + at[-1]) / 2):
        here = middle + slope * moment
        for sign in (1, -1):
            farthest = _farthest(at, below, offset, extremes, moment, sign)
            margin = max(margin, sign * (farthest - here))
    return slope, middle, margin


def _last_slope(at: Floats, below: npt.NDArray[np.bool_], offset: Floats, good: float, edge: float) -> float:
    """The slope nearest to `edge` for which there is a line."""
    if _room(edge, at, below, offset) >= 0:
        return edge
    bad = edge
    for _ in range(_HALVINGS):
        middle = (good + bad) / 2
        if _room(middle, at, below, offset) >= 0:
            good = middle
        else:
            bad = middle
    return good


def _farthest(
    at: Floats, below: npt.NDArray[np.bool_], offset: Floats, slopes: Sequence[float], moment: float, sign: int
) -> float:
    """The highest (or lowest) value at a moment of any line that keeps to the bounds."""
    low, high = min(slopes), max(slopes)
    side = ~below if sign > 0 else below

    def reached(slope: float) -> float:
        level = sign * (offset[side] - slope * (at[side] - moment))
        return float(level.min())

    for _ in range(_HALVINGS):
        third = (high - low) / 3
        if reached(low + third) < reached(high - third):
            low += third
        else:
            high -= third
    return sign * reached((low + high) / 2)


def _spread(lines: list[_Line]) -> list[_Line]:
    """The first line holds from ever, the last for ever; between two of them nothing is known of the step's moment."""
    made = []
    for place, line in enumerate(lines):
        begin = -_FOREVER if place == 0 else line.begin
        end = _FOREVER if place == len(lines) - 1 else line.end + 1
        made.append(_Line(begin, end, line.at, line.offset, line.slope, line.margin))
    return made


def _by_walls(bounds: _Bounds) -> list[_Line]:
    """Wall clocks are believed, as far as nothing arrives before it left."""
    offset = bounds.walls[0]
    at = (bounds.above or bounds.below)[0][0]
    for _, most in bounds.above:
        offset = min(offset, most)
    if not bounds.above:
        for _, least in bounds.below:
            offset = max(offset, least)
    return [_Line(-_FOREVER, _FOREVER, at, offset, 0.0, None)]


def _pieces(lines: Sequence[_Line], *, own_is_first: bool) -> list[ClockPiece]:
    """Lines as a clock's own time in the other's."""
    made = []
    for line in lines:
        if own_is_first:
            made.append(
                ClockPiece(line.begin, line.end, line.at, line.at + line.offset, line.slope, line.margin)
            )  # fmt: skip
            continue
        # m = t + offset + slope * (t - at), so t = at + (m - at - offset) / (1 + slope)
        rate = 1 / (1 + line.slope) - 1
        own = line.at + line.offset
        ends = [
            edge if abs(edge) == _FOREVER else edge + line.offset + round(line.slope * (edge - line.at))
            for edge in (line.begin, line.end)
        ]
        made.append(ClockPiece(ends[0], ends[1], own, line.at, rate, line.margin))
    return made


def _composed(step: Sequence[ClockPiece], onward: Sequence[ClockPiece]) -> list[ClockPiece]:
    """A clock's time in the reference's, by way of a clock between them."""
    made = []
    for piece in step:
        for other in onward:
            begin = max(piece.begin_ns, _own_of(piece, other.begin_ns))
            end = min(piece.end_ns, _own_of(piece, other.end_ns))
            if begin < end:
                between = piece.to_ns
                margin = (
                    None
                    if piece.margin_ns is None or other.margin_ns is None
                    else piece.margin_ns + other.margin_ns
                )  # fmt: skip
                made.append(
                    ClockPiece(
                        begin, end, piece.at_ns, other.reference_ns(between),
                        (1 + piece.rate) * (1 + other.rate) - 1, margin,
                    )
                )  # fmt: skip
    return made


def _own_of(piece: ClockPiece, other_ns: int) -> int:
    """When a clock's own time is that of the clock it is a step away from."""
    if abs(other_ns) == _FOREVER:
        return other_ns
    return piece.at_ns + round((other_ns - piece.to_ns) / (1 + piece.rate))


def _disjoint(pieces: Sequence[ClockPiece]) -> list[ClockPiece]:
    """A clock that stepped back showed some times twice: which of the two was meant is not known."""
    made: list[ClockPiece] = []
    for piece in sorted(pieces, key=lambda piece: (piece.begin_ns, piece.end_ns)):
        begin = piece.begin_ns
        if made and begin < made[-1].end_ns:
            begin = min(made[-1].end_ns, piece.end_ns)
            made[-1] = replace(made[-1], end_ns=piece.begin_ns)
        made.append(replace(piece, begin_ns=begin))
    return [piece for piece in made if piece.begin_ns < piece.end_ns]
