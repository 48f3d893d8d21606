"""`psph bench failover`: what a subscriber feels when a link, a node with a role, or half of the network is gone.

The nodes are those of `psph node`: in one process on a virtual clock, where a moment can be chosen and everything that
was lost is known; and, as root, as processes in network namespaces, where cables are real ones of the kernel.
"""

import argparse
import asyncio
import os
import shutil
import tempfile
from itertools import pairwise
from pathlib import Path

from identifiers import Identifier, ItemId
from perf.bench.family import Bar, BenchError, Benchmark, BenchOutcome, Row, Sense, progress_bar
from psirp_stack.control.codes import ServiceRole
from psirp_stack.emulation.namespaces import NamespaceNetwork
from psirp_stack.emulation.network import socket_of
from psirp_stack.emulation.plan import plan
from psirp_stack.emulation.simulation import SimulatedApplication, SimulatedNetwork
from psirp_stack.graph import Graph
from psirp_stack.links.impairment import Impairment
from psirp_stack.node.api import Client, NotAttachedError
from psirp_stack.node.attachment import ReceivedVersion

BOTH = ServiceRole.RENDEZVOUS | ServiceRole.TOPOLOGY
REROUTE_BAR = 0.1
SILENT_BAR = 2.0
TAKEOVER_BAR = 2.0
MERGE_BAR = 10.0
PROCESSES_BAR = 1.0
"""For nodes that are processes: the machine's load is in it."""
MANAGER = "zz"
"""Who has both roles where they do not move; the last by name."""
STEP = 0.005
"""Seconds between two publications: no gap shorter than this is seen."""
NEVER = float("nan")


def item(number: int) -> ItemId:
    return ItemId(Identifier(b"\1" * 32), Identifier(bytes([number]) * 32))


