"""Open-loop schedules, the generator's ledger, runs put together from parts, and a run that is interrupted."""

import asyncio
import json
import signal
import sys
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from perf.bench.workload import BENCHMARK
from perf.traces.files import take_inventory
from perf.traces.run import TRACES, WrittenFile, load_run, new_run, save_run
from perf.workloads.arrivals import BURST, MOST_ARRIVALS, ArrivalShape, ArrivalStep, DuePublication, Pacer, schedule
from perf.workloads.growth import GrowthWatch, slope
from perf.workloads.kinds import FULL, PAYLOADS, QUICK, WorkloadKind, plans, run_for
from perf.workloads.ledger import WorkloadLedger
from perf.workloads.parts import PARTS, merge_parts
from perf.workloads.world import SMALLEST, atom
from tests.waiting import until

steps = st.builds(ArrivalStep, st.floats(0.5, 200), st.floats(0.1, 5), st.sampled_from(ArrivalShape))


@given(st.lists(steps, min_size=1, max_size=4), st.integers(0, 2**32))
def test_a_schedule_is_in_order_within_its_steps_and_the_same_for_its_seed(
    given_steps: list[ArrivalStep], seed: int
) -> None:
    arrivals = schedule(given_steps, seed)
    assert arrivals == schedule(given_steps, seed)
    assert [arrival.number for arrival in arrivals] == list(range(len(arrivals)))
    times = [arrival.at for arrival in arrivals]
    assert times == sorted(times)
    assert all(0 <= at <= sum(step.seconds for step in given_steps) + 1e-9 for at in times)
    assert {arrival.load for arrival in arrivals} <= {step.rate for step in given_steps}


@pytest.mark.parametrize("shape", ArrivalShape)
def test_every_shape_has_the_mean_rate_that_was_asked_for(shape: ArrivalShape) -> None:
    assert schedule([ArrivalStep(100, 50, shape)], 3)[-1].at > 48
    assert abs(len(schedule([ArrivalStep(100, 50, shape)], 3)) - 5000) < 5 * 5000**0.5


def test_bursts_come_at_once_and_steady_ones_at_equal_distances() -> None:
    bursts = [arrival.at for arrival in schedule([ArrivalStep(40, 2, ArrivalShape.BURSTS)], 1)]
    assert [bursts.count(at) for at in sorted(set(bursts))] == [BURST] * 4
    steady = [arrival.at for arrival in schedule([ArrivalStep(40, 2)], 1)]
    assert {round(later - before, 9) for before, later in pairwise(steady)} == {0.025}


@given(st.floats(-5, 5), st.integers(0, 10**6), st.floats(20, 2000))
def test_growth_is_that_after_the_first_minutes(a_second: float, first: int, seconds: float) -> None:
    watch = GrowthWatch(dict)
    at = [number * seconds / 100 for number in range(101)]
    # Caches that fill first are left out; a straight line afterwards is found whatever its height.
    settled = min(300.0, seconds / 2)
    watch.samples[0] = [(when, round((first + max(0.0, when - settled) * a_second) * 1024**2)) for when in at]
    found = watch.slope(0)
    assert found is not None
    assert abs(found - 60 * a_second) < 0.01 + abs(a_second) * 0.01
    assert watch.slope(1) is None
    assert slope([(1.0, 5)]) is None


@pytest.mark.parametrize(("rate", "seconds"), [(0.0, 1.0), (1.0, 0.0), (-1.0, 1.0), (MOST_ARRIVALS, 2.0)])
def test_steps_that_make_no_sense_are_refused(rate: float, seconds: float) -> None:
    with pytest.raises(ValueError, match="a step has"):
        ArrivalStep(rate, seconds)


@given(st.lists(st.floats(0, 10), max_size=30).map(sorted), st.lists(st.floats(0, 11), max_size=30).map(sorted))
def test_whoever_is_late_gets_everything_that_became_due(times: list[float], asked: list[float]) -> None:
    arrivals = [DuePublication(number, at, 1.0) for number, at in enumerate(times)]
    pacer = Pacer(arrivals)
    got: list[DuePublication] = []
    for passed in asked:
        due = pacer.due(passed)
        assert all(arrival.at <= passed for arrival in due)
        got += due
        upcoming = pacer.next_at()
        assert upcoming is None or upcoming > passed
    assert got == arrivals[: len(got)]
    assert pacer.left == len(arrivals) - len(got)


def test_delays_count_from_when_a_publication_was_due_until_the_last_subscriber_has_it() -> None:
    ledger = WorkloadLedger()
    ledger.offered(1, due=10.0, load=5.0, subscribers=2)
    ledger.delivered(1, hop=0, subscriber=0, now=10.5)
    ledger.delivered(1, hop=0, subscriber=0, now=10.6)
    assert ledger.is_waiting(1)
    ledger.delivered(1, hop=3, subscriber=0, now=12.0)
    assert not ledger.is_waiting(1)
    ledger.delivered(1, hop=3, subscriber=0, now=12.5)
    assert ledger.repeated == 2
    assert ledger.steps[5.0].delays == [2.0]
    assert ledger.delays == {(5.0, 0): [0.5], (5.0, 3): [2.0]}


