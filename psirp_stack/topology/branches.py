"""One publisher's share of an item: the tree to the subscribers it serves, as filters."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from psirp_stack.control.known_graph import KnownGraph
from psirp_stack.control.messages import MAX_FILTERS, FilterGrant, Onward
from psirp_stack.control.relay_frames import NO_FILTER, relay_overhead
from psirp_stack.control.tag_source import TagSource
from psirp_stack.filters.planner import FilterPlanner
from psirp_stack.filters.zfilter import FilterOverfullError
from psirp_stack.graph import DeliveryTree, Node
from psirp_stack.topology.far_branches import Served, far_branches

DirectedLink = tuple[str, str]


@dataclass(frozen=True, slots=True)
class Branch:
    """How a publisher reaches its subscribers on other nodes."""

    links: frozenset[DirectedLink]
    """Every link of the tree, also of those who could not be served."""
    grants: tuple[FilterGrant, ...]
    overfull: frozenset[str] = frozenset()
    """Subscribers who would need one filter too many, also when nodes on the way send on."""


class BranchPlanner:
    """Makes branches in one graph."""

    def __init__(self, known: KnownGraph, tags: TagSource) -> None:
        self._known = known
        self._planner = FilterPlanner(known.graph, known.book(tags), max_filters=MAX_FILTERS)

    def plan(self, whole: DeliveryTree, subscribers: Iterable[str]) -> Branch:
        """`whole` is the tree of the publisher to everybody; the subscribers are others than the publisher's node."""
        numbers = self._known.numbers
        tree = whole.narrowed(self._known.graph, sorted(numbers[name] for name in subscribers))
        links = frozenset(map(self._named, tree.links))
        try:
            filters = self._planner.plan(tree).filters
        except FilterOverfullError:
            grants, overfull = self._over_stations(tree)
        else:
            overfull = set()
            grants = [self._grant(tree, planned.zfilter.to_fid(), planned.subscribers) for planned in filters]
        return Branch(links, tuple(grants), frozenset(self._known.graph.names[node] for node in overfull))

    def _over_stations(self, tree: DeliveryTree) -> tuple[list[FilterGrant], set[Node]]:
        """Nodes on the way send on what no filter of the publisher's brings to the end."""
        grants: list[FilterGrant] = []
        chains, overfull = far_branches(self._planner, tree)
        for chain in chains:
            if len(grants) < MAX_FILTERS:
                grants.append(self._chain(tree, chain))
            else:
                overfull.update(node for _, _, nodes in chain for node in nodes)
        if overfull:
            groups, overfull = self._as_far_as_possible(tree.narrowed(self._known.graph, overfull), len(grants))
            grants += [self._grant(tree, fid, nodes) for fid, nodes in groups]
        return grants, overfull

    def _as_far_as_possible(
        self, tree: DeliveryTree, taken: int
    ) -> tuple[list[tuple[bytes, tuple[Node, ...]]], set[Node]]:
        """Fill one filter after the other with neighbouring subscribers; those left over cannot be served."""
        single = FilterPlanner(self._known.graph, self._planner.book, max_filters=1)
        groups: list[tuple[bytes, tuple[Node, ...]]] = []
        overfull: set[Node] = set()
        group: tuple[Node, ...] = ()
        fid = b""
        for node in _depth_first(self._known, tree):
            larger = self._fid(single, tree, (*group, node))
            if larger is not None:
                group, fid = (*group, node), larger
                continue
            alone = self._fid(single, tree, (node,))
            if alone is None or taken + len(groups) + (2 if group else 1) > MAX_FILTERS:
                overfull.add(node)
                continue
            if group:
                groups.append((fid, group))
            group, fid = (node,), alone
        if group:
            groups.append((fid, group))
        return groups, overfull

    def _fid(self, planner: FilterPlanner, tree: DeliveryTree, nodes: tuple[Node, ...]) -> bytes | None:
        try:
            return planner.plan(tree.narrowed(self._known.graph, nodes)).filters[0].zfilter.to_fid()
        except FilterOverfullError:
            return None

    def _grant(self, tree: DeliveryTree, fid: bytes, nodes: tuple[Node, ...]) -> FilterGrant:
        graph = self._known.graph
        names = tuple(sorted(graph.names[node] for node in nodes))
        mtu = min(self._known.mtus[link] for link in tree.narrowed(graph, nodes).links)
        return FilterGrant(fid, names, mtu)

    def _chain(self, tree: DeliveryTree, chain: Sequence[Served]) -> FilterGrant:
        graph = self._known.graph
        nodes = tuple(node for _, _, subscribers in chain for node in subscribers)
        first, rest = (chain[0][1], chain[1:]) if chain[0][0] == tree.source else (NO_FILTER, chain)
        onward = tuple(Onward(graph.names[station], fid) for station, fid, _ in rest)
        plain = self._grant(tree, first, nodes)
        mtu = plain.mtu - relay_overhead(len(onward)) if onward else plain.mtu
        return FilterGrant(first, plain.subscribers, mtu, onward)

    def _named(self, link: int) -> DirectedLink:
        tail, head = self._known.graph.links[link]
        return self._known.graph.names[tail], self._known.graph.names[head]


def _depth_first(known: KnownGraph, tree: DeliveryTree) -> Iterator[Node]:
    """The tree's subscribers, those on one branch together."""
    wanted = set(tree.subscribers)
    children: dict[Node, list[Node]] = {}
    for node, link in tree.parents.items():
        children.setdefault(known.graph.links[link][0], []).append(node)
    stack = [tree.source]
    while stack:
        node = stack.pop()
        if node in wanted:
            yield node
        stack += children.get(node, ())
