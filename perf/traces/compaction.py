"""Many small files of a run made into few, without losing or doubling a record, whenever it is cut short.

What follows each other in the files of one process is put together; a file that cannot be read stays as it is, in its
place, so that the hole it leaves stays where it was. The new folder is made beside the old one and takes its place by
two renames; a compaction that was cut short between them is finished, or undone, by the next one.
"""

import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from pathlib import Path
from typing import Final

from perf.traces.coverage import process_of
from perf.traces.files import READ, FileState, InventoryFile, take_inventory
from perf.traces.formats import Format, arrow_schema
from perf.traces.run import TRACES, RunError, WrittenFile, load_run, save_run
from storage.private import make_private_folder

FRESH: Final = f"{TRACES}.new"
BEFORE: Final = f"{TRACES}.before"
ROWS_A_FILE: Final = 1_000_000
ROWS_AT_ONCE: Final = 65_536


@dataclass(frozen=True, slots=True)
class Compacted:
    files_before: int
    files_after: int
    rows: int


def compact(
    directory: Path, rows_a_file: int = ROWS_A_FILE, tick: Callable[[int], None] = lambda rows: None
) -> Compacted:
    """Raises RunError for a run that is still written. Needs pyarrow."""
    finish(directory)
    run = load_run(directory)
    if run.ended_ns is None:
        raise RunError(f"{directory}: the run has not ended; a file that is still to come would be missed")
    files = [file for file in take_inventory([directory]).files if file.state is not FileState.MISSING]
    fresh = directory / FRESH
    if fresh.exists():
        shutil.rmtree(fresh)
    make_private_folder(fresh)
    written: list[WrittenFile] = []
    rows = 0
    for group in _groups(files, rows_a_file):
        name = group[0].path.name
        if len(group) == 1:
            (fresh / name).hardlink_to(group[0].path)
        else:
            _merge([file.path for file in group], fresh / name)
        count = sum(file.rows or 0 for file in group)
        rows += count
        tick(count)
        if group[0].state in READ:
            listed = {file.name: file.rows for file in run.files}
            written.append(WrittenFile(name, count or listed.get(name, 0)))
    missing = tuple(file for file in run.files if not (directory / TRACES / file.name).exists())
    (directory / TRACES).rename(directory / BEFORE)
    fresh.rename(directory / TRACES)
    save_run(directory, replace(run, files=(*written, *missing)))
    shutil.rmtree(directory / BEFORE)
    return Compacted(len(files), sum(1 for _ in (directory / TRACES).iterdir()), rows)


def finish(directory: Path) -> None:
    """What a compaction that was cut short left: the files before are there until those after are all in place."""
    before, traces = directory / BEFORE, directory / TRACES
    if not before.exists():
        return
    if traces.exists():
        # Both renames were done, but perhaps `run.json` was not written: what it lists would be missed.
        shutil.rmtree(traces)
    before.rename(traces)


def _groups(files: Sequence[InventoryFile], most: int) -> list[list[InventoryFile]]:
    """In the order of their numbers: readable Parquet files of the present schema that follow each other."""
    ordered = sorted(files, key=lambda file: (process_of(file.path), file.path.name.lstrip(".")))
    groups: list[list[InventoryFile]] = []
    for _, of_process in groupby(ordered, key=lambda file: process_of(file.path)):
        size, last = 0, False
        for file in of_process:
            fits = file.state is FileState.GOOD and file.form is Format.PARQUET
            if fits and last and size + (file.rows or 0) <= most:
                groups[-1].append(file)
                size += file.rows or 0
            else:
                groups.append([file])
                size = file.rows or 0
            last = fits
    return groups


def _merge(paths: Sequence[Path], to: Path) -> None:
    import pyarrow as pa  # type: ignore[import-untyped]
    import pyarrow.parquet as pq  # type: ignore[import-untyped]

    schema = arrow_schema()
    with pq.ParquetWriter(
        to, schema, compression="zstd", write_statistics=["wall_ns"], write_page_checksum=True
    ) as writer:
        for path in paths:
            with pq.ParquetFile(path, page_checksum_verification=True) as file:
                for batch in file.iter_batches(batch_size=ROWS_AT_ONCE):
                    writer.write_batch(pa.RecordBatch.from_arrays(batch.columns, schema=schema))
