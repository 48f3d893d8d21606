"""Sends what a schedule says, when it says so. Thin: the schedule is in `arrivals`, the counting in `ledger`."""

import asyncio
import random
import time
from collections.abc import Callable, Sequence
from typing import Final

from perf.workloads.arrivals import DuePublication, Pacer
from perf.workloads.world import WorkloadWorld

UNDER_WAY: Final = 4000
"""Pings that wait for an answer at most; more are shed, and counted."""
GRACE: Final = 5.0
"""Seconds that the last publications of a schedule get to arrive."""
QUIET: Final = 1.0
"""Nobody waits longer once nothing has arrived for so many seconds."""
LONGEST_NAP: Final = 0.25


async def offer(
    world: WorkloadWorld,
    names: Sequence[str],
    arrivals: Sequence[DuePublication],
    sizes: Sequence[int],
    seed: int,
    tick: Callable[[int], None],
) -> None:
    """Open loop: nothing waits for what came before. Ends early when the world is to stop. Topics take turns."""
    rng = random.Random(seed)  # noqa: S311 - a reproducible choice of sizes
    pacer = Pacer(arrivals)
    tasks: set[asyncio.Task[None]] = set()
    started = time.monotonic()
    while (at := pacer.next_at()) is not None and not world.stop.is_set():
        wait = started + at - time.monotonic()
        if wait > 0:
            await asyncio.sleep(min(wait, LONGEST_NAP))
        due = pacer.due(time.monotonic() - started)
        for arrival in due:
            if len(tasks) >= UNDER_WAY:
                world.ledger.shed(arrival.load)
                continue
            name = names[arrival.number % len(names)]
            work = world.publish_due(name, rng.choice(sizes), started + arrival.at, arrival.load)
            task = asyncio.create_task(work)
            tasks.add(task)
            task.add_done_callback(tasks.discard)
        tick(len(due))
        await asyncio.sleep(0)
    await drained(world, tasks)


async def drained(world: WorkloadWorld, tasks: set[asyncio.Task[None]]) -> None:
    """Wait for what is under way, as long as something still arrives and no longer than the grace."""
    end = time.monotonic() + GRACE
    waiting, quiet_since = -1, time.monotonic()
    while (world.ledger.waiting or tasks) and time.monotonic() < end and not world.stop.is_set():
        await asyncio.sleep(0.02)
        if world.ledger.waiting != waiting:
            waiting, quiet_since = world.ledger.waiting, time.monotonic()
        elif time.monotonic() - quiet_since > QUIET:
            break
    for task in list(tasks):
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
