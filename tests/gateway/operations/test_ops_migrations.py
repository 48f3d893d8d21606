"""Stores of every released version are opened by this one, with all that is in them."""

import sqlite3
from collections import Counter
from contextlib import closing
from pathlib import Path

import pytest

from gateway import __version__
from gateway.operations.stores import known_versions, problems, versions
from storage import Database, MigrationError
from tests.gateway.operations.schema_dumps import FOLDER, STORES

LET_GO = {"transport_version"}
"""Tables whose rows prove nothing any more, because what a signature covers has changed."""
MOVED = {
    "entries": {"seen_entries": 1},
    "control_subscriptions": {"exchange_sessions": 1, "exchange_interests": 1, "exchange_cursors": 1},
    "inbox": {"exchange_log": 1, "exchange_reached": 1, "exchange_items": 1},
    "taken_versions": {"exchange_marks": 1},
    "export_positions": {"exchange_marks": 1},
    "cursors": {"exchange_marks": 1},
}
"""Tables whose rows are in others since: how many rows each became there."""
DUMPS = sorted(FOLDER.glob("*/*.sql"))


def tables(path: Path) -> dict[str, int]:
    """Rows in each table."""
    with closing(sqlite3.connect(path)) as connection:
        names = [
            name
            for (name,) in connection.execute(
                "SELECT name FROM sqlite_schema WHERE type = 'table' AND name NOT LIKE 'sqlite_%'"
            )
        ]
        return {name: connection.execute(f"SELECT count(*) FROM {name}").fetchone()[0] for name in names}  # noqa: S608


def schema(path: Path) -> set[tuple[str, str, str]]:
    with closing(sqlite3.connect(path)) as connection:
        rows = connection.execute("SELECT type, name, sql FROM sqlite_schema WHERE sql IS NOT NULL")
        return {(kind, name, " ".join(sql.split())) for kind, name, sql in rows}


def test_this_version_has_its_dumps() -> None:
    """Before a release: python -m tests.gateway.operations.schema_dumps"""
    assert {path.stem for path in (FOLDER / __version__).glob("*.sql")} == set(STORES)


@pytest.mark.parametrize("dump", DUMPS, ids=lambda path: f"{path.parent.name}-{path.stem}")
def test_a_store_of_a_released_version_is_opened(dump: Path, tmp_path: Path) -> None:
    path = tmp_path / f"{dump.stem}.sqlite"
    with closing(sqlite3.connect(path)) as connection:
        connection.executescript(dump.read_text())
    before = tables(path)
    assert sum(before.values()) > len(before) / 2, "there is something to lose"
    Database.open(path, STORES[dump.stem]).close()
    after = tables(path)
    del before["schema_version"]
    expected = Counter({name: 0 if name in LET_GO else rows for name, rows in before.items() if name not in MOVED})
    for name in set(MOVED) & set(before):
        expected += Counter({table: each * before[name] for table, each in MOVED[name].items()})
    assert {name: after.get(name) for name in expected} == expected
    fresh = tmp_path / "fresh.sqlite"
    Database.open(fresh, STORES[dump.stem]).close()
    assert schema(path) == schema(fresh), "an old store ends with the tables of a new one"
    assert versions(path) == versions(fresh)
    assert not [problem for problem in problems(path) if "point to" not in problem]


def test_the_newest_versions_are_known_to_backup_and_doctor(tmp_path: Path) -> None:
    known = known_versions()
    for name, migrations in STORES.items():
        path = tmp_path / f"{name}.sqlite"
        Database.open(path, migrations).close()
        for owner, version in versions(path).items():
            assert known[owner] == version


def test_a_store_of_a_later_version_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "gateway.sqlite"
    Database.open(path, STORES["gateway"]).close()
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("UPDATE schema_version SET version = version + 1")
    with pytest.raises(MigrationError, match="start the newer version"):
        Database.open(path, STORES["gateway"])
