"""The workloads: which runs each is made of, and what each run offers.

A run is one setting of the world; what varies within a run (load, payload, hops) is in its traces, what cannot (loss,
width, shape of arrivals) makes a run of its own, so that a report can compare them.
"""

import asyncio
import random
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from enum import StrEnum
from pathlib import Path
from typing import Final
from uuid import uuid4

from perf.bench.family import Row, percentile
from perf.traces.run import Parameter, Run, new_run, software_version
from perf.workloads.arrivals import ArrivalShape, ArrivalStep, schedule
from perf.workloads.generator import offer
from perf.workloads.growth import GrowthWatch
from perf.workloads.world import SMALLEST, Setting, WorkloadError, WorkloadWorld

PAYLOADS: Final = (287, 392, 497, 602, 707, 812, 917, 1022, 1127, 1232, 1337, 1442)
"""From the smallest Atom document to the largest of the prototype's experiment."""
KEEPS_UP: Final = 0.95
"""Loads rise until less than this share of a step arrives by its end and the grace."""
IN_TIME: Final = 1.0
"""Seconds. Or until the median delay says that a queue grows."""
WARM_UP_JOINS: Final = 5
SOAK_RATE: Final = 60.0


class WorkloadKind(StrEnum):
    PAYLOAD = "payload"
    LOAD = "load"
    FANOUT = "fanout"
    HOPS = "hops"
    LOSS = "loss"
    ARRIVALS = "arrivals"
    SOAK = "soak"


@dataclass(frozen=True, slots=True)
class RunPlan:
    """One run. With `joins`, new subscribers one after the other instead of a schedule."""

    variant: str
    setting: Setting
    steps: tuple[ArrivalStep, ...] = ()
    sizes: tuple[int, ...] = (SMALLEST,)
    joins: int = 0
    until_saturated: bool = False

    @property
    def publications(self) -> int:
        """About how many, for a progress bar."""
        return self.joins * len(self.sizes) + sum(round(step.rate * step.seconds) for step in self.steps)


@dataclass(frozen=True, slots=True)
class WorkloadScale:
    """How much of each workload."""

    seconds: float
    rate: float
    joins: int
    loads: tuple[float, ...]
    widths: tuple[int, ...]
    hops: tuple[int, ...]
    losses: tuple[float, ...]


QUICK: Final = WorkloadScale(6.0, 25.0, 10, (25, 50, 100, 200, 400, 800), (1, 10, 100), (1, 3, 8), (0.0, 0.02, 0.1))
FULL: Final = WorkloadScale(
    20.0, 40.0, 40, (25, 50, 75, 100, 150, 200, 300, 400, 600, 800), (1, 10, 100, 1000), (1, 2, 4, 8),
    (0.0, 0.01, 0.02, 0.05, 0.1, 0.2),
)  # fmt: skip


def plans(kind: WorkloadKind, scale: WorkloadScale, minutes: float) -> list[RunPlan]:
    usual = (ArrivalStep(scale.rate, scale.seconds, ArrivalShape.POISSON),)
    match kind:
        case WorkloadKind.PAYLOAD:
            first = Setting(local=False, topics=0, trace_publisher=False)
            return [
                RunPlan("payload-first", first, sizes=PAYLOADS, joins=scale.joins),
                RunPlan("payload-steady", Setting(), usual, PAYLOADS),
            ]
        case WorkloadKind.LOAD:
            steps = tuple(ArrivalStep(load, scale.seconds * 2 / 3, ArrivalShape.POISSON) for load in scale.loads)
            return [RunPlan("load", Setting(topics=100), steps, until_saturated=True)]
        case WorkloadKind.FANOUT:
            # As many deliveries a second at every width, as far as whole publications allow.
            return [
                RunPlan(
                    f"width-{width}",
                    Setting(width=width, topics=20 if width < 1000 else 5),
                    (ArrivalStep(max(1.0, min(scale.rate, 250 / width)), scale.seconds, ArrivalShape.POISSON),),
                )
                for width in scale.widths
            ]
        case WorkloadKind.HOPS:
            return [RunPlan("hops", Setting(hops=scale.hops), usual)]
        case WorkloadKind.LOSS:
            return [
                RunPlan(f"loss-{loss * 100:g}%", Setting(loss=loss, delay=0.001), usual, (SMALLEST, PAYLOADS[-1]))
                for loss in scale.losses
            ]
        case WorkloadKind.ARRIVALS:
            return [
                RunPlan(f"arrivals-{shape.value}", Setting(), (ArrivalStep(2 * scale.rate, scale.seconds, shape),))
                for shape in ArrivalShape
            ]
        case WorkloadKind.SOAK:
            return [RunPlan("soak", Setting(), (ArrivalStep(SOAK_RATE, minutes * 60, ArrivalShape.POISSON),), PAYLOADS)]


