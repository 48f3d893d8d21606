"""Retained versions on disk: epochs and numbers go on after a restart, and a version is sent only when it is stored.

Contents are read back when somebody asks for them; only what is not stored yet, and the current version, is in memory.
"""

import asyncio
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from functools import partial

from identifiers.identifier import ItemId
from psirp_stack.transport.config import VERSION_COST
from psirp_stack.transport.versions import RetentionLimits, Version, VersionsFor
from storage import Database, Migration, StorageError, Transaction

TRANSPORT_TABLES = [
    Migration(
        "transport",
        1,
        [
            """
            CREATE TABLE transport_item (
                item   BLOB PRIMARY KEY,
                epoch  INTEGER NOT NULL,
                newest INTEGER NOT NULL
            ) WITHOUT ROWID
            """,
            """
            CREATE TABLE transport_version (
                item           BLOB NOT NULL,
                number         INTEGER NOT NULL,
                version_id     BLOB NOT NULL,
                sha256         BLOB NOT NULL,
                published_ms   INTEGER NOT NULL,
                cost           INTEGER NOT NULL,
                attributes     BLOB NOT NULL,
                content        BLOB NOT NULL,
                authentication BLOB NOT NULL,
                PRIMARY KEY (item, number)
            )
            """,
        ],
    ),
    Migration(
        "transport",
        2,
        [
            # What a signature covers has changed: those that are there count nowhere any more.
            """
            DELETE FROM transport_version WHERE item IN
                (SELECT item FROM transport_version WHERE length(authentication) > 0)
            """,
        ],
    ),
]
"""To be given to `Database.open`."""

SHORT_CONTENT = 64 * 1024
"""Bytes that are written on the event loop."""
_COLUMNS = "number, version_id, sha256, published_ms, attributes, content, authentication"


class OutOfOrderError(StorageError):
    """An earlier version of the item could not be stored, so this one was not either."""


class StoredVersions:
    """The retained versions of one item in a database."""

    def __init__(self, database: Database, item: ItemId, first_epoch: int, limits: RetentionLimits | None) -> None:
        self._database = database
        self._key = bytes(item)
        self._limits = limits or RetentionLimits()
        known = database.read("SELECT epoch, newest FROM transport_item WHERE item = ?", (self._key,))
        self.epoch: int = known[0][0] if known else first_epoch
        self._stored: int = known[0][1] if known else 0
        rows = database.read(
            "SELECT number, cost, published_ms, version_id FROM transport_version WHERE item = ? ORDER BY number",
            (self._key,),
        )
        self._kept: deque[tuple[int, int, int, bytes]] = deque(rows)
        self._bytes = sum(cost for _, cost, _, _ in rows)
        self._pending: deque[tuple[Version, Future[None]]] = deque()
        self._current: Version | None = self._load(self._stored)

    @property
    def oldest(self) -> int:
        self._settle()
        return self._kept[0][0] if self._kept else self._stored + 1

    @property
    def newest(self) -> int:
        self._settle()
        return self._stored

    @property
    def last(self) -> Version | None:
        self._settle()
        return self._pending[-1][0] if self._pending else self._current

    @property
    def next_number(self) -> int:
        self._settle()
        return self._stored + len(self._pending) + 1

    def add(self, version: Version) -> "Future[None] | None":
        if version.number != self.next_number:
            raise ValueError(f"the next version is {self.next_number}, not {version.number}")
        stored = _promised(self._database, partial(_insert, self._key, version), len(version.content))
        self._pending.append((version, stored))
        return stored

    def get(self, number: int) -> Version | None:
        self._settle()
        if self._current is not None and self._current.number == number:
            return self._current
        return self._load(number) if self.oldest <= number <= self._stored else None

    def numbers_of(self, version_id: bytes) -> list[int]:
        self._settle()
        return [number for number, _, _, kept_id in reversed(self._kept) if kept_id == version_id]

    def published_ms(self, number: int) -> int | None:
        self._settle()
        place = number - self._kept[0][0] if self._kept else -1
        return self._kept[place][2] if 0 <= place < len(self._kept) else None

    def costs(self) -> list[tuple[int, int]]:
        self._settle()
        return [(number, cost) for number, cost, _, _ in self._kept]

    def trim(self, now_ms: int, keep_from: int) -> None:
        self._settle()
        kept, limits = self._kept, self._limits
        oldest_ms = now_ms - limits.age * 1000
        before = self.oldest
        while len(kept) > 1 and kept[0][0] < keep_from:
            _, cost, published_ms, _ = kept[0]
            if len(kept) <= limits.count and self._bytes <= limits.bytes and published_ms >= oldest_ms:
                break
            self._bytes -= cost
            kept.popleft()
        if self.oldest > before:
            # Nobody waits for this: what a crash leaves over is deleted the next time.
            self._database.write(partial(_delete_before, self._key, self.oldest))

    def _settle(self) -> None:
        """Take in what became of the writes that were under way."""
        pending = self._pending
        while pending and pending[0][1].done():
            version, stored = pending[0]
            if stored.cancelled() or stored.exception() is not None:
                # Those after it fail as well, since numbers have no holes; the numbers are given out anew.
                pending.clear()
                return
            pending.popleft()
            self._stored = version.number
            self._current = version
            self._kept.append((version.number, version.cost, version.published_ms, version.version_id))
            self._bytes += version.cost

    def _load(self, number: int) -> Version | None:
        rows = self._database.read(
            f"SELECT {_COLUMNS} FROM transport_version WHERE item = ? AND number = ?",  # noqa: S608 - a constant
            (self._key, number),
        )
        if not rows:
            return None
        _, version_id, sha256, published_ms, attributes, content, authentication = rows[0]
        return Version(self.epoch, number, version_id, sha256, published_ms, attributes, content, authentication)


def _insert(key: bytes, version: Version, tx: Transaction) -> None:
    known = tx.execute("SELECT newest FROM transport_item WHERE item = ?", (key,))
    newest = known[0][0] if known else 0
    if version.number != newest + 1:
        raise OutOfOrderError(f"version {version.number} cannot be stored before version {newest + 1}")
    tx.execute(
        "INSERT INTO transport_item VALUES (?, ?, ?) ON CONFLICT (item) DO UPDATE SET newest = excluded.newest",
        (key, version.epoch, version.number),
    )
    cost = len(version.content) + len(version.attributes) + VERSION_COST
    tx.execute(
        "INSERT INTO transport_version VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)",
        (
            key,
            version.number,
            version.version_id,
            version.sha256,
            version.published_ms,
            cost,
            version.attributes,
            version.content,
            version.authentication,
        ),
    )


def _delete_before(key: bytes, oldest: int, tx: Transaction) -> None:
    tx.execute("DELETE FROM transport_version WHERE item = ? AND number < ?", (key, oldest))


def _promised(database: Database, work: Callable[[Transaction], None], size: int) -> "Future[None]":
    """Short work goes where a loop's other work goes, and shares its commit."""
    if size > SHORT_CONTENT or not _is_on_loop():
        return database.write(work)
    promise: Future[None] = Future()

    def told(done: "asyncio.Future[None]") -> None:
        error = None if done.cancelled() else done.exception()
        if error is not None:
            promise.set_exception(error)
        else:
            promise.set_result(None)

    database.transact(work).add_done_callback(told)
    return promise


def _is_on_loop() -> bool:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


def on_disk(database: Database, boot: int, limits: RetentionLimits | None = None) -> VersionsFor:
    """Windows in a database, for a node in its `boot`-th life. Items that are there already keep their epoch."""
    return lambda item: StoredVersions(database, item, boot, limits)
