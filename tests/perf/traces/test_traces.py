"""Traces without Spark: the record, the writer, sampling, the hub's events, the inventory."""

import json
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.cli.main import main
from perf.traces.blocks import Block, block_of_records
from perf.traces.files import FileState, take_inventory
from perf.traces.formats import Format, arrow_schema
from perf.traces.hub_events import HubTracer
from perf.traces.run import TRACES, RunError, load_run, new_run, save_run
from perf.traces.sampling import Sampler
from perf.traces.schema import COLUMN_NAMES, COLUMNS, Domain, StepOutcome, TraceRecord, TraceStep
from perf.traces.synth import SynthConfig, synthesise
from perf.traces.writer import TraceWriter, WriterConfig
from push_hub.delivery.events import Delivered, DeliveryFailed, FanoutFinished, PublicationAccepted
from push_hub.events import PingArrived
from push_hub.intake.events import FetchFailed, TopicFetched
from push_hub.model import Dialect, HubSubscription, SignatureMethod


def record(publication: str = "p1", step: TraceStep = TraceStep.DELIVERED, at: int = 5) -> TraceRecord:
    return TraceRecord(
        "r",
        publication,
        step,
        Domain.PUSH,
        "n",
        "t",
        None,
        None,
        10,
        None,
        "1",
        1,
        None,
        at,
        at + 100,
        "c",
        StepOutcome.OK,
    )


def read_back(directory: Path) -> list[dict[str, object]]:
    rows: list[dict[str, object]] = []
    for path in sorted((directory / TRACES).iterdir()):
        if path.suffix == ".parquet":
            rows += pq.read_table(path).to_pylist()
        else:
            rows += [dict.fromkeys(COLUMN_NAMES) | json.loads(line) for line in path.read_text().splitlines()]
    return rows


@pytest.mark.parametrize("form", list(Format))
def test_records_come_back_as_they_went_in(form: Format, tmp_path: Path) -> None:
    records = [record(f"p{number}", step, number) for number, step in enumerate(TraceStep)]
    with TraceWriter(tmp_path, new_run("test", "v", {"n": 1}, seed=3, name="r"), WriterConfig(form=form)) as writer:
        channel = writer.channel(block_of_records)
        for one in records:
            channel.put(one)
    assert [tuple(row[name] for name in COLUMN_NAMES) for row in read_back(tmp_path)] == [tuple(one) for one in records]
    run = load_run(tmp_path)
    assert (run.written, run.dropped, run.seed, run.parameters) == (len(records), 0, 3, {"n": 1})
    assert run.ended_ns is not None
    assert run.machine.cores > 0
    assert [file.rows for file in run.files] == [len(records)]


def test_files_rotate_and_the_oldest_go_when_space_is_used_up(tmp_path: Path) -> None:
    config = WriterConfig(form=Format.JSON_LINES, file_rows=10, block_rows=10, max_bytes=5000)
    with TraceWriter(tmp_path, new_run("test", "v", {}, name="r"), config) as writer:
        channel = writer.channel(block_of_records)
        for number in range(100):
            channel.put(record(f"p{number}"))
    run = load_run(tmp_path)
    assert run.written == 100
    assert run.removed > 0
    assert run.removed + sum(file.rows for file in run.files) == 100
    left = read_back(tmp_path)
    assert len(left) == 100 - run.removed
    assert left[-1]["publication"] == "p99"
    assert sum(path.stat().st_size for path in (tmp_path / TRACES).iterdir()) <= 5000


def test_a_full_lane_drops_and_counts(tmp_path: Path) -> None:
    gate = threading.Event()

    def convert(records: list[TraceRecord]) -> Block:
        gate.wait(30)
        return block_of_records(records)

    with TraceWriter(tmp_path, new_run("test", "v", {}, name="r"), WriterConfig(lane_items=5)) as writer:
        channel = writer.channel(convert)  # type: ignore[arg-type]
        for number in range(50):
            channel.put(record(f"p{number}"))
        gate.set()
    run = load_run(tmp_path)
    assert run.dropped > 0
    assert run.written + run.dropped == 50
    assert len(read_back(tmp_path)) == run.written


def test_a_block_that_cannot_be_written_does_not_end_the_tracing(tmp_path: Path) -> None:
    with TraceWriter(tmp_path, new_run("test", "v", {}, name="r"), WriterConfig(block_rows=1)) as writer:
        channel = writer.channel(block_of_records)
        channel.put(record("p1")._replace(payload="not a number"))  # type: ignore[arg-type]
        channel.put(record("p2"))
    assert writer.failures == 1
    assert [row["publication"] for row in read_back(tmp_path)] == ["p2"]


@given(st.text(max_size=20), st.floats(0, 1))
def test_every_node_samples_alike(publication: str, rate: float) -> None:
    assert Sampler(rate).takes(publication) is Sampler(rate).takes(publication)
    assert Sampler(1.0).takes(publication)
    assert not Sampler(0.0).takes(publication)


