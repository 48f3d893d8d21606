"""`psph bench cache`: what memory at nodes on the way is worth, beside what NDN's forwarder does with as much.

Readers all over a backbone get items once each time (`psph get`), the popular ones often (Zipf). Measured on real
nodes on a virtual clock: how many requests another node answers than the publisher, and how many bytes of content the
links carry. Beside it a model of NFD as it documents itself: each Data that was asked for is put into the content store
of every node on its way (by default no other rule decides what enters), the store is full after some number of packets,
and the least recently used leaves first; an Interest takes the shortest path to the producer, and is answered by the
first store that has the Data. The model walks the same requests on the same paths with the same bytes of memory.
"""

import argparse
import math
import random
import tempfile
from bisect import bisect
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from pathlib import Path

from identifiers import Identifier, ItemId
from perf.bench.family import Bar, BenchError, Benchmark, BenchOutcome, Row, Sense, Ticker, progress_bar
from psirp_stack.control.codes import Code
from psirp_stack.emulation.simulation import SimulatedApplication, SimulatedNetwork
from psirp_stack.graph import DeliveryTree, Graph, Routing, backbone_graph
from psirp_stack.node.settings import NodeSettings
from psirp_stack.pull.service import VersionCacheConfig
from psirp_stack.transport.config import TransportConfig

CONTENT_BYTES = 10_000
PACKET_BYTES = 1000
"""Of content in one packet of the model; pieces of ours are about as large."""
PACKETS = CONTENT_BYTES // PACKET_BYTES
CONTENT_FRAME = 600
"""A frame that is longer carries content."""
HIT_BAR = 0.9
SAVED_BAR = 0.9
SELF_CHECK = 0.02
STRATEGIES = ("everywhere", "sometimes 0.3")


@dataclass(frozen=True, slots=True)
class Requests:
    """Who asks for what, in what order; who publishes it."""

    graph: Graph
    publishers: Sequence[int]
    asked: Sequence[tuple[int, int]]
    """Asking node and item."""


