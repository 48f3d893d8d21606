"""The parser processes: the event loop turns while they work, and whatever happens to them loses no ping."""

import asyncio
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import pytest

from push_hub.hub import TABLES
from push_hub.intake import Intake, IntakeConfig, inspection, source, visit
from push_hub.intake.events import IntakeEvent, ParserGaveUp, ParsersDisagreed
from push_hub.intake.parsers import ParserPool
from push_hub.intake.threads import WORTH_A_THREAD, Threads
from push_hub.xmlguard import UnsafeXmlError
from storage import Database
from tests.push_hub.harness import until
from tests.push_hub.intake.feeds import Item, Story, odd, wild_feed
from tests.push_hub.intake.fetcher import HeldFetch, LogSink, WantedElsewhere

ATOM = "application/atom+xml"
A, B = "http://a.example/1", "http://b.example/1"
FEED = wild_feed("atom", [Story("1", "one"), Story("2", "two")])


@asynccontextmanager
async def pool_of(events: list[IntakeEvent] | None = None, **config: float) -> AsyncIterator[ParserPool]:
    threads = Threads(1)
    pool = ParserPool(IntakeConfig(**config), threads, (events if events is not None else []).append)  # type: ignore[arg-type]
    try:
        yield pool
    finally:
        await pool.close()
        threads.close()


@contextmanager
def stopped(pid: int) -> Iterator[None]:
    os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(pid, signal.SIGCONT)


async def turn(times: int = 500) -> None:
    for _ in range(times):
        await asyncio.sleep(0)


async def test_documents_are_taken_apart_in_another_process_that_is_kept() -> None:
    async with pool_of() as pool:
        assert pool.pids == []  # nothing is started before it is needed
        feed = await pool.read(A, ATOM, FEED)
        assert feed is not None
        assert len(feed.entries) == 2
        (pid,) = pool.pids
        assert pid != os.getpid()
        assert await pool.read(A, ATOM, FEED) == feed
        assert pool.pids == [pid]
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


async def test_the_event_loop_turns_while_a_document_is_taken_apart() -> None:
    big = wild_feed("atom", [Story(str(n), "title", text="<p>text</p>" * 100) for n in range(500)])
    assert len(big) > 500_000
    async with pool_of() as pool:
        await pool.read(A, ATOM, FEED)
        with stopped(pool.pids[0]):  # it cannot even read the document, let alone finish it
            reading = asyncio.create_task(pool.read(A, ATOM, big))
            await turn()
            assert not reading.done()
        feed = await reading
        assert feed is not None
        assert len(feed.entries) == 500


def test_the_hub_itself_does_not_load_feedparser() -> None:
    program = "import sys, push_hub.hub; sys.exit('feedparser' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], check=False, timeout=60).returncode == 0


def test_parsers_end_when_their_hub_is_killed() -> None:
    program = """
import asyncio, sys
from push_hub.intake.config import IntakeConfig
from push_hub.intake.parsers import ParserPool
from push_hub.intake.threads import Threads

async def main():
    pool = ParserPool(IntakeConfig(), Threads(1))
    await pool.read("http://a/", "text/xml", b"<rss/>")
    print(pool.pids[0], flush=True)
    await asyncio.sleep(1000)

asyncio.run(main())
"""
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True) as hub:
        assert hub.stdout is not None
        parser = int(hub.stdout.readline())
        hub.kill()
    status = Path(f"/proc/{parser}/status")

    def lives() -> bool:
        try:
            return "State:\tZ" not in status.read_text()  # nobody may be there to collect it
        except OSError:
            return False

    deadline = time.monotonic() + 60
    while lives():
        assert time.monotonic() < deadline


async def test_a_parser_that_died_between_documents_is_replaced() -> None:
    events: list[IntakeEvent] = []
    async with pool_of(events) as pool:
        await pool.read(A, ATOM, FEED)
        (pid,) = pool.pids
        os.kill(pid, signal.SIGKILL)
        assert await pool.read(A, ATOM, FEED) is not None
        assert pool.pids != [pid]
    assert events == []


async def test_a_document_that_kills_its_parser_twice_is_given_up() -> None:
    events: list[IntakeEvent] = []
    async with pool_of(events, parser_memory=1024) as pool:  # no interpreter can live on that
        assert await pool.read(A, ATOM, FEED) is None
        assert pool.pids == []
    assert events == [ParserGaveUp(A, "the parser ended without an answer")]


async def test_a_slow_document_is_given_up_and_its_parser_ended() -> None:
    events: list[IntakeEvent] = []
    async with pool_of(events, parse_timeout=0.01) as pool:
        assert await pool.read(A, ATOM, FEED) is None
        assert pool.pids == []
    assert events == [ParserGaveUp(A, "not taken apart within 0.01 s")]


