"""`psph bench predict`: two gateways at 30, 50 and 70 % of what they can do, predicted from their traces and measured.

    publisher <-GET- gateway == gateway -POST-> callback           both traced, many topics with one callback each

First the highest rate that is followed is looked for, as `psph bench ingest` does. Then gateways are started anew for
each load, and what their queues should have done stands beside what they did. The load at which the first resource
saturates, predicted from the lowest of these loads, stands beside the rate that was found.
"""

import argparse
import math
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

import uvloop

from perf.bench.family import Bar, BenchError, BenchOutcome, Row, Sense, Ticker, progress_bar
from perf.bench.ingest_load import IngestLoad, OfferedStep, worlds
from perf.bench.ingest_search import SearchSteps, find_rate
from perf.bench.ingest_stores import stores_below, waiting_in
from perf.bench.ingest_systems import IngestSystem, IngestSystems, hops
from perf.models.simulator import ConservationLedger
from perf.processes import ProcessFailedError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from perf.pipeline.predictions import RunPrediction

BYTES: Final = 1400
PATIENCE: Final = 60.0
CLOSE_BAR: Final = 0.20
CAPACITY_LOW, CAPACITY_HIGH = 0.5, 2.0
SYSTEM: Final = hops(1)
MS: Final = 1e3

Predict = Callable[[Path, int, int], "list[RunPrediction]"]
"""A folder of directories of one run, and from when to when by the wall clock."""
SEARCH: Final = SearchSteps(3.0, 4.0, 3)


@dataclass(frozen=True, slots=True)
class PredictScale:
    shares: tuple[float, ...] = (0.3, 0.5, 0.7)
    topics: int = 200
    seconds: float = 30.0
    search: SearchSteps = SEARCH
    capacity: float | None = None
    """None: it is searched for."""


QUICK: Final = PredictScale(topics=100, seconds=4.0, search=SearchSteps(0.8, 1.2, 2))


@dataclass(frozen=True)
class LoadedRun:
    """What a load gave: by the load generator, and by the traces."""

    share: float
    step: OfferedStep
    prediction: "RunPrediction"
    in_flight: int
    """Publications that the gateways still have to fetch, to pass on or to deliver, as their stores say."""

    @property
    def ledger(self) -> ConservationLedger:
        """Counted by publisher, callbacks and stores, which know nothing of traces. Nothing may expire or be lost on
        a link here; dropped is what was refused, and what a later document of its topic overtook. What none of them
        knows leaves it unbalanced."""
        step = self.step
        dropped = len(step.turned_away) + step.superseded
        return ConservationLedger(step.offered, len(step.delays), 0, 0, dropped, self.in_flight)

    @property
    def unaccounted(self) -> int:
        """Publications that neither publisher and callbacks nor the traces can say what became of."""
        ledger, seen = self.ledger, self.prediction
        known = ledger.delivered + ledger.dropped + ledger.in_flight
        by_traces = abs(ledger.delivered - seen.deliveries) + abs(ledger.emitted - ledger.dropped - seen.publications)
        return abs(ledger.emitted - known) + by_traces


