"""Late, duplicated, corrupt, cut-off and older files: what can be used is used, the rest is counted and named."""

import shutil
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from perf.pipeline.analysis import Analysis, analyse
from perf.pipeline.tables import QualityRow
from perf.traces.blocks import block_of_records
from perf.traces.formats import Format, arrow_schema, open_file
from perf.traces.run import TRACES, WrittenFile, load_run, save_run
from perf.traces.schema import COLUMN_NAMES, COLUMNS, TraceRecord, TraceStep
from tests.perf.spark.hand_made import at, run_one, write_run

pytestmark = pytest.mark.timeout(600)
LOST = 300


def older(path: Path, records: list[TraceRecord]) -> None:
    """As version 1 wrote it: without the columns that came later."""
    old = tuple(column for column in COLUMNS if column.since == 1)
    rows = [dict(zip(COLUMN_NAMES, record, strict=True)) | {"schema": 1} for record in records]
    columns = {column.name: [row[column.name] for row in rows] for column in old}
    pq.write_table(pa.table(columns, schema=arrow_schema(old, 1)), path)


def broken_inside(path: Path) -> None:
    """Its end is whole, so it looks good; its rows cannot be unpacked."""
    file = open_file(path, Format.PARQUET)
    file.write(block_of_records([at(f"z{number}", TraceStep.ACCEPTED, "b", 2000 + number) for number in range(LOST)]))
    file.close()
    content = bytearray(path.read_bytes())
    content[4:600] = bytes(596)
    path.write_bytes(bytes(content))


@pytest.fixture(scope="module")
def messy(session: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Analysis:
    folder = tmp_path_factory.mktemp("messy")
    records = run_one()
    plain = [record for record in records if record.publication not in ("p6", "p7")]
    old = [record for record in records if record.publication == "p7"]
    late = [record for record in records if record.publication == "p6"]
    run = write_run(folder / "run", "one", [plain[::2], plain[1::2]], Format.PARQUET)
    traces = run / TRACES
    shutil.copy(traces / "trace-000001.parquet", traces / "trace-000001-copy.parquet")
    (traces / "cut.parquet").write_bytes((traces / "trace-000000.parquet").read_bytes()[:-50])
    (traces / ".trace-000007.parquet.part").write_bytes(b"PAR1")
    older(traces / "old.parquet", old)
    broken_inside(traces / "broken.parquet")
    lines = open_file(traces / "late.jsonl", Format.JSON_LINES)
    lines.write(block_of_records(late))
    lines.close()
    listed = ("trace-000000", "trace-000001", "old", "broken", "gone")
    files = tuple(WrittenFile(f"{name}.parquet", 1) for name in listed)
    save_run(run, replace(load_run(run), ended_ns=1, files=files, dropped=4, removed=5))
    return analyse(session, [run], folder / "work")


def test_figures_are_those_of_the_tidy_run(messy: Analysis, analysis: Analysis) -> None:
    def of_one(rows: object) -> list[object]:
        return [row for row in rows if row.run == "one"]  # type: ignore[attr-defined]

    def without_loads(rows: list[object]) -> list[object]:
        return [row for row in rows if row.by != "load"]  # type: ignore[attr-defined]

    # p7 came from the older file, which had no load to tell, and has no latency.
    assert without_loads(of_one(messy.latency)) == without_loads(of_one(analysis.latency))
    assert of_one(messy.endings) == of_one(analysis.endings)
    assert list(messy.clocks) == list(analysis.clocks)
    assert of_one(messy.correlation) == of_one(analysis.correlation)


def test_every_file_is_named_with_what_is_wrong(messy: Analysis) -> None:
    states = {row.file: row.state.split(":")[0] for row in messy.files}
    assert states == {
        "trace-000000.parquet": "good",
        "trace-000001.parquet": "good",
        "trace-000001-copy.parquet": "duplicate of another file",
        "cut.parquet": "corrupt",
        ".trace-000007.parquet.part": "unfinished",
        "old.parquet": "older schema",
        "broken.parquet": "good",
        "late.jsonl": "late",
        "gone.parquet": "missing",
    }


def test_what_is_lost_is_counted(messy: Analysis) -> None:
    assert set(messy.quality) >= {
        QualityRow("files read", 5),
        QualityRow("rows read", len(run_one())),
        QualityRow("rows of an older schema", 1),
        QualityRow("rows lost to files that broke in the middle", LOST),
        QualityRow("records dropped while tracing", 4),
        QualityRow("records removed by rotation", 5),
    }
