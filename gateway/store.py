"""The gateway's tables through the years: what is left of its own, and how the rest moved into the exchange's."""

from exchange.sqlite import EXCHANGE_TABLES
from storage import Migration

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
    Migration(
        "gateway",
        4,
        # Sessions, publications and marks are known by the labels of protocols.
        [
            f"UPDATE {table} SET {column} = '{label}' WHERE {column} = '{before}'"  # noqa: S608 - own names
            for before, label in (("push", "websub"), ("stream", "rest"))
            for table, column in (
                ("exchange_sessions", "reader"),
                ("exchange_interests", "reader"),
                ("exchange_cursors", "reader"),
                ("exchange_log", "via"),
                ("exchange_marks", "source"),
                ("exports", "adapter"),
            )
        ],
    ),
]
TABLES = [*EXCHANGE_TABLES, *MIGRATIONS]
"""In this order: what the gateway's tables held moves into the exchange's."""
