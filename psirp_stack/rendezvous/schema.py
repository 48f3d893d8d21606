"""The tables of the rendezvous.

Names are kept once and stand as small numbers everywhere else, because a million items have millions of memberships: a
row of `members` is about ten bytes.

`nodes` has a row for each *life* of a node, and one more while it declares everything anew. The rows of a life that is
over are emptied in portions, so that no request ever waits for a hundred thousand of them. `members` and `watchers`
refer to lives.
"""

from storage import Migration

OWNER = "rendezvous"

MIGRATIONS = (
    Migration(
        OWNER,
        1,
        (
            # `resync` and `repeat`: how far the sweeps that say matches again have come, NULL when none is under way.
            """
            CREATE TABLE rendezvous_state (
                one          INTEGER PRIMARY KEY CHECK (one = 1),
                generation   INTEGER NOT NULL,
                answered     INTEGER NOT NULL,
                scopes       INTEGER NOT NULL,
                resync       INTEGER,
                repeat       INTEGER,
                repeat_above INTEGER NOT NULL
            )
            """,
            "INSERT INTO rendezvous_state VALUES (1, 0, 0, 0, NULL, NULL, 0)",
            """
            CREATE TABLE nodes (
                no          INTEGER PRIMARY KEY,
                name        TEXT    NOT NULL,
                boot        INTEGER NOT NULL,
                state       INTEGER NOT NULL,
                digest      INTEGER NOT NULL,
                items       INTEGER NOT NULL,
                watches     INTEGER NOT NULL,
                last_number INTEGER NOT NULL,
                parts       INTEGER NOT NULL,
                next_part   INTEGER NOT NULL
            )
            """,
            "CREATE INDEX nodes_by_name ON nodes (name)",
            "CREATE INDEX nodes_over ON nodes (no) WHERE state = 2",
            """
            CREATE TABLE scopes (
                no        INTEGER PRIMARY KEY,
                sid       BLOB    NOT NULL UNIQUE,
                present   INTEGER NOT NULL,
                implicit  INTEGER NOT NULL,
                owner     BLOB,
                policy    BLOB,
                published INTEGER NOT NULL,
                recheck   BLOB
            )
            """,
            "INSERT INTO scopes VALUES (0, zeroblob(32), 1, 0, NULL, NULL, 0, NULL)",
            "CREATE INDEX scopes_to_recheck ON scopes (no) WHERE recheck IS NOT NULL",
            """
            CREATE TABLE edges (
                child  INTEGER NOT NULL,
                parent INTEGER NOT NULL,
                maker  TEXT,
                PRIMARY KEY (child, parent)
            ) WITHOUT ROWID
            """,
            "CREATE INDEX edges_down ON edges (parent, child)",
            "CREATE INDEX edges_made ON edges (maker) WHERE maker IS NOT NULL",
            """
            CREATE TABLE items (
                no          INTEGER PRIMARY KEY,
                scope       INTEGER NOT NULL,
                rid         BLOB    NOT NULL,
                generation  INTEGER NOT NULL,
                publishers  INTEGER NOT NULL,
                subscribers INTEGER NOT NULL,
                UNIQUE (scope, rid)
            )
            """,
            "CREATE INDEX items_gone ON items (generation) WHERE publishers = 0 AND subscribers = 0",
            """
            CREATE TABLE members (
                item INTEGER NOT NULL,
                role INTEGER NOT NULL,
                node INTEGER NOT NULL,
                key  BLOB,
                PRIMARY KEY (item, role, node)
            ) WITHOUT ROWID
            """,
            "CREATE INDEX members_of_node ON members (node, item, role)",
            # How far a watcher was told of the children that were there: phase 0 scopes, 1 items, 2 all of them.
            """
            CREATE TABLE watchers (
                scope     INTEGER NOT NULL,
                node      INTEGER NOT NULL,
                key       BLOB,
                phase     INTEGER NOT NULL,
                after_no  INTEGER NOT NULL,
                after_rid BLOB    NOT NULL,
                PRIMARY KEY (scope, node)
            ) WITHOUT ROWID
            """,
            "CREATE INDEX watchers_of_node ON watchers (node, scope)",
            "CREATE INDEX watchers_to_tell ON watchers (scope, node) WHERE phase < 2",
            # Events for nodes that may not have arrived yet.
            """
            CREATE TABLE kept_events (
                no      INTEGER PRIMARY KEY,
                node    TEXT NOT NULL,
                message BLOB NOT NULL
            )
            """,
            """
            CREATE TABLE unserved (
                sid        BLOB    NOT NULL,
                rid        BLOB    NOT NULL,
                generation INTEGER NOT NULL,
                report     BLOB    NOT NULL,
                PRIMARY KEY (sid, rid)
            ) WITHOUT ROWID
            """,
        ),
    ),
    Migration(
        OWNER,
        2,
        # By which key a node speaks: requests in its name that are not signed with it are not its own.
        ("ALTER TABLE nodes ADD COLUMN key BLOB",),
    ),
)
