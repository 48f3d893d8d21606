"""What became of a subscription's last deliveries, for people. On disk, so that a restart shows the same.

Nearly all deliveries succeed at the first try. A row for each would cost more than the delivery's share of everything
else on disk, so such deliveries are kept a page at a time: who got it, as packed numbers, and when the page was
written down. A try that failed, or that was not the first, has a row of its own. Both tables are bounded by
`Retention.history_pages` and `history_tries`, oldest out first, and a publication that is trimmed takes its own along.
"""

from array import array
from bisect import bisect_left
from dataclasses import dataclass

from push_hub.delivery.batch import Batch
from push_hub.delivery.walks import FIRST_SUCCESS
from storage import Database, Migration, Transaction

MIGRATIONS = [
    Migration(
        "push_hub_delivery",
        1,
        [
            """CREATE TABLE delivered_pages (
                id            INTEGER PRIMARY KEY AUTOINCREMENT,
                publication   INTEGER NOT NULL REFERENCES publications (id) ON DELETE CASCADE,
                last_id       INTEGER NOT NULL,
                saved_at      REAL NOT NULL,
                subscriptions BLOB NOT NULL,
                statuses      BLOB NOT NULL
            )""",
            "CREATE INDEX delivered_pages_by_publication ON delivered_pages (publication, last_id)",
            """CREATE TABLE tries (
                id           INTEGER PRIMARY KEY AUTOINCREMENT,
                subscription INTEGER NOT NULL,
                publication  INTEGER NOT NULL,
                at           REAL NOT NULL,
                status       INTEGER NOT NULL,
                reason       TEXT
            )""",
            "CREATE INDEX tries_by_subscription ON tries (subscription, id)",
        ],
        times=["delivered_pages.saved_at", "tries.at"],
    )
]


@dataclass(frozen=True, slots=True)
class HistoryEntry:
    """One try. `reason` is None when it was delivered."""

    publication: int
    at: float
    status: int
    reason: str | None


def save_history(tx: Transaction, batch: Batch, now: float) -> None:
    """In the transaction of the batch it is part of."""
    if batch.pages:
        tx.execute_many(
            "INSERT INTO delivered_pages (publication, last_id, saved_at, subscriptions, statuses) "
            "SELECT ?1, ?2, ?3, ?4, ?5 WHERE EXISTS (SELECT 1 FROM publications WHERE id = ?1)",
            [(page.publication, page.last_id, now, page.subscriptions, page.statuses) for page in batch.pages],
        )
    if batch.tries:
        tx.execute_many(
            "INSERT INTO tries (subscription, publication, at, status, reason) VALUES (?, ?, ?, ?, ?)",
            [(one.subscription, one.publication, one.at, one.status, one.reason) for one in batch.tries],
        )


def read_history(database: Database, subscription: int, topic: str, limit: int) -> list[HistoryEntry]:
    """A subscription's last tries, oldest first. It looks no further back than the topic's last `limit` publications
    and the subscription's last `limit` own rows."""
    entries = [
        HistoryEntry(*row)
        for row in database.read(
            "SELECT publication, at, status, reason FROM tries WHERE subscription = ? ORDER BY id DESC LIMIT ?",
            (subscription, limit),
        )
    ]
    for publication, *_ in database.read(
        "SELECT id FROM publications WHERE topic = ? ORDER BY id DESC LIMIT ?", (topic, limit)
    ):
        entries += _first_try(database, subscription, publication)
    # Pages that were saved together have the same time. Rows come newest first: turned round, the sort keeps them so.
    entries.reverse()
    entries.sort(key=lambda entry: (entry.at, entry.publication))
    return entries[-limit:]


def _first_try(database: Database, subscription: int, publication: int) -> list[HistoryEntry]:
    pages = database.read(
        "SELECT saved_at, subscriptions, statuses FROM delivered_pages WHERE publication = ? AND last_id >= ? "
        "ORDER BY last_id, id LIMIT 1",
        (publication, subscription),
    )
    for saved_at, packed, statuses in pages:
        subscriptions = array("q", packed)
        place = bisect_left(subscriptions, subscription)
        if place < len(subscriptions) and subscriptions[place] == subscription:
            return [HistoryEntry(publication, saved_at, FIRST_SUCCESS + statuses[place], None)]
    return []
