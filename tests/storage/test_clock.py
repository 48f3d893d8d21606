"""A clock that is set, in both directions: waits and leases on disk are as long as they were."""

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from storage import Database, Migration, StorageFullError
from storage.clock import SteadyClock
from storage.corrections import MARK_EVERY, ClockMark

HOUR = 3600.0
DAY = 24 * HOUR
EPOCH = 1_700_000_000.0
TABLES = Migration(
    "test",
    1,
    ["CREATE TABLE waits (name TEXT, due REAL, kept_ms INTEGER, ttl REAL)"],
    times=["waits.due", "waits.kept_ms"],
)


@dataclass
class Machine:
    """What the kernel tells a process."""

    wall: float = EPOCH
    passed: float = 500.0
    boot: str = "first boot"

    def process(self) -> SteadyClock:
        """A process that starts now."""
        return SteadyClock(lambda: self.wall, lambda: self.passed, self.boot)

    def wait(self, seconds: float) -> None:
        self.wall += seconds
        self.passed += seconds

    def restart(self, off: float, step: float = 0.0) -> None:
        self.boot, self.passed = f"{self.boot}, again", 3.0
        self.wall += off + step


def put(database: Database, due: float) -> None:
    row = ("a", due, round(due * 1000), 60.0)
    database.write(lambda tx: tx.execute("INSERT INTO waits VALUES (?, ?, ?, ?)", row)).result(10)


def due(database: Database) -> float:
    ((at, kept_ms, ttl),) = database.read("SELECT due, kept_ms, ttl FROM waits")
    assert (kept_ms, ttl) == (pytest.approx(at * 1000, abs=2), 60.0)
    return float(at)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "store.sqlite"


@pytest.fixture
def machine() -> Iterator[Machine]:
    yield Machine()


STEPS = pytest.mark.parametrize("step", [-HOUR, HOUR, -10 * DAY, 10 * DAY, -EPOCH + 7])


@STEPS
def test_a_running_process_does_not_see_that_the_clock_was_set(machine: Machine, step: float) -> None:
    clock = machine.process()
    machine.wait(10)
    machine.wall += step
    assert (clock(), clock.stepped()) == (EPOCH + 10, step)
    machine.wait(5)
    assert clock() == EPOCH + 15


@STEPS
def test_a_wait_is_as_long_when_the_clock_was_set_while_the_process_ran(
    path: Path, machine: Machine, step: float
) -> None:
    with Database.open(path, [TABLES], clock=(clock := machine.process())) as database:
        put(database, clock() + 600)
        machine.wall += step
        machine.wait(100)
    machine.wait(50)
    with Database.open(path, [TABLES], clock=(clock := machine.process())) as database:
        assert due(database) - clock() == pytest.approx(450, abs=0.01)


@STEPS
def test_a_wait_is_as_long_when_the_clock_was_set_between_two_processes_of_one_boot(
    path: Path, machine: Machine, step: float
) -> None:
    with Database.open(path, [TABLES], clock=(clock := machine.process())) as database:
        put(database, clock() + 600)
    machine.wall += step
    machine.wait(50)
    with Database.open(path, [TABLES], clock=(clock := machine.process())) as database:
        assert due(database) - clock() == pytest.approx(550, abs=0.01)


@STEPS
def test_a_step_in_a_run_is_known_after_a_kill_and_a_boot(path: Path, machine: Machine, step: float) -> None:
    database = Database.open(path, [TABLES], clock=(clock := machine.process()))
    put(database, clock() + 6000)
    machine.wall += step
    put_again = database.write(lambda tx: tx.execute("UPDATE waits SET ttl = 60.0"))  # the writer looks at the clock
    put_again.result(10)
    database.write(lambda tx: tx.execute("SELECT 1")).result(10)
    killed = path.with_name("killed.sqlite")
    with closing(sqlite3.connect(path)) as live, closing(sqlite3.connect(killed)) as copy:
        live.backup(copy)
    database.close()
    machine.restart(off=100)
    with Database.open(killed, [TABLES], clock=(clock := machine.process())) as found:
        assert due(found) - clock() == pytest.approx(5900, abs=0.01)


