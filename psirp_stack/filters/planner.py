"""From a delivery tree to the filters that the publisher sends: one if possible, several if the tree asks for it."""

from dataclasses import dataclass

from psirp_stack.filters.division import PlannedFilter, divide
from psirp_stack.filters.reach import Reach
from psirp_stack.filters.selection import choose_followed
from psirp_stack.filters.tags import TagBook
from psirp_stack.filters.zfilter import FilterOverfullError
from psirp_stack.graph import DeliveryTree, Graph, Node

DEFAULT_MAX_FILTERS = 16


@dataclass(frozen=True, slots=True)
class FilterPlan:
    """All copies of one publication. A link that two copies travel costs twice."""

    filters: tuple[PlannedFilter, ...]
    tree_links: int

    @property
    def copies(self) -> int:
        return len(self.filters)

    @property
    def links_used(self) -> int:
        return sum(planned.links_used for planned in self.filters)

    @property
    def efficiency(self) -> float:
        """Tree links, each counted once, by links used, summed over the copies."""
        return self.tree_links / self.links_used if self.links_used else 1.0


@dataclass(slots=True)
class PlannerCounters:
    """What a planner has done so far."""

    planned: int = 0
    split: int = 0
    """Plans of more than one filter."""
    overfull: int = 0
    """Times a filter was refused because it would be more than half full."""
    refused: int = 0
    """Trees that got no plan at all."""


class FilterPlanner:
    """Builds filters for one network. Pure: the same tree always gets the same plan."""

    def __init__(
        self, graph: Graph, book: TagBook, *, max_filters: int = DEFAULT_MAX_FILTERS, internal: bool = True
    ) -> None:
        """`internal`: filters also name the subscribers' internal links, as a running network needs."""
        if max_filters < 1:
            raise ValueError("at least one filter must be allowed")
        self.graph = graph
        self.book = book
        self.reach = Reach(graph, book)
        self.max_filters = max_filters
        self.internal = internal
        self.counters = PlannerCounters()

    def plan(self, tree: DeliveryTree) -> FilterPlan:
        """The filters for the tree; `FilterOverfullError` when even the largest allowed number does not suffice."""
        if not tree.subscribers:
            return FilterPlan((), 0)
        try:
            filters = self._best(tree)
        except FilterOverfullError:
            self.counters.refused += 1
            raise
        self.counters.planned += 1
        self.counters.split += len(filters) > 1
        return FilterPlan(filters, len(tree.parents))

    def _best(self, tree: DeliveryTree) -> tuple[PlannedFilter, ...]:
        overfull: FilterOverfullError | None = None
        single: PlannedFilter | None = None
        try:
            single = self._single(tree)
        except FilterOverfullError as error:
            overfull = error
        if single is not None and (self.max_filters == 1 or single.links_used == single.tree_links):
            return (single,)
        if self.max_filters > 1:
            divided = divide(self.graph, tree, lambda nodes: self._part(tree, nodes), self.max_filters)
            if divided is not None:
                return divided
        if single is None:
            raise overfull or AssertionError("no filter and no reason")
        return (single,)

    def _part(self, tree: DeliveryTree, subscribers: tuple[Node, ...]) -> PlannedFilter | None:
        try:
            return self._single(tree.narrowed(self.graph, subscribers))
        except FilterOverfullError:
            return None

    def _single(self, tree: DeliveryTree) -> PlannedFilter:
        try:
            chosen = choose_followed(self.reach, tree, self.book.named_by(tree, self.internal))
        except FilterOverfullError:
            self.counters.overfull += 1
            raise
        return PlannedFilter(chosen.zfilter, tree.subscribers, chosen.links_used, len(tree.parents), chosen.returns)