class PredictBench:
    def __init__(self, scale: PredictScale, seed: int, predict: Predict, tick: Ticker) -> None:
        self._scale = scale
        self._predict = predict
        self._tick = tick
        self._load = IngestLoad(scale.topics, seed)
        self._world = worlds([SYSTEM])[SYSTEM]
        self.runs: list[LoadedRun] = []

    async def run(self) -> BenchOutcome:
        async with AsyncExitStack() as stack:
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="psph-bench-")))
            await stack.enter_async_context(self._load)
            capacity = self._scale.capacity or await self._search(folder / "search")
            for share in self._scale.shares:
                self.runs.append(await self._loaded(folder / f"at-{share:.0%}".replace("%", ""), share, capacity))
        return self._outcome(capacity)

    async def _started(self, folder: Path, stack: AsyncExitStack) -> IngestSystem:
        folder.mkdir()  # noqa: ASYNC240 - nothing else goes on
        self._load.close_connections()
        systems = IngestSystems(folder, stack, folder / folder.name)
        system = await systems.start(SYSTEM)
        try:
            await self._load.subscribe(system.subscribe_at, self._world, PATIENCE)
            for number in range(self._load.topics):
                await self._load.arrives(system.publish_at, self._world, number, BYTES, PATIENCE)
        except TimeoutError as error:
            raise BenchError(f"{SYSTEM}: {str(error) or 'not all publications arrived'}") from None
        self._tick("gateways are up")
        return system

    async def _offer(self, system: IngestSystem, rate: float, seconds: float) -> OfferedStep:
        step = await self._load.offer(system.publish_at, self._world, rate, seconds, BYTES)
        self._tick(f"{rate:.0f} a second", seconds)
        return step

    async def _search(self, folder: Path) -> float:
        """The highest rate that is followed by gateways that are traced."""
        async with AsyncExitStack() as stack:
            system = await self._started(folder, stack)
            found = await find_rate(lambda rate, seconds: self._offer(system, rate, seconds), self._scale.search)
        if found.best is None:
            raise BenchError(f"not even {found.steps[-1].rate:.0f} publications a second are followed: busy machine?")
        return found.best.rate

    async def _loaded(self, folder: Path, share: float, capacity: float) -> LoadedRun:
        async with AsyncExitStack() as stack:
            system = await self._started(folder, stack)
            begin = time.time_ns()
            step = await self._offer(system, share * capacity, self._scale.seconds)
            end = time.time_ns()
            try:
                for part in system.parts:
                    await part.stop()  # what waits to be written is then in the files
            except ProcessFailedError as error:
                raise BenchError(str(error)) from None
            in_flight = len(waiting_in(stores_below(folder), step.left))
        [prediction] = self._predict(folder / folder.name, begin, end)
        self._tick(f"predicted at {share:.0%}")
        return LoadedRun(share, step, prediction, in_flight)

    def _outcome(self, capacity: float) -> BenchOutcome:
        from perf.pipeline.predictions import capacity_rows

        rows: list[Row] = []
        for one in self.runs:
            rows += self._rows(one)
        errors = [abs(queue.comparison.error or 0.0) for one in self.runs for queue in one.prediction.believed]
        found = capacity_rows(self.runs[0].prediction) if self.runs else []
        first = found[0] if found else None
        ratio = first.saturates_at / capacity if first is not None else math.nan
        bars = [
            Bar(
                "worst error of a mean whose assumptions hold", max(errors, default=math.nan), Sense.AT_MOST, CLOSE_BAR
            ),
            Bar("publications unaccounted for", sum(one.unaccounted for one in self.runs), Sense.AT_MOST, 0),
            Bar("rate at which the first resource saturates: predicted / found", ratio, Sense.AT_LEAST, CAPACITY_LOW),
            Bar("the same, at most", ratio, Sense.AT_MOST, CAPACITY_HIGH),
        ]
        notes = [
            f"highest rate that is followed, traced: {capacity:.0f} a second",
            *(self._says(one) for one in self.runs),
        ]
        if first is not None:
            notes.append(
                f"predicted at {self.runs[0].share:.0%}: the first to saturate is {first.node} {first.resource}, at "
                f"{first.saturates_at:.0f} a second"
            )
        return BenchOutcome({"topics": self._scale.topics, "bytes": BYTES, "rate": round(capacity)}, rows, bars, notes)

    @staticmethod
    def _says(one: LoadedRun) -> str:
        ledger, seen = one.ledger, one.prediction
        return (
            f"at {one.share:.0%}: {ledger.emitted} emitted = {ledger.delivered} delivered + {ledger.expired} expired "
            f"+ {ledger.lost} lost on a link + {ledger.dropped} dropped ({one.step.superseded} of them superseded by "
            f"the topic's next) + {ledger.in_flight} in flight; assumptions hold in "
            f"{len(seen.believed)} of {len(seen.queues)} queues"
        )

    @staticmethod
    def _rows(one: LoadedRun) -> list[Row]:
        rows: list[Row] = []
        for queue in one.prediction.queues:
            found = queue.comparison
            failing = ", ".join(assumption.name.lower() for assumption in found.failing)
            rows.append(
                {
                    "load": f"{one.share:.0%}",
                    "queue": f"{queue.node} {queue.resource}",
                    "assumptions": "hold" if found.believed else f"not: {failing or 'few stays, or a high load'}",
                    "model": found.model,
                    "used": found.utilisation,
                    "formula ms": None if found.formula.mean is None else found.formula.mean * MS,
                    "simulated ms": None if found.simulated.mean is None else found.simulated.mean * MS,
                    "measured ms": None if found.measured.mean is None else found.measured.mean * MS,
                    "error": found.error,
                }
            )
        way = one.prediction.way
        if way is not None:
            doubt = not all(queue.comparison.believed for hop in way.hops for queue in hop.queues)
            rows.append(
                {
                    "load": f"{one.share:.0%}",
                    "queue": "end to end",
                    "assumptions": "not: see the queues" if doubt else "hold",
                    "model": "sum",
                    "used": None,
                    "formula ms": None if way.formula.mean is None else way.formula.mean * MS,
                    "simulated ms": None if way.simulated.mean is None else way.simulated.mean * MS,
                    "measured ms": None if way.measured.mean is None else way.measured.mean * MS,
                    "error": way.error,
                }
            )
        return rows


