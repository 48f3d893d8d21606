"""How well filters forward: efficiency and false positives of LIPSIN's ways to choose a filter, and of ours.

The measure is the one of the LIPSIN evaluation: 248 bits, 5 bits a tag, 8 tables; one publisher and some subscribers
drawn evenly; the tree is part of one breadth-first tree from the publisher; fresh ids every 50 trees. Efficiency is
tree links by links used, false positives followed to their end. The false-positive rate is hits by tests over the links
that leave tree nodes, the link back upstream left out. Only links are counted. Filters also name the subscribers'
internal ids, as those of a running network do; `--no-internal` leaves them out, as the literature does.

Where ours sends two copies, the links used are summed over both, so a link that carries both counts twice, while the
tree's links count once. A tree that ours cannot plan counts as efficiency 0.

The first three methods use one filter however full it is, so that their figures can be compared with the paper's; the
column «refused» says how many of those filters a forwarder would have dropped.
"""

import argparse
import math
import random
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from perf.bench.family import Bar, BenchError, BenchOutcome, Row, Sense, Ticker, percentile, progress_bar
from psirp_stack.edge_list_file import read_edges
from psirp_stack.filters.placement import place_tags
from psirp_stack.filters.planner import DEFAULT_MAX_FILTERS, FilterPlanner
from psirp_stack.filters.reach import Reach
from psirp_stack.filters.selection import candidates, predicted_rate
from psirp_stack.filters.tags import TagBook, random_book
from psirp_stack.filters.zfilter import FilterOverfullError, ZFilter
from psirp_stack.forwarding_model import FILTER_BITS, TABLES, TAG_BITS, Tags
from psirp_stack.graph import DeliveryTree, Graph, GraphError, Routing, backbone_graph

TREES = 500
QUICK_TREES = 50
TREES_PER_BOOK = 50
USERS = (4, 8, 16, 24, 32, 128)
QUICK_USERS = (16, 32, 128)
BAR_USERS = 32
MAX_COPIES = 2
"""Up to `BAR_USERS`; larger groups get as many as the planner of a running network sends."""
LARGE_USERS = 128
LARGE_SHARE = 10
"""A tree of a large group costs as much as ten small ones, so there are as many fewer of them."""
DRAWN_ROUTINGS = 6
"""With ties drawn for every tree, ids are placed for the mean over this many draws."""
GENERATED = {"generated-small": (65, 108, 11), "generated-middle": (104, 151, 12), "generated-large": (138, 372, 13)}
BACKBONE = {"backbone-500": (500, 1000, 14)}
"""Only with large groups, and not in a quick run."""
EFFICIENCY_BAR = 0.99
LARGE_EFFICIENCY_BAR = 0.95
SELF_CHECK = 0.1
"""How far the one-table rate may be from fill^k, over `SELF_CHECK_SETS` sets of ids or more."""
SELF_CHECK_SETS = 9
"""The trees of one set share its luck, so with fewer sets the rate strays further: by the root of their number."""

ONE_TABLE, FPA, FPR, OURS = "one table", "fpa", "fpr", "ours"
METHODS = (ONE_TABLE, FPA, FPR, OURS)


@dataclass(slots=True)
class TreeSamples:
    """What one method did on the trees of one cell."""

    efficiency: list[float] = field(default_factory=list)
    fill: list[float] = field(default_factory=list)
    predicted: list[float] = field(default_factory=list)
    copies: list[int] = field(default_factory=list)
    build_ms: list[float] = field(default_factory=list)
    hits: int = 0
    tests: int = 0
    refused: int = 0
    trees: int = 0
    false_deliveries: int = 0
    """Nodes beside the subscribers that hand a packet up their stack, which has no use for it."""

    def count(self, reach: Reach, tree: DeliveryTree, zfilter: ZFilter, internal: bool) -> None:
        tested = reach.false_positives(zfilter, tree)
        self.hits += tested.hits
        self.tests += tested.tests
        self.fill.append(zfilter.fill)
        if internal:
            self.false_deliveries += len(reach.delivered(zfilter, tree.source) - set(tree.subscribers))

    def rate(self) -> float:
        return self.hits / self.tests if self.tests else 0.0


@dataclass(slots=True)
class Costs:
    """What one graph's ids cost: to place them, and in every node."""

    placement_s: list[float] = field(default_factory=list)
    state_bytes: list[int] = field(default_factory=list)

    def cells(self, method: str) -> Row:
        """Seconds to choose all ids, which drawing them evenly does not take; bytes of tags in a node, on average."""
        placing = statistics.fmean(self.placement_s) if method == OURS else None
        return {"place s": placing, "state B": round(statistics.fmean(self.state_bytes))}


