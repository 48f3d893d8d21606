import argparse
import json
import math
from datetime import datetime
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway import __version__
from gateway.cli import cmd_bench
from gateway.cli.main import main
from perf.bench import BENCHMARKS, load
from perf.bench.family import Bar, BenchOutcome, Sense, median_interval, percentile
from perf.bench.matching import crossing_of
from perf.bench.table import print_outcome, shown


class Sample:
    name = "sample"
    description = "a benchmark that measures nothing, to see how results are shown"

    def configure(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument("--ratio", type=float, default=2.0)

    def run(self, options: argparse.Namespace) -> BenchOutcome:
        bar = Bar("speed", options.ratio, Sense.AT_LEAST, 1.0, (options.ratio - 0.5, options.ratio + 0.5))
        return BenchOutcome(
            {"ratio": options.ratio}, [{"case": "a", "p50_us": 12_345.6, "deliveries/s": None}], [bar], ["a remark"]
        )


@pytest.fixture
def sample(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cmd_bench, "load", lambda name: Sample())


@pytest.mark.parametrize("name", sorted(BENCHMARKS))
def test_every_benchmark_loads_and_states_its_bars(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert load(name).name == name
    with pytest.raises(SystemExit) as caught:
        main(["bench", name, "--help"])
    assert caught.value.code == 0
    text = capsys.readouterr().out
    assert "--quick" in text
    assert "bar" in text.lower()


@pytest.mark.usefixtures("sample")
def test_json_is_one_object_on_stdout(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    copy = tmp_path / "result.json"
    assert main(["bench", "matching", "--json", "--out", str(copy)]) == 0
    document = json.loads(capsys.readouterr().out)
    assert json.loads(copy.read_text()) == document
    found = {name: document.pop(name) for name in ("commit", "machine", "begun", "seconds")}
    assert found["commit"].startswith(__version__)
    assert found["machine"]["cores"] >= 1
    assert datetime.fromisoformat(found["begun"]).tzinfo is not None
    assert found["seconds"] >= 0
    assert document == {
        "bench": "sample",
        "version": __version__,
        "parameters": {"ratio": 2.0},
        "units": {"p50_us": "µs", "deliveries/s": "1/s"},
        "results": [{"case": "a", "p50_us": 12_345.6, "deliveries/s": None}],
        "bars": [{"name": "speed (at least 1)", "value": 2.0, "interval": [1.5, 2.5], "bound": 1.0, "holds": True}],
        "remarks": ["a remark"],
    }


@pytest.mark.usefixtures("sample")
@pytest.mark.parametrize(("ratio", "strict", "code"), [("2", True, 0), ("0.5", True, 1), ("0.5", False, 0)])
def test_a_bar_that_does_not_hold_fails_only_when_strict(ratio: str, strict: bool, code: int) -> None:
    assert main(["bench", "matching", "--ratio", ratio, *(["--strict"] if strict else [])]) == code


@pytest.mark.usefixtures("sample")
def test_the_table_shows_results_remarks_and_bars(capsys: pytest.CaptureFixture[str]) -> None:
    main(["bench", "matching", "--ratio", "0.5"])
    text = capsys.readouterr().out
    for part in ("case", "12,346", "a remark", "speed (at least 1): 0.5", "does not hold"):
        assert part in text


@given(st.floats(allow_nan=True), st.floats(allow_nan=False, allow_infinity=False), st.sampled_from([*Sense]))
def test_a_bar_holds_on_its_side_of_the_bound(value: float, bound: float, sense: Sense) -> None:
    bar = Bar("x", value, sense, bound)
    expected = value <= bound if sense is Sense.AT_MOST else value >= bound
    assert bar.holds == (expected and not math.isnan(value))


@given(st.lists(st.floats(allow_nan=False), min_size=1), st.floats(0, 1))
def test_percentiles_are_nearest_rank(values: list[float], fraction: float) -> None:
    ordered = sorted(values)
    found = percentile(ordered, fraction)
    assert found in ordered
    assert sum(value <= found for value in ordered) >= fraction * len(ordered)


def test_an_empty_sample_has_no_percentile() -> None:
    assert math.isnan(percentile([], 0.5))


def test_cells() -> None:
    assert [shown(cell) for cell in (None, True, False, 1_234_567, 0.12345, "x")] == [
        "-", "yes", "no", "1,234,567", "0.1235", "x",
    ]  # fmt: skip


def test_matching_measures_what_it_says(monkeypatch: pytest.MonkeyPatch) -> None:
    from perf.bench import matching

    monkeypatch.setattr(matching, "QUICK_SIZES", (10, 1_000))
    monkeypatch.setattr(matching, "CROSSING_SIZES", (1, 2_000))
    monkeypatch.setattr(matching, "LOOK_UPS", 50)
    monkeypatch.setattr(matching, "BLOOM_CAPACITY", 2_000)
    outcome = matching.BENCHMARK.run(argparse.Namespace(quick=True, full=False, seed=1))
    assert {(row["structure"], row["keyed_by"], row["topics"]) for row in outcome.results} == {
        (structure, keyed_by, size)
        for structure in ("list", "bloom", "bloom, sized", "registry", "dict")
        for keyed_by in ("topic", "subscriber")
        for size in (10, 1_000)
    }
    assert outcome.bars[0].value > 0
    assert "made for 2,000 topics, as the prototype's cross at about" in outcome.remarks[0]
    assert "made for as many cross" in outcome.remarks[1]


def test_a_narrow_terminal_cuts_no_figure(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("COLUMNS", "20")
    print_outcome("sample", BenchOutcome({}, [{f"case_{n}": 1_234_567 + n for n in range(8)}], [], []))
    figures = capsys.readouterr().out.splitlines()[-1].split()
    assert figures == [f"{1_234_567 + n:,}" for n in range(8)]


def test_the_median_lies_between_two_of_the_values() -> None:
    assert median_interval(range(5)) is None  # five values cannot say it with 95 %
    assert median_interval(range(6)) == (0, 5)
    assert median_interval(range(20)) == (5, 14)


def test_where_lines_cross_is_interpolated() -> None:
    assert crossing_of([(10, -1.0), (20, 3.0)]) == 12.5
    assert crossing_of([(10, 1.0)]) == 10
    assert crossing_of([(10, -1.0), (20, -3.0)]) is None
