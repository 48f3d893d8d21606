"""Is the hub well? The store takes a write, the queues are below their bounds, the canary arrives.

A look costs a commit, so looks that come close together share one. What strangers may read here names no path.
"""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from storage import Database, DatabaseBusyError, Migration, StorageError, StorageFullError

MIGRATIONS = [
    Migration(
        "push_hub.health",
        1,
        ["CREATE TABLE health_probe (id INTEGER PRIMARY KEY CHECK (id = 1), at REAL NOT NULL)"],
        times=["health_probe.at"],
    )
]


@dataclass(frozen=True, slots=True)
class HealthConfig:
    """A write probes the store at most every `store_every` seconds, and must be done within `store_deadline`."""

    store_every: float = 1.0
    store_deadline: float = 5.0


@dataclass(frozen=True, slots=True)
class Check:
    name: str
    ok: bool
    text: str


@dataclass(frozen=True, slots=True)
class HealthReport:
    checks: tuple[Check, ...]

    @property
    def ok(self) -> bool:
        return all(check.ok for check in self.checks)


@dataclass(frozen=True, slots=True)
class QueueLevel:
    """How many wait in a queue, and from how many on it refuses more."""

    name: str
    waiting: int
    bound: int


class Health:
    def __init__(
        self,
        config: HealthConfig,
        database: Database,
        queues: Callable[[], Sequence[QueueLevel]],
        canary: Callable[[], Check],
        *,
        clock: Callable[[], float],
        monotonic: Callable[[], float],
    ) -> None:
        self._config = config
        self._database = database
        self._queues = queues
        self._canary = canary
        self._clock = clock
        self._monotonic = monotonic
        self._store: Check | None = None
        self._store_at = 0.0
        self._probe: asyncio.Task[Check] | None = None

    async def report(self) -> HealthReport:
        return HealthReport((await self._store_check(), self._queue_check(), self._canary()))

    def levels(self) -> Sequence[QueueLevel]:
        return self._queues()

    async def stop(self) -> None:
        if self._probe is not None:
            self._probe.cancel()
            await asyncio.gather(self._probe, return_exceptions=True)

    def _queue_check(self) -> Check:
        levels = self._queues()
        text = ", ".join(f"{level.waiting} of {level.bound} {level.name}" for level in levels)
        full = [level.name for level in levels if level.waiting >= level.bound]
        if full:
            return Check("queues", False, f"full: {', '.join(full)} ({text})")
        return Check("queues", True, text)

    async def _store_check(self) -> Check:
        now = self._monotonic()
        if self._store is not None and now - self._store_at < self._config.store_every:
            return self._store
        if self._probe is None or self._probe.done():
            self._probe = asyncio.create_task(self._write())
        self._store = await asyncio.shield(self._probe)
        self._store_at = now
        return self._store

    async def _write(self) -> Check:
        at = self._clock()
        try:
            written = self._database.write(
                lambda tx: tx.execute(
                    "INSERT INTO health_probe VALUES (1, ?) ON CONFLICT (id) DO UPDATE SET at = excluded.at", (at,)
                )
            )
            async with asyncio.timeout(self._config.store_deadline):
                await asyncio.wrap_future(written)
        except TimeoutError:
            return Check("store", False, f"a write was not on disk within {self._config.store_deadline:g} seconds")
        except StorageFullError:
            return Check("store", False, "no space left for the store")
        except DatabaseBusyError:
            return Check("store", False, "too many writes are waiting for the disk")
        except StorageError:
            return Check("store", False, "the store refused a write")
        return Check("store", True, "writable")
