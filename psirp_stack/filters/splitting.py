"""Dividing a tree's subscribers over several filters, so that few links carry two copies.

Two copies share the links from the source to the node where their subscribers part. So the tree is first parted where
it first branches; a source that is a stub pays for its trunk twice, which no division can avoid.
"""

from collections.abc import Iterator

from psirp_stack.graph import DeliveryTree, Graph, Node

Division = tuple[tuple[Node, ...], tuple[Node, ...]]

MAX_DIVISIONS = 24
"""How many ways of parting one tree are looked at."""


def first_parts(graph: Graph, tree: DeliveryTree) -> list[list[Node]]:
    """The subscribers by branch of the first node where the tree branches or delivers; nearer parts first."""
    children: dict[Node, list[Node]] = {}
    for node, link in tree.parents.items():
        children.setdefault(graph.links[link][0], []).append(node)
    wanted = set(tree.subscribers)
    fork = tree.source
    while len(children.get(fork, ())) == 1 and (fork == tree.source or fork not in wanted):
        fork = children[fork][0]
    parts = [[fork]] if fork in wanted and fork != tree.source else []
    for child in children.get(fork, ()):
        below, stack = [], [child]
        while stack:
            node = stack.pop()
            if node in wanted:
                below.append(node)
            stack += children.get(node, ())
        parts.append(below)
    return parts


def divisions(graph: Graph, tree: DeliveryTree, limit: int = MAX_DIVISIONS) -> Iterator[Division]:
    """Ways to part the subscribers in two, the most even one without shared branches first."""
    if len(tree.subscribers) < 2:
        return
    parts = sorted(first_parts(graph, tree), key=len, reverse=True)
    seen: set[frozenset[Node]] = set()
    first = parts[0][0]
    for turn in range(limit - 1):
        # Turning the order sends the branches to other sides, so false positives between them differ.
        step = turn % len(parts)
        order = (
            parts[step:] + parts[:step] if turn < len(parts) else parts[step::2] + parts[:step] + parts[step + 1 :: 2]
        )
        sides: tuple[list[Node], list[Node]] = ([], [])
        for part in order:
            sides[len(sides[0]) > len(sides[1])].extend(part)
        if not sides[1]:
            break
        key = frozenset(sides[0] if first in sides[0] else sides[1])
        if key not in seen:
            seen.add(key)
            yield tuple(sides[0]), tuple(sides[1])
    # When one branch holds nearly everybody, part inside it: depth-first order keeps neighbours together.
    in_order = [node for part in parts for node in part]
    middle = len(in_order) // 2
    yield tuple(in_order[:middle]), tuple(in_order[middle:])
