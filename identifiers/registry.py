"""The mapping registry: topic <-> (Sid, Rid), both ways, in hierarchical order, on disk.

Only the topic is stored; its ids follow from it by the registry's one `Naming`, so they can never disagree with it.
What is indexed is a 64-bit fingerprint of the id pair, an eighth of the pair's size; the pair itself is computed again
and compared exactly on every look-up. A Bloom guard in memory answers for unknown ids; see `identifiers.guard`.

http and https spellings of one topic are one entry that remembers both.
"""

import hashlib
import threading
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Final, Self

from identifiers.guard import Guard
from identifiers.identifier import ItemId
from identifiers.naming import DEFAULT_NAMING, Naming
from identifiers.order import EVERYTHING, key_of, range_below, topic_of
from identifiers.topic import Topic, Transport
from storage import Database, DatabaseClosedError, Migration, Transaction

MIGRATIONS: Final = [
    Migration(
        "identifiers",
        1,
        [
            """CREATE TABLE registry_topics (
                key         BLOB PRIMARY KEY,
                fingerprint INTEGER NOT NULL,
                transports  INTEGER NOT NULL
            ) WITHOUT ROWID""",
            "CREATE INDEX registry_fingerprints ON registry_topics (fingerprint)",
            "CREATE TABLE registry_facts (naming TEXT NOT NULL, topics INTEGER NOT NULL)",
        ],
    )
]

PAGE_ROWS: Final = 1_000
BATCH_TOPICS: Final = 5_000
SMALLEST_REBUILD: Final = 1_000
"""Removed ids that do not matter yet, however small the registry."""


class RegistryError(Exception):
    """The base of what the registry refuses."""


class OverlapError(RegistryError):
    """Two different topics with one id pair: the second is refused, since subscribers of one would get the other."""

    def __init__(self, topic: Topic, existing: Topic, item: ItemId) -> None:
        super().__init__(f"{topic} has the same ids as {existing}, which is registered already ({item})")
        self.topic = topic
        self.existing = existing


class NamingMismatchError(RegistryError):
    """The file was made with another scheme or hash."""


@dataclass(frozen=True, slots=True)
class RegisteredTopic:
    """One registered topic. `topic` is spelled https when that spelling is known."""

    topic: Topic
    item: ItemId
    transports: Transport


