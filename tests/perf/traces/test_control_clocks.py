"""Clocks are compared by what the network says anyway: publications may all go one way."""

import random
from pathlib import Path

import pytest

from perf.pipeline.clocks import ApparentDelay, ClockModel, model_clocks
from perf.traces.formats import Format
from perf.traces.psirp_events import NetworkTracer, TraceClock
from perf.traces.run import new_run
from perf.traces.schema import TraceStep
from perf.traces.writer import TraceWriter, WriterConfig
from psirp_stack.emulation.simulation import SimulatedNetwork
from psirp_stack.links.impairment import Impairment
from tests.perf.traces.test_crossing_traces import rows_of
from tests.psirp_stack.simulated import item, line

MS = 1_000_000
OFFSET_NS, DRIFT, SECONDS = 7_003_200_000, 80e-6, 60.0


def test_control_messages_alone_tell_offset_and_drift(tmp_path: Path) -> None:
    """n2's clock is 7 s ahead and fast; one publication a second goes from n0 to n2, and none comes back."""

    def shown(node: str) -> tuple[int, int]:
        true = round(network.clock.now() * 1e9)
        ahead = OFFSET_NS + round(DRIFT * true) if node == "n2" else 0
        return 10**12 + true + ahead, 10**18 + true + ahead

    run = new_run("test", "1", {}, name="one")
    with TraceWriter(tmp_path / "run", run, WriterConfig(Format.JSON_LINES)) as writer:
        tracers = {
            node: NetworkTracer(writer, clock=TraceClock(f"clock-{node}", lambda node=node: shown(node)))  # type: ignore[misc]
            for node in ("n0", "n1", "n2")
        }
        network = SimulatedNetwork(
            line(3),
            tmp_path,
            impairment=Impairment(delay=0.001),
            observer_of=lambda node: tracers[node].observer_of(node),
        )
        network.run(5.0)
        subscriber, publisher = network.application("n2"), network.application("n0")
        subscriber.subscribe(item(5))
        for number in range(round(SECONDS)):
            network.run(1.0)
            publisher.publish(item(5), b"%d" % number)
        network.close()
    sent = {row["publication"]: row for row in rows_of(tmp_path / "run") if row["step"] == TraceStep.CONTROL_SENT}
    delays = []
    for row in rows_of(tmp_path / "run"):
        if row["step"] == TraceStep.CONTROL_ARRIVED and row["publication"] in sent:
            left = sent[row["publication"]]
            pair = (str(left["clock"]), str(row["clock"]))
            apart = int(row["monotonic_ns"]) - int(left["monotonic_ns"])  # type: ignore[call-overload]
            axis = (left if pair[0] < pair[1] else row)["monotonic_ns"]
            delays.append(ApparentDelay("one", *pair, int(axis), apart, apart, 1))  # type: ignore[call-overload]
    (model,) = [model for model in model_clocks(delays) if model.clock == "clock-n2"]
    assert model.reference == "clock-n0"
    assert model.estimated
    for true in range(5, round(SECONDS), 10):
        own = 10**12 + true * 1000 * MS + OFFSET_NS + round(DRIFT * true * 1000 * MS)
        (piece,) = [piece for piece in model.pieces if piece.begin_ns <= own < piece.end_ns]
        assert piece.margin_ns is not None
        assert piece.margin_ns < 6 * MS
        assert abs(piece.reference_ns(own) - (10**12 + true * 1000 * MS)) <= piece.margin_ns


def exchanged(offset_at: "Offset", seconds: float, backward: float = 0.3) -> list[ApparentDelay]:
    """The fastest exchange of each second between clocks a and b, with queues on the way."""
    rng = random.Random(3)
    fastest: dict[tuple[str, str, int], ApparentDelay] = {}
    for _ in range(round(seconds * 20)):
        true = rng.random() * seconds * 1e9
        delay = 0.4 * MS + rng.expovariate(1 / (0.5 * MS))
        if rng.random() < backward:
            left, arrived, names = true + offset_at(true), true + delay, ("b", "a")
            axis = arrived
        else:
            left, arrived, names = true, true + delay + offset_at(true + delay), ("a", "b")
            axis = left
        found = ApparentDelay("r", *names, round(axis), round(arrived - left), round(arrived - left), 1)
        key = (*names, int(axis // 1e9))
        if key not in fastest or found.least_ns < fastest[key].least_ns:
            fastest[key] = found
    return list(fastest.values())


class Offset:
    """How much b is ahead of a: it drifts, and is set at a time."""

    def __init__(self, ahead: float, drift: float = 0.0, step: float = 0.0, at: float = 0.0) -> None:
        self.ahead, self.drift, self.step, self.at = ahead, drift, step, at

    def __call__(self, true: float) -> float:
        return self.ahead + self.drift * true + (self.step if true >= self.at else 0.0)


@pytest.mark.parametrize(
    ("offset", "pieces"),
    [
        (Offset(-3.2 * MS), 1),
        (Offset(7e13, 200e-6), 1),
        (Offset(0, 0, 50 * MS, 31.4e9), 2),
        (Offset(0, -40e-6, -50 * MS, 31.4e9), 2),
    ],
)
def test_offset_drift_and_steps_are_found_within_the_margin(offset: Offset, pieces: int) -> None:
    (model,) = model_clocks(exchanged(offset, 60.0))
    assert (model.reference, model.clock, model.estimated, len(model.pieces)) == ("a", "b", True, pieces)
    unknown = 0
    for tenth in range(600):
        true = round(tenth * 1e8)
        own = round(true + offset(true))
        found = [piece for piece in model.pieces if piece.begin_ns <= own < piece.end_ns]
        unknown += not found
        for piece in found:
            assert piece.margin_ns is not None
            assert abs(piece.reference_ns(own) - true) <= piece.margin_ns < MS
    assert unknown <= (20 if pieces > 1 else 0)  # within two seconds of the step


def test_one_direction_is_no_estimate_and_nothing_arrives_before_it_left() -> None:
    delays = [delay for delay in exchanged(Offset(-3.2 * MS), 20.0) if delay.clock_from == "a"]
    (model,) = model_clocks(delays)
    assert not model.estimated
    (piece,) = model.pieces
    for delay in delays:
        arrived = delay.axis_ns + delay.least_ns
        assert piece.reference_ns(arrived) >= delay.axis_ns


def test_margins_add_up_along_a_chain_and_the_best_way_is_taken() -> None:
    def both(one: str, other: str, takes: int) -> list[ApparentDelay]:
        return [
            ApparentDelay("r", *pair, at, takes, takes, 1)
            for pair in ((one, other), (other, one))
            for at in range(0, 10**9, 10**8)
        ]

    models = {m.clock: m for m in model_clocks([*both("a", "b", 100), *both("b", "c", 200), *both("a", "c", 1000)])}

    def margin(model: ClockModel) -> float:
        (piece,) = model.pieces
        assert piece.margin_ns is not None
        return piece.margin_ns

    # What drift could do within a second comes on top: less than a microsecond with bounds so tight.
    assert 100 <= margin(models["b"]) < 400
    assert 300 <= margin(models["c"]) < 1000
