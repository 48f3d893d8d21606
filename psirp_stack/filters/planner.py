"""From a delivery tree to the filters that the publisher sends: one if possible, several if the tree asks for it."""

from collections.abc import Collection
from dataclasses import dataclass
from enum import Enum

from psirp_stack.filters.reach import Reach
from psirp_stack.filters.selection import choose_followed, choose_fpa, choose_fpr
from psirp_stack.filters.splitting import divisions
from psirp_stack.filters.tags import TagBook
from psirp_stack.filters.zfilter import FilterOverfullError, ZFilter
from psirp_stack.graph import DeliveryTree, Graph, Link, Node

DEFAULT_MAX_FILTERS = 16


class Selection(Enum):
    """How one of the eight candidates is chosen."""

    FIRST_TABLE = "one table"
    FPA = "fpa"
    FPR = "fpr"
    FOLLOWED = "followed"


@dataclass(frozen=True, slots=True)
class PlannedFilter:
    """One copy that the publisher sends."""

    zfilter: ZFilter
    subscribers: tuple[Node, ...]
    links_used: int
    """Links that this copy travels, false positives followed to their end."""


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
        self,
        graph: Graph,
        book: TagBook,
        *,
        selection: Selection = Selection.FOLLOWED,
        max_filters: int = DEFAULT_MAX_FILTERS,
        internal: bool = True,
        forbidden: Collection[Link] | None = None,
    ) -> None:
        """`internal`: filters also name the subscribers' internal links, as a running network needs.

        `forbidden`: links that a filter should above all not match (used by `Selection.FPR`).
        """
        if max_filters < 1:
            raise ValueError("at least one filter must be allowed")
        self.graph = graph
        self.book = book
        self.reach = Reach(graph, book)
        self.selection = selection
        self.max_filters = max_filters
        self.internal = internal
        self.forbidden = None if forbidden is None else frozenset(forbidden)
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
        single: PlannedFilter | None = None
        overfull: FilterOverfullError | None = None
        try:
            single = self._single(tree)
        except FilterOverfullError as error:
            overfull = error
        if self.max_filters == 1 or (single is not None and not self._worth_splitting(single, tree)):
            if single is None:
                raise overfull or AssertionError("no filter and no reason")
            return (single,)
        pair = self._pair(tree, None if single is None else single.links_used)
        if pair is not None:
            return pair
        if single is not None:
            return (single,)
        return self._several(tree, self.max_filters)

    def _worth_splitting(self, single: PlannedFilter, tree: DeliveryTree) -> bool:
        return self.selection is Selection.FOLLOWED and single.links_used > len(tree.parents)

    def _single(self, tree: DeliveryTree) -> PlannedFilter:
        named = self.book.named_by(tree, self.internal)
        try:
            match self.selection:
                case Selection.FOLLOWED:
                    zfilter, used = choose_followed(self.reach, tree, named)
                    return PlannedFilter(zfilter, tree.subscribers, used)
                case Selection.FPR:
                    zfilter = choose_fpr(self.reach, tree, named, self.forbidden)
                case Selection.FPA:
                    zfilter = choose_fpa(named)
                case Selection.FIRST_TABLE:
                    zfilter = ZFilter.of(named, 0).checked()
        except FilterOverfullError:
            self.counters.overfull += 1
            raise
        return PlannedFilter(zfilter, tree.subscribers, len(self.reach.links_used(zfilter, tree.source)))

    def _pair(self, tree: DeliveryTree, to_beat: int | None) -> tuple[PlannedFilter, ...] | None:
        """The division in two that uses the fewest links, if it uses fewer than `to_beat`."""
        best: tuple[PlannedFilter, ...] | None = None
        for sides in divisions(self.graph, tree):
            halves = [tree.narrowed(self.graph, side) for side in sides]
            least = sum(len(half.parents) for half in halves)
            if to_beat is not None and least >= to_beat:
                continue
            try:
                pair = tuple(self._single(half) for half in halves)
            except FilterOverfullError:
                continue
            used = sum(planned.links_used for planned in pair)
            if to_beat is None or used < to_beat:
                best, to_beat = pair, used
                if used == len(tree.parents):
                    break
        return best

    def _several(self, tree: DeliveryTree, allowed: int) -> tuple[PlannedFilter, ...]:
        """Halve until every part fits: only for trees too large for two filters."""
        try:
            return (self._single(tree),)
        except FilterOverfullError:
            if allowed < 2:
                raise
            sides = next(divisions(self.graph, tree), None)
            if sides is None:
                raise
        larger, smaller = sorted(
            (tree.narrowed(self.graph, side) for side in sides), key=lambda half: -len(half.parents)
        )
        first = self._several(smaller, allowed - 1)
        return first + self._several(larger, allowed - len(first))
