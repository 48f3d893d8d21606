import asyncio
import os
import signal
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path

import pytest

from storage import (
    Database,
    DatabaseBusyError,
    DatabaseClosedError,
    DatabaseInUseError,
    Migration,
    MigrationError,
    Row,
    StorageError,
    StorageFullError,
    Transaction,
)

NUMBERS = Migration("test", 1, ["CREATE TABLE numbers (n INTEGER PRIMARY KEY, filler BLOB)"])
INSERT = "INSERT INTO numbers (n) VALUES (?)"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "store.db"


def insert(database: Database, number: int) -> "Future[list[tuple[object, ...]]]":
    return database.write(lambda transaction: transaction.execute(INSERT, (number,)))


def numbers(database: Database) -> list[int]:
    return [row[0] for row in database.read("SELECT n FROM numbers ORDER BY n")]


class Gate:
    """A write that holds the writer thread until it is opened, so that others queue up behind it."""

    def __init__(self, database: Database) -> None:
        self._entered = threading.Event()
        self._open = threading.Event()
        self.done = database.write(self._wait)
        assert self._entered.wait(10)

    def _wait(self, transaction: Transaction) -> None:
        self._entered.set()
        assert self._open.wait(10)

    def open(self) -> None:
        self._open.set()


def test_a_resolved_write_is_read_back_after_reopening(path: Path) -> None:
    with Database.open(path, [NUMBERS]) as database:
        insert(database, 7).result(10)
        assert numbers(database) == [7]
    with Database.open(path, [NUMBERS]) as database:
        assert numbers(database) == [7]


def test_many_writes_share_one_commit_and_a_failing_one_is_alone(path: Path) -> None:
    with Database.open(path, [NUMBERS]) as database:
        gate = Gate(database)
        futures = [insert(database, number) for number in (1, 2, 2, 3)]
        assert not any(future.done() for future in futures)
        gate.open()
        failed = [future.exception(10) for future in futures]
        assert [error is None for error in failed] == [True, True, False, True]
        assert isinstance(failed[2], StorageError)
        assert numbers(database) == [1, 2, 3]


def test_what_a_piece_of_work_raises_reaches_its_caller_and_undoes_only_that_work(path: Path) -> None:
    def half_done(transaction: Transaction) -> None:
        transaction.execute(INSERT, (1,))
        raise LookupError("enough")

    with Database.open(path, [NUMBERS]) as database:
        with pytest.raises(LookupError, match="enough"):
            database.write(half_done).result(10)
        insert(database, 2).result(10)
        assert numbers(database) == [2]


def test_execute_many_counts_changed_rows(path: Path) -> None:
    with Database.open(path, [NUMBERS]) as database:
        rows = [(1,), (2,), (3,)]
        assert database.write(lambda transaction: transaction.execute_many(INSERT, rows)).result(10) == 3


def test_waiting_writes_are_bounded(path: Path) -> None:
    with Database.open(path, [NUMBERS], max_waiting=2) as database:
        gate = Gate(database)
        waiting = [insert(database, 1), insert(database, 2)]
        with pytest.raises(DatabaseBusyError, match="2 writes are waiting"):
            insert(database, 3)
        gate.open()
        for future in waiting:
            future.result(10)
        assert numbers(database) == [1, 2]


def test_closing_finishes_what_was_queued(path: Path) -> None:
    database = Database.open(path, [NUMBERS])
    futures = [insert(database, number) for number in range(100)]
    database.close()
    database.close()
    assert all(future.done() and future.exception() is None for future in futures)
    with pytest.raises(DatabaseClosedError):
        insert(database, 1)


def test_a_full_store_refuses_and_stays_usable(path: Path) -> None:
    big = os.urandom(64 * 1024)
    with Database.open(path, [NUMBERS], max_pages=40) as database:
        insert(database, 1).result(10)
        gate = Gate(database)
        small = insert(database, 2)
        too_big = database.write(
            lambda transaction: transaction.execute_many(
                "INSERT INTO numbers VALUES (?, ?)", [(n, big) for n in range(10, 20)]
            )
        )
        also_small = insert(database, 3)
        gate.open()
        with pytest.raises(StorageFullError, match="no space left"):
            too_big.result(10)
        small.result(10)
        also_small.result(10)
        assert numbers(database) == [1, 2, 3]


def test_one_process_at_a_time(path: Path) -> None:
    with Database.open(path), pytest.raises(DatabaseInUseError, match=f"process {os.getpid()}"):
        Database.open(path)
    Database.open(path).close()


