"""The live view: a real stream over a directory that grows."""

import json
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from gateway.cli.main import main
from perf.pipeline import session as spark_session
from perf.pipeline.live import LiveState, quantiles_of, start, take_batch, take_progress, write_snapshot
from perf.traces.blocks import block_of_records
from perf.traces.formats import Format, open_file
from perf.traces.run import TRACES
from perf.traces.schema import TraceStep
from tests.documents.pages import commands_for
from tests.perf.spark.hand_made import at, run_one, write_run

pytestmark = pytest.mark.timeout(600)


def test_the_live_view_finds_what_the_analysis_finds(session: SparkSession, tmp_path: Path) -> None:
    """Files of both formats come while the stream runs; the last moves the watermark, so that all the rest shows."""
    records = run_one()
    run = write_run(tmp_path / "run", "one", [records[:20]], Format.PARQUET)
    state = LiveState()
    query = start(session, run, state, tmp_path / "checkpoint", trigger="0 seconds")
    try:
        query.processAllAvailable()
        assert not state.rows()  # nothing is said before a publication is whole
        lines = open_file(run / TRACES / "second.jsonl", Format.JSON_LINES)
        lines.write(block_of_records([*records[20:], at("later", TraceStep.ACCEPTED, "b", 10_000_000)]))
        lines.close()
        query.processAllAvailable()
        late = open_file(run / TRACES / "third.parquet", Format.PARQUET)
        late.write(block_of_records([at("too-late", TraceStep.DELIVERED, "b", 5)]))
        late.close()
        (run / TRACES / "fourth.jsonl").write_text('{"run": "one", "publ\n{"run": "one", "step": "teleported"}\n')
        query.processAllAvailable()
        take_progress(state, query)
        take_progress(state, query)  # what was counted is not counted again
    finally:
        query.stop()
    rows = {(row.stage, row.domain): row for row in state.rows()}
    assert rows["end_to_end", "psirp"].count == 5
    assert rows["end_to_end", "psirp"].p50_ms == pytest.approx(10, rel=1 / 1024)
    assert rows["end_to_end", "push"].p99_ms == pytest.approx(7, rel=1 / 1024)
    assert dict(state.endings) == {"complete": 6, "lost": 1, "no start": 1, "no end": 1}
    assert (state.records, state.unusable, state.late) == (len(records) + 4, 2, 1)
    write_snapshot(tmp_path, "one", state)
    document = json.loads((tmp_path / "live.json").read_text())
    assert document["rows"][0]["window"]
    assert {name: document[name] for name in ("run", "unusable", "late")} == {"run": "one", "unusable": 2, "late": 1}


def test_the_command_follows_a_run_and_leaves_a_file_for_a_dashboard(
    session: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(spark_session, "open_session", lambda *_: session)
    monkeypatch.setattr(SparkSession, "stop", lambda _: None)  # other tests need it still
    monkeypatch.chdir(tmp_path)
    write_run(tmp_path / "before", "one", [run_one()], Format.PARQUET)
    ((_, *words),) = commands_for(
        "tests/perf/spark/test_live.py::test_the_command_follows_a_run_and_leaves_a_file_for_a_dashboard",
        "docs/report.md",
    )
    assert main(words) == 0
    assert "windows of 10 s" in capsys.readouterr().out
    assert json.loads((tmp_path / "live" / "live.json").read_text())["run"] == "one"


@pytest.mark.parametrize("arguments", [["--live", "a", "b"], ["--compare", "a"], ["--live", "nowhere"], ["nowhere"]])
def test_mistakes_are_one_line(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["report", *arguments]) == 2
    assert len(capsys.readouterr().err.splitlines()) == 1


def test_a_batch_that_spark_repeats_counts_once(session: SparkSession) -> None:
    state = LiveState(last_batch=7)
    take_batch(state, session.createDataFrame([(1,)], "not_even_records int"), 7)
    assert not state.rows()


def test_old_windows_are_forgotten() -> None:
    state = LiveState()
    for window in range(500):
        state.add([((window, "carry", "psirp"), 5, 2)])
    assert len(state.cells) == 360
    assert state.rows()[0].count == 2
    assert quantiles_of({1: 90, 2: 9, 3: 1}) == [1, 1, 2, 3]
