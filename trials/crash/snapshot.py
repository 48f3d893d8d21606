"""What the store of a dead hub says: read from a copy, so that the hub itself has to recover the original.

The hub's own canary goes its way meanwhile. Nobody was promised anything about it, and a start forgets the canaries
before, so its rows are left out.
"""

import shutil
import sqlite3
import tempfile
from collections.abc import Callable
from pathlib import Path

from push_hub.hub import DATABASE_NAME
from storage import Database
from trials.crash.stored import StoredPublication, StoreSnapshot


def read_snapshot(data: Path, after_publication: int) -> StoreSnapshot:
    """Raises `StorageError` when the copy cannot be read at all."""
    with tempfile.TemporaryDirectory() as folder:
        for suffix in ("", "-wal"):
            source = data / (DATABASE_NAME + suffix)
            if source.exists():
                shutil.copyfile(source, Path(folder) / source.name)
        with Database.open(Path(folder) / DATABASE_NAME) as database:
            return _read(database.read, after_publication)


def _read(read: Callable[..., list[tuple[object, ...]]], after_publication: int) -> StoreSnapshot:
    integrity = "; ".join(str(row[0]) for row in read("PRAGMA integrity_check(5)"))
    broken = read("PRAGMA foreign_key_check")
    if broken:
        integrity += f"; {len(broken)} rows refer to nothing"
    if not read("SELECT 1 FROM sqlite_master WHERE name = 'canaries'"):
        # Killed while its tables were made for the first time: a whole version, but not the newest yet.
        return StoreSnapshot(integrity, {}, {}, set(), set(), [], {}, set(), [])

    def of_strangers(columns: str, table: str) -> list[tuple[object, ...]]:
        return read(f"SELECT {columns} FROM {table} WHERE topic NOT IN (SELECT topic FROM canaries)")  # noqa: S608 - own

    publications = "(SELECT topic, p.* FROM {} p JOIN publications ON publications.id = p.publication)"
    return StoreSnapshot(
        integrity,
        {(str(t), str(c)): int(str(n)) for n, t, c in of_strangers("id, topic, callback", "subscriptions")},
        {(str(t), str(c)): str(m) for m, t, c in of_strangers("mode, topic, callback", "verifications")},
        {str(topic) for (topic,) in of_strangers("topic", "pings")},
        {str(topic) for (topic,) in of_strangers("topic", "unwanted_pings")},
        [
            StoredPublication(*row)  # type: ignore[arg-type]  # the columns' types are the schema's
            for row in of_strangers(
                "id, topic, body, accepted_at",
                f"(SELECT * FROM publications WHERE id > {after_publication} ORDER BY id)",  # noqa: S608 - a number
            )
        ],
        {int(str(p)): int(str(at)) for p, at in of_strangers("publication, position", publications.format("fanouts"))},
        {
            (int(str(s)), int(str(p)))
            for s, p in of_strangers("subscription, publication", publications.format("retries"))
        },
        [(str(t), str(c)) for t, c in of_strangers("topic, callback", "dead_letters")],
    )


def open_work(database_file: Path) -> int:
    """How much a running hub has still to do. Reads the live file, as any second reader may."""
    reader = sqlite3.connect(f"file:{database_file}?mode=ro", uri=True)
    try:
        rows = reader.execute(
            "SELECT (SELECT count(*) FROM fanouts) + (SELECT count(*) FROM retries) + (SELECT count(*) FROM pings) "
            "+ (SELECT count(*) FROM verifications) "
            "+ (SELECT count(*) FROM unwanted_pings u JOIN subscriber_counts c ON c.topic = u.topic)"
        ).fetchall()
    finally:
        reader.close()
    return int(rows[0][0])
