"""Where a filter really carries a packet: false positives included, followed to their end.

Counted as `psirp.md` 2.3 says: a packet is sent on every link whose tag the filter contains, except back to where it
came from; each directed link is used at most once.
"""

from collections.abc import Collection
from dataclasses import dataclass

from psirp_stack.filters.tags import TagBook
from psirp_stack.filters.zfilter import ZFilter
from psirp_stack.forwarding_model import TABLES
from psirp_stack.graph import DeliveryTree, Graph, Link, Node

Exit = tuple[int, Link, Link, Node]
"""A tag, the link it opens, the link back, and the node at the other end."""


@dataclass(frozen=True, slots=True)
class Tested:
    """How often links that should not match did."""

    hits: int
    tests: int


class Reach:
    """The forwarding tables of a whole network, laid out for quick simulation."""

    def __init__(self, graph: Graph, book: TagBook) -> None:
        self.graph = graph
        self.book = book
        self._exits: list[list[list[Exit]]] = [[[] for _ in graph.names] for _ in range(TABLES)]
        for table, by_node in enumerate(self._exits):
            for link, (tail, head) in enumerate(graph.links):
                by_node[tail].append((book.links[link][table], link, graph.reverse[link], head))

    def links_used(self, zfilter: ZFilter, source: Node, limit: int | None = None) -> set[Link]:
        """Every link on which a packet with this filter travels; stops early above `limit` links."""
        bits = zfilter.bits
        exits = self._exits[zfilter.table]
        used: set[Link] = set()
        arrivals: list[tuple[Node, Link]] = [(source, -1)]
        while arrivals:
            node, arrival = arrivals.pop()
            for tag, link, back, head in exits[node]:
                if bits & tag == tag and back != arrival and link not in used:
                    used.add(link)
                    arrivals.append((head, link))
            if limit is not None and len(used) > limit:
                break
        return used

    def false_positives(
        self, zfilter: ZFilter, tree: DeliveryTree, forbidden: Collection[Link] | None = None
    ) -> Tested:
        """Test the links leaving tree nodes that are not in the tree, the link back upstream left out; or, when
        given, the forbidden links only."""
        bits = zfilter.bits
        exits = self._exits[zfilter.table]
        inside = set(tree.links)
        tested: set[Link] = set()
        hits: set[Link] = set()
        nodes = (tree.source, *tree.parents) if forbidden is None else {self.graph.links[link][0] for link in forbidden}
        for node in nodes:
            arrival = tree.parents.get(node, -1)
            for tag, link, back, _ in exits[node]:
                if (back != arrival and link not in inside) if forbidden is None else link in forbidden:
                    tested.add(link)
                    if bits & tag == tag:
                        hits.add(link)
        return Tested(len(hits), len(tested))

    def delivered(self, zfilter: ZFilter, source: Node) -> set[Node]:
        """The nodes that hand the packet up their stack: reached, and their internal tag is in the filter."""
        reached = {self.graph.links[link][1] for link in self.links_used(zfilter, source)}
        return {node for node in reached if zfilter.names(self.book.internal[node])}
