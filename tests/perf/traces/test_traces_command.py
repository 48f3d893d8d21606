"""`psph traces`: what is put together, given away and taken in stays what it was."""

import json
from dataclasses import replace
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from gateway.cli.main import main
from perf.traces import compaction
from perf.traces.coverage import find_coverage
from perf.traces.files import take_inventory
from perf.traces.run import TRACES, WrittenFile, load_run, save_run
from perf.traces.synth import SynthConfig, synthesise

SMALL = SynthConfig(3_000, batch=20, topics=3)


def rows_of(directory: Path) -> list[dict[str, object]]:
    rows = pq.read_table(directory / TRACES).to_pylist()
    return sorted(rows, key=lambda row: json.dumps(row, sort_keys=True))


@pytest.fixture
def run(tmp_path: Path) -> Path:
    synthesise(tmp_path / "run", SMALL, name="r")
    return tmp_path / "run"


def test_many_files_become_few_with_the_same_records(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = rows_of(run)
    assert len(list((run / TRACES).iterdir())) > 20
    assert main(["traces", "compact", str(run)]) == 0
    assert "2 files" in capsys.readouterr().out
    assert {path.name for path in (run / TRACES).iterdir()} == {"gw-a-000000.parquet", "gw-b-000000.parquet"}
    assert rows_of(run) == before
    inventory = take_inventory([run])
    assert {file.state.value for file in inventory.files} == {"good"}
    assert sum(file.rows for file in load_run(run).files) == len(before)
    assert main(["traces", "compact", "--rows", "100", str(run)]) == 0  # files are never divided
    assert rows_of(run) == before


def test_a_file_that_cannot_be_read_stays_in_its_place(run: Path) -> None:
    broken = run / TRACES / "gw-a-000005.parquet"
    broken.write_bytes(b"PAR1 nothing PAR1")
    (run / TRACES / "gw-b-000003.parquet").unlink()
    hole = [(hole.node, hole.why, hole.begin_ns, hole.end_ns) for hole in find_coverage(take_inventory([run])).holes]
    assert main(["traces", "compact", str(run)]) == 0
    names = sorted(path.name for path in (run / TRACES).iterdir())
    assert names[:3] == ["gw-a-000000.parquet", "gw-a-000005.parquet", "gw-a-000006.parquet"]
    after = take_inventory([run])
    assert {file.path.name: file.state.value for file in after.files if file.state.value != "good"} == {
        "gw-a-000005.parquet": "corrupt",
        "gw-b-000003.parquet": "missing: listed by the run, not there",
    }
    found = [(hole.node, hole.why, hole.begin_ns, hole.end_ns) for hole in find_coverage(after).holes]
    assert [one for one in found if one[0] == "gw-a"] == [one for one in hole if one[0] == "gw-a"]


@pytest.mark.parametrize("step", ["before", "between", "after"])
def test_a_compaction_that_was_cut_short_is_made_good(run: Path, step: str) -> None:
    before = rows_of(run)
    traces, fresh, old = (run / name for name in (TRACES, compaction.FRESH, compaction.BEFORE))
    fresh.mkdir()
    (fresh / "gw-a-000000.parquet").write_bytes(b"half a file")
    if step != "before":
        traces.rename(old)
    if step == "after":
        fresh.rename(traces)
    assert main(["traces", "compact", str(run)]) == 0
    assert rows_of(run) == before
    assert {path.name for path in run.iterdir()} == {"run.json", TRACES}


def test_a_run_that_is_still_written_is_left_alone(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    save_run(run, replace(load_run(run), ended_ns=None, files=(WrittenFile("x", 1),)))
    assert main(["traces", "compact", str(run)]) == 2
    assert "has not ended" in capsys.readouterr().err


def test_records_come_back_from_spans_as_they_were(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    spans = tmp_path / "spans.jsonl"
    assert main(["traces", "to-otlp", str(run), "--out", str(spans)]) == 0
    first = json.loads(spans.read_text().splitlines()[0])["resourceSpans"][0]
    assert {one["key"] for one in first["resource"]["attributes"]} == {"service.name", "service.instance.id"}
    span = first["scopeSpans"][0]["spans"][0]
    assert (len(span["traceId"]), len(span["spanId"]), span["name"]) == (32, 16, "received")
    assert main(["traces", "from-otlp", str(spans), "--run", str(tmp_path / "r")]) == 0
    assert "0 of them stays" in capsys.readouterr().out
    assert rows_of(tmp_path / "r") == rows_of(run)


def test_spans_of_others_become_stays(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """As a collector's file exporter writes them: numbers of 64 bits as text."""
    span = {
        "traceId": "5b8efff798038103d269b633813fc60c", "spanId": "eee19b7ec3c1b174", "name": "GET /feed", "kind": 2,
        "startTimeUnixNano": "1544712660000000000", "endTimeUnixNano": "1544712661000000000",
        "attributes": [{"key": "http.status", "value": {"intValue": "500"}}], "status": {"code": 2},
    }  # fmt: skip
    backward = span | {"endTimeUnixNano": "1"}
    resource = {"attributes": [{"key": "service.name", "value": {"stringValue": "web"}}]}
    line = {"resourceSpans": [{"resource": resource, "scopeSpans": [{"spans": [span, backward]}]}]}
    file = tmp_path / "spans.jsonl"
    file.write_text(json.dumps(line) + "\n\nnot json\n")
    assert main(["traces", "from-otlp", str(file), "--run", str(tmp_path / "run")]) == 0
    assert "2 lines or spans could not be used" in capsys.readouterr().out
    (row,) = rows_of(tmp_path / "run")
    assert (row["step"], row["node"], row["resource"], row["outcome"]) == ("served", "web", "GET /feed", "failed")
    assert row["monotonic_ns"] - row["queued_ns"] == 10**9  # type: ignore[operator]
    assert main(["traces", "from-otlp", str(file), "--run", str(tmp_path / "run")]) == 2
    file.write_text("nothing\n")
    assert main(["traces", "from-otlp", str(file), "--run", str(tmp_path / "other")]) == 2
