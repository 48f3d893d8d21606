"""The network as one node knows it: what link states come to, and filters for paths through it."""

from collections import deque
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

from psirp_stack.control.tag_source import TagSource
from psirp_stack.filters.tags import TagBook
from psirp_stack.filters.zfilter import ZFilter
from psirp_stack.forwarding_model import TABLES, Tags
from psirp_stack.graph import Graph, Link, Node

SHARED_GRAPHS = 8
Edge = frozenset[str]
"""Two names."""


@dataclass(frozen=True, slots=True)
class NodeState:
    """What a node says of itself."""

    boot: int
    roles: int
    """Those that are believed."""
    neighbours: Mapping[str, int]
    """MTU by name."""
    claimed: int = 0
    """Roles that are claimed and not believed."""
    doubt: str = ""
    """Why they are not."""


@dataclass(frozen=True, slots=True)
class KnownGraph:
    """The nodes that can be reached, and the links between them that work in both directions.

    Names and links are in sorted order, so all nodes that know the same network number it alike.
    """

    graph: Graph
    mtus: tuple[int, ...]
    """Longest frame, by directed link."""
    boots: Mapping[str, int]
    roles: Mapping[str, int]
    numbers: Mapping[str, Node] = field(compare=False)
    """A node's number in the graph, by name."""

    @classmethod
    def of(cls, states: Mapping[str, NodeState], start: str, allowed: Collection[Edge] | None = None) -> "KnownGraph":
        """Put together what nodes say of themselves, as far as `start` can reach.

        A link counts when both of its ends name it and, if `allowed` is given, when it is one of those. Nodes of one
        process that know the same share one graph.
        """
        for known_states, known_allowed, known in _LATEST:
            if known_allowed == allowed and start in known.numbers and known_states == states:
                return known
        known = cls._worked_out(states, start, allowed)
        _LATEST.append((dict(states), allowed, known))
        return known

    @classmethod
    def _worked_out(cls, states: Mapping[str, NodeState], start: str, allowed: Collection[Edge] | None) -> "KnownGraph":
        mtus: dict[tuple[str, str], int] = {}
        reached = {start}
        frontier = [start]
        while frontier:
            name = frontier.pop()
            state = states.get(name)
            for other, mtu in state.neighbours.items() if state is not None else ():
                back = states.get(other)
                if back is None or name not in back.neighbours or other == name:
                    continue
                if allowed is not None and frozenset((name, other)) not in allowed:
                    continue
                mtus[min(name, other), max(name, other)] = min(mtu, back.neighbours[name])
                if other not in reached:
                    reached.add(other)
                    frontier.append(other)
        names = sorted(reached)
        numbers = {name: number for number, name in enumerate(names)}
        edges = sorted(mtus)
        return cls(
            Graph.from_edges(names, [(numbers[a], numbers[b]) for a, b in edges]),
            tuple(mtus[edge] for edge in edges for _ in range(2)),
            {name: states[name].boot if name in states else 0 for name in names},
            {name: states[name].roles if name in states else 0 for name in names},
            numbers,
        )

    def book(self, tags: TagSource) -> TagBook:
        """All tags of this network, as planners want them."""
        names = self.graph.names
        return TagBook(
            tuple(tags.link_tags(names[tail], names[head]) for tail, head in self.graph.links),
            tuple(map(tags.internal_tags, names)),
        )

    def with_role(self, role: int) -> tuple[str, ...]:
        """The nodes that have a role, in the order of their names."""
        wanted = int(role)
        return tuple(name for name in self.graph.names if self.roles[name] & wanted)


_LATEST: deque[tuple[dict[str, NodeState], Collection[Edge] | None, KnownGraph]] = deque(maxlen=SHARED_GRAPHS)


def way_round(known: KnownGraph, name: str, neighbour: str) -> tuple[tuple[str, str], ...]:
    """The links of a shortest way from a node to a neighbour beside the link between them; empty when there is none."""
    graph, numbers = known.graph, known.numbers
    if name not in numbers or neighbour not in numbers:
        return ()
    start, goal = numbers[name], numbers[neighbour]
    parents: dict[Node, Link] = {}
    seen = {start}
    level = [start]
    while level and goal not in parents:
        reached: list[Node] = []
        for node in level:
            for link in graph.out_links[node]:
                head = graph.links[link][1]
                if head not in seen and not (node == start and head == goal):
                    seen.add(head)
                    parents[head] = link
                    reached.append(head)
        level = reached
    if goal not in parents:
        return ()
    way: list[tuple[str, str]] = []
    node = goal
    while node != start:
        tail = graph.links[parents[node]][0]
        way.append((graph.names[tail], graph.names[node]))
        node = tail
    return tuple(reversed(way))


def union_of(tags: Sequence[Tags]) -> Tags:
    """By table: all bits of these."""
    union = [0] * TABLES
    for each in tags:
        for table, tag in enumerate(each):
            union[table] |= tag
    return tuple(union)


def path_filter(graph: Graph, tags: TagSource, path: Sequence[Link], to: Node) -> ZFilter | None:
    """The filter that carries a frame along the path and up the stack at its end; None when every table overfills.

    Of eight tables the one is taken that opens the fewest links beside the path, and of those the one that has the
    fewest nodes on the way look at frames which are not for them.
    """
    names = graph.names
    named = [tags.link_tags(*(names[end] for end in graph.links[link])) for link in path]
    named.append(tags.internal_tags(names[to]))
    on_path = set(path) | {graph.reverse[link] for link in path}
    beside = [
        tags.link_tags(names[tail], names[head])
        for node in dict.fromkeys(graph.links[link][0] for link in path)
        for tail, head in (graph.links[link] for link in graph.out_links[node] if link not in on_path)
    ]
    beside += [
        tags.link_tags(names[to], names[graph.links[link][1]]) for link in graph.out_links[to] if link not in on_path
    ]
    passed = [tags.internal_tags(names[graph.links[link][0]]) for link in path[1:]]
    usable = [zfilter for table in range(TABLES) if not (zfilter := ZFilter.of(named, table)).overfull]
    return min(usable, key=lambda z: (sum(map(z.names, beside)), sum(map(z.names, passed)), z.bits_set), default=None)


def first_leg(graph: Graph, tags: TagSource, path: Sequence[Link]) -> tuple[ZFilter, int]:
    """Of a path that no filter holds: the filter to a node on it that sends on, and how many links that is behind.

    The path is cut into as few legs as can be, all about as long, since a filter that is less full strays less.
    """
    fits, too_long = 1, len(path)
    while too_long - fits > 1:
        middle = (fits + too_long) // 2
        if path_filter(graph, tags, path[:middle], graph.links[path[middle - 1]][1]) is None:
            too_long = middle
        else:
            fits = middle
    legs = -(-len(path) // fits)
    length = -(-len(path) // legs)
    zfilter = path_filter(graph, tags, path[:length], graph.links[path[length - 1]][1])
    if zfilter is None:
        raise AssertionError("a part of a path that fits does not fit")
    return zfilter, length
