"""The engine's tables. A released migration is never edited: add another."""

from storage import Migration

EXCHANGE_TABLES = [
    Migration(
        "exchange",
        1,
        [
            # Who we are in origins, and the last number that was given.
            "CREATE TABLE exchange_self (gateway BLOB NOT NULL, last INTEGER NOT NULL)",
            "INSERT INTO exchange_self VALUES (randomblob(16), 0)",
            """CREATE TABLE exchange_log (
                position     INTEGER PRIMARY KEY AUTOINCREMENT,
                item         BLOB NOT NULL,
                gateway      BLOB NOT NULL,
                number       INTEGER NOT NULL,
                via          TEXT NOT NULL,
                name         TEXT NOT NULL,
                profile      TEXT NOT NULL,
                content_type TEXT NOT NULL,
                attributes   TEXT NOT NULL,
                known        BLOB NOT NULL,
                digest       BLOB NOT NULL,
                published_ms INTEGER NOT NULL,
                deadline_ms  INTEGER NOT NULL,
                appended_ms  INTEGER NOT NULL,
                held         INTEGER NOT NULL DEFAULT 0,
                body         BLOB NOT NULL
            )""",
            "CREATE INDEX exchange_log_by_item ON exchange_log (item, position)",
            "CREATE INDEX exchange_log_by_digest ON exchange_log (item, digest, position)",
            "CREATE INDEX exchange_log_by_time ON exchange_log (appended_ms)",
            # Counting rows would cost as much as there are.
            """CREATE TABLE exchange_items (
                item   BLOB PRIMARY KEY,
                count  INTEGER NOT NULL,
                bytes  INTEGER NOT NULL,
                newest INTEGER NOT NULL
            ) WITHOUT ROWID""",
            "CREATE TABLE exchange_size (bytes INTEGER NOT NULL)",
            "INSERT INTO exchange_size VALUES (0)",
            """CREATE TRIGGER exchange_entry_added AFTER INSERT ON exchange_log BEGIN
                INSERT INTO exchange_items VALUES (new.item, 1, length(new.body), new.position)
                ON CONFLICT (item) DO UPDATE SET count = count + 1, bytes = bytes + length(new.body),
                    newest = new.position;
                UPDATE exchange_size SET bytes = bytes + length(new.body);
            END""",
            """CREATE TRIGGER exchange_entry_removed AFTER DELETE ON exchange_log BEGIN
                UPDATE exchange_items SET count = count - 1, bytes = bytes - length(old.body) WHERE item = old.item;
                DELETE FROM exchange_items WHERE item = old.item AND count = 0;
                UPDATE exchange_size SET bytes = bytes - length(old.body);
            END""",
            # How far the publications of each gateway are known, and where the state stands that the last one left.
            """CREATE TABLE exchange_reached (
                item     BLOB NOT NULL,
                gateway  BLOB NOT NULL,
                number   INTEGER NOT NULL,
                position INTEGER NOT NULL,
                at_ms    INTEGER NOT NULL,
                PRIMARY KEY (item, gateway)
            ) WITHOUT ROWID""",
            # How far a source was taken in: a number or bytes, as whoever takes it in needs it.
            "CREATE TABLE exchange_marks (source TEXT, key TEXT, value, PRIMARY KEY (source, key)) WITHOUT ROWID",
            """CREATE TABLE exchange_sessions (
                reader  TEXT NOT NULL,
                who     TEXT NOT NULL,
                state   TEXT NOT NULL,
                base    INTEGER NOT NULL DEFAULT 0,
                changed REAL NOT NULL,
                PRIMARY KEY (reader, who)
            ) WITHOUT ROWID""",
            # An item of no bytes stands for everything that entered here.
            """CREATE TABLE exchange_interests (
                reader  TEXT NOT NULL,
                who     TEXT NOT NULL,
                name    TEXT NOT NULL,
                item    BLOB NOT NULL,
                place   TEXT NOT NULL,
                until   REAL NOT NULL,
                convert TEXT NOT NULL,
                PRIMARY KEY (reader, who, name)
            ) WITHOUT ROWID""",
            "CREATE INDEX exchange_interests_by_item ON exchange_interests (item)",
            "CREATE INDEX exchange_interests_by_end ON exchange_interests (until)",
            """CREATE TABLE exchange_cursors (
                reader   TEXT NOT NULL,
                who      TEXT NOT NULL,
                item     BLOB NOT NULL,
                position INTEGER NOT NULL,
                PRIMARY KEY (reader, who, item)
            ) WITHOUT ROWID""",
        ],
        times=[
            "exchange_log.appended_ms",
            "exchange_reached.at_ms",
            "exchange_sessions.changed",
            "exchange_interests.until",
        ],
    ),
    Migration("exchange", 2, ["ALTER TABLE exchange_interests ADD COLUMN selector TEXT NOT NULL DEFAULT ''"]),
    Migration(
        "exchange",
        3,
        [
            # Counting row by row is more than half of what an entry costs: who adds many counts them once.
            "ALTER TABLE exchange_size ADD COLUMN counted INTEGER NOT NULL DEFAULT 0",
            "DROP TRIGGER exchange_entry_added",
            """CREATE TRIGGER exchange_entry_added AFTER INSERT ON exchange_log
            WHEN (SELECT counted FROM exchange_size) = 0 BEGIN
                INSERT INTO exchange_items VALUES (new.item, 1, length(new.body), new.position)
                ON CONFLICT (item) DO UPDATE SET count = count + 1, bytes = bytes + length(new.body),
                    newest = new.position;
                UPDATE exchange_size SET bytes = bytes + length(new.body);
            END""",
        ],
    ),
    # Messages and events have no digest: each of them counts.
    Migration(
        "exchange",
        4,
        [
            "DROP INDEX exchange_log_by_digest",
            "CREATE INDEX exchange_log_by_digest ON exchange_log (item, digest, position) WHERE digest != x''",
        ],
    ),
]
"""To be given to `Database.open`."""
