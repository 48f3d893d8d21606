"""The hub's tables. A released migration is never edited: add another."""

from storage import Migration

HUB_TABLES = [
    Migration(
        "push_hub",
        1,
        [
            # What was asked of us and is not finished: survives a crash between acknowledgement and work.
            """CREATE TABLE pings (
                topic       TEXT PRIMARY KEY,
                received_at REAL NOT NULL
            ) WITHOUT ROWID""",
            """CREATE TABLE verifications (
                id           INTEGER PRIMARY KEY,
                mode         TEXT NOT NULL,
                topic        TEXT NOT NULL,
                callback     TEXT NOT NULL,
                request      TEXT NOT NULL,
                attempts     INTEGER NOT NULL DEFAULT 0,
                next_try_at  REAL NOT NULL,
                UNIQUE (topic, callback)
            )""",
            "CREATE INDEX verifications_due ON verifications (next_try_at)",
            # Who is subscribed.
            """CREATE TABLE subscriptions (
                id          INTEGER PRIMARY KEY AUTOINCREMENT,
                topic       TEXT NOT NULL,
                callback    TEXT NOT NULL,
                secret      BLOB,
                signature   TEXT NOT NULL,
                dialect     TEXT NOT NULL,
                lease_until REAL NOT NULL,
                created_at  REAL NOT NULL,
                UNIQUE (topic, callback)
            )""",
            "CREATE INDEX subscriptions_by_topic ON subscriptions (topic, id)",
            "CREATE INDEX subscriptions_by_lease ON subscriptions (lease_until)",
            # What is known of a topic's source.
            """CREATE TABLE topics (
                url           TEXT PRIMARY KEY,
                self_url      TEXT NOT NULL,
                etag          TEXT,
                last_modified TEXT,
                body_digest   BLOB,
                fetched_at    REAL,
                outcome       TEXT,
                poll_every    REAL,
                poll_at       REAL
            ) WITHOUT ROWID""",
            "CREATE INDEX topics_by_poll ON topics (poll_at) WHERE poll_at IS NOT NULL",
            """CREATE TABLE entries (
                topic   TEXT NOT NULL,
                entry   BLOB NOT NULL,
                digest  BLOB NOT NULL,
                seen_at REAL NOT NULL,
                PRIMARY KEY (topic, entry)
            ) WITHOUT ROWID""",
            # The log, the cursor of each unfinished fan-out, and what failed.
            """CREATE TABLE publications (
                id           INTEGER PRIMARY KEY AUTOINCREMENT,
                topic        TEXT NOT NULL,
                self_url     TEXT NOT NULL,
                content_type TEXT NOT NULL,
                body         BLOB NOT NULL,
                changes      BLOB,
                accepted_at  REAL NOT NULL
            )""",
            "CREATE INDEX publications_by_topic ON publications (topic, id)",
            """CREATE TABLE fanouts (
                publication INTEGER PRIMARY KEY REFERENCES publications (id) ON DELETE CASCADE,
                position    INTEGER NOT NULL
            )""",
            """CREATE TABLE retries (
                subscription INTEGER NOT NULL,
                publication  INTEGER NOT NULL REFERENCES publications (id) ON DELETE CASCADE,
                attempts     INTEGER NOT NULL,
                next_try_at  REAL NOT NULL,
                reason       TEXT NOT NULL,
                PRIMARY KEY (subscription, publication)
            ) WITHOUT ROWID""",
            "CREATE INDEX retries_due ON retries (next_try_at)",
            "CREATE INDEX retries_by_publication ON retries (publication)",
            """CREATE TABLE dead_letters (
                id           INTEGER PRIMARY KEY,
                subscription INTEGER NOT NULL,
                publication  INTEGER NOT NULL,
                topic        TEXT NOT NULL,
                callback     TEXT NOT NULL,
                attempts     INTEGER NOT NULL,
                reason       TEXT NOT NULL,
                died_at      REAL NOT NULL
            )""",
        ],
        times=[
            "pings.received_at",
            "verifications.next_try_at",
            "subscriptions.lease_until",
            "subscriptions.created_at",
            "topics.fetched_at",
            "topics.poll_at",
            "publications.accepted_at",
            "retries.next_try_at",
            "dead_letters.died_at",
        ],
    ),
    Migration(
        "push_hub",
        2,
        # What a gateway brought from another network: it must never be sent back there.
        ["ALTER TABLE publications ADD COLUMN brought INTEGER NOT NULL DEFAULT 0"],
    ),
]

