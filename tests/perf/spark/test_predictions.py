"""Predictions from traces: of a simulated run, of which all is known, and of two gateways that were under load."""

import csv
import json
import re
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from gateway.cli.main import main
from perf.bench import predict
from perf.bench.predict import PredictBench, PredictScale
from perf.models.distributions import Exponential, LogNormal
from perf.models.recording import record
from perf.models.simulator import (
    Alternating,
    SimulatedQueue,
    SimulatedRun,
    SimulatedSource,
    SimulatedWorld,
    poisson,
    simulate,
)
from perf.pipeline import predictions
from perf.pipeline import session as spark_session
from perf.pipeline.analysis import Analysis
from perf.pipeline.predictions import PredictionRow, RunPrediction, capacity_rows, predict_runs, what_holds
from perf.pipeline.resources import TimeSpan
from perf.report.build import build_report
from perf.report.predictions import build_predictions
from perf.traces.formats import Format
from perf.traces.run import Run
from tests.documents.pages import commands_for
from tests.perf.spark.hand_made import run_one, write_run

pytestmark = pytest.mark.timeout(600)
LIFETIME = 25.0


def world() -> SimulatedWorld:
    return SimulatedWorld(
        (SimulatedSource("source", poisson(3.0), "app", lifetime=LIFETIME),),
        (
            SimulatedQueue("app", Exponential(0.01), (("broker", 1.0),), served_while="session", expires=True),
            SimulatedQueue("broker", LogNormal(0.05, 0.2), (("last", 1.0),)),
            SimulatedQueue("last", Exponential(0.02), loses_on="link"),
        ),
        {
            "session": Alternating(Exponential(40), Exponential(10)),
            "link": Alternating(Exponential(30), Exponential(3)),
        },
    )


@pytest.fixture(scope="module")
def simulated() -> SimulatedRun:
    return simulate(world(), 6_000, 4)


@pytest.fixture(scope="module")
def recorded(simulated: SimulatedRun, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Run]:
    folder = tmp_path_factory.mktemp("run")
    return folder, record(folder, simulated, {"lifetime": LIFETIME}, name="one")


@pytest.fixture(scope="module")
def predicted(session: SparkSession, recorded: tuple[Path, Run]) -> RunPrediction:
    [prediction] = predict_runs(session, [recorded[0]])
    return prediction


def test_the_whole_way_is_predicted_beside_what_was_measured(simulated: SimulatedRun, predicted: RunPrediction) -> None:
    way = predicted.way
    assert way is not None
    assert [hop.kind for hop in way.hops] == ["app~session", "broker", "last"]
    times = simulated.responses()
    assert way.measured.mean == pytest.approx(times.mean(), rel=1e-3)
    assert way.measured.p95 is not None
    assert way.simulated.mean == pytest.approx(times.mean(), rel=0.15)
    assert way.simulated.p95 == pytest.approx(way.measured.p95, rel=0.25)
    assert way.success_measured == pytest.approx(simulated.success(), abs=1e-6)
    assert way.success_predicted == pytest.approx(simulated.success(), abs=0.03)
    assert predicted.publications == 6_000
    assert predicted.deliveries == simulated.ledger.delivered
    assert predicted.rate == pytest.approx(3.0, rel=0.1)


def test_queues_say_what_fails_before_the_numbers(predicted: RunPrediction) -> None:
    by_name = {queue.resource: queue for queue in predicted.queues}
    assert by_name["app~session"].comparison.model == "ON/OFF"
    assert "not so: arrivals are Poisson" in what_holds(by_name["broker"]), "the first lets go of bursts"
    columns = list(PredictionRow.__dataclass_fields__)
    assert columns.index("assumptions") < columns.index("predicted_mean_ms")
    assert not predicted.wrong


def test_the_page_has_chain_bars_and_residuals_and_nothing_from_elsewhere(
    predicted: RunPrediction, tmp_path: Path
) -> None:
    built = build_predictions([predicted], tmp_path)
    page = built.page.read_text()
    assert page.count("<svg") == 1
    assert page.count("data:image/png;base64,") == 2
    assert page.index("not so: arrivals are Poisson") < page.index("How it was computed")
    assert not re.search(r"<script|<link|href=|url\(", page)
    head = page.split("<thead>")[1].split("</thead>")[0]
    assert head.index("assumptions") < head.index("formula ms")
    with (tmp_path / "tables" / "predictions.csv").open() as stream:
        rows = list(csv.DictReader(stream))
    assert [row["queue"] for row in rows] == [queue.resource for queue in predicted.queues]
    assert sorted(path.name for path in (tmp_path / "plots").iterdir()) == [
        "prediction-bars-0.png",
        "prediction-residuals-0.png",
    ]


