"""The log on SQLite. A draft is judged inside the transaction that keeps it, so two of them never miss each other."""

import asyncio
import hashlib
from collections.abc import Awaitable, Sequence
from dataclasses import dataclass, replace
from functools import partial

from exchange.judging import Judgement, Reached, Ruling, Twin, judge
from exchange.model import (
    MAX_KNOWN,
    Appended,
    Draft,
    LogEntry,
    Mark,
    OriginId,
    Profile,
    RetentionBounds,
    pack_origins,
)
from exchange.ports import Wanted
from exchange.sqlite.rows import ENTRY_COLUMNS, attributes_to, entry_from, item_from
from identifiers import ItemId
from storage import Database, Transaction

REMOVED_AT_ONCE = 500
TWINS_LOOKED_AT = 64
MARKS_WAIT = 0.1
"""Seconds that marks nobody waits for wait for a commit that they can share."""
NO_POSITION = 1 << 62
SHORT_BODY = 64 * 1024
"""Bytes that are written on the event loop; longer ones are for the writer's thread."""


@dataclass(slots=True)
class _Entering:
    """An item of which several drafts enter in one commit."""

    packed: bytes
    known: bytes
    count: int = 0
    bytes: int = 0
    place: int = 0
    """Of the last of them."""


class SqliteLog:
    """`keep` and `hold` are for other tables in the same file that are written in one commit with an entry."""

    def __init__(self, database: Database) -> None:
        self._database = database
        ((gateway,),) = database.read("SELECT gateway FROM exchange_self")
        self._gateway = bytes(gateway)

    @property
    def gateway(self) -> bytes:
        return self._gateway

    async def append(self, draft: Draft, via: str, now_ms: int, marks: Sequence[Mark] = ()) -> Appended:
        digest = digest_of(draft)
        work = partial(self.keep, draft, digest, via, now_ms, tuple(marks))
        if len(draft.body) > SHORT_BODY:
            return await asyncio.wrap_future(self._database.write(work))
        return await self._database.transact(work)

    def keep(
        self, draft: Draft, digest: bytes, via: str, now_ms: int, marks: Sequence[Mark], tx: Transaction
    ) -> Appended:
        """Judge and keep a draft, inside a transaction of whoever calls."""
        _put_marks(marks, tx)
        item = bytes(draft.item)
        if draft.origin is None:
            return self._enter(draft, item, digest, via, now_ms, tx)
        ruling = self._judge(draft, draft.origin, item, digest, tx)
        if ruling.judgement is Judgement.REPEATED:
            return Appended(draft.origin, ruling.position or 0, False)
        if ruling.judgement is Judgement.SAME_STATE:
            position = ruling.position or 0
            appended = Appended(draft.origin, position, False)
            _reach(tx, item, draft.origin, position, now_ms)
        else:
            appended = _insert(tx, draft, draft.origin, draft.known, item, digest, via, now_ms)
        for one in draft.known:
            # What its gateway knew is older than this: nobody goes back to it when it comes another way.
            _reach(tx, item, one, appended.position, now_ms)
        return appended

    def _enter(self, draft: Draft, item: bytes, digest: bytes, via: str, now_ms: int, tx: Transaction) -> Appended:
        known = self._known_of(item, tx)
        ((number,),) = tx.execute("UPDATE exchange_self SET last = last + 1 RETURNING last")
        return _insert(tx, draft, OriginId(self._gateway, number), known, item, digest, via, now_ms)

    def enter_many(self, drafts: Sequence[tuple[Draft, int]], via: str, now_ms: int, tx: Transaction) -> list[Appended]:
        """Keep drafts that enter here, inside a transaction of whoever calls: as `keep` for each, at a fraction of the
        cost. With each draft: how many rows of other tables refer to it, see `hold`."""
        if not drafts:
            return []
        ((number,),) = tx.execute("UPDATE exchange_self SET last = last + ? RETURNING last", (len(drafts),))
        found = tx.execute("SELECT seq FROM sqlite_sequence WHERE name = 'exchange_log'")
        first, begin = number - len(drafts) + 1, (int(found[0][0]) if found else 0) + 1
        items: dict[ItemId, _Entering] = {}
        rows: list[tuple[bytes | str | int, ...]] = []
        for place, (draft, held) in enumerate(drafts):
            item = items.get(draft.item)
            if item is None:
                packed = bytes(draft.item)
                item = items[draft.item] = _Entering(packed, pack_origins(self._known_of(packed, tx)))
            item.count += 1
            item.bytes += len(draft.body)
            item.place = place
            rows.append((
                begin + place, item.packed, self._gateway, first + place, via, draft.name, draft.profile,
                draft.content_type, attributes_to(draft.attributes), item.known, digest_of(draft),
                draft.published_ms or now_ms, draft.deadline_ms, now_ms, held, draft.body,
            ))  # fmt: skip
        tx.execute("UPDATE exchange_size SET counted = 1")
        tx.execute_many(
            "INSERT INTO exchange_log (position, item, gateway, number, via, name, profile, content_type, attributes, "
            "known, digest, published_ms, deadline_ms, appended_ms, held, body) "
            "VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
            rows,
        )
        size = sum(item.bytes for item in items.values())
        tx.execute("UPDATE exchange_size SET counted = 0, bytes = bytes + ?", (size,))
        for item in items.values():
            _reach(tx, item.packed, OriginId(self._gateway, first + item.place), begin + item.place, now_ms)
            ((item.count, item.bytes),) = tx.execute(
                "INSERT INTO exchange_items VALUES (?, ?, ?, ?) ON CONFLICT (item) DO UPDATE SET "
                "count = count + excluded.count, bytes = bytes + excluded.bytes, newest = excluded.newest "
                "RETURNING count, bytes",
                (item.packed, item.count, item.bytes, begin + item.place),
            )
        return [
            Appended(OriginId(self._gateway, first + place), begin + place, True, item.count, item.bytes)
            for place, item in enumerate(items[draft.item] for draft, _ in drafts)
        ]

    def _known_of(self, item: bytes, tx: Transaction) -> tuple[OriginId, ...]:
        """The newest of other gateways on an item."""
        return tuple(
            OriginId(bytes(gateway), number)
            for gateway, number in tx.execute(
                "SELECT gateway, number FROM exchange_reached WHERE item = ? AND gateway != ? "
                "ORDER BY at_ms DESC LIMIT ?",
                (item, self._gateway, MAX_KNOWN),
            )
        )

    def _judge(self, draft: Draft, origin: OriginId, item: bytes, digest: bytes, tx: Transaction) -> Ruling:
        rows = tx.execute(
            "SELECT number, position FROM exchange_reached WHERE item = ? AND gateway = ?", (item, origin.gateway)
        )
        reached = Reached(*rows[0]) if rows else None
        newest: int | None = None
        twins: list[Twin] = []
        if draft.profile is Profile.DOCUMENT:
            for position, other in tx.execute(
                "SELECT position, digest FROM exchange_log WHERE item = ? ORDER BY position DESC LIMIT 1", (item,)
            ):
                newest = position if other == digest else None
            twins = [
                Twin(position, OriginId(bytes(gateway), number))
                for position, gateway, number in tx.execute(
                    "SELECT position, gateway, number FROM exchange_log WHERE item = ? AND digest = ? "
                    "AND digest != x'' AND position > ? ORDER BY position LIMIT ?",
                    (item, digest, 0 if reached is None else reached.position, TWINS_LOOKED_AT),
                )
            ]
        return judge(origin, draft.profile, draft.known, reached, newest, twins)

    @staticmethod
    def hold(position: int, tx: Transaction) -> None:
        """Another table refers to an entry: retention leaves it."""
        tx.execute("UPDATE exchange_log SET held = held + 1 WHERE position = ?", (position,))

    @staticmethod
    def release(positions: Sequence[int], tx: Transaction) -> None:
        tx.execute_many(
            "UPDATE exchange_log SET held = held - 1 WHERE position = ?", [(position,) for position in positions]
        )

    @staticmethod
    def write_marks(marks: Sequence[Mark], tx: Transaction) -> None:
        """In one commit with what was taken."""
        _put_marks(marks, tx)

    # Reading.

    async def get(self, position: int) -> LogEntry | None:
        rows = self._database.read(
            f"SELECT {ENTRY_COLUMNS} FROM exchange_log WHERE position = ?",  # noqa: S608 - own names
            (position,),
        )
        return entry_from(rows[0]) if rows else None

    async def after(self, wanted: Wanted, position: int, limit: int, max_bytes: int) -> list[LogEntry]:
        condition, parameters = self._condition(wanted)
        sizes = self._database.read(
            f"SELECT position, length(body) FROM exchange_log WHERE {condition} AND position > ? "  # noqa: S608
            "ORDER BY position LIMIT ?",
            (*parameters, position, limit),
        )
        last, taken = position, 0
        for place, size in sizes:
            if taken and taken + size > max_bytes:
                break
            last, taken = place, taken + size
        rows = self._database.read(
            f"SELECT {ENTRY_COLUMNS} FROM exchange_log WHERE {condition} AND position > ? AND position <= ? "  # noqa: S608
            "ORDER BY position",
            (*parameters, position, last),
        )
        return [entry_from(row) for row in rows]

    async def waiting(self, wanted: Wanted, position: int) -> int:
        condition, parameters = self._condition(wanted)
        ((count,),) = self._database.read(
            f"SELECT count(*) FROM exchange_log WHERE {condition} AND position > ?",  # noqa: S608 - own names
            (*parameters, position),
        )
        return int(count)

    async def position_back(self, item: ItemId, count: int, max_bytes: int) -> int:
        size = 0
        for number, (position, length) in enumerate(
            self._database.read(
                "SELECT position, length(body) FROM exchange_log WHERE item = ? ORDER BY position DESC LIMIT ?",
                (bytes(item), count + 1),
            )
        ):
            size += length
            if number == count or size > max_bytes:
                return int(position)
        return 0

    async def latest(self, wanted: Wanted, limit: int, max_bytes: int, upto: int | None = None) -> list[LogEntry]:
        condition, parameters = self._condition(wanted)
        end = NO_POSITION if upto is None else upto
        sizes = self._database.read(
            f"SELECT position, length(body) FROM exchange_log WHERE {condition} AND position <= ? "  # noqa: S608
            "ORDER BY position DESC LIMIT ?",
            (*parameters, end, limit),
        )
        first, taken = end + 1, 0
        for place, size in sizes:
            if taken and taken + size > max_bytes:
                break
            first, taken = place, taken + size
        rows = self._database.read(
            f"SELECT {ENTRY_COLUMNS} FROM exchange_log WHERE {condition} AND position BETWEEN ? AND ? "  # noqa: S608
            "ORDER BY position",
            (*parameters, first, end),
        )
        return [entry_from(row) for row in rows]

    async def newest(self, wanted: Wanted) -> LogEntry | None:
        condition, parameters = self._condition(wanted)
        rows = self._database.read(
            f"SELECT {ENTRY_COLUMNS} FROM exchange_log WHERE {condition} ORDER BY position DESC LIMIT 1",  # noqa: S608
            parameters,
        )
        return entry_from(rows[0]) if rows else None

    async def last_position(self) -> int:
        rows = self._database.read("SELECT seq FROM sqlite_sequence WHERE name = 'exchange_log'")
        return int(rows[0][0]) if rows else 0

    async def position_of(self, item: ItemId, origin: OriginId) -> int | None:
        rows = self._database.read(
            "SELECT position FROM exchange_log WHERE item = ?1 AND gateway = ?2 AND number = ?3 UNION ALL "
            "SELECT position FROM exchange_reached WHERE item = ?1 AND gateway = ?2 AND number = ?3 LIMIT 1",
            (bytes(item), origin.gateway, origin.number),
        )
        return int(rows[0][0]) if rows else None

    async def position_before(self, item: ItemId, at_ms: int) -> int:
        ((position,),) = self._database.read(
            "SELECT coalesce(max(position), 0) FROM exchange_log WHERE item = ? AND published_ms < ?",
            (bytes(item), at_ms),
        )
        return int(position)

    async def unread(self, position: int, *, entered_here: bool, limit: int) -> list[tuple[ItemId, int]]:
        condition, parameters = ("AND gateway = ? ", (self._gateway,)) if entered_here else ("", ())
        rows = self._database.read(
            f"SELECT item, min(position) FROM exchange_log WHERE position > ? {condition}"  # noqa: S608 - own names
            "GROUP BY item ORDER BY min(position) LIMIT ?",
            (position, *parameters, limit),
        )
        return [(item_from(bytes(item)), first) for item, first in rows]

    async def highest(self, item: ItemId, gateway: bytes) -> int:
        rows = self._database.read(
            "SELECT number FROM exchange_reached WHERE item = ? AND gateway = ?", (bytes(item), gateway)
        )
        return int(rows[0][0]) if rows else -1

    async def known_pairs(self, after: tuple[bytes, bytes], limit: int) -> list[tuple[bytes, bytes]]:
        rows = self._database.read(
            "SELECT item, gateway FROM exchange_reached WHERE (item, gateway) > (?, ?) ORDER BY item, gateway LIMIT ?",
            (*after, limit),
        )
        return [(bytes(item), bytes(gateway)) for item, gateway in rows]

    async def put_marks(self, marks: Sequence[Mark]) -> None:
        await self._database.transact(partial(_put_marks, tuple(marks)))

    def put_marks_soon(self, marks: Sequence[Mark]) -> Awaitable[None]:
        return self._database.transact(partial(_put_marks, tuple(marks)), MARKS_WAIT)

    async def mark(self, source: str, key: str) -> int | bytes | None:
        rows = self._database.read("SELECT value FROM exchange_marks WHERE source = ? AND key = ?", (source, key))
        return rows[0][0] if rows else None

    async def names_like(self, part: str, limit: int) -> list[str]:
        like = "%" + part.replace("\\", "\\\\").replace("%", "\\%").replace("_", "\\_") + "%"
        return await self._names("name LIKE ? ESCAPE '\\'", like, limit)

    async def names_of(self, digits: str, limit: int) -> list[str]:
        return await self._names("instr(hex(item), ?)", digits.upper(), limit)

    async def _names(self, condition: str, text: str, limit: int) -> list[str]:
        """Looks through tables, so in a thread."""
        rows = await asyncio.to_thread(
            self._database.read,
            f"SELECT name FROM exchange_interests WHERE {condition} "  # noqa: S608 - own names
            f"UNION SELECT name FROM exchange_log WHERE {condition} LIMIT ?",
            (text, text, limit),
        )
        return [str(name) for (name,) in rows]

    def _condition(self, wanted: Wanted) -> tuple[str, tuple[bytes | str, ...]]:
        condition = "item = ?"
        parameters: tuple[bytes | str, ...] = (bytes(wanted.item),)
        if wanted.entered_here:
            condition, parameters = f"{condition} AND gateway = ?", (*parameters, self._gateway)
        if wanted.not_via:
            return f"{condition} AND via != ?", (*parameters, wanted.not_via)
        return condition, parameters

    # Retention.

    async def trim_item(self, item: ItemId, floor: int, bounds: RetentionBounds) -> tuple[int, int, int]:
        return await asyncio.wrap_future(self._database.write(partial(_trim_item, bytes(item), floor, bounds)))

    async def trim_all(self, bounds: RetentionBounds, now_ms: int, keep: Sequence[tuple[ItemId, int]]) -> int:
        kept = {bytes(item): position for item, position in keep}
        return await asyncio.wrap_future(self._database.write(partial(_trim_all, bounds, now_ms, kept)))

    async def total_bytes(self) -> int:
        ((total,),) = self._database.read("SELECT bytes FROM exchange_size")
        return int(total)

    async def forget(self, item: ItemId) -> int:
        def work(tx: Transaction) -> int:
            return len(tx.execute("DELETE FROM exchange_log WHERE item = ? RETURNING 1", (bytes(item),)))

        return await asyncio.wrap_future(self._database.write(work))


