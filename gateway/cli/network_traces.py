"""Plugs tracing into an emulated or simulated network, so that `psph report` can tell what an experiment showed."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TypedDict

from gateway.cli.errors import CommandError
from perf.traces.psirp_events import NetworkTracer, TraceClock, machine_clock
from perf.traces.run import Parameter, new_run, software_version
from perf.traces.writer import TraceWriter
from psirp_stack.emulation.plan import NetworkPlan
from psirp_stack.emulation.simulation import Tap
from psirp_stack.links.clock import VirtualClock
from psirp_stack.node.settings import NodeObserver
from storage.private import PrivateFileError


class SimulationHooks(TypedDict, total=False):
    """What a simulated network tells a tracer."""

    tap: Tap
    observer_of: Callable[[str], NodeObserver]


@dataclass(slots=True)
class TracedNetwork:
    """The tracer, if there is one."""

    tracer: NetworkTracer | None = None
    clock: VirtualClock | None = None
    wall_ns: int = 0

    def of_simulation(self) -> SimulationHooks:
        return {} if self.tracer is None else {"tap": self.tracer.tap, "observer_of": self.tracer.observer_of}

    def follow(self, clock: VirtualClock) -> None:
        """Time is what this clock shows."""
        self.clock = clock

    def now(self) -> tuple[int, int]:
        passed = 0 if self.clock is None else round(self.clock.now() * 1e9)
        return passed, self.wall_ns + passed


@contextmanager
def traced_network(directory: Path | None, plan: NetworkPlan, *, simulated: bool) -> Iterator[TracedNetwork]:
    """A run of its own below the directory, while this lasts."""
    traced = TracedNetwork(wall_ns=time.time_ns())
    if directory is None:
        yield traced
        return
    life = f"experiment-{time.strftime('%Y%m%dT%H%M%SZ', time.gmtime())}"
    parameters: dict[str, Parameter] = {
        "nodes": len(plan.graph.names),
        "links": plan.graph.undirected_links,
        "seed": plan.seed,
        "seconds": plan.seconds,
        "simulated": simulated,
    }
    run = new_run("experiment", software_version(), parameters, name=life)
    try:
        writer = TraceWriter(directory / life, run)
    except (OSError, PrivateFileError) as error:
        raise CommandError(f"traces: {error}") from None
    clock = TraceClock("simulated", traced.now) if simulated else machine_clock()
    traced.tracer = NetworkTracer(writer, clock=clock)
    try:
        yield traced
    finally:
        writer.close()
