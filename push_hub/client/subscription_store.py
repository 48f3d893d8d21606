"""The table of what a subscriber wants and has."""

from collections.abc import Sequence
from concurrent.futures import Future

from push_hub.client.subscriptions import ClientSubscription, SubscriptionState
from storage import Database, Migration, Row, Transaction

MIGRATIONS = [
    Migration(
        "push_hub.client",
        1,
        [
            """CREATE TABLE wishes (
                token       TEXT PRIMARY KEY,
                topic       TEXT NOT NULL,
                hub         TEXT NOT NULL,
                secret      BLOB,
                state       TEXT NOT NULL,
                lease_until REAL NOT NULL,
                renew_at    REAL NOT NULL,
                attempts    INTEGER NOT NULL,
                reason      TEXT NOT NULL,
                UNIQUE (topic, hub)
            ) WITHOUT ROWID""",
            "CREATE INDEX wishes_by_renewal ON wishes (renew_at)",
        ],
        times=["wishes.lease_until", "wishes.renew_at"],
    ),
    Migration(
        "push_hub.client",
        2,
        [
            "ALTER TABLE wishes ADD COLUMN next_token TEXT",
            "ALTER TABLE wishes ADD COLUMN retired TEXT",
            "ALTER TABLE wishes ADD COLUMN page TEXT NOT NULL DEFAULT ''",
            "ALTER TABLE wishes ADD COLUMN verify_token TEXT",
            "CREATE INDEX wishes_by_next_token ON wishes (next_token) WHERE next_token IS NOT NULL",
            "CREATE INDEX wishes_by_retired ON wishes (retired) WHERE retired IS NOT NULL",
        ],
    ),
    Migration("push_hub.client", 3, ["CREATE INDEX wishes_by_page ON wishes (page)"]),
]


def _subscription(row: Row) -> ClientSubscription:
    token, topic, hub, secret, state, *others = row
    return ClientSubscription(token, topic, hub, secret, SubscriptionState(state), *others)


class ClientSubscriptionStore:
    def __init__(self, database: Database) -> None:
        self._database = database

    def save(self, subscription: ClientSubscription) -> Future[None]:
        row = (
            subscription.token,
            subscription.topic,
            subscription.hub,
            subscription.secret,
            str(subscription.state),
            subscription.lease_until,
            subscription.renew_at,
            subscription.attempts,
            subscription.reason,
            subscription.next_token,
            subscription.retired,
            subscription.page,
            subscription.verify_token,
        )

        def work(tx: Transaction) -> None:
            tx.execute("INSERT OR REPLACE INTO wishes VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)", row)

        return self._database.write(work)

    def by_token(self, token: str) -> ClientSubscription | None:
        """The wish with this token: its present, next or retired one."""
        return self._one("SELECT * FROM wishes WHERE token = ?1 OR next_token = ?1 OR retired = ?1", (token,))

    def by_topic(self, topic: str, hub: str) -> ClientSubscription | None:
        return self._one("SELECT * FROM wishes WHERE topic = ? AND hub = ?", (topic, hub))

    def of_topic(self, topic: str) -> list[ClientSubscription]:
        """At all hubs, also those that are over."""
        return [_subscription(row) for row in self._database.read("SELECT * FROM wishes WHERE topic = ?", (topic,))]

    def by_page(self, page: str) -> list[ClientSubscription]:
        """Wishes that were found at a page and are not over."""
        rows = self._database.read(
            "SELECT * FROM wishes WHERE page = ? AND state IN ('asked', 'active')",
            (page,),
        )
        return [_subscription(row) for row in rows]

    def pages(self) -> list[str]:
        """Where wishes were found that are not over."""
        rows = self._database.read("SELECT DISTINCT page FROM wishes WHERE state IN ('asked', 'active') AND page != ''")
        return [str(page) for (page,) in rows]

    def due(self, now: float, limit: int) -> list[ClientSubscription]:
        rows = self._database.read(
            "SELECT * FROM wishes WHERE renew_at <= ? AND state IN ('asked', 'active', 'leaving') "
            "ORDER BY renew_at LIMIT ?",
            (now, limit),
        )
        return [_subscription(row) for row in rows]

    def _one(self, sql: str, parameters: Sequence[str]) -> ClientSubscription | None:
        rows = self._database.read(sql, parameters)
        return _subscription(rows[0]) if rows else None
