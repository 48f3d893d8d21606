BEGIN TRANSACTION;
CREATE TABLE chat_changes (latest INTEGER NOT NULL);
INSERT INTO "chat_changes" VALUES(0);
INSERT INTO "chat_changes" VALUES(1);
CREATE TABLE chat_messages (
                place   INTEGER PRIMARY KEY AUTOINCREMENT,
                user    TEXT NOT NULL,
                partner TEXT NOT NULL,
                mine    INTEGER NOT NULL,
                id      TEXT NOT NULL,
                text    TEXT NOT NULL,
                at      REAL NOT NULL,
                state   INTEGER NOT NULL,
                attempt INTEGER NOT NULL,
                change  INTEGER NOT NULL,
                UNIQUE (user, partner, mine, id)
            );
INSERT INTO "chat_messages" VALUES(1,'x','x',1,'x','x',1.5,1,1,1);
CREATE TABLE chat_partners (
                user      TEXT NOT NULL,
                partner   TEXT NOT NULL,
                opened_at REAL NOT NULL,
                PRIMARY KEY (user, partner)
            ) WITHOUT ROWID;
INSERT INTO "chat_partners" VALUES('x','x',1.5);
CREATE TABLE chat_users (
                user    TEXT PRIMARY KEY,
                token   BLOB NOT NULL,
                seen_at REAL NOT NULL
            ) WITHOUT ROWID;
INSERT INTO "chat_users" VALUES('x',X'01010101010101010101010101010101010101010101010101010101010101010101010101010101010101010101010101010101010101010101010101010101',1.5);
CREATE TABLE control_subscriptions (
                adapter TEXT NOT NULL,
                who     TEXT NOT NULL,
                what    TEXT NOT NULL,
                "where" TEXT NOT NULL,
                item    BLOB NOT NULL,
                until   REAL NOT NULL,
                PRIMARY KEY (adapter, who, what)
            ) WITHOUT ROWID;
INSERT INTO "control_subscriptions" VALUES('x','x','x','x',X'01010101010101010101010101010101010101010101010101010101010101010101010101010101010101010101010101010101010101010101010101010101',1.5);
CREATE TABLE cursors (name TEXT PRIMARY KEY, position INTEGER NOT NULL) WITHOUT ROWID;
INSERT INTO "cursors" VALUES('x',1);
CREATE TABLE export_positions (what TEXT PRIMARY KEY, position INTEGER NOT NULL) WITHOUT ROWID;
INSERT INTO "export_positions" VALUES('x',1);
CREATE TABLE exports (item BLOB PRIMARY KEY, adapter TEXT NOT NULL, what TEXT NOT NULL) WITHOUT ROWID;
INSERT INTO "exports" VALUES(X'01010101010101010101010101010101010101010101010101010101010101010101010101010101010101010101010101010101010101010101010101010101','x','x');
CREATE TABLE inbox (
                item         BLOB PRIMARY KEY,
                version      BLOB NOT NULL,
                kind         TEXT NOT NULL,
                name         TEXT NOT NULL,
                content_type TEXT NOT NULL,
                self_url     TEXT NOT NULL,
                published_ms INTEGER NOT NULL,
                body         BLOB NOT NULL
            );
INSERT INTO "inbox" VALUES(X'01010101010101010101010101010101010101010101010101010101010101010101010101010101010101010101010101010101010101010101010101010101',X'01010101010101010101010101010101010101010101010101010101010101010101010101010101010101010101010101010101010101010101010101010101','x','x','x','x',1,X'01010101010101010101010101010101010101010101010101010101010101010101010101010101010101010101010101010101010101010101010101010101');
CREATE TABLE requester (id TEXT PRIMARY KEY, last_number INTEGER NOT NULL) WITHOUT ROWID;
INSERT INTO "requester" VALUES('x',1);
CREATE TABLE schema_version (
    owner   TEXT PRIMARY KEY,
    version INTEGER NOT NULL
) WITHOUT ROWID
;
INSERT INTO "schema_version" VALUES('chat',1);
INSERT INTO "schema_version" VALUES('gateway',2);
INSERT INTO "schema_version" VALUES('gateway.bootstrapping',1);
INSERT INTO "schema_version" VALUES('push_hub.client',3);
CREATE TABLE taken_versions (item BLOB PRIMARY KEY, version BLOB NOT NULL) WITHOUT ROWID;
INSERT INTO "taken_versions" VALUES(X'01010101010101010101010101010101010101010101010101010101010101010101010101010101010101010101010101010101010101010101010101010101',X'01010101010101010101010101010101010101010101010101010101010101010101010101010101010101010101010101010101010101010101010101010101');
CREATE TABLE upstreams (
                topic    TEXT PRIMARY KEY,
                kind     TEXT NOT NULL,
                upstream TEXT NOT NULL,
                accepted INTEGER NOT NULL,
                reason   TEXT NOT NULL
            ) WITHOUT ROWID;
INSERT INTO "upstreams" VALUES('x','x','x',1,'x');
CREATE TABLE wishes (
                token       TEXT PRIMARY KEY,
                topic       TEXT NOT NULL,
                hub         TEXT NOT NULL,
                secret      BLOB,
                state       TEXT NOT NULL,
                lease_until REAL NOT NULL,
                renew_at    REAL NOT NULL,
                attempts    INTEGER NOT NULL,
                reason      TEXT NOT NULL, next_token TEXT, retired TEXT, page TEXT NOT NULL DEFAULT '', verify_token TEXT,
                UNIQUE (topic, hub)
            ) WITHOUT ROWID;
INSERT INTO "wishes" VALUES('x','x','x',X'01010101010101010101010101010101010101010101010101010101010101010101010101010101010101010101010101010101010101010101010101010101','x',1.5,1.5,1,'x','x','x','x','x');
CREATE TABLE zone_requests (
                zone      TEXT NOT NULL,
                requester TEXT NOT NULL,
                topic     TEXT NOT NULL,
                number    INTEGER NOT NULL,
                until     REAL NOT NULL,
                PRIMARY KEY (zone, requester, topic)
            ) WITHOUT ROWID;
INSERT INTO "zone_requests" VALUES('x','x','x',1,1.5);
CREATE TABLE zones_asked (zone TEXT PRIMARY KEY) WITHOUT ROWID;
INSERT INTO "zones_asked" VALUES('x');
CREATE INDEX control_subscriptions_by_item ON control_subscriptions (item);
CREATE INDEX control_subscriptions_by_end ON control_subscriptions (until);
CREATE INDEX upstreams_by_upstream ON upstreams (upstream);
CREATE INDEX upstreams_by_kind ON upstreams (kind);
CREATE INDEX wishes_by_renewal ON wishes (renew_at);
CREATE INDEX wishes_by_next_token ON wishes (next_token) WHERE next_token IS NOT NULL;
CREATE INDEX wishes_by_retired ON wishes (retired) WHERE retired IS NOT NULL;
CREATE INDEX wishes_by_page ON wishes (page);
CREATE INDEX chat_users_by_seen ON chat_users (seen_at);
CREATE INDEX chat_messages_by_change ON chat_messages (user, change);
CREATE INDEX chat_messages_by_place ON chat_messages (user, partner, place);
CREATE INDEX chat_messages_by_state ON chat_messages (state, place) WHERE state IN (0, 4);
DELETE FROM "sqlite_sequence";
INSERT INTO "sqlite_sequence" VALUES('chat_messages',1);
COMMIT;
