"""Names cost nothing: what an origin gets of fetches and parsers is counted by the network it is in."""

import asyncio
import os
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from push_hub.hub import TABLES
from push_hub.intake import Intake, IntakeConfig
from push_hub.intake.events import IntakeEvent, ParserGaveUp, RetriesBounded
from push_hub.intake.feeds import MAX_ATTRIBUTES
from push_hub.intake.parsers import ParserPool
from push_hub.intake.threads import Threads
from serving.fairness import KnownPrefixes
from serving.limits import Rate
from serving.outbound.addresses import AddressPolicy
from serving.outbound.client import ClientConfig, OutboundClient
from storage import Database
from tests.push_hub.harness import until
from tests.push_hub.intake.feeds import Item, odd
from tests.push_hub.intake.fetcher import LogSink, WantedElsewhere

ATOM = "application/atom+xml"
NAMES = 40


class Crowd:
    """One server with many names."""

    def __init__(self) -> None:
        self.status = 200
        self.requests = 0
        self.inside = 0
        self.most = 0
        self.open = asyncio.Event()

    async def handle(self, _request: web.Request) -> web.Response:
        self.requests += 1
        self.inside += 1
        self.most = max(self.most, self.inside)
        await self.open.wait()
        self.inside -= 1
        answer = web.Response(status=self.status, text="nothing")
        answer.force_close()  # kept connections are shared among names that the operator gave one address
        return answer


@asynccontextmanager
async def intake_of(
    crowd: Crowd, path: Path, **config: float
) -> AsyncIterator[tuple[Intake, list[str], list[IntakeEvent]]]:
    app = web.Application()
    app.router.add_get("/feed", crowd.handle)
    names = [f"name{n}.domain{n}.example" for n in range(NAMES)]
    events: list[IntakeEvent] = []
    async with TestServer(app) as server:
        hosts = tuple((name, "127.0.0.1") for name in names)
        client = OutboundClient(ClientConfig(AddressPolicy(allow_private=True), hosts=hosts))
        database = Database.open(path / "hub.db", TABLES)
        values = IntakeConfig(**{"retry_base": 1.0, "retry_cap": 1e6, **config})  # type: ignore[arg-type]
        loop = asyncio.get_running_loop()
        intake = Intake(
            database,
            client,
            LogSink(database),
            values,
            loop.time,
            events.append,
            prefixes=client.prefixes,
            elsewhere=WantedElsewhere(),
        )
        await intake.start()
        try:
            yield intake, [f"http://{name}:{server.port}/feed" for name in names], events
        finally:
            crowd.open.set()
            await intake.stop()
            await client.close()
            database.close()


async def test_many_names_on_one_address_get_the_fetches_of_one_place(tmp_path: Path) -> None:
    crowd = Crowd()
    async with intake_of(crowd, tmp_path) as (intake, topics, _):
        await intake.ping(topics)
        await until(lambda: crowd.inside == IntakeConfig().max_fetches_per_prefix)
        crowd.open.set()
        await until(lambda: crowd.requests >= NAMES and intake.waiting == 0)
        await intake.idle()
    assert crowd.most == IntakeConfig().max_fetches_per_prefix
    assert crowd.requests == NAMES


async def test_a_server_that_fails_is_not_asked_again_for_each_of_its_names(tmp_path: Path) -> None:
    crowd = Crowd()
    crowd.status = 500
    crowd.open.set()
    async with intake_of(crowd, tmp_path, max_retries_per_prefix=3, retry_base=1000.0) as (intake, topics, events):
        await intake.ping(topics)
        await until(lambda: crowd.requests == NAMES and crowd.inside == 0)
        await intake.idle()
        # Those under way while the others are counted may be one too many each.
        assert 3 <= intake.waiting <= 3 + IntakeConfig().max_fetches_per_prefix
        assert crowd.requests == NAMES
        bounded = sum(isinstance(event, RetriesBounded) for event in events)
        assert bounded + intake.waiting == NAMES


