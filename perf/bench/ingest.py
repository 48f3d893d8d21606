"""`psph bench ingest`: how many publications a second are followed, from ping to callback, beside a bare loop.

    publisher <-GET- hub or gateway == nodes == gateway -POST-> callback        many topics, one callback each

The bare loop does what no hub can leave out (accept a ping, read the topic, hash, insert in a transaction that is
committed in groups, post) with the same libraries, and nothing else. All systems are processes with their defaults but
for the canary, which is off, and a publisher's token;
publisher, pings and callbacks are in this one, with one clock. Load is offered in an open loop: pings are sent at times
that were fixed before, at random distances, whatever became of those before.

A rate is followed when nothing is refused, nothing is superseded or lost, delays do not grow, and their 99th percentile
stays below a second. A rate that is not followed has a second chance, because the machine does other things too.
"""

import argparse
import asyncio
import tempfile
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path

import uvloop

from perf.bench.family import GATEWAYS_ARE, Bar, BenchError, BenchOutcome, Row, Sense, Ticker, percentile, progress_bar
from perf.bench.ingest_chart import draw
from perf.bench.ingest_load import LATE, IngestLoad, OfferedStep, worlds
from perf.bench.ingest_search import FoundRate, SearchSteps, find_rate
from perf.bench.ingest_systems import (
    BARE,
    GATEWAY,
    HUB,
    LOOP,
    NODES,
    PARSERS,
    STORE,
    THREADS,
    IngestSystem,
    IngestSystems,
    hops,
)

USUAL = 1400
RATE_BAR, CROSSING_CPU_BAR, CROSSING_RATE_BAR = 0.3, 2.5, 0.45
TAIL_BAR, OVERLOAD_BAR, ALONE_BAR = 5.0, 0.9, 3.0
LOW_RATE, LOW_RATE_CPU, IDLE_BAR = 50.0, 0.003, 0.01
PATIENCE = 60.0


@dataclass(frozen=True, slots=True)
class IngestScale:
    systems: tuple[str, ...]
    sizes: tuple[int, ...]
    fat: bool
    topics: int
    search: SearchSteps
    alone: int
    """Publications one at a time."""
    idle: float
    """Seconds that idle gateways are looked at."""


QUICK = IngestScale((BARE, HUB, hops(1)), (USUAL,), False, 400, SearchSteps(0.8, 1.2, 2), 40, 2.0)
FULL = IngestScale(
    (BARE, HUB, GATEWAY, hops(1), hops(3)), (300, USUAL, 50_000), True, 2000, SearchSteps(3.0, 6.0, 3), 200, 20.0
)


@dataclass(frozen=True, slots=True)
class Offered:
    """What is offered: documents of a size, with the ping or to be fetched."""

    size: int
    fat: bool

    def __str__(self) -> str:
        return f"{self.size} bytes{' with the ping' if self.fat else ''}"


