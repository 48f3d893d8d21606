"""`psph report RUN...`: the traces of runs as tables, plots and one HTML file."""

import argparse
import shutil
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from gateway.cli.errors import CommandError

if TYPE_CHECKING:
    from perf.pipeline.tables import DifferenceRow, ReceiverRow

DEFAULT_OUT = Path("report")
STEPS = 10
TOLERANCE = 5.0
NEEDS = "psph report needs Spark and matplotlib: install psph[analytics]"


def configure(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Analyse the traces of runs on Spark: latency by stage, domain, payload, hop and load, jitter, clock offsets,\n"
        "correlation with payload, rank tests, saturation, losses and duplicates. A run is a directory with a\n"
        "run.json and traces beside it, as a gateway with tracing on or a benchmark leaves it."
    )
    parser.epilog = (
        "examples:\n"
        "  psph bench traces --rows 100000 --run /tmp/run     make a run to look at\n"
        "  psph report /tmp/run --out /tmp/report             then open /tmp/report/report.html\n"
        "  psph report --compare before after                 is `after` slower than `before`? Exits with 1 if so\n"
        "  psph report --live /tmp/run                        a table that follows a run while it is traced\n"
        "  psph report RUN --keep rows --conf spark.local.dir=/big   rows for DuckDB, pandas or a notebook\n"
        "  psph report RUN --master spark://host:7077         on a cluster that sees the same files"
    )
    parser.add_argument(
        "runs", metavar="RUN", nargs="+", type=Path, help="directory of a run; those of one name are put together"
    )
    parser.add_argument(
        "--out", type=Path, default=DEFAULT_OUT, metavar="DIR", help=f"where the report goes; default: {DEFAULT_OUT}"
    )
    parser.add_argument("--master", default="local[*]", help="where Spark runs; default: local[*], inside this process")
    parser.add_argument("--memory", default="3g", help="heap of the driver; default: 3g")
    parser.add_argument(
        "--conf", metavar="NAME=VALUE", action="append", default=[], help="a setting of Spark; as often as needed"
    )
    parser.add_argument(
        "--keep", type=Path, metavar="DIR", help="keep the stitched rows, a row a latency, as Parquet in DIR"
    )
    parser.add_argument(
        "--matching", type=Path, metavar="FILE", help="result of `psph bench matching --out FILE` to plot"
    )
    how = parser.add_mutually_exclusive_group()
    how.add_argument(
        "--compare", action="store_true", help="two runs: exit with 1 when the second is significantly slower"
    )
    parser.add_argument(
        "--tolerance", type=float, default=TOLERANCE, metavar="PERCENT",
        help="with --compare: how much larger a median may be; in long runs any difference is significant; "
        f"default: {TOLERANCE:g}",
    )  # fmt: skip
    how.add_argument(
        "--live",
        action="store_true",
        help="follow one run (the directories of its processes): a table, until Ctrl-C",
    )
    parser.add_argument("--seconds", type=float, help="with --live: stop after so many seconds")


def run(args: argparse.Namespace) -> int:
    if args.compare and len(args.runs) != 2:
        raise CommandError(f"--compare wants two runs, not {len(args.runs)}")
    try:
        import matplotlib  # noqa: F401
        import pyarrow  # type: ignore[import-untyped] # noqa: F401
        import pyspark  # noqa: F401
    except ImportError as error:
        raise CommandError(f"{NEEDS} ({error.name} is missing)") from None
    from perf.java import NoJavaError
    from perf.report.bench_results import ResultsError
    from perf.traces.run import RunError

    try:
        return _live(args) if args.live else _report(args)
    except (NoJavaError, ResultsError, RunError) as error:
        raise CommandError(str(error)) from None


