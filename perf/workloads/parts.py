"""One run out of what several processes traced: their files go into its directory, their counts into its `run.json`."""

from dataclasses import replace
from pathlib import Path
from typing import Final

from perf.traces.run import TRACES, Run, RunError, WrittenFile, load_run, save_run
from perf.traces.writer import FILES

PARTS: Final = "parts"


def merge_parts(directory: Path) -> Run:
    """Take over the finished files of every part of the same run. What another run left there is not touched."""
    run = load_run(directory)
    files = list(run.files)
    gaps = list(run.gaps)
    written, dropped, removed = run.written, run.dropped, run.removed
    for part in sorted(path for path in (directory / PARTS).glob("*") if path.is_dir()):
        try:
            theirs = load_run(part)
        except RunError:
            continue
        if theirs.run != run.run:
            continue
        rows = {file.name: file.rows for file in theirs.files}
        for file in sorted((part / TRACES).iterdir()):
            if not file.name.startswith("."):
                name = f"{part.name}-{file.name}"
                file.rename(directory / TRACES / name)
                files.append(WrittenFile(name, rows.get(file.name, 0)))
        gaps += [replace(gap, process=f"{part.name}-{FILES}") for gap in theirs.gaps]
        written, dropped, removed = written + theirs.written, dropped + theirs.dropped, removed + theirs.removed
        _remove(part)
    if (directory / PARTS).is_dir() and not any((directory / PARTS).iterdir()):
        (directory / PARTS).rmdir()
    run = replace(run, files=tuple(files), gaps=tuple(gaps), written=written, dropped=dropped, removed=removed)
    save_run(directory, run)
    return run


def _remove(part: Path) -> None:
    """Only what a trace writer leaves; a directory with anything else in it stays."""
    (part / "run.json").unlink(missing_ok=True)
    for folder in (part / TRACES, part):
        if not any(folder.iterdir()):
            folder.rmdir()
