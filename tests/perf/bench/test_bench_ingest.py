"""The parts of `psph bench ingest` that can be run in a moment."""

import argparse
import math
import os
from pathlib import Path

import pytest
import uvloop

from perf.bench import load
from perf.bench.family import BenchError
from perf.bench.ingest import FULL, IngestBench, IngestScale
from perf.bench.ingest_chart import draw
from perf.bench.ingest_load import OfferedStep, document
from perf.bench.ingest_search import SearchSteps
from perf.bench.ingest_systems import BARE, HUB, LOOP, cpu_of, hops
from push_hub.intake.entries import take_apart

QUICKEST = IngestScale((BARE, HUB), (1400,), False, 8, SearchSteps(0.1, 0.1, 0, 100.0), 2, 0.1)


def no_tick(label: str, steps: float = 1) -> None:
    """Nobody watches."""


def step(delays: list[tuple[float, float]], *, refused: int = 0, lost: int = 0) -> OfferedStep:
    offered = len(delays) + refused + lost
    return OfferedStep(100.0, 1.0, offered, offered - refused, refused, delays=delays)


EVEN = [(at / 100, 0.01) for at in range(100)]


def test_it_is_a_member_of_the_family() -> None:
    assert load("ingest").name == "ingest"


def test_documents_are_feeds_of_the_size_that_was_asked_for() -> None:
    for size in (300, 1400, 50_000):
        body = document(7, size)
        feed = take_apart(body, "application/atom+xml")
        assert len(body) == size
        assert feed is not None
        assert len(feed.entries) == 1


def test_a_rate_is_followed_when_nothing_is_lost_or_refused_and_delays_stay() -> None:
    assert step(EVEN).is_followed
    assert not step(EVEN, refused=1).is_followed
    assert not step(EVEN, lost=1).is_followed
    assert not step([(at, 1.5) for at, _ in EVEN]).is_followed
    assert not step([(at, 0.01 + 0.2 * at) for at, _ in EVEN]).is_followed, "a fifth of the rate is not followed"
    assert step([(at, 0.01 + 0.02 * at) for at, _ in EVEN]).is_followed
    assert not step([]).is_followed


def test_what_a_process_took_is_known_by_its_parts() -> None:
    before = cpu_of(os.getpid())[LOOP]
    sum(math.sqrt(number) for number in range(200_000))
    assert cpu_of(os.getpid())[LOOP] > before


def test_bare_loop_and_hub_are_measured_in_one_run(tmp_path: Path) -> None:
    bench = IngestBench(QUICKEST, 1, no_tick)
    outcome = uvloop.run(bench.run())
    assert [row["system"] for row in outcome.results] == [BARE, HUB]
    assert {len(row) for row in outcome.results} == {len(outcome.results[0])}
    assert any(bar.name == "rate: hub / bare loop" for bar in outcome.bars)
    pytest.importorskip("matplotlib")
    draw(tmp_path / "chart.svg", {name: found.steps for (name, _), found in bench.found.items()})
    assert "<svg" in (tmp_path / "chart.svg").read_text()


def test_every_system_can_be_named() -> None:
    assert set(FULL.systems) > {BARE, HUB, hops(1), hops(3)}
    parser = argparse.ArgumentParser()
    benchmark = load("ingest")
    parser.add_argument("--quick", action="store_true")
    benchmark.configure(parser)
    with pytest.raises(BenchError, match="--bytes 3"):
        benchmark.run(parser.parse_args(["--bytes", "3"]))
