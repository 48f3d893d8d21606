"""Chains that somebody describes: formula and simulation agree where they should, changes do what they say."""

import json
from pathlib import Path

import pytest

from gateway.cli.main import main
from perf.models.assumptions import ModelError
from perf.models.scenario import DescribedQueue, Scenario, WhatIf, WhatIfChange, capacities, lifetime_for, look_ahead

CHAIN = """
rate = 2
[[queues]]
name = "publisher"
service = 0.01
on = 20
off = 10
[[queues]]
name = "broker"
service = 0.2
servers = 2
[[queues]]
name = "subscriber"
service = 0.1
variation = 0
link_on = 30
link_off = 10
"""


@pytest.fixture
def chain(tmp_path: Path) -> Path:
    path = tmp_path / "chain.toml"
    path.write_text(CHAIN)
    return path


def one(**queue: object) -> Scenario:
    return Scenario(2.0, (DescribedQueue("q", **({"service": 0.2} | queue)),))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "queue",
    [
        {},
        {"variation": 0.0},
        {"variation": 3.0},
        {"servers": 2, "service": 0.6},
        {"servers": 3, "service": 0.8, "variation": 0.0},
        {"places": 3, "service": 0.5},
        {"on": 20.0, "off": 10.0, "service": 0.1},
    ],
)
def test_formula_and_simulation_agree_on_each_kind_of_queue(queue: dict[str, object]) -> None:
    # Disconnections are few beside messages: it takes more of these for a mean as sure.
    [row] = look_ahead(one(**queue), 800_000 if "off" in queue else 150_000, 3).queues
    assert row.mean is not None
    assert row.simulated_mean == pytest.approx(row.mean, rel=0.08)
    assert row.simulated_success == pytest.approx(row.success, abs=0.01)
    if row.p95 is not None:
        assert row.simulated_p95 == pytest.approx(row.p95, rel=0.08)
        assert row.simulated_p99 == pytest.approx(row.p99, rel=0.1)


def test_what_is_lost_does_not_load_the_queues_behind() -> None:
    lossy = DescribedQueue("first", 0.1, link_on=10.0, link_off=10.0)
    scenario = Scenario(4.0, (lossy, DescribedQueue("second", 0.2)))
    assert [rate for _, rate in capacities(scenario)] == pytest.approx([10.0, 10.0])
    outlook = look_ahead(scenario, 100_000, 5)
    assert outlook.queues[1].rate == pytest.approx(2.0)
    assert outlook.success == pytest.approx(0.5)
    assert outlook.simulated_success == pytest.approx(0.5, abs=0.02)
    assert [row.simulated_success for row in outlook.queues] == pytest.approx([0.5, 1.0], abs=0.02)
    assert outlook.balanced


def test_a_lifetime_and_the_smallest_that_reaches_a_share() -> None:
    scenario = one(service=0.001, on=20.0, off=10.0)
    lifetime = lifetime_for(scenario, 0.9)
    outlook = look_ahead(Scenario(2.0, scenario.queues, lifetime), 100_000, 2)
    assert outlook.success == pytest.approx(0.9)
    assert outlook.simulated_success == pytest.approx(0.9, abs=0.02)
    assert outlook.mean is None, "the sum knows nothing of what expires"
    assert outlook.simulated_mean is not None
    with pytest.raises(ModelError, match="no lifetime reaches 95"):
        lifetime_for(one(link_on=9.0, link_off=1.0), 0.95)


def test_past_saturation_there_is_no_time_and_the_queue_is_named() -> None:
    outlook = look_ahead(one(service=0.6), 1000, 1)
    assert outlook.mean is None
    assert outlook.simulated_mean is None
    assert outlook.warnings == ("q is saturated: it gets 2 messages/s and can serve 1.667",)


def test_changes_are_values_or_factors() -> None:
    scenario = Scenario(2.0, (DescribedQueue("a", 0.1, servers=4), DescribedQueue("b", 0.1, on=1.0, off=1.0)), 5.0)
    changed = WhatIf(
        WhatIfChange.parse("x2", ""),
        WhatIfChange.parse("/2", ""),
        WhatIfChange.parse("0.05", ""),
        WhatIfChange.parse("x3", ""),
    )
    after = changed.of(scenario)
    assert (after.rate, after.lifetime) == (4.0, 15.0)
    assert [(queue.servers, queue.service) for queue in after.queues] == [(2, 0.05), (1, 0.05)]
    with pytest.raises(ModelError, match="nothing to multiply"):
        WhatIf(lifetime=WhatIfChange.parse("x2", "")).of(one())


@pytest.mark.parametrize("text", ["", "x", "x0", "-1", "nan", "xinf", "two"])
def test_changes_that_are_none_are_refused(text: str) -> None:
    with pytest.raises(ModelError, match="expected"):
        WhatIfChange.parse(text, "--rate")


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("rate = 1", "queues"),
        ("rate = 1\nqueues = []", "expected 1 to 200"),
        ('rate = 0\n[[queues]]\nname = "a"\nservice = 1', "rate is 0"),
        ('rate = 1\n[[queues]]\nname = "a"\nservice = -1', "queue a: service is -1"),
        ('rate = 1\n[[queues]]\nname = "a"\nservice = 1\nserver = 2', "server"),
        ('rate = 1\n[[queues]]\nname = "a"\nservice = 1\nservers = 2\non = 1\noff = 1', "several servers"),
        ('rate = 1\n[[queues]]\nname = "a"\nservice = 1\n[[queues]]\nname = "a"\nservice = 1', "the same name"),
        ("rate = nan\nqueues = [{name='a', service=1}]", "rate is nan"),
        ("rate =", "Invalid value"),
    ],
)
def test_descriptions_that_cannot_be_are_refused_in_one_line(
    text: str, says: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "chain.toml"
    path.write_text(text)
    assert main(["predict", "if", str(path)]) == 2
    error = capsys.readouterr().err
    assert says in error
    assert error.count("\n") == 1


def test_what_if_shows_both_and_draws_a_chart(chain: Path, capsys: pytest.CaptureFixture[str]) -> None:
    chart = chain.with_name("chart.png")
    words = ["predict", "if", str(chain), "--rate", "x2", "--workers", "/2", "--lifetime", "10", "--messages", "4000"]
    assert main([*words, "--chart", str(chart)]) == 0
    shown = capsys.readouterr().out
    assert "as it is: 2 messages a second, which live for ever" in shown
    assert "what if: 4 messages a second, which live for 10 s" in shown
    assert shown.index("first of all: broker: the formula is -") < shown.index("queue "), "before the numbers"
    assert shown.count("end to end") == 2
    assert chart.read_bytes().startswith(b"\x89PNG")
    assert main(["predict", "if", str(chain), "--json", "--messages", "2000"]) == 0
    told = json.loads(capsys.readouterr().out)["as it is"]
    assert [queue["name"] for queue in told["queues"]] == ["publisher", "broker", "subscriber"]
    assert told["success"] == pytest.approx(0.75)


def test_capacity_of_a_description_names_the_first(chain: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["predict", "capacity", "--description", str(chain)]) == 0
    shown = capsys.readouterr().out
    assert shown.startswith("the first to saturate is broker, at 10 messages a second; 2 come")
    assert "publisher: 3.0% used, saturates at 66.67" in shown
    assert main(["predict", "capacity"]) == 2
    assert "and not both" in capsys.readouterr().err
