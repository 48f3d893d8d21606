"""What a report takes from the result of `psph bench matching`."""

import json
from pathlib import Path

import pytest

from perf.report.bench_results import MatchingPoint, ResultsError, read_matching


def result(folder: Path, bench: str, *rows: dict[str, object]) -> Path:
    path = folder / "result.json"
    path.write_text(json.dumps({"bench": bench, "results": rows}))
    return path


def test_a_point_is_the_mean_of_known_and_unknown_topics(tmp_path: Path) -> None:
    row = {"structure": "list", "keyed_by": "topic", "topics": 50, "known_p50_us": 4.0, "unknown_p50_us": 8.0}
    partial = {"structure": "bloom", "keyed_by": "topic", "topics": 50, "known_p50_us": 4.0, "unknown_p50_us": None}
    points = read_matching(result(tmp_path, "matching", row, partial))
    assert points == [MatchingPoint("list", "topic", 50, 6.0)]


def test_results_of_another_benchmark_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ResultsError, match="psph bench fanout"):
        read_matching(result(tmp_path, "fanout"))
