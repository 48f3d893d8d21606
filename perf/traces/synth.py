"""Synthetic traces: as many rows as wanted, the same for the same seed, with truths that an analysis must find again.

Two gateways, `gw-a` and `gw-b`, each with a clock of its own; most publications start at `gw-b` and are delivered to
two subscribers there and, across PSIRP, to two at `gw-a`; some go the other way, so that the clocks can be compared.
Load rises in steps, the last of them above what the modelled gateway can take. Files are made in parallel, one pair
a batch; what a batch holds depends on the seed and its number only.
"""

import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from perf.traces.formats import arrow_schema
from perf.traces.run import TRACES, Run, WrittenFile, new_run, save_run, software_version
from perf.traces.schema import COLUMN_NAMES, SCHEMA_VERSION, Domain, StepOutcome, TraceStep

ROWS_A_PUBLICATION: Final = 11.5
NODES: Final = ("gw-b", "gw-a")
EPOCH_NS: Final = 1_790_000_000_000_000_000
MONOTONIC_NS: Final = (5_000_000_000_000, 77_000_000_000_000)
CLOCKS: Final = ("boot-b", "boot-a")
SUBSCRIBERS: Final = 2
MAX_HOPS: Final = 4
_MS: Final = 1_000_000


@dataclass(frozen=True, slots=True)
class SynthConfig:
    """What the traces should say."""

    rows: int
    seed: int = 1
    loads: tuple[float, ...] = (100.0, 200.0, 400.0, 800.0, 1600.0)
    capacity: float = 1000.0
    clock_offset_ns: int = 3_200_000
    """How much the wall clock of `gw-a` is ahead of that of `gw-b`."""
    payload_from: int = 287
    payload_to: int = 1442
    ns_a_byte: float = 0.0
    loss: float = 0.001
    duplicates: float = 0.0005
    topics: int = 200
    scale: float = 1.0
    """Multiplies every delay: for two runs that differ."""
    backward: float = 0.25
    """The share of publications that start at `gw-a`."""
    drift: float = 0.0
    """How much faster than that of `gw-b` the clock of `gw-a` runs: 0.0002 is 200 ppm."""
    wall_step_ns: int = 0
    """How much the wall clock of `gw-a` is set forward halfway through the run."""
    slow: float = 0.0
    """The share of publications whose crossing takes `slow_ns` longer."""
    slow_ns: int = 400_000_000
    one_clock: bool = False
    """Both gateways on one machine."""
    batch: int = 40_000
    """Publications in a pair of files."""


@dataclass(frozen=True, slots=True)
class Truth:
    """What was put in, to be compared with what an analysis says."""

    rows: int
    publications: int
    lost: int
    duplicates: int


class NoNumpyError(RuntimeError):
    """Synthetic traces need numpy and pyarrow."""


def synthesise(
    directory: Path, config: SynthConfig, *, name: str | None = None, tick: Callable[[int], None] | None = None
) -> tuple[Run, Truth]:
    """Write a run directory; `tick` hears the rows of each batch."""
    try:
        import numpy  # noqa: F401
        import pyarrow  # type: ignore[import-untyped] # noqa: F401
    except ImportError:
        raise NoNumpyError("synthetic traces need numpy and pyarrow: install psph[analytics]") from None
    total = max(len(config.loads), round(config.rows / ROWS_A_PUBLICATION))
    parameters = {"rows": config.rows, "capacity": config.capacity, "clock_offset_ns": config.clock_offset_ns}
    run = new_run("synthetic", software_version(), parameters, seed=config.seed, name=name)
    save_run(directory, run)
    starts = range(0, total, config.batch)
    truths: list[Truth] = []
    files: list[WrittenFile] = []
    workers = len(os.sched_getaffinity(0))
    with ThreadPoolExecutor(workers) as pool:

        def one(start: int) -> tuple[Truth, Sequence[WrittenFile]]:
            return _Batch(config, run.run, start, min(config.batch, total - start), total).write(directory / TRACES)

        for truth, written in pool.map(one, starts):
            truths.append(truth)
            files.extend(written)
            if tick is not None:
                tick(truth.rows)
    truth = Truth(*(sum(getattr(one, name) for one in truths) for name in Truth.__slots__))
    ended = EPOCH_NS + max(1, round(_end_of_last_step(config, total) * 1e9))
    run = replace(run, started_ns=EPOCH_NS, ended_ns=ended, written=truth.rows, files=tuple(files))
    save_run(directory, run)
    return run, truth


