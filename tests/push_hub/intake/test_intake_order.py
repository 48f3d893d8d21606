"""Pings, fat pings, slow origins, crashes and a failing store in any order: the last version wins, none comes twice.

A state machine over two topics, one with plain text and one with a feed. The publisher's versions are numbers; each
request to the origin reads the version of its moment and is answered when the machine says so, so that any answer may
be overtaken by anything.
"""

import asyncio
import re
import shutil
import tempfile
from collections.abc import Coroutine
from itertools import pairwise
from pathlib import Path
from typing import TypeVar

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule

from push_hub.hub import TABLES
from push_hub.intake import Intake, IntakeConfig
from push_hub.intake.entries import take_apart
from push_hub.intake.feeds import Feed
from push_hub.intake.store import Update
from push_hub.intake.turns import TopicTurns
from push_hub.model import Content, HubPublication
from storage import Database, StorageError, Transaction
from tests.push_hub.harness import until
from tests.push_hub.intake.feeds import Item, atom
from tests.push_hub.intake.fetcher import Along, HeldFetch, LogSink, WantedElsewhere

T = TypeVar("T")
TOPICS = TEXT, FEED = ("http://a.example/text", "http://a.example/feed")
TYPES = {TEXT: "text/plain", FEED: "application/atom+xml"}
topics = st.sampled_from(TOPICS)


ENTRY = re.compile(rb"<entry>.*?</entry>")


def document(topic: str, version: int) -> bytes:
    """Each version of the feed updates one entry, adds one and drops one."""
    if topic == TEXT:
        return b"%d" % version
    items = [Item("updated", f"v{version}"), Item(f"added{version}"), Item(f"added{version - 1}")]
    return atom(items, title="Versions")


def version_of(body: bytes) -> int:
    return int(body) if body.isdigit() else int(re.findall(rb">v(\d+)<", body)[0])


class SlowReader:
    """Takes feeds apart in this process, after as many turns of the loop as the machine says."""

    def __init__(self) -> None:
        self.turns = 0

    def read_plain(self, topic: str, content_type: str, body: bytes) -> Feed | None:
        return None

    async def read(self, topic: str, content_type: str, body: bytes) -> Feed | None:
        for _ in range(self.turns):
            await asyncio.sleep(0)
        return take_apart(body, content_type)

    async def close(self) -> None:
        pass


class FailingSink(LogSink):
    """Fails when told to: before it stored the publication, or after."""

    def __init__(self, database: Database) -> None:
        super().__init__(database)
        self.failures: list[str] = []

    async def accept(self, topic: str, self_url: str, content: Content, along: Along | None = None) -> HubPublication:
        how = self.failures.pop(0) if self.failures else ""
        if how == "before":
            raise StorageError("injected: before")
        publication = await super().accept(topic, self_url, content, along)
        if how == "after":
            raise StorageError("injected: after")
        return publication


class IntakeMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.loop = asyncio.new_event_loop()
        self.folder = Path(tempfile.mkdtemp())
        self.database = Database.open(self.folder / "hub.db", TABLES)
        self.fetch = HeldFetch()
        self.fetch.types = TYPES
        self.reader = SlowReader()
        self.sink = FailingSink(self.database)
        self.now = 1_000_000.0
        self.version = dict.fromkeys(TOPICS, 0)
        self.owed = dict.fromkeys(TOPICS, 0)
        """The newest version somebody was told is taken care of."""
        self.offers: dict[asyncio.Task[None], tuple[str, int]] = {}
        self.finish_failures = 0

    @initialize()
    def begin(self) -> None:
        for topic in TOPICS:
            self.write(topic)
        self.start()

    def do(self, work: Coroutine[None, None, T]) -> T:
        return self.loop.run_until_complete(asyncio.wait_for(work, 20))

    def start(self) -> None:
        config = IntakeConfig(retry_base=60.0, max_attempts=1_000_000)
        self.intake = Intake(
            self.database,
            self.fetch,
            self.sink,
            config,
            lambda: self.now,
            reader=self.reader,
            elsewhere=WantedElsewhere(),
        )
        honest = self.intake._store.write_down

        def write_down(tx: Transaction, update: Update) -> None:
            if self.finish_failures:
                self.finish_failures -= 1
                raise StorageError("injected: finish")
            honest(tx, update)

        self.intake._store.write_down = write_down  # type: ignore[method-assign]
        self.do(self.intake.start())

    @rule(topic=topics)
    def write(self, topic: str) -> None:
        self.version[topic] += 1
        self.fetch.bodies[topic] = document(topic, self.version[topic])

    @rule(some=st.lists(topics, min_size=1, max_size=3), settled=st.booleans())
    def ping(self, some: list[str], settled: bool) -> None:
        written = dict(self.version)
        self.do(self.intake.ping(some))
        for topic in some:
            self.owed[topic] = max(self.owed[topic], written[topic])
        if settled:
            self.settle()

    @rule(topic=topics, settled=st.booleans())
    def bring(self, topic: str, settled: bool) -> None:
        """A fat ping; its answer comes when it comes."""
        self.write(topic)
        content = Content(TYPES[topic], self.fetch.bodies[topic])
        task = self.loop.create_task(self.intake.offer(topic, content, topic))
        self.offers[task] = (topic, self.version[topic])
        if settled:
            self.settle()

    @rule(topic=topics)
    def poll(self, topic: str) -> None:
        self.intake._queue.ask(topic)
        self.turns(1)

    @rule(settled=st.booleans())
    def answer(self, settled: bool) -> None:
        self.fetch.let_go()
        if settled:
            self.settle()

    @rule(count=st.integers(1, 30))
    def turns(self, count: int) -> None:
        async def several() -> None:
            for _ in range(count):
                await asyncio.sleep(0)

        self.do(several())
        self.note_answers()

    @rule()
    def settle(self) -> None:
        """Whatever can go on without an answer of the origin goes on, until it waits for one."""
        for _ in range(8):
            self.flush()
            self.do(self.intake._threads.run(int))
            self.turns(5)

    @rule(turns=st.integers(0, 40))
    def slow_down_reader(self, turns: int) -> None:
        self.reader.turns = turns

    @rule(how=st.sampled_from(["before", "after"]))
    def break_sink(self, how: str) -> None:
        self.sink.failures.append(how)

    @rule()
    def break_finish(self) -> None:
        self.finish_failures += 1

    @rule()
    def retries_come_due(self) -> None:
        self.now += 10_000
        self.do(_call(self.intake._pump))

    @rule()
    def crash(self) -> None:
        self.note_answers()
        for task in self.offers:
            task.cancel()
        self.do(self.intake.stop())
        self.offers.clear()
        self.fetch.held.clear()
        # A new process opens the file after the old one's writes are either there or not.
        self.flush()
        self.start()

    def flush(self) -> None:
        async def written() -> None:
            await self.database.transact(lambda tx: None)
            await asyncio.wrap_future(self.database.write(lambda tx: None))

        self.do(written())

    def note_answers(self) -> None:
        for task in [task for task in self.offers if task.done()]:
            topic, version = self.offers.pop(task)
            if not task.cancelled() and task.exception() is None:
                self.owed[topic] = max(self.owed[topic], version)

    def teardown(self) -> None:
        try:
            if hasattr(self, "intake"):
                self.finish_up()
        finally:
            self.database.close()
            self.loop.close()
            shutil.rmtree(self.folder)

    def finish_up(self) -> None:
        self.sink.failures.clear()
        self.finish_failures = 0
        self.fetch.stop_holding()
        if self.offers:
            self.do(_call(lambda: None))
            self.loop.run_until_complete(asyncio.wait(list(self.offers), timeout=20))
        self.note_answers()
        assert not self.offers
        for _ in range(20):
            self.do(self.intake.idle())
            if not self.database.read("SELECT 1 FROM pings"):
                break
            self.retries_come_due()
        assert not self.database.read("SELECT 1 FROM pings")
        self.do(self.intake.idle())
        self.do(self.intake.stop())
        assert len(self.intake._visits._turns) == 0
        for topic in TOPICS:
            rows = self.database.read("SELECT body FROM publications WHERE topic = ? ORDER BY id", (topic,))
            published = [version_of(body) for (body,) in rows]
            assert all(earlier < later for earlier, later in pairwise(published)), published
            assert (published[-1] if published else 0) >= self.owed[topic], (published, self.owed[topic])
        told: set[bytes] = set()
        for body, changes in self.database.read(
            "SELECT body, coalesce(changes, body) FROM publications WHERE topic = ? ORDER BY id", (FEED,)
        ):
            # Whoever gets only the changes has been told of every entry that was ever published.
            told |= set(ENTRY.findall(changes))
            assert set(ENTRY.findall(body)) <= told


async def _call(work: object) -> None:
    assert callable(work)
    work()


IntakeMachine.TestCase.settings = settings(max_examples=40, stateful_step_count=40, deadline=None, derandomize=True)
test_the_last_version_wins_and_none_is_published_twice_or_out_of_order = IntakeMachine.TestCase


async def test_a_slow_answer_is_overtaken_by_content_that_was_brought_along(tmp_path: Path) -> None:
    with Database.open(tmp_path / "hub.db", TABLES) as database:
        fetch = HeldFetch()
        topic = TOPICS[0]
        fetch.bodies[topic] = b"old"
        intake = Intake(database, fetch, LogSink(database), IntakeConfig(), lambda: 1.0, elsewhere=WantedElsewhere())
        await intake.start()
        await intake.ping([topic])
        await until(lambda: fetch.held)
        fetch.bodies[topic] = b"new"
        await intake.offer(topic, Content("text/plain", b"new"), topic)  # does not wait for the slow origin
        fetch.stop_holding()
        await intake.idle()
        await intake.stop()
        assert database.read("SELECT body FROM publications") == [(b"new",)]
        assert fetch.requests == 2
        assert database.read("SELECT * FROM pings") == []


async def test_turns_are_given_in_order_and_nothing_is_left_over() -> None:
    turns = TopicTurns()
    order: list[int] = []

    async def one(number: int) -> None:
        async with turns.turn("t"):
            await asyncio.sleep(0)
            order.append(number)

    async with turns.turn("t"):
        tasks = [asyncio.create_task(one(n)) for n in range(5)]
        await asyncio.sleep(0)
        tasks[2].cancel()
        # Taken while the first holder is about to leave: whoever comes now is behind those who wait.
        tasks.append(asyncio.create_task(one(5)))
    tasks.append(asyncio.create_task(one(6)))
    await asyncio.gather(*tasks, return_exceptions=True)
    assert order == [0, 1, 3, 4, 5, 6]
    assert len(turns) == 0
