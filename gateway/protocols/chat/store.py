"""The chat's tables: names that are taken here, who talks to whom, and what was said. Durable and bounded.

Every change of a message, also of its state, gets the next number; a page that was away asks for everything after the
last number it saw.
"""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum

from identifiers.lookalikes import shape
from storage import Database, Migration, Row, Transaction

MIGRATIONS = [
    Migration(
        "chat",
        1,
        [
            """CREATE TABLE chat_users (
                user    TEXT PRIMARY KEY,
                token   BLOB NOT NULL,
                seen_at REAL NOT NULL
            ) WITHOUT ROWID""",
            "CREATE INDEX chat_users_by_seen ON chat_users (seen_at)",
            """CREATE TABLE chat_partners (
                user      TEXT NOT NULL,
                partner   TEXT NOT NULL,
                opened_at REAL NOT NULL,
                PRIMARY KEY (user, partner)
            ) WITHOUT ROWID""",
            """CREATE TABLE chat_messages (
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
            )""",
            "CREATE INDEX chat_messages_by_change ON chat_messages (user, change)",
            "CREATE INDEX chat_messages_by_place ON chat_messages (user, partner, place)",
            # Work that is left: to be sent, to be acknowledged.
            "CREATE INDEX chat_messages_by_state ON chat_messages (state, place) WHERE state IN (0, 4)",
            "CREATE TABLE chat_changes (latest INTEGER NOT NULL)",
            "INSERT INTO chat_changes VALUES (0)",
        ],
        times=["chat_users.seen_at", "chat_partners.opened_at"],
    ),
    Migration(
        "chat",
        2,
        [
            # Whether a partner was told that somebody listens to them now.
            "ALTER TABLE chat_partners ADD COLUMN greeted INTEGER NOT NULL DEFAULT 0",
            "CREATE INDEX chat_partners_to_greet ON chat_partners (user, partner) WHERE greeted = 0",
            "CREATE UNIQUE INDEX chat_users_by_token ON chat_users (token)",
            "DROP INDEX chat_messages_by_state",
            "CREATE INDEX chat_messages_to_send ON chat_messages (user, place) WHERE state = 0",
            "CREATE INDEX chat_messages_owed ON chat_messages (user, partner, place) WHERE state = 4",
        ],
    ),
    Migration(
        "chat",
        3,
        [
            # What a name looks like; NULL for names of before, until the next start.
            "ALTER TABLE chat_users ADD COLUMN shape TEXT",
            "CREATE INDEX chat_users_by_shape ON chat_users (shape)",
        ],
    ),
]
_NO_PLACE = 2**62
_COLUMNS = "place, user, partner, mine, id, text, at, state, attempt, change"


class MessageState(IntEnum):
    """How far a message is. The first four are of our own messages, the others of a partner's."""

    WAITING = 0
    SENT = 1
    DELIVERED = 2
    FAILED = 3
    OWED = 4
    """It is here; its writer does not know yet."""
    ACKNOWLEDGED = 5


@dataclass(frozen=True, slots=True)
class Line:
    """One message in one person's history."""

    place: int
    user: str
    partner: str
    mine: bool
    id: str
    text: str
    at: float
    state: MessageState
    attempt: int
    change: int


def token_hash(token: str) -> bytes:
    """Tokens are long and random, so a plain hash is enough to keep a stolen file from being used."""
    return hashlib.sha256(token.encode("utf-8", "surrogateescape")).digest()


