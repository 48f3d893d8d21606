"""`psph bench congestion`: flows that share a slow link: how much of it they use, how evenly, what they send in vain.

On a virtual clock 1 to 16 publishers with a subscriber each share a link of 10 Mbit/s. As root the same between
processes in network namespaces, where the kernel's token bucket (tbf) is the narrow place, and beside TCP (iperf3).
All nodes are those of `psph node`.
"""

import argparse
import asyncio
import json
import os
import shutil
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from identifiers import Identifier
from perf.bench.family import Bar, BenchError, Benchmark, BenchOutcome, Row, Sense, Ticker, progress_bar
from psirp_stack.emulation.bottleneck import VERSION_BYTES, VERSIONS_AHEAD, Bottleneck, SharedLink
from psirp_stack.emulation.namespaces import NamespaceNetwork
from psirp_stack.emulation.network import socket_of
from psirp_stack.emulation.plan import plan
from psirp_stack.links.impairment import Impairment
from psirp_stack.node.api import Client
from psirp_stack.node.attachment import ReceivedVersion

BANDWIDTH = 10e6
SLOW = Impairment(bandwidth=BANDWIDTH, delay=0.005, queue_limit=100)
TOKEN_BUCKET = ("tbf", "rate", "10mbit", "burst", "16kb", "limit", "150kb")
UTILISATION_BAR = 0.85
FAIRNESS_BAR = 0.9
WASTE_BAR = 0.05
TCP_BARS = (0.5, 2.0)
TCP_ADDRESSES = ("10.99.0.1", "10.99.0.2")
ON_CLOCK, ON_VETH = "virtual clock", "veth, tbf"
MOST_FLOWS = 64
SETTLE_SECONDS = 10.0
PATIENCE = 60.0
_SID = Identifier(b"\x52" * 32)


