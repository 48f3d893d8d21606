"""The publication log on disk: publications, the cursor of each unfinished fan-out, what is owed, and dead letters."""

import asyncio
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass

from push_hub.delivery.batch import CLAIMED, FAR, WAITING_FOR_ROOM, Batch, Key
from push_hub.delivery.config import Retention
from push_hub.delivery.history import save_history
from push_hub.delivery.retention import Trimmed, trim
from push_hub.model import Content, HubPublication
from storage import Database, Migration, Row, Transaction

PUBLICATION_COLUMNS = "id, topic, self_url, content_type, body, changes, accepted_at"
MIGRATIONS = [
    Migration(
        "push_hub_delivery",
        4,
        # When a callback that answered with Retry-After wants to be asked again: not even something new comes earlier.
        ["ALTER TABLE retries ADD COLUMN asked_until REAL NOT NULL DEFAULT 0"],
        times=["retries.asked_until"],
    )
]
SHORT_BATCH = 64
"""Changes that are written on the event loop; more of them are for the writer's thread."""
SHORT_BODY = 64 * 1024
"""Bytes that are written on the event loop; longer ones, and what they say of many entries, in the writer's thread."""
DUE_COLUMNS = "subscription, publication, attempts, next_try_at, asked_until"


@dataclass(frozen=True, slots=True)
class StoredFanout:
    publication: int
    topic: str
    position: int


@dataclass(frozen=True, slots=True)
class DueRow:
    subscription: int
    publication: int
    attempts: int
    next_try_at: float
    asked_until: float


@dataclass(frozen=True, slots=True)
class OwedDelivery:
    """A delivery that is still to be made, as an operator sees it."""

    subscription: int
    publication: int
    attempts: int
    next_try_at: float | None
    reason: str


@dataclass(frozen=True, slots=True)
class StoredDeadLetter:
    id: int
    subscription: int
    publication: int
    topic: str
    callback: str
    attempts: int
    reason: str
    died_at: float


class PublicationLog:
    def __init__(self, database: Database) -> None:
        self._database = database

    # Publications

    def append(
        self,
        topic: str,
        self_url: str,
        content: Content,
        now: float,
        along: Callable[[Transaction], None] | None = None,
    ) -> "asyncio.Future[int]":
        """Resolves with the publication's id when it and its fan-out are on disk, and with them what goes `along`."""

        def work(tx: Transaction) -> int:
            rows = tx.execute(
                "INSERT INTO publications (topic, self_url, content_type, body, changes, accepted_at, brought) "
                "VALUES (?, ?, ?, ?, ?, ?, ?) RETURNING id",
                (topic, self_url, content.content_type, content.body, content.changes, now, content.brought),
            )
            tx.execute("INSERT INTO fanouts VALUES (?, 0)", (rows[0][0],))
            if along is not None:
                along(tx)
            return int(rows[0][0])

        if len(content.body) > SHORT_BODY:
            return asyncio.wrap_future(self._database.write(work))
        return self._database.transact(work)

    def get(self, publication: int) -> HubPublication | None:
        rows = self._database.read(f"SELECT {PUBLICATION_COLUMNS} FROM publications WHERE id = ?", (publication,))  # noqa: S608
        return _publication(rows[0]) if rows else None

    def since(self, topic: str, after_id: int, limit: int) -> list[HubPublication]:
        """Publications of a topic after one that the reader knows, oldest first."""
        rows = self._database.read(
            f"SELECT {PUBLICATION_COLUMNS} FROM publications WHERE topic = ? AND id > ? ORDER BY id LIMIT ?",  # noqa: S608
            (topic, after_id, limit),
        )
        return [_publication(row) for row in rows]

    def own_after(self, after_id: int, limit: int) -> list[HubPublication]:
        """Publications of all topics that were accepted here, not brought by a gateway, in the order of their ids."""
        rows = self._database.read(
            f"SELECT {PUBLICATION_COLUMNS} FROM publications WHERE id > ? AND NOT brought ORDER BY id LIMIT ?",  # noqa: S608
            (after_id, limit),
        )
        return [_publication(row) for row in rows]

    def latest(self, topic: str, limit: int = 1) -> list[HubPublication]:
        """The newest publications of a topic, newest first."""
        rows = self._database.read(
            f"SELECT {PUBLICATION_COLUMNS} FROM publications WHERE topic = ? ORDER BY id DESC LIMIT ?",  # noqa: S608
            (topic, limit),
        )
        return [_publication(row) for row in rows]

    # Fan-out

    def unfinished(self) -> list[StoredFanout]:
        """Fan-outs to take up again, in the order of their publications."""
        rows = self._database.read(
            "SELECT publication, topic, position FROM fanouts JOIN publications ON id = publication "
            "ORDER BY publication"
        )
        return [StoredFanout(*row) for row in rows]

    def owed_keys(self) -> list[Key]:
        return [(row[0], row[1]) for row in self._database.read("SELECT subscription, publication FROM retries")]

    def release_claims(self, now: float) -> Future[list[Row]]:
        """At a start: what the process before was waiting for is due, because its answer cannot come any more."""
        return self._database.write(
            lambda tx: tx.execute(
                "UPDATE retries SET next_try_at = ?1 WHERE reason IN (?2, ?3) AND next_try_at > ?1",
                (now, CLAIMED, WAITING_FOR_ROOM),
            )
        )

    def due(self, now: float, limit: int) -> list[DueRow]:
        rows = self._database.read(
            f"SELECT {DUE_COLUMNS} FROM retries WHERE next_try_at <= ? ORDER BY next_try_at LIMIT ?",  # noqa: S608
            (now, limit),
        )
        return [DueRow(*row) for row in rows]

    def owed(self, key: Key) -> DueRow | None:
        rows = self._database.read(
            f"SELECT {DUE_COLUMNS} FROM retries WHERE subscription = ? AND publication = ?",  # noqa: S608
            key,
        )
        return DueRow(*rows[0]) if rows else None

    def next_due(self, after: float) -> float | None:
        rows = self._database.read(
            "SELECT min(next_try_at) FROM retries WHERE next_try_at > ? AND next_try_at < ?", (after, FAR)
        )
        return rows[0][0] if rows else None

    def save(self, batch: Batch, now: float) -> "asyncio.Future[None]":
        if batch.changes <= SHORT_BATCH:
            return self._database.transact(lambda tx: _apply(tx, batch, now))
        return asyncio.wrap_future(self._database.write(lambda tx: _apply(tx, batch, now)))

    # For people

    def owed_to(self, subscription: int, limit: int) -> list[OwedDelivery]:
        rows = self._database.read(
            "SELECT subscription, publication, attempts, next_try_at, reason FROM retries WHERE subscription = ? "
            "ORDER BY publication LIMIT ?",
            (subscription, limit),
        )
        return [OwedDelivery(s, p, attempts, at if at < FAR else None, reason) for s, p, attempts, at, reason in rows]

    def dead_letters(self, after_id: int, limit: int, topic: str | None) -> list[StoredDeadLetter]:
        rows = self._database.read(
            "SELECT id, subscription, publication, topic, callback, attempts, reason, died_at FROM dead_letters "
            "WHERE id > ? AND (? IS NULL OR topic = ?) ORDER BY id LIMIT ?",
            (after_id, topic, topic, limit),
        )
        return [StoredDeadLetter(*row) for row in rows]

    def revive(self, dead_letter: int, now: float) -> Future[Key | None]:
        """Turn a dead letter into an owed delivery again; None when it or its publication is not kept any more."""

        def work(tx: Transaction) -> Key | None:
            rows = tx.execute(
                "SELECT subscription, publication FROM dead_letters WHERE id = ? "
                "AND publication IN (SELECT id FROM publications)",
                (dead_letter,),
            )
            if not rows:
                return None
            tx.execute("DELETE FROM dead_letters WHERE id = ?", (dead_letter,))
            _insert_behind(tx, [rows[0]], now, "replayed by the operator")
            # Its time for giving up runs from the publication; a replay starts with a clean count all the same.
            return (int(rows[0][0]), int(rows[0][1]))

        return self._database.write(work)

    # Retention

    def trim(self, retention: Retention, now: float) -> Future[Trimmed]:
        """Remove some of what is above the bounds, oldest first."""
        return self._database.write(lambda tx: trim(tx, retention, now))


