"""The embedded engine against the suite, and what only an engine with a file has."""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path

from exchange.model import RetentionBounds
from exchange.ports import Log, Sessions, Wanted
from exchange.sqlite import EXCHANGE_TABLES, SqliteLog, SqliteSessions
from exchange.sqlite.log import digest_of
from storage import Database
from tests.exchange.engine_suite import ITEM, EngineSuite, draft


class TestSqliteEngine(EngineSuite):
    @asynccontextmanager
    async def opened(self, place: Path) -> AsyncGenerator[tuple[Log, Sessions], None]:
        with Database.open(place / "exchange.sqlite", EXCHANGE_TABLES) as database:
            yield SqliteLog(database), SqliteSessions(database)


async def test_what_another_table_refers_to_is_not_trimmed(tmp_path: Path) -> None:
    with Database.open(tmp_path / "exchange.sqlite", EXCHANGE_TABLES) as database:
        log = SqliteLog(database)
        one = draft(b"one")
        kept = database.write(partial(log.keep, one, digest_of(one), "notes", 1, ())).result()
        database.write(partial(log.hold, kept.position)).result()
        for number in range(4):
            await log.append(draft(b"%d" % number), "notes", 1)
        bounds = RetentionBounds(count=2)
        assert await log.trim_item(ITEM, 99, bounds) == (3, 2, 4)
        database.write(partial(log.release, [kept.position])).result()
        assert await log.trim_item(ITEM, 99, RetentionBounds(count=1)) == (1, 1, 1)
        assert [entry.draft.body for entry in await log.after(Wanted(ITEM), 0, 9, 99)] == [b"3"]