def test_the_share_that_is_sampled_is_about_the_rate() -> None:
    sampler = Sampler(0.25)
    assert 2300 < sum(sampler.takes(f"gw/{number}") for number in range(10_000)) < 2700
    with pytest.raises(ValueError, match="between 0 and 1"):
        Sampler(1.5)


def subscription(number: int) -> HubSubscription:
    return HubSubscription(number, "t", f"http://secret/{number}", None, SignatureMethod.SHA256, Dialect.WEBSUB, 1e12)


def hub_events() -> Iterator[object]:
    yield PingArrived("t")
    yield PingArrived("t")
    yield PublicationAccepted(1, "t", 1400, 0.0)
    yield TopicFetched("t", 200, changed=True, new_entries=1)
    yield Delivered(1, subscription(7), 200, 1, 0.0)
    yield DeliveryFailed(1, subscription(8), "no", 1, given_up=False, at=0.0)
    yield DeliveryFailed(1, subscription(9), "no", 3, given_up=True, at=0.0)
    yield FanoutFinished(1, 0.0)
    yield Delivered(1, subscription(8), 200, 2, 0.0)
    yield PingArrived("unchanged")
    yield TopicFetched("unchanged", 304, changed=False, new_entries=None)
    yield PingArrived("gone")
    yield FetchFailed("gone", "404", None)
    yield PublicationAccepted(2, "unchanged", 5, 0.0)
    yield object()


def test_the_hubs_events_become_steps(tmp_path: Path) -> None:
    with TraceWriter(tmp_path, new_run("test", "v", {}, name="r")) as writer:
        tracer = HubTracer(writer, "hub", load=12.5)
        for event in hub_events():
            tracer.observe(event)
        tracer.flush()
    rows = sorted(read_back(tmp_path), key=lambda row: row["monotonic_ns"])  # type: ignore[arg-type, return-value]
    assert [(row["publication"], row["step"], row["outcome"], row["delivery"], row["attempt"]) for row in rows] == [
        ("hub/1", "pinged", "ok", None, None),
        ("hub/1", "accepted", "ok", None, None),
        ("hub/1", "delivered", "ok", "7", 1),
        ("hub/1", "delivered", "retried", "8", 1),
        ("hub/1", "delivered", "failed", "9", 3),
        ("hub/1", "finished", "ok", None, None),
        ("hub/1", "delivered", "ok", "8", 2),
        ("hub/2", "accepted", "ok", None, None),
    ]
    assert {row["payload"] for row in rows} == {1400, 5}
    assert {row["load"] for row in rows} == {12.5}
    assert len({row["clock"] for row in rows}) == 1
    ahead = [row["wall_ns"] - row["monotonic_ns"] for row in rows]  # type: ignore[operator]
    assert max(ahead) - min(ahead) < 10**9
    assert "secret" not in str(rows)


def test_a_sampled_publication_is_whole_and_others_leave_nothing(tmp_path: Path) -> None:
    with TraceWriter(tmp_path, new_run("test", "v", {}, name="r")) as writer:
        tracer = HubTracer(writer, "hub", sampler=Sampler(0.5))
        for number in range(40):
            tracer.observe(PublicationAccepted(number, "t", 1, 0.0))
            for subscriber in range(3):
                tracer.observe(Delivered(number, subscription(subscriber), 200, 1, 0.0))
            tracer.observe(FanoutFinished(number, 0.0))
    counts: dict[object, int] = {}
    for row in read_back(tmp_path):
        counts[row["publication"]] = counts.get(row["publication"], 0) + 1
    assert 5 < len(counts) < 35
    assert set(counts.values()) == {5}


def test_deliveries_of_publications_that_nobody_knows_are_counted(tmp_path: Path) -> None:
    with TraceWriter(tmp_path, new_run("test", "v", {}, name="r")) as writer:
        tracer = HubTracer(writer, "hub")
        tracer.observe(PublicationAccepted(1, "t", 1, 0.0))
        for publication in (1, 99, 1):
            tracer.observe(Delivered(publication, subscription(1), 200, 1, 0.0))
        tracer.flush()
    assert tracer.unknown == 1
    assert [row["publication"] for row in read_back(tmp_path)] == ["hub/1"] * 3


def test_synthetic_traces_are_the_same_for_the_same_seed(tmp_path: Path) -> None:
    config = SynthConfig(2000, seed=4, loss=0.05, duplicates=0.05)
    _, first = synthesise(tmp_path / "a", config, name="r")
    _, second = synthesise(tmp_path / "b", config, name="r")
    assert first == second
    assert abs(first.rows - 2000) < 100
    assert first.lost > 0
    assert first.duplicates > 0
    tables = [pq.read_table(tmp_path / name / TRACES) for name in "ab"]
    assert tables[0].equals(tables[1])
    other, _ = synthesise(tmp_path / "c", SynthConfig(2000, seed=5), name="r")
    assert not pq.read_table(tmp_path / "c" / TRACES).equals(tables[0])
    assert other.written == sum(file.rows for file in other.files)


