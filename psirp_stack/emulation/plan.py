"""The description of a whole network: one TOML file, turned into nodes and links.

seed = "demo"

[generate]                       # or `edges = "graph.tsv"` (GraphML, Rocketfuel, Mini-NDN), or [[links]] alone
kind = "ring"                    # line, ring, star, grid, backbone
nodes = 8

tags = "placed"                  # or "random": how bits are given to links; default: placed, up to 256 nodes
seconds = 30                     # with [[events]] and [[workloads]] (`schedule.py`): an experiment of this length

[strategies]                     # plug-ins, as module:function
placement = "mine:tags"          # (graph, seed) -> the tags of links and nodes
node = "mine:settings"           # (settings of a node) -> other settings: transport, memory, times

[roles]
rendezvous = "n0"                # default: the first node; several, of which one takes over: ["n0", "n4"]
topology = "n0"                  # default: those that may be the rendezvous

[cache]                          # memory for versions that pass by: at all nodes, or at those that are named
bytes = 1000000
strategy = "everywhere"
nodes = ["n1", "n2"]

[every_link]                     # as bad as wanted: delay, jitter, loss, duplication, reorder, bandwidth, queue
delay = 0.002

[[links]]
between = ["n0", "n4"]           # one more link, or other properties for one that is there
loss = 0.1
"""

import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from importlib import import_module
from pathlib import Path
from typing import Annotated, cast

import msgspec
from msgspec import Meta, Struct

from psirp_stack.control.tag_source import TagSource
from psirp_stack.emulation.imports import read_network
from psirp_stack.emulation.names import node_names
from psirp_stack.emulation.schedule import (
    MAX_EVENTS,
    MAX_SECONDS,
    MAX_WORKLOADS,
    EventFile,
    Names,
    QualityFile,
    ScheduleError,
    TimedEvent,
    TimedWorkload,
    WorkloadFile,
    event_of,
    workload_of,
)
from psirp_stack.graph import Graph, GraphError, backbone_graph, grid_graph
from psirp_stack.links.impairment import Impairment
from psirp_stack.node.config import CacheFile
from psirp_stack.node.settings import NodeSettings
from psirp_stack.pull.cache import StrategyError, strategy_named

MAX_EMULATED_NODES = 2000
MAX_FILE_BYTES = 16 * 1024 * 1024
MAX_NODES_PLACED = 256
"""Choosing tags for larger networks takes longer than people expect of a start, so it is done on request."""
NO_CACHE = CacheFile()
GRAPH_FILE = "graph.tsv"
"""Where the nodes of a network with placed tags read its edges, beside their own files."""


PlacementStrategy = Callable[[Graph, bytes], TagSource]
"""A plug-in that chooses tags for a graph; it gets the domain's seed."""
SettingsStrategy = Callable[[NodeSettings], NodeSettings]
"""A plug-in that changes how nodes are run."""


class PlanError(ValueError):
    """A description of a network that cannot be used; the message names the key."""


class GraphShape(StrEnum):
    LINE = "line"
    RING = "ring"
    STAR = "star"
    GRID = "grid"
    BACKBONE = "backbone"


class TagChoice(StrEnum):
    """How tags come to links."""

    RANDOM = "random"
    PLACED = "placed"


class _Link(QualityFile, frozen=True, forbid_unknown_fields=True, kw_only=True):
    between: tuple[str, str]


class _Generate(Struct, frozen=True, forbid_unknown_fields=True):
    kind: GraphShape
    nodes: Annotated[int, Meta(ge=2, le=MAX_EMULATED_NODES)]
    links: Annotated[int, Meta(ge=1)] | None = None
    """Of a backbone; twice the nodes when not given."""
    seed: int = 1


class _Roles(Struct, frozen=True, forbid_unknown_fields=True):
    rendezvous: str | tuple[str, ...] = ()
    topology: str | tuple[str, ...] = ()


class _Strategies(Struct, frozen=True, forbid_unknown_fields=True):
    placement: str | None = None
    node: str | None = None


class _Cache(CacheFile, frozen=True, forbid_unknown_fields=True):
    nodes: tuple[str, ...] = ()
    """All, when none is named."""