class IngestBench:
    def __init__(self, scale: IngestScale, seed: int, tick: Ticker) -> None:
        self._scale = scale
        self._tick = tick
        self._load = IngestLoad(scale.topics, seed)
        self._worlds = worlds(scale.systems)
        self.found: dict[tuple[str, Offered], FoundRate] = {}

    async def run(self) -> BenchOutcome:
        scale = self._scale
        async with AsyncExitStack() as stack:
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="psph-bench-")))
            await stack.enter_async_context(self._load)
            systems = IngestSystems(folder, stack)
            running = [await self._ready(systems, name) for name in scale.systems]
            alone = await self._one_at_a_time(running)
            low = await self._low_rate(running)
            for size in scale.sizes:
                for fat in (False, True) if scale.fat else (False,):
                    for system in running:
                        self.found[system.name, Offered(size, fat)] = await self._search(system, Offered(size, fat))
            memory = {system.name: system.resident() / 1e6 for system in running}
        rows = [self._row(name, offered, found, memory) for (name, offered), found in self.found.items()]
        return BenchOutcome(
            {"topics": scale.topics, "bar at bytes": USUAL, "callbacks": 1},
            rows,
            [*self._rate_bars(), *self._alone_bars(alone), *self._low_bars(low)],
            (
                f"{GATEWAYS_ARE}, and a publisher's token lifts the limits for one client",
                "rate: the highest that is followed; p50 and p99, in ms, and CPU, in ms a publication, at half of it",
                "CPU: of all processes of a system: event loops, threads that store, others, parsers, mere nodes",
                f"one publication at a time, p50 in ms: {_listed(alone)}",
                f"at {LOW_RATE:g} a second, CPU in ms: "
                + _listed({name: step.cpu_each * 1000 for name, (step, _) in low.items()}),
            ),
        )

    async def _ready(self, systems: IngestSystems, name: str) -> IngestSystem:
        """Started, with a subscriber for each topic, to whom things arrive."""
        system = await systems.start(name)
        world = self._worlds[name]
        try:
            if name != BARE:
                await self._load.subscribe(system.subscribe_at, world, PATIENCE)
            await self._warm(system)
        except TimeoutError as error:
            raise BenchError(f"{name}: {str(error) or 'not all publications arrived'}") from None
        self._tick(f"{name} is up")
        return system

    async def _warm(self, system: IngestSystem) -> None:
        """Each topic once or more, until each arrives: a new subscription takes its time to be known elsewhere."""
        world = self._worlds[system.name]
        missing = list(range(self._load.topics))
        async with asyncio.timeout(PATIENCE):
            while missing:
                several = missing[:64]
                outcomes = await asyncio.gather(
                    *(self._load.arrives(system.publish_at, world, number, USUAL, 3.0) for number in several),
                    return_exceptions=True,
                )
                late = [n for n, outcome in zip(several, outcomes, strict=True) if isinstance(outcome, BaseException)]
                missing = [*missing[64:], *late]

    async def _offer(
        self,
        system: IngestSystem,
        rate: float,
        seconds: float,
        what: Offered = Offered(USUAL, False),
    ) -> OfferedStep:
        step = await self._load.offer(
            system.publish_at, self._worlds[system.name], rate, seconds, what.size, fat=what.fat, cpu=system.cpu
        )
        self._tick(f"{system.name}, {what}, {rate:,.0f} a second", seconds)
        return step

    # One at a time, and few

    async def _one_at_a_time(self, running: list[IngestSystem]) -> dict[str, float]:
        """The median of ping to callback, in ms; systems take turns."""
        delays: dict[str, list[float]] = {system.name: [] for system in running}
        for number in range(self._scale.alone):
            for system in running:
                world = self._worlds[system.name]
                place = number % self._load.topics
                try:
                    delay = await self._load.arrives(system.publish_at, world, place, USUAL, PATIENCE)
                except TimeoutError:
                    raise BenchError(f"{system.name}: a publication did not arrive in {PATIENCE:g} s") from None
                delays[system.name].append(delay)
        self._tick("one publication at a time")
        return {name: percentile(sorted(seconds), 0.5) * 1000 for name, seconds in delays.items()}

    async def _low_rate(self, running: list[IngestSystem]) -> dict[str, tuple[OfferedStep, float]]:
        """At a low rate, and the share of a core of each process that nobody asks anything."""
        before = {system.name: sum(system.cpu().values()) for system in running}
        await asyncio.sleep(self._scale.idle)
        idle = {
            system.name: (sum(system.cpu().values()) - before[system.name]) / self._scale.idle / len(system.parts)
            for system in running
        }
        self._tick("idle", self._scale.idle)
        seconds = max(2.0, self._scale.search.fine)
        return {system.name: (await self._offer(system, LOW_RATE, seconds), idle[system.name]) for system in running}

    # The highest rate

    async def _search(self, system: IngestSystem, what: Offered) -> FoundRate:
        fine = self._scale.search.fine
        found = await find_rate(lambda rate, seconds: self._offer(system, rate, seconds, what), self._scale.search)
        if found.best is not None:
            found.half = await self._offer(system, found.best.rate / 2, fine, what)
            if what == Offered(USUAL, False) and system.name != BARE:
                found.overload = await self._offer(system, found.best.rate * 2, 2 * fine, what)
                await asyncio.sleep(1.0)
        return found

    # What is said

    def _row(self, name: str, what: Offered, found: FoundRate, memory: dict[str, float]) -> Row:
        bare = self.found.get((BARE, what))
        half = found.half
        row: Row = {
            "system": name,
            "bytes": what.size,
            "ping": "fat" if what.fat else "plain",
            "rate/s": found.rate,
            "of bare": found.rate / bare.rate if bare else None,
            "p50 ms": half.quantile(0.5) * 1000 if half else None,
            "p99 ms": half.quantile(0.99) * 1000 if half else None,
            "CPU ms": half.cpu_each * 1000 if half else None,
        }
        for stage in (LOOP, STORE, THREADS, PARSERS, NODES):
            row[stage] = half.cpu.get(stage, 0.0) / len(half.delays) * 1000 if half and half.delays else None
        row["at 2x: of rate"] = _overload_share(found)
        row["refused"] = found.overload.refused if found.overload else None
        row["RSS MB"] = memory[name]
        return row

    def _usual(self, name: str) -> FoundRate | None:
        return self.found.get((name, Offered(USUAL, False)))

    def _rate_bars(self) -> list[Bar]:
        bare, hub = self._usual(BARE), self._usual(HUB)
        bars: list[Bar] = []
        if bare and hub:
            bars.append(Bar("rate: hub / bare loop", hub.rate / bare.rate, Sense.AT_LEAST, RATE_BAR))
        for name in self._scale.systems:
            found = self._usual(name)
            if found is None or name == BARE:
                continue
            if name.startswith("crossing") and hub is not None and hub.half is not None and found.half is not None:
                bars.append(Bar(f"rate: {name} / hub", found.rate / hub.rate, Sense.AT_LEAST, CROSSING_RATE_BAR))
                ratio = found.half.cpu_each / hub.half.cpu_each
                bars.append(Bar(f"CPU each: {name} / hub", ratio, Sense.AT_MOST, CROSSING_CPU_BAR))
            if found.half is not None:
                tail = found.half.quantile(0.99) / found.half.quantile(0.5)
                bars.append(Bar(f"{name} at half load: p99 / p50", tail, Sense.AT_MOST, TAIL_BAR))
            if found.overload is not None:
                share = _overload_share(found) or 0.0
                bars.append(Bar(f"{name} at twice the rate: delivered / rate", share, Sense.AT_LEAST, OVERLOAD_BAR))
                late = found.overload.quantile(0.99)
                bars.append(Bar(f"{name} at twice the rate: p99 of what was accepted, s", late, Sense.AT_MOST, LATE))
                whole = (found.overload.failed + found.overload.lost) / max(1, found.overload.offered)
                bars.append(Bar(f"{name} at twice the rate: accepted and not delivered", whole, Sense.AT_MOST, 0.0))
        return bars

    def _alone_bars(self, alone: dict[str, float]) -> list[Bar]:
        if BARE not in alone or HUB not in alone:
            return []
        return [Bar("one at a time, p50: hub / bare loop", alone[HUB] / alone[BARE], Sense.AT_MOST, ALONE_BAR)]

    def _low_bars(self, low: dict[str, tuple[OfferedStep, float]]) -> list[Bar]:
        bars: list[Bar] = []
        for name, (step, idle) in low.items():
            if name in (BARE, HUB):
                continue
            if name.startswith("crossing"):
                at = f"{name} at {LOW_RATE:g} a second"
                bars.append(Bar(f"{at}: CPU each, s", step.cpu_each, Sense.AT_MOST, LOW_RATE_CPU))
                bars.append(Bar(f"{at}: p99 / p50", step.quantile(0.99) / step.quantile(0.5), Sense.AT_MOST, TAIL_BAR))
            bars.append(Bar(f"{name}, idle: share of a core, each process", idle, Sense.AT_MOST, IDLE_BAR))
        return bars


