"""`psph predict`: what latency and success should be, from traces or a description, and which queue fills first."""

import argparse
import json
from pathlib import Path
from typing import TYPE_CHECKING

from gateway.cli.errors import CommandError

if TYPE_CHECKING:
    from perf.models.scenario import Scenario, ScenarioOutlook
    from perf.pipeline.predictions import RunPrediction

DEFAULT_OUT = Path("predictions")
WIDTH = 150
CHART_MESSAGES = 20_000
NEEDS = "psph predict run and capacity need Spark and matplotlib: install psph[analytics]"
EXAMPLE_FILE = """
chain.toml:
  rate = 2                       # messages a second
  lifetime = 30                  # seconds; without it nothing expires
  [[queues]]
  name = "publisher"
  service = 0.0156               # mean, in seconds
  on = 40                        # connected and disconnected for so long, on average
  off = 40
  [[queues]]
  name = "broker"
  service = 0.0156
  variation = 0                  # squared, of service: 1 is exponential and the default
  servers = 2                    # workers
  places = 100                   # what finds so many there is dropped
  [[queues]]
  name = "subscriber"
  service = 0.0312
  link_on = 60                   # behind it a link that loses what leaves while it is down
  link_off = 2
"""


def configure(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Say what latency and success should be: from the traces of a run beside what was measured, with the\n"
        "assumption that fails where they differ; or from a description without traces, and what if it changed."
    )
    parser.epilog = (
        "examples:\n"
        "  psph gateway -c gateway.toml --traces var/traces     traces that say how long things wait in every queue\n"
        "  psph predict run var/traces/* --out predictions      then open predictions/predictions.html\n"
        "  psph predict if chain.toml                           without traces: by formula and by simulation\n"
        "  psph predict if chain.toml --rate x2 --lifetime 10   twice the rate, and messages live for 10 seconds\n"
        "  psph predict if chain.toml --workers /2 --chart chart.png\n"
        "  psph predict if chain.toml --success 0.99            the smallest lifetime with which 99 % arrive\n"
        "  psph predict capacity var/traces/*                   which queue saturates first, and at which load\n"
        + EXAMPLE_FILE
    )
    kinds = parser.add_subparsers(dest="kind", required=True, metavar="run | if | capacity")
    _configure_run(kinds.add_parser("run", help="from traces, beside what was measured"))
    _configure_if(kinds.add_parser("if", help="from a description, and what if it changed"))
    _configure_capacity(
        kinds.add_parser("capacity", help="the load at which each queue saturates, the first one named")
    )
    for kind in kinds.choices.values():
        kind.formatter_class = parser.formatter_class


def _configure_run(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "From the traces of runs: Spark estimates rates, moments of service and connectivity of every queue; models\n"
        "and a simulation say what follows, for each queue and from end to end; it stands beside what was measured."
    )
    parser.epilog = (
        "examples:\n"
        "  psph predict run var/traces/*\n"
        "  psph predict run RUN --from 10 --to 70 --json       a minute of it, as JSON\n"
        "exit code: 1 when a queue whose assumptions hold by test is predicted more than 20 % off"
    )
    _spark_options(parser, runs="+")
    parser.add_argument(
        "--out", type=Path, default=DEFAULT_OUT, metavar="DIR", help=f"where the page goes; default: {DEFAULT_OUT}"
    )
    parser.add_argument("--json", action="store_true", help="one JSON object for each queue instead of sentences")


def _spark_options(parser: argparse.ArgumentParser, *, runs: str) -> None:
    parser.add_argument("runs", metavar="RUN", nargs=runs, type=Path, help="directory of a run")
    parser.add_argument("--from", dest="begin", type=float, default=0.0, metavar="S", help="seconds of it to leave out")
    parser.add_argument("--to", dest="end", type=float, metavar="S", help="second of it to stop at")
    parser.add_argument("--master", default="local[*]", help="where Spark runs; default: local[*], inside this process")
    parser.add_argument("--memory", default="3g", help="heap of the driver; default: 3g")


