"""The hub's benchmark runs whole at a small scale, with real processes. No speed is asserted."""

import os
import time
from pathlib import Path

import pytest
import uvloop

from perf.bench.family import BenchError, Sense
from perf.bench.hub import FULL, QUICK, HubScale, measure, memory_of, stored_subscriptions
from perf.bench.hub_seed import seed_store
from push_hub.hub import DATABASE_NAME
from push_hub.subscriptions import Subscriptions
from storage import Database


def test_a_small_run_measures_everything_it_states() -> None:
    scale = HubScale(60, topics=20, rounds=1, subscriptions_a_round=30, starts=1, lives=1, pings_a_life=3)
    outcome = uvloop.run(measure(scale))
    measured = [(row["measured"], row["on"]) for row in outcome.results]
    assert len(set(measured)) == len(measured) == 12
    assert all(isinstance(row["median"], float) and row["median"] > 0 for row in outcome.results)
    delays = [row for row in outcome.results if row["measured"] == "ping to first delivery, ms"]
    assert [row["samples"] for row in delays] == [3, 3]
    (bar,) = outcome.bars
    assert bar.sense is Sense.AT_MOST
    assert bar.bound == 1.5
    assert bar.value == pytest.approx(float(str(delays[1]["median"])) / float(str(delays[0]["median"])))


def test_the_bar_is_about_a_hundred_thousand_topics_at_both_scales() -> None:
    assert FULL.topics == QUICK.topics == 100_000
    assert FULL.subscriptions == 1_000_000


def test_a_seeded_store_is_one_a_hub_can_read(tmp_path: Path) -> None:
    made: list[int] = []
    seed_store(tmp_path / "hub", 7, 3, lambda t: f"http://t/{t}", lambda t, n: f"http://c/{t}/{n}", made.append)
    assert made == [7]
    assert stored_subscriptions(tmp_path / "hub", "http://t/6") == 3
    assert stored_subscriptions(tmp_path / "hub", "http://t/7") == 0
    with Database.open(tmp_path / "hub" / DATABASE_NAME) as database:
        subscriptions = Subscriptions(database)
        page = subscriptions.page("http://t/3", 0, 10, time.time())
        assert [one.callback for one in page] == ["http://c/3/0", "http://c/3/1", "http://c/3/2"]
        assert database.read("PRAGMA integrity_check") == [("ok",)]


def test_memory_is_read_from_the_kernel() -> None:
    assert memory_of(os.getpid()) > 1
    with pytest.raises((BenchError, OSError)):
        memory_of(2**22 + 1)
