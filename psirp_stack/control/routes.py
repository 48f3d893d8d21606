"""What follows for one node from the graph that it knows: filters to other nodes, and ways round its own links."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from psirp_stack.control.known_graph import KnownGraph, first_leg, path_filter, union_of, way_round
from psirp_stack.control.relay_frames import relay_overhead
from psirp_stack.control.tag_source import TagSource
from psirp_stack.forwarding_model import Detour, LinkNumber
from psirp_stack.graph import DeliveryTree, Routing


@dataclass(frozen=True, slots=True)
class ControlRoute:
    """How a control frame gets to a node."""

    fid: bytes
    mtu: int
    """Longest frame that fits on the way, what a relay needs to know left out."""
    hops: int
    relay: str | None = None
    """Whom the filter leads to when the node itself is too far away: it sends on."""


class Routes:
    """How control frames get from one node to the others. Remembered until the graph changes."""

    def __init__(self, name: str, tags: TagSource, known: KnownGraph) -> None:
        self.over_relays = 0
        """Times a path was too long for one filter, so that it leads over a relay."""
        self._name = name
        self._tags = tags
        self._known = known
        self._routes: dict[str, ControlRoute | None] = {}
        self._tree: DeliveryTree | None = None

    def graph_is(self, known: KnownGraph) -> None:
        self._known = known
        self._routes.clear()
        self._tree = None

    def to(self, name: str) -> ControlRoute | None:
        """How to reach a node, None when no path leads there."""
        if name not in self._routes:
            if name not in self._known.numbers:
                return None  # not remembered: anybody could ask for anything
            self._routes[name] = self._find(name)
        return self._routes[name]

    def _find(self, name: str) -> ControlRoute | None:
        graph = self._known.graph
        to = self._known.numbers[name]
        if self._tree is None:
            self._tree = Routing(graph).whole_tree(self._known.numbers[self._name])
        path = self._tree.path(graph, to)[::-1]
        mtu = min((self._known.mtus[link] for link in path), default=0)
        zfilter = path_filter(graph, self._tags, path, to)
        if zfilter is not None:
            return ControlRoute(zfilter.to_fid(), mtu, len(path))
        self.over_relays += 1
        zfilter, length = first_leg(graph, self._tags, path)
        relay = graph.names[graph.links[path[length - 1]][1]]
        return ControlRoute(zfilter.to_fid(), mtu - relay_overhead(1), len(path), relay)


Way = tuple[tuple[str, str], ...]
"""Links by the names of their ends."""


class WaysRound:
    """Ways to each neighbour beside the link to it: worked out while it is quiet, used while the link is down."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._ready: dict[str, Way] = {}
        self._in_use: dict[str, Way] = {}

    def work_out(self, known: KnownGraph, neighbours: Iterable[str]) -> None:
        self._ready = {name: way_round(known, self._name, name) for name in neighbours}

    def link_up(self, neighbour: str) -> None:
        self._in_use.pop(neighbour, None)

    def link_down(self, neighbour: str, known: KnownGraph) -> None:
        self._in_use[neighbour] = self._ready.get(neighbour) or way_round(known, self._name, neighbour)

    def graph_is(self, known: KnownGraph) -> bool:
        """Whether there were ways in use: they are others now."""
        if not self._in_use:
            return False
        self._in_use = {name: way_round(known, self._name, name) for name in self._in_use if name in known.numbers}
        return True

    def detours(self, tags: TagSource, active: Mapping[str, LinkNumber]) -> list[Detour]:
        """What the forwarder has to know of the ways in use; `active` are the links that are up, by neighbour."""
        return [
            Detour(
                tags.link_tags(self._name, neighbour),
                union_of([tags.link_tags(*link) for link in way]),
                active[way[0][1]],
            )
            for neighbour, way in self._in_use.items()
            if way and way[0][1] in active
        ]