def _overload_share(found: FoundRate) -> float | None:
    """Deliveries until the last ping, a second, of the rate that was followed."""
    if found.overload is None or found.best is None:
        return None
    return found.overload.delivered_in_time / found.overload.seconds / found.best.rate


def _listed(values: dict[str, float]) -> str:
    return ", ".join(f"{name} {value:.2f}" for name, value in values.items())


class IngestBenchmark:
    name = "ingest"
    description = (
        "The highest rate of publications that is followed from ping to callback, in an open loop over many topics\n"
        "with one subscriber each: a bare loop of the same libraries, a hub alone, one gateway, and two gateways with\n"
        "1 and 3 hops of a PSIRP network between them. With documents of 300, 1400 and 50,000 bytes, fetched or\n"
        "brought along by the ping. Also: delays and CPU at half that rate, what happens at twice, one publication at\n"
        "a time, and what low rates cost. --quick: 1400 bytes, fetched; bare loop, hub, 1 hop."
    )

    def configure(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument("--system", action="append", choices=FULL.systems, help="only this one; may be repeated")
        parser.add_argument("--bytes", type=int, action="append", metavar="N", help="only this size; may be repeated")
        parser.add_argument("--topics", type=int, metavar="N", help=f"default: {FULL.topics}, quick: {QUICK.topics}")
        parser.add_argument("--thin", action="store_true", help="only pings without content")
        parser.add_argument("--seed", type=int, default=1, help="of the times of pings; default: 1")
        parser.add_argument(
            "--chart", type=Path, metavar="FILE", help="draw latency against rate into a .svg or .png file"
        )
        parser.epilog = (
            "examples:\n"
            "  psph bench ingest --quick --json\n"
            '  psph bench ingest --system hub --system "bare loop" --bytes 1400 --chart ingest.svg'
        )

    def run(self, options: argparse.Namespace) -> BenchOutcome:
        usual = QUICK if options.quick else FULL
        sizes = tuple(options.bytes or usual.sizes)
        topics = options.topics or usual.topics
        if topics < 1 or topics > 1_000_000:
            raise BenchError(f"--topics {topics}: expected 1 to 1,000,000")
        for size in sizes:
            if not 300 <= size <= 4_000_000:
                raise BenchError(f"--bytes {size}: expected 300 to 4,000,000")
        if options.chart is not None and options.chart.suffix not in (".svg", ".png"):
            raise BenchError(f"--chart {options.chart}: expected a name that ends in .svg or .png")
        systems = tuple(name for name in FULL.systems if name in (options.system or usual.systems))
        scale = IngestScale(
            systems, sizes, usual.fat and not options.thin, topics, usual.search, usual.alone, usual.idle
        )
        offers = len(systems) * len(sizes) * (2 if scale.fat else 1)
        steps = scale.search
        total = len(systems) + 1 + scale.idle + offers * (5 * steps.coarse + (steps.halvings + 3) * steps.fine)
        with progress_bar(self.name, total) as tick:
            bench = IngestBench(scale, options.seed, tick)
            outcome = uvloop.run(bench.run())
        if options.chart is not None:
            draw(options.chart, {f"{name}, {what}": found.steps for (name, what), found in bench.found.items()})
        return outcome


BENCHMARK = IngestBenchmark()
