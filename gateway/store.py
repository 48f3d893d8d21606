"""The gateway's own table: what it publishes in the network. All else that it keeps is in the exchange's."""

import asyncio
from functools import partial

from exchange.sqlite import EXCHANGE_TABLES
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
    Migration(
        "gateway",
        3,
        # Subscriptions, what arrived and was not taken yet, and how far everything is, move into the exchange. What
        # waited in the inbox is the first of its item in the log, and every session begins before it. Sessions of open
        # streams ended with their process.
        [
            """INSERT INTO exchange_sessions (reader, who, state, base, changed)
                SELECT DISTINCT adapter, who, 'live', 0, 0.0 FROM control_subscriptions WHERE adapter != 'stream'""",
            """INSERT INTO exchange_interests (reader, who, name, item, place, until, convert)
                SELECT adapter, who, what, item, "where", until, '' FROM control_subscriptions
                WHERE adapter != 'stream'""",
            """INSERT INTO exchange_cursors (reader, who, item, position)
                SELECT DISTINCT adapter, who, item, 0 FROM control_subscriptions WHERE adapter != 'stream'""",
            """INSERT INTO exchange_log (item, gateway, number, via, name, profile, content_type, attributes, known,
                digest, published_ms, deadline_ms, appended_ms, body)
                SELECT item, gateway, last + row_number() OVER (ORDER BY inbox.rowid), 'psirp', name,
                CASE kind WHEN 'push' THEN 'document' WHEN 'chat' THEN 'message' ELSE 'event' END, content_type,
                CASE self_url WHEN '' THEN '' ELSE json_array(json_array('self', self_url)) END, x'', x'',
                published_ms, 0, published_ms, body FROM inbox, exchange_self""",
            """INSERT INTO exchange_reached (item, gateway, number, position, at_ms)
                SELECT item, gateway, number, position, appended_ms FROM exchange_log WHERE via = 'psirp'""",
            "UPDATE exchange_self SET last = last + (SELECT count(*) FROM inbox)",
            """INSERT INTO exchange_marks (source, key, value)
                SELECT 'psirp', lower(hex(item)), version FROM inbox
                UNION SELECT 'psirp', lower(hex(item)), version FROM taken_versions
                WHERE item NOT IN (SELECT item FROM inbox)
                UNION SELECT 'push', what, position FROM export_positions
                UNION SELECT name, '', position FROM cursors""",
            "DROP TABLE control_subscriptions",
            "DROP TABLE taken_versions",
            "DROP TABLE inbox",
            "DROP TABLE export_positions",
            "DROP TABLE cursors",
        ],
    ),
]
TABLES = [*EXCHANGE_TABLES, *MIGRATIONS]
"""In this order: what the gateway's tables held moves into the exchange's."""


class ExportStore:
    """Items that are published in the network. Reads are immediate, from the last committed state."""

    def __init__(self, database: Database) -> None:
        self.database = database

    def exports(self, after: bytes, limit: int) -> list[ItemId]:
        rows = self.database.read("SELECT item FROM exports WHERE item > ? ORDER BY item LIMIT ?", (after, limit))
        return [item_from(item) for (item,) in rows]

    def is_export(self, item: ItemId) -> bool:
        return self.exporter(item) is not None

    def name_of(self, item: ItemId) -> str | None:
        """The name that this gateway publishes an item by."""
        rows = self.database.read("SELECT what FROM exports WHERE item = ?", (bytes(item),))
        return str(rows[0][0]) if rows else None

    def exporter(self, item: ItemId) -> str | None:
        """The adapter that publishes an item."""
        rows = self.database.read("SELECT adapter FROM exports WHERE item = ?", (bytes(item),))
        return str(rows[0][0]) if rows else None

    async def export(self, item: ItemId, adapter: str, what: str) -> None:
        await asyncio.wrap_future(self.database.write(partial(_export, item, adapter, what)))

    async def unexport(self, item: ItemId) -> None:
        await asyncio.wrap_future(self.database.write(partial(_unexport, item)))


def _export(item: ItemId, adapter: str, what: str, tx: Transaction) -> None:
    tx.execute("INSERT OR IGNORE INTO exports VALUES (?, ?, ?)", (bytes(item), adapter, what))


def _unexport(item: ItemId, tx: Transaction) -> None:
    tx.execute("DELETE FROM exports WHERE item = ?", (bytes(item),))


def item_from(packed: bytes) -> ItemId:
    half = len(packed) // 2
    return ItemId(Identifier(packed[:half]), Identifier(packed[half:]))
