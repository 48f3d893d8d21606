"""Numbers over time, bounded: a histogram for metrics, and the last two minutes second by second for small charts."""

from bisect import bisect_left
from collections import deque
from dataclasses import dataclass, field

BOUNDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)
"""Upper ends of the histogram's buckets, in seconds."""
SECONDS_KEPT = 120
SAMPLES_A_SECOND = 256
"""More samples of one second are counted, and not used for its quantiles."""


@dataclass(slots=True)
class Histogram:
    counts: list[int] = field(default_factory=lambda: [0] * (len(BOUNDS) + 1))
    total: float = 0.0

    def add(self, seconds: float) -> None:
        self.counts[bisect_left(BOUNDS, seconds)] += 1
        self.total += seconds

    @property
    def count(self) -> int:
        return sum(self.counts)


@dataclass(frozen=True, slots=True)
class Point:
    """One second: how many, and the median and 95th percentile of what was measured in it."""

    second: int
    count: int
    median: float | None
    high: float | None


class Latency:
    """A delay that is measured often."""

    def __init__(self) -> None:
        self.histogram = Histogram()
        self._points: deque[Point] = deque(maxlen=SECONDS_KEPT)
        self._second = 0
        self._count = 0
        self._samples: list[float] = []

    def add(self, seconds: float, now: float) -> None:
        seconds = max(seconds, 0.0)  # clocks of two machines differ
        self.histogram.add(seconds)
        if int(now) != self._second:
            self._roll(int(now))
        self._count += 1
        if len(self._samples) < SAMPLES_A_SECOND:
            self._samples.append(seconds)

    def points(self, now: float) -> list[Point]:
        """Finished seconds, oldest first; those without a sample are left out."""
        if int(now) != self._second:
            self._roll(int(now))
        return [point for point in self._points if point.second > now - SECONDS_KEPT]

    def _roll(self, second: int) -> None:
        if self._count:
            ordered = sorted(self._samples)
            middle, high = ordered[len(ordered) // 2], ordered[min(len(ordered) - 1, int(len(ordered) * 0.95))]
            self._points.append(Point(self._second, self._count, middle, high))
        self._second, self._count, self._samples = second, 0, []


class EventRate:
    """How often something happened, second by second."""

    def __init__(self) -> None:
        self.total = 0
        self._points: deque[Point] = deque(maxlen=SECONDS_KEPT)
        self._second = 0
        self._count = 0

    def add(self, now: float, count: int = 1) -> None:
        self.total += count
        if int(now) != self._second:
            self._roll(int(now))
        self._count += count

    def points(self, now: float) -> list[Point]:
        if int(now) != self._second:
            self._roll(int(now))
        return [point for point in self._points if point.second > now - SECONDS_KEPT]

    def _roll(self, second: int) -> None:
        if self._count:
            self._points.append(Point(self._second, self._count, None, None))
        self._second, self._count = second, 0