def _configure_if(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "From a description of a chain of queues, without traces: mean, p95, p99 and success, by formula and by\n"
        "simulation, as it is and as it would be. A value begins with x or / to multiply or divide what is there."
    )
    parser.epilog = (
        "examples:\n"
        "  psph predict if chain.toml\n"
        "  psph predict if chain.toml --rate x2 --workers /2 --lifetime 10\n"
        "  psph predict if chain.toml --success 0.9\n"
        "  psph predict if chain.toml --rate 5 --chart chart.png\n" + EXAMPLE_FILE
    )
    parser.add_argument("file", metavar="FILE", type=Path, help="the description, as below")
    parser.add_argument("--rate", metavar="R", help="messages a second: 5, x2, /2")
    parser.add_argument("--workers", metavar="N", help="servers of each queue that can have several: 4, x2, /2")
    parser.add_argument("--service", metavar="S", help="mean service time of each queue in seconds: 0.01, x2, /2")
    parser.add_argument("--lifetime", metavar="S", help="seconds after which messages expire: 10, x2, /2")
    parser.add_argument("--success", type=float, metavar="SHARE", help="find the smallest lifetime that reaches this")
    parser.add_argument("--messages", type=int, default=100_000, metavar="N", help="simulated; default: 100000")
    parser.add_argument("--seed", type=int, default=1, help="of the simulation; default: 1")
    parser.add_argument("--chart", type=Path, metavar="FILE", help="draw response and success against the rate (PNG)")
    parser.add_argument("--json", action="store_true", help="a JSON object instead of tables")


def _configure_capacity(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "The load at which each queue saturates, in publications a second, and which one is the first. From the\n"
        "traces of a run under load; `psph bench predict` checks it against a search for the highest rate."
    )
    parser.epilog = (
        "examples:\n"
        "  psph predict capacity var/traces/*\n"
        "  psph predict capacity RUN --from 10 --json\n"
        "  psph predict capacity --description chain.toml"
    )
    _spark_options(parser, runs="*")
    parser.add_argument("--description", type=Path, metavar="FILE", help="of a description instead of traces")
    parser.add_argument("--json", action="store_true", help="a JSON object for each queue")


def run(args: argparse.Namespace) -> int:
    from perf.models.assumptions import ModelError

    try:
        match args.kind:
            case "run":
                return _run(args)
            case "if":
                return _if(args)
            case _:
                return _capacity(args)
    except ModelError as error:
        raise CommandError(str(error)) from None


# From traces


def _predictions(args: argparse.Namespace) -> "list[RunPrediction]":
    try:
        import matplotlib  # noqa: F401
        import pyarrow  # type: ignore[import-untyped] # noqa: F401
        import pyspark  # noqa: F401
    except ImportError as error:
        raise CommandError(f"{NEEDS} ({error.name} is missing)") from None
    from perf.bench.family import progress_bar
    from perf.java import NoJavaError
    from perf.pipeline.predictions import predict_runs
    from perf.pipeline.resources import TimeSpan
    from perf.pipeline.session import open_session
    from perf.traces.run import RunError, load_run

    if args.begin < 0 or (args.end is not None and args.end <= args.begin):
        raise CommandError("--from and --to: expected 0 or more seconds, and a --to that is later than --from")
    try:
        started = min(load_run(directory).started_ns for directory in args.runs)
        end = TimeSpan().to_ns if args.end is None else started + int(args.end * 1e9)
        with progress_bar("predict", 2) as tick:
            session = open_session(args.master, args.memory)
            tick("Spark is up")
            try:
                return predict_runs(session, args.runs, span=TimeSpan(started + int(args.begin * 1e9), end))
            finally:
                session.stop()
                tick("queues")
    except (NoJavaError, RunError) as error:
        raise CommandError(str(error)) from None


def _run(args: argparse.Namespace) -> int:
    try:
        args.out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise CommandError(f"--out: {args.out}: {error.strerror}") from None
    predictions = _predictions(args)
    from dataclasses import asdict

    from perf.pipeline.predictions import rows_of_predictions
    from perf.report.predictions import build_predictions

    built = build_predictions(predictions, args.out)
    if args.json:
        for row in rows_of_predictions(predictions):
            print(json.dumps(asdict(row)))
    else:
        for line in built.says:
            print(line)
        print(f"predictions: {built.page}")
    if not any(prediction.queues for prediction in predictions):
        return 1
    return 1 if any(prediction.wrong for prediction in predictions) else 0


def _capacity(args: argparse.Namespace) -> int:
    if bool(args.runs) == (args.description is not None):
        raise CommandError("give the directories of a run, or --description FILE, and not both")
    if args.description is not None:
        return _capacity_of_description(args)
    from dataclasses import asdict

    from perf.pipeline.predictions import capacity_rows

    found = [(prediction, capacity_rows(prediction)) for prediction in _predictions(args)]
    for prediction, rows in found:
        if args.json:
            for row in rows:
                print(json.dumps(asdict(row)))
        elif not rows:
            print(f"{prediction.run}: its traces say nothing of queues or processors that were used")
        else:
            first = rows[0]
            print(
                f"{prediction.run}: at {prediction.rate:.4g} publications a second; the first to saturate is "
                f"{first.node} {first.resource}, at {first.saturates_at:.4g} a second"
            )
            for row in rows:
                more = " or more" if row.at_least else ""
                print(f"  {row.node} {row.resource}: {row.used:.1%} used, saturates at {row.saturates_at:.4g}{more}")
    return 0 if all(rows for _, rows in found) else 1


