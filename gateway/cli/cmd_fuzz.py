"""`psph fuzz`: feed hostile frames to codec and forwarder, and count what each of them says."""

import argparse
import json
from typing import TYPE_CHECKING

from rich.console import Console
from rich.table import Table

from gateway.cli.errors import CommandError
from gateway.cli.fuzz_psirp import DESCRIPTION, KINDS, fuzz_psirp
from perf.bench.family import progress_bar

if TYPE_CHECKING:  # importing the packet tools takes scapy, which only this command needs
    from psirp_stack.tools.fuzz import FuzzReport

DEFAULT_FRAMES = 1_000_000
TARGETS = ("codec", "reference")


def configure(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Give mutated frames to the parsers: seeds from scapy's fuzz(), then changed bytes, cuts, splices and noise.\n"
        "Every frame is counted under a reason for every target. Ends with 1 when a target raised an exception, when\n"
        "codec and forwarder disagree about a frame, or when memory grew."
    )
    parser.epilog = """\
examples:
  psph fuzz wire                               a million frames
  psph fuzz wire --frames 20000 --seed 7       a short run, repeatable
  psph fuzz wire --target codec                only the codec, which is the faster part"""
    parser.epilog = DESCRIPTION + parser.epilog + "\n  psph fuzz node --frames 50000"
    parser.add_argument("what", choices=["wire", *KINDS], help="what to fuzz")
    parser.add_argument(
        "--frames", type=int, default=DEFAULT_FRAMES, metavar="N", help=f"how many (default {DEFAULT_FRAMES:,})"
    )
    parser.add_argument("--seed", type=int, default=0, metavar="S", help="another seed gives other frames (default 0)")
    parser.add_argument("--target", action="append", choices=TARGETS, help="only this one; may be repeated")
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of a table")


def run(args: argparse.Namespace) -> int:
    if args.what in KINDS:
        return _said(fuzz_psirp(args), args)
    if args.frames < 1:
        raise CommandError(f"--frames takes a number from 1 up, not {args.frames}")
    try:
        from psirp_stack.tools.fuzz import codec_target, fuzz, reference_target
    except ImportError as error:
        raise CommandError(f"{error}: install the packet tools (psph[tools])") from error
    targets = {"codec": codec_target, "reference": reference_target()}
    chosen = {name: target for name, target in targets.items() if not args.target or name in args.target}
    with progress_bar("fuzzing", args.frames) as tick:
        report = fuzz(chosen, args.frames, args.seed, lambda done: tick("frames", done))
    return _said(report, args)


def _said(report: "FuzzReport", args: argparse.Namespace) -> int:
    if args.json:
        print(json.dumps(as_document(report), indent=2))
    else:
        show(report)
    return 0 if report.passed else 1


def as_document(report: "FuzzReport") -> dict[str, object]:
    return {
        "seed": report.seed,
        "frames": report.frames,
        "reasons": {name: dict(counts.most_common()) for name, counts in report.reasons.items()},
        "failed": report.failed,
        "failures": [
            {"target": failure.target, "error": failure.error, "frame": failure.frame.hex()}
            for failure in report.failures
        ],
        "memory_before": report.memory_before,
        "memory_after": report.memory_after,
        "memory_flat": report.memory_flat,
        "every_frame_counted": report.every_frame_counted,
        "passed": report.passed,
    }


def show(report: "FuzzReport") -> None:
    table = Table(title=f"{report.frames:,} frames, seed {report.seed}")
    table.add_column("target")
    table.add_column("reason")
    table.add_column("frames", justify="right")
    for name, counts in report.reasons.items():
        for reason, count in counts.most_common():
            table.add_row(name, reason, f"{count:,}")
        table.add_section()
    console = Console()
    console.print(table)
    for failure in report.failures:
        console.print(f"FAILED {failure.target}: {failure.error}\n  {failure.frame.hex()}", markup=False)
    before, after = report.memory_before / 2**20, report.memory_after / 2**20
    flat = "flat" if report.memory_flat else "GROWN"
    console.print(f"memory {before:.1f} MiB after warming up, {after:.1f} MiB at the end: {flat}")
    console.print(f"{report.failed} frames raised an exception or broke a rule", highlight=False)