def test_what_was_shed_refused_or_never_came_is_counted() -> None:
    ledger = WorkloadLedger()
    for number in range(4):
        ledger.offered(number, 0.0, 7.0, 1)
    ledger.failed(0)
    ledger.failed(99)
    ledger.shed(7.0)
    ledger.delivered(1, 0, 0, 1.0)
    assert ledger.give_up() == 2
    count = ledger.steps[7.0]
    assert (count.offered, count.completed, count.failed, count.shed) == (5, 1, 1, 1)


@given(st.sampled_from(PAYLOADS), st.integers(0, 99_999_999), st.integers(0, 999))
def test_documents_have_the_size_that_was_asked_for(size: int, number: int, nonce: int) -> None:
    assert len(atom(number, size, nonce)) == size
    assert atom(number, size, nonce) != atom(number, size, (nonce + 1) % 1000)
    assert min(PAYLOADS) == SMALLEST == 287
    assert max(PAYLOADS) == 1442


@pytest.mark.parametrize("kind", WorkloadKind)
@pytest.mark.parametrize("scale", [QUICK, FULL])
def test_runs_of_a_workload_say_what_they_offer_and_have_names_of_their_own(kind: WorkloadKind, scale: object) -> None:
    found = plans(kind, QUICK if scale is QUICK else FULL, minutes=1.0)
    assert len({plan.variant for plan in found}) == len(found)
    for plan in found:
        run = run_for(plan, kind, seed=4)
        assert run.run != run_for(plan, kind, seed=4).run
        assert run.seed == 4
        assert run.parameters["workload"] == kind.value
        assert run.parameters["offered"]
        assert run.machine.cores > 0
        assert plan.publications > 0


def part_of(directory: Path, name: str, run: str, rows: int) -> None:
    part = directory / PARTS / name
    made = new_run("live", "v", {}, name=run)
    save_run(part, made)
    (part / TRACES / "trace-000001.jsonl").write_text("{}\n" * rows)
    (part / TRACES / ".trace-000002.jsonl.part").write_text("{")
    save_run(part, replace(made, ended_ns=1, written=rows, dropped=2, files=(WrittenFile("trace-000001.jsonl", rows),)))


def test_parts_of_one_run_are_put_together_and_others_left_alone(tmp_path: Path) -> None:
    save_run(tmp_path, replace(new_run("w", "v", {}, name="mine"), ended_ns=1, written=1, dropped=1))
    part_of(tmp_path, "gate-0", "mine", 3)
    part_of(tmp_path, "gate-3", "mine", 4)
    part_of(tmp_path, "other", "yours", 9)
    (tmp_path / PARTS / "junk").mkdir()
    run = merge_parts(tmp_path)
    assert (run.written, run.dropped) == (8, 5)
    assert {file.name: file.rows for file in run.files} == {
        "gate-0-trace-000001.jsonl": 3,
        "gate-3-trace-000001.jsonl": 4,
    }
    assert load_run(tmp_path) == run
    assert (tmp_path / PARTS / "other" / TRACES / "trace-000001.jsonl").exists()
    assert merge_parts(tmp_path) == run


@settings(max_examples=20)
@given(st.floats())
def test_minutes_that_make_no_sense_are_refused(minutes: float) -> None:
    if not 0 < minutes <= 7 * 24 * 60:
        from argparse import Namespace

        from perf.bench.family import BenchError

        with pytest.raises(BenchError, match="--minutes"):
            BENCHMARK.run(Namespace(kind="soak", quick=True, minutes=minutes, run=None, seed=1))


async def test_an_interrupted_run_is_a_run(tmp_path: Path) -> None:
    """A real process, SIGINT in the middle: what was traced until then can be read."""
    out = tmp_path / "runs"
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "gateway.cli.main", "bench", "workload", "soak", "--quick", "--minutes", "5", "--json",
        "--run", str(out), stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
    )  # fmt: skip
    try:
        # The gateways' writers begin a file with the first measured publication.
        def has_begun() -> bool:
            assert process.returncode is None
            return any(out.glob(f"soak/{PARTS}/gate-3*/{TRACES}/.*"))

        await until(has_begun, 90)
        process.send_signal(signal.SIGINT)
        async with asyncio.timeout(60):
            said, errors = await process.communicate()
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    assert process.returncode == 0, errors.decode()
    assert json.loads(said)["parameters"]["partial"] is True
    run = load_run(out / "soak")
    assert run.ended_ns is not None
    assert run.written > 0
    files = take_inventory([out / "soak"]).files
    assert {file.state.value for file in files} == {"good"}
    assert {file.path.name.split("-trace")[0].rsplit("-", 2)[0] for file in files if "gate" in file.path.name} == {
        "gate-0",
        "gate-3",
    }
    assert not (out / "soak" / PARTS).exists()