def run_for(plan: RunPlan, kind: WorkloadKind, seed: int) -> Run:
    setting: dict[str, Parameter] = {
        name: str(value) if isinstance(value, tuple) else value for name, value in asdict(plan.setting).items()
    }
    offered = ", ".join(f"{step.rate:g}/s {step.shape} for {step.seconds:g} s" for step in plan.steps)
    parameters: dict[str, Parameter] = {
        "workload": kind.value,
        **setting,
        "offered": offered or f"{plan.joins} new subscribers of each size, one after the other",
        "payloads": f"{min(plan.sizes)} to {max(plan.sizes)} bytes",
    }
    name = f"{plan.variant}-{uuid4().hex[:6]}"
    return new_run(f"workload-{kind.value}", software_version(), parameters, seed=seed, name=name)


async def carry_out(
    plan: RunPlan, kind: WorkloadKind, directory: Path, seed: int, stop: asyncio.Event, tick: Callable[[int], None]
) -> list[Row]:
    """Make one run; `directory` has it afterwards, also when it was stopped early."""
    run = run_for(plan, kind, seed)
    with tempfile.TemporaryDirectory(prefix="psph-") as work:
        world = WorkloadWorld(plan.setting, run, directory, Path(work), stop)
        try:
            async with world.running():
                return await (_joins if plan.joins else _steps)(world, plan, seed, tick)
        except WorkloadError:
            if stop.is_set():  # whoever was asked to stop may be gone already
                return []
            raise


async def _joins(world: WorkloadWorld, plan: RunPlan, seed: int, tick: Callable[[int], None]) -> list[Row]:
    """New subscribers of what is published already: ProcessD and TotalPushD. Sizes in a random order every round."""
    rng = random.Random(seed)  # noqa: S311 - a reproducible order
    hop = plan.setting.hops[0]
    delays: list[float] = []
    async with await world.attached(hop) as client:
        for number in range(WARM_UP_JOINS):
            await world.first_delay(f"warm-{number}", hop, SMALLEST, client, traced=False)
        for turn in range(plan.joins):
            for size in rng.sample(plan.sizes, len(plan.sizes)):
                if world.stop.is_set():
                    break
                delays.append(await world.first_delay(f"{turn}-{size}", hop, size, client))
                tick(1)
    return [_row(plan, None, hop, delays, len(delays), len(delays))]


async def _steps(world: WorkloadWorld, plan: RunPlan, seed: int, tick: Callable[[int], None]) -> list[Row]:
    names = [f"topic-{number}" for number in range(plan.setting.topics)]
    await world.prepare(names)
    world.forget_warm_up()
    rows: list[Row] = []
    watch = GrowthWatch(world.resident)
    watching = asyncio.create_task(watch.run(sum(step.seconds for step in plan.steps)))
    for number, step in enumerate(plan.steps):
        if world.stop.is_set():
            break
        await offer(world, names, schedule([step], seed + number), plan.sizes, seed + number, tick)
        world.ledger.give_up()
        count = world.ledger.steps[step.rate]
        for (load, hop), delays in sorted(world.ledger.delays.items()):
            if load == step.rate:
                rows.append(_row(plan, load, hop, delays, count.offered, count.completed))
        late = percentile(sorted(count.delays), 0.5) > IN_TIME
        if plan.until_saturated and (count.completed < KEEPS_UP * count.offered or late):
            break
    watching.cancel()
    return [{**row, **_memory(watch, int(row["hops"] or 0))} for row in rows]


def _memory(watch: GrowthWatch, hop: int) -> Row:
    return {"most MiB": watch.most(hop), "MiB/min": watch.slope(hop)}


def _row(plan: RunPlan, load: float | None, hop: int, delays: Sequence[float], offered: int, completed: int) -> Row:
    ordered = sorted(delays)
    return {
        "run": plan.variant,
        "load/s": load,
        "hops": hop,
        "publications": offered,
        "complete": completed,
        "deliveries": len(delays),
        "p50 ms": percentile(ordered, 0.5) * 1000,
        "p90 ms": percentile(ordered, 0.9) * 1000,
        "p99 ms": percentile(ordered, 0.99) * 1000,
        "mean ms": sum(ordered) / len(ordered) * 1000 if ordered else None,
    }
