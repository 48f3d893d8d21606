"""A publisher's retained versions of one item: a window bounded by count, bytes and age.

The current version always stays, whatever the bounds. Versions that a receiver still waits for are kept by their
owner's word (`keep_from`). `MemoryVersions` holds everything in memory; `version_store.py` has the same on disk.
"""

import hashlib
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from itertools import count
from typing import Protocol

from identifiers.content import version_id
from identifiers.identifier import ItemId
from identifiers.naming import HashName
from psirp_stack.transport.config import VERSION_COST

CONTENT_HASH = HashName.SHA256
EPOCHS_PER_BOOT = 1 << 24


@dataclass(frozen=True, slots=True)
class Version:
    """One version of an item, with its place in its publisher's order."""

    epoch: int
    number: int
    version_id: bytes
    sha256: bytes
    published_ms: int
    attributes: bytes
    content: bytes
    authentication: bytes = b""
    """The packed authentication header; empty when the version is not signed."""

    @property
    def cost(self) -> int:
        return len(self.content) + len(self.attributes) + VERSION_COST


def content_ids(content: bytes) -> tuple[bytes, bytes]:
    """Version id and SHA-256 of content."""
    return bytes(version_id(content, CONTENT_HASH)), hashlib.sha256(content).digest()


@dataclass(frozen=True, slots=True)
class RetentionLimits:
    """How much of the past is kept for those who come late."""

    count: int = 1024
    bytes: int = 32 * 1024 * 1024
    age: float = 3600.0
    """Seconds."""

    def __post_init__(self) -> None:
        if self.count < 1 or self.bytes < 0 or self.age < 0:
            raise ValueError("retention: expected a count of at least 1, and bytes and age that are not negative")


class Versions(Protocol):
    """What a sender needs of retained versions."""

    @property
    def epoch(self) -> int: ...

    @property
    def oldest(self) -> int:
        """The lowest number that is retained; one above `newest` when there is none."""

    @property
    def newest(self) -> int:
        """The highest number that may be sent: stored for good. 0 before the first."""

    @property
    def last(self) -> Version | None:
        """The version added last, stored for good or not."""

    @property
    def next_number(self) -> int: ...

    def add(self, version: Version) -> "Future[None] | None":
        """Keep a version under `next_number`. The future says when it is on disk; None for at once."""

    def get(self, number: int) -> Version | None: ...

    def numbers_of(self, version_id: bytes) -> list[int]:
        """The numbers of the retained versions with this id, the latest first."""

    def published_ms(self, number: int) -> int | None:
        """When a retained version was published."""

    def costs(self) -> list[tuple[int, int]]:
        """Number and cost of every retained version, oldest first."""

    def trim(self, now_ms: int, keep_from: int) -> None:
        """Let go of what is beyond the bounds, but of nothing from `keep_from` on."""


VersionsFor = Callable[[ItemId], Versions]


class MemoryVersions:
    """Retained versions that end with the process."""

    def __init__(self, epoch: int, limits: RetentionLimits | None = None) -> None:
        self.epoch = epoch
        self._limits = limits or RetentionLimits()
        self._kept: deque[Version] = deque()
        self._bytes = 0

    @property
    def oldest(self) -> int:
        return self._kept[0].number if self._kept else 1

    @property
    def newest(self) -> int:
        return self._kept[-1].number if self._kept else 0

    @property
    def last(self) -> Version | None:
        return self._kept[-1] if self._kept else None

    @property
    def next_number(self) -> int:
        return self.newest + 1

    def add(self, version: Version) -> "Future[None] | None":
        if version.number != self.next_number:
            raise ValueError(f"the next version is {self.next_number}, not {version.number}")
        self._kept.append(version)
        self._bytes += version.cost
        return None

    def get(self, number: int) -> Version | None:
        place = number - self.oldest
        return self._kept[place] if 0 <= place < len(self._kept) else None

    def numbers_of(self, version_id: bytes) -> list[int]:
        return [kept.number for kept in reversed(self._kept) if kept.version_id == version_id]

    def published_ms(self, number: int) -> int | None:
        version = self.get(number)
        return None if version is None else version.published_ms

    def costs(self) -> list[tuple[int, int]]:
        return [(kept.number, kept.cost) for kept in self._kept]

    def trim(self, now_ms: int, keep_from: int) -> None:
        kept, limits = self._kept, self._limits
        oldest_ms = now_ms - limits.age * 1000
        while len(kept) > 1 and kept[0].number < keep_from:
            first = kept[0]
            if len(kept) <= limits.count and self._bytes <= limits.bytes and first.published_ms >= oldest_ms:
                break
            self._bytes -= first.cost
            kept.popleft()


def in_memory(boot: int, limits: RetentionLimits | None = None) -> VersionsFor:
    """Windows in memory for the items of a node in its `boot`-th life.

    Each gets an epoch above those of all earlier lives, and above that of an earlier window of the same item.
    """
    epochs = count(boot * EPOCHS_PER_BOOT)
    return lambda item: MemoryVersions(next(epochs), limits)
