"""What is kept on disk, for how long, and what an operator is shown after a restart."""

import asyncio
from concurrent.futures import Future
from pathlib import Path

import pytest

from push_hub.delivery import Retention
from push_hub.delivery.history import MIGRATIONS as HISTORY_TABLES
from push_hub.delivery.log import PublicationLog
from push_hub.delivery.retention import REMOVED_AT_ONCE, Trimmed
from push_hub.model import Content
from push_hub.schema import HUB_TABLES
from storage import Database, DatabaseBusyError
from tests.push_hub.delivery.delivery_support import OK, TOPIC, CallbackServer, open_database, rig, status, subscribe

EVERYTHING = Retention(publications=10**6, bytes=10**12, age=10**9)


def kept(database: Database) -> list[int]:
    return [row[0] for row in database.read("SELECT id FROM publications ORDER BY id")]


def fill(database: Database, count: int = 10) -> PublicationLog:
    """Publications of 100 bytes at the times 1, 2, 3, ..., all of them finished."""
    log = PublicationLog(database)

    async def append() -> None:
        for number in range(1, count + 1):
            await log.append(TOPIC, TOPIC, Content("text/plain", b"x" * 60, b"y" * 40), float(number))

    asyncio.run(append())
    database.write(lambda tx: tx.execute("DELETE FROM fanouts")).result()
    return log


@pytest.mark.parametrize(
    ("retention", "left"),
    [
        (EVERYTHING, 10),
        (Retention(publications=4, bytes=10**12, age=10**9), 4),
        (Retention(publications=10**6, bytes=350, age=10**9), 3),
        (Retention(publications=10**6, bytes=10**12, age=5.0), 6),
        (Retention(publications=8, bytes=950, age=7.5), 8),
        (Retention(publications=0, bytes=0, age=0.0), 0),
    ],
)
def test_the_first_bound_that_bites_trims_the_oldest(tmp_path: Path, retention: Retention, left: int) -> None:
    with open_database(tmp_path) as database:
        log = fill(database)
        assert log.trim(retention, 10.0).result() == Trimmed(10 - left, more=False)
        assert kept(database) == list(range(11 - left, 11))
        assert database.read("SELECT * FROM log_size") == [(left, left * 100)]


def test_what_is_still_to_be_delivered_is_not_trimmed(tmp_path: Path) -> None:
    with open_database(tmp_path) as database:
        log = fill(database)
        database.write(lambda tx: tx.execute("INSERT INTO fanouts VALUES (3, 0)")).result()
        database.write(lambda tx: tx.execute("INSERT INTO retries VALUES (1, 5, 1, 0, 'r', 0)")).result()
        log.trim(Retention(publications=1, bytes=10**12, age=10**9), 10.0).result()
        assert kept(database) == [3, 5]


def test_a_trim_is_a_bounded_piece_of_work(tmp_path: Path) -> None:
    with open_database(tmp_path) as database:
        log = fill(database, REMOVED_AT_ONCE + 7)
        nothing = Retention(publications=0)
        assert log.trim(nothing, 0.0).result() == Trimmed(REMOVED_AT_ONCE, more=True)
        assert log.trim(nothing, 0.0).result() == Trimmed(7, more=False)

        many = [(number,) for number in range(REMOVED_AT_ONCE + 7)]
        insert = "INSERT INTO tries (subscription, publication, at, status) VALUES (1, ?, 0, 500)"
        database.write(lambda tx: tx.execute_many(insert, many)).result()
        few = Retention(history_tries=3)
        assert log.trim(few, 0.0).result() == Trimmed(0, more=True)
        assert log.trim(few, 0.0).result() == Trimmed(0, more=False)
        assert database.read("SELECT count(*), min(publication) FROM tries") == [(3, REMOVED_AT_ONCE + 4)]


def test_a_store_from_before_the_size_was_kept_is_measured_once(tmp_path: Path) -> None:
    with Database.open(tmp_path / "hub.db", [*HUB_TABLES, *HISTORY_TABLES]) as database:
        fill(database)
    with open_database(tmp_path) as database:
        assert database.read("SELECT * FROM log_size") == [(10, 1000)]


