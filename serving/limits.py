"""Token buckets for many keys in bounded memory. No clock: the time comes in."""

from collections import OrderedDict
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Rate:
    """`per_second` on average, `burst` at once."""

    per_second: float
    burst: float


class Limiter:
    """One bucket per key. Keys that have been quiet longest are forgotten first, which only ever helps them."""

    def __init__(self, rate: Rate, max_keys: int) -> None:
        self._rate = rate
        self._max_keys = max_keys
        self._buckets: OrderedDict[str, tuple[float, float]] = OrderedDict()
        self.refused = 0

    def take(self, key: str, now: float, tokens: float = 1.0) -> float:
        """Take tokens: 0.0 when they were there, otherwise the seconds until they will be (and none are taken)."""
        level, at = self._buckets.pop(key, (self._rate.burst, now))
        level = min(self._rate.burst, level + max(0.0, now - at) * self._rate.per_second)
        # A request for more than the burst could never pass; it passes when the bucket is full.
        needed = min(tokens, self._rate.burst)
        wait = 0.0
        if level >= needed:
            level -= needed
        else:
            self.refused += 1
            wait = (needed - level) / self._rate.per_second
        self._buckets[key] = (level, now)
        if len(self._buckets) > self._max_keys:
            self._buckets.popitem(last=False)
        return wait

    def wait(self, key: str, now: float) -> float:
        """The seconds until a token will be there; 0.0 when one is. None is taken."""
        level, at = self._buckets.get(key, (self._rate.burst, now))
        level = min(self._rate.burst, level + max(0.0, now - at) * self._rate.per_second)
        return max(0.0, min(1.0, self._rate.burst) - level) / self._rate.per_second

    def __len__(self) -> int:
        return len(self._buckets)