def test_a_missing_directory_is_an_error_for_people(tmp_path: Path) -> None:
    with pytest.raises(StorageError, match="No such file or directory"):
        Database.open(tmp_path / "missing" / "store.db")


def test_a_file_that_is_no_database_is_refused(path: Path) -> None:
    path.write_bytes(b"not a database, " * 100)
    with pytest.raises(StorageError, match="not a database"):
        Database.open(path)


def test_migrations_run_once_and_in_order(path: Path) -> None:
    second = Migration("test", 2, ["ALTER TABLE numbers ADD COLUMN name TEXT", "INSERT INTO numbers (n) VALUES (1)"])
    other = Migration("other", 1, ["CREATE TABLE others (n INTEGER)"])
    Database.open(path, [NUMBERS]).close()
    for _ in range(2):
        with Database.open(path, [second, NUMBERS, other]) as database:
            assert numbers(database) == [1]
            assert database.read("SELECT owner, version FROM schema_version ORDER BY owner") == [
                ("other", 1),
                ("test", 2),
            ]


def test_a_failing_migration_changes_nothing(path: Path) -> None:
    broken = Migration("test", 2, ["CREATE TABLE half (n INTEGER)", "CREATE GARBAGE"])
    with pytest.raises(MigrationError, match="migration 2 of 'test' failed"):
        Database.open(path, [NUMBERS, broken])
    with Database.open(path, [NUMBERS]) as database:
        assert database.read("SELECT name FROM sqlite_master WHERE name = 'half'") == []


def test_a_newer_file_and_gaps_in_the_numbers_are_refused(path: Path) -> None:
    Database.open(path, [NUMBERS, Migration("test", 2, [])]).close()
    with pytest.raises(MigrationError, match="at schema version 2, but this software knows only 1"):
        Database.open(path, [NUMBERS])
    with pytest.raises(MigrationError, match="without gaps"):
        Database.open(path, [NUMBERS, Migration("test", 3, [])])


WRITER = """
import sys
from pathlib import Path
from storage import Database, Migration
database = Database.open(Path(sys.argv[1]), [Migration("test", 1, ["CREATE TABLE numbers (n INTEGER PRIMARY KEY)"])])
start = database.read("SELECT coalesce(max(n), 0) + 1 FROM numbers")[0][0]
for n in range(start, start + 100000):
    database.write(lambda t, n=n: t.execute("INSERT INTO numbers VALUES (?)", (n,))).result()
    print(n, flush=True)
"""


def test_nothing_acknowledged_is_lost_by_kill_9(path: Path) -> None:
    for round_number in range(1, 6):
        process = subprocess.Popen(
            [sys.executable, "-c", WRITER, path],
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        )
        assert process.stdout is not None
        for _ in range(10 * round_number):
            acknowledged = int(process.stdout.readline())
        process.send_signal(signal.SIGKILL)
        acknowledged = max([acknowledged, *map(int, process.stdout.read().split("\n")[:-1])])
        process.wait()
        process.stdout.close()
        with sqlite3.connect(path) as connection:
            stored = [row[0] for row in connection.execute("SELECT n FROM numbers ORDER BY n")]
        connection.close()
        assert stored == list(range(1, len(stored) + 1))
        assert acknowledged <= len(stored) <= acknowledged + 1


# Work on an event loop


def insertion(number: int) -> Callable[[Transaction], list[Row]]:
    return lambda transaction: transaction.execute(INSERT, (number,))


async def test_work_on_a_loop_is_told_in_one_turn_after_one_commit(path: Path) -> None:
    with Database.open(path, [NUMBERS]) as database:
        threads: set[str] = set()

        def work(transaction: Transaction) -> None:
            threads.add(threading.current_thread().name)

        await asyncio.gather(*(database.transact(work) for _ in range(3)))
        assert threads == {threading.current_thread().name}
        several = [database.transact(insertion(number)) for number in (1, 2, 2, 3)]
        seen: list[int] = []
        for future in several:
            future.add_done_callback(lambda _: seen.append(sum(one.done() for one in several)))
        failed = [type(outcome) for outcome in await asyncio.gather(*several, return_exceptions=True)]
        assert failed == [list, list, StorageError, list]
        assert seen == [4, 4, 4, 4]
        assert numbers(database) == [1, 2, 3]


