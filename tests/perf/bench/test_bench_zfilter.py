"""`psph bench zfilter`: its rows, its bars and its refusals, on small runs."""

import argparse
import json
from pathlib import Path

import pytest

from gateway.cli.cmd_bench import benchmark_parser
from gateway.cli.main import main
from perf.bench.family import BenchError
from perf.bench.zfilter import BENCHMARK


def options(*arguments: str) -> argparse.Namespace:
    return benchmark_parser(BENCHMARK).parse_args(arguments)


@pytest.fixture
def edges(tmp_path: Path) -> Path:
    path = tmp_path / "ring.edges.tsv"
    path.write_text("".join(f"n{i}\tn{(i + 1) % 40}\n" for i in range(40)), encoding="utf-8")
    return path


def test_rows_and_bars(edges: Path) -> None:
    outcome = BENCHMARK.run(options(str(edges), "--users", "8", "32", "--trees", "20"))
    assert [(row["users"], row["method"]) for row in outcome.results] == [
        (users, method) for users in (8, 32) for method in ("one table", "fpa", "fpr", "ours")
    ]
    assert outcome.parameters["trees"] == 20
    # Every node of the ring has two links and its internal one, eight tags of 31 bytes each.
    assert {row["state B"] for row in outcome.results} == {3 * 8 * 31}
    assert all((row["place s"] is not None) == (row["method"] == "ours") for row in outcome.results)
    assert sum(bar.name.startswith("one-table rate") for bar in outcome.bars) == 2
    named = {bar.name: bar for bar in outcome.bars if bar.name.startswith("ring")}
    # 80 directed links have bits of their own, so nothing can go astray.
    assert named["ring: ours, efficiency at 32 users"].value == 1.0
    assert named["ring: ours, most copies at the source"].value == 1.0


def test_the_same_seed_gives_the_same_figures(edges: Path) -> None:
    def figures() -> list[object]:
        outcome = BENCHMARK.run(options(str(edges), "--users", "16", "--trees", "5", "--ties", "drawn"))
        return [
            {key: value for key, value in row.items() if key not in ("build ms", "place s")} for row in outcome.results
        ]

    assert figures() == figures()


def test_the_one_table_rate_follows_fill_to_the_k() -> None:
    outcome = BENCHMARK.run(options("--users", "24", "--trees", "100"))
    assert all(bar.holds for bar in outcome.bars if bar.name.startswith("one-table"))


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (["--users", "1"], "--users must be at least 2"),
        (["--users", "41"], "too few for 41 users"),
        (["--plot", "picture.gif"], "does not end in .png"),
    ],
)
def test_wrong_requests(edges: Path, arguments: list[str], reason: str) -> None:
    pytest.importorskip("matplotlib")
    with pytest.raises(BenchError, match=reason):
        BENCHMARK.run(options(str(edges), *arguments))


def test_a_graph_in_two_pieces_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "two.tsv"
    path.write_text("a\tb\nc\td\n", encoding="utf-8")
    with pytest.raises(BenchError, match="not connected"):
        BENCHMARK.run(options(str(path), "--users", "2"))


def test_a_bad_file_is_one_line_and_exit_code_2(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "bad.tsv"
    path.write_text("a\tb\nc\n", encoding="utf-8")
    assert main(["bench", "zfilter", str(path)]) == 2
    captured = capsys.readouterr().err
    assert captured.count("\n") == 1
    assert "line 2: expected two node names" in captured


def test_json_and_plot(edges: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("matplotlib")
    picture = tmp_path / "out.png"
    assert main(["bench", "zfilter", str(edges), "--users", "8", "--trees", "3", "--json", "--plot", str(picture)]) == 0
    document = json.loads(capsys.readouterr().out)
    assert len(document["results"]) == 4
    assert picture.read_bytes().startswith(b"\x89PNG")