class CacheBenchmark:
    name = "cache"
    description = f"""Items of {CONTENT_BYTES // 1000} kB, published all over a backbone and got again and again from
everywhere, the popular ones most often (Zipf). Without memory at the nodes, with memory for some of the items
under each strategy, and a model of NFD (leave a copy everywhere, LRU) with as many bytes: the share of requests
that somebody nearer than the publisher answered, and the traffic saved. Then all publishers go, and a late
subscriber comes to a line of nodes.

bars: at least {HIT_BAR:g} of the model's hit ratio, and {SAVED_BAR:g} of the traffic that it saves
      everything that some node kept can be had when its publisher has gone
      a late subscriber's content does not come from the publisher when its neighbour has it
      the model itself: one store's hit ratio is Che's approximation, within {SELF_CHECK:g}"""

    def configure(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument("--nodes", type=int, default=40, metavar="N", help="of the backbone (%(default)s)")
        parser.add_argument("--items", type=int, default=100, metavar="N", help="that are published (%(default)s)")
        parser.add_argument("--requests", type=int, metavar="N", help="in all (1500; 300 with --quick)")
        parser.add_argument(
            "--memory", type=float, default=0.1, help="of a node: this share of all items (%(default)s)"
        )
        parser.add_argument("--alpha", type=float, default=0.8, help="of the Zipf distribution (%(default)s)")
        parser.add_argument("--seed", type=int, default=1)
        parser.epilog = "example:\n  psph bench cache --nodes 12 --items 20 --requests 60"

    def run(self, options: argparse.Namespace) -> BenchOutcome:
        count = options.requests or (300 if options.quick else 1500)
        if options.nodes < 5 or min(options.items, count) < 1 or not 0 < options.memory <= 1 or options.alpha < 0:
            raise BenchError("--nodes at least 5, --items and --requests at least 1, --memory above 0 up to 1")
        requests = _requests(options, count)
        memory = int(options.memory * options.items * CONTENT_BYTES)
        if memory < 4 * CONTENT_BYTES + 4096:
            raise BenchError(f"--memory {options.memory}: room for four items at least, of {options.items}")
        with progress_bar("cache", (1 + len(STRATEGIES)) * count + 2) as tick:
            plain = _measured(requests, 0, "everywhere", options.seed, tick)
            ours = {name: _measured(requests, memory, name, options.seed, tick) for name in STRATEGIES}
            model = _model(requests, memory)
            tick("model")
            late = _late_subscriber()
            tick("late subscriber")
        rows = [
            _row("no memory", plain, plain),
            *(_row(name, found, plain) for name, found in ours.items()),
            _row("model of NFD: everywhere, LRU", model, _model(requests, 0)),
        ]
        best = rows[1]
        reference = rows[-1]
        simulated, predicted = _one_store(options, memory)
        bars = [
            Bar("hit ratio / model of NFD", _ratio(best, reference, "hit ratio"), Sense.AT_LEAST, HIT_BAR),
            Bar("traffic saved / model of NFD", _ratio(best, reference, "saved"), Sense.AT_LEAST, SAVED_BAR),
            Bar("had without publishers / kept", ours["everywhere"].without_publishers, Sense.AT_LEAST, 1.0),
            Bar("late subscriber: content frames of the publisher", float(late), Sense.AT_MOST, 0.0),
            Bar("model, one store: |hit ratio - Che's|", abs(simulated - predicted), Sense.AT_MOST, SELF_CHECK),
        ]
        parameters: Row = {
            "nodes": options.nodes,
            "items": options.items,
            "requests": count,
            "memory": options.memory,
            "alpha": options.alpha,
            "seed": options.seed,
        }
        return BenchOutcome(parameters, rows, bars)


@dataclass(frozen=True, slots=True)
class _Found:
    hits: int
    requests: int
    carried: float
    """Packets' worth of content, summed over links."""
    without_publishers: float = float("nan")


def _row(name: str, found: _Found, without: _Found) -> Row:
    return {
        "network": name,
        "hit ratio": found.hits / found.requests,
        "links a request": found.carried / found.requests / PACKETS,
        "saved": 1 - found.carried / without.carried,
        "had without publishers": found.without_publishers,
    }


def _ratio(one: Row, other: Row, key: str) -> float:
    a, b = one[key], other[key]
    return a / b if isinstance(a, float) and isinstance(b, float) and b else float("nan")


def _popularity(items: int, alpha: float) -> list[float]:
    return [1 / rank**alpha for rank in range(1, items + 1)]


def _requests(options: argparse.Namespace, count: int) -> Requests:
    rng = random.Random(options.seed)  # noqa: S311  (a workload)
    graph = backbone_graph(options.nodes, 2 * options.nodes, options.seed)
    publishers = [rng.randrange(options.nodes) for _ in range(options.items)]
    bounds = list(accumulate(_popularity(options.items, options.alpha)))
    asked: list[tuple[int, int]] = []
    while len(asked) < count:
        item = bisect(bounds, rng.random() * bounds[-1])
        node = rng.randrange(options.nodes)
        if node != publishers[item]:
            asked.append((node, item))
    return Requests(graph, publishers, asked)


def _item(number: int) -> ItemId:
    return ItemId(Identifier(b"\1" * 32), Identifier((number + 1).to_bytes(32, "big")))


def _measured(requests: Requests, memory: int, strategy: str, seed: int, tick: Ticker) -> _Found:
    """The same requests, one after the other, in a network of real nodes."""
    carried = 0.0

    def tap(_sender: str, _receiver: str, frame: bytes) -> None:
        nonlocal carried
        if len(frame) > CONTENT_FRAME:
            carried += len(frame)

    def change(given: NodeSettings) -> NodeSettings:
        transport = TransportConfig(on_request_above=4096) if memory else given.transport
        return replace(given, cache=VersionCacheConfig(memory, strategy), transport=transport)

    names = requests.graph.names
    with tempfile.TemporaryDirectory(prefix="psph-bench-") as folder:
        network = SimulatedNetwork(requests.graph, Path(folder), seed=seed, settings=change, tap=tap)
        try:
            network.run(5.0)
            published = {}
            for number, node in enumerate(requests.publishers):
                published[number] = network.application(names[node])
                published[number].publish(_item(number), b"%d " % number + bytes(CONTENT_BYTES - 8))
            network.run(3.0)
            readers = [network.application(name) for name in names]
            carried = 0.0
            hits = 0
            for node, item in requests.asked:
                publisher = network.nodes[names[requests.publishers[item]]]
                before = publisher.pulls.fetches
                if not _got(network, readers[node], item):
                    raise BenchError(f"item {item} did not reach {names[node]}")
                hits += publisher.pulls.fetches == before
                tick(strategy if memory else "no memory")
            found = carried
            share = _without_publishers(network, requests, published, readers) if memory else float("nan")
            return _Found(hits, len(requests.asked), found / PACKET_BYTES, share)
        finally:
            network.close()


def _got(network: SimulatedNetwork, reader: SimulatedApplication, item: int) -> bool:
    asked = reader.get(_item(item))
    network.run_until(lambda: reader.code(asked) is not None, 20.0, 0.02)
    return reader.code(asked) is Code.SUCCESS and len(reader.got.pop(asked)) == 1


def _without_publishers(
    network: SimulatedNetwork,
    requests: Requests,
    publishers: dict[int, SimulatedApplication],
    readers: Sequence[SimulatedApplication],
) -> float:
    """Of what some node keeps when all publishers have gone, the share that can be had."""
    for publisher in publishers.values():
        publisher.detach()
    network.run(5.0)
    kept = had = 0
    for number in publishers:
        # Asking for one may push out another.
        if any(node.pulls.cache.newest(bytes(_item(number))) is not None for node in network.nodes.values()):
            kept += 1
            had += _got(network, readers[number % len(readers)], number)
    return had / kept if kept else float("nan")


def _late_subscriber() -> int:
    """Content frames that the publisher at the end of a line sends for one who comes late beside an early reader."""
    sent = 0

    def tap(sender: str, _receiver: str, frame: bytes) -> None:
        nonlocal sent
        sent += sender == "n7" and len(frame) > CONTENT_FRAME

    def change(given: NodeSettings) -> NodeSettings:
        transport = TransportConfig(on_request_above=4096)
        return replace(given, cache=VersionCacheConfig(1 << 20), transport=transport)

    names = [f"n{number}" for number in range(8)]
    line = Graph.from_edges(names, [(number, number + 1) for number in range(7)])
    with tempfile.TemporaryDirectory(prefix="psph-bench-") as folder:
        network = SimulatedNetwork(line, Path(folder), settings=change, tap=tap)
        try:
            network.run(5.0)
            publisher, early, late = (network.application(name) for name in ("n7", "n1", "n0"))
            early.subscribe(_item(0))
            publisher.publish(_item(0), bytes(CONTENT_BYTES))
            network.run(3.0)
            sent = 0
            late.subscribe(_item(0))
            network.run_until(lambda: len(late.contents(_item(0))) == 1, 10.0)
            if late.contents(_item(0)) != [bytes(CONTENT_BYTES)]:
                raise BenchError("the late subscriber got nothing")
            return sent
        finally:
            network.close()


# The model.


class _ContentStore:
    """Packets by name; the least recently used leaves first."""

    def __init__(self, packets: int) -> None:
        self._most = packets
        self._packets: OrderedDict[tuple[int, int], None] = OrderedDict()

    def has(self, packet: tuple[int, int]) -> bool:
        if packet not in self._packets:
            return False
        self._packets.move_to_end(packet)
        return True

    def put(self, packet: tuple[int, int]) -> None:
        self._packets[packet] = None
        self._packets.move_to_end(packet)
        if len(self._packets) > self._most:
            self._packets.popitem(last=False)


def _model(requests: Requests, memory: int) -> _Found:
    """Every Interest walks to the first store that has its Data, which then fills all stores on the way back."""
    stores = [_ContentStore(memory // PACKET_BYTES) for _ in requests.graph.names]
    routing = Routing(requests.graph)
    trees: dict[int, DeliveryTree] = {}
    hits = carried = 0
    for node, item in requests.asked:
        publisher = requests.publishers[item]
        tree = trees.get(node)
        if tree is None:
            tree = trees[node] = routing.whole_tree(node)
        path = [node, *(requests.graph.links[link][1] for link in tree.path(requests.graph, publisher)[::-1])]
        found_nearer = 0
        for number in range(PACKETS):
            packet = item, number
            reached = next((place for place, on_way in enumerate(path[:-1]) if stores[on_way].has(packet)), None)
            found_nearer += reached is not None
            reached = len(path) - 1 if reached is None else reached
            carried += reached
            for on_way in path[:reached]:
                stores[on_way].put(packet)
        hits += found_nearer == PACKETS
    return _Found(hits, len(requests.asked), float(carried))


def _one_store(options: argparse.Namespace, memory: int) -> tuple[float, float]:
    """Hit ratio of one store under independent requests: simulated as above, and by Che's approximation."""
    weights = _popularity(options.items, options.alpha)
    total = sum(weights)
    rates = [weight / total for weight in weights]
    room = memory // PACKET_BYTES // PACKETS
    low, high = 0.0, 1.0
    while sum(1 - math.exp(-rate * high) for rate in rates) < min(room, options.items - 1):
        high *= 2
    for _ in range(100):
        middle = (low + high) / 2
        filled = sum(1 - math.exp(-rate * middle) for rate in rates)
        low, high = (middle, high) if filled < room else (low, middle)
    predicted = sum(rate * (1 - math.exp(-rate * high)) for rate in rates)
    rng = random.Random(options.seed)  # noqa: S311  (a workload)
    bounds = list(accumulate(rates))
    store = _ContentStore(room)
    hits, warm, asked = 0, 5_000, 40_000
    for number in range(warm + asked):
        packet = bisect(bounds, rng.random() * bounds[-1]), 0
        hits += store.has(packet) and number >= warm
        store.put(packet)
    return hits / asked, predicted


BENCHMARK: Benchmark = CacheBenchmark()
