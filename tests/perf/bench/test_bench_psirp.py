"""The parts of `psph bench psirp` that can be run in a moment."""

import asyncio
from contextlib import ExitStack
from pathlib import Path

import pytest

from perf.bench import load, psirp, psirp_rate
from perf.bench.psirp import IN_PROCESS, _in_process, _recovery


def no_tick(label: str, steps: float = 1) -> None:
    """Nobody watches."""


def test_it_is_a_member_of_the_family() -> None:
    assert load("psirp").name == "psirp"


def test_publications_go_and_come_back_over_every_distance(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(psirp, "HOPS", (1, 2))
    monkeypatch.setattr(psirp, "SIZES", (100, 5_000))
    monkeypatch.setattr(psirp, "WINDOW_BYTES", 10_000)
    monkeypatch.setattr(psirp, "MATCHED_ITEMS", 5)
    monkeypatch.setattr(psirp, "_matches", no_matches)
    rows = asyncio.run(_in_process(tmp_path, 2, no_tick))
    publications = [row for row in rows if row["measured"] == "publications"]
    assert [(row["bytes"], row["hops"]) for row in publications] == [(100, 1), (100, 2), (5_000, 1), (5_000, 2)]
    assert all(row["carrier"] == IN_PROCESS for row in rows)
    assert all(isinstance(row["p50 ms"], float) and row["p50 ms"] > 0 for row in publications)
    assert all(isinstance(row["a second"], float) and row["a second"] > 0 for row in publications)


async def no_matches(data: Path) -> dict[str, object]:
    return {"measured": "matches", "carrier": IN_PROCESS}


def test_a_new_path_is_found_after_a_link_died(tmp_path: Path) -> None:
    assert 0 < asyncio.run(_recovery(tmp_path, 0.05)) < 30


async def test_rates_count_every_publication_at_every_receiver(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(psirp_rate, "SHAPES", ((1, 1), (3, 2)))
    near, far = await psirp_rate.measure(tmp_path, 1, 40, no_tick)
    for found in (near, far):
        assert found.rate > 0
        assert found.rate_alone > 0
        assert found.part_of_bare > 0
        assert found.frames_each > (found.hops - 1 + found.receivers) / psirp_rate.WINDOW


def test_the_last_hop_goes_to_each_receiver() -> None:
    assert psirp_rate.joined(1, 1) == [(0, 1)]
    assert psirp_rate.joined(1, 3) == [(0, 1), (1, 2), (2, 3)]
    assert psirp_rate.joined(3, 2) == [(0, 1), (1, 2), (1, 3), (1, 4)]


def test_a_bare_loop_loses_nothing() -> None:
    with ExitStack() as stack:
        frames, seconds = psirp_rate.BareLinks(3, 2, stack).move(2)
    assert frames == 2 * psirp_rate.WINDOW * (1 + 3)
    assert seconds > 0