def _put_marks(marks: Sequence[Mark], tx: Transaction) -> None:
    for mark in marks:
        tx.execute("INSERT OR REPLACE INTO exchange_marks VALUES (?, ?, ?)", (mark.source, mark.key, mark.value))


def digest_of(draft: Draft) -> bytes:
    """What makes two documents the same state. Messages and events each count: they have none."""
    if draft.profile is not Profile.DOCUMENT:
        return b""
    return hashlib.sha256(draft.content_type.encode() + b"\0" + draft.body).digest()


def _insert(
    tx: Transaction,
    draft: Draft,
    origin: OriginId,
    known: tuple[OriginId, ...],
    item: bytes,
    digest: bytes,
    via: str,
    now_ms: int,
) -> Appended:
    ((position,),) = tx.execute(
        "INSERT INTO exchange_log (item, gateway, number, via, name, profile, content_type, attributes, known, digest, "
        "published_ms, deadline_ms, appended_ms, body) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?) "
        "RETURNING position",
        (
            item,
            origin.gateway,
            origin.number,
            via,
            draft.name,
            draft.profile,
            draft.content_type,
            attributes_to(draft.attributes),
            pack_origins(known),
            digest,
            draft.published_ms or now_ms,
            draft.deadline_ms,
            now_ms,
            draft.body,
        ),
    )
    _reach(tx, item, origin, position, now_ms)
    ((count, size, previous),) = tx.execute(
        "SELECT count, bytes, (SELECT max(position) FROM exchange_log WHERE item = ?1 AND position < ?2) "
        "FROM exchange_items WHERE item = ?1",
        (item, position),
    )
    kept = replace(draft, published_ms=draft.published_ms or now_ms, origin=origin, known=known)
    return Appended(origin, position, True, count, size, LogEntry(position, origin, via, kept, now_ms), previous or 0)


