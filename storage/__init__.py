"""How tables are kept: open, migrate, read, and write in groups. Knows nothing of what is in them.

    database = Database.open(path, [Migration("hub", 1, ["CREATE TABLE ..."])])
    done = database.write(lambda tx: tx.execute("INSERT ..."))   # a Future: resolved once it is on disk
    rows = database.read("SELECT ...", (1,))
    database.close()

Each package owns its tables and hands its migrations to `open`; several packages may share one file.
SQLite in WAL mode is the engine today. Code above uses only what this module exports, so that another engine
can stand behind it.
"""

from storage.database import Database, Row, Transaction, Value
from storage.errors import (
    DatabaseBusyError,
    DatabaseClosedError,
    DatabaseInUseError,
    MigrationError,
    StorageError,
    StorageFullError,
)
from storage.migrations import Migration
from storage.private import PrivateFileError

__all__ = [
    "Database",
    "DatabaseBusyError",
    "DatabaseClosedError",
    "DatabaseInUseError",
    "Migration",
    "MigrationError",
    "PrivateFileError",
    "Row",
    "StorageError",
    "StorageFullError",
    "Transaction",
    "Value",
]