async def test_a_busy_store_puts_trimming_off_but_does_not_end_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("push_hub.delivery.fanout.TRIM_EVERY", 0.001)
    trimmed, tries = asyncio.Event(), 0
    real = PublicationLog.trim

    def busy_at_first(log: PublicationLog, retention: Retention, now: float) -> Future[Trimmed]:
        nonlocal tries
        tries += 1
        if tries == 1:
            raise DatabaseBusyError("too many writes are waiting")
        trimmed.set()
        return real(log, retention, now)

    monkeypatch.setattr(PublicationLog, "trim", busy_at_first)
    async with rig(tmp_path) as made:
        await made.delivery.start()
        async with asyncio.timeout(20):
            await trimmed.wait()


def test_dead_letters_and_history_are_bounded(tmp_path: Path) -> None:
    with open_database(tmp_path) as database:
        log = fill(database)

        def insert(table: str, columns: str, values: str) -> None:
            for number in range(1, 8):
                database.write(
                    lambda tx: tx.execute(
                        f"INSERT INTO {table} ({columns}) VALUES ({values})".replace("#", str(number))  # noqa: B023, S608
                    )
                ).result()

        insert(
            "dead_letters",
            "subscription, publication, topic, callback, attempts, reason, died_at",
            "1, #, 't', 'c', 1, 'r', #",
        )
        insert("tries", "subscription, publication, at, status, reason", "1, #, #, 500, 'r'")
        insert("delivered_pages", "publication, last_id, saved_at, subscriptions, statuses", "#, 1, #, x'', x''")
        log.trim(Retention(dead_letters=3, history_tries=2, history_pages=4, age=1e9), 10.0).result()
        assert [letter.publication for letter in log.dead_letters(0, 100, None)] == [5, 6, 7]
        assert database.read("SELECT publication FROM tries ORDER BY id") == [(6,), (7,)]
        assert database.read("SELECT publication FROM delivered_pages ORDER BY id") == [(4,), (5,), (6,), (7,)]


async def test_history_is_the_same_after_a_restart(tmp_path: Path) -> None:
    """First tries, failures and late successes, for those who got it and for those who did not."""
    fails = {"/1": 2, "/2": 99}

    def answer(path: str, _headers: dict[str, str], _body: bytes) -> bytes:
        if fails.get(path, 0) > 0:
            fails[path] -= 1
            return status(500)
        return OK

    async with CallbackServer(answer) as server:
        async with rig(tmp_path) as made:
            subscribe(made.database, [server.url(f"/{n}") for n in range(3)])
            await made.delivery.start()
            first = await made.publish(b"x")
            await made.finished(first)
            subscribe(made.database, [server.url("/new")])
            second = await made.publish(b"y")
            await made.nothing_owed()
            before = {number: made.delivery.history(number) for number in range(1, 5)}
        async with rig(tmp_path) as made:
            after = {number: made.delivery.history(number) for number in range(1, 5)}
    assert after == before
    told = {number: [(e.publication, e.status, e.reason) for e in entries] for number, entries in after.items()}
    failed = "the callback answered 500"
    assert told[1] == [(first, 204, None), (second, 204, None)]
    assert told[2] == [(first, 500, failed)] * 2 + [(first, 204, None), (second, 204, None)]
    # The second publication had the first tried at once, which does not count.
    assert told[3] == [(first, 500, failed)] * 5 + [(second, 500, failed)] * 4
    assert told[4] == [(second, 204, None)]


async def test_history_shows_the_last_of_many(tmp_path: Path) -> None:
    async with rig(tmp_path) as made, CallbackServer() as server:
        subscribe(made.database, [server.url("/x")])
        await made.delivery.start()
        numbers = [await made.publish(b"%d" % n) for n in range(20)]
        await made.nothing_owed()
        assert [entry.publication for entry in made.delivery.history(1)] == numbers[-16:]
        assert made.delivery.history(99) == []
