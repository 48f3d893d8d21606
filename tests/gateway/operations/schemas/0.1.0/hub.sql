BEGIN TRANSACTION;
CREATE TABLE canaries (topic TEXT PRIMARY KEY) WITHOUT ROWID;
INSERT INTO "canaries" VALUES('x');
CREATE TABLE dead_letters (
                id           INTEGER PRIMARY KEY,
                subscription INTEGER NOT NULL,
                publication  INTEGER NOT NULL,
                topic        TEXT NOT NULL,
                callback     TEXT NOT NULL,
                attempts     INTEGER NOT NULL,
                reason       TEXT NOT NULL,
                died_at      REAL NOT NULL
            );
INSERT INTO "dead_letters" VALUES(1,1,1,'x','x',1,'x',1.5);
CREATE TABLE delivered_pages (
                id            INTEGER PRIMARY KEY AUTOINCREMENT,
                publication   INTEGER NOT NULL REFERENCES publications (id) ON DELETE CASCADE,
                last_id       INTEGER NOT NULL,
                saved_at      REAL NOT NULL,
                subscriptions BLOB NOT NULL,
                statuses      BLOB NOT NULL
            );
INSERT INTO "delivered_pages" VALUES(1,1,1,1.5,X'01010101010101010101010101010101010101010101010101010101010101010101010101010101010101010101010101010101010101010101010101010101',X'01010101010101010101010101010101010101010101010101010101010101010101010101010101010101010101010101010101010101010101010101010101');
CREATE TABLE entries (
                topic   TEXT NOT NULL,
                entry   BLOB NOT NULL,
                digest  BLOB NOT NULL,
                seen_at REAL NOT NULL,
                PRIMARY KEY (topic, entry)
            ) WITHOUT ROWID;
INSERT INTO "entries" VALUES('x',X'01010101010101010101010101010101010101010101010101010101010101010101010101010101010101010101010101010101010101010101010101010101',X'01010101010101010101010101010101010101010101010101010101010101010101010101010101010101010101010101010101010101010101010101010101',1.5);
CREATE TABLE fanouts (
                publication INTEGER PRIMARY KEY REFERENCES publications (id) ON DELETE CASCADE,
                position    INTEGER NOT NULL
            );
INSERT INTO "fanouts" VALUES(1,1);
CREATE TABLE health_probe (id INTEGER PRIMARY KEY CHECK (id = 1), at REAL NOT NULL);
INSERT INTO "health_probe" VALUES(1,1.5);
CREATE TABLE log_size (publications INTEGER NOT NULL, bytes INTEGER NOT NULL);
INSERT INTO "log_size" VALUES(1,128);
INSERT INTO "log_size" VALUES(1,1);
CREATE TABLE pings (
                topic       TEXT PRIMARY KEY,
                received_at REAL NOT NULL
            ) WITHOUT ROWID;
INSERT INTO "pings" VALUES('x',1.5);
CREATE TABLE publications (
                id           INTEGER PRIMARY KEY AUTOINCREMENT,
                topic        TEXT NOT NULL,
                self_url     TEXT NOT NULL,
                content_type TEXT NOT NULL,
                body         BLOB NOT NULL,
                changes      BLOB,
                accepted_at  REAL NOT NULL
            , brought INTEGER NOT NULL DEFAULT 0);
INSERT INTO "publications" VALUES(1,'x','x','x',X'01010101010101010101010101010101010101010101010101010101010101010101010101010101010101010101010101010101010101010101010101010101',X'01010101010101010101010101010101010101010101010101010101010101010101010101010101010101010101010101010101010101010101010101010101',1.5,1);
CREATE TABLE refreshes (
                subscription INTEGER PRIMARY KEY REFERENCES subscriptions (id) ON DELETE CASCADE,
                verify_token TEXT,
                lease_asked  INTEGER,
                refresh_at   REAL
            );
INSERT INTO "refreshes" VALUES(1,'x',1,1.5);
CREATE TABLE retries (
                subscription INTEGER NOT NULL,
                publication  INTEGER NOT NULL REFERENCES publications (id) ON DELETE CASCADE,
                attempts     INTEGER NOT NULL,
                next_try_at  REAL NOT NULL,
                reason       TEXT NOT NULL,
                PRIMARY KEY (subscription, publication)
            ) WITHOUT ROWID;
INSERT INTO "retries" VALUES(1,1,1,1.5,'x');
CREATE TABLE schema_version (
    owner   TEXT PRIMARY KEY,
    version INTEGER NOT NULL
) WITHOUT ROWID
;
INSERT INTO "schema_version" VALUES('push_hub',2);
INSERT INTO "schema_version" VALUES('push_hub.canary',1);
INSERT INTO "schema_version" VALUES('push_hub.health',1);
INSERT INTO "schema_version" VALUES('push_hub.intake',2);
INSERT INTO "schema_version" VALUES('push_hub.subscriptions',2);
INSERT INTO "schema_version" VALUES('push_hub_delivery',2);
CREATE TABLE sources (
                topic         TEXT PRIMARY KEY,
                validated_url TEXT NOT NULL,
                moved_to      TEXT,
                moved_at      REAL,
                frame_digest  BLOB
            , ttl REAL, skip_hours INTEGER NOT NULL DEFAULT 0, skip_days INTEGER NOT NULL DEFAULT 0) WITHOUT ROWID;
