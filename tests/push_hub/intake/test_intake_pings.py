"""Pings through the intake over real sockets: an origin server on loopback, a store on disk."""

import asyncio
import gzip
from collections.abc import AsyncIterator
from pathlib import Path

import aiohttp
import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from push_hub.hub import TABLES
from push_hub.intake import Intake, IntakeConfig
from push_hub.intake.events import IntakeEvent
from push_hub.intake.store import Update
from push_hub.model import Content
from push_hub.ports import OverloadedError
from storage import Database, StorageError, Transaction
from tests.push_hub.intake.feeds import Item, atom
from tests.push_hub.intake.fetcher import AiohttpFetch, LogSink, WantedElsewhere

ATOM = 'application/atom+xml; charset="UTF-8"'


class Origin:
    """A publisher whose answers a test sets."""

    def __init__(self) -> None:
        self.answers: dict[str, web.Response] = {}
        self.requests: list[web.Request] = []
        self.hold: asyncio.Event | None = None
        self.entered = asyncio.Event()

    def set(self, path: str, body: bytes = b"", status: int = 200, **headers: str) -> None:
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        self.answers[path] = web.Response(status=status, body=body, headers=named)

    async def handle(self, request: web.Request) -> web.Response:
        self.requests.append(request)
        template = self.answers[request.path]
        self.entered.set()
        if self.hold is not None:
            await self.hold.wait()
        etag = template.headers.get("ETag")
        if etag and request.headers.get("If-None-Match") == etag:
            return web.Response(status=304)
        return web.Response(status=template.status, body=template.body, headers=template.headers)


class Setup:
    def __init__(self, path: Path, session: aiohttp.ClientSession, origin: Origin, base: str) -> None:
        self.database = Database.open(path, TABLES)
        self.session, self.origin, self.base = session, origin, base
        self.now = 1_000_000.0
        self.events: list[IntakeEvent] = []
        self.sink = LogSink(self.database)
        self.intake = self.another()

    def another(self, **config: float) -> Intake:
        values = IntakeConfig(**{"retry_base": 60.0, **config})  # type: ignore[arg-type]
        return Intake(
            self.database,
            AiohttpFetch(self.session),
            self.sink,
            values,
            lambda: self.now,
            self.events.append,
            elsewhere=WantedElsewhere(),
        )

    def url(self, path: str) -> str:
        return self.base + path

    async def ping(self, *paths: str) -> None:
        self.now += 1
        await self.intake.ping([self.url(path) for path in paths])
        await self.intake.idle()

    def published(self, path: str = "/feed") -> list[tuple[str, bytes, bytes | None]]:
        return self.database.read(
            "SELECT content_type, body, changes FROM publications WHERE topic = ? ORDER BY id", (self.url(path),)
        )

    def outcome(self, path: str = "/feed") -> str:
        return str(self.database.read("SELECT outcome FROM topics WHERE url = ?", (self.url(path),))[0][0])

    def pings(self) -> int:
        return len(self.database.read("SELECT * FROM pings"))


@pytest.fixture
async def hub(tmp_path: Path) -> AsyncIterator[Setup]:
    origin = Origin()
    app = web.Application()
    app.router.add_route("*", "/{tail:.*}", origin.handle)
    async with TestServer(app) as server, aiohttp.ClientSession(auto_decompress=False) as session:
        setup = Setup(tmp_path / "hub.db", session, origin, str(server.make_url("")).rstrip("/"))
        await setup.intake.start()
        yield setup
        await setup.intake.stop()
        setup.database.close()


async def test_new_and_changed_entries_are_published_with_exact_type_and_body(hub: Setup) -> None:
    first, second = atom([Item("a", "1")]), atom([Item("b", "2"), Item("a", "1")])
    hub.origin.set("/feed", first, Content_Type=ATOM)
    await hub.ping("/feed")
    hub.origin.set("/feed", second, Content_Type=ATOM)
    await hub.ping("/feed")
    third = atom([Item("b", "2!"), Item("a", "1")])
    hub.origin.set("/feed", third, Content_Type=ATOM)
    await hub.ping("/feed")
    assert hub.published() == [
        (ATOM, first, None),  # all of it is new: nothing can be left out
        (ATOM, second, atom([Item("b", "2")])),
        (ATOM, third, atom([Item("b", "2!")])),
    ]
    assert hub.pings() == 0


