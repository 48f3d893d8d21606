"""`psph fuzz`: feed hostile frames to codec and forwarder, or hostile requests to a hub, and count what comes of it."""

import argparse
import asyncio
import json
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console
from rich.table import Table

from gateway.cli.errors import CommandError
from perf.bench.family import progress_bar
from trials.cli.fuzz_psirp import DESCRIPTION, KINDS, fuzz_psirp

if TYPE_CHECKING:  # importing the packet tools takes scapy, which only this command needs
    from trials.fuzz.hub import HubFuzzReport
    from trials.fuzz.wire import FuzzReport

DEFAULT_FRAMES = 1_000_000
DEFAULT_REQUESTS = 50_000
TARGETS = ("codec", "reference", "forwarder")


def configure(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Give mutated frames to codec and forwarders: seeds from scapy's fuzz() and, where it is installed, from\n"
        "hypothesis; then changed bytes, cuts, splices and noise. Every frame is counted under a reason for every\n"
        "target. Ends with 1 when a target raised an exception, when codec and forwarder disagree about a frame, when\n"
        "the fast forwarder decides otherwise than the reference, or when memory grew.\n\n"
        "For the hub: raw hostile requests over loopback to a hub made for the run, which connects to nobody. Ends\n"
        "with 1 when one was answered with 5xx or not at all, stored anything without being accepted, or memory grew."
    )
    parser.epilog = """\
examples:
  psph fuzz wire                               a million frames
  psph fuzz wire --frames 20000 --seed 7       a short run, repeatable
  psph fuzz wire --target codec                only the codec, which is the faster part
  psph fuzz hub                                fifty thousand requests, a few minutes
  psph fuzz hub --requests 2000 --seed 7       a short run, repeatable"""
    parser.epilog = DESCRIPTION + parser.epilog + "\n  psph fuzz node --frames 50000"
    parser.add_argument("what", choices=["wire", "hub", *KINDS], help="what to fuzz")
    parser.add_argument(
        "--frames", type=int, default=DEFAULT_FRAMES, metavar="N", help=f"how many (default {DEFAULT_FRAMES:,})"
    )
    parser.add_argument(
        "--requests",
        type=int,
        default=DEFAULT_REQUESTS,
        metavar="N",
        help=f"for the hub: how many (default {DEFAULT_REQUESTS:,})",
    )
    parser.add_argument("--seed", type=int, default=0, metavar="S", help="another seed gives other frames (default 0)")
    parser.add_argument("--target", action="append", choices=TARGETS, help="only this one; may be repeated")
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of a table")


def run(args: argparse.Namespace) -> int:
    if args.what == "hub":
        return _run_hub(args)
    if args.what in KINDS:
        return _said(fuzz_psirp(args), args)
    if args.frames < 1:
        raise CommandError(f"--frames takes a number from 1 up, not {args.frames}")
    try:
        from trials.fuzz.wire import codec_target, fast_target, fuzz, reference_target
    except ImportError as error:
        raise CommandError(f"{error}: install the packet tools (psph[tools])") from error
    targets = {"codec": codec_target, "reference": reference_target(), "forwarder": fast_target()}
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


def _run_hub(args: argparse.Namespace) -> int:
    if args.requests < 1:
        raise CommandError(f"--requests takes a number from 1 up, not {args.requests}")
    from trials.fuzz.hub import fuzz_hub

    with tempfile.TemporaryDirectory() as directory, progress_bar("fuzzing", args.requests) as tick:
        run = fuzz_hub(Path(directory), args.requests, args.seed, lambda done: tick("requests", done))
        report = asyncio.run(run)
    if args.json:
        print(json.dumps(hub_document(report), indent=2))
    else:
        show_hub(report)
    return 0 if report.passed else 1


def hub_document(report: "HubFuzzReport") -> dict[str, object]:
    return {
        "seed": report.seed,
        "requests": report.requests,
        "outcomes": dict(report.outcomes.most_common()),
        "failed": report.failed,
        "failures": [{"reason": one.reason, "request": one.request.hex()} for one in report.failures],
        "stored_wrongly": report.stored_wrongly,
        "memory_before": report.memory_before,
        "memory_after": report.memory_after,
        "memory_flat": report.memory_flat,
        "passed": report.passed,
    }


def show_hub(report: "HubFuzzReport") -> None:
    table = Table(title=f"{report.requests:,} requests, seed {report.seed}")
    table.add_column("answer")
    table.add_column("requests", justify="right")
    for outcome, count in report.outcomes.most_common():
        table.add_row(outcome, f"{count:,}")
    console = Console()
    console.print(table)
    for failure in report.failures:
        console.print(f"FAILED {failure.reason}\n  {failure.request!r}", markup=False)
    for row in report.stored_wrongly:
        console.print(f"STORED without being accepted: {row}", markup=False)
    before, after = report.memory_before / 2**20, report.memory_after / 2**20
    flat = "flat" if report.memory_flat else "GROWN"
    console.print(f"memory {before:.1f} MiB after warming up, {after:.1f} MiB at the end: {flat}")
    console.print(
        f"{report.failed} requests got a wrong answer, {len(report.stored_wrongly)} rows stored wrongly",
        highlight=False,
    )


def as_document(report: "FuzzReport") -> dict[str, object]:
    return {
        "seed": report.seed,
        "frames": report.frames,
        "hypothesis": report.hypothesis,
        "seconds": round(report.seconds, 1),
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
    console.print(
        f"memory {before:.1f} MiB after warming up, {after:.1f} MiB at the end: {flat}; {report.seconds:.0f} s"
    )
    if not report.hypothesis:
        console.print("hypothesis is not installed: its frames were left out")
    console.print(f"{report.failed} frames raised an exception or broke a rule", highlight=False)
