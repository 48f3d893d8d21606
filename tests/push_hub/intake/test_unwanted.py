"""A ping of a topic that nobody wants costs a short row; whoever comes later gets the current state all the same."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import aiohttp

from push_hub.hub import TABLES
from push_hub.intake import Intake, IntakeConfig
from push_hub.intake.events import IntakeEvent, PingsUnwanted
from push_hub.intake.unwanted import forget_topic
from push_hub.ports import Nowhere
from storage import Database
from tests.push_hub.harness import Publisher, Subscriber, atom, until
from tests.push_hub.intake.feeds import Item
from tests.push_hub.intake.feeds import atom as feed_of
from tests.push_hub.intake.fetcher import LogSink, ScriptedFetch
from tests.push_hub.world import Clock, World, whole_hub

TOPIC = "http://news.example/feed"
ATOM = "application/atom+xml"


class Gateway(Nowhere):
    """What the network would say."""

    def __init__(self) -> None:
        self.wanted: set[str] = set()
        self.told: list[str] = []
        self.over: list[str] = []

    def wants(self, topic: str) -> bool:
        return topic in self.wanted

    def pinged(self, topic: str) -> None:
        self.told.append(topic)

    def forgotten(self, topics: Sequence[str]) -> None:
        self.over += topics


class Setup:
    def __init__(self, database: Database, **config: float) -> None:
        self.database = database
        self.fetch = ScriptedFetch()
        self.gateway = Gateway()
        self.now = 1_000_000.0
        self.events: list[IntakeEvent] = []
        self.intake = Intake(
            database,
            self.fetch,
            LogSink(database),
            IntakeConfig(**config),  # type: ignore[arg-type]
            lambda: self.now,
            self.events.append,
            elsewhere=self.gateway,
        )

    async def ping(self, *topics: str, client: str = "") -> None:
        self.now += 1
        await self.intake.ping(topics, client)
        await self.intake.idle()

    async def subscribe(self, topic: str) -> None:
        await self.write(
            "INSERT INTO subscriptions (topic, callback, signature, dialect, lease_until, created_at) "
            "VALUES (?, 'http://s.example/', 'sha256', 'websub', 1e12, 0)",
            topic,
        )

    async def write(self, statement: str, *values: object) -> None:
        await asyncio.wrap_future(self.database.write(lambda tx: tx.execute(statement, values)))  # type: ignore[arg-type]

    def rows(self, table: str) -> int:
        return int(self.database.read(f"SELECT count(*) FROM {table}")[0][0])  # noqa: S608 - own names

    @property
    def unwanted(self) -> list[str]:
        return [topic for (topic,) in self.database.read("SELECT topic FROM unwanted_pings ORDER BY id")]


@asynccontextmanager
async def setup_in(directory: Path, **config: float) -> AsyncIterator[Setup]:
    with Database.open(directory / "hub.db", TABLES) as database:
        setup = Setup(database, **config)
        await setup.intake.start()
        try:
            yield setup
        finally:
            await setup.intake.stop()


async def test_a_ping_that_nobody_wants_is_one_row_and_no_request(tmp_path: Path) -> None:
    async with setup_in(tmp_path) as setup:
        await setup.ping(TOPIC, "http://other.example/")
        await setup.ping(TOPIC)
        assert setup.fetch.asked == []
        assert [setup.rows(table) for table in ("pings", "topics", "sources", "publications")] == [0] * 4
        assert sorted(setup.unwanted) == [TOPIC, "http://other.example/"]
        assert sum(len(event.topics) for event in setup.events if isinstance(event, PingsUnwanted)) == 3
        assert setup.gateway.told == [TOPIC, "http://other.example/", TOPIC]


async def test_the_first_who_wants_it_elsewhere_has_it_fetched_then(tmp_path: Path) -> None:
    async with setup_in(tmp_path) as setup:
        setup.fetch.set(TOPIC, feed_of([Item("a")]), Content_Type=ATOM)
        await setup.ping(TOPIC)
        setup.gateway.wanted.add(TOPIC)
        await setup.intake.wanted(TOPIC)
        await setup.intake.idle()
        assert (len(setup.fetch.asked), setup.rows("publications"), setup.unwanted) == (1, 1, [])
        await setup.intake.wanted(TOPIC)
        await setup.intake.idle()
        assert len(setup.fetch.asked) == 1  # it was not pinged since
        await setup.ping(TOPIC)
        assert len(setup.fetch.asked) == 2  # somebody wants it: as ever


async def test_somebody_who_subscribed_just_before_a_crash_is_not_overlooked(tmp_path: Path) -> None:
    async with setup_in(tmp_path) as setup:
        await setup.ping(TOPIC)
        await setup.subscribe(TOPIC)
    async with setup_in(tmp_path) as setup:
        setup.fetch.set(TOPIC, b"now", Content_Type="text/plain")
        await until(lambda: setup.rows("publications") == 1)
        assert setup.unwanted == []


async def test_rows_are_bounded_in_number_in_bytes_for_a_client_and_in_time(tmp_path: Path) -> None:
    bounds = {"max_unwanted_pings": 6, "max_unwanted_bytes": 400, "max_unwanted_pings_per_client": 3}
    async with setup_in(tmp_path, **bounds, unwanted_ping_age=100.0) as setup:
        await setup.ping("http://a.example/kept", client="innocent")
        for number in range(20):
            await setup.ping(f"http://flood.example/{number}", client="flood")
        assert setup.unwanted == ["http://a.example/kept", *(f"http://flood.example/{n}" for n in (17, 18, 19))]
        for number in range(4):
            await setup.ping(f"http://b.example/{number}", client=str(number))
        assert setup.rows("unwanted_pings") == 6
        await setup.ping("http://c.example/" + "x" * 300, client="long")
        assert sum(len(topic) for topic in setup.unwanted) <= 400
        assert sorted(setup.gateway.over) == sorted(set(setup.gateway.told) - set(setup.unwanted))
        setup.now += 101
        await setup.intake.forget()
        assert setup.unwanted == []
        assert set(setup.gateway.over) == set(setup.gateway.told)
        assert setup.database.read("SELECT * FROM unwanted_size") == [(0, 0)]


async def test_what_is_kept_of_a_topic_goes_with_its_last_subscriber_and_its_log(tmp_path: Path) -> None:
    async with setup_in(tmp_path) as setup:
        setup.fetch.set(TOPIC, feed_of([Item(str(n)) for n in range(50)]), Content_Type=ATOM)
        await setup.subscribe(TOPIC)
        await setup.ping(TOPIC)
        assert setup.rows("seen_entries") == 50
        setup.now += 10_000

        async def forgotten() -> bool:
            await setup.intake.forget()
            return setup.rows("topics") == setup.rows("seen_entries") == setup.rows("topic_numbers") == 0

        assert not await forgotten()  # somebody is subscribed
        await setup.write("DELETE FROM subscriptions")
        assert not await forgotten()  # its publication is in the log
        await setup.write("DELETE FROM publications")
        setup.gateway.wanted.add(TOPIC)
        assert not await forgotten()  # somebody elsewhere wants it
        setup.gateway.wanted.clear()
        assert await forgotten()
        assert setup.rows("sources") == 0
        assert setup.gateway.over == [TOPIC]


async def test_a_long_address_is_not_stored_again_with_each_entry(tmp_path: Path) -> None:
    """5,000 entries of a topic with 2,000 characters took 10 MB and more; now each costs its two digests."""
    topic = "http://news.example/" + "x" * 1_980
    async with setup_in(tmp_path) as setup:
        await setup.subscribe(topic)
        setup.fetch.set(topic, feed_of([Item(str(n)) for n in range(5_000)]), Content_Type=ATOM)
        await setup.ping(topic)
        assert setup.rows("seen_entries") == 5_000
        before = pages(setup.database)
        await asyncio.wrap_future(setup.database.write(lambda tx: forget_topic(tx, topic)))
        assert (pages(setup.database) - before) * 4096 < 5_000 * 150


def pages(database: Database) -> int:
    return int(database.read("PRAGMA freelist_count")[0][0])


async def test_the_first_subscriber_here_gets_what_was_pinged_before(
    tmp_path: Path, http: aiohttp.ClientSession, publisher: Publisher, subscriber: Subscriber
) -> None:
    clock = Clock()
    async with whole_hub(tmp_path, clock=clock) as hub:
        world = World(hub, http, publisher, subscriber, clock)
        publisher.body = atom(1)
        await world.ping()
        assert publisher.fetches.empty()
        await world.ask("subscribe")
        assert (await subscriber.next_received()).body == atom(1)
        await world.ask("unsubscribe")
        publisher.fetches.get_nowait()
        publisher.body = atom(2, 1)
        await world.ping()
        assert hub.pinged_unwanted("", 10) == [world.topic]
        await world.ask("subscribe")
        assert (await subscriber.next_received()).body == atom(2, 1)