class _File(Struct, frozen=True, forbid_unknown_fields=True):
    seed: Annotated[str, Meta(min_length=1, max_length=256)] = "psph"
    generate: _Generate | None = None
    edges: str | None = None
    tags: TagChoice | None = None
    roles: _Roles = _Roles()
    cache: _Cache = _Cache()
    strategies: _Strategies = _Strategies()
    every_link: QualityFile = QualityFile()
    links: tuple[_Link, ...] = ()
    seconds: Annotated[float, Meta(gt=0.0, le=MAX_SECONDS)] | None = None
    events: Annotated[tuple[EventFile, ...], Meta(max_length=MAX_EVENTS)] = ()
    workloads: Annotated[tuple[WorkloadFile, ...], Meta(max_length=MAX_WORKLOADS)] = ()


@dataclass(frozen=True, slots=True)
class NetworkPlan:
    """A network to be built: its graph, how bad each link is, and who does what."""

    seed: str
    graph: Graph
    rendezvous: tuple[str, ...]
    """Who may have the role; the first by name that can be reached has it."""
    topology: tuple[str, ...]
    usual: Impairment
    special: dict[frozenset[str], Impairment]
    tags: TagChoice
    cache: CacheFile = NO_CACHE
    keeps: frozenset[str] = frozenset()
    """Nodes that have memory for versions; with none named, all."""
    seconds: float | None = None
    """How long the experiment takes; None for a network that stays up."""
    events: tuple[TimedEvent, ...] = ()
    workloads: tuple[TimedWorkload, ...] = ()
    placement: PlacementStrategy | None = None
    change: SettingsStrategy | None = None

    def cache_of(self, node: str) -> CacheFile:
        return self.cache if not self.keeps or node in self.keeps else NO_CACHE

    def impairment(self, a: str, b: str) -> Impairment:
        return self.special.get(frozenset((a, b)), self.usual)

    def write_graph(self, folder: Path) -> str | None:
        """Where nodes find the graph that their tags are placed over; None when tags are random."""
        if self.tags is TagChoice.RANDOM:
            return None
        folder.mkdir(parents=True, exist_ok=True)
        (folder / GRAPH_FILE).write_text("".join(f"{a}\t{b}\n" for a, b in self.cables()), encoding="utf-8")
        return GRAPH_FILE

    def cables(self) -> list[tuple[str, str]]:
        """Every undirected link, by the names of its ends."""
        names = self.graph.names
        return [(names[tail], names[head]) for link, (tail, head) in enumerate(self.graph.links) if link % 2 == 0]


def load(path: Path) -> NetworkPlan:
    try:
        if path.stat().st_size > MAX_FILE_BYTES:
            raise PlanError(f"{path}: larger than {MAX_FILE_BYTES} bytes")
        document = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise PlanError(f"{path}: cannot be read ({error.strerror})") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise PlanError(f"{path}: not TOML: {error}") from None
    return plan(document, path.parent, str(path))


def plan(document: dict[str, object], folder: Path, source: str = "topology") -> NetworkPlan:
    try:
        file = msgspec.convert(document, _File)
    except msgspec.ValidationError as error:
        raise PlanError(f"{source}: {str(error).replace('`$.', '`')}") from None
    try:
        graph, named, special = _graph(file, folder)
        usual = file.every_link.impairment()
        special |= {frozenset(named[name] for name in link.between): link.impairment() for link in file.links}
    except (GraphError, ValueError) as error:
        raise PlanError(f"{source}: {error}") from None
    if len(graph.names) > MAX_EMULATED_NODES:
        raise PlanError(f"{source}: {len(graph.names)} nodes; at most {MAX_EMULATED_NODES} can be emulated")
    rendezvous = _holders(file.roles.rendezvous, "roles.rendezvous", graph, named, source) or graph.names[:1]
    topology = _holders(file.roles.topology, "roles.topology", graph, named, source) or rendezvous
    usual_tags = TagChoice.PLACED if len(graph.names) <= MAX_NODES_PLACED else TagChoice.RANDOM
    keeps = _holders(file.cache.nodes, "cache.nodes", graph, named, source)
    try:
        strategy_named(file.cache.strategy)
    except StrategyError as error:
        raise PlanError(f"{source}: `cache.strategy`: {error}") from None
    events, workloads = _schedule(file, graph, named, source)
    return NetworkPlan(
        file.seed,
        graph,
        rendezvous,
        topology,
        usual,
        special,
        file.tags or usual_tags,
        CacheFile(file.cache.bytes, file.cache.strategy),
        frozenset(keeps),
        file.seconds,
        events,
        workloads,
        cast("PlacementStrategy | None", _plug_in(file.strategies.placement, "strategies.placement", source)),
        cast("SettingsStrategy | None", _plug_in(file.strategies.node, "strategies.node", source)),
    )


