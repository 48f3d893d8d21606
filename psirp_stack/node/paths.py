"""Which links an item's filters light up: those of the delivery tree, and those that match by mistake.

A node that publishes the item shows the filters it was given. Any other plans them as the topology manager does: all
nodes know the same graph and the same tags, and planning has no chance in it.
"""

import json
from typing import TYPE_CHECKING

from identifiers import Identifier, ItemId
from psirp_stack.control.messages import FilterGrant
from psirp_stack.control.relay_frames import NO_FILTER
from psirp_stack.filters.reach import Reach
from psirp_stack.filters.zfilter import ZFilter
from psirp_stack.graph import DeliveryTree
from psirp_stack.node.attachment import AskPaths
from psirp_stack.topology.branches import BranchPlanner
from psirp_stack.topology.distances import UNREACHABLE, Distances

if TYPE_CHECKING:
    from psirp_stack.node.core import Node

MAX_PUBLISHERS = 16
"""More are not looked at: each costs a search through the graph."""


def describe_paths(node: "Node", asked: AskPaths) -> str:
    """One JSON object: filters with their publisher, fill, subscribers, links and mistaken links."""
    known = node.link_state.graph()
    graph, numbers = known.graph, known.numbers
    book = known.book(node.settings.tags)
    reach = Reach(graph, book)
    distances = Distances(known)
    planner = BranchPlanner(known, node.settings.tags)
    publishers = sorted({name for name in asked.publishers if name in numbers})[:MAX_PUBLISHERS]
    served: dict[str, set[str]] = {}
    for subscriber in set(asked.subscribers) & numbers.keys():
        hops, nearest = min(
            ((distances.hops(name, subscriber), name) for name in publishers), default=(UNREACHABLE, "")
        )
        if hops < UNREACHABLE and nearest != subscriber:
            served.setdefault(nearest, set()).add(subscriber)
    granted = node.rerouting.filters_of(ItemId(Identifier(asked.sid), Identifier(asked.rid)))
    filters: list[dict[str, object]] = []
    for publisher, subscribers in sorted(served.items()):
        tree = distances.tree(publisher)
        own = publisher == node.name and bool(granted)
        grants = granted if own else planner.plan(tree, subscribers).grants
        for grant in grants:
            filters.append(_filter(reach, tree, publisher, grant) | {"as_sent": own})
    return json.dumps({"filters": filters, "left_out": max(0, len(set(asked.publishers)) - MAX_PUBLISHERS)})


def _filter(reach: Reach, tree: DeliveryTree, publisher: str, grant: FilterGrant) -> dict[str, object]:
    graph = reach.graph
    numbers = {name: number for number, name in enumerate(graph.names)}
    subscribers = [numbers[name] for name in grant.subscribers if name in numbers]
    wanted = set(tree.narrowed(graph, sorted(subscribers)).links)
    steps = [] if grant.fid == NO_FILTER else [(publisher, grant.fid)]
    steps += [(onward.station, onward.fid) for onward in grant.onward if onward.station in numbers]
    used: set[int] = set()
    for station, fid in steps:
        # How wrapped frames come to a station is what nodes on the way decide: along the tree, as long as it stands.
        used |= reach.links_used(ZFilter.from_fid(fid), numbers[station], limit=len(graph.links))
        if station != publisher:
            used |= wanted & set(tree.narrowed(graph, [numbers[station]]).links)

    def named(links: set[int]) -> list[list[str]]:
        return [[graph.names[tail], graph.names[head]] for tail, head in (graph.links[link] for link in sorted(links))]

    return {
        "publisher": publisher,
        "subscribers": list(grant.subscribers),
        "fill": round(max(ZFilter.from_fid(fid).fill for _, fid in steps), 3),
        "links": named(wanted & used),
        "mistaken": named(used - wanted),
        "missing": named(wanted - used),
        "stations": [onward.station for onward in grant.onward],
    }