class FailoverBenchmark:
    name = "failover"
    description = f"""A ring of nodes with links of some milliseconds; n0 publishes every {STEP * 1000:g} ms.
How long nothing arrives when a link goes down (its carrier says so, or it fails without a word), with and
without a topology manager; how long until new subscriptions are served when the node with both roles dies; and
when both halves of a partitioned network match by themselves and merge. Everything published has to arrive.

bars: a link that goes down: at most {REROUTE_BAR:g} s without a publication; one that fails silently: {SILENT_BAR:g} s
      a new subscription is served within {TAKEOVER_BAR:g} s of the death of the node with both roles
      halves of a partition serve new subscriptions within {TAKEOVER_BAR:g} s
      what was published meanwhile is in both halves within {MERGE_BAR:g} s of healing
      nothing is lost
      as root, processes in namespaces, a cable is pulled: at most {PROCESSES_BAR:g} s"""

    def configure(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument("--nodes", type=int, default=12, metavar="N", help="of the ring (%(default)s)")
        parser.add_argument("--delay", type=float, default=0.002, metavar="S", help="of a link (%(default)s)")
        parser.add_argument("--rounds", type=int, metavar="N", help="links that are cut in turn (5; 2 with --quick)")
        parser.add_argument("--seed", type=int, default=1)
        parser.add_argument("--no-processes", action="store_true", help="leave out the namespaces, also as root")
        parser.epilog = "example:\n  psph bench failover --nodes 8 --rounds 1 --no-processes"

    def run(self, options: argparse.Namespace) -> BenchOutcome:
        rounds = options.rounds or (2 if options.quick else 5)
        if options.nodes < 6 or rounds < 1 or options.delay < 0:
            raise BenchError("--nodes at least 6, --rounds at least 1, and no negative --delay")
        processes = not options.no_processes and os.geteuid() == 0 and shutil.which("ip") is not None
        rows: list[Row] = []
        with progress_bar("failover", 3 * rounds + 2 + processes) as tick:
            for name, silently, manager in (
                ("link goes down", False, True),
                ("link goes down, no topology manager", False, False),
                ("link fails silently", True, True),
            ):
                gaps = []
                lost = 0
                for number in range(rounds):
                    gap, missing = _cut(options, number, silently=silently, manager=manager)
                    gaps.append(gap)
                    lost += missing
                    tick(name)
                rows.append({"what": name, "seconds": max(gaps), "least": min(gaps), "lost": lost})
            rows.append(_takeover(options))
            tick("takeover")
            rows += _partition(options)
            tick("partition")
            if processes:
                rows.append(_processes())
                tick("processes")
        bars = [Bar(str(row["what"]), _seconds(row), Sense.AT_MOST, _bound(str(row["what"]))) for row in rows]
        lost = sum(int(row["lost"] or 0) for row in rows)
        bars.append(Bar("publications lost", float(lost), Sense.AT_MOST, 0.0))
        remarks = [] if processes else ["processes in namespaces: not measured (root and iproute2 are needed)"]
        parameters: Row = {"nodes": options.nodes, "delay": options.delay, "rounds": rounds, "seed": options.seed}
        return BenchOutcome(parameters, rows, bars, remarks)


def _bound(what: str) -> float:
    if what.startswith("processes"):
        return PROCESSES_BAR
    if what.startswith("link"):
        return SILENT_BAR if "silently" in what else REROUTE_BAR
    return MERGE_BAR if what.startswith("merge") else TAKEOVER_BAR


def _seconds(row: Row) -> float:
    value = row["seconds"]
    return float(value) if isinstance(value, (int, float)) else NEVER


def _ring(size: int) -> Graph:
    """n0, n1, ... in a ring, and the node with the roles beside n0: no way from one to another leads over it."""
    names = [*(f"n{n}" for n in range(size)), MANAGER]
    return Graph.from_edges(names, [*((n, (n + 1) % size) for n in range(size)), (0, size)])


def _simulated(options: argparse.Namespace, folder: str, roles: dict[str, int]) -> SimulatedNetwork:
    slow = Impairment(delay=options.delay)
    graph = _ring(options.nodes)
    network = SimulatedNetwork(graph, Path(folder), seed=options.seed, roles=roles, impairment=slow)
    network.run(5.0)
    return network


def _flow(
    network: SimulatedNetwork, publisher: str, subscriber: str, what: ItemId
) -> tuple[SimulatedApplication, SimulatedApplication]:
    one, other = network.application(publisher), network.application(subscriber)
    other.subscribe(what)
    one.publish(what, b"0")
    network.run_until(lambda: other.contents(what) == [b"0"], 10.0, STEP)
    return one, other


def _cut(options: argparse.Namespace, number: int, *, silently: bool, manager: bool) -> tuple[float, int]:
    """The longest time without a publication at the subscriber, and how many it never got."""
    half = options.nodes // 2
    with tempfile.TemporaryDirectory(prefix="psph-bench-") as folder:
        network = _simulated(options, folder, {MANAGER: BOTH})
        try:
            publisher, subscriber = _flow(network, "n0", f"n{half}", item(1))
            if not manager:
                network.kill(MANAGER)
                network.run(3.0)
            _, sent = _longest_silence(network, publisher, subscriber, 0.5, 1)
            one, other = (network.carrier("n0", f"n{end}").counters.sent_bytes for end in (1, options.nodes - 1))
            clockwise = one > other
            way = [f"n{n if clockwise else (options.nodes - n) % options.nodes}" for n in range(half + 1)]
            place = number % (half - 1) + 1  # not at the publisher, which would know at once
            network.cut(way[place], way[place + 1], silently=silently)
            gap, sent = _longest_silence(network, publisher, subscriber, 3.0, sent)
            network.run_until(lambda: len(subscriber.contents(item(1))) >= sent, 10.0)
            return gap, sent - len(subscriber.contents(item(1)))
        finally:
            network.close()


def _longest_silence(
    network: SimulatedNetwork,
    publisher: SimulatedApplication,
    subscriber: SimulatedApplication,
    seconds: float,
    sent: int,
) -> tuple[float, int]:
    """Publish every few milliseconds; the longest time without anything new, and how many were published in all."""
    clock = network.clock
    last, longest = clock.now(), 0.0
    seen = len(subscriber.contents(item(1)))
    for _ in range(round(seconds / STEP)):
        publisher.publish(item(1), b"%d" % sent)
        sent += 1
        network.run(STEP)
        if (now_seen := len(subscriber.contents(item(1)))) > seen:
            seen, last = now_seen, clock.now()
        longest = max(longest, clock.now() - last)
    return longest, sent


def _takeover(options: argparse.Namespace) -> Row:
    """The node with both roles dies without a word; somebody subscribes at once to what somebody else publishes."""
    with tempfile.TemporaryDirectory(prefix="psph-bench-") as folder:
        network = _simulated(options, folder, {"n0": BOTH, "n3": BOTH})
        try:
            _flow(network, "n1", "n4", item(1))
            network.kill("n0", silently=True)
            seconds = _served(network, "n2", "n5", item(2))
            return {"what": "node with both roles dies", "seconds": seconds, "least": seconds, "lost": 0}
        finally:
            network.close()


def _served(network: SimulatedNetwork, publisher: str, subscriber: str, what: ItemId) -> float:
    """How long until a new subscription has what is published."""
    began = network.clock.now()
    _, reader = _flow(network, publisher, subscriber, what)
    return network.clock.now() - began if reader.contents(what) else NEVER


def _partition(options: argparse.Namespace) -> list[Row]:
    """Two links are cut, each half has a node that may have the roles; then they are mended."""
    size, half = options.nodes, options.nodes // 2
    with tempfile.TemporaryDirectory(prefix="psph-bench-") as folder:
        network = _simulated(options, folder, {"n1": BOTH, f"n{half + 1}": BOTH})
        try:
            publisher, subscriber = _flow(network, "n0", f"n{half}", item(1))
            for a, b in ((half - 1, half), (size - 1, 0)):
                network.cut(f"n{a}", f"n{b}")
            served = max(_served(network, "n0", "n2", item(2)), _served(network, f"n{half}", f"n{half + 2}", item(3)))
            for number in range(1, 21):
                publisher.publish(item(1), b"%d" % number)
                network.run(0.1)
            for a, b in ((half - 1, half), (size - 1, 0)):
                network.mend(f"n{a}", f"n{b}")
            healed = network.clock.now()
            everything = [b"%d" % number for number in range(21)]
            network.run_until(lambda: subscriber.contents(item(1)) == everything, 60.0, STEP)
            merged = network.clock.now() - healed
            reader = network.application("n0")
            reader.subscribe(item(3))  # published in the other half
            whole = network.run_until(lambda: reader.contents(item(3)) == [b"0"], 10.0)
            lost = len(everything) - len(subscriber.contents(item(1))) + (not whole)
            return [
                {"what": "partition: each half serves", "seconds": served, "least": served, "lost": 0},
                {"what": "merge", "seconds": merged, "least": merged, "lost": lost},
            ]
        finally:
            network.close()


def _processes() -> Row:
    """A ring of six processes in namespaces; the cable in use is pulled while a publication follows the other."""
    described: dict[str, object] = {"generate": {"kind": "ring", "nodes": 6}}
    with tempfile.TemporaryDirectory(prefix="psph-bench-") as folder:
        data = Path(folder)
        network = NamespaceNetwork(plan(described, data), data)
        network.up()
        try:
            gap, lost = asyncio.run(_pulled(network, data))
        finally:
            network.down()
    return {"what": "processes: a cable is pulled", "seconds": gap, "least": gap, "lost": lost}


async def _pulled(network: NamespaceNetwork, data: Path) -> tuple[float, int]:
    async with await _attached(socket_of(data, "n1")) as one, await _attached(socket_of(data, "n4")) as other:
        what = item(1)
        loop = asyncio.get_running_loop()
        came: list[float] = []
        numbers: set[bytes] = set()

        def listener(version: ReceivedVersion) -> None:
            came.append(loop.time())
            numbers.add(version.content)

        async with asyncio.timeout(60.0):
            await other.subscribe(what.sid, what.rid, listener, not_now=_later)
            sent = 0
            while not came:
                await one.publish(what.sid, what.rid, b"%d" % sent)
                sent += 1
                await asyncio.sleep(0.05)
            longest = 0.0
            # Both ways are three links long: whichever is used, one of these two is on it.
            for cable in (("n2", "n3"), ("n0", "n5")):
                began = loop.time()
                since = len(came)
                pulled = False
                while loop.time() < began + 3.0:
                    await one.publish(what.sid, what.rid, b"%d" % sent)
                    sent += 1
                    await asyncio.sleep(STEP)
                    if not pulled and loop.time() > began + 1.0:
                        network.cut(*cable)
                        pulled = True
                moments = [began, *came[since:], loop.time()]
                longest = max(longest, *(after - before for before, after in pairwise(moments)))
                network.mend(*cable)
                await asyncio.sleep(2.0)
            while len(numbers) < sent:  # noqa: ASYNC110  (a listener is called, and tells nobody)
                await asyncio.sleep(0.05)
        return longest, sent - len(numbers)


async def _attached(path: Path) -> Client:
    while True:
        try:
            return await Client.attach(path)
        except NotAttachedError:
            await asyncio.sleep(0.1)


def _later(_: str) -> None:
    """The network is not up yet."""


BENCHMARK: Benchmark = FailoverBenchmark()
