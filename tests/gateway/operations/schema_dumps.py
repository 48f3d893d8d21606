"""Stores as released versions wrote them, as SQL dumps.

`python -m tests.gateway.operations.schema_dumps` writes this version's.

A dump that was released is never changed. Each table has a row, so that a migration that loses or breaks some is seen.
"""

import sqlite3
import tempfile
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

from gateway import __version__
from gateway.bootstrapping import MIGRATIONS as BOOTSTRAPPING_TABLES
from gateway.protocols.chat.store import MIGRATIONS as CHAT_TABLES
from gateway.protocols.websub.demand import MIGRATIONS as DEMAND_TABLES
from gateway.store import TABLES as CONTROL_TABLES
from psirp_stack.node.version_store import TRANSPORT_TABLES
from psirp_stack.rendezvous.schema import MIGRATIONS as RENDEZVOUS_TABLES
from push_hub.hub import TABLES as HUB_TABLES
from storage import Database, Migration

FOLDER = Path(__file__).parent / "schemas"
STORES: dict[str, Sequence[Migration]] = {
    "gateway": [*CONTROL_TABLES, *BOOTSTRAPPING_TABLES, *CHAT_TABLES, *DEMAND_TABLES],
    "hub": HUB_TABLES,
    "rendezvous": RENDEZVOUS_TABLES,
    "versions": TRANSPORT_TABLES,
}
SAMPLES = {"INTEGER": 1, "REAL": 1.5, "TEXT": "x", "BLOB": b"\x01" * 64, "": "x"}


def fill(connection: sqlite3.Connection) -> list[str]:
    """A row for each table; the names of those whose rules our row does not meet."""
    left_out = []
    for (table,) in connection.execute(
        "SELECT name FROM sqlite_schema WHERE type = 'table' AND name NOT LIKE 'sqlite_%' AND name != 'schema_version'"
    ).fetchall():
        columns = connection.execute(f"PRAGMA table_info({table})").fetchall()
        values = [SAMPLES.get(kind.upper(), 1) for _, _, kind, *_ in columns]
        marks = ", ".join("?" * len(values))
        try:
            connection.execute(f"INSERT OR IGNORE INTO {table} VALUES ({marks})", values)  # noqa: S608
        except sqlite3.Error:
            left_out.append(table)
    return left_out


def write_all() -> None:
    folder = FOLDER / __version__
    folder.mkdir(parents=True)
    with tempfile.TemporaryDirectory() as temporary:
        for name, migrations in STORES.items():
            path = Path(temporary) / f"{name}.sqlite"
            Database.open(path, migrations).close()
            with closing(sqlite3.connect(path, isolation_level=None)) as connection:
                fill(connection)
                dump = "\n".join(connection.iterdump())
            (folder / f"{name}.sql").write_text(f"{dump}\n")


if __name__ == "__main__":
    write_all()
