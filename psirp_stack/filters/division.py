"""Dividing a tree's subscribers over several filters, so that few links carry two copies.

In depth-first order the subscribers of one region stand side by side, so a division into runs of it shares only the
links from the source to where two neighbouring runs part. Which division into runs uses the fewest links is found by
dynamic programming; runs of different branches that fit into one filter are put together afterwards.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise

from psirp_stack.filters.zfilter import ZFilter
from psirp_stack.graph import DeliveryTree, Graph, Node

MAX_CUTS = 48
"""Places at which the order may be cut; where there are more, those that make few links shared."""
FEW = 2
FEW_SUFFICE = 0.92
"""Up to `FEW` copies are enough when this part of the links that they use is needed."""
PATIENCE = 2
"""So many further copies are tried without a gain."""
ORDERS = 6
SMALL_TREE = 48
ORDERS_OF_LARGE_TREES = 3
"""In how many depth-first orders a tree is looked at, by the number of its subscribers."""
SHORTER_RUNS = 7
"""Beside the longest run from a cut, so many shorter ones are looked at."""
RETURN_COST = 10
"""A stray copy that comes back into the tree meets the right one there, and one of them is dropped as a loop. Such a
filter is taken only when as many links are at stake."""
MOST_STRAY = 3
MOST_STRAY_SHARE = 0.15
"""A run is not made longer once it strays on more links than both of these say: it would only get worse."""


@dataclass(frozen=True, slots=True)
class PlannedFilter:
    """One copy that the publisher sends."""

    zfilter: ZFilter
    subscribers: tuple[Node, ...]
    links_used: int
    """Links that this copy travels, false positives followed to their end."""
    tree_links: int
    """Of those, the ones that it has to."""
    returns: bool = False
    """Whether a false positive leads back into the tree."""

    @property
    def cost(self) -> int:
        return self.links_used + RETURN_COST * self.returns

    @property
    def is_too_stray(self) -> bool:
        return self.links_used - self.tree_links > max(MOST_STRAY, MOST_STRAY_SHARE * self.tree_links)


Fit = Callable[[tuple[Node, ...]], PlannedFilter | None]
"""The best filter for some subscribers of the tree; None when every one is overfull."""


def divide(graph: Graph, tree: DeliveryTree, fit: Fit, most: int) -> tuple[PlannedFilter, ...] | None:
    """The division into at most `most` filters that uses the fewest links; None when there is none."""
    best: tuple[PlannedFilter, ...] | None = None
    needed = len(tree.parents)
    for turn in range(ORDERS if len(tree.subscribers) <= SMALL_TREE else ORDERS_OF_LARGE_TREES):
        order = depth_first(graph, tree, turn)
        found = _into_runs(graph, tree, order, fit, most) or _into_runs(graph, tree, order, fit, most, may_stray=True)
        if found is not None and (best is None or _rank(found) < _rank(best)):
            best = found
            if sum(part.cost for part in best) == needed:
                break
    return best


def _rank(parts: Sequence[PlannedFilter]) -> int:
    return sum(part.cost for part in parts)


def _into_runs(
    graph: Graph, tree: DeliveryTree, order: Sequence[Node], fit: Fit, most: int, may_stray: bool = False
) -> tuple[PlannedFilter, ...] | None:
    cuts = _cuts(shared_links(graph, tree, order))
    end = len(cuts) - 1
    runs: dict[int, list[tuple[int, PlannedFilter]]] = {}
    layer: dict[int, tuple[int, tuple[PlannedFilter, ...]]] = {0: (0, ())}
    best: tuple[PlannedFilter, ...] | None = None
    for copies in range(1, most + 1):
        following: dict[int, tuple[int, tuple[PlannedFilter, ...]]] = {}
        for start, (cost, parts) in layer.items():
            if start not in runs:
                runs[start] = _runs_from(start, order, cuts, fit, may_stray)
            for stop, part in runs[start]:
                known = following.get(stop)
                if known is None or cost + part.cost < known[0]:
                    following[stop] = cost + part.cost, (*parts, part)
        _, whole = following.pop(end, (0, None))
        layer = following
        if whole is not None:
            if best is None or _rank(whole) < _rank(best):
                best = whole
            used = sum(part.cost for part in best)
            if copies - len(best) >= PATIENCE or (copies == FEW and used * FEW_SUFFICE <= len(tree.parents)):
                break
    return None if best is None else _put_together(best, fit)


def depth_first(graph: Graph, tree: DeliveryTree, turn: int = 0) -> tuple[Node, ...]:
    """The tree's subscribers, those on one branch together. Each turn begins with another branch at every fork."""
    wanted = set(tree.subscribers)
    children: dict[Node, list[Node]] = {}
    for node, link in tree.parents.items():
        children.setdefault(graph.links[link][0], []).append(node)
    order = []
    stack = [tree.source]
    while stack:
        node = stack.pop()
        if node in wanted:
            order.append(node)
        below = children.get(node, [])
        first = turn % len(below) if below else 0
        stack += below[first:] + below[:first]
    return tuple(order)


