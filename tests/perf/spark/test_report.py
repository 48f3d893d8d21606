"""The report: one page that a person reads, plots, tables, and the command that makes them."""

import csv
import json
import os
import re
import struct
from dataclasses import replace
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from gateway.cli.cmd_report import more_lost, regressions
from gateway.cli.main import main
from perf.pipeline import session as spark_session
from perf.pipeline.analysis import Analysis
from perf.pipeline.comparisons import FEW
from perf.pipeline.resampling import EstimatedDifference, credible
from perf.pipeline.tables import DifferenceRow, LatencyRow, ReceiverRow, RunNodeRow
from perf.report import statements
from perf.report.bench_results import MatchingPoint
from perf.report.build import BuiltReport, build_report
from perf.report.tables import TABLES, rows_of
from perf.traces.run import Machine
from perf.traces.synth import SynthConfig, synthesise
from tests.documents.pages import commands_for

pytestmark = pytest.mark.timeout(600)
GOLDEN = Path(__file__).with_name("golden_report.html")
POINTS = [
    *(MatchingPoint("list", "topic", size, size / 10) for size in (10, 1000)),
    *(MatchingPoint("list", "subscriber", size, size / 5) for size in (10, 1000)),
    *(MatchingPoint("bloom", "topic", size, 10.0) for size in (10, 1000)),
]
IMAGE = re.compile(r"(data:image/png;base64,)[A-Za-z0-9+/=]+")


@pytest.fixture(scope="module")
def built(analysis: Analysis, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, BuiltReport]:
    """With the same machine in every run, so that the page is the same."""
    machine = Machine("Linux", "6.1", "x86_64", "a <fast> processor", 2, 4 << 30, "3.11.2")
    runs = tuple(replace(run, machine=machine) for run in analysis.inventory.runs)
    out = tmp_path_factory.mktemp("report")
    return out, build_report(replace(analysis, inventory=replace(analysis.inventory, runs=runs)), out, POINTS)


def test_the_page_is_the_golden_one(built: tuple[Path, BuiltReport]) -> None:
    """Look at it in a browser, then renew it: PSPH_GOLDEN=write pytest tests/perf/spark/test_report.py -n 0"""
    page = IMAGE.sub(r"\1", built[1].page.read_text())
    if os.environ.get("PSPH_GOLDEN") == "write":
        GOLDEN.write_text(page)
    assert page == GOLDEN.read_text()


def test_the_page_needs_nothing_else_and_runs_nothing(built: tuple[Path, BuiltReport]) -> None:
    page = built[1].page.read_text()
    assert len(IMAGE.findall(page)) == len(built[1].plots)
    assert not re.search(r"<script|<link|src=\"(?!data:)|href=|url\(", page)
    assert "a &lt;fast&gt; processor" in page


def test_plots_are_pictures_of_a_sensible_size(built: tuple[Path, BuiltReport]) -> None:
    out, report = built
    assert set(report.plots) == {
        "distribution", "ecdf", "ccdf", "stages", "parts", "time",
        "prototype-payload", "prototype-topics", "prototype-keys",
    }  # fmt: skip
    for name in report.plots:
        picture = (out / "plots" / f"{name}.png").read_bytes()
        assert picture.startswith(b"\x89PNG")
        assert struct.unpack(">II", picture[16:24]) == (880, 495)


@pytest.mark.parametrize("name", sorted(TABLES))
def test_tables_say_the_same_in_both_formats(built: tuple[Path, BuiltReport], analysis: Analysis, name: str) -> None:
    rows = rows_of(analysis, name)
    with (built[0] / "tables" / f"{name}.csv").open(newline="") as stream:
        header, *lines = csv.reader(stream)
    columns = pq.read_table(built[0] / "tables" / f"{name}.parquet").to_pylist()
    assert [list(row.values()) for row in columns] == [[getattr(row, column) for column in header] for row in rows]
    shown = [["" if value is None else str(value) for value in row.values()] for row in columns]
    assert lines == shown


def test_statements_are_plain(built: tuple[Path, BuiltReport]) -> None:
    text = "\n".join(built[1].says)
    assert "one: too few deliveries to say whether crossing changes latency" in text
    assert "saturates between 9 and 1000" in text
    assert "0 were lost in PSIRP, 1 were received by nobody who was observed" in text
    assert "faster than a list above about 100 topics (measured at 10 and 1,000)" in text
    assert "list, 1,000 topics: keyed by topic is faster than keyed by subscriber (100 µs against 200 µs)" in text


def difference(
    medians: tuple[float, float], interval: tuple[float, float], margin: float | None = 0.1, publications: int = 1000
) -> DifferenceRow:
    one, two = medians
    found = EstimatedDifference(one, two, *interval)
    certain = publications >= FEW and credible(found, margin)
    return DifferenceRow(
        "end_to_end",
        "r",
        "push",
        "psirp",
        "p50",
        publications,
        1,
        1,
        one,
        two,
        two - one,
        *interval,
        margin,
        8,
        certain,
    )


