"""`psph net`: run a whole PSIRP network on this machine, and look at it."""

import argparse
import asyncio
import io
import json
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from rich.console import Console
from rich.table import Table

from gateway.cli.errors import CommandError
from gateway.operations.ready import tell_ready
from gateway.words import counted
from psirp_stack.emulation.experiment import ExperimentOutcome, perform, simulate, simulated_network
from psirp_stack.emulation.namespaces import SECRET_FILE, NamespaceError, NamespaceNetwork
from psirp_stack.emulation.network import EmulatedNetwork, Watcher, socket_of
from psirp_stack.emulation.plan import GRAPH_FILE, NetworkPlan, PlanError, load
from psirp_stack.node.api import Client, NotAttachedError
from storage import StorageError
from storage.private import make_private_folder

EXAMPLES = """
examples:
  psph net up ring.toml                     a network in one process; applications attach to var/net/NODE.sock
  psph net up ring.toml --netns             the same of real namespaces and veth pairs (root)
  psph net up experiment.toml --simulated   events and workloads on a virtual clock: minutes of traffic in moments
  psph net up experiment.toml --result found.json --traces var/traces
  psph net up ring.toml --reference --trace publications       forwarders of scapy, and each packet at each hop
  psph net up experiment.toml --simulated --reference --compare    the fast forwarders decide on every packet as well
  psph net status                           nodes, links, matches, filters, drops
  psph sub --socket var/net/n3.sock http://example.com/feed

ring.toml:
  seed = "demo"
  [generate]
  kind = "ring"                             # line, ring, star, grid, backbone; or: edges = "graph.tsv"
  nodes = 8
  [every_link]
  delay = 0.002                             # jitter, loss, duplication, reorder, bandwidth
  [[links]]
  between = ["n0", "n4"]
  loss = 0.1

experiment.toml, beside that:
  seconds = 20                              # it ends by itself, and says what came of it
  [[workloads]]
  publisher = "n0"
  rate = 10                                 # subscribers, bytes, start, stop, item, get
  [[events]]
  at = 5
  cut = ["n1", "n2"]                        # mend, impair, kill, revive
"""
DEFAULT_DATA = Path("var/net")
ASK_SECONDS = 3.0
STATUS_WIDTH = 100


def configure(parser: argparse.ArgumentParser) -> None:
    parser.description = "Run a whole network of nodes on this machine (up), or show how one is doing (status)."
    parser.epilog = EXAMPLES
    commands = parser.add_subparsers(dest="what", required=True, metavar="up|status")
    up = commands.add_parser("up", help="start a network and keep it until interrupted")
    up.add_argument("topology", type=Path, help="the network's description")
    up.add_argument("--netns", action="store_true", help="build it from real namespaces and veth pairs (root)")
    up.add_argument(
        "--reference", action="store_true", help="every forwarder is the readable one, made with scapy: slow"
    )
    up.add_argument(
        "--trace",
        choices=("publications", "control", "all"),
        help="with --reference: show these packets at each hop, layer by layer",
    )
    up.add_argument(
        "--step", action="store_true", help="with --trace and --simulated: wait for Enter after each packet"
    )
    up.add_argument("--compare", action="store_true", help="with --reference: have the fast forwarders decide as well")
    up.add_argument("--simulated", action="store_true", help="on a virtual clock; for an experiment with `seconds`")
    up.add_argument("--result", type=Path, metavar="FILE", help="write what came of an experiment, as JSON")
    up.add_argument("--traces", type=Path, metavar="DIR", help="trace the experiment, for psph report")
    up.add_argument("--data", type=Path, default=DEFAULT_DATA, help="sockets and stores (default: %(default)s)")
    status = commands.add_parser("status", help="ask all nodes of a running network")
    status.add_argument("--data", type=Path, default=DEFAULT_DATA, help="where its sockets are (default: %(default)s)")
    status.add_argument("--json", action="store_true", help="what the nodes say, as one JSON object")


