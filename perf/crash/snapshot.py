"""What the store of a dead hub says: read from a copy, so that the hub itself has to recover the original."""

import shutil
import sqlite3
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from push_hub.hub import DATABASE_NAME
from storage import Database

Pair = tuple[str, str]
"""Topic and callback."""


@dataclass(frozen=True, slots=True)
class StoredPublication:
    id: int
    topic: str
    body: bytes
    accepted_at: float


@dataclass(frozen=True, slots=True)
class Snapshot:
    integrity: str
    """`ok`, or what SQLite found wrong."""
    subscriptions: dict[Pair, int]
    waiting: dict[Pair, str]
    """The mode of the intent that waits for its check."""
    pings: set[str]
    publications: list[StoredPublication]
    """Those above the id that was asked for."""
    fanouts: dict[int, int]
    owed: set[tuple[int, int]]
    dead_letters: list[Pair]


def read_snapshot(data: Path, after_publication: int) -> Snapshot:
    """Raises `StorageError` when the copy cannot be read at all."""
    with tempfile.TemporaryDirectory() as folder:
        for suffix in ("", "-wal"):
            source = data / (DATABASE_NAME + suffix)
            if source.exists():
                shutil.copyfile(source, Path(folder) / source.name)
        with Database.open(Path(folder) / DATABASE_NAME) as database:
            return _read(database.read, after_publication)


def _read(read: Callable[..., list[tuple[object, ...]]], after_publication: int) -> Snapshot:
    integrity = "; ".join(str(row[0]) for row in read("PRAGMA integrity_check(5)"))
    broken = read("PRAGMA foreign_key_check")
    if broken:
        integrity += f"; {len(broken)} rows refer to nothing"
    if not read("SELECT 1 FROM sqlite_master WHERE name = 'subscription_history'"):
        # Killed while its tables were made for the first time: a whole version, but not the newest yet.
        return Snapshot(integrity, {}, {}, set(), [], {}, set(), [])
    return Snapshot(
        integrity,
        {(str(t), str(c)): int(str(n)) for n, t, c in read("SELECT id, topic, callback FROM subscriptions")},
        {(str(t), str(c)): str(m) for m, t, c in read("SELECT mode, topic, callback FROM verifications")},
        {str(topic) for (topic,) in read("SELECT topic FROM pings")},
        [
            StoredPublication(*row)  # type: ignore[arg-type]  # the columns' types are the schema's
            for row in read(
                "SELECT id, topic, body, accepted_at FROM publications WHERE id > ? ORDER BY id", (after_publication,)
            )
        ],
        {int(str(p)): int(str(at)) for p, at in read("SELECT publication, position FROM fanouts")},
        {(int(str(s)), int(str(p))) for s, p in read("SELECT subscription, publication FROM retries")},
        [(str(t), str(c)) for t, c in read("SELECT topic, callback FROM dead_letters")],
    )


def open_work(database_file: Path) -> int:
    """How much a running hub has still to do. Reads the live file, as any second reader may."""
    reader = sqlite3.connect(f"file:{database_file}?mode=ro", uri=True)
    try:
        rows = reader.execute(
            "SELECT (SELECT count(*) FROM fanouts) + (SELECT count(*) FROM retries) + (SELECT count(*) FROM pings) "
            "+ (SELECT count(*) FROM verifications)"
        ).fetchall()
    finally:
        reader.close()
    return int(rows[0][0])
