"""Times in a file, and a clock that was set: nothing changes in a running process, all is corrected at the next start.

A running process writes times of its `SteadyClock`, and beside them a mark: what that clock and the system's showed. A
start begins with the system's time of that moment, so it knows how far both are apart, and moves every column of times
by that, in one transaction with its own first mark. Which columns those are, each migration says; the file keeps the
list, so that whoever opens it moves all of them.

In one run of the machine what passed in between is known exactly. After another boot it is the difference of the
system's times; if that is negative, the clock was set back while the machine was off, and nothing passed. A clock that
is *ahead* after a boot cannot be told from a long time off.
"""

import sqlite3
from collections.abc import Iterable
from dataclasses import dataclass

from storage.clock import STEP_SECONDS, SteadyClock

TABLES = (
    """CREATE TABLE IF NOT EXISTS clock_mark (
        one    INTEGER PRIMARY KEY CHECK (one = 1),
        boot   TEXT NOT NULL,
        passed REAL NOT NULL,
        shown  REAL NOT NULL,
        wall   REAL NOT NULL
    )""",
    "CREATE TABLE IF NOT EXISTS clock_columns (place TEXT PRIMARY KEY) WITHOUT ROWID",
)
MARK_EVERY = 60.0
LAST_TIME = 1e11
"""Seconds: what is later is no time but says «never ends»; what is 0 or less says «not yet»."""
MILLISECONDS = "_ms"
"""How the name of a column ends that keeps milliseconds."""


@dataclass(frozen=True, slots=True)
class ClockMark:
    """What the clocks showed at one moment."""

    boot: str
    passed: float
    shown: float
    wall: float

    @classmethod
    def of(cls, clock: SteadyClock) -> "ClockMark":
        return cls(clock.boot, clock.passed(), clock(), clock.wall())

    def correction(self, then: "ClockMark") -> float:
        """By how much the times that were written by the clock of `then` must be moved for the clock of this one."""
        same_run = bool(self.boot) and self.boot == then.boot and self.passed >= then.passed
        passed = self.passed - then.passed if same_run else max(0.0, self.wall - then.wall)
        by = self.shown - (then.shown + passed)
        return by if abs(by) >= STEP_SECONDS else 0.0

    def set_since(self, then: "ClockMark") -> bool:
        """Whether the system's clock was set between two marks of one process."""
        return abs((self.wall - self.shown) - (then.wall - then.shown)) >= STEP_SECONDS


def correct(connection: sqlite3.Connection, columns: Iterable[str], clock: SteadyClock) -> float:
    """Move the times in a file to `clock`, and mark it; says by how much. `connection` must be in autocommit mode."""
    mark, by = ClockMark.of(clock), 0.0
    connection.execute("BEGIN IMMEDIATE")
    try:
        for statement in TABLES:
            connection.execute(statement)
        before = connection.execute("SELECT boot, passed, shown, wall FROM clock_mark").fetchone()
        by = mark.correction(ClockMark(*before)) if before else 0.0
        if by:
            for (place,) in connection.execute("SELECT place FROM clock_columns").fetchall():
                _move(connection, place, by)
        connection.executemany("INSERT OR IGNORE INTO clock_columns VALUES (?)", [(place,) for place in columns])
        write_mark(connection, mark)
        connection.execute("COMMIT")
    except BaseException as error:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        if by or not isinstance(error, sqlite3.OperationalError):
            raise
        # The disk is full, and no time is wrong: the mark before this one does, and so does none.
    return by


def write_mark(connection: sqlite3.Connection, mark: ClockMark) -> None:
    connection.execute(
        "INSERT OR REPLACE INTO clock_mark VALUES (1, ?, ?, ?, ?)", (mark.boot, mark.passed, mark.shown, mark.wall)
    )


def _move(connection: sqlite3.Connection, place: str, by: float) -> None:
    table, _, column = place.partition(".")
    present = {row[1] for row in connection.execute("SELECT * FROM pragma_table_info(?)", (table,))}
    if column not in present:
        return  # a later migration took it away
    in_ms = column.endswith(MILLISECONDS)
    step, last = (round(by * 1000), LAST_TIME * 1000) if in_ms else (by, LAST_TIME)
    # A time never becomes 0 or less by it: that would say something else.
    connection.execute(
        f'UPDATE "{table}" SET "{column}" = max("{column}" + ?, ?) WHERE "{column}" > 0 AND "{column}" < ?',  # noqa: S608  # names of our own migrations
        (step, 1 if in_ms else 0.001, last),
    )
