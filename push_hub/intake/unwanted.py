"""Pings of topics that nobody wants, and the end of what is kept for a topic that nobody wants any more.

Such a ping costs a short row and nothing else: no request, no parser. Whoever comes later gets the current state,
because the row then becomes a ping like any other. Rows go after a while, and earlier when there are too many, too many
bytes, or too many of one client.
"""

from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass

from push_hub.intake.config import IntakeConfig
from storage import Database, Migration, Row, Transaction

MIGRATION = Migration(
    "push_hub.intake",
    3,
    [
        """CREATE TABLE unwanted_pings (
            id          INTEGER PRIMARY KEY AUTOINCREMENT,
            topic       TEXT NOT NULL UNIQUE,
            client      TEXT NOT NULL,
            received_at REAL NOT NULL
        )""",
        "CREATE INDEX unwanted_pings_by_client ON unwanted_pings (client, id)",
        # Kept by triggers: counting rows for each ping would cost as much as there are.
        "CREATE TABLE unwanted_size (pings INTEGER NOT NULL, bytes INTEGER NOT NULL)",
        "INSERT INTO unwanted_size VALUES (0, 0)",
        """CREATE TRIGGER unwanted_ping_added AFTER INSERT ON unwanted_pings BEGIN
            UPDATE unwanted_size SET pings = pings + 1, bytes = bytes + length(new.topic) + length(new.client);
        END""",
        """CREATE TRIGGER unwanted_ping_removed AFTER DELETE ON unwanted_pings BEGIN
            UPDATE unwanted_size SET pings = pings - 1, bytes = bytes - length(old.topic) - length(old.client);
        END""",
        # A topic's address once, and not again in each of its entries.
        "CREATE TABLE topic_numbers (number INTEGER PRIMARY KEY, topic TEXT NOT NULL UNIQUE)",
        """CREATE TABLE seen_entries (
            topic   INTEGER NOT NULL,
            entry   BLOB NOT NULL,
            digest  BLOB NOT NULL,
            seen_at REAL NOT NULL,
            PRIMARY KEY (topic, entry)
        ) WITHOUT ROWID""",
        "INSERT INTO topic_numbers (topic) SELECT DISTINCT topic FROM entries",
        """INSERT INTO seen_entries SELECT number, entry, digest, seen_at
            FROM entries JOIN topic_numbers ON topic_numbers.topic = entries.topic""",
        "DROP TABLE entries",
    ],
    times=["unwanted_pings.received_at", "seen_entries.seen_at"],
)


@dataclass(frozen=True, slots=True)
class Let:
    """What a round let go of: topics of which nothing is left, and where the next part of the round begins."""

    topics: Sequence[str]
    until: str


