"""Backups of stores that are written to at the same time, and the way back."""

import shutil
import sqlite3
import stat
import threading
from pathlib import Path

import pytest

from gateway.cli.main import main
from gateway.gateway import DATABASE_NAME
from gateway.operations.backup import BackupError, back_up, restore, verify
from gateway.operations.stores import problems, stores_below
from gateway.store import TABLES as GATEWAY_TABLES
from push_hub.hub import DATABASE_NAME as HUB_NAME
from push_hub.hub import TABLES
from storage import Database, Migration, Transaction


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """The stores of a gateway, with something in them."""
    data = tmp_path / "data"
    for place, tables in (("", GATEWAY_TABLES), ("hub", TABLES)):
        folder = data / place
        folder.mkdir(parents=True, exist_ok=True)
        with Database.open(folder / (HUB_NAME if place else DATABASE_NAME), tables) as database:
            if not place:
                database.write(lambda tx: tx.execute("INSERT INTO exchange_marks VALUES ('push', '', 7)")).result()
    (data / "node").mkdir()
    (data / "node" / "life").write_text("123\n")
    return data


def cursor(path: Path) -> int:
    with Database.open(path, GATEWAY_TABLES) as database:
        ((value,),) = database.read("SELECT value FROM exchange_marks WHERE source = 'push'")
        return int(value)


def test_a_backup_comes_back_as_it_was(data: Path, tmp_path: Path) -> None:
    manifest = back_up({"data": data}, tmp_path / "backup")
    assert [file.place for file in manifest.files] == ["gateway.sqlite", "hub/hub.sqlite", "node/life"]
    restore(tmp_path / "backup", {"data": tmp_path / "again"})
    assert cursor(tmp_path / "again" / DATABASE_NAME) == 7
    assert (tmp_path / "again" / "node" / "life").read_text() == "123\n"
    for store in stores_below(tmp_path / "again"):
        assert not problems(store.path)


def test_only_its_owner_can_read_it(data: Path, tmp_path: Path) -> None:
    back_up({"data": data}, tmp_path / "backup")
    for path in [tmp_path / "backup", *(tmp_path / "backup").rglob("*")]:
        assert not stat.S_IMODE(path.stat().st_mode) & 0o077, path


def test_stores_that_are_written_to_are_copied_at_one_moment(data: Path, tmp_path: Path) -> None:
    """The writer raises the hub's number before the gateway's: at every moment hub >= gateway."""
    number = [Migration("numbers", 1, ["CREATE TABLE number (n INTEGER)", "INSERT INTO number VALUES (0)"])]
    # Pages enough that copying takes many steps, between which the writer goes on.
    number.append(Migration("numbers", 2, ["CREATE TABLE filling (b BLOB)"]))
    hub = Database.open(data / "hub" / HUB_NAME, [*TABLES, *number])
    gateway = Database.open(data / DATABASE_NAME, [*GATEWAY_TABLES, *number])
    hub.write(lambda tx: tx.execute_many("INSERT INTO filling VALUES (zeroblob(100000))", [()] * 300)).result()
    enough = threading.Event()
    wrote = threading.Event()

    def work() -> None:
        n = 0
        while not enough.is_set():
            n += 1
            for database in (hub, gateway):

                def raise_it(tx: Transaction, n: int = n) -> None:
                    tx.execute("UPDATE number SET n = ?", (n,))

                database.write(raise_it).result()
            if n > 3:
                wrote.set()

    writer = threading.Thread(target=work)
    writer.start()
    try:
        assert wrote.wait(20)
        for attempt in range(3):
            back_up({"data": data}, tmp_path / f"backup{attempt}")
    finally:
        enough.set()
        writer.join()
        hub.close()
        gateway.close()
    seen = []
    for attempt in range(3):
        values = []
        for place in (DATABASE_NAME, f"hub/{HUB_NAME}"):
            with sqlite3.connect(tmp_path / f"backup{attempt}" / "data" / place) as connection:
                values.append(connection.execute("SELECT n FROM number").fetchone()[0])
            connection.close()
        assert 0 < values[0] <= values[1] <= values[0] + 50
        seen.append(values[0])
    assert seen == sorted(set(seen)), "the writer went on between the backups"


def test_nothing_is_overwritten(data: Path, tmp_path: Path) -> None:
    back_up({"data": data}, tmp_path / "backup")
    with pytest.raises(BackupError, match="is there already"):
        back_up({"data": data}, tmp_path / "backup")
    with pytest.raises(BackupError, match="nothing is overwritten"):
        restore(tmp_path / "backup", {"data": data})
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "precious").touch()
    with pytest.raises(BackupError, match="not empty"):
        restore(tmp_path / "backup", {"data": tmp_path / "other"})


