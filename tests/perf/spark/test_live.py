"""The live view: a real stream over a directory that grows."""

import json
import os
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from perf.pipeline.live import LiveState, start, write_snapshot
from perf.traces.formats import Format
from perf.traces.run import TRACES
from perf.traces.schema import Step
from tests.perf.spark.hand_made import at, run_one, write_run

pytestmark = pytest.mark.timeout(600)


def test_the_live_view_finds_what_the_analysis_finds(session: SparkSession, tmp_path: Path) -> None:
    much_later = [at("later", Step.ACCEPTED, "b", 10_000_000), at("latest", Step.ACCEPTED, "b", 20_000_000)]
    run = write_run(tmp_path / "run", "one", [run_one(), much_later[:1], much_later[1:]], Format.PARQUET)
    for number, path in enumerate(sorted((run / TRACES).iterdir())):
        os.utime(path, (1000 + number, 1000 + number))
    state = LiveState()
    query = start(session, run, state, tmp_path / "checkpoint", once=True)
    assert query.awaitTermination(300)
    rows = {(row.stage, row.domain): row for row in state.rows()}
    assert rows["end_to_end", "psirp"].count == 5
    assert rows["end_to_end", "psirp"].p50_ms == pytest.approx(10, rel=1 / 1024)
    assert rows["end_to_end", "push"].p99_ms == pytest.approx(7, rel=1 / 1024)
    assert (state.endings["complete"], state.endings["lost"]) == (6, 1)
    write_snapshot(tmp_path, "one", state)
    assert json.loads((tmp_path / "live.json").read_text())["rows"][0]["window"]
