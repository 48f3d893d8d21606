"""Copies of the stores while they are written to, and the way back.

A backup is a directory: the stores as single files, the boot numbers of nodes, and `manifest.json` with the checksum
of each. All stores are copied as they were at one moment (read transactions are opened on all of them before the
first page is copied), checked, and written beside the place they are for, which is then renamed: a backup is there as
a whole or not at all.
"""

import contextlib
import hashlib
import os
import shutil
import sqlite3
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing
from datetime import UTC, datetime
from pathlib import Path, PurePosixPath

import msgspec
from msgspec import Struct

from gateway import __version__
from gateway.operations.stores import (
    FIRST,
    StoreFile,
    StoreProblemError,
    lives_below,
    opened,
    problems,
    stores_below,
    too_new,
    versions,
)
from storage import Database, DatabaseInUseError, StorageError
from storage.private import make_private_file, make_private_folder, write_private_file

MANIFEST_NAME = "manifest.json"
FORMAT = 1
PAGES_A_STEP = 4096
MAX_MANIFEST_BYTES = 1024 * 1024
CHUNK = 1024 * 1024

Roots = Mapping[str, Path]
"""Directories with stores, by the name they have inside a backup."""


class BackupError(Exception):
    """It was not done, and nothing was changed; the text says why."""


class SavedFile(Struct, frozen=True, forbid_unknown_fields=True):
    """One file of a backup. `place` is relative to its root, `schema` says which versions its tables have."""

    root: str
    place: str
    bytes: int
    sha256: str
    schema: dict[str, int] = {}

    @property
    def inside(self) -> PurePosixPath:
        return PurePosixPath(self.root) / self.place


class Manifest(Struct, frozen=True, forbid_unknown_fields=True):
    format: int
    software: str
    made_at: str
    files: tuple[SavedFile, ...]


Progress = Callable[[str], None]


def back_up(roots: Roots, target: Path, *, now: datetime | None = None, progress: Progress | None = None) -> Manifest:
    """Copy everything below `roots` into the new directory `target`. Raises `BackupError`."""
    if target.exists():
        raise BackupError(f"{target} is there already: name a directory that is not, nothing is overwritten")
    if not target.parent.is_dir():
        raise BackupError(f"{target.parent} is not there: make it first")
    for root in roots.values():
        if target.absolute().is_relative_to(root.absolute()):
            raise BackupError(f"{target} is inside {root}, which is to be copied: name a place outside")
    with _new_directory(target) as folder:
        try:
            saved = [*_copy_stores(roots, folder, progress), *_copy_lives(roots, folder)]
        except (OSError, sqlite3.Error, StoreProblemError) as error:
            raise BackupError(str(error)) from None
        if not saved:
            raise BackupError(f"there is no store below {', '.join(map(str, roots.values()))}")
        made_at = (now or datetime.now(UTC)).isoformat(timespec="seconds")
        manifest = Manifest(FORMAT, __version__, made_at, tuple(saved))
        _write(folder / MANIFEST_NAME, msgspec.json.format(msgspec.json.encode(manifest), indent=2) + b"\n")
    return manifest


def verify(backup: Path) -> Manifest:
    """Whether a backup is whole and can be used by this software. Raises `BackupError`."""
    manifest = _manifest(backup)
    for file in manifest.files:
        path = backup / file.inside
        if file.inside.is_absolute() or ".." in file.inside.parts:
            raise BackupError(f"{backup}: the manifest names {file.inside}, which is outside")
        try:
            found = _digest(path)
        except OSError as error:
            raise BackupError(f"{path}: {error.strerror}; the backup is not whole") from None
        if found != file.sha256:
            raise BackupError(f"{path} is not what was backed up (its checksum differs); take another backup")
        newer = too_new(file.schema)
        if newer:
            raise BackupError(f"{path}: {newer[0]}: use psph {manifest.software} or later")
        if file.schema and (wrong := problems(path)):
            raise BackupError(f"{path}: not whole: {'; '.join(wrong)}")
    return manifest


def restore(backup: Path, roots: Roots) -> Manifest:
    """Put a backup where nothing is yet. Raises `BackupError`, and then nothing was changed."""
    manifest = verify(backup)
    missing = {file.root for file in manifest.files} - set(roots)
    if missing:
        raise BackupError(f"the backup has a part {sorted(missing)[0]!r}, and it was not said where that goes")
    for root in roots.values():
        _check_free(root)
    for name, root in roots.items():
        files = [file for file in manifest.files if file.root == name]
        if files:
            _put(backup, files, root)
    return manifest


def _check_free(root: Path) -> None:
    if not root.exists():
        return
    try:
        stores = stores_below(root)
    except StoreProblemError as error:
        raise BackupError(str(error)) from None
    for store in stores:
        try:
            Database.open(store.path).close()
        except DatabaseInUseError as error:
            raise BackupError(f"{error}, and move {root} away") from None
        except StorageError:
            pass  # a broken store is a reason to restore; it is in the way all the same
        raise BackupError(f"{store.path} is there already: move {root} away first, nothing is overwritten")
    if any(root.iterdir()):
        raise BackupError(f"{root} is not empty: move it away first, nothing is overwritten")