async def test_a_document_too_large_is_given_up_without_a_parser() -> None:
    events: list[IntakeEvent] = []
    async with pool_of(events, parse_max_bytes=len(FEED) - 1) as pool:
        assert await pool.read(A, ATOM, FEED) is None
        assert pool.pids == []
    assert events == [ParserGaveUp(A, f"larger than {len(FEED) - 1} bytes")]


async def test_memory_is_bounded_and_the_parser_that_ran_out_is_replaced() -> None:
    events: list[IntakeEvent] = []
    long = wild_feed("rss", [Story("1", text="x" * 15_000_000)])
    async with pool_of(events, parser_memory=120 * 1024 * 1024, parse_max_bytes=20_000_000, parse_timeout=60) as pool:
        assert await pool.read(A, "text/xml", FEED) is not None
        (pid,) = pool.pids
        assert await pool.read(A, "text/xml", long) is None
        assert await pool.read(A, "text/xml", FEED) is not None
        assert pool.pids != [pid]
    assert [type(event) for event in events] == [ParserGaveUp]


async def test_parsers_retire_after_so_many_documents() -> None:
    async with pool_of(parser_documents=2) as pool:
        await pool.read(A, ATOM, FEED)
        (first,) = pool.pids
        await pool.read(A, ATOM, FEED)
        assert pool.pids == []
        await pool.read(A, ATOM, FEED)
        assert first not in pool.pids


async def test_one_host_cannot_take_all_parsers() -> None:
    async with pool_of(max_parses=2) as pool:
        await pool.read(A, ATOM, FEED)
        (pid,) = pool.pids
        with stopped(pid):
            slow = [asyncio.create_task(pool.read(A, ATOM, FEED)) for _ in range(3)]
            await turn(20)
            assert await pool.read(B, ATOM, FEED) is not None
            assert not any(task.done() for task in slow)
            assert len(pool.pids) == 2
        assert all(await asyncio.gather(*slow))


async def test_verdicts_come_back_as_what_they_are() -> None:
    events: list[IntakeEvent] = []
    space = "http://www.w3.org/2005/Atom"
    async with pool_of(events) as pool:
        with pytest.raises(UnsafeXmlError):
            await pool.read(A, ATOM, b'<!DOCTYPE f [<!ENTITY a SYSTEM "file:///x">]><feed/>')
        assert await pool.read(A, ATOM, b"<html/>") is None
        odd = f'<feed xmlns="{space}" xmlns:a="{space}"><entry/><a:entry/></feed>'
        assert await pool.read(A, ATOM, odd.encode()) is None
    # What is called a feed and is none is told of as well.
    assert [type(event) for event in events] == [ParserGaveUp, ParsersDisagreed]


async def test_a_reader_that_goes_away_takes_its_parser_along() -> None:
    async with pool_of() as pool:
        await pool.read(A, ATOM, FEED)
        (pid,) = pool.pids
        os.kill(pid, signal.SIGSTOP)
        reading = asyncio.create_task(pool.read(A, ATOM, FEED))
        await turn(20)
        reading.cancel()
        await asyncio.gather(reading, return_exceptions=True)
        assert pool.pids == []  # its answer would have been taken for that of the next question
        assert await pool.read(A, ATOM, FEED) is not None


class Setup:
    def __init__(self, database: Database, **config: float) -> None:
        self.database = database
        self.fetch = HeldFetch()
        self.fetch.holding = False
        self.fetch.content_type = ATOM
        self.events: list[IntakeEvent] = []
        values = IntakeConfig(**config)  # type: ignore[arg-type]
        self.intake = Intake(
            database,
            self.fetch,
            LogSink(database),
            values,
            lambda: 1.0,
            self.events.append,
            elsewhere=WantedElsewhere(),
        )

    async def ping(self, body: bytes) -> None:
        self.fetch.bodies[A] = body
        await self.intake.ping([A])
        await self.intake.idle()

    def published(self) -> list[tuple[bytes, bytes | None]]:
        return self.database.read("SELECT body, changes FROM publications ORDER BY id")

    def pings(self) -> list[Any]:
        return self.database.read("SELECT * FROM pings")


@asynccontextmanager
async def setup_in(path: Path, **config: float) -> AsyncIterator[Setup]:
    with Database.open(path / "hub.db", TABLES) as database:
        setup = Setup(database, **config)
        await setup.intake.start()
        yield setup
        await setup.intake.stop()