def _report(args: argparse.Namespace) -> int:
    from perf.bench.family import progress_bar
    from perf.pipeline.analysis import analyse
    from perf.pipeline.predictions import predict_runs
    from perf.pipeline.session import open_session
    from perf.report.bench_results import read_matching
    from perf.report.build import EXPLORER, build_report
    from perf.traces.run import load_run

    matching = read_matching(args.matching) if args.matching else []
    names = [load_run(directory).run for directory in args.runs]  # before Spark starts: mistakes are told at once
    if len({path.resolve() for path in args.runs}) != len(names) or (args.compare and len(set(names)) != len(names)):
        raise CommandError("the same run is given twice")
    settings = settings_of(args.conf)
    for option, folder in (("--out", args.out), ("--keep", args.keep)):
        try:
            if folder is not None:
                folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise CommandError(f"{option}: {folder}: {error.strerror}") from None
    if args.keep is not None and any(args.keep.iterdir()):
        raise CommandError(f"--keep: {args.keep} is not empty")
    with progress_bar("report", STEPS + 2) as tick:
        tick("starting Spark", 0)
        session = open_session(args.master, args.memory, settings)
        # On a cluster workers write the stitched rows, so they lie where the report does, which all of them see.
        work = args.keep or Path(tempfile.mkdtemp(prefix=".work-", dir=args.out))
        try:
            analysis = analyse(session, args.runs, work, tick)
            tick("predictions", 1)
            report = build_report(analysis, args.out, matching, predict_runs(session, args.runs))
        finally:
            if args.keep is None:
                shutil.rmtree(work, ignore_errors=True)
            session.stop()
    for line in report.says:
        print(line)
    for row in analysis.quality:
        print(f"{row.what}: {row.count:,}")
    print(f"report: {report.page}; to look around in: {args.out / EXPLORER}")
    if not args.compare:
        return 0
    worse = regressions(analysis.between_runs, args.tolerance)
    for one in worse:
        print(
            f"REGRESSION in {one.within}, {one.stage}: {one.measure} {one.first_ms:.3g} ms to {one.second_ms:.3g} ms "
            f"({one.low_ms:+.3g} to {one.high_ms:+.3g} ms)"
        )
    lost = more_lost(analysis.receivers, names)
    for line in lost:
        print(f"REGRESSION: {line}")
    return 1 if worse or lost else 0


def settings_of(pairs: Sequence[str]) -> dict[str, str]:
    settings = {}
    for pair in pairs:
        name, equals, value = pair.partition("=")
        if not equals or not name.startswith("spark."):
            raise CommandError(f"--conf: expected spark.NAME=VALUE, not {pair!r}")
        settings[name] = value
    return settings


def regressions(rows: "Sequence[DifferenceRow]", tolerance: float) -> "list[DifferenceRow]":
    """Where the second run is worse in any stage, percentile or variation: for certain, by more than `tolerance` %."""
    return [row for row in rows if row.certain and row.difference_ms > row.first_ms * tolerance / 100]


def more_lost(rows: "Sequence[ReceiverRow]", runs: Sequence[str]) -> list[str]:
    """Where the second run lost more than the first, with an interval of the difference of two shares on one side."""
    from perf.pipeline.statistics import share_difference

    totals = {
        run: (
            sum(row.missed for row in rows if row.run == run and row.subscriber is None),
            sum(row.expected for row in rows if row.run == run and row.subscriber is None),
        )
        for run in runs
    }
    (missed, of), (missed_then, of_then) = (totals[run] for run in runs[:2])
    if not of or not of_then:
        return []
    low, high = share_difference(missed, of, missed_then, of_then)
    if low <= 0:
        return []
    shares = f"{missed / of:.2%} of what receivers should have got, then {missed_then / of_then:.2%}"
    return [f"lost {shares} ({low:+.2%} to {high:+.2%})"]


def _live(args: argparse.Namespace) -> int:
    from perf.pipeline.live import follow
    from perf.pipeline.session import open_session
    from perf.traces.run import load_run

    names = {load_run(directory).run for directory in args.runs}
    if len(names) != 1:
        raise CommandError(f"--live follows one run, whose processes may have a directory each, not {len(names)} runs")
    session = open_session(args.master, args.memory, settings_of(args.conf))
    try:
        follow(session, args.runs, args.out, seconds=args.seconds)
    finally:
        session.stop()
    return 0
