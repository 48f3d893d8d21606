"""`psph bench workload KIND`: offer something to gateways and a network between them, and leave the traces of it."""

import argparse
import asyncio
import re
import signal
import tempfile
from contextlib import ExitStack
from functools import partial
from pathlib import Path

import uvloop

from perf.bench.family import GATEWAYS_ARE, Bar, BenchError, BenchOutcome, Row, Sense, progress_bar
from perf.workloads.kinds import FULL, QUICK, RunPlan, WorkloadKind, carry_out, plans
from perf.workloads.world import WorkloadError

SUITE = "suite"
MINUTES = 10.0
QUICK_MINUTES = 0.5
LONG = 15.0
"""Minutes of a soak of which it can be said whether it grows."""
FLAT = 0.05


class Workload:
    name = "workload"
    description = (
        "Offer publications to gateways (processes, as an operator runs them) with a PSIRP network between them, and\n"
        "trace every step of every publication. Open loop: publications are due at times that were fixed before, and\n"
        "their delay counts from then. KIND is one of\n\n"
        "  payload   287 to 1442 bytes: new subscribers (ProcessD, TotalPushD), then steady publications\n"
        "  load      rising load until it is not kept up with\n"
        "  fanout    1, 10, 100 (1,000) subscribers a topic\n"
        "  hops      subscribers 1, 3 and 8 links away\n"
        "  loss      links that lose 0, 2 and 10 % of frames\n"
        "  arrivals  the same rate steady, at random, in bursts\n"
        "  soak      one rate for --minutes\n"
        "  suite     payload, load, fanout, hops, loss and arrivals\n\n"
        "Each run is a directory below --run, for `psph report`. Ctrl-C ends it early and leaves what there is."
    )

    def configure(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument("kind", metavar="KIND", choices=[*WorkloadKind, SUITE], help="which workload")
        parser.add_argument("--run", type=Path, metavar="DIR", help="where runs are left; without it nothing is kept")
        parser.add_argument("--seed", type=int, default=1, help="of times and sizes; default: 1")
        parser.add_argument("--minutes", type=float, help=f"of a soak; default: {MINUTES:g}, quick: {QUICK_MINUTES:g}")
        parser.epilog = (
            "examples:\n"
            "  psph bench workload hops --quick --run /tmp/runs && psph report /tmp/runs/* --out /tmp/report\n"
            "  psph bench workload soak --minutes 60 --run /tmp/soak"
        )

    def run(self, options: argparse.Namespace) -> BenchOutcome:
        scale = QUICK if options.quick else FULL
        minutes = options.minutes if options.minutes is not None else QUICK_MINUTES if options.quick else MINUTES
        if not 0 < minutes <= 7 * 24 * 60:
            raise BenchError(f"--minutes {minutes:g}: expected more than 0, and a week at most")
        kinds = (
            [kind for kind in WorkloadKind if kind is not WorkloadKind.SOAK]
            if options.kind == SUITE
            else [WorkloadKind(options.kind)]
        )
        todo = [(kind, plan) for kind in kinds for plan in plans(kind, scale, minutes)]
        with ExitStack() as stack:
            kept = options.run
            if kept is None:
                kept = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="psph-runs-")))
            places = [kept / re.sub(r"[^0-9A-Za-z._-]", "", plan.variant) for _, plan in todo]
            for place in places:
                if place.exists() and any(place.iterdir()):
                    raise BenchError(f"--run: {place} is not empty; traces of two runs must not be mixed")
            rows, interrupted = uvloop.run(_all(todo, places, options.seed))
        if not rows:
            raise BenchError("interrupted before anything was measured")
        remarks = [
            f"{GATEWAYS_ARE}; requests per client and topic are raised to 100,000 a second",
            "delays count from when a publication was due to when its callback had it; 0 hops: same gateway",
            "MiB: resident memory of the gateway there, and its growth after the first 5 minutes (or a run's half)",
        ]
        bars = _growth_bars(rows) if options.kind == WorkloadKind.SOAK and minutes >= LONG else []
        if interrupted:
            remarks.append("interrupted: the last run is partial")
        if options.run is not None:
            remarks.append(f"next: psph report {options.run}/* --out report")
        parameters: Row = {"kind": options.kind, "seed": options.seed, "quick": options.quick, "partial": interrupted}
        return BenchOutcome(parameters, rows, bars, remarks)


def _growth_bars(rows: list[Row]) -> list[Bar]:
    """A part of what it takes, so that it says the same of small and large gateways."""
    return [
        Bar(f"growth an hour of the gateway at {row['hops']} hops / its memory", slope * 60 / most, Sense.AT_MOST, FLAT)
        for row in rows
        if isinstance(slope := row["MiB/min"], float) and isinstance(most := row["most MiB"], float)
    ]


async def _all(todo: list[tuple[WorkloadKind, RunPlan]], places: list[Path], seed: int) -> tuple[list[Row], bool]:
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGINT, stop.set)
    rows: list[Row] = []
    with progress_bar("workload", sum(plan.publications for _, plan in todo)) as tick:
        for (kind, plan), place in zip(todo, places, strict=True):
            if stop.is_set():
                break
            tick(plan.variant, 0)
            try:
                rows += await carry_out(plan, kind, place, seed, stop, partial(tick, plan.variant))
            except WorkloadError as error:
                raise BenchError(f"{plan.variant}: {error}") from None
    return rows, stop.is_set()


BENCHMARK = Workload()