def _end_of_last_step(config: SynthConfig, total: int) -> float:
    per_step = -(-total // len(config.loads))
    return sum(per_step / load for load in config.loads)


class _Batch:
    """Publications `start` to `start + count` of `total`."""

    def __init__(self, config: SynthConfig, run: str, start: int, count: int, total: int) -> None:
        import numpy as np

        self._np = np
        self._config = config
        self._run = run
        self._start = start
        self._random = np.random.default_rng([config.seed, start])
        self._number = np.arange(start, start + count)
        self._count = count
        per_step = -(-total // len(config.loads))
        step = self._number // per_step
        loads = np.array(config.loads)
        begins = np.concatenate([[0.0], np.cumsum(per_step / loads)])
        in_step = self._number % per_step
        self._load = loads[step]
        self._origin = begins[step] + in_step / self._load  # open loop: arrivals do not wait for anybody
        busy = np.minimum(self._load / config.capacity, 0.95)
        waiting = self._random.exponential(busy / (1 - busy) / config.capacity)
        behind = in_step * np.maximum(0.0, 1 / config.capacity - 1 / self._load)
        self._queue_ns = (waiting + behind) * 1e9
        self._payload = self._random.integers(config.payload_from, config.payload_to + 1, count)
        self._hops = 1 + self._number % MAX_HOPS
        self._topic = self._random.integers(0, config.topics, count)
        self._home = (self._random.random(count) < config.backward).astype(np.int64)  # index in NODES where it starts
        self._halfway = _end_of_last_step(config, total) * 5e8
        self._parts: list[dict[str, Any]] = []

    def _delay(self, mean_ms: float, payload: bool = False) -> Any:
        """A log-normal delay with that median, in ns; with the share that payload adds."""
        delay = self._random.lognormal(0.0, 0.35, self._count) * (mean_ms * _MS)
        if payload:
            delay = delay + self._payload * self._config.ns_a_byte
        return delay * self._config.scale

    def _add(
        self,
        step: TraceStep,
        domain: Domain,
        node: Any,
        at: Any,
        keep: Any,
        *,
        hop: Any = None,
        delivery: int | None = None,
    ) -> None:
        np = self._np
        rows = np.flatnonzero(keep)
        self._parts.append(
            {
                "index": rows,
                "node": node[rows],
                "time": at[rows].astype(np.int64),
                "step": np.full(len(rows), list(TraceStep).index(step), np.int8),
                "domain": np.full(len(rows), int(domain is Domain.PSIRP), np.int8),
                "hop": np.full(len(rows), -1) if hop is None else np.broadcast_to(hop, self._count)[rows],
                "delivery": np.full(len(rows), -1 if delivery is None else delivery),
            }
        )

    def _fill(self) -> Truth:
        np = self._np
        everyone = np.ones(self._count, bool)
        home, far = self._home, 1 - self._home
        pinged = self._origin * 1e9
        fetched = pinged + self._delay(1.2)
        accepted = fetched + self._delay(0.4) + self._queue_ns
        published = accepted + self._delay(0.15)
        lost = self._random.random(self._count) < self._config.loss
        arrived = ~lost
        self._add(TraceStep.PINGED, Domain.PUSH, home, pinged, everyone)
        self._add(TraceStep.FETCHED, Domain.PUSH, home, fetched, everyone)
        self._add(TraceStep.ACCEPTED, Domain.PUSH, home, accepted, everyone)
        self._add(TraceStep.PUBLISHED, Domain.PSIRP, home, published, everyone, hop=0)
        at = published
        for hop in range(1, MAX_HOPS):  # forwarders run at the publisher's side: its clock
            at = at + self._delay(0.12)
            self._add(TraceStep.FORWARDED, Domain.PSIRP, home, at, everyone & (hop < self._hops), hop=hop)
        # The clocks are compared by the fastest crossing each way, so the last link has a floor, as real links do.
        received = published + 400_000 + self._delay(0.12) * self._hops + self._delay(0.05, payload=True)
        if self._config.slow:
            received = received + (self._random.random(self._count) < self._config.slow) * self._config.slow_ns
        relayed = received + self._delay(0.3)
        self._add(TraceStep.RECEIVED, Domain.PSIRP, far, received, arrived, hop=self._hops)
        self._add(TraceStep.RELAYED, Domain.PUSH, far, relayed, arrived)
        twice = (self._random.random(self._count) < self._config.duplicates) & arrived
        for subscriber in range(SUBSCRIBERS):
            near_at = accepted + self._delay(0.8)
            far_at = relayed + self._delay(0.8)
            self._add(TraceStep.DELIVERED, Domain.PUSH, home, near_at, everyone, delivery=subscriber)
            self._add(TraceStep.DELIVERED, Domain.PUSH, far, far_at, arrived, delivery=subscriber)
            if subscriber == 0:
                again = far_at + 5 * _MS
                self._add(TraceStep.DELIVERED, Domain.PUSH, far, again, twice, delivery=subscriber)
        rows = sum(len(part["index"]) for part in self._parts)
        return Truth(rows, self._count, int(lost.sum()), int(twice.sum()))

    def write(self, folder: Path) -> tuple[Truth, Sequence[WrittenFile]]:
        import pyarrow as pa
        import pyarrow.parquet as pq  # type: ignore[import-untyped]

        np = self._np
        truth = self._fill()
        every = {name: np.concatenate([part[name] for part in self._parts]) for name in self._parts[0]}
        self._parts.clear()
        written = []
        for node, node_name in enumerate(NODES):
            mine = np.flatnonzero(every["node"] == node)
            mine = mine[np.argsort(every["time"][mine], kind="stable")]
            table = self._table({name: values[mine] for name, values in every.items()}, node)
            name = f"{node_name}-{self._start // self._config.batch:06d}.parquet"
            part = folder / f".{name}.part"
            pq.write_table(
                pa.table(table, schema=arrow_schema()),
                part,
                compression="zstd",
                row_group_size=250_000,
                write_page_checksum=True,
            )
            part.rename(folder / name)
            written.append(WrittenFile(name, len(mine)))
        return truth, written

    def _table(self, rows: dict[str, Any], node: int) -> list[Any]:
        import pyarrow as pa
        import pyarrow.compute as pc  # type: ignore[import-untyped]

        np = self._np
        index = rows["index"]
        count = len(index)

        def text(value: str) -> Any:
            return pa.repeat(pa.scalar(value, pa.string()), count)

        def words(values: Sequence[str], codes: Any) -> Any:
            return pa.array(values, pa.string()).take(pa.array(codes))

        def joined(prefix: str, numbers: Any) -> Any:
            return pc.binary_join_element_wise(prefix, pa.array(numbers).cast(pa.string()), "")

        number = index + self._start
        topics = [f"http://publisher.example/{topic}" for topic in range(self._config.topics)]
        time = rows["time"]
        machine = 0 if self._config.one_clock else node
        if machine:
            shown = time + np.rint(time * self._config.drift).astype(np.int64)
            wall = shown + self._config.clock_offset_ns + (time >= self._halfway) * self._config.wall_step_ns
        else:
            shown = wall = time
        columns = {
            "run": text(self._run),
            "publication": joined("p", number),
            "step": words([step.value for step in TraceStep], rows["step"]),
            "domain": words([Domain.PUSH.value, Domain.PSIRP.value], rows["domain"]),
            "node": text(NODES[node]),
            "topic": words(topics, self._topic[index]),
            "sid": pa.nulls(count, pa.string()),
            "rid": pa.nulls(count, pa.string()),
            "payload": pa.array(self._payload[index], pa.int64()),
            "hop": pa.array(rows["hop"], pa.int64(), mask=rows["hop"] < 0),
            "delivery": pa.array(rows["delivery"], mask=rows["delivery"] < 0).cast(pa.string()),
            "attempt": pa.array(np.ones(count, np.int64), mask=rows["delivery"] < 0),
            "load": pa.array(self._load[index], pa.float64()),
            "monotonic_ns": pa.array(shown + MONOTONIC_NS[machine], pa.int64()),
            "wall_ns": pa.array(wall + EPOCH_NS, pa.int64()),
            "clock": text(CLOCKS[machine]),
            "outcome": text(StepOutcome.OK.value),
            "schema": pa.repeat(pa.scalar(SCHEMA_VERSION, pa.int64()), count),
            "resource": pa.nulls(count, pa.string()),
            "queued_ns": pa.nulls(count, pa.int64()),
            "started_ns": pa.nulls(count, pa.int64()),
            "queue": pa.nulls(count, pa.int64()),
            "peer": pa.nulls(count, pa.string()),
        }
        return [columns[name] for name in COLUMN_NAMES]