def run(args: argparse.Namespace) -> int:
    try:
        if args.what == "status":
            return asyncio.run(_status(sorted(args.data.glob("*.sock")), args))
        plan = load(args.topology)
        make_private_folder(args.data, (*plan.graph.names, GRAPH_FILE, SECRET_FILE))
        if plan.seconds is None and (args.simulated or args.result or args.traces):
            raise CommandError(
                "--simulated, --result and --traces are for an experiment: say in the file how many seconds"
            )
        if (args.trace or args.compare) and not args.reference:
            raise CommandError("--trace and --compare are for a network of scapy: say --reference as well")
        if args.step and not (args.trace and args.simulated):
            raise CommandError("--step is for --trace with --simulated: a live network does not wait")
        if args.netns and args.reference:
            raise CommandError("--reference is for a network of one process: leave out --netns")
        if args.netns:
            return _up_in_namespaces(plan, args.data)
        with _looked_at(plan, args) as looked_at:
            if plan.seconds is not None:
                show_outcome(run_experiment(looked_at, args), args.result)
            else:
                asyncio.run(_up(looked_at, args.data))
    except BrokenPipeError:
        raise
    except (PlanError, NamespaceError, StorageError, OSError) as error:
        raise CommandError(str(error)) from None
    return 0


async def _up(plan: NetworkPlan, data: Path) -> None:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    network = await EmulatedNetwork.start(plan, data)
    try:
        settled = asyncio.ensure_future(network.settled())
        stopped = asyncio.ensure_future(stop.wait())
        await asyncio.wait({settled, stopped}, return_when=asyncio.FIRST_COMPLETED)
        if not stop.is_set():
            _say_up(plan, data)
            await stopped
        settled.cancel()
    finally:
        await network.close()


@contextmanager
def _looked_at(plan: NetworkPlan, args: argparse.Namespace) -> Iterator[NetworkPlan]:
    """The plan with the forwarders that are wanted; afterwards, what comparing them showed."""
    if not args.reference:
        yield plan
        return
    try:
        from gateway.cli.reference import ReferenceRun
    except ImportError as error:
        raise CommandError(f"{error}: install the packet tools (psph[tools])") from error
    run = ReferenceRun(plan, args.trace, simulated=args.simulated, step=args.step, compare=args.compare)
    yield run.plan
    if (found := run.found()) is not None:
        print(found)
        if run.differs:
            raise CommandError("the fast forwarder and the reference differ: this is a fault of one of them")


def run_experiment(plan: NetworkPlan, args: argparse.Namespace) -> ExperimentOutcome:
    """On a virtual clock, or live; traced if that is wanted."""
    from gateway.cli.network_traces import traced_network  # what a network alone does not need

    with traced_network(args.traces, plan, simulated=args.simulated) as tracing:
        if args.simulated:
            network = simulated_network(plan, args.data, **tracing.of_simulation())
            try:
                tracing.follow(network.clock)
                return simulate(plan, args.data, network=network)
            finally:
                network.close()
        return asyncio.run(_perform(plan, args.data, tracing.tracer))


async def _perform(plan: NetworkPlan, data: Path, watcher: Watcher | None) -> ExperimentOutcome:
    network = await EmulatedNetwork.start(plan, data, watcher=watcher)
    try:
        await network.settled()
        _say_up(plan, data)
        return await perform(plan, network, data)
    finally:
        await network.close()


def show_outcome(outcome: ExperimentOutcome, result: Path | None) -> None:
    if result is not None:
        result.write_text(json.dumps(outcome.as_document(), indent=2) + "\n", encoding="utf-8")
    for at, text in outcome.events:
        print(f"at {at:g} s: {text}")
    table = Table(box=None, pad_edge=False, padding=(0, 1, 0, 0))
    columns = list(outcome.rows[0]) if outcome.rows else []
    for column in columns:
        table.add_column(column, justify="left" if column in ("publisher", "reader") else "right", no_wrap=True)
    for row in outcome.rows:
        table.add_row(*(_cell(row[column]) for column in columns))
    Console(width=STATUS_WIDTH, highlight=False).print(table)
    print(f"{outcome.frames:,} frames, {outcome.lost:,} lost on links")


