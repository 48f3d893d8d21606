"""A small network graph: edge lists, shortest-path delivery trees and generated graphs.

Nodes and directed links are small integers, so that everything above can use lists instead of dictionaries of names.
An undirected link of an edge list becomes two directed links; `reverse[link]` is the other one.
"""

import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

MAX_NODES = 20_000
MAX_LINKS = 200_000
MIN_COLUMNS = 2

Node = int
Link = int
"""The index of a directed link."""


class GraphError(ValueError):
    """A graph, or a question about one, that makes no sense."""


class EdgeListError(GraphError):
    """A line of an edge list that cannot be used."""

    def __init__(self, source: str, line: int, reason: str) -> None:
        super().__init__(f"{source}, line {line}: {reason}")
        self.source = source
        self.line = line
        self.reason = reason


class UnreachableError(GraphError):
    """No path leads from the publisher to a subscriber."""


@dataclass(frozen=True, slots=True)
class Graph:
    """Nodes with names, and directed links between them."""

    names: tuple[str, ...]
    links: tuple[tuple[Node, Node], ...]
    """Tail and head of every directed link."""
    out_links: tuple[tuple[Link, ...], ...]
    """The links that leave each node; a link's place in its node's tuple is the node's own number for it."""
    reverse: tuple[Link, ...]

    @classmethod
    def from_edges(cls, names: Sequence[str], edges: Iterable[tuple[Node, Node]]) -> "Graph":
        """Make both directed links of each undirected edge."""
        links: list[tuple[Node, Node]] = []
        out: list[list[Link]] = [[] for _ in names]
        reverse: list[Link] = []
        for a, b in edges:
            for tail, head in ((a, b), (b, a)):
                out[tail].append(len(links))
                links.append((tail, head))
            reverse += [len(links) - 1, len(links) - 2]
        if len(set(links)) != len(links) or any(tail == head for tail, head in links):
            raise GraphError("a graph has no parallel links and no links from a node to itself")
        return cls(tuple(names), tuple(links), tuple(map(tuple, out)), tuple(reverse))

    @property
    def undirected_links(self) -> int:
        return len(self.links) // 2

    def node(self, name: str) -> Node:
        try:
            return self.names.index(name)
        except ValueError:
            raise GraphError(f"no node is named {name!r}") from None

    def link(self, tail: Node, head: Node) -> Link:
        for link in self.out_links[tail]:
            if self.links[link][1] == head:
                return link
        raise GraphError(f"no link leads from {self.names[tail]!r} to {self.names[head]!r}")

    def link_number(self, link: Link) -> int:
        """What the node at the link's tail calls it."""
        return self.out_links[self.links[link][0]].index(link)


def parse_edges(text: str, source: str = "edge list") -> Graph:
    """Read tab-separated undirected edges: two node names, then columns that are not used here."""
    numbers: dict[str, Node] = {}
    seen: dict[tuple[Node, Node], int] = {}
    for line_number, line in enumerate(text.split("\n"), start=1):
        stripped = line.rstrip("\r")
        if not stripped.strip() or stripped.startswith("#"):
            continue
        columns = stripped.split("\t")
        if len(columns) < MIN_COLUMNS:
            raise EdgeListError(source, line_number, "expected two node names separated by a tab, found one column")
        ends = [name.strip() for name in columns[:MIN_COLUMNS]]
        if not all(ends):
            raise EdgeListError(source, line_number, "a node name is empty")
        if ends[0] == ends[1]:
            raise EdgeListError(source, line_number, f"the link joins {ends[0]!r} to itself")
        a, b = (numbers.setdefault(name, len(numbers)) for name in ends)
        edge = (min(a, b), max(a, b))
        if edge in seen:
            reason = f"the link {ends[0]!r} to {ends[1]!r} was on line {seen[edge]} already"
            raise EdgeListError(source, line_number, reason)
        seen[edge] = line_number
        if len(numbers) > MAX_NODES or len(seen) > MAX_LINKS:
            raise EdgeListError(source, line_number, f"more than {MAX_NODES} nodes or {MAX_LINKS} links")
    if not seen:
        raise EdgeListError(source, 1, "no links found")
    return Graph.from_edges(list(numbers), seen)