# From a description


def _capacity_of_description(args: argparse.Namespace) -> int:
    from perf.models.scenario import capacities, read_scenario

    scenario = read_scenario(args.description)
    first, at = scenario.first_to_saturate
    if args.json:
        print(json.dumps({queue.name: saturates for queue, saturates in capacities(scenario)} | {"first": first.name}))
        return 0
    print(f"the first to saturate is {first.name}, at {at:.4g} messages a second; {scenario.rate:.4g} come")
    for queue, saturates in capacities(scenario):
        print(f"  {queue.name}: {scenario.rate / saturates:.1%} used, saturates at {saturates:.4g}")
    return 0


def _if(args: argparse.Namespace) -> int:
    from dataclasses import asdict

    from perf.models.scenario import WhatIf, WhatIfChange, lifetime_for, look_ahead, read_scenario

    scenario = read_scenario(args.file)

    def change(name: str) -> WhatIfChange | None:
        text = getattr(args, name)
        return None if text is None else WhatIfChange.parse(text, f"--{name}")

    changes = WhatIf(change("rate"), change("workers"), change("service"), change("lifetime"))
    changed = changes.of(scenario)
    if args.success is not None:
        import msgspec

        changed = msgspec.structs.replace(changed, lifetime=max(lifetime_for(changed, args.success), 1e-6))
    cases = [("as it is", scenario)] + ([("what if", changed)] if changed != scenario else [])
    outlooks = [(name, look_ahead(case, args.messages, args.seed)) for name, case in cases]
    if args.json:
        import msgspec

        print(json.dumps({name: msgspec.to_builtins(asdict(outlook)) for name, outlook in outlooks}))
    else:
        for name, outlook in outlooks:
            _show(name, outlook)
    if args.chart is not None:
        _chart(args.chart, cases, args.messages, args.seed)
        print(f"chart: {args.chart}")
    return 0 if outlooks[-1][1].simulated_mean is not None else 1


def _show(name: str, outlook: "ScenarioOutlook") -> None:
    from rich.console import Console
    from rich.table import Table

    scenario = outlook.scenario
    lives = "for ever" if scenario.lifetime is None else f"for {scenario.lifetime:.4g} s"
    console = Console(width=None if Console().is_terminal else WIDTH)
    console.print(f"{name}: {scenario.rate:.4g} messages a second, which live {lives}", highlight=False)
    for line in outlook.warnings:
        console.print(f"  first of all: {line}", highlight=False)
    table = Table(box=None, pad_edge=False)
    table.add_column("queue")
    heads = ("model", "used", "saturates/s", "formula", "p95", "p99", "simulated", "p95", "p99", "success", "simulated")
    for head in heads:
        table.add_column(head, justify="right")
    for row in outlook.queues:
        table.add_row(
            row.name, row.model, f"{row.utilisation:.0%}", f"{row.saturates_at:.4g}", _s(row.mean), _s(row.p95),
            _s(row.p99), _s(row.simulated_mean), _s(row.simulated_p95), _s(row.simulated_p99), f"{row.success:.1%}",
            "-" if row.simulated_success is None else f"{row.simulated_success:.1%}",
        )  # fmt: skip
    table.add_row(
        "end to end", "", "", "", _s(outlook.mean), "-", "-", _s(outlook.simulated_mean), _s(outlook.simulated_p95),
        _s(outlook.simulated_p99), f"{outlook.success:.1%}",
        "-" if outlook.simulated_success is None else f"{outlook.simulated_success:.1%}",
    )  # fmt: skip
    console.print(table)


def _s(seconds: float | None) -> str:
    if seconds is None:
        return "-"
    return f"{seconds:.4g} s" if seconds >= 1 else f"{seconds * 1e3:.4g} ms"


def _chart(path: Path, cases: "list[tuple[str, Scenario]]", messages: int, seed: int) -> None:
    try:
        import matplotlib  # noqa: F401
    except ImportError:
        raise CommandError("--chart needs matplotlib: install psph[analytics]") from None
    from perf.report.scenario_chart import draw_scenarios

    try:
        path.write_bytes(draw_scenarios(cases, min(messages, CHART_MESSAGES), seed))
    except OSError as error:
        raise CommandError(f"--chart: {path}: {error.strerror}") from None
