"""What lies in a run's directory, before anybody analyses it: which files can be read, and what is wrong with the rest.

Nothing is left out silently: every file gets a state, and the report lists those that are not plainly good.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from hashlib import blake2b
from pathlib import Path
from typing import Final

from perf.traces.formats import PART, SCHEMA_KEY, Format
from perf.traces.run import TRACES, Run, load_run, put_together
from perf.traces.schema import COLUMNS, OLDEST_VERSION, SCHEMA_VERSION, ColumnType, unseen

_ARROW_NAMES: Final = {
    ColumnType.TEXT: {"string", "large_string"},
    ColumnType.INTEGER: {"int64"},
    ColumnType.REAL: {"double"},
}
_READ_AT_ONCE: Final = 1 << 20
MOST_FILES: Final = 100_000


class FileState(StrEnum):
    """What a file is. Only the first four are read."""

    GOOD = "good"
    OLDER = "older schema"
    NEWER = "newer schema"
    LATE = "late: not in the list that the run ended with"
    CORRUPT = "corrupt"
    DUPLICATE = "duplicate of another file"
    UNFINISHED = "unfinished: its writer was cut short"
    MISSING = "missing: listed by the run, not there"
    STRANGE = "not a trace file"


READ: Final = (FileState.GOOD, FileState.OLDER, FileState.NEWER, FileState.LATE)


@dataclass(frozen=True, slots=True)
class InventoryFile:
    """`rows` is what the file says of itself; None where only reading it would tell (JSON lines)."""

    run: str
    path: Path
    state: FileState
    version: int
    rows: int | None
    remark: str = ""

    @property
    def form(self) -> Format:
        return Format(self.path.suffix[1:])


@dataclass(frozen=True, slots=True)
class Inventory:
    runs: tuple[Run, ...]
    directories: tuple[Path, ...]
    parts: tuple[Run, ...]
    """What each directory says of itself."""
    files: tuple[InventoryFile, ...]

    @property
    def readable(self) -> tuple[InventoryFile, ...]:
        return tuple(file for file in self.files if file.state in READ)

    @property
    def known_rows(self) -> int:
        """A guess of the size of the work: what Parquet says, and JSON lines by their length."""
        return sum(
            file.rows if file.rows is not None else file.path.stat().st_size // 300 + 1 for file in self.readable
        )


def take_inventory(directories: Sequence[Path]) -> Inventory:
    """Look at every file of every run; raises RunError for a directory that is no run.

    Directories of the same run, as several gateways leave them, are one run.
    """
    parts = [load_run(directory) for directory in directories]
    files = [file for part, directory in zip(parts, directories, strict=True) for file in _files_of(part, directory)]
    by_name: dict[str, list[Run]] = {}
    for part in parts:
        by_name.setdefault(part.run, []).append(part)
    runs = tuple(put_together(same) for same in by_name.values())
    return Inventory(runs, tuple(directories), tuple(parts), tuple(_mark_duplicates(files)))


def _files_of(run: Run, directory: Path) -> Iterator[InventoryFile]:
    listed = {file.name for file in run.files}
    present = sorted(path for path in (directory / TRACES).glob("*") if path.is_file())[:MOST_FILES]
    for path in present:
        if path.name.endswith(PART):
            yield InventoryFile(run.run, path, FileState.UNFINISHED, 0, None)
        elif path.suffix == ".parquet":
            yield _look_at_parquet(run, path, late=run.ended_ns is not None and path.name not in listed)
        elif path.suffix == ".jsonl":
            late = run.ended_ns is not None and path.name not in listed
            yield InventoryFile(run.run, path, FileState.LATE if late else FileState.GOOD, SCHEMA_VERSION, None)
        elif not path.name.startswith("."):
            yield InventoryFile(run.run, path, FileState.STRANGE, 0, None)
    names = {path.name for path in present}
    for name in sorted(listed - names):
        yield InventoryFile(run.run, directory / TRACES / name, FileState.MISSING, 0, None)


def _look_at_parquet(run: Run, path: Path, *, late: bool) -> InventoryFile:
    import pyarrow as pa  # type: ignore[import-untyped]
    import pyarrow.parquet as pq  # type: ignore[import-untyped]

    try:
        metadata = pq.read_metadata(path)
        schema = metadata.schema.to_arrow_schema()
        version = int((schema.metadata or {}).get(SCHEMA_KEY, b"0"))
    except (OSError, ValueError, pa.ArrowException) as error:
        return InventoryFile(run.run, path, FileState.CORRUPT, 0, None, str(error).splitlines()[0][:200])
    for column in COLUMNS:
        if column.since > version:
            continue
        place = schema.get_field_index(column.name)
        if place < 0 or str(schema.field(place).type) not in _ARROW_NAMES[column.kind]:
            return InventoryFile(
                run.run, path, FileState.CORRUPT, version, None, f"column {column.name} is not as it should be"
            )
    state = FileState.LATE if late else FileState.GOOD
    if version < OLDEST_VERSION:
        return InventoryFile(run.run, path, FileState.CORRUPT, version, None, "it does not say which schema it has")
    if version != SCHEMA_VERSION:
        state = FileState.OLDER if version < SCHEMA_VERSION else FileState.NEWER
    return InventoryFile(run.run, path, state, version, metadata.num_rows, unseen(version))


def _mark_duplicates(files: Sequence[InventoryFile]) -> Iterator[InventoryFile]:
    """Files of the same run with the same bytes: the first counts. Only files of equal size are read for that."""
    sizes: dict[tuple[str, int], list[InventoryFile]] = {}
    for file in files:
        if file.state in READ:
            sizes.setdefault((file.run, file.path.stat().st_size), []).append(file)
    twins = {file.path for group in sizes.values() if len(group) > 1 for file in group}
    seen: dict[tuple[str, bytes], Path] = {}
    # A late copy is the copy, whatever it is called.
    for file in sorted(files, key=lambda file: (file.state is FileState.LATE, file.path)):
        if file.path in twins:
            first = seen.setdefault((file.run, _digest(file.path)), file.path)
            if first != file.path:
                yield InventoryFile(
                    file.run, file.path, FileState.DUPLICATE, file.version, file.rows, f"as {first.name}"
                )
                continue
        yield file


def _digest(path: Path) -> bytes:
    digest = blake2b(digest_size=16)
    with path.open("rb") as stream:
        while piece := stream.read(_READ_AT_ONCE):
            digest.update(piece)
    return digest.digest()


def broken_inside(inventory: Inventory) -> tuple[Path, ...]:
    """Parquet files whose footers are fine and whose pages are not. Reads everything: for when rows are missing."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    broken = []
    for file in inventory.readable:
        if file.form is Format.PARQUET:
            try:
                with pq.ParquetFile(file.path, page_checksum_verification=True) as opened:
                    for batch in opened.iter_batches():
                        del batch
            except (OSError, ValueError, pa.ArrowException):
                broken.append(file.path)
    return tuple(broken)
