"""Virtual links: one id for a set of links that are often used together, such as a trunk.

They shrink filters and cost state: each node on a virtual link keeps one more id.
"""

import random
from collections.abc import Iterable

from psirp_stack.filters.tags import VirtualTag, random_tags
from psirp_stack.graph import DeliveryTree, Graph, Link

MAX_SUGGESTIONS = 256


class VirtualLinkError(ValueError):
    """A set of links that cannot be one virtual link."""


def virtual_link(graph: Graph, links: Iterable[Link], rng: random.Random) -> VirtualTag:
    """Give a set of directed links one id. They must form a tree: one way in, no node entered twice."""
    chosen = frozenset(links)
    if not chosen:
        raise VirtualLinkError("a virtual link needs at least one link")
    if not all(0 <= link < len(graph.links) for link in chosen):
        raise VirtualLinkError("a virtual link names a link that the graph does not have")
    heads = [graph.links[link][1] for link in chosen]
    roots = {graph.links[link][0] for link in chosen} - set(heads)
    if len(set(heads)) != len(heads):
        raise VirtualLinkError("two links of a virtual link lead to the same node")
    if len(roots) != 1:
        raise VirtualLinkError(f"a virtual link has one node where it starts; this set has {len(roots)}")
    return VirtualTag(random_tags(rng), chosen)


def common_trunks(graph: Graph, trees: Iterable[DeliveryTree], count: int) -> list[frozenset[Link]]:
    """Sets of adjoining links that the given trees only use together, those that save most ids first."""
    seen_in: dict[Link, list[int]] = {}
    for number, tree in enumerate(trees):
        for link in tree.links:
            seen_in.setdefault(link, []).append(number)
    chains: list[tuple[int, list[Link]]] = []
    followers = {link: _only_follower(graph, link, seen_in) for link in seen_in}
    led = {follower for follower in followers.values() if follower is not None}
    for start in sorted(seen_in):
        if start in led:
            continue
        chain = [start]
        while (following := followers[chain[-1]]) is not None and following not in chain:
            chain.append(following)
        if len(chain) > 1:
            chains.append(((len(chain) - 1) * len(seen_in[start]), chain))
    chains.sort(key=lambda scored: (-scored[0], scored[1]))
    return [frozenset(chain) for _, chain in chains[: min(count, MAX_SUGGESTIONS)]]


def _only_follower(graph: Graph, link: Link, seen_in: dict[Link, list[int]]) -> Link | None:
    """The link that every one of the trees takes next after this one, if it is used in just the same trees."""
    for following in graph.out_links[graph.links[link][1]]:
        if following != graph.reverse[link] and seen_in.get(following) == seen_in[link]:
            return following
    return None