def _reach(tx: Transaction, item: bytes, origin: OriginId, position: int, now_ms: int) -> None:
    tx.execute(
        "INSERT INTO exchange_reached VALUES (?1, ?2, ?3, ?4, ?5) ON CONFLICT (item, gateway) DO UPDATE SET "
        "number = excluded.number, position = excluded.position, at_ms = excluded.at_ms "
        "WHERE excluded.number > exchange_reached.number",
        (item, origin.gateway, origin.number, position, now_ms),
    )


def _trim_item(item: bytes, floor: int, bounds: RetentionBounds, tx: Transaction) -> tuple[int, int, int]:
    rows = tx.execute("SELECT count, bytes, newest FROM exchange_items WHERE item = ?", (item,))
    if not rows:
        return 0, 0, 0
    count, size, newest = rows[0]
    oldest = tx.execute(
        "SELECT position, length(body), held FROM exchange_log WHERE item = ? AND position <= ? AND position < ? "
        "ORDER BY position LIMIT ?",
        (item, floor, newest, REMOVED_AT_ONCE),
    )
    doomed: list[tuple[int]] = []
    for position, length, held in oldest:
        if count <= bounds.count and size <= bounds.bytes:
            break
        if not held:
            doomed.append((position,))
            count, size = count - 1, size - length
    return _remove(tx, doomed), count, size