def _schedule(
    file: _File, graph: Graph, named: dict[str, str], source: str
) -> tuple[tuple[TimedEvent, ...], tuple[TimedWorkload, ...]]:
    if (file.events or file.workloads) and file.seconds is None:
        raise PlanError(
            f"{source}: `seconds`: how long the experiment takes is needed with [[events]] and [[workloads]]"
        )
    end = file.seconds or 0.0
    names = Names(named, graph.names)
    links = frozenset(frozenset((graph.names[tail], graph.names[head])) for tail, head in graph.links)
    try:
        events = [event_of(event, number, names, links) for number, event in enumerate(file.events, 1)]
        workloads = [
            workload_of(load, number, names, graph.names, end) for number, load in enumerate(file.workloads, 1)
        ]
    except ScheduleError as error:
        raise PlanError(f"{source}: {error}") from None
    return tuple(sorted(events, key=lambda event: event.at)), tuple(workloads)


def _plug_in(name: str | None, key: str, source: str) -> object:
    if name is None:
        return None
    module, _, function = name.partition(":")
    try:
        return getattr(import_module(module), function)
    except (ImportError, AttributeError, ValueError) as error:
        raise PlanError(f"{source}: `{key}`: {name!r} is no module:function that can be had: {error}") from None


def _holders(
    given: str | tuple[str, ...], key: str, graph: Graph, named: Mapping[str, str], source: str
) -> tuple[str, ...]:
    holders = []
    for name in (given,) if isinstance(given, str) else given:
        if named.get(name, name) not in graph.names:
            raise PlanError(f"{source}: `{key}`: no node is named {name!r}")
        holders.append(named.get(name, name))
    return tuple(holders)


def _graph(file: _File, folder: Path) -> tuple[Graph, dict[str, str], dict[frozenset[str], Impairment]]:
    """The graph, its nodes named as nodes are, these names by those in the files, and what files say of links."""
    quality: dict[frozenset[str], Impairment] = {}
    if file.generate is not None and file.edges is not None:
        raise PlanError("give either `generate` or `edges`, not both")
    if file.generate is not None:
        graph = _generated(file.generate)
    elif file.edges is not None:
        imported = read_network(folder / file.edges)
        graph, quality = imported.graph, imported.quality
    else:
        graph = Graph.from_edges([], [])
    named = node_names([*graph.names, *(name for link in file.links for name in link.between)])
    names = [named[name] for name in graph.names]
    edges = [link for place, link in enumerate(graph.links) if place % 2 == 0]
    known = {frozenset((names[a], names[b])) for a, b in edges}
    for link in file.links:
        ends = [named[name] for name in link.between]
        if frozenset(ends) not in known:
            known.add(frozenset(ends))
            for name in ends:
                if name not in names:
                    names.append(name)
            edges.append((names.index(ends[0]), names.index(ends[1])))
    if not edges:
        raise PlanError("no links: give `generate`, `edges` or [[links]]")
    special = {frozenset(named[name] for name in ends): bad for ends, bad in quality.items()}
    return Graph.from_edges(names, edges), named, special


def _generated(given: _Generate) -> Graph:
    count = given.nodes
    names = [f"n{number}" for number in range(count)]
    match given.kind:
        case GraphShape.LINE:
            return Graph.from_edges(names, [(n, n + 1) for n in range(count - 1)])
        case GraphShape.RING:
            if count < 3:
                raise PlanError("generate.nodes: a ring has at least 3 nodes")
            return Graph.from_edges(names, [(n, (n + 1) % count) for n in range(count)])
        case GraphShape.STAR:
            return Graph.from_edges(names, [(0, n) for n in range(1, count)])
        case GraphShape.GRID:
            width = max(1, round(count**0.5))
            grid = grid_graph(width, -(-count // width))
            return Graph.from_edges([f"n{n}" for n in range(len(grid.names))], grid.links[::2])
        case GraphShape.BACKBONE:
            return backbone_graph(count, given.links or min(2 * count, count * (count - 1) // 2), given.seed)