async def test_changes_around_the_entries_count_and_nothing_new_does_not(hub: Setup) -> None:
    hub.origin.set("/feed", atom([Item("a"), Item("b")]), Content_Type=ATOM)
    await hub.ping("/feed")
    hub.origin.set("/feed", atom([Item("a")]), Content_Type=ATOM)
    await hub.ping("/feed")
    assert len(hub.published()) == 1
    assert hub.outcome() == "fetched, nothing new"
    hub.origin.set("/feed", atom([Item("a")], title="Renamed"), Content_Type=ATOM)
    await hub.ping("/feed")
    assert hub.published()[1][2] == atom([], title="Renamed")


async def test_validators_are_sent_back_and_304_publishes_nothing(hub: Setup) -> None:
    hub.origin.set("/feed", b"{}", Content_Type="application/json", ETag='"v1"')
    await hub.ping("/feed")
    await hub.ping("/feed")
    assert hub.origin.requests[1].headers["If-None-Match"] == '"v1"'
    assert hub.outcome() == "not modified (304)"
    assert hub.published() == [("application/json", b"{}", None)]
    assert hub.origin.requests[0].headers["User-Agent"] == "psph-hub (0 subscribers)"


async def test_compressed_content_is_published_plain(hub: Setup) -> None:
    hub.origin.set("/feed", gzip.compress(b"hello"), Content_Type="text/plain", Content_Encoding="gzip")
    await hub.ping("/feed")
    assert hub.published() == [("text/plain", b"hello", None)]


async def test_redirects_are_followed_and_permanent_ones_remembered(hub: Setup) -> None:
    hub.origin.set("/feed", status=301, Location="/new")
    hub.origin.set("/new", b"moved", Content_Type="text/plain")
    await hub.ping("/feed")
    hub.origin.set("/new", b"moved again", Content_Type="text/plain")
    await hub.ping("/feed")
    assert [r.path for r in hub.origin.requests] == ["/feed", "/new", "/new"]
    assert [body for _, body, _ in hub.published()] == [b"moved", b"moved again"]


async def test_circles_and_endless_redirects_end(hub: Setup) -> None:
    hub.origin.set("/feed", status=302, Location="/feed")
    for n in range(9):
        hub.origin.set(f"/{n}", status=302, Location=f"/{n + 1}")
    await hub.ping("/feed", "/0")
    assert "circle" in hub.outcome()
    assert "more than 5 redirects" in hub.outcome("/0")


async def test_failures_are_retried_within_bounds_then_wait_for_the_next_ping(hub: Setup) -> None:
    hub.origin.set("/feed", status=503)
    await hub.ping("/feed")
    assert hub.outcome() == "the server answered 503; try 1 of 5"
    assert hub.pings() == 1
    for _ in range(6):
        hub.now += 10_000
        hub.intake._pump()
        await hub.intake.idle()
    assert len(hub.origin.requests) == 5
    assert hub.outcome() == "the server answered 503; gave up after 5 tries, waiting for the next ping"
    assert hub.pings() == 0
    hub.origin.set("/feed", b"back", Content_Type="text/plain")
    await hub.ping("/feed")
    assert len(hub.published()) == 1


async def test_unsafe_xml_is_refused_and_changes_nothing(hub: Setup) -> None:
    hub.origin.set("/feed", b'<!DOCTYPE f [<!ENTITY a SYSTEM "file:///x">]><feed/>', Content_Type=ATOM)
    await hub.ping("/feed")
    assert hub.published() == []
    assert hub.outcome().startswith("the document was refused")
    assert hub.pings() == 0


async def test_a_malformed_feed_is_read_by_the_lenient_parser_and_passed_on_whole(hub: Setup) -> None:
    def broken(*names: str) -> bytes:
        items = "".join(f"<item><guid>{n}</guid><title>a & b</title></item>" for n in names)
        return f"<rss version='2.0'><channel><title>x</title>{items}</channel>".encode()

    hub.origin.set("/feed", broken("a", "b"), Content_Type="application/rss+xml")
    await hub.ping("/feed")
    hub.origin.set("/feed", broken("b", "a"), Content_Type="application/rss+xml")
    await hub.ping("/feed")
    assert hub.published() == [("application/rss+xml", broken("a", "b"), None)]
    hub.origin.set("/feed", broken("c", "a"), Content_Type="application/rss+xml")
    await hub.ping("/feed")
    assert hub.outcome() == "fetched, 1 new or changed entries"


