"""Records made by hand, small enough to compute every figure on paper. Times are in milliseconds.

Run `one`, gateways b (clock cb) and a (clock ca, whose wall clock is 1 ms ahead):

p1..p4 start at b at 100, 200, 300, 400: pinged, fetched +1, accepted +3, published +4, received at a +4+c,
relayed +5+c, delivered at a +5+c+f and at b +3+l, with c = 2, 4, 6, 8; f = 1, 1, 2, 2; l = 1, 2, 3, 4;
payload 300, 400, 500, 600.
p5 goes from a to b: accepted 900, published 901, received 903, relayed 904, delivered 905.
p6 is lost: accepted 1000, published 1001, delivered at b 1002. p7 has no end, p8 no start. p9's only delivery is
given up. p1's delivery at a is made again 50 ms later; the record of p2's delivery at b is there twice.

Run `two` has three publications that stay at b, each delivered 10 ms after it was accepted.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path

from perf.traces.blocks import block_of_records
from perf.traces.formats import Format, open_file
from perf.traces.run import TRACES, new_run, save_run
from perf.traces.schema import Domain, StepOutcome, TraceRecord, TraceStep

MS = 1_000_000
EPOCH = 1_790_000_000_000 * MS
AHEAD = 1
CARRY, FAR, LOCAL = (2, 4, 6, 8), (1, 1, 2, 2), (1, 2, 3, 4)
PSIRP_STEPS = (TraceStep.PUBLISHED, TraceStep.FORWARDED, TraceStep.RECEIVED)


def at(
    publication: str,
    step: TraceStep,
    node: str,
    ms: float,
    *,
    run: str = "one",
    hop: int | None = None,
    delivery: str | None = None,
    payload: int | None = None,
    load: float | None = None,
    outcome: StepOutcome = StepOutcome.OK,
) -> TraceRecord:
    domain = Domain.PSIRP if step in PSIRP_STEPS else Domain.PUSH
    monotonic = round(ms * MS) + (7_000 if node == "a" else 50_000) * MS
    wall = EPOCH + round((ms + (AHEAD if node == "a" else 0)) * MS)
    return TraceRecord(
        run, publication, step, domain, node, "t", None, None, payload, hop, delivery, None, load, monotonic, wall,
        f"c{node}", outcome,
    )  # fmt: skip


def crossing(number: int) -> Iterator[TraceRecord]:
    name, start = f"p{number + 1}", 100 * (number + 1)
    c, f, local = CARRY[number], FAR[number], LOCAL[number]

    def step(step: TraceStep, node: str, ms: float, hop: int | None = None, delivery: str | None = None) -> TraceRecord:
        return at(name, step, node, start + ms, hop=hop, delivery=delivery, payload=300 + 100 * number, load=9.0)

    yield step(TraceStep.PINGED, "b", 0)
    yield step(TraceStep.FETCHED, "b", 1)
    yield step(TraceStep.ACCEPTED, "b", 3)
    yield step(TraceStep.PUBLISHED, "b", 4, hop=0)
    yield step(TraceStep.RECEIVED, "a", 4 + c, hop=2)
    yield step(TraceStep.RELAYED, "a", 5 + c)
    yield step(TraceStep.DELIVERED, "a", 5 + c + f, delivery="1")
    yield step(TraceStep.DELIVERED, "b", 3 + local, delivery="1")
    if number == 0:
        yield step(TraceStep.DELIVERED, "a", 5 + c + f + 50, delivery="1")
    if number == 1:
        yield step(TraceStep.DELIVERED, "b", 3 + local, delivery="1")


def run_one() -> list[TraceRecord]:
    return [
        *(record for number in range(4) for record in crossing(number)),
        at("p5", TraceStep.ACCEPTED, "a", 900),
        at("p5", TraceStep.PUBLISHED, "a", 901, hop=0),
        at("p5", TraceStep.RECEIVED, "b", 903, hop=2),
        at("p5", TraceStep.RELAYED, "b", 904),
        at("p5", TraceStep.DELIVERED, "b", 905, delivery="2"),
        at("p6", TraceStep.ACCEPTED, "b", 1000),
        at("p6", TraceStep.PUBLISHED, "b", 1001, hop=0),
        at("p6", TraceStep.DELIVERED, "b", 1002, delivery="1"),
        at("p7", TraceStep.ACCEPTED, "b", 1100, load=1000.0),
        at("p8", TraceStep.DELIVERED, "a", 1200, delivery="1"),
        at("p9", TraceStep.ACCEPTED, "b", 1300, load=1000.0),
        at("p9", TraceStep.DELIVERED, "b", 1301, delivery="1", outcome=StepOutcome.FAILED),
        at("p9", TraceStep.FINISHED, "b", 1302),
    ]


def run_two() -> list[TraceRecord]:
    return [
        record
        for number in range(3)
        for record in (
            at(f"q{number}", TraceStep.ACCEPTED, "b", 100 * number, run="two"),
            at(f"q{number}", TraceStep.DELIVERED, "b", 100 * number + 10, run="two", delivery="1"),
        )
    ]


def write_run(directory: Path, name: str, files: Sequence[Sequence[TraceRecord]], form: Format) -> Path:
    save_run(directory, new_run("test", "1", {"by": "hand"}, seed=1, name=name))
    for number, records in enumerate(files):
        file = open_file(directory / TRACES / f"trace-{number:06d}.{form}", form)
        file.write(block_of_records(records))
        file.close()
    return directory