def shared_links(graph: Graph, tree: DeliveryTree, order: Sequence[Node]) -> list[int]:
    """For each place in the order: links from the source that a cut before it makes two copies travel."""
    depth = {tree.source: 0}
    for node, link in tree.parents.items():
        depth[node] = depth[graph.links[link][0]] + 1
    shared = [0]
    for before, after in pairwise(order):
        way = {tree.source, before, *(graph.links[link][0] for link in tree.path(graph, before))}
        parting = after
        while parting not in way:
            parting = graph.links[tree.parents[parting]][0]
        shared.append(depth[parting])
    return shared


def _cuts(shared: Sequence[int]) -> list[int]:
    """Where the order may be cut, its two ends included."""
    count = len(shared)
    inner = range(1, count)
    if count > MAX_CUTS:
        # The cheapest place of each stretch, so that no run must become longer than a filter holds.
        width = -(-count // MAX_CUTS)
        inner_places = [
            min(range(start, min(start + width, count)), key=lambda place: (shared[place], place))
            for start in range(1, count, width)
        ]
    else:
        inner_places = list(inner)
    return [0, *inner_places, count]


def _runs_from(
    start: int, order: Sequence[Node], cuts: Sequence[int], fit: Fit, may_stray: bool
) -> list[tuple[int, PlannedFilter]]:
    """The longest run that begins at a cut and does not stray, and some a little shorter, each with its last cut."""
    known: dict[int, PlannedFilter | None] = {}

    def part_to(stop: int) -> PlannedFilter | None:
        if stop not in known:
            known[stop] = fit(tuple(order[cuts[start] : cuts[stop]]))
        return known[stop]

    def holds(stop: int) -> bool:
        part = part_to(stop)
        return part is not None and (may_stray or not part.is_too_stray)

    longest, beyond = start, len(cuts)
    while beyond - longest > 1:
        stop = min((longest + beyond) // 2, len(cuts) - 1)
        longest, beyond = (stop, beyond) if holds(stop) else (longest, stop)
    stops = range(max(start + 1, longest - SHORTER_RUNS), max(longest, start + 1) + 1)
    return [(stop, part) for stop in stops if (part := part_to(stop)) is not None]


def _put_together(parts: Sequence[PlannedFilter], fit: Fit) -> tuple[PlannedFilter, ...]:
    """Two copies become one where that uses no more links."""
    kept: list[PlannedFilter] = []
    for part in sorted(parts, key=lambda one: one.tree_links):
        for place, other in enumerate(kept):
            both = fit(other.subscribers + part.subscribers)
            if both is not None and both.cost <= other.cost + part.cost:
                kept[place] = both
                break
        else:
            kept.append(part)
    return tuple(kept)