def _put(backup: Path, files: Sequence[SavedFile], root: Path) -> None:
    root.parent.mkdir(parents=True, exist_ok=True)
    try:
        if root.exists():
            root.rmdir()  # empty, as was checked; it may be a mount point, which cannot be replaced
    except OSError:
        _copy_into(backup, files, root)
        return
    with _new_directory(root) as folder:
        _copy_into(backup, files, folder)


def _copy_into(backup: Path, files: Sequence[SavedFile], folder: Path) -> None:
    try:
        for file in files:
            target = folder / file.place
            _make_folders(target.parent, folder)
            make_private_file(target)
            shutil.copyfile(backup / file.inside, target)
            if _digest(target) != file.sha256:
                raise BackupError(f"{target} was not written as it was read: the disk is not to be trusted")
            _flush(target)
    except OSError as error:
        raise BackupError(f"{error.filename or folder}: {error.strerror}") from None


# Copying.


def _copy_stores(roots: Roots, folder: Path, progress: Progress | None) -> Iterator[SavedFile]:
    stores = [(name, store) for name, root in roots.items() for store in stores_below(root)]
    stores.sort(key=lambda one: one[1].path.name not in FIRST)
    with ExitStack() as stack:
        snapshots = [(name, store, stack.enter_context(_snapshot(store.path))) for name, store in stores]
        for name, store, snapshot in snapshots:
            target = folder / name / store.place
            _make_folders(target.parent, folder)
            _copy_store(snapshot, target)
            wrong = problems(target)
            if wrong:
                raise BackupError(f"{store.path}: the copy is not whole: {'; '.join(wrong)}")
            if progress is not None:
                progress(f"{name}/{store.place}: {target.stat().st_size:,} bytes")
            yield SavedFile(name, store.place, target.stat().st_size, _digest(target), versions(target))


@contextlib.contextmanager
def _snapshot(path: Path) -> Iterator[sqlite3.Connection]:
    """The store as it is now, whatever is written to it later."""
    with closing(opened(path)) as connection:
        connection.execute("BEGIN")
        connection.execute("SELECT count(*) FROM sqlite_schema").fetchone()  # the transaction begins with a read
        yield connection


def _copy_store(source: sqlite3.Connection, target: Path) -> None:
    make_private_file(target)
    with closing(sqlite3.connect(target, isolation_level=None)) as copy:
        source.backup(copy, pages=PAGES_A_STEP)
        copy.execute("PRAGMA journal_mode = DELETE")  # one file, with nothing beside it
    _flush(target)


def _copy_lives(roots: Roots, folder: Path) -> Iterator[SavedFile]:
    for name, root in roots.items():
        for life in lives_below(root):
            target = folder / name / life.place
            _make_folders(target.parent, folder)
            _write(target, life.path.read_bytes())
            yield SavedFile(name, life.place, target.stat().st_size, _digest(target))


# Files.


@contextlib.contextmanager
def _new_directory(target: Path) -> Iterator[Path]:
    """A directory to fill; it gets its name when that is done, and is removed when it goes wrong."""
    try:
        folder = Path(tempfile.mkdtemp(prefix=f".{target.name}.", dir=target.parent))
    except OSError as error:
        raise BackupError(f"{target.parent}: {error.strerror}") from None
    try:
        make_private_folder(folder)
        yield folder
        _flush(folder)
        folder.rename(target)
        _flush(target.parent)
    except OSError as error:
        raise BackupError(f"{target}: {error.strerror}") from None
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _make_folders(folder: Path, top: Path) -> None:
    """With rights for the owner alone, whatever the umask is."""
    for part in [*reversed(folder.relative_to(top).parents), folder.relative_to(top)]:
        make_private_folder(top / part)


def _manifest(backup: Path) -> Manifest:
    path = backup / MANIFEST_NAME
    try:
        if path.stat().st_size > MAX_MANIFEST_BYTES:
            raise BackupError(f"{path} is larger than a manifest is")
        manifest = msgspec.json.decode(path.read_bytes(), type=Manifest)
    except OSError as error:
        raise BackupError(f"{path}: {error.strerror}; {backup} is no backup") from None
    except msgspec.DecodeError as error:
        raise BackupError(f"{path}: {error}") from None
    if manifest.format != FORMAT:
        raise BackupError(f"{path}: format {manifest.format}, expected {FORMAT}: use psph {manifest.software} or later")
    return manifest


def _digest(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while chunk := file.read(CHUNK):
            digest.update(chunk)
    return digest.hexdigest()


def _write(path: Path, content: bytes) -> None:
    write_private_file(path, content)


def _flush(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


__all__ = ["BackupError", "Manifest", "SavedFile", "StoreFile", "back_up", "restore", "verify"]
