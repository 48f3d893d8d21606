"""Versions that a node keeps because it has memory to spare: whole, checked against their ids, bounded in bytes.

What is kept is the strategy's choice (`CacheStrategy`); when there is no room, what nobody asked for longest goes.
"""

import random
from collections import OrderedDict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from importlib import import_module
from typing import NamedTuple, Protocol, cast

from psirp_stack.transport.versions import Version, content_ids

LARGEST_SHARE = 4
"""A version that would take more than this part of the memory is not kept."""
DEFAULT_SHARE = 0.3


class VersionKey(NamedTuple):
    """A version's place: its item (Sid and Rid), and where it stands in its publisher's order."""

    item: bytes
    publisher: str
    epoch: int
    number: int


class CacheStrategy(Protocol):
    """Which of the versions that pass by a node keeps. A plug-in is a function that makes one (`strategy_named`)."""

    def admits(self, key: VersionKey, size: int, rng: random.Random) -> bool: ...


class Everywhere:
    """Each node keeps whatever passes by it: leave a copy everywhere."""

    def admits(self, key: VersionKey, size: int, rng: random.Random) -> bool:
        return True


@dataclass(frozen=True, slots=True)
class Sometimes:
    """Each node keeps a share of what passes by it, drawn by chance, so that neighbours keep different things."""

    share: float = DEFAULT_SHARE

    def admits(self, key: VersionKey, size: int, rng: random.Random) -> bool:
        return rng.random() < self.share


class StrategyError(ValueError):
    """No strategy has this name."""


def strategy_named(name: str) -> CacheStrategy:
    """`everywhere`, `sometimes`, `sometimes 0.1`, or `module:function` for one of your own."""
    word, _, rest = name.partition(" ")
    if name == "everywhere":
        return Everywhere()
    if word == "sometimes":
        try:
            share = float(rest) if rest else DEFAULT_SHARE
        except ValueError:
            share = -1.0
        if not 0 < share <= 1:
            raise StrategyError(f"{name!r}: expected a share above 0 and up to 1, as in 'sometimes 0.1'")
        return Sometimes(share)
    module, colon, function = name.partition(":")
    if not colon:
        raise StrategyError(f"{name!r}: expected 'everywhere', 'sometimes', 'sometimes SHARE' or 'module:function'")
    try:
        return cast("Callable[[], CacheStrategy]", getattr(import_module(module), function))()
    except (ImportError, AttributeError) as error:
        raise StrategyError(f"{name!r}: {error}") from None


@dataclass(slots=True)
class CacheCounters:
    """What a cache has done so far."""

    kept: int = 0
    evicted: int = 0
    refused: int = 0
    """Versions whose content was not what their id says."""
    hits: int = 0
    """Requests that were answered here."""
    hit_bytes: int = 0
    misses: int = 0
    """Requests that passed by and had to go on."""


@dataclass(slots=True)
class _Sequence:
    """What is kept of one publisher's order."""

    numbers: set[int] = field(default_factory=set)


class VersionCache:
    """Bounded by bytes. With room for none it keeps nothing, and costs nothing."""

    def __init__(
        self, most_bytes: int, strategy: CacheStrategy | None = None, rng: random.Random | None = None
    ) -> None:
        self.most_bytes = most_bytes
        self.used = 0
        self.counters = CacheCounters()
        self._strategy = strategy if strategy is not None else Everywhere()
        self._rng = rng if rng is not None else random.Random(0)  # noqa: S311  (a choice, no secret)
        self._versions: OrderedDict[VersionKey, Version] = OrderedDict()
        self._sequences: dict[bytes, dict[tuple[str, int], _Sequence]] = {}

    def __len__(self) -> int:
        return len(self._versions)

    def __contains__(self, key: VersionKey) -> bool:
        return key in self._versions

    def wants(self, key: VersionKey, size: int) -> bool:
        """Whether a version that passes by is worth collecting."""
        if size * LARGEST_SHARE > self.most_bytes or key in self._versions:
            return False
        return self._strategy.admits(key, size, self._rng)

    def add(self, key: VersionKey, version: Version) -> bool:
        """Keep a version. Its content must be what its id says: nobody is served anything else."""
        if version.cost * LARGEST_SHARE > self.most_bytes or key in self._versions:
            return False
        if content_ids(version.content) != (version.version_id, version.sha256):
            self.counters.refused += 1
            return False
        self.counters.kept += 1
        self.used += version.cost
        self._versions[key] = version
        of_item = self._sequences.setdefault(key.item, {})
        of_item.setdefault((key.publisher, key.epoch), _Sequence()).numbers.add(key.number)
        while self.used > self.most_bytes:
            self._evict()
        return True

    def get(self, key: VersionKey) -> Version | None:
        version = self._versions.get(key)
        if version is not None:
            self._versions.move_to_end(key)
        return version

    def newest(self, item: bytes) -> tuple[str, int, int] | None:
        """Publisher, epoch and number of the version of an item that was published last, of those here."""
        found = (
            (version.published_ms, key) for key in self._keys(item) if (version := self._versions.get(key)) is not None
        )
        latest = max(found, default=None)
        return None if latest is None else latest[1][1:]

    def numbers(self, item: bytes, publisher: str, epoch: int) -> set[int]:
        known = self._sequences.get(item, {}).get((publisher, epoch))
        return set() if known is None else known.numbers

    def clear(self) -> None:
        self._versions.clear()
        self._sequences.clear()
        self.used = 0

    def _keys(self, item: bytes) -> Iterator[VersionKey]:
        for (publisher, epoch), sequence in self._sequences.get(item, {}).items():
            yield VersionKey(item, publisher, epoch, max(sequence.numbers))

    def _evict(self) -> None:
        key, version = self._versions.popitem(last=False)
        self.used -= version.cost
        self.counters.evicted += 1
        of_item = self._sequences[key.item]
        sequence = of_item[key.publisher, key.epoch]
        sequence.numbers.discard(key.number)
        if not sequence.numbers:
            del of_item[key.publisher, key.epoch]
        if not of_item:
            del self._sequences[key.item]