@pytest.mark.parametrize(
    ("row", "says"),
    [
        (difference((2.0, 3.5), (1.3, 1.7)), "crossing PSIRP adds 1.5 ms to the median"),
        (difference((2.0, 2.1), (-0.1, 0.3)), "no difference in the median that would not come by chance"),
        (difference((2.0, 1.5), (-0.6, -0.4)), "crossing PSIRP saves 0.5 ms"),
        (difference((2.0, 3.5), (1.3, 1.7), None), "the clocks of the two sides could not be compared"),
        (difference((2.0, 3.5), (1.3, 1.7), 0.8), "the clocks may be off by 0.8 ms"),
        (difference((2.0, 3.5), (1.3, 1.7), publications=19), "too few deliveries"),
    ],
)
def test_whether_crossing_changes_latency(row: DifferenceRow, says: str) -> None:
    (line,) = statements.crossing([row])
    assert says in line


def test_without_both_kinds_nothing_is_claimed() -> None:
    assert "nothing can be said" in statements.crossing([])[0]


@pytest.mark.parametrize(
    ("row", "tolerance", "found"),
    [
        (difference((2.0, 3.0), (0.9, 1.1)), 5, 1),
        (difference((2.0, 2.05), (0.04, 0.06), 0.0), 5, 0),
        (difference((2.0, 2.05), (0.04, 0.06), 0.0), 0, 1),
        (difference((2.0, 3.0), (-0.1, 2.1)), 5, 0),
        (difference((3.0, 2.0), (-1.1, -0.9)), 5, 0),
        (replace(difference((9.0, 409.0), (380.0, 420.0)), measure="p99", stage="fan_out"), 5, 1),
    ],
)
def test_what_counts_as_a_regression(row: DifferenceRow, tolerance: float, found: int) -> None:
    assert len(regressions([row], tolerance)) == found


@pytest.mark.parametrize(("missed", "found"), [(0, 0), (3, 0), (30, 1)])
def test_more_losses_are_a_regression(missed: int, found: int) -> None:
    rows = [
        ReceiverRow(run, "a", None, 1000, 1000 - count, count, count / 1000, 0, 0)
        for run, count in (("before", 1), ("after", missed))
    ]
    assert len(more_lost(rows, ["before", "after"])) == found


def test_the_prototype_is_named_beside_what_was_measured(analysis: Analysis) -> None:
    row = LatencyRow("r", "total_push_d", "psirp", "all", 0, 100, 9.16, 1, 8.5, 9, 10, 11, 12, 13, 0.1, 1, 0.0)
    (line,) = statements.prototype(replace(analysis, latency=[row], nodes=[RunNodeRow("r", "a", "c", 1, 0.0)]))
    assert "TotalPushD is 9.16 ms on average (100 measured), 2 times the prototype's 4.58 ms" in line
    assert "on one machine" in line


@pytest.mark.parametrize(
    ("bloom", "says"),
    [(0.1, "from 10 topics on, the fewest measured"), (1e6, "up to 1,000 topics, the most measured")],
)
def test_lines_that_do_not_cross_are_not_made_to(bloom: float, says: str) -> None:
    points = [*POINTS[:2], *(MatchingPoint("bloom", "topic", size, bloom) for size in (10, 1000))]
    assert says in statements.list_against_bloom(points)[0]


def test_the_command_makes_a_report(
    session: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(spark_session, "open_session", lambda *_: session)
    monkeypatch.setattr(SparkSession, "stop", lambda _: None)  # other tests need it still
    monkeypatch.chdir(tmp_path)
    synthesise(tmp_path / "before", SynthConfig(1000), name="before")
    rows = [
        {"structure": structure, "keyed_by": "topic", "topics": size, "known_p50_us": time, "unknown_p50_us": time}
        for structure, size, time in (
            ("list", 10, 1.0),
            ("list", 1000, 100.0),
            ("bloom", 10, 5.0),
            ("bloom", 1000, 5.0),
        )
    ]
    (tmp_path / "matching.json").write_text(json.dumps({"bench": "matching", "results": rows}))
    ((_, *words),) = commands_for("tests/perf/spark/test_report.py::test_the_command_makes_a_report", "docs/report.md")
    assert main(words) == 0
    assert "report: report/report.html" in capsys.readouterr().out
    assert (tmp_path / "report" / "plots" / "prototype-topics.png").exists()


def test_the_command_compares_two_runs(
    session: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(spark_session, "open_session", lambda *_: session)
    monkeypatch.setattr(SparkSession, "stop", lambda _: None)  # other tests need it still
    monkeypatch.chdir(tmp_path)
    synthesise(tmp_path / "before", SynthConfig(4000), name="before")
    synthesise(tmp_path / "after", SynthConfig(4000, scale=2.5), name="after")
    out = tmp_path / "report"
    ((_, *words),) = commands_for(
        "tests/perf/spark/test_report.py::test_the_command_compares_two_runs", "docs/report.md"
    )
    assert main(words) == 1
    text = capsys.readouterr().out
    assert "after against before, end to end in psirp: slower" in text
    assert "REGRESSION in psirp" in text
    assert (out / "report.html").exists()
    assert not list(out.glob(".work-*"))
    assert main(["report", "before", "before", "--out", str(out)]) == 2
    assert "given twice" in capsys.readouterr().err
