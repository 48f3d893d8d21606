"""The lease table against a plain dictionary that says what it should hold, and what must survive a restart."""

import asyncio
from collections.abc import Coroutine, Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, TypeVar

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from push_hub.model import Dialect, SignatureMethod
from push_hub.protocol.numbers import Mode
from push_hub.protocol.verification import Intent
from push_hub.schema import HUB_TABLES, SUBSCRIPTION_TABLES
from push_hub.subscriptions import Subscriptions
from storage import Database

T = TypeVar("T")
TOPICS = ["http://p.example/1", "http://p.example/2"]
CALLBACKS = [f"http://s.example/{n}" for n in range(4)]


def open_database(directory: Path) -> Database:
    return Database.open(directory / "hub.sqlite", [*HUB_TABLES, *SUBSCRIPTION_TABLES])


@pytest.fixture
def database(tmp_path: Path) -> Iterator[Database]:
    with open_database(tmp_path) as opened:
        yield opened


@pytest.fixture
def store(database: Database) -> Subscriptions:
    return Subscriptions(database)


def wish(
    topic: str = TOPICS[0],
    callback: str = CALLBACKS[0],
    *,
    mode: Mode = Mode.SUBSCRIBE,
    nonce: str = "n",
    secret: bytes | None = None,
    dialect: Dialect = Dialect.WEBSUB,
) -> Intent:
    return Intent(mode, topic, callback, dialect, 0.0, nonce, secret=secret, signature=SignatureMethod.SHA256)


async def test_only_a_confirmed_wish_counts(store: Subscriptions) -> None:
    row = await store.enqueue(wish(), 0.0)
    assert store.find(TOPICS[0], CALLBACKS[0], 0.0) is None
    change = await store.confirm(row, wish(), 5.0, 60, 6.0)
    assert change is not None
    assert (change.topic, change.live) == (TOPICS[0], 1)
    found = store.find(TOPICS[0], CALLBACKS[0], 64.9)
    assert found is not None
    assert found.lease_until == 65.0
    assert store.find(TOPICS[0], CALLBACKS[0], 65.0) is None
    assert store.pending(row) is None


async def test_an_answer_to_a_replaced_wish_changes_nothing(store: Subscriptions) -> None:
    row = await store.enqueue(wish(nonce="old", secret=b"old"), 0.0)
    newer = await store.enqueue(wish(nonce="new", secret=b"new"), 1.0)
    assert newer == row
    assert await store.confirm(row, wish(nonce="old", secret=b"old"), 1.0, 60, 2.0) is None
    assert await store.fail(row, wish(nonce="old", secret=b"old"), "late", 2.0) is None
    assert not await store.postpone(row, wish(nonce="old", secret=b"old"), 1, 9.0, "late", 2.0)
    assert store.count(TOPICS[0]) == 0
    assert await store.confirm(row, wish(nonce="new", secret=b"new"), 1.0, 60, 2.0) is not None
    found = store.find(TOPICS[0], CALLBACKS[0], 2.0)
    assert found is not None
    assert found.secret == b"new"


async def test_a_failed_renewal_leaves_the_old_state(store: Subscriptions) -> None:
    await store.confirm(None, wish(secret=b"old"), 0.0, 60, 0.0)
    row = await store.enqueue(wish(nonce="2", secret=b"new"), 1.0)
    await store.fail(row, wish(nonce="2", secret=b"new"), "it answered 404", 2.0)
    found = store.find(TOPICS[0], CALLBACKS[0], 3.0)
    assert found is not None
    assert (found.secret, found.lease_until) == (b"old", 60.0)
    assert "it answered 404" in store.history(TOPICS[0], CALLBACKS[0])[0].what


async def test_pages_follow_the_ids_and_skip_the_dead(store: Subscriptions) -> None:
    for n in range(10):
        await store.confirm(None, wish(callback=f"http://s.example/{n}"), 0.0, 10 if n % 2 else 100, 0.0)
    first = store.page(TOPICS[0], 0, 3, 50.0)
    rest = store.page(TOPICS[0], first[-1].id, 10, 50.0)
    assert [s.callback[-1] for s in [*first, *rest]] == ["0", "2", "4", "6", "8"]
    assert store.page(TOPICS[1], 0, 10, 0.0) == []
    assert store.get(first[0].id, 50.0) == first[0]
    assert store.get(first[0].id, 100.0) is None


async def test_sweep_in_chunks(store: Subscriptions) -> None:
    for n in range(5):
        await store.confirm(None, wish(callback=f"http://s.example/{n}"), 0.0, 10 + n, 0.0)
    ended, changes = await store.sweep(12.0, 2)
    assert ([e.callback[-1] for e in ended], [c.live for c in changes]) == (["0", "1"], [3])
    ended, changes = await store.sweep(12.0, 2)
    assert ([e.callback[-1] for e in ended], [c.live for c in changes]) == (["2"], [2])
    assert (await store.sweep(12.0, 2)) == ([], [])


async def test_0_3_subscriptions_are_rechecked_once_before_their_end(store: Subscriptions) -> None:
    old = Intent(Mode.SUBSCRIBE, TOPICS[0], CALLBACKS[0], Dialect.PUSH_03, 0.0, "n", secret=b"s", verify_token="t")
    await store.confirm(None, old, 0.0, 1000, 0.0)
    await store.confirm(None, wish(callback=CALLBACKS[1]), 0.0, 1000, 0.0)
    assert await store.start_refreshes(899.0, 10, lambda: "fresh") == []
    [(row, callback)] = await store.start_refreshes(900.0, 10, lambda: "fresh")
    assert callback == CALLBACKS[0]
    assert await store.start_refreshes(901.0, 10, lambda: "fresh") == []
    pending = store.pending(row)
    assert pending is not None
    assert (pending.intent.refresh, pending.intent.verify_token, pending.intent.secret) == (True, "t", b"s")
    await store.confirm(row, pending.intent, 910.0, 1000, 911.0)
    renewed = store.find(TOPICS[0], CALLBACKS[0], 1500.0)
    assert renewed is not None
    assert renewed.lease_until == 1910.0
    [(row, _)] = await store.start_refreshes(1810.0, 10, lambda: "again")
    pending = store.pending(row)
    assert pending is not None
    await store.fail(row, pending.intent, "404", 1811.0)
    assert store.find(TOPICS[0], CALLBACKS[0], 1811.0) is None
    assert store.count(TOPICS[0]) == 1