class Predictions:
    name = "predict"
    description = (
        "Two gateways at 30, 50 and 70 % of the highest rate that they follow, both traced: the mean stay in every\n"
        "queue as the model predicts it from the traces and as it was measured, with the assumptions that do not hold\n"
        "before the numbers; the rate at which the first resource saturates, beside the one that was found; and what\n"
        "became of every publication. Needs Spark.\n\n"
        "bars: where assumptions hold by test, means are within 20 %; nothing is unaccounted for; the rate of\n"
        "saturation is right within a factor of 2"
    )

    def configure(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument("--seed", type=int, default=1, help="of the times at which is published; default: 1")
        parser.add_argument("--seconds", type=float, help=f"of each load; default: {PredictScale().seconds:g}")
        parser.add_argument("--keep", type=Path, metavar="DIR", help="write the page of predictions there")
        parser.epilog = "examples:\n  psph bench predict --quick\n  psph bench predict --keep /tmp/predictions"

    def run(self, options: argparse.Namespace) -> BenchOutcome:
        from dataclasses import replace

        from perf.java import NoJavaError
        from perf.pipeline.session import open_session

        scale = QUICK if options.quick else PredictScale()
        if options.seconds is not None:
            if not options.seconds >= 1:
                raise BenchError("--seconds: expected at least 1")
            scale = replace(scale, seconds=options.seconds)
        try:
            session = open_session("local[2]", "2g")
        except NoJavaError as error:
            raise BenchError(str(error)) from None
        try:
            steps = scale.search
            searching = 5 * steps.coarse + (steps.halvings + 1) * steps.fine
            with progress_bar("predict", 6 + 2 * len(scale.shares) + searching + 3 * scale.seconds) as tick:
                bench = PredictBench(scale, options.seed, predict_with(session), tick)
                outcome = uvloop.run(bench.run())
        finally:
            session.stop()
        if options.keep is not None:
            from perf.report.predictions import build_predictions

            build_predictions([one.prediction for one in bench.runs], options.keep)
        return outcome


def predict_with(session: "SparkSession") -> Predict:
    from perf.pipeline.predictions import predict_runs
    from perf.pipeline.resources import TimeSpan

    def predict(folder: Path, begin: int, end: int) -> "list[RunPrediction]":
        directories: Sequence[Path] = sorted(path for path in folder.iterdir() if path.is_dir())
        return predict_runs(session, directories, span=TimeSpan(begin, end))

    return predict


BENCHMARK = Predictions()
