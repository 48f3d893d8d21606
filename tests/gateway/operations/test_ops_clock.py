"""Every column that keeps a time is corrected when the clock was set, or it is said here why not."""

import sqlite3
from contextlib import closing

from exchange.sqlite import EXCHANGE_TABLES
from gateway.operations.stores import KNOWN_TABLES
from storage.migrations import Migration, migrate

TABLES: list[Migration] = list({(one.owner, one.version): one for one in (*KNOWN_TABLES, *EXCHANGE_TABLES)}.values())
LATEST = max(one.version for one in TABLES)
NOT_CORRECTED = {
    "chat_messages.at": "what its writer said, shown to people; nothing waits for it",
    "exchange_log.deadline_ms": "said by its publisher, on the publisher's clock",
    "exchange_log.published_ms": "said by its publisher, on the publisher's clock",
    "sources.ttl": "a duration",
    "topics.poll_every": "a duration",
    "transport_version.published_ms": "signed, and said to others",
}
WORDS = ("_at", "_ms", "_until", "until", "_time", "deadline", "expires", "due")


def columns(up_to: int = LATEST) -> dict[str, str]:
    """All columns of all stores, with their types, as they are after so many migrations of each owner."""
    found: dict[str, str] = {}
    with closing(sqlite3.connect(":memory:", isolation_level=None)) as connection:
        migrate(connection, [one for one in TABLES if one.version <= up_to])
        tables = connection.execute("SELECT name FROM sqlite_schema WHERE type = 'table'").fetchall()
        for (table,) in tables:
            for _, name, kind, *_ in connection.execute(f"PRAGMA table_info({table})"):
                found[f"{table}.{name}"] = kind
    return found


def declared() -> set[str]:
    return {place for migration in TABLES for place in migration.times}


def test_every_column_with_a_time_is_corrected_or_it_is_said_why_not() -> None:
    # A real number is a time or a duration everywhere here; a whole one is a time if its name says so.
    times = {place for place, kind in columns().items() if kind == "REAL" or place.endswith(WORDS)}
    assert times - declared() - set(NOT_CORRECTED) == set()
    assert not declared() & set(NOT_CORRECTED)


def test_what_is_declared_is_there() -> None:
    ever = {place for version in range(1, LATEST + 1) for place in columns(version)}
    assert declared() - ever == set()
    assert set(NOT_CORRECTED) - set(columns()) == set()


def test_a_column_that_is_forgotten_is_found() -> None:
    """The check can fail: without what the migrations declare, all times are missing."""
    assert {"verifications.next_try_at", "subscriptions.lease_until"} <= declared()
    assert len(declared()) > 20