async def test_a_recheck_does_not_bring_back_what_ended(store: Subscriptions) -> None:
    await store.confirm(None, wish(dialect=Dialect.PUSH_03), 0.0, 1000, 0.0)
    [(row, _)] = await store.start_refreshes(950.0, 10, lambda: "fresh")
    found = store.find(TOPICS[0], CALLBACKS[0], 950.0)
    assert found is not None
    await store.remove(found.id, "the callback answered 410", 951.0)
    pending = store.pending(row)
    assert pending is not None
    await store.confirm(row, pending.intent, 952.0, 1000, 953.0)
    assert store.count(TOPICS[0]) == 0


async def test_history_is_bounded(database: Database) -> None:
    store = Subscriptions(database, history_rows=10)
    for n in range(600):
        await store.confirm(None, wish(), float(n), 60, float(n))
    ((rows,),) = database.read("SELECT COUNT(*) FROM subscription_history")
    assert rows <= 10 + 256
    assert store.history(TOPICS[0], CALLBACKS[0], 1)[0].at == 599.0


async def test_waiting_intents_survive_a_restart(tmp_path: Path) -> None:
    with open_database(tmp_path) as database:
        row = await Subscriptions(database).enqueue(wish(secret=b"\xff"), 3.0)
    with open_database(tmp_path) as database:
        store = Subscriptions(database)
        assert store.all_pending(0, 10) == [(row, CALLBACKS[0], 3.0)]
        assert store.all_pending(row, 10) == []
        pending = store.pending_for(TOPICS[0], CALLBACKS[0])
        assert pending is not None
        assert pending.intent == wish(secret=b"\xff")


class LeaseTable(RuleBasedStateMachine):
    """Subscribing, renewing, ending and the passing of time, in any order."""

    def __init__(self) -> None:
        super().__init__()
        self.directory = TemporaryDirectory()
        self.database = open_database(Path(self.directory.name))
        self.store = Subscriptions(self.database)
        self.loop = asyncio.new_event_loop()
        self.now = 0.0
        self.nonce = 0
        self.model: dict[tuple[str, str], tuple[float, bytes | None]] = {}
        self.waiting: dict[tuple[str, str], tuple[int, Intent]] = {}

    def teardown(self) -> None:
        self.loop.close()
        self.database.close()
        self.directory.cleanup()

    def do(self, work: Coroutine[Any, Any, T]) -> T:
        return self.loop.run_until_complete(work)

    @rule(
        topic=st.sampled_from(TOPICS),
        callback=st.sampled_from(CALLBACKS),
        mode=st.sampled_from([Mode.SUBSCRIBE, Mode.SUBSCRIBE, Mode.UNSUBSCRIBE]),
        secret=st.none() | st.binary(min_size=1, max_size=4),
    )
    def ask(self, topic: str, callback: str, mode: Mode, secret: bytes | None) -> None:
        self.nonce += 1
        intent = wish(topic, callback, mode=mode, nonce=str(self.nonce), secret=secret)
        self.waiting[topic, callback] = (self.do(self.store.enqueue(intent, self.now)), intent)

    @rule(data=st.data(), granted=st.integers(1, 100), took=st.integers(0, 5))
    def confirm(self, data: st.DataObject, granted: int, took: int) -> None:
        if not self.waiting:
            return
        key = data.draw(st.sampled_from(sorted(self.waiting)))
        row, intent = self.waiting.pop(key)
        sent_at = self.now
        self.now += took
        assert self.do(self.store.confirm(row, intent, sent_at, granted, self.now)) is not None
        if intent.mode is Mode.SUBSCRIBE:
            self.model[key] = (sent_at + granted, intent.secret)
        else:
            self.model.pop(key, None)

    @rule(data=st.data())
    def fail(self, data: st.DataObject) -> None:
        if not self.waiting:
            return
        key = data.draw(st.sampled_from(sorted(self.waiting)))
        row, intent = self.waiting.pop(key)
        self.do(self.store.fail(row, intent, "no", self.now))

    @rule(seconds=st.integers(1, 60))
    def wait(self, seconds: int) -> None:
        self.now += seconds

    @rule()
    def sweep(self) -> None:
        ended, _ = self.do(self.store.sweep(self.now, 100))
        over = {key for key, (until, _) in self.model.items() if until <= self.now}
        assert {(one.topic, one.callback) for one in ended} == over
        for key in over:
            del self.model[key]

    @invariant()
    def agrees(self) -> None:
        for topic in TOPICS:
            live = {
                callback: (until, secret)
                for (t, callback), (until, secret) in self.model.items()
                if t == topic and until > self.now
            }
            page = self.store.page(topic, 0, 100, self.now)
            assert {s.callback: (s.lease_until, s.secret) for s in page} == live
            assert [s.id for s in page] == sorted(s.id for s in page)
            assert self.store.count(topic) == sum(1 for t, _ in self.model if t == topic)


TestLeaseTable = LeaseTable.TestCase
TestLeaseTable.settings = settings(max_examples=15, stateful_step_count=25, deadline=None)
