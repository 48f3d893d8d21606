"""Puts a report together in a directory."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from perf.pipeline.analysis import Analysis
from perf.pipeline.predictions import RunPrediction
from perf.report.bench_results import MatchingPoint
from perf.report.explore import render_explorer
from perf.report.page import render
from perf.report.plots import draw_all
from perf.report.predictions import build_predictions
from perf.report.statements import statements
from perf.report.tables import write_tables

PAGE: Final = "report.html"
EXPLORER: Final = "explore.html"


@dataclass(frozen=True, slots=True)
class BuiltReport:
    page: Path
    says: tuple[str, ...]
    plots: tuple[str, ...]


def build_report(
    analysis: Analysis,
    out: Path,
    matching: Sequence[MatchingPoint] = (),
    predictions: Sequence[RunPrediction] = (),
) -> BuiltReport:
    """Pages (`report.html`, `explore.html`, predictions), `plots/*.png`, `tables/*.parquet` and `tables/*.csv`."""
    out.mkdir(parents=True, exist_ok=True)
    write_tables(analysis, out / "tables")
    plots = draw_all(analysis, matching)
    (out / "plots").mkdir(exist_ok=True)
    for plot in plots:
        (out / "plots" / f"{plot.name}.png").write_bytes(plot.png)
    (out / EXPLORER).write_text(render_explorer(analysis), encoding="utf-8")
    says = statements(analysis, matching)
    if any(prediction.queues for prediction in predictions):
        built = build_predictions(predictions, out)
        says = [*says, f"What latency should be, and why it is not: {built.page.name}, beside this page."]
    page = out / PAGE
    page.write_text(render(analysis, says, plots), encoding="utf-8")
    return BuiltReport(page, tuple(says), tuple(plot.name for plot in plots))
