"""`psph bench scale` with small networks."""

import argparse

import pytest

from perf.bench import load, scale
from perf.bench.family import BenchError


def options(*nodes: int, idle: float = 2.0) -> argparse.Namespace:
    return argparse.Namespace(nodes=list(nodes), seed=1, idle=idle, quick=True)


def test_networks_of_both_sizes_and_the_ring_are_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scale, "RING", 40)
    outcome = load("scale").run(options(6, 24))
    assert [row["network"] for row in outcome.results] == ["backbone 6", "backbone 24", "ring 40"]
    for row in outcome.results[:2]:
        idle = row["idle frames/s by link"]
        assert isinstance(idle, float)
        assert 2 < idle < 6
    assert [bar.holds for bar in outcome.bars] == [True, True, True]


def test_what_is_no_network_is_refused() -> None:
    with pytest.raises(BenchError, match="at least 5"):
        load("scale").run(options(2))
