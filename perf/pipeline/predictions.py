"""Runs in, predictions out: what Spark saw of every queue, what models make of it, and how far off that is."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from pyspark.sql import SparkSession

from perf.models.connectivity import Connectivity
from perf.models.estimates import ObservedQueue
from perf.models.prediction import CLOSE, PredictedTimes, compare
from perf.models.whole_way import PlacedQueue, WholeWay, hops_of, whole_way
from perf.pipeline.link_stays import LinkStayRow
from perf.pipeline.resources import (
    EVERYTHING,
    STRETCH,
    ConnectivityRow,
    ObservedResources,
    ProcessorRow,
    ResourceRow,
    TimeSpan,
    WholeWayRow,
    observe_resources,
)
from perf.traces.cpu import LOOP
from perf.traces.files import take_inventory
from perf.traces.run import Parameter, Run

MOST_QUEUES: Final = 60
"""Of one run, the busiest: a gateway may have a session for each subscriber."""
FEWEST_STAYS: Final = 20
MS: Final = 1e3


@dataclass(frozen=True, slots=True)
class RunPrediction:
    """`left_out`: queues that are too many, or were used too seldom."""

    run: str
    queues: tuple[PlacedQueue, ...]
    way: WholeWay | None
    publications: int
    deliveries: int
    rate: float | None
    """Publications a second."""
    connectivity: tuple[ConnectivityRow, ...]
    processors: tuple[ProcessorRow, ...]
    left_out: int
    links: tuple[LinkStayRow, ...] = ()
    """Between nodes whose records of consecutive hops could be paired."""

    @property
    def believed(self) -> tuple[PlacedQueue, ...]:
        return tuple(queue for queue in self.queues if queue.comparison.believed)

    @property
    def wrong(self) -> tuple[PlacedQueue, ...]:
        """Believed, and not close: there should be none."""
        return tuple(queue for queue in self.believed if abs(queue.comparison.error or 0.0) > CLOSE)


@dataclass(frozen=True, slots=True)
class PredictionRow:
    """One queue in a table: what holds, then the figures. Times in milliseconds."""

    run: str
    node: str
    queue: str
    assumptions: str
    model: str
    stays: int
    rate: float
    service_ms: float
    servers: int | None
    utilisation: float
    saturation: float | None
    predicted_mean_ms: float | None
    simulated_mean_ms: float | None
    measured_mean_ms: float | None
    error: float | None
    simulation_error: float | None
    predicted_p95_ms: float | None
    simulated_p95_ms: float | None
    measured_p95_ms: float | None
    predicted_p99_ms: float | None
    simulated_p99_ms: float | None
    measured_p99_ms: float | None
    success: float
    due_to: str


def predict_runs(
    session: SparkSession, directories: Sequence[Path], stretch: int = STRETCH, span: TimeSpan = EVERYTHING
) -> list[RunPrediction]:
    inventory = take_inventory(directories)
    seen = observe_resources(session, inventory, stretch, span)
    return [_predicted(run, seen) for run in inventory.runs]


def _predicted(run: Run, seen: ObservedResources) -> RunPrediction:
    mine = [(row, queue) for row, queue in seen.queues if row.run == run.run]
    often = sorted((one for one in mine if one[0].stays >= FEWEST_STAYS), key=lambda one: -one[0].stays)[:MOST_QUEUES]
    chosen = {id(row) for row, _ in often}
    queues = tuple(_placed(row, queue) for row, queue in mine if id(row) in chosen)
    connectivity = tuple(row for row in seen.connectivity if row.run == run.run)
    ways = [row for row in seen.ways if row.run == run.run]
    way = _way(queues, ways[0], connectivity, run.parameters.get("lifetime")) if queues and ways else None
    publications = ways[0].publications if ways else 0
    rate = (publications - 1) / ways[0].seconds if publications > 1 and ways[0].seconds else None
    processors = tuple(row for row in seen.processors if row.run == run.run)
    return RunPrediction(
        run.run, queues, way, publications, ways[0].deliveries if ways else 0, rate, connectivity, processors,
        len(mine) - len(queues), tuple(row for row in seen.links if row.run == run.run),
    )  # fmt: skip


def _placed(row: ResourceRow, queue: ObservedQueue) -> PlacedQueue:
    return PlacedQueue(row.node, row.resource, row.stays, row.not_ok, row.lost, queue, compare(queue))


def _way(
    queues: Sequence[PlacedQueue], row: WholeWayRow, connectivity: Sequence[ConnectivityRow], lifetime: Parameter
) -> WholeWay | None:
    hops = hops_of(queues, row.publications, row.entry_nodes.split())
    if row.mean_ms is None or not hops:
        return None
    measured = PredictedTimes(row.mean_ms / MS, _seconds(row.p95_ms), _seconds(row.p99_ms))
    known = {
        (one.node, one.resource): Connectivity(one.on_s, one.off_s)
        for one in connectivity
        if one.on_s and one.off_s is not None
    }
    lives = float(lifetime) if isinstance(lifetime, int | float) and not isinstance(lifetime, bool) else None
    return whole_way(hops, measured, row.delivered / max(row.publications, 1), known, lives)


def _seconds(milliseconds: float | None) -> float | None:
    return None if milliseconds is None else milliseconds / MS


@dataclass(frozen=True, slots=True)
class CapacityRow:
    """Publications a second from which a resource cannot keep up."""

    run: str
    node: str
    resource: str
    used: float
    """At the rate that was seen."""
    saturates_at: float
    at_least: bool
    """Of several servers nobody knows more than how many were busy at once."""


def capacity_rows(prediction: RunPrediction) -> list[CapacityRow]:
    """The first to saturate comes first. Queues in which nobody ever waited say nothing."""
    rate = prediction.rate
    if rate is None:
        return []
    rows = [
        CapacityRow(prediction.run, queue.node, queue.resource, found.utilisation, rate / found.utilisation,
                    (found.servers or 0) > 1)
        for queue in prediction.queues
        if (found := queue.comparison).servers is not None and found.utilisation > 0
    ]  # fmt: skip
    machines: dict[str, list[ProcessorRow]] = {}
    for one in prediction.processors:
        if one.used > 0 and one.resource == LOOP:
            rows.append(CapacityRow(prediction.run, one.node, one.resource, one.used, rate / one.used, False))
        elif one.used > 0:
            machines.setdefault(one.machine, []).append(one)
    for processes in machines.values():  # who is on one machine shares its cores
        used = sum(one.used for one in processes)
        names = "+".join(one.node for one in processes)
        rows.append(CapacityRow(prediction.run, names, "cores of their machine", used, rate / used, False))
    return sorted(rows, key=lambda row: row.saturates_at)


def rows_of_predictions(predictions: Sequence[RunPrediction]) -> list[PredictionRow]:
    return [_row(prediction.run, queue) for prediction in predictions for queue in prediction.queues]


def what_holds(queue: PlacedQueue) -> str:
    """Whether its model may be believed; otherwise which assumptions fail, and how far."""
    found = queue.comparison
    if found.few:
        return f"only {found.stays} stays: nothing can be said"
    failing = {test.assumption: test.says for test in found.tests if not test.holds}
    said = [f"not so: {assumption.value} ({says})" for assumption, says in failing.items()]
    if not found.believed and not said:
        said = [f"at {found.utilisation:.0%} of saturation small errors are large ones"]
    return "; ".join(said) or "hold"


def _row(run: str, queue: PlacedQueue) -> PredictionRow:
    found = queue.comparison

    def ms(value: float | None) -> float | None:
        return None if value is None else value * MS

    return PredictionRow(
        run, queue.node, queue.resource, what_holds(queue), found.model, queue.stays, found.rate, found.service * MS,
        found.servers, found.utilisation, found.saturation,
        ms(found.formula.mean), ms(found.simulated.mean), ms(found.measured.mean), found.error, found.simulation_error,
        ms(found.formula.p95), ms(found.simulated.p95), ms(found.measured.p95),
        ms(found.formula.p99), ms(found.simulated.p99), ms(found.measured.p99),
        1 - queue.not_ok / queue.stays, found.cause,
    )  # fmt: skip
