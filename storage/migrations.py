"""Bringing a file's tables to the schema the running software expects.

Migrations are numbered per owner (a package) from 1 without gaps. Each runs once, in its own transaction
together with the note that it ran, so a crash half-way leaves the file at a whole version. A migration that
was released is never edited: add another.
"""

import sqlite3
from collections.abc import Sequence
from dataclasses import dataclass

from storage.errors import MigrationError

VERSION_TABLE = """
CREATE TABLE IF NOT EXISTS schema_version (
    owner   TEXT PRIMARY KEY,
    version INTEGER NOT NULL
) WITHOUT ROWID
"""


@dataclass(frozen=True, slots=True)
class Migration:
    """One step of an owner's schema: the statements that lead from `version - 1` to `version`."""

    owner: str
    version: int
    statements: Sequence[str]
    times: Sequence[str] = ()
    """The columns («table.column») it makes that keep times of our clock: `storage/corrections.py` moves them."""


def migrate(connection: sqlite3.Connection, migrations: Sequence[Migration]) -> None:
    """Run what is missing. `connection` must be in autocommit mode."""
    connection.execute(VERSION_TABLE)
    present: dict[str, int] = dict(connection.execute("SELECT owner, version FROM schema_version"))
    for owner, steps in _by_owner(migrations).items():
        current = present.get(owner, 0)
        newest = len(steps)
        if current > newest:
            raise MigrationError(
                f"the tables of {owner!r} are at schema version {current}, but this software knows only {newest}: "
                "start the newer version that wrote them, or restore a backup"
            )
        for step in steps[current:]:
            _apply(connection, step)


def _by_owner(migrations: Sequence[Migration]) -> dict[str, list[Migration]]:
    steps: dict[str, list[Migration]] = {}
    for migration in migrations:
        steps.setdefault(migration.owner, []).append(migration)
    for owner, owned in steps.items():
        owned.sort(key=lambda step: step.version)
        if [step.version for step in owned] != list(range(1, len(owned) + 1)):
            raise MigrationError(f"the migrations of {owner!r} are not numbered 1, 2, 3, ... without gaps")
    return steps


def _apply(connection: sqlite3.Connection, step: Migration) -> None:
    connection.execute("BEGIN IMMEDIATE")
    try:
        for statement in step.statements:
            connection.execute(statement)
        connection.execute(
            "INSERT INTO schema_version VALUES (?, ?) ON CONFLICT (owner) DO UPDATE SET version = excluded.version",
            (step.owner, step.version),
        )
    except sqlite3.Error as error:
        connection.execute("ROLLBACK")
        raise MigrationError(f"migration {step.version} of {step.owner!r} failed: {error}") from error
    connection.execute("COMMIT")
