"""Files and folders that only their owner may look into: made so whatever the umask is, and refused when they are not.

One place for both halves. What psph keeps (stores, states, traces, sockets, backups) has mode 0600 in folders of mode
0700. What it is given (tokens, secrets, keys) is not used while others can read it: they may have it already.
"""

import os
import stat
from collections.abc import Collection
from contextlib import suppress
from pathlib import Path

from storage.errors import StorageError

FOLDER_MODE = 0o700
FILE_MODE = 0o600
OTHERS = 0o077
MAX_SECRET_FILE_BYTES = 64 * 1024


class PrivateFileError(StorageError):
    """A file or folder is not for its owner alone, or cannot be had; says what to do."""


def read_secret_file(path: Path, most: int = MAX_SECRET_FILE_BYTES) -> bytes:
    """The content of a file that nobody but its owner can read."""
    try:
        # The mode is asked of the open file: at the path there could be another one by then. A pipe would block.
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except OSError as error:
        raise PrivateFileError(f"{path} cannot be read ({error.strerror})") from None
    try:
        _check_secret(path, os.fstat(descriptor))
    except PrivateFileError:
        os.close(descriptor)
        raise
    with os.fdopen(descriptor, "rb") as file:
        data = file.read(most + 1)
    if len(data) > most:
        raise PrivateFileError(f"{path} is larger than {most} bytes")
    return data


def check_secret_file(path: Path) -> None:
    """The same for a file that a library will read by itself."""
    try:
        _check_secret(path, path.stat())
    except OSError as error:
        raise PrivateFileError(f"{path} cannot be read ({error.strerror})") from None


def read_secret_lines(path: Path) -> tuple[str, ...]:
    """The lines of a file that nobody but its owner can read; at least one is there."""
    try:
        lines = read_secret_file(path).decode().splitlines()
    except UnicodeDecodeError:
        raise PrivateFileError(f"{path} is not text") from None
    found = tuple(line.strip() for line in lines if line.strip())
    if not found:
        raise PrivateFileError(f"{path} is empty")
    return found


def _check_secret(path: Path, status: os.stat_result) -> None:
    if not stat.S_ISREG(status.st_mode):
        raise PrivateFileError(f"{path} is not a regular file")
    if status.st_mode & OTHERS:
        raise PrivateFileError(f"others can read {path}; expected mode 0600 (chmod 600 {path})")


def make_private_folder(folder: Path, ours: Collection[str] = ()) -> None:
    """Make it, or close it to others when it is there.

    A folder in which something lies is only closed when it holds one of `ours`, the names that its user puts there:
    `--data /var/lib` must not lock everybody else out of it.
    """
    folder.mkdir(mode=FOLDER_MODE, parents=True, exist_ok=True)
    status = folder.stat()
    if not status.st_mode & OTHERS:
        return
    names = {entry.name for entry in os.scandir(folder)}
    if status.st_uid == os.geteuid() and not status.st_mode & stat.S_ISVTX and (not names or names & set(ours)):
        folder.chmod(FOLDER_MODE)
        return
    raise PrivateFileError(
        f"others can look into {folder}, which is not a folder of psph's own: name another one, or close it "
        f"(chmod 700 {folder})"
    )


def make_private_file(path: Path) -> None:
    """An empty one if there is none; one that is there is closed to others. For files that a library will open."""
    os.close(open_private_file(path, os.O_WRONLY))


def open_private_file(path: Path, flags: int) -> int:
    """A descriptor; the file is made if there is none, and closed to others if it is there."""
    descriptor = os.open(path, flags | os.O_CREAT | os.O_CLOEXEC, FILE_MODE)
    try:
        close_to_others(descriptor)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def close_to_others(file: int | Path) -> None:
    """Take away what others may, by path or descriptor. Another user's file stays as it is: we may not change it."""
    status = os.stat(file)  # noqa: PTH116  (of a descriptor too)
    if status.st_mode & OTHERS and status.st_uid == os.geteuid():
        os.chmod(file, stat.S_IMODE(status.st_mode) & ~OTHERS)  # noqa: PTH101


def write_private_file(path: Path, content: bytes) -> None:
    """A reader, and a life after a crash, finds the old content or the new one, whole."""
    fresh = path.with_name(f".{path.name}.{os.getpid()}.new")
    with suppress(FileNotFoundError):
        fresh.unlink()
    with os.fdopen(open_private_file(fresh, os.O_WRONLY | os.O_TRUNC), "wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    fresh.replace(path)


def close_stores_to_others(path: Path) -> None:
    """An SQLite file and what lies beside it. New ones beside it get the mode of the file itself."""
    make_private_file(path)
    for beside in ("-wal", "-shm", "-journal"):
        with suppress(FileNotFoundError):
            close_to_others(path.with_name(path.name + beside))
