"""The benchmark of failures: every part of it runs, and its bars hold in networks of one process."""

import json

import pytest

from gateway.cli.main import main
from perf.bench.failover import REROUTE_BAR, SILENT_BAR, _bound


def test_every_failure_is_measured_and_nothing_is_lost(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["bench", "failover", "--nodes", "6", "--rounds", "1", "--no-processes", "--json", "--strict"]
    assert main(arguments) == 0
    found = json.loads(capsys.readouterr().out)
    assert [row["what"] for row in found["results"]] == [
        "link goes down",
        "link goes down, no topology manager",
        "link fails silently",
        "node with both roles dies",
        "partition: each half serves",
        "merge",
    ]
    assert all(bar["holds"] for bar in found["bars"])
    assert all(row["lost"] == 0 for row in found["results"])
    by_name = {row["what"]: row["seconds"] for row in found["results"]}
    # A link that says nothing is missed after some silent hellos, so the measure tells the two apart.
    assert by_name["link goes down"] < REROUTE_BAR < by_name["link fails silently"] < SILENT_BAR


def test_each_row_has_its_bound() -> None:
    assert _bound("link goes down") == REROUTE_BAR
    assert _bound("link fails silently") == SILENT_BAR
