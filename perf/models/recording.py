"""A simulated run as a run's directory: the same records as a live system leaves, for the same pipeline."""

from array import array
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray

from perf.models.distributions import Times
from perf.models.serving import Fate, QueueVisits
from perf.models.simulator import SimulatedRun
from perf.traces.blocks import Block, Coded, Constant, Values
from perf.traces.formats import Format, TraceFileWriter, have_parquet, open_file
from perf.traces.run import TRACES, Parameter, Run, WrittenFile, new_run, save_run, software_version
from perf.traces.schema import COLUMN_NAMES, SCHEMA_VERSION, Domain, StepOutcome, TraceStep

EPOCH_NS: Final = 1_790_000_000_000_000_000
NODE: Final = "simulation"
_OUTCOMES: Final = {
    Fate.IN_FLIGHT: StepOutcome.OK,
    Fate.DELIVERED: StepOutcome.OK,
    Fate.EXPIRED: StepOutcome.FAILED,
    Fate.LOST: StepOutcome.LOST,
    Fate.DROPPED: StepOutcome.REFUSED,
}
_BLOCK: Final = 200_000


def record(directory: Path, run: SimulatedRun, parameters: dict[str, Parameter], name: str | None = None) -> Run:
    """Every message from where it was made to where it ended, every stay, and who was connected when."""
    described = new_run("simulation", software_version(), parameters, seed=run.seed, name=name)
    save_run(directory, described)
    form = Format.PARQUET if have_parquet() else Format.JSON_LINES
    file_name = f"simulated.{form}"
    file = open_file(directory / TRACES / file_name, form)
    rows = sum(
        _write(file, blocks) for blocks in (_messages(described, run), _stays(described, run), _ups(described, run))
    )
    file.close()
    end = run.until if run.until is not None else float(np.max(run.ended, initial=0.0))
    done = Run(
        **{
            **{field: getattr(described, field) for field in Run.__slots__},
            "started_ns": EPOCH_NS,
            "ended_ns": EPOCH_NS + round(end * 1e9),
            "written": rows,
            "files": (WrittenFile(file_name, rows),),
        }
    )
    save_run(directory, done)
    return done


def _write(file: TraceFileWriter, blocks: Iterator[Block]) -> int:
    rows = 0
    for block in blocks:
        file.write(block)
        rows += block.rows
    return rows


def _messages(described: Run, run: SimulatedRun) -> Iterator[Block]:
    numbers = np.arange(len(run.created))
    yield from _blocks(described, numbers, run.created, TraceStep.ACCEPTED)
    delivered = np.flatnonzero(run.fates == Fate.DELIVERED)
    yield from _blocks(described, delivered, run.ended[delivered], TraceStep.DELIVERED, {"delivery": Constant("sink")})


def _stays(described: Run, run: SimulatedRun) -> Iterator[Block]:
    for name, visits in run.visits.items():
        over = np.ones(len(visits.done), bool) if run.until is None else visits.done <= run.until
        for fate in (Fate.IN_FLIGHT, Fate.EXPIRED, Fate.DROPPED):
            chosen = np.flatnonzero(over & (visits.fates == fate))
            # A link loses what left its queue in good order: the stay is whole, the message's end is not.
            lost = run.fates[visits.messages[chosen]] == Fate.LOST
            last = run.ended[visits.messages[chosen]] == visits.done[chosen]
            for outcome, part in ((_OUTCOMES[fate], ~(lost & last)), (StepOutcome.LOST, lost & last)):
                yield from _stay_blocks(described, name, visits, chosen[part], outcome)


def _stay_blocks(
    described: Run, name: str, visits: QueueVisits, rows: NDArray[np.int64], outcome: StepOutcome
) -> Iterator[Block]:
    found = visits.found
    for start in range(0, len(rows), _BLOCK):
        part = rows[start : start + _BLOCK]
        extra: dict[str, Values] = {
            "resource": Constant(name if visits.served_while is None else f"{name}~{visits.served_while}"),
            "queued_ns": _ns(visits.queued[part]),
            "started_ns": _ns(visits.started[part]),
            "queue": array("q", found[part].tobytes()),
            "outcome": Constant(outcome),
        }
        yield from _blocks(described, visits.messages[part], visits.done[part], TraceStep.SERVED, extra)


def _ups(described: Run, run: SimulatedRun) -> Iterator[Block]:
    end = run.until if run.until is not None else float(np.max(run.ended, initial=0.0))
    for name, line in run.timelines.items():
        for times, step in ((line.begins, TraceStep.UP), (line.ends, TraceStep.DOWN)):
            seen = times[times <= end]
            extra: dict[str, Values] = {"publication": Constant(""), "resource": Constant(name)}
            yield from _blocks(described, np.zeros(len(seen), np.int64), seen, step, extra)


def _ns(times: Times) -> "array[int]":
    return array("q", np.round(times * 1e9).astype(np.int64).tobytes())


def _blocks(
    described: Run,
    numbers: NDArray[np.int64],
    at: Times,
    step: TraceStep,
    extra: dict[str, Values] | None = None,
) -> Iterator[Block]:
    if not len(numbers):
        return
    times = np.round(at * 1e9).astype(np.int64)
    columns: dict[str, Values] = dict.fromkeys(COLUMN_NAMES, Constant(None))
    columns |= {
        "run": Constant(described.run),
        "publication": Coded(array("q", range(len(numbers))), [f"m{number}" for number in numbers]),
        "step": Constant(step),
        "domain": Constant(Domain.PUSH),
        "node": Constant(NODE),
        "monotonic_ns": array("q", times.tobytes()),
        "wall_ns": array("q", (times + EPOCH_NS).tobytes()),
        "clock": Constant("simulated"),
        "outcome": Constant(StepOutcome.OK),
        "schema": Constant(SCHEMA_VERSION),
    }
    columns |= extra or {}
    yield Block(len(numbers), columns)
