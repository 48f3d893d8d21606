"""The stores of a gateway, a hub or a node: where they are, which tables this software knows, whether they are whole.

Everything here reads only, and reads beside a process that writes.
"""

import sqlite3
from collections.abc import Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

from gateway.bootstrapping import MIGRATIONS as BOOTSTRAPPING_TABLES
from gateway.protocols.listed import BUILT_IN
from gateway.store import TABLES as CONTROL_TABLES
from identifiers.registry import MIGRATIONS as REGISTRY_TABLES
from psirp_stack.node.version_store import TRANSPORT_TABLES
from psirp_stack.rendezvous.schema import MIGRATIONS as RENDEZVOUS_TABLES
from push_hub.client.subscription_store import MIGRATIONS as CLIENT_TABLES
from push_hub.hub import TABLES as HUB_TABLES

STORE_PATTERN = "*.sqlite"
LIFE_NAME = "life"
"""A node's boot number; without it, a node whose clock went back would be taken for an old life of itself."""
MAX_STORES = 64
BUSY_TIMEOUT = 10.0
SHOWN_PROBLEMS = 5

KNOWN_TABLES = [
    *CONTROL_TABLES,
    *BOOTSTRAPPING_TABLES,
    *(table for protocol in BUILT_IN for table in protocol.tables),
    *HUB_TABLES,
    *CLIENT_TABLES,
    *REGISTRY_TABLES,
    *RENDEZVOUS_TABLES,
    *TRANSPORT_TABLES,
]

FIRST = ("gateway.sqlite",)
"""Stores whose moment must not be after that of the others. A gateway's cursors point into the hub's log and into
the node's versions: if they are a little old, something is done twice and recognised; if the others were, it would be
lost."""


class StoreProblemError(Exception):
    """A store that cannot be read, or is not whole; the text says what to do."""


@dataclass(frozen=True, slots=True)
class StoreFile:
    """One store: its path, and the same relative to the directory that was asked for."""

    path: Path
    place: str


def stores_below(data: Path) -> list[StoreFile]:
    """All stores in a directory, in the order in which their moments must be taken."""
    found = [StoreFile(path, path.relative_to(data).as_posix()) for path in data.rglob(STORE_PATTERN) if path.is_file()]
    if len(found) > MAX_STORES:
        raise StoreProblemError(f"{data}: more than {MAX_STORES} stores; name the directory of one gateway")
    return sorted(found, key=lambda store: (store.path.name not in FIRST, store.place))


def lives_below(data: Path) -> Iterator[StoreFile]:
    for path in sorted(data.rglob(LIFE_NAME)):
        if path.is_file():
            yield StoreFile(path, path.relative_to(data).as_posix())


def opened(path: Path) -> sqlite3.Connection:
    """A connection that changes nothing. Raises `StoreProblemError`."""
    try:
        connection = sqlite3.connect(
            f"{path.absolute().as_uri()}?mode=ro", uri=True, isolation_level=None, timeout=BUSY_TIMEOUT
        )
    except sqlite3.Error as error:
        raise StoreProblemError(f"{path}: {error}") from None
    return connection


def problems(path: Path, *, thorough: bool = True) -> list[str]:
    """What is wrong inside a store; nothing when it is whole."""
    try:
        with closing(opened(path)) as connection:
            check = "integrity_check" if thorough else "quick_check"
            rows = [str(text) for (text,) in connection.execute(f"PRAGMA {check}({SHOWN_PROBLEMS})")]
            wrong = [] if rows == ["ok"] else rows
            orphans = len(connection.execute("PRAGMA foreign_key_check").fetchmany(SHOWN_PROBLEMS))
            if orphans:
                wrong.append(f"{orphans} or more rows point to rows that are not there")
            return wrong
    except (sqlite3.Error, StoreProblemError) as error:
        return [str(error)]


def versions(path: Path) -> dict[str, int]:
    """The schema version of each owner of tables in a store. Raises `StoreProblemError`."""
    try:
        with closing(opened(path)) as connection:
            rows = connection.execute("SELECT owner, version FROM schema_version").fetchall()
    except sqlite3.Error as error:
        raise StoreProblemError(f"{path}: {error}") from None
    return {str(owner): int(version) for owner, version in rows}


def known_versions() -> dict[str, int]:
    """The newest schema version of each owner that this software can work with."""
    newest: dict[str, int] = {}
    for migration in KNOWN_TABLES:
        newest[migration.owner] = max(newest.get(migration.owner, 0), migration.version)
    return newest


def too_new(found: Mapping[str, int]) -> list[str]:
    """Owners whose tables a newer software wrote."""
    known = known_versions()
    return [
        f"the tables of {owner!r} are at schema version {version}, and this software knows {known[owner]}"
        for owner, version in sorted(found.items())
        if owner in known and version > known[owner]
    ]
