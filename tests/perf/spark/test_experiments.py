"""Experiments end in the pipeline: what a simulated network traced becomes a report."""

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from gateway.cli.main import main
from perf.pipeline import session as spark_session
from tests.documents.pages import commands_for

pytestmark = pytest.mark.timeout(600)


def test_traces_of_an_experiment_become_a_report(
    session: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(spark_session, "open_session", lambda *_: session)
    monkeypatch.setattr(SparkSession, "stop", lambda _: None)  # other tests need it still
    monkeypatch.chdir(tmp_path)
    Path("experiment.toml").write_text(
        'seconds = 10\ngenerate = { kind = "line", nodes = 5 }\nevery_link = { delay = 0.01 }\n'
        '[[workloads]]\npublisher = "n0"\nsubscribers = ["n1", "n4"]\nrate = 20\n'
    )
    assert main(["net", "up", "experiment.toml", "--simulated", "--traces", "var/traces"]) == 0
    ((_, *words),) = commands_for(
        "tests/perf/spark/test_experiments.py::test_traces_of_an_experiment_become_a_report", "docs/experiments.md"
    )
    words = [path for word in words for path in (sorted(map(str, Path().glob(word))) if "*" in word else [word])]
    capsys.readouterr()
    assert main(words) == 0
    shown = capsys.readouterr().out
    assert "var/report/report.html" in shown
    page = Path("var/report/report.html").read_text()
    assert "experiment" in page
    rows = Path("var/report/tables/latency.csv").read_text().splitlines()
    assert any("psirp" in row for row in rows[1:]), rows