def _trim_all(bounds: RetentionBounds, now_ms: int, kept: dict[bytes, int], tx: Transaction) -> int:
    doomed = [
        (position,)
        for position, item in tx.execute(
            "SELECT l.position, l.item FROM exchange_log l JOIN exchange_items i ON i.item = l.item "
            "WHERE l.appended_ms < ? AND l.held = 0 AND l.position != i.newest LIMIT ?",
            (now_ms - int(bounds.age * 1000), REMOVED_AT_ONCE),
        )
        if position <= kept.get(bytes(item), position)
    ]
    if doomed:
        return _remove(tx, doomed)
    ((total,),) = tx.execute("SELECT bytes FROM exchange_size")
    if total <= bounds.total_bytes:
        return 0
    for position, item, length in tx.execute(
        "SELECT position, item, length(body) FROM exchange_log WHERE held = 0 ORDER BY position LIMIT ?",
        (REMOVED_AT_ONCE,),
    ):
        if total > bounds.total_bytes and position <= kept.get(bytes(item), position):
            doomed.append((position,))
            total -= length
    return _remove(tx, doomed)


def _remove(tx: Transaction, doomed: Sequence[tuple[int]]) -> int:
    if doomed:
        tx.execute_many("DELETE FROM exchange_log WHERE position = ?", doomed)
    return len(doomed)
