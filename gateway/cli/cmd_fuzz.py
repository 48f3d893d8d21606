"""`psph fuzz`: feed hostile bytes to everything that takes bytes, and count what each of them says."""

import argparse
import json
import random
import tempfile
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console
from rich.table import Table

from gateway.cli.errors import CommandError
from perf.bench.family import progress_bar

if TYPE_CHECKING:  # importing the packet tools takes scapy, which only this command needs
    from collections.abc import Iterator

    from psirp_stack.tools.fuzz import FuzzReport, Target

DEFAULT_FRAMES = 1_000_000


def configure(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Give mutated frames to the parsers: changed bytes, cuts, splices and noise. Every frame is counted under a\n"
        "reason for every target. Ends with 1 when a target raised an exception, when codec and forwarder disagree\n"
        "about a frame, or when memory grew.\n\n"
        "wire        frames of the data plane, from scapy's fuzz(): codec and reference forwarder\n"
        "control     payloads of the control plane: messages, courier, link state, sealed frames, topology manager\n"
        "node        whole nodes of a working network: everything that arrives by a link, transport included\n"
        "attachment  what applications and nodes say to each other"
    )
    parser.epilog = """\
examples:
  psph fuzz wire                               a million frames
  psph fuzz wire --frames 20000 --seed 7       a short run, repeatable
  psph fuzz wire --target codec                only the codec, which is the faster part
  psph fuzz node --frames 50000"""
    parser.add_argument("what", choices=["wire", "control", "node", "attachment"], help="what to fuzz")
    parser.add_argument(
        "--frames", type=int, default=DEFAULT_FRAMES, metavar="N", help=f"how many (default {DEFAULT_FRAMES:,})"
    )
    parser.add_argument("--seed", type=int, default=0, metavar="S", help="another seed gives other frames (default 0)")
    parser.add_argument(
        "--target", action="append", metavar="NAME", help="only this one, named as in the table; may be repeated"
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of a table")


def run(args: argparse.Namespace) -> int:
    if args.frames < 1:
        raise CommandError(f"--frames takes a number from 1 up, not {args.frames}")
    try:
        from psirp_stack.tools.fuzz import fuzz
    except ImportError as error:
        raise CommandError(f"{error}: install the packet tools (psph[tools])") from error
    with ExitStack() as stack:
        targets, source = _targets(args.what, args.seed, stack)
        for name in args.target or ():
            if name not in targets:
                raise CommandError(f"--target {name}: `{args.what}` has {', '.join(targets)}")
        chosen = {name: target for name, target in targets.items() if not args.target or name in args.target}
        with progress_bar("fuzzing", args.frames) as tick:
            report = fuzz(chosen, args.frames, args.seed, lambda done: tick("frames", done), source)
    if args.json:
        print(json.dumps(as_document(report), indent=2))
    else:
        show(report)
    return 0 if report.passed else 1


def _targets(what: str, seed: int, stack: ExitStack) -> "tuple[dict[str, Target], Iterator[bytes] | None]":
    """The targets of one kind, and where their bytes come from; None for the frames that `fuzz` makes itself."""
    from psirp_stack.tools import fuzz, fuzz_control, fuzz_node

    rng = random.Random(seed)  # noqa: S311  # repeatable on purpose
    match what:
        case "control":
            return fuzz_control.control_targets(rng), fuzz_control.hostile_payloads(rng)
        case "attachment":
            return fuzz_node.attachment_targets(), fuzz_node.spoilt(fuzz_node.attachment_seeds(), rng)
        case "node":
            folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="psph-fuzz-"))
            network = fuzz_node.FuzzedNetwork(Path(folder), seed)
            stack.callback(network.close)
            targets = {name: network.target(name) for name in ("n0", "n1", "n2")}
            targets["application"] = network.application()
            return targets, fuzz_node.spoilt([*network.seeds, *fuzz_node.attachment_seeds() * 2], rng)
        case _:
            return {"codec": fuzz.codec_target, "reference": fuzz.reference_target()}, None


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
