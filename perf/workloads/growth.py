"""How much memory processes take while they are worked with, and how fast that grows."""

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Final

SETTLED: Final = 300.0
"""Seconds until caches are full; of a run that is shorter than twice that, its first half."""
SAMPLES: Final = 600
"""About so many of a run."""
MIB: Final = 1024 * 1024

Sample = tuple[float, int]
"""When, in seconds from the beginning, and how many bytes."""


class GrowthWatch:
    """`resident` says the bytes of each process, by whatever it is known by."""

    def __init__(self, resident: Callable[[], Mapping[int, int]]) -> None:
        self._resident = resident
        self.samples: dict[int, list[Sample]] = {}

    async def run(self, seconds: float) -> None:
        """Until it is cancelled; samples are as far apart as suits a run of so many seconds."""
        began = time.monotonic()
        while True:
            for process, size in self._resident().items():
                self.samples.setdefault(process, []).append((time.monotonic() - began, size))
            await asyncio.sleep(max(0.1, seconds / SAMPLES))

    def most(self, process: int) -> float:
        """MiB."""
        return max((size for _, size in self.samples.get(process, ())), default=0) / MIB

    def slope(self, process: int) -> float | None:
        """MiB a minute, once it has settled; None: too short to say."""
        samples = self.samples.get(process, [])
        if not samples:
            return None
        settled = min(SETTLED, samples[-1][0] / 2)
        found = slope([(at, size) for at, size in samples if at >= settled])
        return None if found is None else found * 60 / MIB


def slope(samples: Sequence[Sample]) -> float | None:
    """Of the line that lies closest to all of them, in the squares of what is left."""
    if len(samples) < 2:
        return None
    mean_at = sum(at for at, _ in samples) / len(samples)
    mean_size = sum(size for _, size in samples) / len(samples)
    spread = sum((at - mean_at) ** 2 for at, _ in samples)
    if not spread:
        return None
    return sum((at - mean_at) * (size - mean_size) for at, size in samples) / spread
