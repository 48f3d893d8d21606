"""What is for its owner alone: made so under any umask, closed when it is not, refused when it was given open."""

import os
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from storage import Database, Migration
from storage.private import (
    PrivateFileError,
    check_secret_file,
    make_private_folder,
    read_secret_file,
    read_secret_lines,
    write_private_file,
)

TABLES = [Migration("t", 1, ["CREATE TABLE t (n INTEGER)"])]


def open_ones(top: Path) -> list[str]:
    """What others may read or enter."""
    return [str(path) for path in (top, *top.rglob("*")) if stat.S_IMODE(path.lstat().st_mode) & 0o077]


@pytest.fixture
def careless() -> Iterator[None]:
    before = os.umask(0)
    yield
    os.umask(before)


@pytest.mark.usefixtures("careless")
def test_a_store_and_what_lies_beside_it_is_for_its_owner(tmp_path: Path) -> None:
    make_private_folder(tmp_path / "data")
    with Database.open(tmp_path / "data" / "a.db", TABLES) as database:
        database.write(lambda tx: tx.execute("INSERT INTO t VALUES (1)")).result()
        names = {path.name for path in (tmp_path / "data").iterdir()}
        assert names == {"a.db", "a.db-wal", "a.db-shm", "a.db.lock"}
        assert not open_ones(tmp_path / "data")


def test_a_store_that_was_left_open_is_closed_when_it_is_opened_again(tmp_path: Path) -> None:
    path = tmp_path / "a.db"
    Database.open(path, TABLES).close()
    for file in tmp_path.iterdir():
        file.chmod(0o666)
    with Database.open(path, TABLES) as database:
        database.write(lambda tx: tx.execute("INSERT INTO t VALUES (1)")).result()
        assert not open_ones(tmp_path)


def test_a_folder_of_ours_is_closed_and_another_one_is_refused(tmp_path: Path) -> None:
    folder = tmp_path / "data"
    folder.mkdir()
    folder.chmod(0o755)
    make_private_folder(folder)
    assert not open_ones(folder)
    (folder / "hub.sqlite").touch(mode=0o600)
    folder.chmod(0o750)
    make_private_folder(folder, ["hub.sqlite"])
    assert not open_ones(folder)
    folder.chmod(0o755)
    with pytest.raises(PrivateFileError, match=f"chmod 700 {folder}"):
        make_private_folder(folder, ["gateway.sqlite"])
    assert stat.S_IMODE(folder.stat().st_mode) == 0o755, "what is not ours stays as it is"


def test_a_folder_that_everybody_shares_is_never_closed(tmp_path: Path) -> None:
    folder = tmp_path / "tmp"
    folder.mkdir()
    folder.chmod(0o1777)
    with pytest.raises(PrivateFileError, match="chmod 700"):
        make_private_folder(folder)
    assert stat.S_IMODE(folder.stat().st_mode) == 0o1777


@pytest.mark.usefixtures("careless")
def test_a_file_is_replaced_as_a_whole(tmp_path: Path) -> None:
    path = tmp_path / "life"
    write_private_file(path, b"1")
    path.chmod(0o644)
    write_private_file(path, b"2")
    assert path.read_bytes() == b"2"
    assert [file.name for file in tmp_path.iterdir()] == ["life"]
    assert not open_ones(tmp_path)


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o660, 0o644, 0o620])
def test_a_secret_that_others_can_read_or_change_is_refused(mode: int, tmp_path: Path) -> None:
    path = tmp_path / "tokens"
    path.write_text(" one \n\ntwo\n")
    path.chmod(mode)
    for read in (read_secret_file, check_secret_file, read_secret_lines):
        with pytest.raises(PrivateFileError, match=rf"\(chmod 600 {path}\)"):
            read(path)
    path.chmod(0o600)
    assert read_secret_lines(path) == ("one", "two")


def test_what_is_no_file_with_a_secret_is_refused(tmp_path: Path) -> None:
    with pytest.raises(PrivateFileError, match="cannot be read"):
        read_secret_file(tmp_path / "none")
    with pytest.raises(PrivateFileError, match="cannot be read"):
        check_secret_file(tmp_path / "none")
    os.mkfifo(tmp_path / "pipe", 0o600)
    with pytest.raises(PrivateFileError, match="not a regular file"):
        read_secret_file(tmp_path / "pipe")
    empty, binary, large = tmp_path / "empty", tmp_path / "binary", tmp_path / "large"
    for path, content in ((empty, b" \n"), (binary, b"\xff"), (large, b"x" * 100)):
        write_private_file(path, content)
    with pytest.raises(PrivateFileError, match="is empty"):
        read_secret_lines(empty)
    with pytest.raises(PrivateFileError, match="not text"):
        read_secret_lines(binary)
    with pytest.raises(PrivateFileError, match="larger than 99 bytes"):
        read_secret_file(large, 99)
