"""`psph traces ...`: runs of traces as files: put together, given to other tools, taken from them."""

import argparse
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from gateway.cli.errors import CommandError

NEEDS = "psph traces needs pyarrow: install psph[analytics]"


def configure(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Look after the files of traced runs. A gateway closes a file every other second, so that who follows it sees\n"
        "soon what happens: `compact` makes few of them afterwards. `to-otlp` and `from-otlp` exchange spans with\n"
        "other tools, as lines of OTLP/JSON: what the file exporter of an OpenTelemetry collector writes."
    )
    parser.epilog = (
        "examples:\n"
        "  psph traces compact var/traces/gate-20260101T000000Z-1\n"
        "  psph traces to-otlp run --out spans.jsonl\n"
        "  psph traces from-otlp spans.jsonl --run imported && psph report imported"
    )
    actions = parser.add_subparsers(dest="action", required=True, metavar="ACTION")
    one = actions.add_parser("compact", help="make few files of many; the records stay the same")
    one.add_argument("runs", nargs="+", type=Path, metavar="RUN", help="directory of a run that has ended")
    one.add_argument("--rows", type=int, default=1_000_000, help="at most so many in a file; default: 1,000,000")
    out = actions.add_parser("to-otlp", help="write records as OpenTelemetry spans")
    out.add_argument("run", type=Path, metavar="RUN", help="directory of a run")
    out.add_argument("--out", type=Path, metavar="FILE", help="default: standard output")
    into = actions.add_parser("from-otlp", help="make a run of OpenTelemetry spans")
    into.add_argument("file", type=Path, metavar="FILE", help="lines of OTLP/JSON")
    into.add_argument("--run", type=Path, required=True, metavar="DIR", help="the run's directory, new or empty")


def run(args: argparse.Namespace) -> int:
    try:
        import pyarrow  # type: ignore[import-untyped] # noqa: F401
    except ImportError:
        raise CommandError(NEEDS) from None
    from perf.traces.run import RunError
    from storage.private import PrivateFileError

    try:
        return {"compact": _compact, "to-otlp": _to_otlp, "from-otlp": _from_otlp}[args.action](args)
    except (RunError, PrivateFileError) as error:
        raise CommandError(str(error)) from None
    except OSError as error:
        raise CommandError(f"{error.filename}: {error.strerror}") from None


def _compact(args: argparse.Namespace) -> int:
    from perf.bench.family import progress_bar
    from perf.traces.compaction import compact
    from perf.traces.run import load_run

    if args.rows < 1:
        raise CommandError(f"--rows is {args.rows}; it must be at least 1")
    for directory in args.runs:
        with progress_bar("compact", max(load_run(directory).written, 1)) as tick:
            done = compact(directory, args.rows, lambda rows: tick("rows", rows))
        print(f"{directory}: {done.rows:,} rows in {done.files_after:,} files, {done.files_before:,} before")
    return 0


def _to_otlp(args: argparse.Namespace) -> int:
    from perf.traces.files import take_inventory
    from perf.traces.otlp import as_lines

    inventory = take_inventory([args.run])

    def rows() -> Iterator[dict[str, Any]]:
        import msgspec
        import pyarrow.parquet as pq  # type: ignore[import-untyped]

        for file in inventory.readable:
            if file.path.suffix == ".parquet":
                with pq.ParquetFile(file.path) as opened:
                    for batch in opened.iter_batches():
                        yield from batch.to_pylist()
            else:
                with file.path.open("rb") as stream:
                    for line in stream:
                        yield msgspec.json.decode(line)

    stream = sys.stdout.buffer if args.out is None else args.out.open("wb")
    try:
        for line in as_lines(rows()):
            stream.write(line)
    finally:
        if args.out is not None:
            stream.close()
    return 0


def _from_otlp(args: argparse.Namespace) -> int:
    from perf.traces.blocks import block_of_records
    from perf.traces.otlp import SpansRead, records_in
    from perf.traces.run import new_run, software_version
    from perf.traces.writer import TraceWriter

    if args.run.exists() and any(args.run.iterdir()):
        raise CommandError(f"--run: {args.run} is not empty; traces of two runs must not be mixed")
    found = SpansRead()
    run = new_run("otlp", software_version(), {"file": args.file.name}, name=args.run.name)
    with args.file.open("rb") as stream, TraceWriter(args.run, run) as writer:
        put = writer.channel(block_of_records, bound=1 << 40).put
        for record in records_in(stream, run.run, found):
            put(record)
    if not found.records:
        raise CommandError(f"{args.file}: no span in it ({found.unusable:,} lines that are no OTLP/JSON)")
    print(f"{args.run}: {found.records:,} records, {found.stays:,} of them stays made of others' spans")
    if found.unusable:
        print(f"{found.unusable:,} lines or spans could not be used")
    return 0
