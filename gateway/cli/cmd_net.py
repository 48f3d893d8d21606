"""`psph net`: run a whole PSIRP network on this machine, and look at it."""

import argparse
import asyncio
import io
import json
import signal
import sys
from pathlib import Path

from rich.console import Console
from rich.table import Table

from gateway.cli.errors import CommandError
from psirp_stack.emulation.namespaces import SECRET_FILE, NamespaceError, NamespaceNetwork
from psirp_stack.emulation.network import EmulatedNetwork, socket_of
from psirp_stack.emulation.plan import GRAPH_FILE, NetworkPlan, PlanError, load
from psirp_stack.node.api import Client, NotAttachedError
from storage import StorageError
from storage.private import make_private_folder

EXAMPLES = """
examples:
  psph net up ring.toml                     a network in one process; applications attach to var/net/NODE.sock
  psph net up ring.toml --netns             the same of real namespaces and veth pairs (root)
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
        if args.netns:
            return _up_in_namespaces(plan, args.data)
        asyncio.run(_up(plan, args.data))
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
    print(f"{len(names)} nodes and {plan.graph.undirected_links} links are up", flush=True)
    print(f"rendezvous {', '.join(plan.rendezvous)}, topology manager {', '.join(plan.topology)}", flush=True)
    print(f"applications attach to {socket_of(data, names[0])} ... {socket_of(data, names[-1])}", flush=True)


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
