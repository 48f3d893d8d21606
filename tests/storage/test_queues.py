"""Stays in queues are told with their times in order and with who was there; nobody pays when nobody follows."""

import asyncio
import threading
from itertools import count
from pathlib import Path

import pytest

from storage import Database, Migration, Transaction
from storage.queues import ConnectionChange, QueueStay, QueueWatch, watch_queue

TABLE = Migration("test", 1, ["CREATE TABLE numbers (n INTEGER PRIMARY KEY)"])


def watched() -> tuple[QueueWatch, list[QueueStay | ConnectionChange]]:
    told: list[QueueStay | ConnectionChange] = []
    ticks = count(100, 10)
    return QueueWatch("q", told.append, lambda: next(ticks)), told


def test_a_stay_says_when_it_came_began_and_ended_and_who_was_there() -> None:
    watch, told = watched()
    first, second = watch.came("a"), watch.came("b")
    first.begins()
    first.ends()
    third = watch.came("c")
    second.begins()
    second.ends("failed")
    third.leaves()
    fourth = watch.came("d")
    fourth.ends("refused")
    assert told == [
        QueueStay("q", "a", 100, 120, 130, 0, "ok"),
        QueueStay("q", "b", 110, 150, 160, 1, "failed"),
        QueueStay("q", "d", 170, 180, 180, 0, "refused"),
    ]
    assert watch_queue("q", None) is None


def test_what_is_written_is_followed_until_its_commit(tmp_path: Path) -> None:
    told: list[QueueStay | ConnectionChange] = []
    with Database.open(tmp_path / "store.db", [TABLE], queues=told.append) as database:
        entered, go_on = threading.Event(), threading.Event()

        def hold(_: Transaction) -> None:
            entered.set()
            assert go_on.wait(10)

        held = database.write(hold)
        assert entered.wait(10)
        behind = [database.write(lambda tx, n=n: tx.execute("INSERT INTO numbers VALUES (?)", (n,))) for n in range(3)]
        go_on.set()
        held.result(10)
        for one in behind:
            one.result(10)
    stays = [one for one in told if isinstance(one, QueueStay)]
    assert [stay.resource for stay in stays] == ["writer/store"] * 4
    assert all(stay.queued_ns <= stay.started_ns <= stay.done_ns for stay in stays)
    assert [stay.found for stay in stays] == [0, 1, 2, 3]
    assert len({stay.started_ns for stay in stays[1:]}) <= 3
    assert all(stay.started_ns >= stays[0].done_ns for stay in stays[1:]), "they wait for the commit before theirs"


async def test_short_writes_of_a_loop_are_followed_too(tmp_path: Path) -> None:
    told: list[QueueStay | ConnectionChange] = []
    with Database.open(tmp_path / "store.db", [TABLE], queues=told.append) as database:
        insert = "INSERT INTO numbers VALUES (?)"
        await asyncio.gather(*(database.transact(lambda tx, n=n: tx.execute(insert, (n,))) for n in range(5)))
        broken = database.transact(lambda tx: tx.execute("no SQL"))
        with pytest.raises(Exception, match="syntax error"):
            await broken
    assert len(told) == 6, "also what failed by itself has been in the queue"
