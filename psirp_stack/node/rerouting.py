"""A publisher's node keeps its filters true by itself: link state tells it what is gone before any manager can.

The topology manager says whom this node serves; along which links, this node can work out as well, since it knows the
same graph. So a link that dies costs no round trip to the manager, and nothing at all when there is no manager. What
the manager says later counts, as always.
"""

from dataclasses import dataclass

from identifiers import ItemId
from psirp_stack.control.known_graph import KnownGraph
from psirp_stack.control.messages import FilterGrant
from psirp_stack.control.tag_source import TagSource
from psirp_stack.filters.reach import Reach
from psirp_stack.filters.zfilter import ZFilter
from psirp_stack.topology.branches import BranchPlanner
from psirp_stack.topology.distances import Distances, edges_of


@dataclass(frozen=True, slots=True)
class Rerouted:
    """An item and the filters that it is to be sent along from now on."""

    item: ItemId
    filters: tuple[FilterGrant, ...]


class Rerouting:
    """Whom one node serves, and whether its filters still lead there."""

    def __init__(self, name: str, tags: TagSource) -> None:
        self.rerouted = 0
        """Items whose filters this node replaced by itself."""
        self._name = name
        self._tags = tags
        self._served: dict[ItemId, frozenset[str]] = {}
        self._granted: dict[ItemId, tuple[FilterGrant, ...]] = {}
        self._known: KnownGraph | None = None

    def granted(self, item: ItemId, filters: tuple[FilterGrant, ...]) -> None:
        """The topology manager's word."""
        self._served[item] = frozenset(name for grant in filters for name in grant.subscribers)
        self._granted[item] = filters

    def revoked(self, item: ItemId) -> None:
        self._served.pop(item, None)
        self._granted.pop(item, None)

    def filters_of(self, item: ItemId) -> tuple[FilterGrant, ...]:
        """Along which filters an item is sent."""
        return self._granted.get(item, ())

    def graph_changed(self, known: KnownGraph) -> list[Rerouted]:
        """What has to be sent otherwise now."""
        before, self._known = self._known, known
        if not self._served or before is None or self._name not in known.numbers:
            return []
        lost = edges_of(before).keys() - edges_of(known).keys()
        changed: list[Rerouted] = []
        checks = _Checks(known, self._tags, self._name)
        for item, served in self._served.items():
            filters = self._granted[item]
            reachable = frozenset(served & known.numbers.keys())
            missing = reachable.difference(*(grant.subscribers for grant in filters))
            if missing or (lost and not all(checks.is_whole(grant) for grant in filters)):
                planned = self._granted[item] = checks.plan(reachable)
                if planned != filters:
                    changed.append(Rerouted(item, planned))
        self.rerouted += len(changed)
        return changed


class _Checks:
    """What is worked out at most once for one graph."""

    def __init__(self, known: KnownGraph, tags: TagSource, name: str) -> None:
        self._known = known
        self._tags = tags
        self._name = name
        self._reach: Reach | None = None
        self._planner: BranchPlanner | None = None
        self._distances: Distances | None = None
        self._whole: dict[bytes, frozenset[int]] = {}
        self._plans: dict[frozenset[str], tuple[FilterGrant, ...]] = {}

    def is_whole(self, grant: FilterGrant) -> bool:
        """Whether a filter still leads to all whom it is for."""
        numbers = self._known.numbers
        if grant.onward or not numbers.keys() >= set(grant.subscribers):
            return False  # what nodes on the way do is planned anew, not followed
        return self._reached(grant.fid) >= {numbers[name] for name in grant.subscribers}

    def plan(self, subscribers: frozenset[str]) -> tuple[FilterGrant, ...]:
        others = subscribers - {self._name}
        if not others:
            return ()
        if self._planner is None or self._distances is None:
            self._planner = BranchPlanner(self._known, self._tags)
            self._distances = Distances(self._known)
        if others not in self._plans:
            self._plans[others] = self._planner.plan(self._distances.tree(self._name), others).grants
        return self._plans[others]

    def _reached(self, fid: bytes) -> frozenset[int]:
        if fid not in self._whole:
            graph = self._known.graph
            if self._reach is None:
                self._reach = Reach(graph, self._known.book(self._tags))
            used = self._reach.links_used(ZFilter.from_fid(fid), self._known.numbers[self._name], len(graph.links))
            self._whole[fid] = frozenset(graph.links[link][1] for link in used)
        return self._whole[fid]
