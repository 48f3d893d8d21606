"""The fuzzer itself: repeatable, counts everything, notices a target that fails; and a short run that must pass."""

import json
import random
from dataclasses import replace
from itertools import islice

import pytest

from gateway.cli.main import main
from psirp_stack.forwarding_model import Decision, Drop
from psirp_stack.tools.reference import reference_decision
from trials.fuzz.drawn import drawn_frames
from trials.fuzz.wire import (
    HYPOTHESIS_FRAMES,
    MAX_FAILURES_KEPT,
    SEED_FRAMES,
    codec_target,
    differential,
    fast_target,
    forwarder_target,
    fuzz,
    fuzz_table,
    hostile_frames,
    reference_target,
    seed_frames,
)

BARE = b"\x01\x00\xff\x00\x01" + bytes(37)
"""The shortest frame there is: a forwarding header that nothing follows."""


def test_a_short_run_passes_and_reaches_every_outcome() -> None:
    report = fuzz({"codec": codec_target, "reference": reference_target(), "forwarder": fast_target()}, 6_000, seed=3)
    assert report.failures == []
    assert report.passed
    assert report.frames == 6_000
    assert set(report.reasons["codec"]) == {
        "parsed",
        "refused: cut short",
        "refused: is not known",
        "refused: a second",
        "refused: was announced",
        "refused: has proto",
    }
    dropped = {f"dropped: {drop.value}" for drop in Drop if drop is not Drop.LOOP}
    went = {"forwarded", "delivered", "forwarded and delivered"}
    assert set(report.reasons["reference"]) == dropped | went
    assert set(report.reasons["forwarder"]) == dropped | went | {"dropped: loop"}


def test_the_same_seed_gives_the_same_frames_and_leaves_the_global_generator_alone() -> None:
    state = random.getstate()
    first = list(islice(hostile_frames(1), 300))
    assert random.getstate() == state
    assert first == list(islice(hostile_frames(1), 300))
    assert first != list(islice(hostile_frames(2), 300))


def test_hypothesis_frames_are_whole_repeatable_and_may_be_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    drawn = drawn_frames(50, 7)
    assert drawn == drawn_frames(50, 7) != drawn_frames(50, 8)
    assert {codec_target(frame) for frame in drawn} == {"parsed"}
    assert len(seed_frames(random.Random(0))) == SEED_FRAMES + HYPOTHESIS_FRAMES
    monkeypatch.setattr("trials.fuzz.wire.find_spec", lambda _: None)
    assert len(seed_frames(random.Random(0))) == SEED_FRAMES
    assert not fuzz({"codec": codec_target}, 10, seed=0).hypothesis


def test_a_target_that_raises_fails_the_run_and_every_frame_is_still_counted() -> None:
    def fragile(frame: bytes) -> str:
        return str(frame[41])

    report = fuzz({"fragile": fragile}, 1_000, seed=0)
    assert not report.passed
    assert report.failed == report.reasons["fragile"]["raised IndexError"] > MAX_FAILURES_KEPT
    assert len(report.failures) == MAX_FAILURES_KEPT
    assert all(len(failure.frame) < 42 for failure in report.failures)
    assert report.every_frame_counted


@pytest.mark.parametrize(
    ("decision", "complaint"),
    [
        (Decision((1,), False, b""), "disagree"),
        (Decision((), False, b"", Drop.NO_MATCH), "disagree"),
    ],
)
def test_a_forwarder_that_takes_malformed_frames_is_noticed(decision: Decision, complaint: str) -> None:
    with pytest.raises(AssertionError, match=complaint):
        forwarder_target(lambda frame, arrival: decision)(b"\x09")


@pytest.mark.parametrize(
    ("decision", "complaint"),
    [
        (Decision((), False, b"", Drop.MALFORMED), "disagree"),
        (Decision((), False, b""), "goes nowhere"),
        (Decision((1,), False, b"", Drop.NO_MATCH), "goes nowhere"),
        (Decision((1,), False, BARE), "back out"),
    ],
)
def test_a_forwarder_that_breaks_a_rule_is_noticed(decision: Decision, complaint: str) -> None:
    with pytest.raises(AssertionError, match=complaint):
        forwarder_target(lambda frame, arrival: decision)(BARE)


def test_a_forwarder_that_differs_from_the_reference_is_noticed() -> None:
    table = fuzz_table()

    def forgetful(frame: bytes, arrival: int | None) -> Decision:
        decision = reference_decision(frame, arrival, table)
        return replace(decision, frame=frame)  # the TTL stays as it was

    report = fuzz({"forgetful": forwarder_target(differential(forgetful))}, 300, seed=0)
    assert report.failed
    assert "the reference" in report.failures[0].error
    same = fuzz({"same": forwarder_target(differential(lambda f, a: reference_decision(f, a, table)))}, 300, seed=0)
    assert same.passed


def test_progress_is_told() -> None:
    done: list[int] = []
    fuzz({"codec": codec_target}, 3_500, 0, done.append)
    assert sum(done) == 3_000


def test_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["fuzz", "wire", "--frames", "500", "--seed", "4", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["passed"] is True
    assert {name: sum(counts.values()) for name, counts in document["reasons"].items()} == {
        "codec": 500,
        "reference": 500,
        "forwarder": 500,
    }
    assert main(["fuzz", "wire", "--frames", "200", "--target", "codec"]) == 0
    assert "0 frames raised" in capsys.readouterr().out
    assert main(["fuzz", "wire", "--frames", "0"]) == 2
    assert "--frames takes" in capsys.readouterr().err