@dataclass(slots=True)
class GraphNetwork:
    """One set of ids for a graph, used for 50 trees."""

    reach: Reach
    ours: FilterPlanner
    routing: Routing


def make_network(
    graph: Graph, users: int, rng: random.Random, options: argparse.Namespace, costs: Costs
) -> GraphNetwork:
    fixed = options.ties == "fixed"
    routings = [Routing(graph, rng.randrange(2**32)) for _ in range(1 if fixed else DRAWN_ROUTINGS)]
    started = time.perf_counter()
    book, _ = place_tags(routings, rng, internal=options.internal)
    costs.placement_s.append(time.perf_counter() - started)
    costs.state_bytes += [book.state_bytes(graph, node) for node in range(len(graph.names))]
    ours = FilterPlanner(
        graph, book, max_filters=MAX_COPIES if users <= BAR_USERS else DEFAULT_MAX_FILTERS, internal=options.internal
    )
    return GraphNetwork(Reach(graph, random_book(graph, rng)), ours, routings[0])


def measure_plain(reach: Reach, tree: DeliveryTree, samples: dict[str, TreeSamples], internal: bool) -> None:
    """The paper's three ways: one filter, even if it is overfull."""
    book: TagBook = reach.book
    started = time.perf_counter()
    named: Sequence[Tags] = book.named_by(tree, internal)
    found = candidates(named)
    building = time.perf_counter() - started
    hits = [reach.false_positives(candidate, tree).hits for candidate in found]
    testing = time.perf_counter() - started
    chosen = {
        ONE_TABLE: (found[0], building / TABLES),
        FPA: (min(found, key=lambda candidate: predicted_rate(candidate, named)), building),
        FPR: (min(found, key=lambda candidate: (hits[candidate.table], candidate.bits_set)), testing),
    }
    for method, (zfilter, seconds) in chosen.items():
        into = samples[method]
        into.trees += 1
        into.count(reach, tree, zfilter, internal)
        into.predicted.append(zfilter.fill**TAG_BITS)
        into.refused += zfilter.overfull
        into.copies.append(1)
        into.efficiency.append(len(tree.parents) / len(reach.links_used(zfilter, tree.source)))
        into.build_ms.append(seconds * 1000)


def measure_ours(planner: FilterPlanner, tree: DeliveryTree, into: TreeSamples) -> None:
    into.trees += 1
    started = time.perf_counter()
    try:
        plan = planner.plan(tree)
    except FilterOverfullError:
        into.refused += 1
        into.efficiency.append(0.0)
        return
    into.build_ms.append((time.perf_counter() - started) * 1000)
    into.efficiency.append(plan.efficiency)
    into.copies.append(plan.copies)
    for planned in plan.filters:
        part = tree.narrowed(planner.graph, planned.subscribers)
        into.count(planner.reach, part, planned.zfilter, planner.internal)


