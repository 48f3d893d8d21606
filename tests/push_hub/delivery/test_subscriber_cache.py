"""Pages of subscribers that are kept: never other than what stands on disk, and never too many."""

from collections.abc import Iterator
from itertools import product
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from push_hub.hub import TABLES
from push_hub.model import Dialect, HubSubscription, SignatureMethod
from push_hub.subscriber_cache import SubscriberCache
from push_hub.subscriptions import Subscriptions
from storage import Database, Value

TOPICS = ("http://a.example/", "http://b.example/")
INSERT = (
    "INSERT INTO subscriptions (topic, callback, signature, dialect, lease_until, created_at, difference) "
    "VALUES (?, ?, 'sha1', ?, ?, 0, ?)"
)

topics = st.sampled_from(TOPICS)
ids = st.integers(1, 12)
changes = st.one_of(
    st.tuples(
        st.just(INSERT),
        topics,
        st.uuids().map(str),
        st.sampled_from(["0.3", "websub"]),
        st.integers(1, 30),
        st.booleans(),
    ),
    st.tuples(st.just("DELETE FROM subscriptions WHERE id = ?"), ids),
    st.tuples(st.just("DELETE FROM subscriptions WHERE topic = ?"), topics),
    st.tuples(st.just("UPDATE subscriptions SET lease_until = ? WHERE id = ?"), st.integers(1, 30), ids),
    st.tuples(st.just("UPDATE subscriptions SET secret = ? WHERE id = ?"), st.binary(min_size=1, max_size=4), ids),
    st.tuples(
        st.just(
            "INSERT INTO dead_letters (subscription, publication, topic, callback, attempts, reason, died_at) "
            "VALUES (?, 1, '', '', 1, '', 0)"
        ),
        ids,
    ),
)


@pytest.fixture
def database(tmp_path: Path) -> Iterator[Database]:
    with Database.open(tmp_path / "hub.db", TABLES) as database:
        yield database


def write(database: Database, sql: str, *values: Value) -> None:
    database.write(lambda tx: tx.execute(sql, values)).result()


@given(st.lists(st.tuples(changes, st.integers(0, 30)), max_size=20))
def test_a_page_is_what_stands_on_disk(tmp_path_factory: pytest.TempPathFactory, steps: list[tuple]) -> None:
    with Database.open(tmp_path_factory.mktemp("hub") / "hub.db", TABLES) as database:
        store = Subscriptions(database)
        for (sql, *values), now in steps:
            write(database, sql, *values)
            for page in product(TOPICS, (0, 2), (2, 10)):
                assert store.page(*page, now) == Subscriptions(database).page(*page, now)


def test_the_same_page_is_not_read_twice(database: Database) -> None:
    store = Subscriptions(database)
    write(database, INSERT, TOPICS[0], "http://s.example/1", "websub", 100.0, 0)
    first = store.page(TOPICS[0], 0, 10, 0.0)
    assert store.page(TOPICS[0], 0, 10, 1.0) is first
    assert store.page(TOPICS[0], 0, 10, 100.0) == []
    write(database, INSERT, TOPICS[1], "http://s.example/1", "websub", 100.0, 0)
    again = store.page(TOPICS[0], 0, 10, 0.0)
    write(database, INSERT, TOPICS[1], "http://s.example/2", "websub", 100.0, 0)
    assert store.page(TOPICS[0], 0, 10, 0.0) is again, "a change elsewhere does not matter"


def test_a_topic_that_ended_and_began_anew_is_another(database: Database) -> None:
    store = Subscriptions(database)
    for callback in ("http://s.example/1", "http://s.example/2"):
        write(database, INSERT, TOPICS[0], callback, "websub", 100.0, 0)
        assert [one.callback for one in store.page(TOPICS[0], 0, 10, 0.0)] == [callback]
        write(database, "DELETE FROM subscriptions")


def test_no_more_is_kept_than_allowed() -> None:
    def some(count: int) -> list[HubSubscription]:
        return [
            HubSubscription(n, "t", "c", None, SignatureMethod.SHA1, Dialect.WEBSUB, 9.0, False) for n in range(count)
        ]

    cache = SubscriberCache(most=10)
    cache.keep("t", 0, 4, 1, 0.0, some(4))
    cache.keep("t", 4, 4, 1, 0.0, some(4))
    assert cache.find("t", 0, 4, 1, 0.0) is not None
    cache.keep("t", 8, 4, 1, 0.0, some(4))
    assert cache.find("t", 4, 4, 1, 0.0) is None, "it was asked for least recently"
    assert cache.find("t", 0, 4, 1, 0.0) is not None
    assert len(cache) == 8
    cache.keep("u", 0, 99, 1, 0.0, some(11))
    assert cache.find("u", 0, 99, 1, 0.0) is None
    assert len(cache) == 8
    assert cache.find("t", 0, 4, 2, 0.0) is None
    assert cache.find("t", 8, 4, 1, 9.0) is None
    assert len(cache) == 0