class ChatStore:
    """Reads are immediate; what writes is a function for `Database.write`."""

    def __init__(self, database: Database) -> None:
        self.database = database

    # People.

    def user_of(self, token: str) -> str | None:
        rows = self.database.read("SELECT user FROM chat_users WHERE token = ?", (token_hash(token),))
        return str(rows[0][0]) if rows else None

    def idle_users(self, before: float, unused_before: float, limit: int) -> list[str]:
        """Names that nobody used for long, or that were taken and never used to talk to anybody."""
        rows = self.database.read(
            "SELECT user FROM chat_users WHERE seen_at < ? OR (seen_at < ? AND NOT EXISTS ("
            "SELECT 1 FROM chat_partners WHERE chat_partners.user = chat_users.user)) LIMIT ?",
            (before, unused_before, limit),
        )
        return [str(user) for (user,) in rows]

    @staticmethod
    def claim(user: str, token: str, looks: str, now: float, max_users: int, tx: Transaction) -> bool | None:
        """Whether the name is now that token's; None when there is no room for more names.

        `looks` is what the name looks like: nobody else here has a name that looks the same.
        """
        if tx.execute("SELECT 1 FROM chat_users WHERE user = ? OR shape = ?", (user, looks)):
            return False
        if tx.execute("SELECT count(*) FROM chat_users")[0][0] >= max_users:
            return None
        tx.execute("INSERT INTO chat_users VALUES (?, ?, ?, ?)", (user, token_hash(token), now, looks))
        return True

    @staticmethod
    def know_shapes(tx: Transaction) -> None:
        """Names of a version that did not look at them are looked at now; they stay, also where two look alike."""
        for (user,) in tx.execute("SELECT user FROM chat_users WHERE shape IS NULL"):
            tx.execute("UPDATE chat_users SET shape = ? WHERE user = ?", (shape(str(user).rpartition("@")[0]), user))

    @staticmethod
    def seen(user: str, now: float, tx: Transaction) -> None:
        tx.execute("UPDATE chat_users SET seen_at = ? WHERE user = ?", (now, user))

    @staticmethod
    def forget_user(user: str, tx: Transaction) -> None:
        for table in ("chat_messages", "chat_partners", "chat_users"):
            tx.execute(f"DELETE FROM {table} WHERE user = ?", (user,))  # noqa: S608

    # Who talks to whom.

    def partners(self, user: str) -> list[str]:
        rows = self.database.read("SELECT partner FROM chat_partners WHERE user = ? ORDER BY partner", (user,))
        return [str(partner) for (partner,) in rows]

    def has_partner(self, user: str, partner: str) -> bool:
        return bool(self.database.read("SELECT 1 FROM chat_partners WHERE user = ? AND partner = ?", (user, partner)))

    def conversations(self, after: tuple[str, str], limit: int) -> list[tuple[str, str]]:
        rows = self.database.read(
            "SELECT user, partner FROM chat_partners WHERE (user, partner) > (?, ?) ORDER BY user, partner LIMIT ?",
            (*after, limit),
        )
        return [(str(user), str(partner)) for user, partner in rows]

    def is_greeted(self, user: str, partner: str) -> bool | None:
        """Whether the partner knows that the user listens; None when they do not talk."""
        rows = self.database.read("SELECT greeted FROM chat_partners WHERE user = ? AND partner = ?", (user, partner))
        return bool(rows[0][0]) if rows else None

    @staticmethod
    def open(user: str, partner: str, now: float, max_partners: int, tx: Transaction) -> bool:
        """False when there are too many already."""
        if tx.execute("SELECT 1 FROM chat_partners WHERE user = ? AND partner = ?", (user, partner)):
            return True
        if tx.execute("SELECT count(*) FROM chat_partners WHERE user = ?", (user,))[0][0] >= max_partners:
            return False
        tx.execute("INSERT INTO chat_partners (user, partner, opened_at) VALUES (?, ?, ?)", (user, partner, now))
        return True

    @staticmethod
    def greeted(user: str, partner: str, tx: Transaction) -> None:
        tx.execute("UPDATE chat_partners SET greeted = 1 WHERE user = ? AND partner = ?", (user, partner))

    @staticmethod
    def close(user: str, partner: str, tx: Transaction) -> None:
        for table in ("chat_messages", "chat_partners"):
            tx.execute(f"DELETE FROM {table} WHERE user = ? AND partner = ?", (user, partner))  # noqa: S608

    # What was said.

    def history(self, user: str, partner: str, before: int, limit: int) -> list[Line]:
        """Messages before a place, in order."""
        rows = self.database.read(
            f"SELECT {_COLUMNS} FROM chat_messages WHERE user = ? AND partner = ? AND place < ? "  # noqa: S608
            "ORDER BY place DESC LIMIT ?",
            (user, partner, before, limit),
        )
        return [_line(row) for row in reversed(rows)]

    def changes(self, user: str, after: int, limit: int) -> list[Line]:
        rows = self.database.read(
            f"SELECT {_COLUMNS} FROM chat_messages WHERE user = ? AND change > ? ORDER BY change LIMIT ?",  # noqa: S608
            (user, after, limit),
        )
        return [_line(row) for row in rows]

    def latest_change(self) -> int:
        return int(self.database.read("SELECT latest FROM chat_changes")[0][0])

    # Work that is left. The states are written out so that SQLite sees that its partial indexes fit.

    def senders(self) -> list[str]:
        """Who has messages that wait to be sent."""
        return [str(user) for (user,) in self.database.read("SELECT DISTINCT user FROM chat_messages WHERE state = 0")]

    def to_send(self, user: str, limit: int) -> list[Line]:
        rows = self.database.read(
            f"SELECT {_COLUMNS} FROM chat_messages WHERE state = 0 AND user = ? ORDER BY place LIMIT ?",  # noqa: S608
            (user, limit),
        )
        return [_line(row) for row in rows]

    def debtors(self) -> list[tuple[str, str]]:
        """Who owes whom a receipt, or a first sign of listening."""
        rows = self.database.read(
            "SELECT DISTINCT user, partner FROM chat_messages WHERE state = 4 "
            "UNION SELECT user, partner FROM chat_partners WHERE greeted = 0"
        )
        return [(str(user), str(partner)) for user, partner in rows]

    def owed(self, user: str, partner: str, limit: int) -> list[Line]:
        """Messages that arrived from a partner and were not acknowledged, in order."""
        rows = self.database.read(
            f"SELECT {_COLUMNS} FROM chat_messages WHERE state = 4 AND user = ? AND partner = ? "  # noqa: S608
            "ORDER BY place LIMIT ?",
            (user, partner, limit),
        )
        return [_line(row) for row in rows]

    def received(self, user: str, partner: str, limit: int) -> list[str]:
        """The latest messages that arrived for a user from a partner."""
        rows = self.database.read(
            "SELECT id FROM chat_messages WHERE user = ? AND partner = ? AND mine = 0 ORDER BY place DESC LIMIT ?",
            (user, partner, limit),
        )
        return [str(name) for (name,) in rows]

    @staticmethod
    def say(line: Line, keep: int, max_waiting: int, tx: Transaction) -> Line | None:
        """Write down a message of our own, once; None when too many wait already."""
        known = _find(line, tx)
        if known is not None:
            return known
        waiting = tx.execute("SELECT count(*) FROM chat_messages WHERE state = 0 AND user = ?", (line.user,))
        if waiting[0][0] >= max_waiting:
            return None
        return _insert(line, keep, tx)

    @staticmethod
    def arrive(line: Line, keep: int, tx: Transaction) -> bool:
        """Write down a partner's message; whether it is new. One that was here is only acknowledged again."""
        known = _find(line, tx)
        if known is not None:
            tx.execute("UPDATE chat_messages SET state = ? WHERE place = ?", (MessageState.OWED, known.place))
            return False
        _insert(line, keep, tx)
        return True

    @staticmethod
    def settle(place: int, expected: MessageState, state: MessageState, tx: Transaction) -> None:
        tx.execute(
            "UPDATE chat_messages SET state = ?, change = ? WHERE place = ? AND state = ?",
            (state, _next_change(tx), place, expected),
        )

    @staticmethod
    def acknowledged(places: Sequence[int], tx: Transaction) -> None:
        """Receipts are nothing that a page shows, so this is no change."""
        tx.execute_many(
            "UPDATE chat_messages SET state = ? WHERE place = ? AND state = ?",
            [(MessageState.ACKNOWLEDGED, place, MessageState.OWED) for place in places],
        )

    @staticmethod
    def delivered(
        user: str, partner: str, ids: Sequence[str], everything: bool, max_attempts: int, tx: Transaction
    ) -> bool:
        """A partner has these. What was sent before them and is not among them was missed, and with `everything`
        whatever is not among them: it is sent again. Whether something is."""
        last = _NO_PLACE if everything else 0
        for name in ids:
            rows = tx.execute(
                "SELECT place, state FROM chat_messages WHERE user = ? AND partner = ? AND mine = 1 AND id = ?",
                (user, partner, name),
            )
            if not rows:
                continue
            place, state = rows[0]
            last = max(last, place)
            if state != MessageState.DELIVERED:
                tx.execute(
                    "UPDATE chat_messages SET state = ?, change = ? WHERE place = ?",
                    (MessageState.DELIVERED, _next_change(tx), place),
                )
        again = tx.execute(
            "UPDATE chat_messages SET state = ?, attempt = attempt + 1 WHERE user = ? AND partner = ? AND mine = 1 "
            "AND state = ? AND place < ? AND attempt < ? RETURNING 1",
            (MessageState.WAITING, user, partner, MessageState.SENT, last, max_attempts),
        )
        return bool(again)


