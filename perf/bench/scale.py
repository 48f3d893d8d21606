"""`psph bench scale`: networks of 50 to 1,000 nodes that start at once, and what they send while nobody wants anything.

Everything runs in one process on a virtual clock: real nodes, real frames. A backbone has twice as many links as nodes,
so that nodes have four neighbours on average, whatever the size.
"""

import argparse
import os
import resource
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from identifiers import Identifier, ItemId
from perf.bench.family import Bar, BenchError, Benchmark, BenchOutcome, Row, Sense, Ticker, progress_bar
from psirp_stack.control.frames import is_control
from psirp_stack.emulation.simulation import SimulatedNetwork
from psirp_stack.graph import Graph, backbone_graph

SIZES = (50, 200, 1000)
QUICK_SIZES = (50, 200)
RING = 200
IDLE_SECONDS = 60.0
SETTLE_SECONDS = 5.0
MOST_SECONDS = 60.0
"""Of the network's own time, for all nodes to see the same."""
WALL_BAR = 120.0
GROWTH_BAR = 1.1
RING_BAR = 5.0
ITEM = ItemId(Identifier(b"\1" * 32), Identifier(b"\2" * 32))


class ScaleBenchmark:
    name = "scale"
    description = f"""Networks of one process, on a virtual clock: a backbone, twice as many links as nodes, starts;
how long until every node knows the whole graph, in the network's time and in ours, and what an idle node sends:
control frames a second, by node and by link. Then a ring of {RING}: a subscription and a first delivery across it.

bars: the largest network knows itself within {WALL_BAR:g} s of wall time (1,000 nodes; 200 with --quick)
      an idle node sends at most {GROWTH_BAR:g} times what a node of the smallest network sends, by link
      a publication is across the ring of {RING}, {RING // 2} hops, within {RING_BAR:g} s of its own time"""

    def configure(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument("--nodes", type=int, nargs="+", metavar="N", help="sizes (default: 50 200 1000)")
        parser.add_argument("--seed", type=int, default=1, help="of the graphs and of all chance in the networks")
        parser.add_argument("--idle", type=float, default=IDLE_SECONDS, help="seconds of silence (%(default)g)")
        parser.epilog = "example:\n  psph bench scale --nodes 30 60 --idle 10"

    def run(self, options: argparse.Namespace) -> BenchOutcome:
        sizes: Sequence[int] = options.nodes or (QUICK_SIZES if options.quick else SIZES)
        if min(sizes) < 5 or options.idle <= 0:
            raise BenchError("a backbone has at least 5 nodes, and silence takes longer than 0 s")
        with progress_bar("scale", 2 * len(sizes) + 1) as tick:
            rows = [_backbone(size, options.seed, options.idle, tick) for size in sizes]
            ring = _ring(options.seed)
            tick("ring")
        first, last = rows[0], rows[-1]
        bars = [
            Bar(f"{sizes[-1]:,} nodes know each other, wall s", _number(last, "wall s"), Sense.AT_MOST, WALL_BAR),
            Bar(
                f"idle frames by link, {sizes[-1]:,} nodes / {sizes[0]:,}",
                _number(last, "idle frames/s by link") / _number(first, "idle frames/s by link"),
                Sense.AT_MOST,
                GROWTH_BAR,
            ),
            Bar(f"first delivery across a ring of {RING}, s", _number(ring, "delivery s"), Sense.AT_MOST, RING_BAR),
        ]
        parameters: Row = {"seed": options.seed, "idle": options.idle, "processors": os.cpu_count()}
        return BenchOutcome(parameters, [*rows, ring], bars)


def _backbone(size: int, seed: int, idle: float, tick: Ticker) -> Row:
    graph = backbone_graph(size, 2 * size, seed)
    sent: Counter[str] = Counter()

    def tap(sender: str, receiver: str, frame: bytes) -> None:
        if is_control(frame):
            sent[sender] += 1

    with tempfile.TemporaryDirectory(prefix="psph-bench-") as folder:
        started = time.perf_counter()
        network = SimulatedNetwork(graph, Path(folder), seed=seed, tap=tap)
        try:
            known = network.run_until(lambda: _all_know(network), MOST_SECONDS)
            wall = time.perf_counter() - started if known else float("nan")
            settled = network.clock.now()
            tick(f"{size:,} nodes")
            to_know = sum(sent.values())
            network.run(SETTLE_SECONDS)
            sent.clear()
            network.run(idle)
            tick(f"{size:,} nodes, idle")
        finally:
            network.close()
    degrees = {name: len(graph.out_links[number]) for number, name in enumerate(graph.names)}
    return {
        "network": f"backbone {size:,}",
        "links": len(graph.links) // 2,
        "wall s": wall,
        "network s": settled,
        "frames by node": to_know / size,
        "idle frames/s by node": sum(sent.values()) / idle / size,
        "idle frames/s by link": sum(sent.values()) / idle / len(graph.links),
        "busiest node/link": max(sent[name] / idle / degree for name, degree in degrees.items()),
        "delivery s": None,
        "memory MiB": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
    }


def _all_know(network: SimulatedNetwork) -> bool:
    links = len(network.graph.links)
    return all(len(node.link_state.graph().graph.links) == links for node in network.nodes.values())


def _ring(seed: int) -> Row:
    graph = Graph.from_edges([f"n{n}" for n in range(RING)], [(n, (n + 1) % RING) for n in range(RING)])
    with tempfile.TemporaryDirectory(prefix="psph-bench-") as folder:
        started = time.perf_counter()
        network = SimulatedNetwork(graph, Path(folder), seed=seed)
        try:
            known = network.run_until(lambda: _all_know(network), MOST_SECONDS)
            wall, settled = time.perf_counter() - started, network.clock.now()
            near, far = network.application("n0"), network.application(f"n{RING // 2}")
            far.subscribe(ITEM)
            near.publish(ITEM, b"across")
            there = known and network.run_until(lambda: far.contents(ITEM) == [b"across"], MOST_SECONDS, 0.01)
            delivery = network.clock.now() - settled
        finally:
            network.close()
    nothing: Row = dict.fromkeys(
        ("frames by node", "idle frames/s by node", "idle frames/s by link", "busiest node/link")
    )
    return {
        "network": f"ring {RING}",
        "links": RING,
        "wall s": wall,
        "network s": settled,
        **nothing,
        "delivery s": delivery if there else float("nan"),
        "memory MiB": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
    }


def _number(row: Row, key: str) -> float:
    value = row[key]
    return float(value) if isinstance(value, (int, float)) else float("nan")


BENCHMARK: Benchmark = ScaleBenchmark()
