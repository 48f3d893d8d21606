"""`psph bench NAME`: run one benchmark of the family in `perf.bench`."""

import argparse
import json
import sys
import time
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path

from gateway import __version__
from gateway.cli.errors import CommandError
from perf.bench import BENCHMARKS, load
from perf.bench.family import BenchError, Benchmark, BenchOutcome, unit_of
from perf.bench.table import print_outcome
from perf.traces.run import software_version, this_machine


def configure(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Run one benchmark. Speeds are ratios to something measured in the same run; each benchmark states its\n"
        "bars (bounds it should keep) and says whether they hold. `psph bench NAME --help` explains one."
    )
    width = max(map(len, BENCHMARKS))
    listed = (f"  {name:<{width}}  {text}" for name, text in sorted(BENCHMARKS.items()))
    parser.epilog = "\n".join(["benchmarks:", *listed, "", "example:", "  psph bench matching --quick --json"])
    parser.add_argument("name", metavar="NAME", choices=sorted(BENCHMARKS), help="which benchmark")
    parser.add_argument("arguments", nargs=argparse.REMAINDER, help=argparse.SUPPRESS)


def run(args: argparse.Namespace) -> int:
    benchmark = load(args.name)
    options = benchmark_parser(benchmark).parse_args(args.arguments)
    if options.out is not None and not options.out.parent.is_dir():
        raise CommandError(f"--out: the directory {options.out.parent} does not exist")
    begun, started = time.time(), time.monotonic()
    try:
        outcome = benchmark.run(options)
    except BenchError as error:
        raise CommandError(str(error)) from None
    document = as_document(benchmark.name, outcome, begun, time.monotonic() - started)
    if options.out is not None:
        options.out.write_text(json.dumps(document, indent=2) + "\n", encoding="utf-8")
    if options.json:
        json.dump(document, sys.stdout, indent=2)
        print()
    else:
        print_outcome(benchmark.name, outcome)
    return 1 if options.strict and not all(bar.holds for bar in outcome.bars) else 0


def benchmark_parser(benchmark: Benchmark) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog=f"psph bench {benchmark.name}",
        description=benchmark.description,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--quick", action="store_true", help="a smaller run, under 45 seconds")
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of a table")
    parser.add_argument("--strict", action="store_true", help="exit with 1 when a bar does not hold")
    parser.add_argument("--out", type=Path, metavar="FILE", help="write the JSON object to FILE too")
    benchmark.configure(parser)
    return parser


def as_document(name: str, outcome: BenchOutcome, begun: float, seconds: float) -> dict[str, object]:
    """Everything that a figure depends on goes with it."""
    columns = outcome.results[0] if outcome.results else {}
    return {
        "bench": name,
        "version": __version__,
        "commit": software_version(),
        "machine": asdict(this_machine()),
        "begun": datetime.fromtimestamp(begun, UTC).isoformat(timespec="seconds"),
        "seconds": round(seconds, 1),
        "parameters": outcome.parameters,
        "units": {column: unit for column in columns if (unit := unit_of(column)) is not None},
        "results": outcome.results,
        "bars": [
            {
                "name": bar.label, "value": bar.value, "interval": bar.interval, "bound": bar.bound,
                "holds": bar.holds,
            }
            for bar in outcome.bars
        ],
        "remarks": list(outcome.remarks),
    }  # fmt: skip
