"""Hops and shortest-path trees from publishers, kept from one graph to the next as far as they stay true.

Nodes have numbers of their own here that outlive a graph, so that distances can be compared across changes.
"""

from array import array
from collections import OrderedDict
from dataclasses import dataclass

from psirp_stack.control.known_graph import KnownGraph
from psirp_stack.graph import DeliveryTree, Graph, Routing

UNREACHABLE = 0xFFFF
MAX_TREES = 256
"""Whole trees kept for the present graph."""

Edges = set[tuple[str, str]]


@dataclass(slots=True)
class _Source:
    hops: "array[int]"
    """By lasting number; empty for a node that is away."""
    stale: bool = False
    """Links that may matter went away since: true hops are these or more."""


class Distances:
    """How far nodes are from publishers, in the present graph."""

    def __init__(self, known: KnownGraph) -> None:
        self.known = known
        self.searches = 0
        """Breadth-first searches made."""
        self._routing = Routing(known.graph)
        self._numbers: dict[str, int] = {}
        self._sources: dict[str, _Source] = {}
        self._trees: OrderedDict[str, DeliveryTree] = OrderedDict()
        self._remember_names(known)

    def hops(self, source: str, to: str) -> int:
        """Links on the shortest path, `UNREACHABLE` when there is none."""
        # Also for a node that is away now, so that its return is seen as a change.
        known = self._sources.get(source)
        if known is None or known.stale:
            known = self._search(source)
        number = self._numbers.get(to)
        return UNREACHABLE if number is None else _at(known.hops, number)

    def tree(self, source: str) -> DeliveryTree:
        """The breadth-first tree from a node of the graph to all others."""
        tree = self._trees.get(source)
        if tree is None:
            self.searches += 1
            tree = self._trees[source] = self._routing.whole_tree(self.known.numbers[source])
            if len(self._trees) > MAX_TREES:
                self._trees.popitem(last=False)
        else:
            self._trees.move_to_end(source)
        return tree

    def change(self, known: KnownGraph, removed: Edges, added: Edges) -> dict[str, set[str]]:
        """Go over to another graph; says to which nodes the hops of each remembered source are others now.

        What only lost links is not looked at here: whoever used one of them knows.
        """
        self._remember_names(known)
        self.known = known
        self._routing = Routing(known.graph)
        self._trees.clear()
        changed: dict[str, set[str]] = {}
        for source, entry in list(self._sources.items()):
            here = source in known.numbers
            entry.stale = entry.stale or here != bool(entry.hops) or any(self._on_path(entry, e) for e in removed)
            if added and (entry.stale or any(self._shortens(entry, edge) for edge in added)):
                before = entry.hops
                after = self._search(source).hops
                differs = {name for name, number in self._numbers.items() if _at(before, number) != _at(after, number)}
                if differs:
                    changed[source] = differs
        return changed

    def forget(self, source: str) -> None:
        """Nobody asks for this source any more."""
        self._sources.pop(source, None)

    def _search(self, source: str) -> _Source:
        if source not in self.known.numbers:
            away = self._sources[source] = _Source(array("H"))
            return away
        graph = self.known.graph
        hops = array("H", [UNREACHABLE]) * len(self._numbers)
        lasting = [self._numbers[name] for name in graph.names]
        start = self.known.numbers[source]
        hops[lasting[start]] = 0
        for node, link in self.tree(source).parents.items():
            hops[lasting[node]] = hops[lasting[graph.links[link][0]]] + 1
        entry = self._sources[source] = _Source(hops)
        return entry

    def _on_path(self, entry: _Source, edge: tuple[str, str]) -> bool:
        one, other = (_at(entry.hops, self._numbers[name]) for name in edge)
        return one != other

    def _shortens(self, entry: _Source, edge: tuple[str, str]) -> bool:
        one, other = (_at(entry.hops, self._numbers[name]) for name in edge)
        return abs(one - other) > 1

    def _remember_names(self, known: KnownGraph) -> None:
        for name in known.graph.names:
            self._numbers.setdefault(name, len(self._numbers))


def _at(hops: "array[int]", number: int) -> int:
    return hops[number] if number < len(hops) else UNREACHABLE


def edges_of(known: KnownGraph) -> dict[tuple[str, str], int]:
    """Undirected links by the names of their ends, with their MTUs."""
    graph: Graph = known.graph
    names = graph.names
    return {
        (names[tail], names[head]): known.mtus[link] for link, (tail, head) in enumerate(graph.links) if tail < head
    }
