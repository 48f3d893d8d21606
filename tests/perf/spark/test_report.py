"""The report: one page, plots, tables, plain statements."""

from pathlib import Path

import pytest

from perf.pipeline.analysis import Analysis
from perf.report.bench_results import MatchingPoint
from perf.report.build import build_report
from perf.report.tables import TABLES

pytestmark = pytest.mark.timeout(600)


def test_the_report_is_one_file_with_everything_in_it(analysis: Analysis, tmp_path: Path) -> None:
    points = [MatchingPoint("list", "topic", size, size / 10) for size in (1, 10)]
    report = build_report(analysis, tmp_path, [*points, MatchingPoint("bloom", "subscriber", 10, 2.0)])
    page = report.page.read_text()
    assert page.count("data:image/png;base64,") == len(report.plots) == 6
    assert "http://" not in page
    assert "<script" not in page
    for name in TABLES:
        assert (tmp_path / "tables" / f"{name}.csv").exists()
        assert (tmp_path / "tables" / f"{name}.parquet").exists()
    for name in report.plots:
        assert (tmp_path / "plots" / f"{name}.png").read_bytes().startswith(b"\x89PNG")
    text = "\n".join(report.says)
    assert "one: too few deliveries to say whether crossing changes latency" in text
    assert "saturates between 9 and 1000" in text
    assert "1 were lost in PSIRP" in text