SUBSCRIPTION_TABLES = [
    Migration(
        "push_hub.subscriptions",
        1,
        [
            # 0.3 only: what the hub needs to recheck a subscription by itself before its lease ends.
            """CREATE TABLE refreshes (
                subscription INTEGER PRIMARY KEY REFERENCES subscriptions (id) ON DELETE CASCADE,
                verify_token TEXT,
                lease_asked  INTEGER,
                refresh_at   REAL
            )""",
            "CREATE INDEX refreshes_due ON refreshes (refresh_at) WHERE refresh_at IS NOT NULL",
            # Counting a topic's rows would cost as much as it has subscribers, at each change.
            "CREATE TABLE subscriber_counts (topic TEXT PRIMARY KEY, live INTEGER NOT NULL) WITHOUT ROWID",
            "INSERT INTO subscriber_counts SELECT topic, COUNT(*) FROM subscriptions GROUP BY topic",
            """CREATE TRIGGER subscription_added AFTER INSERT ON subscriptions BEGIN
                INSERT INTO subscriber_counts VALUES (new.topic, 1)
                ON CONFLICT (topic) DO UPDATE SET live = live + 1;
            END""",
            """CREATE TRIGGER subscription_removed AFTER DELETE ON subscriptions BEGIN
                UPDATE subscriber_counts SET live = live - 1 WHERE topic = old.topic;
                DELETE FROM subscriber_counts WHERE topic = old.topic AND live = 0;
            END""",
            """CREATE TABLE subscription_history (
                id       INTEGER PRIMARY KEY AUTOINCREMENT,
                topic    TEXT NOT NULL,
                callback TEXT NOT NULL,
                at       REAL NOT NULL,
                what     TEXT NOT NULL
            )""",
            "CREATE INDEX subscription_history_by_key ON subscription_history (topic, callback, id)",
        ],
        times=["refreshes.refresh_at", "subscription_history.at"],
    ),
    Migration(
        "push_hub.subscriptions",
        2,
        [
            "ALTER TABLE subscriptions ADD COLUMN difference INTEGER NOT NULL DEFAULT 0",
            "CREATE INDEX dead_letters_by_subscription ON dead_letters (subscription)",
        ],
    ),
    Migration(
        "push_hub.subscriptions",
        3,
        [
            # Whether anybody wants reduced documents of a topic, without looking through all its subscribers.
            "CREATE INDEX subscriptions_reduced ON subscriptions (topic) WHERE dialect = '0.3' OR difference = 1",
            # Another one after every change of a topic's subscriptions: what was read with it is good until then.
            "ALTER TABLE subscriber_counts ADD COLUMN stamp INTEGER NOT NULL DEFAULT 0",
            "DROP TRIGGER subscription_added",
            "DROP TRIGGER subscription_removed",
            """CREATE TRIGGER subscription_added AFTER INSERT ON subscriptions BEGIN
                INSERT INTO subscriber_counts VALUES (new.topic, 1, random())
                ON CONFLICT (topic) DO UPDATE SET live = live + 1, stamp = random();
            END""",
            """CREATE TRIGGER subscription_changed AFTER UPDATE ON subscriptions BEGIN
                UPDATE subscriber_counts SET stamp = random() WHERE topic = new.topic;
            END""",
            """CREATE TRIGGER subscription_removed AFTER DELETE ON subscriptions BEGIN
                UPDATE subscriber_counts SET live = live - 1, stamp = random() WHERE topic = old.topic;
                DELETE FROM subscriber_counts WHERE topic = old.topic AND live = 0;
            END""",
        ],
    ),
    Migration(
        "push_hub.clients",
        1,
        [
            # Who asked for a subscription, or for one that waits for its check. '' is the hub itself, or an older row.
            "ALTER TABLE subscriptions ADD COLUMN address TEXT NOT NULL DEFAULT ''",
            "ALTER TABLE subscriptions ADD COLUMN network TEXT NOT NULL DEFAULT ''",
            "ALTER TABLE verifications ADD COLUMN address TEXT NOT NULL DEFAULT ''",
            "ALTER TABLE verifications ADD COLUMN network TEXT NOT NULL DEFAULT ''",
            # How many an address has; a network, where the address is ''; everybody, where both are ''.
            """CREATE TABLE client_counts (
                network TEXT NOT NULL,
                address TEXT NOT NULL,
                live    INTEGER NOT NULL DEFAULT 0,
                pending INTEGER NOT NULL DEFAULT 0,
                PRIMARY KEY (network, address)
            ) WITHOUT ROWID""",
            """INSERT INTO client_counts
                SELECT '', '', (SELECT COUNT(*) FROM subscriptions), (SELECT COUNT(*) FROM verifications)""",
            """CREATE TRIGGER subscriptions_charged AFTER INSERT ON subscriptions BEGIN
                INSERT INTO client_counts (network, address, live)
                SELECT '', '', 1 UNION SELECT new.network, '', 1 UNION SELECT new.network, new.address, 1 WHERE true
                ON CONFLICT (network, address) DO UPDATE SET live = live + 1;
            END""",
            """CREATE TRIGGER subscriptions_charged_otherwise AFTER UPDATE OF network, address ON subscriptions
            WHEN new.network != old.network OR new.address != old.address BEGIN
                UPDATE client_counts SET live = live - 1
                WHERE (network, address) IN (VALUES ('', ''), (old.network, ''), (old.network, old.address));
                INSERT INTO client_counts (network, address, live)
                SELECT '', '', 1 UNION SELECT new.network, '', 1 UNION SELECT new.network, new.address, 1 WHERE true
                ON CONFLICT (network, address) DO UPDATE SET live = live + 1;
                DELETE FROM client_counts WHERE live = 0 AND pending = 0
                AND (network, address) IN (VALUES ('', ''), (old.network, ''), (old.network, old.address));
            END""",
            """CREATE TRIGGER subscriptions_no_longer_charged AFTER DELETE ON subscriptions BEGIN
                UPDATE client_counts SET live = live - 1
                WHERE (network, address) IN (VALUES ('', ''), (old.network, ''), (old.network, old.address));
                DELETE FROM client_counts WHERE live = 0 AND pending = 0
                AND (network, address) IN (VALUES ('', ''), (old.network, ''), (old.network, old.address));
            END""",
            """CREATE TRIGGER verifications_charged AFTER INSERT ON verifications BEGIN
                INSERT INTO client_counts (network, address, pending)
                SELECT '', '', 1 UNION SELECT new.network, '', 1 UNION SELECT new.network, new.address, 1 WHERE true
                ON CONFLICT (network, address) DO UPDATE SET pending = pending + 1;
            END""",
            """CREATE TRIGGER verifications_charged_otherwise AFTER UPDATE OF network, address ON verifications
            WHEN new.network != old.network OR new.address != old.address BEGIN
                UPDATE client_counts SET pending = pending - 1
                WHERE (network, address) IN (VALUES ('', ''), (old.network, ''), (old.network, old.address));
                INSERT INTO client_counts (network, address, pending)
                SELECT '', '', 1 UNION SELECT new.network, '', 1 UNION SELECT new.network, new.address, 1 WHERE true
                ON CONFLICT (network, address) DO UPDATE SET pending = pending + 1;
                DELETE FROM client_counts WHERE live = 0 AND pending = 0
                AND (network, address) IN (VALUES ('', ''), (old.network, ''), (old.network, old.address));
            END""",
            """CREATE TRIGGER verifications_no_longer_charged AFTER DELETE ON verifications BEGIN
                UPDATE client_counts SET pending = pending - 1
                WHERE (network, address) IN (VALUES ('', ''), (old.network, ''), (old.network, old.address));
                DELETE FROM client_counts WHERE live = 0 AND pending = 0
                AND (network, address) IN (VALUES ('', ''), (old.network, ''), (old.network, old.address));
            END""",
        ],
    ),
]