@dataclass(frozen=True, slots=True)
class DeliveryTree:
    """The links on which one publisher reaches its subscribers."""

    source: Node
    subscribers: tuple[Node, ...]
    parents: dict[Node, Link]
    """The link on which each node of the tree except the source is reached, nearer nodes first."""

    @property
    def links(self) -> tuple[Link, ...]:
        return tuple(self.parents.values())

    def path(self, graph: Graph, node: Node) -> list[Link]:
        """The tree's links from the node back to the source."""
        path = []
        while node != self.source:
            link = self.parents[node]
            path.append(link)
            node = graph.links[link][0]
        return path

    def narrowed(self, graph: Graph, subscribers: Iterable[Node]) -> "DeliveryTree":
        """The part of this tree that some of its subscribers need."""
        chosen = tuple(subscribers)
        needed = {self.source}
        for subscriber in chosen:
            node = subscriber
            while node not in needed:
                needed.add(node)
                node = graph.links[self.parents[node]][0]
        return DeliveryTree(self.source, chosen, {n: link for n, link in self.parents.items() if n in needed})


class Routing:
    """Which of several equally short paths are used: fixed for a network, since its topology manager decides once.

    Within a level of the breadth-first search, nodes are visited in the order of a seeded preference; without a
    seed, in the order of their numbers.
    """

    def __init__(self, graph: Graph, seed: int | None = None) -> None:
        self.graph = graph
        preference = list(range(len(graph.names)))
        if seed is not None:
            random.Random(seed).shuffle(preference)  # noqa: S311  (a reproducible choice, not a secret)
        self._preference = preference

    def whole_tree(self, source: Node) -> DeliveryTree:
        """The breadth-first tree to every node that can be reached."""
        graph = self.graph
        parents: dict[Node, Link] = {}
        seen = bytearray(len(graph.names))
        seen[source] = 1
        level = [source]
        while level:
            reached: list[Node] = []
            for node in sorted(level, key=self._preference.__getitem__):
                for link in graph.out_links[node]:
                    head = graph.links[link][1]
                    if not seen[head]:
                        seen[head] = 1
                        parents[head] = link
                        reached.append(head)
            level = reached
        return DeliveryTree(source, tuple(parents), parents)

    def delivery_tree(self, source: Node, subscribers: Iterable[Node]) -> DeliveryTree:
        """The part of the source's breadth-first tree that reaches the subscribers."""
        chosen = tuple(dict.fromkeys(node for node in subscribers if node != source))
        whole = self.whole_tree(source)
        for node in chosen:
            if node not in whole.parents:
                names = self.graph.names
                raise UnreachableError(f"no path leads from {names[source]!r} to {names[node]!r}")
        return whole.narrowed(self.graph, chosen)


def grid_graph(width: int, height: int) -> Graph:
    """A rectangle of nodes, each joined to its neighbours."""
    names = [f"{x}.{y}" for y in range(height) for x in range(width)]
    across = [(y * width + x, y * width + x + 1) for y in range(height) for x in range(width - 1)]
    down = [(y * width + x, (y + 1) * width + x) for y in range(height - 1) for x in range(width)]
    return Graph.from_edges(names, across + down)


def backbone_graph(nodes: int, undirected_links: int, seed: int) -> Graph:
    """A connected graph whose degrees are as uneven as an operator's: new ends prefer nodes that have many links."""
    if nodes < 2 or not nodes - 1 <= undirected_links <= nodes * (nodes - 1) // 2:
        raise GraphError(f"{nodes} nodes cannot be joined by {undirected_links} links")
    rng = random.Random(seed)  # noqa: S311  (a reproducible graph, not a secret)
    edges: dict[tuple[Node, Node], None] = {}
    ends: list[Node] = [0]
    for node in range(1, nodes):
        other = rng.choice(ends)
        edges[other, node] = None
        ends += [other, node]
    while len(edges) < undirected_links:
        # Half of the ends are drawn evenly, so that a dense graph is finished as well.
        a, b = rng.choice(ends), rng.randrange(nodes)
        edge = (min(a, b), max(a, b))
        if a != b and edge not in edges:
            edges[edge] = None
            ends += edge
    return Graph.from_edges([f"n{node}" for node in range(nodes)], edges)
