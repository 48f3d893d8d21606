"""Subscribers that no filter of their publisher reaches: the tree is cut into bands, each served from its upper end."""

from collections.abc import Iterable, Iterator

from psirp_stack.control.relay_frames import MAX_STATIONS
from psirp_stack.filters.planner import FilterPlanner
from psirp_stack.filters.zfilter import FilterOverfullError
from psirp_stack.graph import DeliveryTree, Graph, Link, Node

BAND = 12
"""Links from the node that serves a band to its far end: with as many subscribers on the way, still one filter."""

Served = tuple[Node, bytes, tuple[Node, ...]]
"""A station, a filter that it sends along, and the subscribers at its end."""


def far_branches(planner: FilterPlanner, tree: DeliveryTree) -> tuple[list[list[Served]], set[Node]]:
    """Chains of stations, each for one copy that the source sends; and subscribers that even so cannot be served.

    A copy goes from station to station, so that the links between them carry it once, however many there are.
    """
    graph = planner.graph
    paths = {node: tree.path(graph, node)[::-1] for node in tree.subscribers}
    bands: dict[Node, list[Node]] = {}
    for node, path in paths.items():
        start = (len(path) - 1) // BAND * BAND
        bands.setdefault(tree.source if start == 0 else graph.links[path[start - 1]][1], []).append(node)
    unserved: set[Node] = set()
    served: dict[Node, list[Served]] = {}
    for station, nodes in bands.items():
        below = _from(graph, station, (link for node in nodes for link in paths[node]), nodes)
        try:
            plan = planner.plan(below)
        except FilterOverfullError:
            unserved.update(nodes)
            continue
        served[station] = [(station, part.zfilter.to_fid(), part.subscribers) for part in plan.filters]
    chains = [list(part) for chain in _chains(graph, tree, list(served)) for part in _cut(chain, served)]
    return chains, unserved


def _from(graph: Graph, station: Node, links: Iterable[Link], subscribers: list[Node]) -> DeliveryTree:
    """The tree below a station: of the given links, those that its subscribers need."""
    parents = {graph.links[link][1]: link for link in links}
    needed: list[Node] = []
    seen = {station}
    for subscriber in subscribers:
        way: list[Node] = []
        node = subscriber
        while node not in seen:
            seen.add(node)
            way.append(node)
            node = graph.links[parents[node]][0]
        needed += reversed(way)
    return DeliveryTree(station, tuple(subscribers), {node: parents[node] for node in needed})


def _chains(graph: Graph, tree: DeliveryTree, stations: list[Node]) -> Iterator[list[Node]]:
    """Stations that lie on one path from the source, nearer ones first; each station once."""
    paths = {node: [graph.links[link][1] for link in reversed(tree.path(graph, node))] for node in stations}
    left = set(stations)
    for last in sorted(stations, key=lambda node: (-len(paths[node]), node)):
        if last in left:
            # The source itself serves a band of its own when its filters are too many for one grant.
            chain = [node for node in (tree.source, *paths[last]) if node in left]
            left.difference_update(chain)
            yield chain


def _cut(chain: list[Node], served: dict[Node, list[Served]]) -> Iterator[list[Served]]:
    filters = [part for station in chain for part in served[station]]
    for start in range(0, len(filters), MAX_STATIONS):
        yield filters[start : start + MAX_STATIONS]
