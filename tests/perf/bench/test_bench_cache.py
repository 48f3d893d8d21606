"""The benchmark of memory on the way: it measures what it says, and its model is checked against a formula."""

import json

import pytest

from gateway.cli.main import main


def test_a_small_network_keeps_what_is_popular(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["bench", "cache", "--nodes", "8", "--items", "50", "--requests", "40", "--json"]
    assert main(arguments) == 0
    found = json.loads(capsys.readouterr().out)
    rows = {row["network"]: row for row in found["results"]}
    assert rows["no memory"]["hit ratio"] == rows["no memory"]["saved"] == 0
    assert rows["everywhere"]["hit ratio"] > 0
    assert rows["everywhere"]["had without publishers"] == 1.0
    bars = {bar["name"].split(" (at")[0]: bar for bar in found["bars"]}
    assert bars["late subscriber: content frames of the publisher"]["holds"]
    assert bars["model, one store: |hit ratio - Che's|"]["holds"]


def test_too_little_memory_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "cache", "--items", "10"]) == 2
    assert "room for four items at least" in capsys.readouterr().err
