"""The benchmark of congestion: what it measures on a virtual clock holds its bars, and wrong numbers are refused."""

import json

import pytest

from gateway.cli.main import main


def test_two_flows_share_a_slow_link(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "congestion", "--quick", "--flows", "2", "--no-processes", "--json", "--strict"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert [(row["where"], row["flows"]) for row in found["results"]] == [("virtual clock", 2)]
    assert len(found["bars"]) == 4
    assert all(bar["holds"] for bar in found["bars"])


def test_a_number_of_flows_that_makes_no_sense_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "congestion", "--flows", "0"]) == 2
    assert "--flows 0: expected 1 to 64" in capsys.readouterr().err
