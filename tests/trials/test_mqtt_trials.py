"""Short runs of what is killed and what is fuzzed; and a judge that must see what it is for."""

import argparse
import json
import shutil
from collections import Counter

import pytest

from gateway.cli.main import main
from perf.bench import mqtt as bench
from trials.crash.mqtt_driver import _judged, _Ledger
from trials.fuzz.mqtt import FuzzedBroker


def test_a_few_kills_lose_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["crash", "mqtt", "--kills", "2", "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert said["acknowledged"] > 0
    assert said["delivered"] >= 3 * said["acknowledged"]
    assert said["problems"] == {}


@pytest.mark.skipif(shutil.which("mosquitto") is None, reason="mosquitto is not installed")
def test_the_benchmark_measures_what_it_says(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bench, "QUICK", bench.MqttScale(1, 2_000, 500, 20, 2))
    outcome = bench.BENCHMARK.run(argparse.Namespace(quick=True))
    assert [(row["what"], row["broker"]) for row in outcome.results[:4]] == [
        ("QoS 0", "mosquitto"),
        ("QoS 0", "psph"),
        ("QoS 1", "mosquitto"),
        ("QoS 1, durable", "psph"),
    ]
    assert all(isinstance(row["per_second"], int) and row["per_second"] > 0 for row in outcome.results)
    assert len(outcome.bars) == 4


def test_the_judge_sees_what_is_lost_and_what_comes_twice() -> None:
    ledger = _Ledger()
    ledger.acknowledged |= {("w", 1, 1), ("w", 2, 2), ("w", 2, 4)}
    ledger.arrived["r"] = Counter({("w", 1, 1): 2, ("w", 2, 2): 2})
    ledger.sessions_lost = 1
    report = _judged(0, 1, 1.0, ledger, 0.0, [])
    assert report.problems == {
        "acknowledged and lost": 1,
        "QoS 2 more than once": 1,
        "sessions that were not there again": 1,
    }
    assert report.repeated == 1
    assert not report.passed


def test_a_short_run_of_hostile_packets_raises_nothing_and_reaches_every_outcome() -> None:
    broker = FuzzedBroker(3)
    targets, seen = broker.targets(), set()
    packets = broker.hostile()
    for _ in range(3_000):
        packet = next(packets)
        seen |= {target(packet) for target in targets.values()}
    assert seen == {"taken", "sent away", "closed"}
    bounds = broker.broker.config
    assert len(broker.broker.sessions) <= bounds.max_sessions
    assert len(broker.broker.retained) <= bounds.max_retained
    assert all(one.queued <= bounds.max_queued for one in broker.broker.sessions.values())
