"""The gateway's own tables: subscriptions of all protocols, how far each item was delivered, and cursors."""

from collections.abc import Sequence

from gateway.model import Crossing, ItemSubscription
from identifiers import Identifier, ItemId
from storage import Database, Migration, Transaction

MIGRATIONS = [
    Migration(
        "gateway",
        1,
        [
            """CREATE TABLE control_subscriptions (
                adapter TEXT NOT NULL,
                who     TEXT NOT NULL,
                what    TEXT NOT NULL,
                "where" TEXT NOT NULL,
                item    BLOB NOT NULL,
                until   REAL NOT NULL,
                PRIMARY KEY (adapter, who, what)
            ) WITHOUT ROWID""",
            "CREATE INDEX control_subscriptions_by_item ON control_subscriptions (item)",
            "CREATE INDEX control_subscriptions_by_end ON control_subscriptions (until)",
            # The last version of each item that is on disk here: in the inbox, or taken by every adapter.
            "CREATE TABLE taken_versions (item BLOB PRIMARY KEY, version BLOB NOT NULL) WITHOUT ROWID",
            # What arrived and was not taken by every adapter yet: at most one version of an item.
            """CREATE TABLE inbox (
                item         BLOB PRIMARY KEY,
                version      BLOB NOT NULL,
                kind         TEXT NOT NULL,
                name         TEXT NOT NULL,
                content_type TEXT NOT NULL,
                self_url     TEXT NOT NULL,
                published_ms INTEGER NOT NULL,
                body         BLOB NOT NULL
            )""",
            # Items that this gateway publishes, and the name that it knows them by.
            "CREATE TABLE exports (item BLOB PRIMARY KEY, adapter TEXT NOT NULL, what TEXT NOT NULL) WITHOUT ROWID",
            "CREATE TABLE cursors (name TEXT PRIMARY KEY, position INTEGER NOT NULL) WITHOUT ROWID",
        ],
        times=["control_subscriptions.until"],
    ),
    Migration(
        "gateway",
        2,
        # The cursor is moved for many publications at once. What was published before a kill is known from here: a
        # version that is published again after a newer one would be news to everybody.
        ["CREATE TABLE export_positions (what TEXT PRIMARY KEY, position INTEGER NOT NULL) WITHOUT ROWID"],
    ),
]

_COLUMNS = 'adapter, who, what, "where", item, until'


