"""A hub's store as it looks after long use: many topics, each known, published before, and subscribed to."""

import time
from collections.abc import Callable
from pathlib import Path

from perf.numbered_feed import document
from push_hub.hub import DATABASE_NAME, TABLES
from push_hub.model import Dialect, SignatureMethod
from storage import Database, Transaction

TOPICS_AT_ONCE = 5_000
SECRET = b"a secret of twenty b"
LEASE = 10 * 86_400.0


def seed_store(
    data: Path,
    topics: int,
    subscribers: int,
    topic_url: Callable[[int], str],
    callback_url: Callable[[int, int], str],
    done: Callable[[int], None],
) -> None:
    """`topics` with `subscribers` each, in transactions of some thousand rows. `done` hears of topics made."""
    data.mkdir(parents=True, exist_ok=True)
    now = time.time()
    with Database.open(data / DATABASE_NAME, TABLES) as database:
        for first in range(0, topics, TOPICS_AT_ONCE):
            numbers = range(first, min(topics, first + TOPICS_AT_ONCE))

            def work(tx: Transaction, numbers: range = numbers) -> None:
                _known_topics(tx, [topic_url(number) for number in numbers], now)
                tx.execute_many(
                    "INSERT INTO subscriptions (topic, callback, secret, signature, dialect, lease_until, created_at) "
                    "VALUES (?, ?, ?, ?, ?, ?, ?)",
                    (
                        (
                            topic_url(number),
                            callback_url(number, subscriber),
                            SECRET,
                            SignatureMethod.SHA256.value,
                            Dialect.WEBSUB.value,
                            now + LEASE,
                            now,
                        )
                        for number in numbers
                        for subscriber in range(subscribers)
                    ),
                )

            database.write(work).result()
            done(len(numbers))


def _known_topics(tx: Transaction, urls: list[str], now: float) -> None:
    body = document(1)
    tx.execute_many(
        "INSERT INTO topics (url, self_url, etag, body_digest, fetched_at, outcome) VALUES (?, ?, ?, ?, ?, ?)",
        [(url, url, '"1"', b"\0" * 32, now, "fetched, 1 new or changed entries") for url in urls],
    )
    tx.execute_many("INSERT INTO sources (topic, validated_url) VALUES (?, ?)", [(url, url) for url in urls])
    tx.execute_many(
        "INSERT INTO publications (topic, self_url, content_type, body, accepted_at) VALUES (?, ?, ?, ?, ?)",
        [(url, url, "application/atom+xml", body, now) for url in urls],
    )