def trees_of(users: int, options: argparse.Namespace) -> int:
    return int(options.trees) if users < LARGE_USERS else max(1, options.trees // LARGE_SHARE)


def measure_cell(
    graph: Graph, users: int, options: argparse.Namespace, seed: str, costs: Costs, tick: Ticker
) -> dict[str, TreeSamples]:
    rng = random.Random(seed)  # noqa: S311  (reproducible draws, not secrets)
    samples = {method: TreeSamples() for method in METHODS}
    network: GraphNetwork | None = None
    for number in range(trees_of(users, options)):
        if network is None or number % TREES_PER_BOOK == 0:
            network = make_network(graph, users, rng, options, costs)
        source, *subscribers = rng.sample(range(len(graph.names)), users)
        routing = network.routing if options.ties == "fixed" else Routing(graph, rng.randrange(2**32))
        tree = routing.delivery_tree(source, subscribers)
        measure_plain(network.reach, tree, samples, options.internal)
        measure_ours(network.ours, tree, samples[OURS])
        tick(f"{users} users")
    return samples


def row_of(name: str, users: int, method: str, samples: TreeSamples, internal: bool) -> Row:
    builds = sorted(samples.build_ms)
    return {
        "graph": name,
        "users": users,
        "method": method,
        "efficiency": statistics.fmean(samples.efficiency),
        "p5": percentile(sorted(samples.efficiency), 0.05),
        "fp rate": samples.rate(),
        "fill": statistics.fmean(samples.fill) if samples.fill else None,
        "copies": statistics.fmean(samples.copies) if samples.copies else None,
        "most": max(samples.copies, default=None),
        "refused": samples.refused / samples.trees,
        "false deliveries": samples.false_deliveries / samples.trees if internal else None,
        "build ms": percentile(builds, 0.5) if builds else None,
    }


class ZFilterBenchmark:
    """`psph bench zfilter`."""

    name = "zfilter"
    description = (
        "Forwarding efficiency of in-packet filters: one table, best of 8 by fpa, best of 8 by fpr, and ours\n"
        "(ids placed over the topology, two copies for up to 32 users). Without edge lists, on generated graphs. Ours\n"
        "is what a topology manager of `psph node` runs: the planner and the ids of a domain with a graph_file.\n\n"
        f"bars: ours at {BAR_USERS} users: efficiency at least {EFFICIENCY_BAR:g}, at most {MAX_COPIES} copies;\n"
        f"      at {LARGE_USERS} users: at least {LARGE_EFFICIENCY_BAR:g}; one table: false positives are fill^k\n\n"
        "examples:\n"
        "  psph bench zfilter --quick\n"
        "  psph bench zfilter net.edges.tsv --users 16 32 --plot net.png\n"
        "  psph bench zfilter *.edges.tsv --users 32 --json"
    )

    def configure(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument("edges", nargs="*", type=Path, metavar="EDGES", help="edge lists, tab separated")
        parser.add_argument("--users", nargs="+", type=int, metavar="N", help="publisher plus subscribers (4 to 128)")
        parser.add_argument("--trees", type=int, metavar="N", help=f"trees a cell ({TREES}; quick {QUICK_TREES})")
        parser.add_argument("--seed", type=int, default=1, metavar="N", help="start of all draws (1)")
        parser.add_argument(
            "--ties",
            choices=("fixed", "drawn"),
            default="fixed",
            help="equally short paths: chosen once per set of ids, as a topology manager does, or for every tree",
        )
        parser.add_argument(
            "--no-internal",
            dest="internal",
            action="store_false",
            help="leave the subscribers' internal links out of the filters, as the literature does; a network cannot",
        )
        parser.add_argument("--plot", type=Path, metavar="FILE.png", help="draw efficiency by users as a picture")

    def run(self, options: argparse.Namespace) -> BenchOutcome:
        users = sorted(set(options.users or (QUICK_USERS if options.quick else USERS)))
        options.trees = options.trees or (QUICK_TREES if options.quick else TREES)
        if users[0] < 2 or options.trees < 1:
            raise BenchError("--users must be at least 2 and --trees at least 1")
        if options.plot is not None:
            check_plot(options.plot)
        graphs = load_graphs(options.edges, users[0], large=not options.quick and LARGE_USERS in users)
        cells = [
            (name, count)
            for name, graph in graphs.items()
            for count in users
            if count <= len(graph.names) and (count >= LARGE_USERS or name not in BACKBONE)
        ]
        rows: list[Row] = []
        bars: list[Bar] = []
        remarks: list[str] = []
        ratio_of = TreeSamples()
        with progress_bar("zfilter", sum(trees_of(count, options) for _, count in cells)) as tick:
            for name, graph in graphs.items():
                costs = Costs()
                measured: list[Row] = []
                for count in [count for of, count in cells if of == name]:
                    samples = measure_cell(graph, count, options, f"{options.seed}/{name}/{count}", costs, tick)
                    measured += [row_of(name, count, method, samples[method], options.internal) for method in METHODS]
                    ratio_of.hits += samples[ONE_TABLE].hits
                    ratio_of.tests += samples[ONE_TABLE].tests
                    ratio_of.predicted.append(statistics.fmean(samples[ONE_TABLE].predicted) * samples[ONE_TABLE].tests)
                    if count in (BAR_USERS, LARGE_USERS):
                        bars += our_bars(name, count, samples)
                rows += [row | costs.cells(str(row["method"])) for row in measured]
                remarks.append(remark_on(name, graph, costs))
        predicted = sum(ratio_of.predicted) / ratio_of.tests if ratio_of.tests else 0.0
        ratio = ratio_of.rate() / predicted if predicted else float("nan")
        id_sets = sum(math.ceil(trees_of(count, options) / TREES_PER_BOOK) for _, count in cells)
        tolerance = round(SELF_CHECK * max(1.0, math.sqrt(SELF_CHECK_SETS / id_sets)), 3)
        bars = [
            Bar("one-table rate / fill^k", ratio, Sense.AT_LEAST, 1 - tolerance),
            Bar("one-table rate / fill^k", ratio, Sense.AT_MOST, 1 + tolerance),
            *bars,
        ]
        if options.plot is not None:
            draw(options.plot, rows)
        parameters: Row = {
            "m": FILTER_BITS,
            "k": TAG_BITS,
            "d": TABLES,
            "trees": options.trees,
            "trees per id set": TREES_PER_BOOK,
            "ties": options.ties,
            "internal ids": options.internal,
            "seed": options.seed,
            "quick": options.quick,
        }
        return BenchOutcome(parameters, rows, bars, remarks)


def our_bars(name: str, users: int, samples: dict[str, TreeSamples]) -> list[Bar]:
    efficiency = statistics.fmean(samples[OURS].efficiency)
    if users > BAR_USERS:
        return [Bar(f"{name}: ours, efficiency at {users} users", efficiency, Sense.AT_LEAST, LARGE_EFFICIENCY_BAR)]
    most = max(samples[OURS].copies, default=0)
    return [
        Bar(f"{name}: ours, efficiency at {users} users", efficiency, Sense.AT_LEAST, EFFICIENCY_BAR),
        Bar(f"{name}: ours, most copies at the source", float(most), Sense.AT_MOST, float(MAX_COPIES)),
    ]


def remark_on(name: str, graph: Graph, costs: Costs) -> str:
    return (
        f"{name}: {len(graph.names)} nodes, {graph.undirected_links} links; ours places ids in "
        f"{statistics.fmean(costs.placement_s):.2f} s; state per node {statistics.fmean(costs.state_bytes):,.0f} bytes "
        f"on average, {max(costs.state_bytes):,} at most (any 8-table scheme: {TABLES} tags a link)"
    )


def load_graphs(paths: Sequence[Path], fewest_users: int, large: bool) -> dict[str, Graph]:
    graphs: dict[str, Graph] = {}
    if not paths:
        graphs = {name: backbone_graph(*shape) for name, shape in GENERATED.items()}
    if large:
        graphs |= {name: backbone_graph(*shape) for name, shape in BACKBONE.items()}
    for path in paths:
        name = path.name.removesuffix(".tsv").removesuffix(".edges")
        try:
            graph = read_edges(path)
        except GraphError as error:
            raise BenchError(str(error)) from None
        if name in graphs:
            raise BenchError(f"two edge lists are named {name}")
        graphs[name] = graph
    for name, graph in graphs.items():
        if len(graph.names) < fewest_users:
            raise BenchError(f"{name} has {len(graph.names)} nodes, too few for {fewest_users} users")
        if len(Routing(graph).whole_tree(0).parents) != len(graph.names) - 1:
            raise BenchError(f"{name} is not connected: some nodes cannot be reached from {graph.names[0]!r}")
    return graphs


def check_plot(path: Path) -> None:
    """Find out before the long run whether the picture can be drawn."""
    try:
        import matplotlib  # noqa: F401
    except ImportError:
        raise BenchError(
            "--plot needs matplotlib: install psph with its extra, pip install 'psph[analytics]'"
        ) from None
    if path.suffix.lower() != ".png":
        raise BenchError(f"--plot writes PNG pictures; {path.name} does not end in .png")
    if not path.parent.is_dir():
        raise BenchError(f"--plot: the directory {path.parent} does not exist")


def draw(path: Path, rows: Sequence[Row]) -> None:
    """Mean efficiency by users, one panel per graph, one line per method."""
    from matplotlib.figure import Figure

    names = list(dict.fromkeys(str(row["graph"]) for row in rows))
    figure = Figure(figsize=(4 * len(names), 3.6), layout="constrained")
    for axes, name in zip(figure.subplots(1, len(names), sharey=True, squeeze=False)[0], names, strict=True):
        for method in METHODS:
            points = [
                (row["users"], row["efficiency"]) for row in rows if row["graph"] == name and row["method"] == method
            ]
            axes.plot(*zip(*points, strict=True), marker="o", label=method)
        axes.set_title(name)
        axes.set_xlabel("users")
        axes.grid(alpha=0.3)
        axes.set_ylim(0, 1.05)
    figure.axes[0].set_ylabel("forwarding efficiency")
    figure.axes[0].legend()
    figure.savefig(path, dpi=120)


BENCHMARK = ZFilterBenchmark()