def test_the_report_names_the_page_of_predictions(analysis: Analysis, predicted: RunPrediction, tmp_path: Path) -> None:
    report = build_report(analysis, tmp_path / "out", (), [predicted])
    assert "predictions.html, beside this page" in report.page.read_text()
    assert (tmp_path / "out" / "predictions.html").exists()


def test_traces_that_say_nothing_of_queues_are_told_so(session: SparkSession, tmp_path: Path) -> None:
    run = write_run(tmp_path / "one", "one", [run_one()], Format.JSON_LINES)
    [prediction] = predict_runs(session, [run])
    assert prediction.queues == ()
    built = build_predictions([prediction], tmp_path / "out")
    assert built.says[0].startswith("one: its traces say nothing of queues")


def test_two_gateways_under_load_are_predicted_and_nothing_is_unaccounted_for(
    session: SparkSession, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """One load, and shorter than it is usually."""
    made: list[PredictBench] = []

    def noted(*given: Any) -> PredictBench:
        made.append(PredictBench(*given))
        return made[-1]

    monkeypatch.setattr(spark_session, "open_session", lambda *_: session)
    monkeypatch.setattr(SparkSession, "stop", lambda _: None)  # other tests need it still
    monkeypatch.setattr(predict, "PredictBench", noted)
    monkeypatch.setattr(predict, "QUICK", PredictScale((0.5,), topics=20, seconds=3.0, capacity=100.0))
    [words] = commands_for(
        "tests/perf/spark/test_predictions.py::"
        "test_two_gateways_under_load_are_predicted_and_nothing_is_unaccounted_for",
        "docs/models.md",
    )
    assert main([*words[1:], "--json"]) == 0
    results = json.loads(capsys.readouterr().out)["results"]
    [run] = made[0].runs
    assert run.unaccounted == 0, run.ledger
    assert run.ledger.balanced
    kinds = {(queue.node, queue.kind) for queue in run.prediction.queues}
    assert {("gate-0", "intake"), ("gate-0", "source"), ("gate-1", "session"), ("gate-1", "delivery")} <= kinds
    assert run.prediction.believed, "somewhere the assumptions hold"
    assert not run.prediction.wrong, [(queue.resource, queue.comparison.error) for queue in run.prediction.wrong]
    way = run.prediction.way
    assert way is not None
    assert [hop.kind for hop in way.hops] == [
        "intake", "session", "source", "link", "forwarder", "session", "delivery",
    ]  # fmt: skip
    assert 0 < way.in_queues < 2 * (way.measured.mean or 0.0)
    capacities = capacity_rows(run.prediction)
    assert {"cpu/loop", "cores of their machine"} <= {row.resource for row in capacities}
    assert capacities == sorted(capacities, key=lambda row: row.saturates_at)
    assert results[-1]["queue"] == "end to end"


def test_the_commands_predict_and_say_what_saturates_first(
    session: SparkSession,
    recorded: tuple[Path, Run],
    predicted: RunPrediction,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(spark_session, "open_session", lambda *_: session)
    monkeypatch.setattr(SparkSession, "stop", lambda _: None)  # other tests need it still
    really = [predictions.predict_runs]
    monkeypatch.setattr(
        predictions, "predict_runs", lambda *given, **more: really.pop()(*given, **more) if really else [predicted]
    )
    here = {"RUN": str(recorded[0]), "predictions": str(tmp_path / "out")}
    for words in commands_for(
        "tests/perf/spark/test_predictions.py::test_the_commands_predict_and_say_what_saturates_first", "docs/models.md"
    ):
        assert main([here.get(word, word) for word in words[1:]]) == 0, words
    shown = capsys.readouterr().out
    assert "one: in " in shown
    assert "predictions: " in shown
    assert "the first to saturate is simulation broker, at 20" in shown
    assert main(["predict", "run", str(recorded[0]), "--json", "--out", str(tmp_path / "out")]) == 0
    rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert {row["queue"] for row in rows} == {"app~session", "broker", "last"}
    assert main(["predict", "run", str(recorded[0]), "--to", "0"]) == 2
    assert "--to that is later" in capsys.readouterr().err
    assert main(["predict", "run", str(tmp_path)]) == 2


def test_only_a_part_of_a_run_is_looked_at(session: SparkSession, recorded: tuple[Path, Run]) -> None:
    begin = recorded[1].started_ns
    [part] = predict_runs(session, [recorded[0]], span=TimeSpan(begin, begin + 1_000 * 10**9))
    assert 2500 < part.publications < 3500