class ControlStore:
    """Reads are immediate, from the last committed state; what writes is a function for `Database.write`."""

    def __init__(self, database: Database) -> None:
        self.database = database

    def live(self, item: ItemId, now: float) -> list[ItemSubscription]:
        rows = self.database.read(
            f"SELECT {_COLUMNS} FROM control_subscriptions WHERE item = ? AND until > ?",  # noqa: S608
            (bytes(item), now),
        )
        return [_subscription(row) for row in rows]

    def wanted_items(self, after: bytes, limit: int, now: float) -> list[bytes]:
        """Items with live subscriptions, in order, after one that is known."""
        rows = self.database.read(
            "SELECT DISTINCT item FROM control_subscriptions WHERE item > ? AND until > ? ORDER BY item LIMIT ?",
            (after, now, limit),
        )
        return [item for (item,) in rows]

    def ended(self, now: float, limit: int) -> list[ItemSubscription]:
        rows = self.database.read(
            f"SELECT {_COLUMNS} FROM control_subscriptions WHERE until <= ? ORDER BY until LIMIT ?",  # noqa: S608
            (now, limit),
        )
        return [_subscription(row) for row in rows]

    def of_adapter(self, adapter: str) -> list[ItemSubscription]:
        rows = self.database.read(
            f"SELECT {_COLUMNS} FROM control_subscriptions WHERE adapter = ?",  # noqa: S608
            (adapter,),
        )
        return [_subscription(row) for row in rows]

    def count(self, adapter: str, who: str) -> int:
        rows = self.database.read(
            "SELECT count(*) FROM control_subscriptions WHERE adapter = ? AND who = ?", (adapter, who)
        )
        return int(rows[0][0])

    def has(self, adapter: str, who: str, what: str) -> bool:
        key = (adapter, who, what)
        return bool(
            self.database.read("SELECT 1 FROM control_subscriptions WHERE adapter = ? AND who = ? AND what = ?", key)
        )

    def taken(self, item: ItemId) -> Identifier | None:
        rows = self.database.read("SELECT version FROM taken_versions WHERE item = ?", (bytes(item),))
        return Identifier(rows[0][0]) if rows else None

    def waiting(self, item: ItemId) -> Crossing | None:
        """What arrived and perhaps was not delivered, because the gateway was killed."""
        rows = self.database.read(
            "SELECT kind, name, content_type, body, self_url, version, published_ms FROM inbox WHERE item = ?",
            (bytes(item),),
        )
        if not rows:
            return None
        kind, name, content_type, body, self_url, version, published_ms = rows[0]
        return Crossing(kind, name, content_type, body, self_url, Identifier(version), published_ms)

    def cursor(self, name: str) -> int:
        rows = self.database.read("SELECT position FROM cursors WHERE name = ?", (name,))
        return int(rows[0][0]) if rows else 0

    def exported(self, what: str) -> int:
        """How far the publications under a name are in the network."""
        rows = self.database.read("SELECT position FROM export_positions WHERE what = ?", (what,))
        return int(rows[0][0]) if rows else 0

    def exports(self, after: bytes, limit: int) -> Sequence[tuple[bytes, str, str]]:
        return self.database.read(
            "SELECT item, adapter, what FROM exports WHERE item > ? ORDER BY item LIMIT ?", (after, limit)
        )

    def is_export(self, item: ItemId) -> bool:
        return self.exporter(item) is not None

    def exporter(self, item: ItemId) -> str | None:
        """The adapter that publishes an item."""
        rows = self.database.read("SELECT adapter FROM exports WHERE item = ?", (bytes(item),))
        return str(rows[0][0]) if rows else None

    # Pieces of work for `Database.write`.

    @staticmethod
    def put(subscription: ItemSubscription, tx: Transaction) -> None:
        tx.execute(
            f"INSERT INTO control_subscriptions ({_COLUMNS}) VALUES (?, ?, ?, ?, ?, ?) "  # noqa: S608
            'ON CONFLICT DO UPDATE SET "where" = excluded."where", item = excluded.item, until = excluded.until',
            (
                subscription.adapter,
                subscription.who,
                subscription.what,
                subscription.where,
                bytes(subscription.item),
                subscription.until,
            ),
        )

    @staticmethod
    def drop(adapter: str, who: str, what: str, tx: Transaction) -> bytes | None:
        """Says which item it was about."""
        rows = tx.execute(
            "DELETE FROM control_subscriptions WHERE adapter = ? AND who = ? AND what = ? RETURNING item",
            (adapter, who, what),
        )
        return rows[0][0] if rows else None

    @staticmethod
    def receive(item: ItemId, version: Identifier, crossing: Crossing, tx: Transaction) -> None:
        """Keep a version until it was delivered; the one before it has been, since they come one at a time."""
        tx.execute(
            "INSERT OR REPLACE INTO inbox VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
            (
                bytes(item),
                bytes(version),
                crossing.kind,
                crossing.name,
                crossing.content_type,
                crossing.self_url,
                crossing.published_ms,
                crossing.body,
            ),
        )

    @staticmethod
    def took(item: ItemId, version: Identifier, tx: Transaction) -> None:
        """Everybody here has the version: the network is asked for what follows it."""
        tx.execute("INSERT OR REPLACE INTO taken_versions VALUES (?, ?)", (bytes(item), bytes(version)))
        tx.execute("DELETE FROM inbox WHERE item = ?", (bytes(item),))

    @staticmethod
    def forget_taken(item: ItemId, tx: Transaction) -> None:
        tx.execute("DELETE FROM taken_versions WHERE item = ?", (bytes(item),))
        tx.execute("DELETE FROM inbox WHERE item = ?", (bytes(item),))

    @staticmethod
    def export(item: ItemId, adapter: str, what: str, tx: Transaction) -> None:
        tx.execute("INSERT OR IGNORE INTO exports VALUES (?, ?, ?)", (bytes(item), adapter, what))

    @staticmethod
    def unexport(item: ItemId, tx: Transaction) -> None:
        tx.execute("DELETE FROM exports WHERE item = ?", (bytes(item),))

    @staticmethod
    def exported_to(what: str, position: int, tx: Transaction) -> None:
        tx.execute("INSERT OR REPLACE INTO export_positions VALUES (?, ?)", (what, position))

    @staticmethod
    def move_cursor(name: str, position: int, tx: Transaction) -> None:
        tx.execute("INSERT OR REPLACE INTO cursors VALUES (?, ?)", (name, position))


def item_from(packed: bytes) -> ItemId:
    half = len(packed) // 2
    return ItemId(Identifier(packed[:half]), Identifier(packed[half:]))


def _subscription(row: Sequence[object]) -> ItemSubscription:
    adapter, who, what, where, item, until = row
    if not isinstance(item, bytes) or not isinstance(until, float):
        raise TypeError("a row of another table")
    return ItemSubscription(str(adapter), str(who), str(what), str(where), item_from(item), until)
