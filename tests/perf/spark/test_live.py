"""The live view: a real stream over a directory that grows."""

import json
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from gateway.cli.main import main
from perf.pipeline import session as spark_session
from perf.pipeline.live import LiveState, quantiles_of, settle, start, take_batch, write_snapshot
from perf.traces.blocks import block_of_records
from perf.traces.formats import Format, open_file
from perf.traces.run import TRACES
from perf.traces.schema import TraceStep
from tests.documents.pages import commands_for
from tests.perf.spark.hand_made import at, run_one, write_run

pytestmark = pytest.mark.timeout(600)


def test_the_live_view_finds_what_the_analysis_finds(session: SparkSession, tmp_path: Path) -> None:
    """Two processes whose files come in turns, in both formats; time is a number that the test moves."""
    records = run_one()
    here = write_run(tmp_path / "b", "one", [[record for record in records if record.node == "b"][:10]], Format.PARQUET)
    there = write_run(tmp_path / "a", "one", [[record for record in records if record.node == "a"][:5]], Format.PARQUET)
    state = LiveState()
    now = [0.0]
    query = start(session, [here, there], state, tmp_path / "checkpoint", trigger="0 seconds", clock=lambda: now[0])
    try:
        query.processAllAvailable()
        settle(state, now[0] + 1)
        assert not state.rows()  # nothing is said before a publication is whole
        now[0] = 2.0
        for folder, node, skip in ((here, "b", 10), (there, "a", 5)):
            lines = open_file(folder / TRACES / "second.jsonl", Format.JSON_LINES)
            lines.write(block_of_records([record for record in records if record.node == node][skip:]))
            lines.close()
        query.processAllAvailable()
        now[0] = 6.0
        settle(state, now[0])
        assert dict(state.endings) == {"complete": 6, "no start": 1}  # what has no end yet may still come to one
        late = open_file(here / TRACES / "third.parquet", Format.PARQUET)
        late.write(block_of_records([at("p1", TraceStep.DELIVERED, "b", 900, delivery="1")]))
        late.close()
        (here / TRACES / "fourth.jsonl").write_text('{"run": "one", "publ\n{"run": "one", "step": "teleported"}\n')
        query.processAllAvailable()
    finally:
        query.stop()
    settle(state, 40.0)
    rows = {(row.stage, row.domain): row for row in state.rows()}
    assert rows["end_to_end", "psirp"].count == 5
    assert rows["end_to_end", "psirp"].p50_ms == pytest.approx(10, rel=1 / 1024)
    assert rows["end_to_end", "push"].p99_ms == pytest.approx(7, rel=1 / 1024)
    assert dict(state.endings) == {"complete": 6, "not received": 1, "no start": 1, "no end": 1}
    assert (state.records, state.unusable, state.late, state.negative) == (len(records) + 3, 2, 1, 0)
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


@pytest.mark.parametrize("arguments", [["--compare", "a"], ["--live", "nowhere"], ["nowhere"]])
def test_mistakes_are_one_line(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["report", *arguments]) == 2
    assert len(capsys.readouterr().err.splitlines()) == 1


def test_a_batch_that_spark_repeats_counts_once(session: SparkSession) -> None:
    state = LiveState(last_batch=7)
    take_batch(state, session.createDataFrame([(1,)], "not_even_records int"), 7, 0.0)
    assert not state.rows()


def test_old_windows_are_forgotten() -> None:
    state = LiveState()
    for window in range(500):
        state.add([((window, "carry", "psirp"), 5, 2)])
    assert len(state.cells) == 360
    assert state.rows()[0].count == 2
    assert quantiles_of({1: 90, 2: 9, 3: 1}) == [1, 1, 2, 3]