@asynccontextmanager
async def pool_at(
    prefixes: KnownPrefixes, events: list[IntakeEvent], config: IntakeConfig
) -> AsyncIterator[ParserPool]:
    threads = Threads(1)
    pool = ParserPool(config, threads, events.append, prefixes)
    try:
        yield pool
    finally:
        await pool.close()
        threads.close()


async def test_names_of_one_network_share_a_parser_and_its_time(monkeypatch: pytest.MonkeyPatch) -> None:
    prefixes = KnownPrefixes()
    for number in range(10):
        prefixes.learn(f"name{number}.domain{number}.example", "203.0.113.7", 80)
    prefixes.learn("innocent.example", "198.51.100.1", 80)
    events: list[IntakeEvent] = []
    now = 0.0
    running: list[str] = []
    most = 0

    async with pool_at(prefixes, events, IntakeConfig(parse_share=Rate(0.1, 20.0))) as pool:
        judged = pool._judged

        async def slow(content_type: str, body: bytes) -> object:
            nonlocal now, most
            running.append(content_type)
            most = max(most, len(running))
            await asyncio.sleep(0)
            if content_type == "slow":
                now += 10.0
            answer = await judged(ATOM, body)
            running.remove(content_type)
            return answer

        monkeypatch.setattr(pool, "_judged", slow)
        monkeypatch.setattr(pool, "_clock", lambda: now)
        document = odd([Item("a")])
        crowd = [pool.read(f"http://name{n}.domain{n}.example/feed", "slow", document) for n in range(10)]
        crowd_feeds = asyncio.gather(*crowd)
        innocent = await pool.read("http://innocent.example/feed", ATOM, document)
        assert innocent is not None
        feeds = await crowd_feeds
    # Two tens of seconds are what it had saved up; the rest was passed on whole without a parser.
    assert sum(feed is not None for feed in feeds) in (2, 3)
    assert [event for event in events if isinstance(event, ParserGaveUp) and "203.0.113.0/24" in event.reason]
    assert most <= 2


async def test_very_many_attributes_are_not_taken_apart() -> None:
    """feedparser's time grows with the square of their number."""
    many = " ".join(f'a{n}="x"' for n in range(MAX_ATTRIBUTES + 1))
    document = f'<feed xmlns="http://www.w3.org/2005/Atom"><id>u</id><entry {many}><id>1</id></entry></feed>'.encode()
    events: list[IntakeEvent] = []
    async with pool_at(KnownPrefixes(), events, IntakeConfig()) as pool:
        assert await pool.read("http://a.example/", ATOM, document) is None
        assert await pool.read("http://a.example/", ATOM, odd([Item("a")])) is not None


def test_what_lies_in_the_working_directory_or_pythonpath_is_not_run_by_a_parser(tmp_path: Path) -> None:
    for name in ("feedparser.py", "sitecustomize.py", "usercustomize.py"):
        (tmp_path / name).write_text(f"open({str(tmp_path / 'ran')!r}, 'w')\nraise SystemExit(3)\n")
    program = """
import asyncio
from push_hub.intake.config import IntakeConfig
from push_hub.intake.parsers import ParserPool
from push_hub.intake.threads import Threads

async def main():
    pool = ParserPool(IntakeConfig(), Threads(1))
    body = b'<feed xmlns="http://www.w3.org/2005/Atom"><id>u</id><entry><id>1</id></entry></feed>'
    feed = await pool.read("http://a.example/", "application/atom+xml", body)
    print(len(feed.entries), flush=True)
    await pool.close()

asyncio.run(main())
"""
    done = subprocess.run(
        [sys.executable, "-I", "-c", program],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(tmp_path), "PYTHONUSERBASE": str(tmp_path)},
        check=False,
        timeout=60,
        capture_output=True,
        text=True,
    )
    assert done.stdout == "1\n", done.stderr
    assert not (tmp_path / "ran").exists()
