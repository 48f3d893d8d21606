"""`psph crash`: kill -9 a real hub, or gateways and their network, again and again, and count what was lost."""

import argparse
import dataclasses
import json

import uvloop
from rich.console import Console
from rich.table import Table

from gateway.cli.errors import CommandError
from perf.bench.family import progress_bar
from trials.crash.driver import CrashReport, CrashTest
from trials.crash.gateway_driver import GatewayCrashTest, GatewayReport
from trials.crash.gateway_world import GatewaySize
from trials.crash.mqtt_driver import MqttCrashReport, MqttCrashTest
from trials.crash.world import Size

DEFAULT_KILLS = 200
MAX_KILLS = 100_000
MAX_WIDE = 100_000


def configure(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Run a hub process on a store of its own, load it with subscriptions, pings and deliveries on loopback, end\n"
        "it with kill -9 at moments spread over all it does, start it again on the same store, and so on. After each\n"
        "kill the store is checked; after a quiet time at the end nothing that was acknowledged may be missing.\n"
        "Ends with 1 and says what was lost when something was.\n\n"
        "`gateway`: two gateways, a rendezvous and two forwarders, each a process, joined by UDP links on loopback.\n"
        "Publishers and subscribers are in both domains; a process chosen by chance is killed and started again. Some\n"
        "topics have a hub of their own, a process too that knows nothing of gateways: the subscribers of the other\n"
        "domain get them only by bootstrapping through it.\n\n"
        "`mqtt`: the MQTT broker, with publishers of QoS 1 and 2 and subscribers whose sessions last. Nothing that\n"
        "was acknowledged may be missing, and nothing of QoS 2 may come twice."
    )
    parser.epilog = """\
examples:
  psph crash hub                               200 kills, about six minutes
  psph crash hub --kills 10 --wide 200         a short run
  psph crash hub --seed 7 --json               other moments; one JSON object
  psph crash gateway --kills 20                two gateways and the network between them
  psph crash mqtt --kills 20                   the MQTT broker: QoS 1 and 2, sessions, queues"""
    parser.add_argument("what", choices=["hub", "gateway", "mqtt"], help="what to kill")
    parser.add_argument("--kills", type=int, default=DEFAULT_KILLS, metavar="N", help=f"default {DEFAULT_KILLS}")
    parser.add_argument("--seed", type=int, default=0, metavar="S", help="another seed gives other moments (default 0)")
    parser.add_argument(
        "--wide",
        type=int,
        default=Size().wide,
        metavar="N",
        help="hub: callbacks of the topic with the most (default %(default)s)",
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of a table")


def run(args: argparse.Namespace) -> int:
    if not 1 <= args.kills <= MAX_KILLS:
        raise CommandError(f"--kills takes a number from 1 to {MAX_KILLS}, not {args.kills}")
    if not 1 <= args.wide <= MAX_WIDE:
        raise CommandError(f"--wide takes a number from 1 to {MAX_WIDE}, not {args.wide}")
    if args.what == "gateway":
        return _run_gateway(args)
    if args.what == "mqtt":
        return _run_mqtt(args)
    with progress_bar("kills", args.kills) as tick:
        test = CrashTest(args.kills, args.seed, Size(wide=args.wide), tick)
        report = uvloop.run(test.run())
    if args.json:
        print(json.dumps(as_document(report), indent=2))
    else:
        show(report)
    return 0 if report.passed else 1


def _run_gateway(args: argparse.Namespace) -> int:
    with progress_bar("kills", args.kills) as tick:
        report = uvloop.run(GatewayCrashTest(args.kills, args.seed, GatewaySize(), tick).run())
    if args.json:
        print(json.dumps({**dataclasses.asdict(report), "passed": report.passed}, indent=2))
    else:
        show_gateway(report)
    return 0 if report.passed else 1


def _run_mqtt(args: argparse.Namespace) -> int:
    with progress_bar("kills", args.kills) as tick:
        report = uvloop.run(MqttCrashTest(args.kills, args.seed, tick).run())
    if args.json:
        print(json.dumps({**dataclasses.asdict(report), "passed": report.passed}, indent=2))
    else:
        show_mqtt(report)
    return 0 if report.passed else 1


def show_mqtt(report: MqttCrashReport) -> None:
    table = Table(title=f"{report.kills} kills in {report.seconds:.0f} s, seed {report.seed}", show_header=False)
    for name, value in (
        ("messages acknowledged", f"{report.acknowledged:,}"),
        ("messages delivered, to all subscribers", f"{report.delivered:,}"),
        ("of QoS 1 more than once, which may be", f"{report.repeated:,}"),
        ("all arrived after", f"{report.settled_after:.1f} s"),
        ("lost, or twice of QoS 2", f"{sum(report.problems.values()):,}"),
    ):
        table.add_row(name, value)
    console = Console()
    console.print(table)
    for kind, number in report.problems.items():
        console.print(f"FAILED {kind}: {number}", markup=False, highlight=False)
    for example in report.examples:
        console.print(f"  {example}", markup=False, highlight=False)
    console.print("nothing acknowledged was lost" if report.passed else "the broker broke its word", highlight=False)


def show_gateway(report: GatewayReport) -> None:
    counts = report.counts
    table = Table(title=f"{report.kills} kills in {report.seconds:.0f} s, seed {report.seed}", show_header=False)
    rows: list[tuple[str, int | str]] = [
        *((f"killed: {name}", number) for name, number in report.killed.items()),
        ("callbacks in both domains", report.callbacks),
        ("publications written", counts.written),
        ("pings acknowledged", counts.acknowledged),
        ("pings without an answer", counts.unanswered),
        ("pings refused", counts.refused),
        ("deliveries", counts.delivered),
        ("deliveries in the other domain", counts.crossed),
        ("pings acknowledged by the stock hub", counts.upstream_acknowledged),
        ("deliveries by bootstrapping", counts.bootstrapped),
        ("states of these that a newer one replaced", counts.passed_over),
        ("subscribers that came, and went", f"{counts.came:,}, {counts.went:,}"),
        ("denied while somebody was away, asked again", counts.denied),
        *((f"stock hub: {what}", number) for what, number in report.stock_hub.items()),
        ("duplicates", counts.duplicates),
        (f"most duplicates after one kill (bound {report.chunk})", report.most_duplicates_after_a_kill),
        ("all arrived after", f"{report.settled_after:.1f} s"),
        ("lost", report.lost),
        ("wrong", sum(number for kind, number in report.problems.items() if kind != "lost")),
    ]
    for name, value in rows:
        table.add_row(name, value if isinstance(value, str) else f"{value:,}")
    console = Console()
    console.print(table)
    for kind, number in report.problems.items():
        console.print(f"FAILED {kind}: {number}", markup=False, highlight=False)
    for example in report.examples:
        console.print(f"  {example}", markup=False, highlight=False)
    console.print(
        "nothing acknowledged was lost" if report.passed else "the gateways broke their word", highlight=False
    )


def as_document(report: CrashReport) -> dict[str, object]:
    return {**dataclasses.asdict(report), "lost": report.lost, "passed": report.passed}


def show(report: CrashReport) -> None:
    counts = report.counts
    table = Table(title=f"{report.kills} kills in {report.seconds:.0f} s, seed {report.seed}", show_header=False)
    rows: list[tuple[str, int]] = [
        *((f"killed: {name}", number) for name, number in report.plans.items()),
        ("acknowledged subscriptions", counts.subscribed),
        ("acknowledged unsubscriptions", counts.unsubscribed),
        ("acknowledged pings", counts.pings),
        ("of these with content", counts.fat_pings),
        ("requests without an answer", counts.unanswered),
        ("requests refused", counts.refused),
        ("store checks", counts.snapshots),
        ("publications", counts.publications),
        ("deliveries that arrived", counts.delivered),
        ("deliveries refused by callbacks, tried again", counts.refused_by_callbacks),
        ("duplicates", counts.duplicates),
        (f"most duplicates after one kill (bound {report.chunk})", report.most_duplicates_after_a_kill),
        ("active subscriptions at the end", report.active_at_end),
        ("lost", report.lost),
    ]
    for name, number in rows:
        table.add_row(name, f"{number:,}")
    console = Console()
    console.print(table)
    for kind, number in report.problems.items():
        console.print(f"FAILED {kind}: {number}", markup=False, highlight=False)
    for example in report.examples:
        console.print(f"  {example}", markup=False, highlight=False)
    console.print("nothing acknowledged was lost" if report.passed else "the hub broke its word", highlight=False)