def _cell(value: str | float | None) -> str:
    if isinstance(value, float):
        return f"{value:.4g}"
    return "-" if value is None else str(value)


def _up_in_namespaces(plan: NetworkPlan, data: Path) -> int:
    network = NamespaceNetwork(plan, data)
    ending = {signal.SIGTERM, signal.SIGINT}
    # Blocked, they wait for sigwait: one that comes while namespaces are made is not lost and interrupts nothing.
    before = signal.pthread_sigmask(signal.SIG_BLOCK, ending)
    try:
        console = Console(stderr=True)
        with console.status("making namespaces") as shown:
            network.up(shown.update)
        _say_up(plan, data)
        signal.sigwait(ending)
    finally:
        network.down()
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
    return 0


def _say_up(plan: NetworkPlan, data: Path) -> None:
    names = plan.graph.names
    links = plan.graph.undirected_links
    print(f"{counted(len(names), 'node')} and {counted(links, 'link')} are up", flush=True)
    print(f"rendezvous {', '.join(plan.rendezvous)}, topology manager {', '.join(plan.topology)}", flush=True)
    print(f"applications attach to {socket_of(data, names[0])} ... {socket_of(data, names[-1])}", flush=True)
    tell_ready()


async def _status(sockets: list[Path], args: argparse.Namespace) -> int:
    if not sockets:
        raise CommandError(f"no nodes in {args.data}: is `psph net up` running with this --data?")
    accounts = await asyncio.gather(*map(_ask, sockets))
    known = {path.stem: account for path, account in zip(sockets, accounts, strict=True)}
    if args.json:
        print(json.dumps(known))
        return 0
    print(status_table(known, Console().width if sys.stdout.isatty() else STATUS_WIDTH), end="")
    return 0


def status_table(known: "dict[str, dict[str, object] | None]", width: int) -> str:
    """What nodes said of themselves, a line each, and below what they dropped: readable at the given width."""
    table = Table(box=None, pad_edge=False, padding=(0, 1, 0, 0))
    table.add_column("node", overflow="fold", max_width=20)
    for column in ("roles", "neighbours"):
        table.add_column(column, overflow="fold")
    for column in ("sees", "publ.", "subscr.", "matches", "filters", "frames"):
        table.add_column(column, justify="right", no_wrap=True)
    dropped = []
    for name, account in known.items():
        table.add_row(name, *_row(account))
        if account is not None:
            dropped += [f"  {name}: {reason}" for reason in _drops(account)]
    out = io.StringIO()
    console = Console(file=out, width=width, highlight=False, emoji=False)
    console.print(table)
    if dropped:
        console.print("dropped:", *dropped, sep="\n", markup=False)
    return "".join(line.rstrip() + "\n" for line in out.getvalue().splitlines())


async def _ask(path: Path) -> dict[str, object] | None:
    try:
        async with asyncio.timeout(ASK_SECONDS), await Client.attach(path, application="psph net status") as client:
            account = json.loads(await client.status())
    except (NotAttachedError, TimeoutError):
        return None
    return account if isinstance(account, dict) else None


def _row(account: dict[str, object] | None) -> list[str]:
    if account is None:
        return ["does not answer", *[""] * 7]
    links, graph, forwarder, roles = (account.get(key) for key in ("links", "graph", "forwarder", "roles"))
    names = [str(link.get("neighbour") or "-") for link in links] if isinstance(links, list) else []
    seen = graph.get("nodes", []) if isinstance(graph, dict) else []
    return [
        " ".join(map(str, roles)) if isinstance(roles, list) else "",
        " ".join(names),
        _count(len(seen)),
        _count(account.get("publishes")),
        _count(account.get("subscribes")),
        _count(account.get("matches")),
        _count(account.get("filters")),
        _count(forwarder.get("received") if isinstance(forwarder, dict) else None),
    ]


def _count(value: object) -> str:
    return f"{value:,}" if isinstance(value, int) else ""


def _drops(account: dict[str, object]) -> list[str]:
    drops = account.get("drops")
    return [f"{reason} {_count(count)}" for reason, count in drops.items()] if isinstance(drops, dict) else []
