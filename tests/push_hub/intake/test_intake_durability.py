"""No acknowledged ping is lost or waits for ever; refused content changes nothing."""

import asyncio
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import aiohttp
import pytest

from push_hub.hub import TABLES, Hub, HubConfig
from push_hub.intake import Intake, IntakeConfig
from push_hub.intake.events import FetchFailed, IntakeEvent
from push_hub.intake.store import Added, Update
from push_hub.model import Content, HubPublication
from push_hub.ports import OverloadedError
from push_hub.protocol.requests import RequestError
from push_hub.server import ServerConfig
from storage import Database, StorageError, StorageFullError, Transaction
from tests.push_hub.harness import until
from tests.push_hub.intake.fetcher import Along, HeldFetch, LogSink, WantedElsewhere

TOPIC = "http://a.example/feed"
UNSAFE = b'<!DOCTYPE f [<!ENTITY a SYSTEM "file:///x">]><feed/>'


class Setup:
    def __init__(self, database: Database) -> None:
        self.database = database
        self.fetch = HeldFetch()
        self.fetch.holding = False
        self.fetch.bodies[TOPIC] = b"1"
        self.sink = LogSink(database)
        self.now = 1_000.0
        self.events: list[IntakeEvent] = []

    def intake(self, **config: float) -> Intake:
        values = IntakeConfig(**{"retry_base": 60.0, **config})  # type: ignore[arg-type]
        return Intake(
            self.database,
            self.fetch,
            self.sink,
            values,
            lambda: self.now,
            self.events.append,
            elsewhere=WantedElsewhere(),
        )

    def topics(self, count: int) -> list[str]:
        names = [f"http://h{n % 7}.example/{n}" for n in range(count)]
        self.fetch.bodies |= dict.fromkeys(names, b"x")
        return names

    def pings(self) -> int:
        return int(self.database.read("SELECT count(*) FROM pings")[0][0])

    def published(self) -> list[bytes]:
        return [body for (body,) in self.database.read("SELECT body FROM publications ORDER BY id")]


@pytest.fixture
def setup(tmp_path: Path) -> Iterator[Setup]:
    with Database.open(tmp_path / "hub.db", TABLES) as database:
        yield Setup(database)


async def test_a_store_that_fails_long_does_not_strand_the_ping(setup: Setup) -> None:
    intake = setup.intake(max_attempts=2)
    honest = intake._store.write_down
    broken = True

    def write_down(tx: Transaction, update: Update) -> None:
        if broken:
            raise StorageFullError("no space left")
        honest(tx, update)

    intake._store.write_down = write_down  # type: ignore[method-assign]
    await intake.start()
    await intake.idle()
    await intake.ping([TOPIC])
    for _ in range(10):
        await intake.idle()
        setup.now += 10_000
        intake._pump()
    await intake.idle()
    assert setup.pings() == 1
    assert sum(isinstance(event, FetchFailed) for event in setup.events) == 11
    broken = False
    setup.now += 10_000
    intake._pump()
    await intake.idle()
    await intake.stop()
    assert (setup.pings(), setup.published()) == (0, [b"1"])


async def test_a_busy_sink_is_asked_again_when_it_said(setup: Setup) -> None:
    class Busy(LogSink):
        busy = True

        async def accept(
            self, topic: str, self_url: str, content: Content, along: Along | None = None
        ) -> HubPublication:
            if self.busy:
                raise OverloadedError(300.0)
            return await super().accept(topic, self_url, content, along)

    setup.sink = sink = Busy(setup.database)
    intake = setup.intake()
    await intake.start()
    await intake.ping([TOPIC])
    await intake.idle()
    failed = [event for event in setup.events if isinstance(event, FetchFailed)]
    assert failed[0].retry_at == 1_300.0
    sink.busy = False
    setup.now = 1_300.0
    intake._pump()
    await intake.idle()
    await intake.stop()
    assert (setup.pings(), setup.published()) == (0, [b"1"])


async def test_more_rows_than_the_bound_are_all_taken_up_after_a_restart(setup: Setup) -> None:
    names = setup.topics(250)
    first = setup.intake(max_waiting_topics=1_000)
    await first.ping(names)
    assert setup.pings() == 250
    first._threads.close()
    longest = 0
    second = setup.intake(max_waiting_topics=20, max_fetches=4, sweep_page=8)

    class Counting(LogSink):
        async def accept(
            self, topic: str, self_url: str, content: Content, along: Along | None = None
        ) -> HubPublication:
            nonlocal longest
            longest = max(longest, len(second._queue))
            return await super().accept(topic, self_url, content, along)

    second._visits._sink = Counting(setup.database)
    await second.start()
    await second.idle()
    await second.stop()
    assert setup.pings() == 0
    assert len(setup.published()) == 250
    assert longest <= 20