async def test_a_ping_whose_parser_is_killed_is_published_whole(tmp_path: Path) -> None:
    async with setup_in(tmp_path, parser_memory=1024) as setup:
        first, second = odd([Item("a")]), odd([Item("b"), Item("a")])
        await setup.ping(first)
        await setup.ping(second)
        await setup.ping(second)
        assert setup.published() == [(first, None), (second, None)]
        assert setup.pings() == []
        assert [type(e) for e in setup.events if isinstance(e, ParserGaveUp)] == [ParserGaveUp] * 2


async def test_a_ping_is_published_although_its_parser_was_killed_at_work(tmp_path: Path) -> None:
    async with setup_in(tmp_path) as setup:
        await setup.ping(odd([Item("a")]))
        pool = setup.intake._reader
        assert isinstance(pool, ParserPool)
        (pid,) = pool.pids
        os.kill(pid, signal.SIGSTOP)
        second = odd([Item("b"), Item("a")])
        setup.fetch.bodies[A] = second
        await setup.intake.ping([A])
        await until(lambda: not pool._free)
        os.kill(pid, signal.SIGKILL)
        await setup.intake.idle()
        assert setup.published()[1] == (second, odd([Item("b")]))
        assert setup.pings() == []


async def test_a_hub_stopped_while_parsing_keeps_the_ping_for_the_next_start(tmp_path: Path) -> None:
    async with setup_in(tmp_path) as setup:
        await setup.ping(odd([Item("a")]))
        pool = setup.intake._reader
        assert isinstance(pool, ParserPool)
        os.kill(pool.pids[0], signal.SIGSTOP)
        setup.fetch.bodies[A] = odd([Item("b")])
        await setup.intake.ping([A])
        await until(lambda: not pool._free)
        await setup.intake.stop()
        assert len(setup.pings()) == 1
        assert len(setup.published()) == 1
    async with setup_in(tmp_path) as setup:
        setup.fetch.bodies[A] = odd([Item("b")])
        await setup.intake.sweep()
        await setup.intake.idle()
        assert setup.pings() == []
        assert len(setup.published()) == 2


async def test_documents_that_parsers_disagree_on_are_published_whole(tmp_path: Path) -> None:
    def odd(text: str) -> bytes:
        space = "http://www.w3.org/2005/Atom"
        entries = f"<entry><id>1</id></entry><a:entry><a:title>{text}</a:title></a:entry>"
        return f'<feed xmlns="{space}" xmlns:a="{space}">{entries}</feed>'.encode()

    async with setup_in(tmp_path) as setup:
        for text in ("x", "y", "y"):
            await setup.ping(odd(text))
        assert setup.published() == [(odd("x"), None), (odd("y"), None)]


async def test_the_same_bytes_are_not_taken_apart_again(tmp_path: Path) -> None:
    async with setup_in(tmp_path, parser_documents=1) as setup:
        await setup.ping(FEED)
        setup.intake._reader.read = None  # type: ignore[assignment, method-assign]
        await setup.ping(FEED)
        assert len(setup.published()) == 1


async def test_work_that_grows_with_the_document_is_done_in_threads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    where: dict[str, str] = {}

    def watched(name: str, work: Callable[..., Any]) -> Callable[..., Any]:
        def run(*args: Any, **kwargs: Any) -> Any:
            where[name] = threading.current_thread().name
            return work(*args, **kwargs)

        return run

    monkeypatch.setattr(inspection, "_digest", watched("digest", inspection._digest))
    monkeypatch.setattr(inspection, "check_prolog", watched("prolog", inspection.check_prolog))
    monkeypatch.setattr(inspection, "reduce_to", watched("cut", inspection.reduce_to))
    monkeypatch.setattr(visit, "discover", watched("discover", visit.discover))
    monkeypatch.setattr(source, "decode_body", watched("decode", source.decode_body))
    async with setup_in(tmp_path) as setup:
        store = setup.intake._store
        monkeypatch.setattr(store, "was_published", watched("was_published", store.was_published))
        monkeypatch.setattr(store, "seen", watched("seen", store.seen))
        setup.fetch.content_encoding = "identity"
        long = b" " * WORTH_A_THREAD + b"</title>"
        await setup.ping(FEED.replace(b"</title>", long, 1))
        another = wild_feed("atom", [Story("3", "three"), Story("1", "one"), Story("2", "two")])
        setup.fetch.bodies[A] = setup.fetch.bodies[B] = another.replace(b"</title>", long, 1)
        await setup.intake.ping([A, B])  # two at once are stored: as if left by a hub of before
        await setup.intake.idle()
        assert len(setup.published()) == 3
    assert set(where) == {"digest", "prolog", "cut", "discover", "decode", "was_published", "seen"}
    assert all(name.startswith("intake") for name in where.values())
