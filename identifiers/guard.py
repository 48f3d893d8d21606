"""The registry's Bloom guard: says «certainly unknown» without touching the disk, or «perhaps».

Deletion: a Bloom filter cannot forget, so a removed id stays «perhaps» and costs one useless look at the disk, never a
wrong answer. The registry rebuilds the guard from the table once a third of what was added has been removed. A counting
filter would forget at once, but takes four or more bits for each of ours, all the time, to save a rare look-up.

While a guard is being filled it answers «perhaps» to everything, so opening a large registry does not wait for it.
"""

from collections.abc import Iterable
from typing import Final

from pybloom_live import ScalableBloomFilter

FALSE_POSITIVE_RATE: Final = 1e-4
SMALLEST_CAPACITY: Final = 50_000


class Guard:
    """Fingerprints that were added since the guard was made, and «perhaps» for all until `complete`."""

    __slots__ = ("_filter", "added", "complete")

    def __init__(self, expected: int) -> None:
        self._filter = ScalableBloomFilter(
            initial_capacity=max(SMALLEST_CAPACITY, 2 * expected),
            error_rate=FALSE_POSITIVE_RATE,
            mode=ScalableBloomFilter.LARGE_SET_GROWTH,
        )
        self.added = 0
        self.complete = False

    def add(self, fingerprints: Iterable[int]) -> None:
        for fingerprint in fingerprints:
            self._filter.add(fingerprint)
            self.added += 1

    @property
    def size_bytes(self) -> int:
        return sum(int(part.num_bits) // 8 for part in self._filter.filters)

    def may_know(self, fingerprint: int) -> bool:
        return not self.complete or fingerprint in self._filter
