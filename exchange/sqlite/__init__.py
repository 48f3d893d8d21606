"""The embedded engine: log, sessions and cursors in one SQLite file, on `storage.Database`. SQL is only here."""

from exchange.sqlite.log import SqliteLog
from exchange.sqlite.sessions import SqliteSessions
from exchange.sqlite.tables import EXCHANGE_TABLES

__all__ = ["EXCHANGE_TABLES", "SqliteLog", "SqliteSessions"]