def _find(line: Line, tx: Transaction) -> Line | None:
    rows = tx.execute(
        f"SELECT {_COLUMNS} FROM chat_messages WHERE user = ? AND partner = ? AND mine = ? AND id = ?",  # noqa: S608
        (line.user, line.partner, line.mine, line.id),
    )
    return _line(rows[0]) if rows else None


def _insert(line: Line, keep: int, tx: Transaction) -> Line:
    rows = tx.execute(
        "INSERT INTO chat_messages (user, partner, mine, id, text, at, state, attempt, change) "  # noqa: S608
        f"VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?) RETURNING {_COLUMNS}",
        (line.user, line.partner, line.mine, line.id, line.text, line.at, line.state, line.attempt, _next_change(tx)),
    )
    tx.execute(
        "DELETE FROM chat_messages WHERE user = ? AND partner = ? AND place <= ("
        "SELECT place FROM chat_messages WHERE user = ? AND partner = ? ORDER BY place DESC LIMIT 1 OFFSET ?)",
        (line.user, line.partner, line.user, line.partner, keep),
    )
    return _line(rows[0])


def _next_change(tx: Transaction) -> int:
    return int(tx.execute("UPDATE chat_changes SET latest = latest + 1 RETURNING latest")[0][0])


def _line(row: Row) -> Line:
    place, user, partner, mine, name, text, at, state, attempt, change = row
    return Line(place, user, partner, bool(mine), name, text, at, MessageState(state), attempt, change)