async def test_a_row_that_nobody_is_busy_with_is_found_by_the_next_round(setup: Setup) -> None:
    intake = setup.intake()
    await intake.start()
    await intake.idle()
    await intake._store.add_pings([TOPIC], "", setup.now, lambda _: True)
    await intake.sweep()
    await intake.idle()
    await intake.stop()
    assert (setup.pings(), setup.published()) == (0, [b"1"])


async def test_a_store_that_cannot_be_read_at_the_start_is_read_on_the_next_round(setup: Setup) -> None:
    intake = setup.intake(sweep_every=0.0)
    await intake._store.add_pings([TOPIC], "", setup.now, lambda _: True)
    honest = intake._store.pings_after
    failures = 3

    def pings_after(topic: str, limit: int) -> list[str]:
        nonlocal failures
        if failures:
            failures -= 1
            raise StorageError("the disk sleeps")
        return honest(topic, limit)

    intake._store.pings_after = pings_after  # type: ignore[method-assign]
    await intake.start()
    await until(setup.published)
    await until(lambda: not setup.pings())
    await intake.stop()


async def test_a_sender_that_goes_away_after_the_commit_leaves_no_ping_lying(setup: Setup) -> None:
    intake = setup.intake()
    await intake.start()
    await intake.idle()
    task = asyncio.create_task(intake.ping([TOPIC]))
    await asyncio.sleep(0)
    await asyncio.wrap_future(setup.database.write(lambda tx: None))  # the commit of the ping is done too
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    await until(setup.published)
    await intake.idle()
    await intake.stop()
    assert setup.pings() == 0


async def test_a_ping_during_the_fetch_survives_a_crash_after_it(setup: Setup) -> None:
    setup.fetch.holding = True
    intake = setup.intake()
    await intake.start()
    await intake.ping([TOPIC])
    await until(lambda: setup.fetch.held)
    setup.fetch.bodies[TOPIC] = b"2"
    await intake.ping([TOPIC])
    setup.fetch.let_go()
    await until(lambda: setup.fetch.held)  # the second fetch has begun, so the first is stored
    await intake.stop()
    assert (setup.pings(), setup.published()) == (1, [b"1"])
    setup.fetch.holding = False
    again = setup.intake()
    await again.start()
    await again.idle()
    await again.stop()
    assert (setup.pings(), setup.published()) == (0, [b"1", b"2"])


async def test_a_fetch_does_not_begin_before_content_that_came_earlier_is_stored(setup: Setup) -> None:
    gate, entered = asyncio.Event(), asyncio.Event()

    class Slow(LogSink):
        async def accept(
            self, topic: str, self_url: str, content: Content, along: Along | None = None
        ) -> HubPublication:
            entered.set()
            await gate.wait()
            return await super().accept(topic, self_url, content, along)

    setup.sink = Slow(setup.database)
    intake = setup.intake()
    await intake.start()
    await intake.idle()
    offer = asyncio.create_task(intake.offer(TOPIC, Content("text/plain", b"2"), TOPIC))
    await entered.wait()
    setup.fetch.bodies[TOPIC] = b"3"
    await intake.ping([TOPIC])
    for _ in range(50):
        await asyncio.sleep(0)
    assert setup.fetch.requests == 0
    gate.set()
    await offer
    await intake.idle()
    await intake.stop()
    assert setup.published() == [b"2", b"3"]


async def test_an_offer_is_finished_although_its_sender_went_away(setup: Setup) -> None:
    gate, entered = asyncio.Event(), asyncio.Event()

    class Slow(LogSink):
        async def accept(
            self, topic: str, self_url: str, content: Content, along: Along | None = None
        ) -> HubPublication:
            entered.set()
            await gate.wait()
            return await super().accept(topic, self_url, content, along)

    setup.sink = Slow(setup.database)
    intake = setup.intake()
    offer = asyncio.create_task(intake.offer(TOPIC, Content("text/plain", b"2"), TOPIC))
    await entered.wait()
    offer.cancel()
    gate.set()
    await until(lambda: setup.database.read("SELECT 1 FROM topics"))
    await intake.stop()
    assert setup.published() == [b"2"]