class CongestionBenchmark:
    name = "congestion"
    description = f"""Publishers send 50 kB versions as fast as they may over a link of 10 Mbit/s, whose queue holds 100
frames: on a virtual clock, and as root over veth with a token bucket behind a forwarder, also beside a TCP
flow (iperf3, CUBIC).
Utilisation is content; headers are 10 %. Waste is what crossed the link, or was dropped there, and was of no use.

bars: flows use at least {UTILISATION_BAR:g} of the link together, Jain's index is at least {FAIRNESS_BAR:g}
      waste is below {WASTE_BAR:g}, no adjacency is lost
      beside one TCP flow, one flow of ours gets {TCP_BARS[0]:g} to {TCP_BARS[1]:g} of its share"""

    def configure(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument("--flows", type=int, metavar="N", help="so many flows, and no other number of them")
        parser.add_argument("--seed", type=int, default=1)
        parser.add_argument("--no-processes", action="store_true", help="leave out the namespaces, also as root")
        parser.epilog = "example:\n  psph bench congestion --quick --flows 4 --no-processes"

    def run(self, options: argparse.Namespace) -> BenchOutcome:
        if options.flows is not None and not 1 <= options.flows <= MOST_FLOWS:
            raise BenchError(f"--flows {options.flows}: expected 1 to {MOST_FLOWS}")
        flows: Sequence[int] = (1, 16) if options.quick else (1, 2, 4, 8, 16)
        on_veth: Sequence[int] = (1, 16) if options.quick else (1, 4, 16)
        if options.flows is not None:
            flows = on_veth = (options.flows,)
        seconds = 8.0 if options.quick else 20.0
        missing = [command for command in ("ip", "tc", "iperf3") if shutil.which(command) is None]
        processes = not options.no_processes and os.geteuid() == 0 and not missing
        rows: list[Row] = []
        bars: list[Bar] = []
        with progress_bar("congestion", len(flows) + (len(on_veth) + 1) * processes) as tick:
            for number in flows:
                found = _simulated(number, seconds, options.seed)
                rows.append(_row(ON_CLOCK, number, found))
                bars += _bars(ON_CLOCK, number, found)
                tick(f"{number} flows")
            if processes:
                with tempfile.TemporaryDirectory(prefix="psph-bench-") as folder:
                    shared, beside = _over_veth(Path(folder), on_veth, seconds, tick)
                for number, found in zip(on_veth, shared, strict=True):
                    rows.append(_row(ON_VETH, number, found))
                    bars += _bars(ON_VETH, number, found)
                rows.append(_row(f"{ON_VETH}, with TCP at {beside.tcp / 1e6:.2f} Mbit/s", 1, beside.ours))
                share = sum(beside.ours.goodput) / beside.tcp
                bars.append(Bar("our flow / TCP's", share, Sense.AT_LEAST, TCP_BARS[0]))
                bars.append(Bar("our flow / TCP's", share, Sense.AT_MOST, TCP_BARS[1]))
        remarks = [] if processes else ["veth and TCP: not measured (root, iproute2 and iperf3 are needed)"]
        parameters: Row = {"bandwidth": BANDWIDTH, "queue": SLOW.queue_limit, "seconds": seconds, "seed": options.seed}
        return BenchOutcome(parameters, rows, bars, remarks)


@dataclass(frozen=True, slots=True)
class BesideTcp:
    """One flow of ours and one of TCP's on the same link."""

    ours: SharedLink
    tcp: float
    """Bits a second."""


def _row(where: str, flows: int, found: SharedLink) -> Row:
    return {
        "where": where,
        "flows": flows,
        "utilisation": found.utilisation,
        "Jain": found.fairness,
        "waste": found.waste,
        "adjacencies lost": found.adjacencies_lost,
    }


def _bars(where: str, flows: int, found: SharedLink) -> list[Bar]:
    name = f"{where}, {flows} flows"
    return [
        Bar(f"{name}: utilisation", found.utilisation, Sense.AT_LEAST, UTILISATION_BAR),
        Bar(f"{name}: Jain's index", found.fairness, Sense.AT_LEAST, FAIRNESS_BAR),
        Bar(f"{name}: waste", found.waste, Sense.AT_MOST, WASTE_BAR),
        Bar(f"{name}: adjacencies lost", float(found.adjacencies_lost), Sense.AT_MOST, 0.0),
    ]


def _simulated(flows: int, seconds: float, seed: int) -> SharedLink:
    with tempfile.TemporaryDirectory(prefix="psph-bench-") as folder:
        network = Bottleneck(flows, SLOW, Path(folder), seed=seed)
        try:
            return network.measure(SETTLE_SECONDS, seconds)
        finally:
            network.close()


# Processes.


def _over_veth(data: Path, flows: Sequence[int], seconds: float, tick: Ticker) -> tuple[list[SharedLink], BesideTcp]:
    """n0 publishes, n1 forwards into the token bucket, n2 subscribes."""
    network = NamespaceNetwork(plan({"generate": {"kind": "line", "nodes": 3}}, data), data)
    network.up()
    try:
        network.shape("n1", "n2", *TOKEN_BUCKET)
        for node, other, address in (("n1", "n2", TCP_ADDRESSES[0]), ("n2", "n1", TCP_ADDRESSES[1])):
            network.give_address(node, other, f"{address}/30")
        return asyncio.run(_measured(network, data, flows, seconds, tick))
    finally:
        network.down()


async def _measured(
    network: NamespaceNetwork, data: Path, flows: Sequence[int], seconds: float, tick: Ticker
) -> tuple[list[SharedLink], BesideTcp]:
    names = ("n0", "n1", "n2")
    clients = [await _attached(socket_of(data, name)) for name in names]
    try:
        shared = []
        for number in flows:
            shared.append(await _shared(clients, number, seconds))
            tick(f"veth, {number} flows")
        server = network.run_in("n2", "iperf3", "-s", "-1", "-B", TCP_ADDRESSES[1])
        try:
            length = str(int(seconds) + 20)
            await asyncio.sleep(0.5)
            beside = ("iperf3", "-c", TCP_ADDRESSES[1], "-C", "cubic", "-t", length, "-i", "1", "-J")
            tcp = network.run_in("n1", *beside)
            began = time.monotonic()
            ours = await _shared(clients, 1, seconds)
            ended = time.monotonic() - began
            told, _ = await asyncio.to_thread(tcp.communicate)
        finally:
            server.kill()
            server.wait()
        intervals = [interval["sum"] for interval in json.loads(told)["intervals"]]
        beside_ours = [part["bits_per_second"] for part in intervals if ended - seconds <= part["start"] <= ended - 1]
        return shared, BesideTcp(ours, sum(beside_ours) / len(beside_ours))
    finally:
        for client in clients:
            await client.close()


async def _shared(clients: Sequence[Client], flows: int, seconds: float) -> SharedLink:
    publisher, forwarder, subscriber = clients
    rids = [Identifier(os.urandom(32)) for _ in range(flows)]
    received: Counter[Identifier] = Counter()
    room = {rid: asyncio.Semaphore(VERSIONS_AHEAD) for rid in rids}

    async def publish(rid: Identifier) -> None:
        number = 0
        while True:
            await room[rid].acquire()
            number += 1
            await publisher.publish(_SID, rid, b"%d " % number + os.urandom(16).ljust(VERSION_BYTES - 8, b"."))

    everybody_has_one = asyncio.Event()
    subscriptions = []
    for rid in rids:

        def listener(version: ReceivedVersion, rid: Identifier = rid) -> None:
            received[rid] += 1
            room[rid].release()
            if len(received) == flows:
                everybody_has_one.set()

        subscriptions.append(await subscriber.subscribe(_SID, rid, listener))
    tasks = [asyncio.create_task(publish(rid)) for rid in rids]
    try:
        async with asyncio.timeout(PATIENCE):
            await everybody_has_one.wait()
        await asyncio.sleep(SETTLE_SECONDS)
        before, sent = received.copy(), await _sent(publisher)
        lost = 0
        loop = asyncio.get_running_loop()
        began = loop.time()
        while loop.time() < began + seconds:
            await asyncio.sleep(0.5)
            links = json.loads(await forwarder.status())["links"]
            lost += sum(link["neighbour"] is None for link in links)
        took = loop.time() - began
        goodput = tuple((received[rid] - before[rid]) * VERSION_BYTES * 8 / took for rid in rids)
        fresh, again = (now - then for now, then in zip(await _sent(publisher), sent, strict=True))
        return SharedLink(goodput, sum(goodput) / BANDWIDTH, again / max(fresh + again, 1), lost)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for subscription in subscriptions:
            await subscriber.unsubscribe(subscription)
        for rid in rids:
            await publisher.unpublish(_SID, rid)


async def _sent(publisher: Client) -> tuple[int, int]:
    """Frames that the publisher's node sent for the first time, and again."""
    counters = json.loads(await publisher.status())["sender"]
    return counters["fresh_frames"], counters["repaired_segments"] + counters["repaired_announcements"]


async def _attached(path: Path) -> Client:
    async with asyncio.timeout(PATIENCE):
        while True:
            try:
                return await Client.attach(path, application="bench")
            except ConnectionError:
                await asyncio.sleep(0.05)


BENCHMARK: Benchmark = CongestionBenchmark()