def _publication(row: Row) -> HubPublication:
    return HubPublication(row[0], row[1], row[2], Content(row[3], row[4], row[5]), row[6])


def _apply(tx: Transaction, batch: Batch, now: float) -> None:
    if batch.rows:
        tx.execute_many(
            "INSERT INTO retries (subscription, publication, attempts, next_try_at, reason, asked_until) "
            "VALUES (?, ?, ?, ?, ?, ?) ON CONFLICT (subscription, publication) DO UPDATE SET "
            "attempts = excluded.attempts, next_try_at = excluded.next_try_at, reason = excluded.reason, "
            "asked_until = excluded.asked_until",
            [
                (row.subscription, row.publication, row.attempts, row.next_try_at, row.reason, row.asked_until)
                for row in batch.rows
            ],
        )
    if batch.settled:
        tx.execute_many("DELETE FROM retries WHERE subscription = ? AND publication = ?", batch.settled)
        # What waited behind a settled delivery is next.
        tx.execute_many(
            "UPDATE retries SET next_try_at = ?1 WHERE subscription = ?2 AND next_try_at >= ?3 "
            "AND publication = (SELECT min(publication) FROM retries WHERE subscription = ?2)",
            [(now, subscription, FAR) for subscription in {key[0] for key in batch.settled}],
        )
    if batch.behind:
        _insert_behind(tx, batch.behind, now, "waiting behind an earlier publication")
    if batch.dead:
        tx.execute_many(
            "INSERT INTO dead_letters (subscription, publication, topic, callback, attempts, reason, died_at) "
            "VALUES (?, ?, ?, ?, ?, ?, ?)",
            [
                (
                    letter.subscription.id,
                    letter.publication,
                    letter.subscription.topic,
                    letter.subscription.callback,
                    letter.attempts,
                    letter.reason,
                    letter.died_at,
                )
                for letter in batch.dead
            ],
        )
    if batch.positions:
        tx.execute_many(
            "UPDATE fanouts SET position = ? WHERE publication = ?",
            [(position, publication) for publication, position in batch.positions.items()],
        )
    save_history(tx, batch, now)
    if batch.finished:
        tx.execute_many("DELETE FROM fanouts WHERE publication = ?", [(publication,) for publication in batch.finished])


def _insert_behind(tx: Transaction, keys: Sequence[Row], now: float, reason: str) -> None:
    """Rows that come after whatever the subscriber is owed already; due at once when that is nothing."""
    for subscription, publication in keys:
        earlier = tx.execute(
            "SELECT 1 FROM retries WHERE subscription = ? AND publication < ? LIMIT 1", (subscription, publication)
        )
        tx.execute(
            "INSERT INTO retries (subscription, publication, attempts, next_try_at, reason) VALUES (?, ?, 0, ?, ?) "
            "ON CONFLICT (subscription, publication) DO NOTHING",
            (subscription, publication, FAR if earlier else now, reason),
        )
