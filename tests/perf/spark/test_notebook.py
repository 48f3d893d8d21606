"""The example notebook runs, cell by cell, in the session that the other tests have."""

import json
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from gateway.cli.cmd_report import settings_of
from gateway.cli.errors import CommandError
from perf.pipeline import session as spark_session
from perf.traces.synth import SynthConfig, synthesise

pytestmark = pytest.mark.timeout(600)
NOTEBOOK = Path(__file__).parents[3] / "docs" / "latencies.ipynb"


def test_every_cell_runs(
    session: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(spark_session, "open_session", lambda: session)
    monkeypatch.chdir(tmp_path)
    synthesise(tmp_path / "run", SynthConfig(600), name="run")
    cells = json.loads(NOTEBOOK.read_text())["cells"]
    names: dict[str, object] = {}
    for cell in cells:
        if cell["cell_type"] == "code":
            assert cell["outputs"] == [], "a notebook is kept without what it printed"
            exec(compile("".join(cell["source"]), cell["id"], "exec"), names)  # noqa: S102
    text = capsys.readouterr().out
    assert "end_to_end" in text
    assert "two_frames" in text
    assert "complete" in text
    assert (tmp_path / "work" / "stitched" / "_SUCCESS").exists()


def test_settings_of_spark_are_pairs() -> None:
    assert settings_of(["spark.a.b=c=d", "spark.e="]) == {"spark.a.b": "c=d", "spark.e": ""}
    for wrong in ("spark.a", "a=b", "=b"):
        with pytest.raises(CommandError, match="NAME=VALUE"):
            settings_of([wrong])
