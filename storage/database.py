"""One SQLite file: a single writer that commits in groups, and readers that never wait for it.

Why a group commit: making a change durable costs one fsync however many changes it covers. The writer takes
everything that is waiting, runs each piece of work in a savepoint of one transaction, commits once, and only
then resolves the futures. A piece of work that raises is rolled back alone; a commit that fails (full disk)
fails every piece of its group, and the file stays as it was.

Two ways in. `write` may be called from any thread, and its work, which may be long, runs in the writer's thread.
`transact` is for short work on an event loop: a group of it runs on the loop, in one go, and only the commit, which
waits for the disk, in the thread; whoever waits for a group is told in one turn of the loop. Statement by statement in
another thread, the two would take the interpreter from each other at each: under load a commit took 30 times as long.
"""

import asyncio
import contextlib
import fcntl
import os
import sqlite3
import threading
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, Self, TextIO, TypeVar

from storage.clock import SteadyClock, steady
from storage.corrections import MARK_EVERY, ClockMark, correct, write_mark
from storage.errors import (
    DatabaseBusyError,
    DatabaseClosedError,
    DatabaseInUseError,
    StorageError,
    StorageFullError,
)
from storage.migrations import Migration, migrate
from storage.private import close_stores_to_others, open_private_file
from storage.queues import OpenStay, QueueObserver, StayEnd, watch_queue

Value = bytes | str | int | float | None
Row = tuple[Any, ...]
T = TypeVar("T")

DEFAULT_MAX_WAITING = 50_000
DEFAULT_GROUP_LIMIT = 2_000
DEFAULT_CACHE_KIB = 16 * 1024
"""Of one connection; of all of them, see `memory`."""
BUSY_TIMEOUT_MS = 10_000
LOOP_GROUP = 128
"""Pieces of work that hold up the event loop in one go: some milliseconds. The others wait for the next commit."""


class Transaction:
    """What a piece of work may do with the database while it has it."""

    __slots__ = ("_connection",)

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection

    def execute(self, sql: str, parameters: Sequence[Value] = ()) -> list[Row]:
        return self._connection.execute(sql, parameters).fetchall()

    def execute_many(self, sql: str, rows: Iterable[Sequence[Value]]) -> int:
        """Run one statement for each row; returns how many rows of the table changed."""
        return self._connection.executemany(sql, rows).rowcount


@dataclass(frozen=True, slots=True)
class _Job(Generic[T]):
    work: Callable[[Transaction], T]
    done: "Future[T] | asyncio.Future[T]"
    stay: OpenStay | None
    """In the queue for the disk, when somebody follows it."""


_Outcome = tuple[_Job[Any], Any, BaseException | None]


@dataclass(frozen=True, slots=True)
class _Group:
    """Work that ran on an event loop and is to be committed."""

    loop: asyncio.AbstractEventLoop
    jobs: Sequence[_Job[Any]]
    outcomes: list[_Outcome]