def test_a_store_in_use_is_not_restored_over(data: Path, tmp_path: Path) -> None:
    back_up({"data": data}, tmp_path / "backup")
    with Database.open(data / DATABASE_NAME, GATEWAY_TABLES), pytest.raises(BackupError, match="in use by process"):
        restore(tmp_path / "backup", {"data": data})


def test_places_that_cannot_be_used(data: Path, tmp_path: Path) -> None:
    with pytest.raises(BackupError, match="inside"):
        back_up({"data": data}, data / "backup")
    with pytest.raises(BackupError, match="make it first"):
        back_up({"data": data}, tmp_path / "nowhere" / "backup")
    with pytest.raises(BackupError, match="no store"):
        back_up({"data": tmp_path / "nothing"}, tmp_path / "backup")
    assert not (tmp_path / "backup").exists()
    assert not [path for path in tmp_path.iterdir() if path.name.startswith(".")], "nothing half-made is left"


def test_a_backup_that_was_changed_is_refused(data: Path, tmp_path: Path) -> None:
    back_up({"data": data}, tmp_path / "backup")
    file = tmp_path / "backup" / "data" / DATABASE_NAME
    whole = file.read_bytes()
    file.write_bytes(whole[:-1] + b"x")
    with pytest.raises(BackupError, match="checksum"):
        verify(tmp_path / "backup")
    file.unlink()
    with pytest.raises(BackupError, match="not whole"):
        restore(tmp_path / "backup", {"data": tmp_path / "again"})
    assert not (tmp_path / "again").exists()


def test_a_manifest_cannot_reach_outside(data: Path, tmp_path: Path) -> None:
    back_up({"data": data}, tmp_path / "backup")
    manifest = tmp_path / "backup" / "manifest.json"
    manifest.write_text(manifest.read_text().replace("hub/hub.sqlite", "../../hub.sqlite"))
    with pytest.raises(BackupError, match="outside"):
        verify(tmp_path / "backup")


def test_a_store_that_is_broken_is_not_backed_up(data: Path, tmp_path: Path) -> None:
    path = data / "hub" / HUB_NAME
    spoilt = bytearray(path.read_bytes())
    spoilt[4096 * 2 : 4096 * 6] = b"\xff" * (4096 * 4)
    path.write_bytes(spoilt)
    with pytest.raises(BackupError):
        back_up({"data": data}, tmp_path / "backup")
    assert not (tmp_path / "backup").exists()


def test_a_backup_of_newer_software_is_refused(data: Path, tmp_path: Path) -> None:
    with sqlite3.connect(data / DATABASE_NAME) as connection:
        connection.execute("UPDATE schema_version SET version = 99 WHERE owner = 'gateway'")
    connection.close()
    back_up({"data": data}, tmp_path / "backup")
    with pytest.raises(BackupError, match="schema version 99"):
        restore(tmp_path / "backup", {"data": tmp_path / "again"})


def test_the_commands(data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    backup = tmp_path / "backup"
    assert main(["backup", "--data", str(data), str(backup)]) == 0
    assert "3 files, checked" in capsys.readouterr().out
    assert main(["backup", "--verify", str(backup)]) == 0
    assert main(["backup", "--data", str(data), str(backup)]) == 2
    assert "nothing is overwritten" in capsys.readouterr().err
    shutil.rmtree(data)
    assert main(["restore", "--data", str(data), str(backup)]) == 0
    assert cursor(data / DATABASE_NAME) == 7
    assert main(["backup", "--data", str(data)]) == 2
    assert "TARGET is missing" in capsys.readouterr().err


def test_a_node_elsewhere_is_part_of_the_gateways_backup(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "life").write_text("5\n")
    (tmp_path / "gateway.toml").write_text('[store]\npath = "data"\n[node]\nname = "a"\ndata = "elsewhere"\n')
    (tmp_path / "data").mkdir()
    Database.open(tmp_path / "data" / DATABASE_NAME, GATEWAY_TABLES).close()
    config = str(tmp_path / "gateway.toml")
    assert main(["backup", "-c", config, str(tmp_path / "backup")]) == 0
    assert (tmp_path / "backup" / "node" / "life").read_text() == "5\n"
    assert main(["restore", "--data", str(tmp_path / "x"), str(tmp_path / "backup")]) == 2
    assert "not said where" in capsys.readouterr().err
    shutil.rmtree(tmp_path / "data")
    shutil.rmtree(tmp_path / "elsewhere")
    assert main(["restore", "-c", config, str(tmp_path / "backup")]) == 0
    assert (tmp_path / "elsewhere" / "life").read_text() == "5\n"
