"""Sessions, what they want and how far they are, on SQLite."""

import asyncio
from collections.abc import Awaitable, Sequence
from functools import lru_cache
from typing import Any

from exchange.model import Interest, SessionInfo, SessionKey, SessionState
from exchange.selection import ANYTHING, parse_selector
from exchange.sqlite.rows import item_from
from identifiers import ItemId
from storage import Database, Row, Transaction

_INTEREST = "name, item, place, until, convert, selector"
EVERYTHING = b""
parsed = lru_cache(10_000)(parse_selector)

MOVES_WAIT = 0.1
"""Seconds that a cursor's move waits for a commit that it can share."""


class SqliteSessions:
    def __init__(self, database: Database) -> None:
        self._database = database

    # Sessions.

    async def put(self, key: SessionKey, state: SessionState, now: float) -> None:
        await self._write(
            "INSERT INTO exchange_sessions (reader, who, state, changed) VALUES (?, ?, ?, ?) "
            "ON CONFLICT DO UPDATE SET state = excluded.state, changed = excluded.changed",
            (key.reader, key.who, state, now),
        )

    async def drop(self, key: SessionKey) -> list[Interest]:
        who = (key.reader, key.who)

        def work(tx: Transaction) -> list[Row]:
            for table in ("exchange_sessions", "exchange_cursors"):
                tx.execute(f"DELETE FROM {table} WHERE reader = ? AND who = ?", who)  # noqa: S608 - own names
            return tx.execute(
                f"DELETE FROM exchange_interests WHERE reader = ? AND who = ? RETURNING {_INTEREST}",  # noqa: S608
                who,
            )

        return [_interest(row) for row in await asyncio.wrap_future(self._database.write(work))]

    async def get(self, key: SessionKey) -> SessionInfo | None:
        found = self._infos("(reader, who) = (?, ?)", (key.reader, key.who))
        return found[0] if found else None

    async def listing(self, after: SessionKey, limit: int) -> list[SessionInfo]:
        return self._infos("(reader, who) > (?, ?) ORDER BY reader, who LIMIT ?", (after.reader, after.who, limit))

    def _infos(self, condition: str, parameters: Sequence[Any]) -> list[SessionInfo]:
        rows = self._database.read(
            "SELECT reader, who, state, changed, (SELECT count(*) FROM exchange_interests i "  # noqa: S608 - own names
            f"WHERE i.reader = s.reader AND i.who = s.who) FROM exchange_sessions s WHERE {condition}",
            parameters,
        )
        return [
            SessionInfo(SessionKey(reader, who), SessionState(state), True, interests, changed)
            for reader, who, state, changed, interests in rows
        ]

    # What they want.

    async def add_interest(self, key: SessionKey, interest: Interest, cursor: int | None, now: float) -> None:
        item = _packed(interest.item)

        def work(tx: Transaction) -> None:
            tx.execute(
                "INSERT INTO exchange_sessions (reader, who, state, changed) VALUES (?, ?, ?, ?) "
                "ON CONFLICT DO NOTHING",
                (key.reader, key.who, SessionState.LIVE, now),
            )
            before = tx.execute(
                "SELECT item FROM exchange_interests WHERE reader = ? AND who = ? AND name = ?",
                (key.reader, key.who, interest.name),
            )
            tx.execute(
                f"INSERT INTO exchange_interests (reader, who, {_INTEREST}) VALUES (?, ?, ?, ?, ?, ?, ?, ?) "  # noqa: S608
                "ON CONFLICT DO UPDATE SET item = excluded.item, place = excluded.place, until = excluded.until, "
                "convert = excluded.convert, selector = excluded.selector",
                (
                    key.reader,
                    key.who,
                    interest.name,
                    item,
                    interest.where,
                    interest.until,
                    interest.convert,
                    str(interest.selector),
                ),
            )
            if before and bytes(before[0][0]) != item:
                _forget_cursor(tx, key, bytes(before[0][0]))
            if cursor is not None:
                tx.execute(
                    "INSERT INTO exchange_cursors VALUES (?, ?, ?, ?) ON CONFLICT DO NOTHING",
                    (key.reader, key.who, item, cursor),
                )

        await self._database.transact(work)

    async def drop_interest(self, key: SessionKey, name: str) -> Interest | None:
        def work(tx: Transaction) -> list[Row]:
            rows = tx.execute(
                "DELETE FROM exchange_interests WHERE reader = ? AND who = ? AND name = ? "  # noqa: S608 - own names
                f"RETURNING {_INTEREST}",
                (key.reader, key.who, name),
            )
            for row in rows:
                _forget_cursor(tx, key, bytes(row[1]))
            if not tx.execute(
                "SELECT 1 FROM exchange_interests WHERE reader = ? AND who = ? LIMIT 1", (key.reader, key.who)
            ):
                tx.execute("DELETE FROM exchange_sessions WHERE reader = ? AND who = ?", (key.reader, key.who))
            return rows

        rows = await self._database.transact(work)
        return _interest(rows[0]) if rows else None

    async def interests(self, key: SessionKey) -> list[Interest]:
        rows = self._database.read(
            f"SELECT {_INTEREST} FROM exchange_interests WHERE reader = ? AND who = ? ORDER BY name",  # noqa: S608
            (key.reader, key.who),
        )
        return [_interest(row) for row in rows]

    async def of_item(self, item: ItemId, now: float) -> list[tuple[SessionKey, Interest]]:
        return self._found("item = ? AND until > ? ORDER BY reader, who, name", (bytes(item), now))

    async def of_session(self, key: SessionKey, item: ItemId, now: float) -> list[Interest]:
        found = self._found(
            "item = ? AND reader = ? AND who = ? AND until > ?", (bytes(item), key.reader, key.who, now)
        )
        return [interest for _, interest in found]

    async def of_everything(self) -> list[tuple[SessionKey, Interest]]:
        return self._found("item = ? ORDER BY reader, who", (EVERYTHING,))

    async def ended(self, now: float, limit: int) -> list[tuple[SessionKey, Interest]]:
        return self._found("until <= ? ORDER BY until LIMIT ?", (now, limit))

    async def items_after(self, item: bytes, limit: int, now: float) -> list[bytes]:
        rows = self._database.read(
            "SELECT DISTINCT item FROM exchange_interests WHERE item > ? AND until > ? ORDER BY item LIMIT ?",
            (item, now, limit),
        )
        return [bytes(packed) for (packed,) in rows]

    async def count(self, key: SessionKey) -> int:
        ((count,),) = self._database.read(
            "SELECT count(*) FROM exchange_interests WHERE reader = ? AND who = ?", (key.reader, key.who)
        )
        return int(count)

    async def has(self, key: SessionKey, name: str) -> bool:
        return bool(
            self._database.read(
                "SELECT 1 FROM exchange_interests WHERE reader = ? AND who = ? AND name = ?",
                (key.reader, key.who, name),
            )
        )

    def _found(self, condition: str, parameters: Sequence[Any]) -> list[tuple[SessionKey, Interest]]:
        rows = self._database.read(
            f"SELECT reader, who, {_INTEREST} FROM exchange_interests WHERE {condition}",  # noqa: S608 - own names
            parameters,
        )
        return [(SessionKey(row[0], row[1]), _interest(row[2:])) for row in rows]

    # How far they are.

    async def cursor(self, key: SessionKey, item: ItemId) -> int | None:
        rows = self._database.read(
            "SELECT position FROM exchange_cursors WHERE reader = ? AND who = ? AND item = ?",
            (key.reader, key.who, bytes(item)),
        )
        return int(rows[0][0]) if rows else None

    def move(self, key: SessionKey, item: ItemId, position: int) -> Awaitable[None]:
        def work(tx: Transaction) -> None:
            tx.execute(
                "INSERT INTO exchange_cursors VALUES (?1, ?2, ?3, ?4) "
                "ON CONFLICT DO UPDATE SET position = excluded.position",
                (key.reader, key.who, bytes(item), position),
            )

        return self._database.transact(work, MOVES_WAIT)

    def hurry(self) -> None:
        self._database.hurry()

    async def base(self, key: SessionKey) -> int:
        rows = self._database.read(
            "SELECT base FROM exchange_sessions WHERE reader = ? AND who = ?", (key.reader, key.who)
        )
        return int(rows[0][0]) if rows else 0

    def move_base(self, key: SessionKey, position: int) -> Awaitable[None]:
        def work(tx: Transaction) -> None:
            tx.execute(
                "UPDATE exchange_sessions SET base = ? WHERE reader = ? AND who = ?", (position, key.reader, key.who)
            )
            tx.execute(
                "DELETE FROM exchange_cursors WHERE reader = ? AND who = ? AND position <= ?",
                (key.reader, key.who, position),
            )

        return asyncio.wrap_future(self._database.write(work))

    async def unread(self, limit: int, after: tuple[SessionKey, bytes]) -> list[tuple[SessionKey, ItemId]]:
        key, item = after
        rows = self._database.read(
            "SELECT DISTINCT c.reader, c.who, c.item FROM exchange_cursors c "
            "JOIN exchange_items i ON i.item = c.item AND i.newest > c.position "
            "JOIN exchange_interests w ON w.reader = c.reader AND w.who = c.who AND w.item = c.item "
            "WHERE (c.reader, c.who, c.item) > (?, ?, ?) ORDER BY c.reader, c.who, c.item LIMIT ?",
            (key.reader, key.who, item, limit),
        )
        return [(SessionKey(reader, who), item_from(bytes(packed))) for reader, who, packed in rows]

    def _write(self, sql: str, parameters: Sequence[Any]) -> Awaitable[None]:
        def work(tx: Transaction) -> None:
            tx.execute(sql, parameters)

        return self._database.transact(work)


def _forget_cursor(tx: Transaction, key: SessionKey, item: bytes) -> None:
    """Unless the session wants the item by another name still."""
    who = (key.reader, key.who, item)
    if not tx.execute("SELECT 1 FROM exchange_interests WHERE reader = ? AND who = ? AND item = ? LIMIT 1", who):
        tx.execute("DELETE FROM exchange_cursors WHERE reader = ? AND who = ? AND item = ?", who)


def _packed(item: ItemId | None) -> bytes:
    return EVERYTHING if item is None else bytes(item)


def _interest(row: Sequence[Any]) -> Interest:
    name, packed, place, until, convert, selector = row
    item = item_from(bytes(packed)) if packed else None
    return Interest(name, item, place, until, convert, parsed(selector) if selector else ANYTHING)
