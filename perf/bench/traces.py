"""`psph bench traces`: what tracing costs the fan-out; or, with --rows, synthetic traces for the pipeline.

The same deliveries are made by two hubs in turn: one that nobody observes and one whose every delivery and every stay
in a queue is traced to Parquet on disk. Rounds are interleaved, so that a busy machine disturbs both alike. A round is
several publications back to back, so long that the writer's work falls into the rounds that caused it. The ratio is the
median of the ratios of neighbouring rounds.
"""

import argparse
import asyncio
import statistics
import time
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory

import uvloop

from perf.bench.family import Bar, BenchError, BenchOutcome, Row, Sense, median_interval, progress_bar
from perf.bench.fanout import HUB_URL, TABLES, FanoutStage, RateSamples, SinkProcess, send_with_hub
from perf.traces.formats import Format, have_parquet
from perf.traces.hub_events import HubTracer
from perf.traces.queue_events import QueueTracer
from perf.traces.run import TRACES, new_run, software_version
from perf.traces.synth import NoNumpyError, SynthConfig, synthesise
from perf.traces.writer import TraceWriter, WriterConfig
from push_hub.delivery import Delivery, DeliveryConfig
from push_hub.subscriptions import Subscriptions
from serving.outbound.addresses import AddressPolicy
from serving.outbound.client import ClientConfig, OutboundClient
from storage import Database

CALLBACKS = 1000
PUBLICATIONS_A_ROUND = 20
KEPT = 0.9


async def measure_overhead(rounds: int, form: Format) -> BenchOutcome:
    with ExitStack() as stack:
        folder = Path(stack.enter_context(TemporaryDirectory()))
        sink = SinkProcess()
        stack.callback(sink.close)
        run = new_run("bench-traces", software_version(), {"callbacks": CALLBACKS, "rounds": rounds})
        writer = stack.enter_context(TraceWriter(folder / "run", run, WriterConfig(form=form)))
        tracer = HubTracer(writer, "hub")
        queues = QueueTracer(writer, "hub")
        stages: dict[str, FanoutStage] = {}
        for name, observer, told in (("untraced", None, None), ("traced", tracer.observe, queues.observe)):
            database = stack.enter_context(Database.open(folder / f"{name}.db", TABLES, queues=told))
            client = OutboundClient(ClientConfig(policy=AddressPolicy(allow_private=True)))
            delivery = Delivery(
                database,
                Subscriptions(database),
                client,
                DeliveryConfig(HUB_URL),
                time.time,
                observer=observer,
                queues=told,
            )
            await delivery.start()
            stages[name] = FanoutStage(sink, database, delivery, client)
        try:
            samples = await _rounds(stages, sink, writer, rounds)
        finally:
            for stage in stages.values():
                await stage.close()
        closed = writer.close()
    traced, untraced = samples["traced"], samples["untraced"]
    ratios = [one / other for one, other in zip(traced.rates, untraced.rates, strict=True)]
    kept = statistics.median(ratios)
    return BenchOutcome(
        {"callbacks": CALLBACKS, "format": form.value, "sampling": 1.0},
        [
            _row(untraced, "hub, not traced", 0, 0),
            _row(traced, "hub, traced", closed.written, closed.dropped),
        ],
        [
            Bar("deliveries/s traced / not traced", kept, Sense.AT_LEAST, KEPT, median_interval(ratios)),
            Bar("records dropped", closed.dropped, Sense.AT_MOST, 0),
        ],
    )


async def _rounds(
    stages: dict[str, FanoutStage], sink: SinkProcess, writer: TraceWriter, rounds: int
) -> dict[str, RateSamples]:
    topic = "http://publisher.example/traced"
    urls = sink.urls(CALLBACKS)
    for stage in stages.values():
        await stage.subscribe(topic, urls)
    samples = {name: RateSamples() for name in stages}
    with progress_bar("traces", rounds) as tick:
        for number in range(rounds + 1):
            if number == 1:
                samples = {name: RateSamples() for name in stages}  # the first round only opened connections
            # Who goes second finds warmer caches, so they take turns.
            for name in sorted(stages, reverse=bool(number % 2)):
                await _round(stages[name], samples[name], topic)
                while writer.waiting:  # noqa: ASYNC110 - the next round does not pay for this one
                    await asyncio.sleep(0.005)
            tick(f"{CALLBACKS} callbacks", 1 if number else 0)
    return samples


async def _round(stage: FanoutStage, samples: RateSamples, topic: str) -> None:
    await stage.stream(
        samples, CALLBACKS, PUBLICATIONS_A_ROUND, lambda bodies: send_with_hub(stage.delivery, topic, bodies)
    )


def _row(samples: RateSamples, sender: str, records: int, dropped: int) -> Row:
    return {
        "callbacks": CALLBACKS,
        "sender": sender,
        "rounds": len(samples.rates),
        "deliveries/s": statistics.median(samples.rates),
        "CPU µs": statistics.median(samples.cpu) * 1e6,
        "records": records,
        "dropped": dropped,
    }


def synthesised(rows: int, out: Path, seed: int) -> BenchOutcome:
    if out.exists() and any(out.iterdir()):
        raise BenchError(f"--run: {out} is not empty; traces of two runs must not be mixed")
    started = time.monotonic()
    with progress_bar("traces", rows) as tick:
        try:
            run, truth = synthesise(out, SynthConfig(rows, seed), tick=lambda count: tick("rows", count))
        except NoNumpyError as error:
            raise BenchError(str(error)) from None
    seconds = time.monotonic() - started
    size = sum(path.stat().st_size for path in (out / TRACES).iterdir())
    result: Row = {
        "run": run.run,
        "rows": truth.rows,
        "publications": truth.publications,
        "lost": truth.lost,
        "duplicates": truth.duplicates,
        "seconds": seconds,
        "rows/s": truth.rows / seconds,
        "MB": size / 1e6,
    }
    return BenchOutcome({"rows": rows, "seed": seed}, [result], [], [f"next: psph report {out}"])


class Traces:
    name = "traces"
    description = (
        "What tracing every delivery costs the fan-out to 1,000 callbacks, to Parquet (JSON lines without pyarrow).\n"
        "With --rows: no measurement, but a run directory of synthetic traces, the same for the same seed, with known\n"
        "losses, duplicates, clock offset and saturation.\n\n"
        "bars: the traced hub keeps at least 0.9 of the deliveries a second; no record is dropped\n\n"
        "examples:\n  psph bench traces --quick\n  psph bench traces --rows 500000 --run /tmp/run"
    )

    def configure(self, parser: argparse.ArgumentParser) -> None:
        group = parser.add_argument_group("synthetic traces")
        group.add_argument("--rows", type=int, metavar="N", help="synthesise about N rows of traces")
        group.add_argument("--seed", type=int, default=1, help="the same seed gives the same traces; default: 1")
        group.add_argument("--run", type=Path, metavar="DIR", help="the run's directory")

    def run(self, options: argparse.Namespace) -> BenchOutcome:
        if (options.rows is None) != (options.run is None):
            raise BenchError("--rows and --run go together: how many rows, and into which directory")
        if options.rows is not None:
            if options.rows < 1:
                raise BenchError(f"--rows is {options.rows}; it must be at least 1")
            return synthesised(options.rows, options.run, options.seed)
        form = Format.PARQUET if have_parquet() else Format.JSON_LINES
        return uvloop.run(measure_overhead(12 if options.quick else 60, form))


BENCHMARK = Traces()