INSERT INTO "sources" VALUES('x','x','x',1.5,X'01010101010101010101010101010101010101010101010101010101010101010101010101010101010101010101010101010101010101010101010101010101',1.5,1,1);
CREATE TABLE subscriber_counts (topic TEXT PRIMARY KEY, live INTEGER NOT NULL) WITHOUT ROWID;
INSERT INTO "subscriber_counts" VALUES('x',1);
CREATE TABLE subscription_history (
                id       INTEGER PRIMARY KEY AUTOINCREMENT,
                topic    TEXT NOT NULL,
                callback TEXT NOT NULL,
                at       REAL NOT NULL,
                what     TEXT NOT NULL
            );
INSERT INTO "subscription_history" VALUES(1,'x','x',1.5,'x');
CREATE TABLE subscriptions (
                id          INTEGER PRIMARY KEY AUTOINCREMENT,
                topic       TEXT NOT NULL,
                callback    TEXT NOT NULL,
                secret      BLOB,
                signature   TEXT NOT NULL,
                dialect     TEXT NOT NULL,
                lease_until REAL NOT NULL,
                created_at  REAL NOT NULL, difference INTEGER NOT NULL DEFAULT 0,
                UNIQUE (topic, callback)
            );
INSERT INTO "subscriptions" VALUES(1,'x','x',X'01010101010101010101010101010101010101010101010101010101010101010101010101010101010101010101010101010101010101010101010101010101','x','x',1.5,1.5,1);
CREATE TABLE topics (
                url           TEXT PRIMARY KEY,
                self_url      TEXT NOT NULL,
                etag          TEXT,
                last_modified TEXT,
                body_digest   BLOB,
                fetched_at    REAL,
                outcome       TEXT,
                poll_every    REAL,
                poll_at       REAL
            ) WITHOUT ROWID;
INSERT INTO "topics" VALUES('x','x','x','x',X'01010101010101010101010101010101010101010101010101010101010101010101010101010101010101010101010101010101010101010101010101010101',1.5,'x',1.5,1.5);
CREATE TABLE tries (
                id           INTEGER PRIMARY KEY AUTOINCREMENT,
                subscription INTEGER NOT NULL,
                publication  INTEGER NOT NULL,
                at           REAL NOT NULL,
                status       INTEGER NOT NULL,
                reason       TEXT
            );
INSERT INTO "tries" VALUES(1,1,1,1.5,1,'x');
CREATE TABLE verifications (
                id           INTEGER PRIMARY KEY,
                mode         TEXT NOT NULL,
                topic        TEXT NOT NULL,
                callback     TEXT NOT NULL,
                request      TEXT NOT NULL,
                attempts     INTEGER NOT NULL DEFAULT 0,
                next_try_at  REAL NOT NULL,
                UNIQUE (topic, callback)
            );
INSERT INTO "verifications" VALUES(1,'x','x','x','x',1,1.5);
CREATE INDEX verifications_due ON verifications (next_try_at);
CREATE INDEX subscriptions_by_topic ON subscriptions (topic, id);
CREATE INDEX subscriptions_by_lease ON subscriptions (lease_until);
CREATE INDEX topics_by_poll ON topics (poll_at) WHERE poll_at IS NOT NULL;
CREATE INDEX publications_by_topic ON publications (topic, id);
CREATE INDEX retries_due ON retries (next_try_at);
CREATE INDEX retries_by_publication ON retries (publication);
CREATE INDEX delivered_pages_by_publication ON delivered_pages (publication, last_id);
CREATE INDEX tries_by_subscription ON tries (subscription, id);
CREATE TRIGGER publication_added AFTER INSERT ON publications BEGIN
                UPDATE log_size SET publications = publications + 1,
                    bytes = bytes + length(new.body) + coalesce(length(new.changes), 0);
            END;
CREATE TRIGGER publication_removed AFTER DELETE ON publications BEGIN
                UPDATE log_size SET publications = publications - 1,
                    bytes = bytes - length(old.body) - coalesce(length(old.changes), 0);
            END;
CREATE INDEX refreshes_due ON refreshes (refresh_at) WHERE refresh_at IS NOT NULL;
CREATE TRIGGER subscription_added AFTER INSERT ON subscriptions BEGIN
                INSERT INTO subscriber_counts VALUES (new.topic, 1)
                ON CONFLICT (topic) DO UPDATE SET live = live + 1;
            END;
CREATE TRIGGER subscription_removed AFTER DELETE ON subscriptions BEGIN
                UPDATE subscriber_counts SET live = live - 1 WHERE topic = old.topic;
                DELETE FROM subscriber_counts WHERE topic = old.topic AND live = 0;
            END;
CREATE INDEX subscription_history_by_key ON subscription_history (topic, callback, id);
CREATE INDEX dead_letters_by_subscription ON dead_letters (subscription);
DELETE FROM "sqlite_sequence";
INSERT INTO "sqlite_sequence" VALUES('subscriptions',1);
INSERT INTO "sqlite_sequence" VALUES('publications',1);
INSERT INTO "sqlite_sequence" VALUES('delivered_pages',1);
INSERT INTO "sqlite_sequence" VALUES('tries',1);
INSERT INTO "sqlite_sequence" VALUES('subscription_history',1);
COMMIT;