async def test_work_of_a_loop_and_of_threads_take_turns_and_all_is_done(path: Path) -> None:
    with Database.open(path, [NUMBERS], group_limit=3) as database:
        outcomes: list[object] = []
        for turn in range(20):
            there = [insert(database, 1000 + 10 * turn + number) for number in range(5)]
            here = [database.transact(insertion(10 * turn + number)) for number in range(5)]
            outcomes += await asyncio.gather(*here, *map(asyncio.wrap_future, there))
        assert len(outcomes) == 200
        assert len(numbers(database)) == 200


async def test_a_read_on_a_loop_sees_what_is_committed_whoever_has_the_connection(path: Path) -> None:
    with Database.open(path, [NUMBERS]) as database:
        await database.transact(insertion(1))
        assert numbers(database) == [1]  # by the writer's connection: nobody has it
        seen: list[list[int]] = []

        def work(transaction: Transaction) -> None:
            transaction.execute(INSERT, (2,))
            seen.append(numbers(database))

        under_way = database.transact(work)
        await asyncio.sleep(0)
        seen.append(numbers(database))
        await under_way
        assert seen[0] == [1]  # not what stands in a transaction that is open
        assert seen[1] in ([1], [1, 2])
        assert numbers(database) == [1, 2]
        with pytest.raises(StorageError):
            database.read("SELECT broken")
        there = [insert(database, number) for number in range(3, 30)]
        while not all(future.done() for future in there):
            assert numbers(database)[:2] == [1, 2]
            await asyncio.sleep(0)
        assert numbers(database) == list(range(1, 30))


async def test_what_nobody_waits_for_any_more_is_not_begun(path: Path) -> None:
    with Database.open(path, [NUMBERS]) as database:
        given_up, wanted = database.transact(insertion(1)), database.transact(insertion(2))
        given_up.cancel()
        await wanted
        assert numbers(database) == [2]


async def test_patient_work_shares_the_next_commit_or_is_hurried(path: Path) -> None:
    with Database.open(path, [NUMBERS]) as database:
        patient = database.transact(insertion(1), patience=1000.0)
        await database.transact(insertion(2))
        assert patient.done()
        patient = database.transact(insertion(3), patience=1000.0)
        await asyncio.sleep(0)
        assert not patient.done()
        assert numbers(database) == [1, 2]
        database.hurry()
        await patient
        await database.transact(insertion(4), patience=0.001)
        assert numbers(database) == [1, 2, 3, 4]


async def test_waiting_work_of_a_loop_is_bounded(path: Path) -> None:
    with Database.open(path, [NUMBERS], max_waiting=2) as database:
        waiting = [database.transact(insertion(number)) for number in (1, 2)]
        with pytest.raises(DatabaseBusyError, match="2 writes are waiting"):
            database.transact(insertion(3))
        await asyncio.gather(*waiting)


async def test_closing_finishes_the_work_of_a_loop(path: Path) -> None:
    database = Database.open(path, [NUMBERS])
    under_way = database.transact(insertion(1))
    await asyncio.sleep(0)
    queued = [database.transact(insertion(number)) for number in (2, 3)]
    database.close()
    await asyncio.gather(under_way, *queued)
    with pytest.raises(DatabaseClosedError):
        database.transact(insertion(4))
    with Database.open(path) as database:
        assert numbers(database) == [1, 2, 3]


async def test_a_full_store_refuses_only_what_does_not_fit(path: Path) -> None:
    big = os.urandom(64 * 1024)
    with Database.open(path, [NUMBERS], max_pages=40) as database:
        rows = [(number, big) for number in range(10, 20)]
        outcomes = await asyncio.gather(
            database.transact(insertion(1)),
            database.transact(lambda transaction: transaction.execute_many("INSERT INTO numbers VALUES (?, ?)", rows)),
            database.transact(insertion(2)),
            return_exceptions=True,
        )
        assert isinstance(outcomes[1], StorageFullError)
        assert numbers(database) == [1, 2]
        await database.transact(insertion(3))
        assert numbers(database) == [1, 2, 3]


def test_a_loop_that_ended_leaves_no_one_waiting(path: Path) -> None:
    with Database.open(path, [NUMBERS]) as database:

        async def asked(number: int, wait: bool) -> None:
            future = database.transact(insertion(number))
            if wait:
                await future

        asyncio.run(asked(1, False))
        asyncio.run(asked(2, True))
        insert(database, 3).result(10)
        assert {2, 3} <= set(numbers(database))