async def test_too_many_offers_are_refused_with_a_time(setup: Setup) -> None:
    intake = setup.intake(max_offers=0)
    with pytest.raises(OverloadedError) as refused:
        await intake.offer(TOPIC, Content("text/plain", b"2"), TOPIC)
    assert refused.value.retry_after == 30.0
    await intake.stop()


async def test_an_unsafe_offer_is_refused_in_words_and_changes_nothing(setup: Setup) -> None:
    intake = setup.intake()
    with pytest.raises(RequestError, match="unsafe XML") as refused:
        await intake.offer(TOPIC, Content("application/atom+xml", UNSAFE), TOPIC)
    assert refused.value.status == 422
    await intake.stop()
    assert setup.published() == []
    assert setup.database.read("SELECT * FROM topics") == []


async def test_an_unsafe_fat_ping_is_answered_422_over_http(tmp_path: Path, http: aiohttp.ClientSession) -> None:
    hub = Hub(HubConfig(tmp_path / "data", server=ServerConfig(publisher_tokens=("letmein",))))
    await hub.start()
    try:
        headers = {"Authorization": "Bearer letmein", "Content-Type": "application/rss+xml"}
        where = {"hub.mode": "publish", "hub.url": "http://a.example/feed"}
        async with http.post(hub.url, params=where, headers=headers, data=UNSAFE) as answer:
            assert answer.status == 422
            assert answer.content_type == "text/plain"
            assert "the content is refused as unsafe XML" in await answer.text()
        assert hub.delivery.latest("http://a.example/feed") == []
    finally:
        await hub.stop()


# Pings that are looked into at once


async def test_a_ping_that_is_answered_quickly_is_never_stored_by_itself(setup: Setup) -> None:
    stored: list[Sequence[str]] = []
    intake = setup.intake()
    honest = intake._store.add_pings

    def add_pings(
        topics: Sequence[str], client: str, now: float, wants: Callable[[str], bool]
    ) -> "asyncio.Future[Added]":
        stored.append(topics)
        return honest(topics, client, now, wants)

    intake._store.add_pings = add_pings  # type: ignore[method-assign]
    await intake.start()
    await intake.idle()
    await intake.ping([TOPIC])
    assert (setup.published(), setup.pings(), stored) == ([b"1"], 0, [])
    await intake.stop()


async def test_a_ping_whose_fetch_takes_long_is_on_disk_when_it_is_acknowledged(setup: Setup) -> None:
    setup.fetch.holding = True
    intake = setup.intake()
    await intake.start()
    await intake.idle()
    await intake.ping([TOPIC])
    assert (setup.published(), setup.pings()) == ([], 1)
    setup.fetch.let_go()
    await intake.idle()
    await intake.stop()
    assert (setup.published(), setup.pings(), setup.fetch.requests) == ([b"1"], 0, 1)


async def test_a_ping_during_a_fetch_that_was_begun_at_once_is_not_answered_by_it(setup: Setup) -> None:
    setup.fetch.holding = True
    intake = setup.intake()
    await intake.start()
    await intake.idle()
    first = asyncio.create_task(intake.ping([TOPIC]))
    await until(lambda: setup.fetch.held)
    setup.fetch.bodies[TOPIC] = b"2"
    await intake.ping([TOPIC])
    setup.fetch.let_go()
    await first
    await until(lambda: setup.fetch.held)
    assert setup.pings() == 1, "what the second ping was about is not stored yet"
    setup.fetch.let_go()
    await intake.idle()
    await intake.stop()
    assert (setup.published(), setup.pings()) == ([b"1", b"2"], 0)


async def test_a_ping_whose_fetch_cannot_be_stored_is_not_acknowledged(setup: Setup) -> None:
    intake = setup.intake()
    await intake.start()
    await intake.idle()
    broken = True
    honest = setup.database.transact

    def transact(work: Callable[[Transaction], object]) -> "asyncio.Future[object]":
        if broken:
            raise StorageFullError("no space left")
        return honest(work)

    setup.database.transact = transact  # type: ignore[method-assign, assignment]
    with pytest.raises(StorageFullError):
        await intake.ping([TOPIC])
    broken = False
    await intake.ping([TOPIC])
    await intake.idle()
    await intake.stop()
    assert (setup.published(), setup.pings()) == ([b"1"], 0)