class UnwantedPings:
    """Reads are immediate, from the last committed state; writes end when they are on disk."""

    def __init__(self, database: Database, config: IntakeConfig) -> None:
        self._database = database
        self._config = config

    def keep(self, tx: Transaction, topic: str, client: str, now: float) -> list[str]:
        """Remember that a topic was pinged, within a transaction; what is too much goes, the oldest first.

        Says which topics went.
        """
        config, gone = self._config, []
        tx.execute("DELETE FROM unwanted_pings WHERE topic = ?", (topic,))
        tx.execute("INSERT INTO unwanted_pings (topic, client, received_at) VALUES (?, ?, ?)", (topic, client, now))
        ((of_client,),) = tx.execute("SELECT count(*) FROM unwanted_pings WHERE client = ?", (client,))
        if of_client > config.max_unwanted_pings_per_client:
            gone += tx.execute(
                "DELETE FROM unwanted_pings WHERE id = (SELECT min(id) FROM unwanted_pings WHERE client = ?) "
                "RETURNING topic",
                (client,),
            )
        while True:
            ((pings, size),) = tx.execute("SELECT pings, bytes FROM unwanted_size")
            if pings <= config.max_unwanted_pings and (size <= config.max_unwanted_bytes or pings <= 1):
                return _of_nothing_left(tx, gone)
            gone += tx.execute(
                "DELETE FROM unwanted_pings WHERE id = (SELECT min(id) FROM unwanted_pings) RETURNING topic"
            )

    def has(self, topic: str) -> bool:
        return bool(self._database.read("SELECT 1 FROM unwanted_pings WHERE topic = ?", (topic,)))

    def after(self, topic: str, limit: int) -> list[str]:
        rows = self._database.read(
            "SELECT topic FROM unwanted_pings WHERE topic > ? ORDER BY topic LIMIT ?", (topic, limit)
        )
        return [str(topic) for (topic,) in rows]

    def overlooked(self, limit: int) -> list[str]:
        """Topics that were pinged and have subscribers here, because the hub ended between the two."""
        rows = self._database.read(
            "SELECT u.topic FROM unwanted_pings u JOIN subscriber_counts c ON c.topic = u.topic LIMIT ?", (limit,)
        )
        return [str(topic) for (topic,) in rows]

    def want(self, topic: str, now: float) -> Future[bool]:
        """Somebody wants the topic: if it was pinged, that ping counts now. Says whether it was."""

        def work(tx: Transaction) -> bool:
            if not tx.execute("DELETE FROM unwanted_pings WHERE topic = ? RETURNING id", (topic,)):
                return False
            tx.execute(
                "INSERT INTO pings VALUES (?, ?) ON CONFLICT (topic) DO UPDATE SET received_at = "
                "max(excluded.received_at, received_at)",
                (topic, now),
            )
            return True

        return self._database.write(work)

    def expire(self, now: float, limit: int) -> Future[list[str]]:
        """Let go of old rows; says of which topics nothing is left then."""

        def work(tx: Transaction) -> list[str]:
            gone = tx.execute(
                "DELETE FROM unwanted_pings WHERE id IN (SELECT id FROM unwanted_pings WHERE received_at <= ? "
                "ORDER BY id LIMIT ?) RETURNING topic",
                (now - self._config.unwanted_ping_age, limit),
            )
            return _of_nothing_left(tx, gone)

        return self._database.write(work)

    def forget(self, after: str, limit: int, now: float, wants: Callable[[str], bool]) -> Future[Let]:
        """One part of a round over all topics: what nobody wants, and whose publications have gone, goes."""

        def work(tx: Transaction) -> Let:
            page = tx.execute(
                "SELECT url, coalesce(fetched_at, 0) <= ? "
                "AND NOT EXISTS (SELECT 1 FROM subscriptions WHERE topic = url) "
                "AND NOT EXISTS (SELECT 1 FROM pings WHERE topic = url) "
                "AND NOT EXISTS (SELECT 1 FROM verifications WHERE topic = url) "
                "AND NOT EXISTS (SELECT 1 FROM publications WHERE topic = url) "
                "FROM topics WHERE url > ? ORDER BY url LIMIT ?",
                (now - self._config.forget_after, after, limit),
            )
            left: list[str] = []
            for topic, over in page:
                if over and not wants(topic):
                    forget_topic(tx, topic)
                    if not tx.execute("SELECT 1 FROM unwanted_pings WHERE topic = ?", (topic,)):
                        left.append(topic)
            return Let(left, str(page[-1][0]) if len(page) == limit else "")

        return self._database.write(work)


def _of_nothing_left(tx: Transaction, gone: Sequence[Row]) -> list[str]:
    return [topic for (topic,) in gone if not tx.execute("SELECT 1 FROM topics WHERE url = ?", (topic,))]


def forget_topic(tx: Transaction, topic: str) -> None:
    """Everything that is known of a topic's source."""
    tx.execute(
        "DELETE FROM seen_entries WHERE topic = (SELECT number FROM topic_numbers WHERE topic_numbers.topic = ?)",
        (topic,),
    )
    for statement in (
        "DELETE FROM topic_numbers WHERE topic = ?",
        "DELETE FROM sources WHERE topic = ?",
        "DELETE FROM topics WHERE url = ?",
    ):
        tx.execute(statement, (topic,))