def older_file(path: Path, columns: list[str]) -> None:
    table = pa.table({name: [value] for name, value in zip(COLUMN_NAMES, record(), strict=True) if name in columns})
    old = tuple(column for column in COLUMNS if column.name in columns)
    pq.write_table(table.cast(arrow_schema(old, 1)), path)


def test_the_inventory_says_what_every_file_is(tmp_path: Path) -> None:
    synthesise(tmp_path, SynthConfig(500), name="r")
    traces = tmp_path / TRACES
    good = (traces / "gw-a-000000.parquet").read_bytes()
    (traces / "gw-b-000000.parquet").unlink()
    (traces / "copy.parquet").write_bytes(good)
    (traces / "cut.parquet").write_bytes(good[:-100])
    (traces / ".trace-000009.parquet.part").write_bytes(b"")
    (traces / "notes.txt").write_text("hello")
    (traces / "more.jsonl").write_text("{}\n")
    old = [column.name for column in COLUMNS if column.since == 1]
    older_file(traces / "old.parquet", old)
    older_file(traces / "wrong.parquet", [name for name in old if name != "node"])
    inventory = take_inventory([tmp_path])
    [older] = [file for file in inventory.files if file.path.name == "old.parquet"]
    assert older.remark.startswith("without delivery, attempt, load, resource")
    assert "nothing is known of queues, connectivity and pairs of hops" in older.remark
    assert older.remark.endswith("none can be called repeated")
    states = {file.path.name: file.state for file in inventory.files}
    assert states == {
        "gw-a-000000.parquet": FileState.GOOD,
        "gw-b-000000.parquet": FileState.MISSING,
        "copy.parquet": FileState.DUPLICATE,
        "cut.parquet": FileState.CORRUPT,
        ".trace-000009.parquet.part": FileState.UNFINISHED,
        "notes.txt": FileState.STRANGE,
        "more.jsonl": FileState.LATE,
        "old.parquet": FileState.OLDER,
        "wrong.parquet": FileState.CORRUPT,
    }


def test_directories_of_one_run_are_put_together(tmp_path: Path) -> None:
    """As several gateways leave them that were told the same name."""
    for name, rows in (("a", 500), ("b", 900)):
        synthesise(tmp_path / name, SynthConfig(rows), name="r")
        save_run(tmp_path / name, replace(load_run(tmp_path / name), parameters={"node": name, "rate": 1.0}, dropped=2))
    synthesise(tmp_path / "c", SynthConfig(500), name="other")
    a, b = load_run(tmp_path / "a"), load_run(tmp_path / "b")
    inventory = take_inventory([tmp_path / "a", tmp_path / "c", tmp_path / "b"])
    assert [run.run for run in inventory.runs] == ["r", "other"]
    one = inventory.runs[0]
    assert one.parameters == {"node": "a, b", "rate": 1.0}
    assert (one.written, one.dropped) == (a.written + b.written, 4)
    assert (one.started_ns, one.ended_ns) == (min(a.started_ns, b.started_ns), max(a.ended_ns or 0, b.ended_ns or 0))
    assert {file.path.parts[-3] for file in inventory.readable} == {"a", "b", "c"}
    save_run(tmp_path / "b", replace(b, ended_ns=None))
    assert take_inventory([tmp_path / "a", tmp_path / "b"]).runs[0].ended_ns is None, "not all of it has ended"


@pytest.mark.parametrize("text", [None, "", "[]", '{"run": 3}', "\xff"])
def test_a_directory_that_is_no_run_is_refused_in_one_line(text: str | None, tmp_path: Path) -> None:
    if text is not None:
        (tmp_path / "run.json").write_text(text, encoding="latin-1")
    with pytest.raises(RunError, match="run"):
        load_run(tmp_path)


def test_a_run_is_saved_and_loaded_whole(tmp_path: Path) -> None:
    run = new_run("test", "1.0", {"a": 1.5, "b": "x", "c": None}, seed=1, sampling=0.1)
    save_run(tmp_path, run)
    assert load_run(tmp_path) == run


def test_bench_traces_makes_a_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "run"
    assert main(["bench", "traces", "--rows", "1000", "--run", str(out), "--json"]) == 0
    result = json.loads(capsys.readouterr().out)["results"][0]
    assert result["rows"] == load_run(out).written == pq.read_table(out / TRACES).num_rows
    assert main(["bench", "traces", "--rows", "1000", "--run", str(out)]) == 2
    assert "not empty" in capsys.readouterr().err
    assert main(["bench", "traces", "--rows", "1000"]) == 2
    assert main(["bench", "traces", "--rows", "0", "--run", str(tmp_path / "b")]) == 2