def test_after_a_boot_a_clock_behind_the_mark_lost_no_time_and_one_ahead_was_off(path: Path, machine: Machine) -> None:
    with Database.open(path, [TABLES], clock=(clock := machine.process())) as database:
        put(database, clock() + 600)
    machine.restart(off=60, step=-10 * DAY)
    with Database.open(path, [TABLES], clock=(clock := machine.process())) as database:
        assert due(database) - clock() == pytest.approx(600, abs=0.01)
    machine.restart(off=60)
    with Database.open(path, [TABLES], clock=(clock := machine.process())) as database:
        assert due(database) - clock() == pytest.approx(540, abs=0.01)


def test_what_is_no_time_stays_and_what_is_never_stays_never(path: Path, machine: Machine) -> None:
    with Database.open(path, [TABLES], clock=machine.process()) as database:
        rows = [(0.0, 0), (1e12, 10**15), (float("inf"), 10**15), (None, None)]
        insert = "INSERT INTO waits VALUES ('x', ?, ?, NULL)"
        database.write(lambda tx: tx.execute_many(insert, rows)).result(10)
    machine.wall -= 10 * DAY
    with Database.open(path, [TABLES], clock=machine.process()) as database:
        assert database.read("SELECT due, kept_ms FROM waits ORDER BY rowid") == rows


def test_whoever_opens_a_file_moves_all_that_is_in_it(path: Path, machine: Machine) -> None:
    """Also one that knows none of its tables, or only a part of them."""
    with Database.open(path, [TABLES], clock=(clock := machine.process())) as database:
        put(database, clock() + 600)
    machine.wall -= HOUR
    Database.open(path, clock=machine.process()).close()
    with Database.open(path, [TABLES], clock=(clock := machine.process())) as database:
        assert due(database) - clock() == pytest.approx(600, abs=0.01)


def test_a_file_without_times_gets_no_mark(path: Path, machine: Machine) -> None:
    with Database.open(path, [Migration("other", 1, ["CREATE TABLE t (n)"])], clock=machine.process()) as database:
        assert not database.read("SELECT 1 FROM sqlite_schema WHERE name LIKE 'clock%'")


def test_a_correction_that_cannot_be_written_stops_the_start(path: Path, machine: Machine) -> None:
    with Database.open(path, [TABLES], clock=(clock := machine.process())) as database:
        row = ("a" * 1000, clock() + 600, 1, 1.0)
        database.write(lambda tx: tx.execute_many("INSERT INTO waits VALUES (?, ?, ?, ?)", [row] * 200)).result(10)
    pages = path.stat().st_size // 4096
    with closing(sqlite3.connect(path)) as connection:
        connection.execute(
            "CREATE TRIGGER grows AFTER UPDATE ON waits BEGIN INSERT INTO waits VALUES (zeroblob(9000), 0, 0, 0); END"
        )
        connection.commit()
    with Database.open(path, [TABLES], clock=machine.process(), max_pages=pages + 2):
        pass  # nothing was set: a full disk does not matter
    machine.wall -= HOUR
    with pytest.raises(StorageFullError):
        Database.open(path, [TABLES], clock=machine.process(), max_pages=pages + 2)
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("DROP TRIGGER grows")
    with Database.open(path, [TABLES], clock=(clock := machine.process())) as database:
        assert database.read("SELECT min(due), max(due) FROM waits")[0] == pytest.approx((clock() + 600,) * 2, abs=0.01)


MOMENTS = st.floats(-1e7, 1e7)


@given(st.lists(st.tuples(st.floats(0, 1e6), st.sampled_from(["process", "step"]), MOMENTS), max_size=12))
def test_within_one_boot_no_history_of_steps_and_starts_changes_a_wait(
    history: list[tuple[float, str, float]],
) -> None:
    machine = Machine(wall=EPOCH)
    clock = machine.process()
    mark = ClockMark.of(clock)
    wait, waited = clock() + 1e7, 0.0
    for seconds, kind, step in history:
        machine.wait(seconds)
        waited += seconds
        if kind == "step":
            machine.wall += step
        else:
            clock = machine.process()
            now = ClockMark.of(clock)
            wait, mark = wait + now.correction(mark), now
    assert wait - clock() == pytest.approx(1e7 - waited, abs=1.1 * (1 + len(history)))


def test_an_idle_store_marks_now_and_then(path: Path, machine: Machine) -> None:
    with Database.open(path, [TABLES], clock=machine.process()) as database:
        machine.wait(MARK_EVERY + 1)
        database.write(lambda tx: None).result(10)
        database.write(lambda tx: None).result(10)  # the mark of the first is written before this one
        ((passed,),) = database.read("SELECT passed FROM clock_mark")
        assert passed == machine.passed
