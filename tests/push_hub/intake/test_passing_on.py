"""What a gateway brings is passed on before it is taken apart, unless somebody here wants it reduced."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from push_hub.hub import TABLES
from push_hub.intake import Intake, IntakeConfig
from push_hub.intake.entries import take_apart
from push_hub.intake.events import DocumentRefused, IntakeEvent
from push_hub.intake.feeds import Feed
from push_hub.model import Content, Dialect
from push_hub.protocol.requests import RequestError
from push_hub.xmlguard import UnsafeXmlError
from storage import Database
from tests.push_hub.intake.feeds import Item, atom
from tests.push_hub.intake.fetcher import LogSink, ScriptedFetch, WantedElsewhere

TOPIC = "http://news.example/feed"
ATOM = "application/atom+xml"


class Reader:
    """Takes feeds apart when it is let."""

    def __init__(self) -> None:
        self.may_go = asyncio.Event()
        self.asked = asyncio.Event()
        self.read_bodies: list[bytes] = []
        self.fault: Exception | None = None

    def read_plain(self, topic: str, content_type: str, body: bytes) -> Feed | None:
        return None

    async def read(self, topic: str, content_type: str, body: bytes) -> Feed | None:
        self.asked.set()
        await self.may_go.wait()
        if self.fault is not None:
            raise self.fault
        self.read_bodies.append(body)
        return take_apart(body, content_type)

    async def close(self) -> None: ...


class Setup:
    def __init__(self, database: Database) -> None:
        self.database = database
        self.reader = Reader()
        self.sink = LogSink(database)
        self.events: list[IntakeEvent] = []
        self.intake = Intake(
            database,
            ScriptedFetch(),
            self.sink,
            IntakeConfig(),
            lambda: 1.0,
            self.events.append,
            reader=self.reader,
            elsewhere=WantedElsewhere(),
        )

    def subscribe(self, dialect: Dialect, difference: bool = False) -> None:
        self.database.write(
            lambda tx: tx.execute(
                "INSERT INTO subscriptions (topic, callback, signature, dialect, lease_until, created_at, difference) "
                "VALUES (?, ?, 'sha1', ?, 1e12, 0, ?)",
                (TOPIC, f"http://reader.example/{dialect}{difference}", dialect.value, difference),
            )
        ).result()

    async def bring(self, body: bytes, content_type: str = ATOM) -> None:
        await self.intake.offer(TOPIC, Content(content_type, body, brought=True), TOPIC)

    def published(self) -> list[tuple[bytes, bytes | None]]:
        rows = self.database.read("SELECT body, changes FROM publications ORDER BY id")
        return [(body, changes) for body, changes in rows]

    def entries(self) -> int:
        return int(self.database.read("SELECT count(*) FROM seen_entries")[0][0])

    async def caught_up(self) -> None:
        await asyncio.gather(*self.intake._visits._catching_up)


@asynccontextmanager
async def setup_in(path: Path) -> AsyncIterator[Setup]:
    with Database.open(path / "hub.db", TABLES) as database:
        setup = Setup(database)
        await setup.intake.start()
        yield setup
        await setup.intake.stop()


async def test_it_is_published_while_nobody_has_taken_it_apart(tmp_path: Path) -> None:
    one, two = atom([Item("a")]), atom([Item("b"), Item("a")])
    async with setup_in(tmp_path) as setup:
        setup.subscribe(Dialect.WEBSUB)
        await setup.bring(one)
        await setup.bring(one)
        await setup.bring(two)
        assert setup.published() == [(one, None), (two, None)]
        assert setup.entries() == 0
        await setup.reader.asked.wait()
        setup.reader.may_go.set()
        await setup.caught_up()
        assert setup.reader.read_bodies[-1] == two
        assert setup.entries() == 2
        setup.subscribe(Dialect.PUSH_03)
        three = atom([Item("c"), Item("b"), Item("a")])
        await setup.bring(three)
        assert setup.published()[-1] == (three, atom([Item("c")]))


@pytest.mark.parametrize(("dialect", "difference"), [(Dialect.PUSH_03, False), (Dialect.WEBSUB, True)])
async def test_who_wants_it_reduced_gets_it_reduced(tmp_path: Path, dialect: Dialect, difference: bool) -> None:
    async with setup_in(tmp_path) as setup:
        setup.reader.may_go.set()
        setup.subscribe(Dialect.WEBSUB)
        setup.subscribe(dialect, difference)
        await setup.bring(atom([Item("a")]))
        await setup.bring(atom([Item("b"), Item("a")]))
        assert setup.published()[-1] == (atom([Item("b"), Item("a")]), atom([Item("b")]))


async def test_a_newer_state_is_not_described_by_an_older_document(tmp_path: Path) -> None:
    async with setup_in(tmp_path) as setup:
        await setup.bring(atom([Item("a")]))
        await setup.reader.asked.wait()
        await setup.bring(b"no feed any more", "text/plain")
        setup.reader.may_go.set()
        await setup.caught_up()
        assert setup.entries() == 0


async def test_a_prolog_that_could_harm_a_parser_is_refused_before_anything_is_published(tmp_path: Path) -> None:
    bomb = b'<!DOCTYPE x [<!ENTITY a "aaaaaaaaaaaaaaaaaaaaaaaa">]><feed xmlns="http://www.w3.org/2005/Atom"/>'
    async with setup_in(tmp_path) as setup:
        with pytest.raises(RequestError, match="unsafe XML"):
            await setup.bring(bomb)
        assert setup.published() == []
        assert not setup.reader.asked.is_set()


async def test_what_cannot_be_taken_apart_is_told_and_stops_nothing(tmp_path: Path) -> None:
    async with setup_in(tmp_path) as setup:
        setup.reader.fault = UnsafeXmlError("too deep")
        setup.reader.may_go.set()
        await setup.bring(atom([Item("a")]))
        await setup.caught_up()
        assert [type(event) for event in setup.events] == [DocumentRefused]
        setup.reader.fault = None
        await setup.bring(atom([Item("b"), Item("a")]))
        await setup.caught_up()
        assert setup.entries() == 2


async def test_a_stop_leaves_nothing_running(tmp_path: Path) -> None:
    async with setup_in(tmp_path) as setup:
        await setup.bring(atom([Item("a")]))
        await setup.reader.asked.wait()
    assert not setup.intake._visits._catching_up


async def test_whether_somebody_wants_it_reduced_is_asked_of_an_index(tmp_path: Path) -> None:
    async with setup_in(tmp_path) as setup:
        plan = setup.database.read(
            "EXPLAIN QUERY PLAN SELECT 1 FROM subscriptions WHERE topic = ? AND (dialect = '0.3' OR difference = 1) "
            "LIMIT 1",
            (TOPIC,),
        )
        assert "subscriptions_reduced" in str(plan)