class Database:
    """Open with `Database.open`; safe to use from any thread."""

    def __init__(
        self,
        path: Path,
        lock: TextIO,
        writer: sqlite3.Connection,
        max_waiting: int,
        group_limit: int,
        cache_kib: int,
        clock: SteadyClock | None,
        queues: QueueObserver | None = None,
    ) -> None:
        """`clock`: by which the times in the file go; None: there are none."""
        self._queue = watch_queue(f"writer/{path.stem}", queues)
        self._path = path
        self._lock = lock
        self._writer = writer
        self._cache_kib = cache_kib
        self._group_limit = group_limit
        self._clock = clock
        self._marked = None if clock is None else ClockMark.of(clock)
        self._max_waiting = max_waiting
        self._closing = threading.Event()
        self._guard = threading.Lock()
        """Guards what follows, up to `_soon`."""
        self._changed = threading.Condition(self._guard)
        self._waiting: deque[_Job[Any]] = deque()
        self._handed: _Group | None = None
        self._is_taken = False
        """Whether somebody has the writer's connection."""
        self._loop_thread = 0
        """Whose short reads go by the writer's connection when it is free."""
        self._thread_is_next = False
        self._loop_waits: asyncio.AbstractEventLoop | None = None
        """Whose turn it is when the connection is free."""
        self._soon: deque[_Job[Any]] = deque()
        self._soon_loop: asyncio.AbstractEventLoop | None = None
        self._turn_is_due = False
        self._is_urgent = False
        """Whether something of it is not to wait for others."""
        self._patience: asyncio.TimerHandle | None = None
        self._local = threading.local()
        self._readers: list[sqlite3.Connection] = []
        self._readers_lock = threading.Lock()
        self._thread = threading.Thread(target=self._write_groups, name=f"storage {path.name}", daemon=True)
        self._thread.start()

    @classmethod
    def open(
        cls,
        path: Path,
        migrations: Sequence[Migration] = (),
        *,
        max_waiting: int = DEFAULT_MAX_WAITING,
        group_limit: int = DEFAULT_GROUP_LIMIT,
        cache_kib: int = DEFAULT_CACHE_KIB,
        max_pages: int | None = None,
        clock: SteadyClock = steady,
        queues: QueueObserver | None = None,
    ) -> Self:
        """Open or create the file, alone: a second process gets `DatabaseInUseError`.

        `max_waiting` bounds the writes that may queue, `group_limit` how many go into one commit,
        `max_pages` the size of the file. The times in it are moved to `clock` first. `queues` is told of each piece
        of work how long it waited, and how long its commit took.
        """
        lock = _lock_beside(path)
        try:
            close_stores_to_others(path)
            writer = _connect(path, cache_kib)
            try:
                writer.execute("PRAGMA synchronous = FULL")  # acknowledged means on disk, also after a power cut
                if max_pages is not None:
                    writer.execute(f"PRAGMA max_page_count = {int(max_pages)}")
                migrate(writer, migrations)
                timed = _correct(writer, migrations, clock)
            except BaseException:
                writer.close()
                raise
        except sqlite3.Error as error:
            lock.close()
            raise _translated(error, path) from error
        except OSError as error:
            lock.close()
            raise StorageError(f"cannot open {path}: {error.strerror}") from error
        except BaseException:
            lock.close()
            raise
        return cls(path, lock, writer, max_waiting, group_limit, cache_kib, clock if timed else None, queues)

    @property
    def path(self) -> Path:
        return self._path

    def write(self, work: Callable[[Transaction], T]) -> Future[T]:
        """Queue a piece of work; the future resolves with its result after the commit that holds it.

        The work may run a second time if a neighbour in its group breaks the transaction, so it must only touch
        the database. Raises `DatabaseBusyError` when too many pieces are waiting.
        """
        job = _Job(work, Future[T](), None if self._queue is None else self._queue.came())
        with self._guard:
            if self._closing.is_set():
                raise DatabaseClosedError(f"{self._path} is closed")
            if len(self._waiting) >= self._max_waiting:
                raise self._busy()
            self._waiting.append(job)
            self._changed.notify()
        assert isinstance(job.done, Future)  # noqa: S101 - it was made above
        return job.done

    def transact(self, work: Callable[[Transaction], T], patience: float = 0.0) -> "asyncio.Future[T]":
        """Like `write`, for short work, from a running event loop, on which the work runs at its next turn.

        The future resolves after the commit, on the loop. Raises `DatabaseBusyError`. With `patience` it waits so many
        seconds for others whose commit it can share, or for `hurry`; all is committed in the order it was asked for.
        """
        if self._closing.is_set():
            raise DatabaseClosedError(f"{self._path} is closed")
        if len(self._soon) >= self._max_waiting:
            raise self._busy()
        loop = asyncio.get_running_loop()
        self._loop_thread = threading.get_ident()
        job = _Job(work, loop.create_future(), None if self._queue is None else self._queue.came())
        if self._soon_loop is not loop:  # one before may have ended without its last turn
            self._soon.clear()
            self._turn_is_due = self._is_urgent = False
            self._patience = None
            self._soon_loop = loop
        self._soon.append(job)
        if patience <= 0:
            self._turn_soon(loop)
        elif self._patience is None:
            self._patience = loop.call_later(patience, self._patience_ended)
        assert isinstance(job.done, asyncio.Future)  # noqa: S101 - it was made above
        return job.done

    def hurry(self) -> None:
        """Somebody waits for what was to wait for others."""
        if self._soon and self._soon_loop is not None:
            self._turn_soon(self._soon_loop)

    def _turn_soon(self, loop: asyncio.AbstractEventLoop) -> None:
        self._is_urgent = True
        if not self._turn_is_due:
            self._turn_is_due = True
            loop.call_soon(self._run_soon)

    def _patience_ended(self) -> None:
        self._patience = None
        self._is_urgent = True
        if not self._turn_is_due:
            self._run_soon()

    def _busy(self) -> DatabaseBusyError:
        return DatabaseBusyError(f"{self._max_waiting} writes are waiting for {self._path}: try again later")

    def read(self, sql: str, parameters: Sequence[Value] = ()) -> list[Row]:
        """Run a query on the last committed state. Bound the rows in the query: all of them are returned."""
        try:
            if threading.get_ident() == self._loop_thread and sql.startswith("SELECT") and self._borrowed():
                try:
                    return self._writer.execute(sql, parameters).fetchall()
                finally:
                    self._given_back()
            return self._reader().execute(sql, parameters).fetchall()
        except sqlite3.Error as error:
            raise _translated(error, self._path) from error

    def _borrowed(self) -> bool:
        """Take the writer's connection for a query, if nobody else wants it. A reader's cache is void after each
        commit, and the loop reads some rows of the same pages for each publication; the writer's cache stays."""
        with self._guard:
            if self._is_taken or self._waiting or self._closing.is_set():
                return False
            self._is_taken = True
            return True

    def _given_back(self) -> None:
        with self._guard:
            self._is_taken = False
            if self._waiting or self._closing.is_set():
                self._changed.notify()

    def close(self) -> None:
        """Finish the writes that are queued, then close. Idempotent."""
        with self._guard:
            if not self._closing.is_set():
                self._closing.set()
                while self._soon:
                    self._waiting.append(self._soon.popleft())
                self._changed.notify()
        self._thread.join()
        with self._readers_lock:
            for reader in self._readers:
                reader.close()
            self._readers.clear()
        self._writer.close()
        self._lock.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _reader(self) -> sqlite3.Connection:
        reader: sqlite3.Connection | None = getattr(self._local, "connection", None)
        if reader is None:
            with self._readers_lock:
                if self._closing.is_set():
                    raise DatabaseClosedError(f"{self._path} is closed")
                reader = _connect(self._path, self._cache_kib)
                reader.execute("PRAGMA query_only = ON")
                self._readers.append(reader)
            self._local.connection = reader
        return reader

    # On the loop

    def _run_soon(self) -> None:
        """Run what waits, and have the thread commit it; or wait until the connection is free."""
        self._turn_is_due = False
        loop = self._soon_loop
        if not self._soon or loop is None:
            return
        with self._guard:
            if self._is_taken or self._thread_is_next:
                self._loop_waits = loop
                return
            self._is_taken = True
        jobs: list[_Job[Any]] = []
        while self._soon and len(jobs) < LOOP_GROUP:
            job = self._soon.popleft()
            if not job.done.cancelled():
                jobs.append(job)
            elif job.stay is not None:
                job.stay.leaves()
        self._is_urgent = bool(self._soon)
        if self._patience is not None:
            self._patience.cancel()
            self._patience = None
        outcomes: list[_Outcome] = []
        with contextlib.suppress(sqlite3.Error):  # the thread finds outcomes missing, and runs each job alone
            self._run(jobs, outcomes)
        with self._guard:
            self._handed = _Group(loop, jobs, outcomes)
            self._changed.notify()

    def _told(self, outcomes: list[_Outcome]) -> None:
        for outcome in outcomes:
            _settle(*outcome)
        if self._is_urgent and not self._turn_is_due:
            self._run_soon()

    # In the thread

    def _write_groups(self) -> None:
        _name_thread("storage writer")
        while (task := self._next_task()) is not None:
            told: asyncio.AbstractEventLoop | None = None
            if isinstance(task, _Group):
                told = task.loop if self._committed(task) else None
            elif task:
                self._commit(task)
            self._mark(last=False)
            waits = self._free(was_handed=isinstance(task, _Group))
            if told is not None and isinstance(task, _Group):
                _call(told, self._told, task.outcomes)
            if waits is not None and waits is not told:
                _call(waits, self._run_soon)
        self._mark(last=True)

    def _next_task(self) -> _Group | list[_Job[Any]] | None:
        """Wait for something to do, and take the connection. An empty list: look at the clocks. None: the end."""
        patience = None if self._clock is None else MARK_EVERY
        with self._guard:
            while True:
                if self._handed is not None:
                    group, self._handed = self._handed, None
                    return group
                if not self._is_taken:
                    if self._waiting:
                        return self._take_waiting()
                    if self._closing.is_set():
                        return None
                if not self._changed.wait(patience) and not self._is_taken:
                    return self._take_waiting()

    def _take_waiting(self) -> list[_Job[Any]]:
        self._is_taken = True
        self._thread_is_next = False
        group: list[_Job[Any]] = []
        while self._waiting and len(group) < self._group_limit:
            job = self._waiting.popleft()
            if isinstance(job.done, asyncio.Future) or job.done.set_running_or_notify_cancel():
                group.append(job)
            elif job.stay is not None:
                job.stay.leaves()
        return group

    def _free(self, was_handed: bool) -> asyncio.AbstractEventLoop | None:
        """Give the connection back: loop and thread take turns. Says which loop waits for its turn."""
        with self._guard:
            self._is_taken = False
            self._thread_is_next = was_handed and bool(self._waiting)
            if self._thread_is_next:
                return None
            loop, self._loop_waits = self._loop_waits, None
            return loop

    def _mark(self, last: bool) -> None:
        """Note what the clocks show: now and then, when the system's was set, and at the end."""
        if self._clock is None or self._marked is None:
            return
        mark = ClockMark.of(self._clock)
        if not last and mark.passed - self._marked.passed < MARK_EVERY and not mark.set_since(self._marked):
            return
        self._marked = mark
        with contextlib.suppress(sqlite3.Error):  # a full disk: the mark before this one does as well
            write_mark(self._writer, mark)

    def _committed(self, group: _Group) -> bool:
        """Commit what ran on the loop. False: each piece was run again alone, and was told."""
        try:
            if len(group.outcomes) < len(group.jobs):
                raise sqlite3.OperationalError("the group was broken off")
            self._writer.execute("COMMIT")
        except sqlite3.Error:
            self._roll_back()
            for job in group.jobs:
                self._commit([job])
            return False
        self._ended(group.jobs)
        return True

    def _commit(self, group: list[_Job[Any]]) -> None:
        outcomes: list[_Outcome] = []
        try:
            self._run(group, outcomes)
            self._writer.execute("COMMIT")
        except sqlite3.Error as error:
            self._roll_back()
            if len(group) == 1:
                self._ended(group, "failed")
                _resolve(group[0], None, _translated(error, self._path))
                return
            # One job can take the whole transaction down (a full disk does). Alone, each gets its own answer.
            for job in group:
                self._commit([job])
            return
        self._ended(group)
        for job, result, raised in outcomes:
            _resolve(job, result, raised)

    def _ended(self, jobs: Sequence[_Job[Any]], end: StayEnd = "ok") -> None:
        """Their stay in the queue for the disk is over: they share one commit."""
        if self._queue is not None:
            for job in jobs:
                if job.stay is not None:
                    job.stay.ends(end)

    def _roll_back(self) -> None:
        if self._writer.in_transaction:
            self._writer.execute("ROLLBACK")

    def _run(self, group: list[_Job[Any]], outcomes: list[_Outcome]) -> None:
        """All of it in one transaction that stays open."""
        if self._queue is not None:
            for job in group:
                if job.stay is not None:
                    job.stay.begins()
        self._writer.execute("BEGIN IMMEDIATE")
        for job in group:
            outcomes.append((job, *self._run_in_savepoint(job)))

    def _run_in_savepoint(self, job: _Job[Any]) -> tuple[Any, BaseException | None]:
        self._writer.execute("SAVEPOINT job")
        try:
            result = job.work(Transaction(self._writer))
        except Exception as error:
            if not self._writer.in_transaction:
                # SQLite has rolled everything back by itself (full disk): the caller must redo the group.
                raise
            self._writer.execute("ROLLBACK TO job")
            self._writer.execute("RELEASE job")
            return None, _translated(error, self._path) if isinstance(error, sqlite3.Error) else error
        self._writer.execute("RELEASE job")
        return result, None