class Registry:
    """Safe to use from any thread. Owns its tables in `database`, not the database itself."""

    def __init__(self, database: Database, naming: Naming = DEFAULT_NAMING) -> None:
        self._database = database
        self._naming = naming
        self._claim_naming()
        self._guard_lock = threading.Lock()
        self._removed = 0
        self._guard = Guard(self.count())
        self._filling: Guard | None = None
        self._closed = threading.Event()
        self._filler: threading.Thread | None = None
        self._refill_guard()

    @classmethod
    def open(cls, path: Path, naming: Naming = DEFAULT_NAMING) -> Self:
        """A registry in a file of its own."""
        database = Database.open(path, MIGRATIONS)
        try:
            return cls(database, naming)
        except BaseException:
            database.close()
            raise

    @property
    def naming(self) -> Naming:
        return self._naming

    def close(self) -> None:
        """Stop background work and close the database."""
        self._closed.set()
        if self._filler is not None:
            self._filler.join()
        self._database.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def add(self, topic: Topic) -> RegisteredTopic:
        """Register a topic and wait until it is on disk. Adding it again changes nothing."""
        return self.add_soon([topic]).result()[0]

    def add_many(self, topics: Iterable[Topic]) -> int:
        """Register many topics, in batches; returns how many were new. An overlap leaves its whole batch out."""
        before = self.count()
        remaining = iter(topics)
        while batch := list(islice(remaining, BATCH_TOPICS)):
            self.add_soon(batch).result()
        return self.count() - before

    def add_soon(self, topics: Sequence[Topic]) -> Future[list[RegisteredTopic]]:
        """Register topics in one transaction; the future resolves once they are on disk."""
        prepared = [self._prepared(topic) for topic in topics]
        return self._database.write(lambda transaction: self._insert(transaction, prepared))

    def remove(self, topic: Topic) -> bool:
        """Forget a topic, in both spellings. False when it was not there."""
        return self.remove_soon(topic).result()

    def remove_soon(self, topic: Topic) -> Future[bool]:
        key = key_of(topic)
        done = self._database.write(lambda transaction: _delete(transaction, key))
        done.add_done_callback(self._note_removal)
        return done

    def by_topic(self, topic: Topic) -> RegisteredTopic | None:
        item = self._naming.of_topic(topic)
        if not self._guard.may_know(fingerprint_of(item)):
            return None
        rows = self._database.read("SELECT transports FROM registry_topics WHERE key = ?", (key_of(topic),))
        return _entry(key_of(topic), rows[0][0], item) if rows else None

    def by_item(self, item: ItemId) -> RegisteredTopic | None:
        fingerprint = fingerprint_of(item)
        if not self._guard.may_know(fingerprint):
            return None
        rows = self._database.read("SELECT key, transports FROM registry_topics WHERE fingerprint = ?", (fingerprint,))
        for key, transports in rows:
            if self._naming.of_topic(topic_of(key, "http")) == item:
                return _entry(key, transports, item)
        return None

    def below(self, place: str) -> Iterator[RegisteredTopic]:
        """Everything at or below a domain (`example.com`) or a URL (`http://example.com/feeds`), in order."""
        return self._in_range(*range_below(place))

    def __iter__(self) -> Iterator[RegisteredTopic]:
        return self._in_range(*EVERYTHING)

    def count(self) -> int:
        topics: int = self._database.read("SELECT topics FROM registry_facts")[0][0]
        return topics

    def __len__(self) -> int:
        return self.count()

    @property
    def guard_complete(self) -> bool:
        """Whether unknown ids are answered from memory yet."""
        return self._guard.complete

    @property
    def guard_bytes(self) -> int:
        return self._guard.size_bytes

    def wait_for_guard(self) -> None:
        """Wait until the guard is filled; look-ups are right, only slower, before that."""
        if self._filler is not None:
            self._filler.join()

    def _claim_naming(self) -> None:
        mine = self._naming.announcement

        def claim(transaction: Transaction) -> str:
            rows = transaction.execute("SELECT naming FROM registry_facts")
            if not rows:
                transaction.execute("INSERT INTO registry_facts VALUES (?, 0)", (mine,))
                return mine
            theirs: str = rows[0][0]
            return theirs

        theirs = self._database.write(claim).result()
        if theirs != mine:
            raise NamingMismatchError(
                f"{self._database.path} was made with the naming {theirs!r}, not {mine!r}: use that or start a new file"
            )

    def _prepared(self, topic: Topic) -> tuple[bytes, Topic, ItemId, int]:
        item = self._naming.of_topic(topic)
        return key_of(topic), topic, item, fingerprint_of(item)

    def _insert(
        self, transaction: Transaction, prepared: list[tuple[bytes, Topic, ItemId, int]]
    ) -> list[RegisteredTopic]:
        entries: list[RegisteredTopic] = []
        added: list[int] = []
        for key, topic, item, fingerprint in prepared:
            known = transaction.execute(
                "SELECT key, transports FROM registry_topics WHERE fingerprint = ?", (fingerprint,)
            )
            transports = topic.transport
            for other_key, other_transports in known:
                if other_key == key:
                    transports |= Transport(other_transports)
                elif self._naming.of_topic(topic_of(other_key, "http")) == item:
                    raise OverlapError(topic, topic_of(other_key, "http"), item)
            if not any(other_key == key for other_key, _ in known):
                added.append(fingerprint)
            transaction.execute(
                "INSERT INTO registry_topics VALUES (?, ?, ?) "
                "ON CONFLICT (key) DO UPDATE SET transports = excluded.transports",
                (key, fingerprint, int(transports)),
            )
            entries.append(_entry(key, transports, item))
        transaction.execute("UPDATE registry_facts SET topics = topics + ?", (len(added),))
        # Before the commit: a guard that learned of an entry only after others can see it would lie for a moment.
        with self._guard_lock:
            self._guard.add(added)
            if self._filling is not None:
                self._filling.add(added)
        return entries

    def _in_range(self, first: bytes, end: bytes) -> Iterator[RegisteredTopic]:
        comparison = ">="
        while True:
            rows = self._database.read(
                f"SELECT key, transports FROM registry_topics WHERE key {comparison} ? AND key < ? "  # noqa: S608
                f"ORDER BY key LIMIT {PAGE_ROWS}",
                (first, end),
            )
            for key, transports in rows:
                yield _entry(key, transports, self._naming.of_topic(topic_of(key, "http")))
            if len(rows) < PAGE_ROWS:
                return
            first, comparison = rows[-1][0], ">"

    def _note_removal(self, done: Future[bool]) -> None:
        if done.cancelled() or done.exception() is not None or not done.result():
            return
        with self._guard_lock:
            self._removed += 1
            due = self._removed > max(SMALLEST_REBUILD, self._guard.added // 3) and self._filling is None
        if due:
            self._refill_guard()

    def _refill_guard(self) -> None:
        if self._closed.is_set():
            return
        with self._guard_lock:
            self._filling = Guard(self.count())
            self._removed = 0
        self._filler = threading.Thread(target=self._fill, args=(self._filling,), name="registry guard", daemon=True)
        self._filler.start()

    def _fill(self, guard: Guard) -> None:
        # Entries added from now on go into both guards. This empty write waits for those that were added to the old
        # guard only and are not committed yet, so that the scan below sees them.
        try:
            self._database.write(lambda transaction: None).result()
        except DatabaseClosedError:
            return
        fingerprint = -(2**63)
        comparison = ">="
        while not self._closed.is_set():
            rows = self._database.read(
                f"SELECT DISTINCT fingerprint FROM registry_topics WHERE fingerprint {comparison} ? "  # noqa: S608
                f"ORDER BY fingerprint LIMIT {PAGE_ROWS}",
                (fingerprint,),
            )
            with self._guard_lock:
                guard.add(row[0] for row in rows)
                if len(rows) < PAGE_ROWS:
                    guard.complete = True
                    self._guard, self._filling = guard, None
                    return
            fingerprint, comparison = rows[-1][0], ">"


def fingerprint_of(item: ItemId) -> int:
    """64 bits of the pair, as SQLite's signed integer."""
    return int.from_bytes(hashlib.blake2b(bytes(item), digest_size=8).digest(), "big", signed=True)


def _entry(key: bytes, transports: int, item: ItemId) -> RegisteredTopic:
    known = Transport(transports)
    return RegisteredTopic(topic_of(key, "https" if Transport.HTTPS in known else "http"), item, known)


def _delete(transaction: Transaction, key: bytes) -> bool:
    if not transaction.execute("DELETE FROM registry_topics WHERE key = ? RETURNING 1", (key,)):
        return False
    transaction.execute("UPDATE registry_facts SET topics = topics - 1")
    return True