async def test_a_ping_during_its_fetch_causes_exactly_one_more(hub: Setup) -> None:
    hub.origin.set("/feed", b"old", Content_Type="text/plain")
    hub.origin.hold = asyncio.Event()
    await hub.intake.ping([hub.url("/feed")])
    await hub.origin.entered.wait()
    hub.origin.set("/feed", b"new", Content_Type="text/plain")
    for _ in range(5):
        await hub.intake.ping([hub.url("/feed")])
    hub.origin.hold.set()
    await hub.intake.idle()
    assert [body for _, body, _ in hub.published()] == [b"old", b"new"]
    assert len(hub.origin.requests) == 2
    assert hub.pings() == 0


async def test_pings_survive_a_stop_before_their_fetch(hub: Setup) -> None:
    hub.origin.set("/feed", b"x", Content_Type="text/plain")
    await hub.intake.stop()
    await hub.intake.ping([hub.url("/feed")])
    assert hub.published() == []
    hub.intake = hub.another()
    await hub.intake.start()
    await hub.intake.idle()
    assert len(hub.published()) == 1


async def test_publication_and_state_are_written_together_or_not_at_all(hub: Setup) -> None:
    hub.origin.set("/feed", atom([Item("a")]), Content_Type=ATOM, ETag='"1"')
    await hub.intake.stop()
    intake = hub.another()
    honest = intake._store.write_down

    def half(tx: Transaction, update: Update) -> None:
        honest(tx, update)
        raise StorageError("the disk fails now")

    intake._store.write_down = half  # type: ignore[method-assign]
    await intake.ping([hub.url("/feed")])
    assert await intake._visits.visit(hub.url("/feed")) is not None
    assert (len(hub.published()), hub.pings()) == (0, 1)
    assert hub.database.read("SELECT * FROM topics") == []


async def test_what_a_hub_of_before_published_and_did_not_write_down_is_published_once(hub: Setup) -> None:
    hub.origin.set("/feed", atom([Item("a")]), Content_Type=ATOM, ETag='"1"')
    await hub.intake.stop()
    await hub.another().ping([hub.url("/feed")])
    await LogSink(hub.database).accept(hub.url("/feed"), hub.url("/feed"), Content(ATOM, atom([Item("a")])))
    assert (len(hub.published()), hub.pings()) == (1, 1)
    hub.intake = hub.another()
    await hub.intake.start()
    await hub.intake.idle()
    assert (len(hub.published()), hub.pings()) == (1, 0)


async def test_a_full_queue_refuses_with_a_time_and_stores_nothing(hub: Setup) -> None:
    await hub.intake.stop()
    hub.intake = hub.another(max_waiting_topics=2)
    await hub.intake.ping([hub.url("/a"), hub.url("/b")])
    with pytest.raises(OverloadedError) as refused:
        await hub.intake.ping([hub.url("/c")])
    assert refused.value.retry_after == 30.0
    assert hub.pings() == 2


async def test_a_fat_ping_is_published_and_known_afterwards(hub: Setup) -> None:
    topic = hub.url("/feed")
    await hub.intake.offer(topic, Content(ATOM, atom([Item("a")])), topic)
    await hub.intake.offer(topic, Content(ATOM, atom([Item("a")])), topic)
    await hub.intake.offer(topic, Content(ATOM, atom([Item("b"), Item("a")])), topic)
    assert [changes for _, _, changes in hub.published()] == [None, atom([Item("b")])]


async def test_the_self_link_of_the_document_is_handed_on(hub: Setup) -> None:
    hub.origin.set("/feed", atom([], self_url=hub.url("/canonical")), Content_Type=ATOM)
    await hub.ping("/feed")
    assert hub.database.read("SELECT self_url FROM publications") == [(hub.url("/canonical"),)]