def _settle(job: _Job[Any], result: Any, raised: BaseException | None) -> None:
    """Of work for a loop: on that loop."""
    if job.done.done():  # whoever waited has gone
        return
    if raised is None:
        job.done.set_result(result)
    else:
        job.done.set_exception(raised)


def _resolve(job: _Job[Any], result: Any, raised: BaseException | None) -> None:
    """In the writer's thread."""
    if isinstance(job.done, asyncio.Future):
        _call(job.done.get_loop(), _settle, job, result, raised)
    elif raised is None:
        job.done.set_result(result)
    else:
        job.done.set_exception(raised)


def _call(loop: asyncio.AbstractEventLoop, function: Callable[..., None], *arguments: object) -> None:
    with contextlib.suppress(RuntimeError):  # it is closed: nobody waits
        loop.call_soon_threadsafe(function, *arguments)


def _correct(writer: sqlite3.Connection, migrations: Sequence[Migration], clock: SteadyClock) -> bool:
    """Says whether the file keeps any times."""
    columns = [place for migration in migrations for place in migration.times]
    if not columns and not writer.execute("SELECT 1 FROM sqlite_schema WHERE name = 'clock_mark'").fetchone():
        return False
    correct(writer, columns, clock)
    return True


def _lock_beside(path: Path) -> TextIO:
    """Hold `<path>.lock`; the kernel lets go of it when the process ends, however it ends."""
    lock_path = path.with_name(path.name + ".lock")
    try:
        lock = os.fdopen(open_private_file(lock_path, os.O_RDWR | os.O_APPEND), "a+", encoding="ascii")
    except OSError as error:
        raise StorageError(f"cannot open {lock_path}: {error.strerror}") from error
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        lock.seek(0)
        holder = lock.read().strip() or "unknown"
        lock.close()
        raise DatabaseInUseError(f"{path} is in use by process {holder}: stop it first") from None
    lock.truncate(0)
    lock.write(str(os.getpid()))
    lock.flush()
    return lock


def _name_thread(name: str) -> None:
    """Python's own names do not reach the system: so it is seen in `top -H` and in profiles."""
    with contextlib.suppress(OSError):
        Path("/proc/thread-self/comm").write_text(name, encoding="ascii")


def _connect(path: Path, cache_kib: int) -> sqlite3.Connection:
    connection = sqlite3.connect(path, isolation_level=None, check_same_thread=False, cached_statements=512)
    connection.execute(f"PRAGMA busy_timeout = {BUSY_TIMEOUT_MS}")
    connection.execute("PRAGMA journal_mode = WAL")
    connection.execute("PRAGMA foreign_keys = ON")
    connection.execute(f"PRAGMA cache_size = {-int(cache_kib)}")
    return connection


def _translated(error: sqlite3.Error, path: Path) -> StorageError:
    if getattr(error, "sqlite_errorcode", None) == sqlite3.SQLITE_FULL:
        return StorageFullError(f"no space left for {path}: free some, or raise the store's size limit")
    return StorageError(f"{path}: {error}")
