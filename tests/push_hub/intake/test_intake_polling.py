"""Polling topics whose publishers do not ping, with a clock that the test sets."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from push_hub.hub import TABLES
from push_hub.intake import Intake, IntakeConfig
from push_hub.intake.store import IntakeStore
from push_hub.model import Content
from storage import Database, Transaction
from tests.push_hub.intake.feeds import Item, rss
from tests.push_hub.intake.fetcher import LogSink, ScriptedFetch, WantedElsewhere

TOPIC = "http://a.example/feed"
RSS = "application/rss+xml"
NOON = datetime(2026, 3, 4, 12, 0, tzinfo=UTC).timestamp()  # a Wednesday
MIN, MAX = 300.0, 86_400.0


class Setup:
    def __init__(self, database: Database, **config: float) -> None:
        self.database = database
        self.fetch = ScriptedFetch()
        self.now = NOON
        values = IntakeConfig(**{"poll": True, "poll_min": MIN, "poll_max": MAX, "poll_tick": 1e9, **config})  # type: ignore[arg-type]
        self.intake = Intake(
            database, self.fetch, LogSink(database), values, lambda: self.now, elsewhere=WantedElsewhere()
        )

    def subscribe(self, *topics: str) -> None:
        def work(tx: Transaction) -> None:
            for topic in topics:
                tx.execute(
                    "INSERT INTO subscriptions (topic, callback, signature, dialect, lease_until, created_at) "
                    "VALUES (?, ?, 'sha1', '0.4', 9e9, 0)",
                    (topic, f"http://c.example/{topic}"),
                )

        self.database.write(work).result()

    async def tick(self) -> int:
        """One turn of the polling loop; returns how many requests it caused."""
        before = len(self.fetch.asked)
        await self.intake.poll()
        await self.intake.idle()
        return len(self.fetch.asked) - before

    def poll_at(self, topic: str = TOPIC) -> float:
        return float(self.database.read("SELECT poll_at FROM topics WHERE url = ?", (topic,))[0][0])

    async def next_look(self, topic: str = TOPIC) -> float:
        """Go to the time of the next look, check that it is not before, look, and return how long the wait was."""
        at = self.poll_at(topic)
        wait = at - self.now
        self.now = at - 0.001
        assert await self.tick() == 0
        self.now = at
        assert await self.tick() >= 1
        return wait

    def published(self) -> list[bytes]:
        return [body for (body,) in self.database.read("SELECT body FROM publications ORDER BY id")]


@asynccontextmanager
async def setup_in(path: Path, **config: float) -> AsyncIterator[Setup]:
    with Database.open(path / "hub.db", TABLES) as database:
        one = Setup(database, **config)
        await one.intake.start()
        await one.intake.idle()
        yield one
        await one.intake.stop()


@pytest.fixture
async def setup(tmp_path: Path) -> AsyncIterator[Setup]:
    async with setup_in(tmp_path) as one:
        yield one


async def test_a_subscribed_topic_is_found_looked_at_and_published(setup: Setup) -> None:
    setup.fetch.set(TOPIC, b"1", Content_Type="text/plain")
    setup.fetch.set("http://a.example/nobody", b"1", Content_Type="text/plain")
    assert await setup.tick() == 0
    setup.subscribe(TOPIC)
    assert await setup.tick() == 1
    assert await setup.tick() == 0
    setup.fetch.set(TOPIC, b"2", Content_Type="text/plain")
    await setup.next_look()
    assert setup.published() == [b"1", b"2"]
    assert setup.fetch.asked[0].headers["User-Agent"] == "psph-hub (1 subscriber)"


async def test_without_subscribers_a_topic_is_no_longer_polled(setup: Setup) -> None:
    setup.fetch.set(TOPIC, b"1", Content_Type="text/plain")
    setup.subscribe(TOPIC)
    await setup.tick()
    setup.database.write(lambda tx: tx.execute("DELETE FROM subscriptions")).result()
    setup.now += 10 * MAX
    assert await setup.tick() == 0


async def test_polling_is_off_unless_asked_for(tmp_path: Path) -> None:
    with Database.open(tmp_path / "hub.db", TABLES) as database:
        intake = Intake(
            database, ScriptedFetch(), LogSink(database), IntakeConfig(), lambda: NOON, elsewhere=WantedElsewhere()
        )
        await intake.start()
        assert len(intake._keepers) == 1
        await intake.stop()


async def test_topics_known_from_before_polling_was_turned_on_are_polled(tmp_path: Path) -> None:
    async with setup_in(tmp_path, poll=False) as setup:
        setup.subscribe(TOPIC)
        setup.fetch.set(TOPIC, b"1", Content_Type="text/plain")
        await setup.intake.ping([TOPIC])
        await setup.intake.idle()
    async with setup_in(tmp_path) as setup:
        assert len(setup.fetch.asked) == 1  # looked at when the hub started


async def test_the_interval_follows_the_changes_between_its_bounds(setup: Setup) -> None:
    setup.subscribe(TOPIC)
    setup.fetch.set(TOPIC, b"0", Content_Type="text/plain")
    await setup.tick()
    waits = []
    for n in range(1, 8):
        setup.fetch.set(TOPIC, b"%d" % n, Content_Type="text/plain")
        waits.append(await setup.next_look())
    assert waits == sorted(waits, reverse=True)
    assert waits[-1] == pytest.approx(MIN)
    quiet = [await setup.next_look() for _ in range(20)]
    assert quiet == sorted(quiet)
    assert quiet[-1] == pytest.approx(MAX)
    assert len(setup.published()) == 8


async def test_a_304_also_lengthens_the_interval_and_costs_no_parsing(setup: Setup) -> None:
    setup.subscribe(TOPIC)
    setup.fetch.set(TOPIC, rss([Item("1")]), Content_Type=RSS, ETag='"1"')
    await setup.tick()
    first = await setup.next_look()
    assert setup.fetch.asked[-1].headers["If-None-Match"] == '"1"'
    assert await setup.next_look() == pytest.approx(first * 1.5)


@pytest.mark.parametrize(
    ("fields", "wait"),
    [
        ({"Cache_Control": "public, max-age=7200"}, 7200),
        ({"Retry_After": "5000"}, 5000),
        ({"Retry_After": "Wed, 04 Mar 2026 15:00:00 GMT"}, 3 * 3600),
        ({"Cache_Control": "max-age=10"}, None),
        ({"Cache_Control": "max-age=99999999999", "Retry_After": "soon"}, 30 * 86_400),
    ],
)
async def test_headers_put_the_next_look_off(setup: Setup, fields: dict[str, str], wait: float | None) -> None:
    setup.subscribe(TOPIC)
    setup.fetch.set(TOPIC, b"x", Content_Type="text/plain", **fields)
    await setup.tick()
    assert setup.poll_at() - setup.now == pytest.approx(wait or 2 * MIN)


async def test_retry_after_of_a_busy_server_is_kept_for_retries_and_polls(setup: Setup) -> None:
    setup.subscribe(TOPIC)
    setup.fetch.set(TOPIC, status=503, Retry_After="5000")
    await setup.tick()
    assert setup.poll_at() >= setup.now + 5000
    setup.now += 4999
    setup.intake._pump()
    await setup.intake.idle()
    assert await setup.tick() == 0
    assert len(setup.fetch.asked) == 1


async def test_ttl_counts(setup: Setup) -> None:
    setup.subscribe(TOPIC)
    setup.fetch.set(TOPIC, rss([Item("1")], more="<ttl>180</ttl>"), Content_Type=RSS)
    await setup.tick()
    assert setup.poll_at() == NOON + 180 * 60


async def test_skipped_hours_and_days_are_skipped_also_after_a_304_and_a_restart(tmp_path: Path) -> None:
    hours = "".join(f"<hour>{hour}</hour>" for hour in range(24) if hour not in (12, 18))
    more = f"<skipHours>{hours}</skipHours><skipDays><day>Thursday</day><day>Friday</day></skipDays>"
    looks: list[float] = []
    for _ in range(2):
        async with setup_in(tmp_path) as setup:
            setup.now = looks[-1] if looks else NOON
            setup.fetch.set(TOPIC, rss([Item("1")], more=more), Content_Type=RSS, ETag='"1"')
            if not looks:
                setup.subscribe(TOPIC)
                await setup.tick()
            for _ in range(3):
                await setup.next_look()
                looks.append(setup.now)
            assert len(setup.published()) == 1
    assert len(looks) == 6
    moments = [datetime.fromtimestamp(look, UTC) for look in looks]
    assert all(moment.hour in (12, 18) and moment.strftime("%a") not in ("Thu", "Fri") for moment in moments)


async def test_a_publisher_that_pings_is_only_looked_at_now_and_then(setup: Setup) -> None:
    setup.subscribe(TOPIC)
    setup.fetch.set(TOPIC, b"1", Content_Type="text/plain")
    await setup.intake.ping([TOPIC])
    await setup.intake.idle()
    assert setup.poll_at() == setup.now + MAX
    await setup.intake.offer(TOPIC, Content("text/plain", b"2"), TOPIC)
    assert setup.poll_at() == setup.now + MAX
    # It stops pinging: the next look finds a change, and from then on the topic is polled like any other.
    setup.fetch.set(TOPIC, b"3", Content_Type="text/plain")
    await setup.next_look()
    assert setup.poll_at() - setup.now < MAX / 2
    assert setup.published() == [b"1", b"2", b"3"]


async def test_failing_topics_are_polled_less_and_less_and_never_dropped(setup: Setup) -> None:
    setup.subscribe(TOPIC)
    setup.fetch.fail(TOPIC, "no route to host")
    await setup.tick()
    for _ in range(25):
        setup.now = max(setup.now + 2 * 3600, setup.poll_at())
        setup.intake._pump()
        await setup.intake.idle()
        await setup.tick()
    assert setup.poll_at() - setup.now > MAX / 2
    setup.fetch.set(TOPIC, b"back", Content_Type="text/plain")
    setup.now = setup.poll_at()
    await setup.tick()
    assert setup.published() == [b"back"]


async def test_polls_leave_room_for_pings(tmp_path: Path) -> None:
    async with setup_in(tmp_path, max_waiting_topics=10, poll_batch=4) as setup:
        topics = [f"http://h{n}.example/" for n in range(25)]
        for topic in topics:
            setup.fetch.set(topic, b"x", Content_Type="text/plain")
        setup.subscribe(*topics)
        counts = [await setup.tick() for _ in range(8)]
        assert max(counts) == 4
        assert sum(counts) == 25  # the round comes to all of them
        assert sorted(setup.fetch.urls) == sorted(topics)


@given(
    st.lists(st.tuples(st.integers(0, 12), st.integers(1, 3)), max_size=12),
    st.sets(st.integers(0, 12)),
    st.integers(1, 7),
)
@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_the_round_over_subscribed_topics_finds_each_unknown_one_once(
    tmp_path_factory: pytest.TempPathFactory, subscribed: list[tuple[int, int]], known: set[int], page: int
) -> None:
    with Database.open(tmp_path_factory.mktemp("d") / "x", TABLES) as database:

        def work(tx: Transaction) -> None:
            for number, (topic, count) in enumerate(subscribed):
                for n in range(count):
                    tx.execute(
                        "INSERT INTO subscriptions (topic, callback, signature, dialect, lease_until, created_at) "
                        "VALUES (?, ?, 'sha1', '0.4', 9e9, 0)",
                        (f"t{topic:02}", f"c{number}-{n}"),
                    )
            for topic in known:
                tx.execute("INSERT INTO topics (url, self_url, poll_at) VALUES (?, '', 1)", (f"t{topic:02}",))

        database.write(work).result()
        store = IntakeStore(database, IntakeConfig())
        found: list[str] = []
        after = ""
        for _ in range(40):
            part = store.unknown_topics(after, page)
            found += part.topics
            after = part.until
            if not after:
                break
        assert after == ""
        assert found == sorted({f"t{topic:02}" for topic, _ in subscribed if topic not in known})
