"""Numbers in the order of what they compare with: which of many limits a value is above, as a bitmap. Sans-I/O.

Limits stand in blocks, each with the bitmap of its numbers; all that stands before a block is a bitmap that is kept
until something before it changes. A question costs one search, one kept bitmap, and at most a block of single numbers.
"""

from bisect import bisect_left, bisect_right, insort
from typing import Final

from pyroaring import BitMap

BLOCK: Final = 64
"""A block is cut in two when it has twice as many."""

Limit = float | str


class SortedLimits:
    """All of one kind: numbers, or texts."""

    __slots__ = ("_before", "_blocks", "_firsts", "_members")

    def __init__(self) -> None:
        self._blocks: list[list[tuple[Limit, int]]] = []
        self._firsts: list[tuple[Limit, int]] = []
        self._members: list[BitMap] = []
        self._before: list[BitMap | None] = []
        """For each block what stands before it, as far as that is known."""

    def __len__(self) -> int:
        return sum(map(len, self._blocks))

    def add(self, limit: Limit, number: int) -> None:
        entry = (limit, number)
        if not self._blocks:
            self._blocks, self._firsts, self._members, self._before = (
                [[entry]],
                [entry],
                [BitMap((number,))],
                [BitMap()],
            )
            return
        at = max(0, bisect_right(self._firsts, entry) - 1)
        block = self._blocks[at]
        insort(block, entry)
        self._members[at].add(number)
        if len(block) >= 2 * BLOCK:
            later = block[BLOCK:]
            del block[BLOCK:]
            self._blocks.insert(at + 1, later)
            self._members[at : at + 1] = [BitMap([one for _, one in block]), BitMap([one for _, one in later])]
            self._firsts.insert(at + 1, later[0])
            self._before.insert(at + 1, None)
        self._firsts[at] = block[0]
        self._changed(at)

    def remove(self, limit: Limit, number: int) -> None:
        """Raises `KeyError` for what is not there."""
        entry = (limit, number)
        at = bisect_right(self._firsts, entry) - 1
        block = self._blocks[at] if at >= 0 else []
        place = bisect_left(block, entry)
        if place == len(block) or block[place] != entry:
            raise KeyError(entry)
        del block[place]
        if block:
            self._members[at].discard(number)
            self._firsts[at] = block[0]
        else:
            del self._blocks[at], self._members[at], self._firsts[at], self._before[at]
        self._changed(at)

    def below(self, value: Limit, *, equal: bool) -> BitMap:
        """Numbers whose limit is below a value, or equal to it."""
        end = (value, 1 << 62) if equal else (value, -1)
        at = bisect_left(self._firsts, end) - 1
        if at < 0:
            return BitMap()
        found = self._until(at).copy()
        block = self._blocks[at]
        found.update(number for _, number in block[: bisect_left(block, end)])
        return found

    def above(self, value: Limit, *, equal: bool) -> BitMap:
        """Numbers whose limit is above a value, or equal to it."""
        if not self._blocks:
            return BitMap()
        last = len(self._blocks) - 1
        everything = self._until(last) | self._members[last]
        return everything - self.below(value, equal=not equal)

    def _until(self, at: int) -> BitMap:
        """What stands before a block."""
        known = self._before[at]
        if known is None:
            begin = next(place for place in range(at, -1, -1) if place == 0 or self._before[place] is not None)
            start = self._before[begin]
            known = BitMap.union(BitMap() if start is None else start, *self._members[begin:at])
            self._before[at] = known
        return known

    def _changed(self, at: int) -> None:
        """Blocks behind one know no longer what stands before them."""
        self._before[at + 1 :] = [None] * (len(self._before) - at - 1)
        if self._before:
            self._before[0] = BitMap()
