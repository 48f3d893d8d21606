"""Ids chosen over the known topology, so that links which are tested against a filter rarely match by chance.

Three observations carry it:

- A link can only be a false positive where a packet passes: at a node of the tree, on a link that is not in the tree.
  How often a link is *used* and how often it is so *exposed* follows from the graph and its routing.
- A bit that belongs to one link alone never causes a false positive. There are 248 bits and often more links, so the
  links with the most to lose get a bit of their own and the others share a pool, k bits each. Pool size and k are
  those with the fewest expected false positives; where links are few, every link has its own bit.
- There are eight tables and the sender names one. Publishers whose trees use the same links share a table made for
  them, so that in every table fewer links matter.

Nothing is tuned by hand: use and exposure are computed from the graph, the rest follows.
"""

import math
import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from psirp_stack.filters.tags import TagBook, random_tags
from psirp_stack.forwarding_model import FILTER_BITS, TABLES
from psirp_stack.graph import Graph, Node, Routing

DEFAULT_GROUP = 32
"""Publisher and subscribers of the trees that ids are chosen for; smaller trees only get better."""
MAX_PROFILED_SOURCES = 512
MAX_POOL_BITS_PER_TAG = 5
POOL_STEP = 4
SMALLEST_POOL = 8
TARGET_FILL = 0.42
"""Expected fill that a table may have for a whole group, so that few trees come near one half."""
CLUSTER_ROUNDS = 8
DRAWS_PER_CODE = 32
DELIVERY_BITS = FILTER_BITS // 8
MAX_JOINT_FALSE_POSITIVES = 0.5
"""Up to here internal links share the links' bits; above, they are kept apart in `DELIVERY_BITS`."""
SPREAD_MATTERS_BELOW = 20
"""Above this many pool links in a tree their number is near enough to its mean."""
NEGLIGIBLE = 1e-12


@dataclass(frozen=True, slots=True)
class PlacementProfile:
    """How often each element (a link, or a node's internal link) is in a tree, or only tested beside one."""

    used: Sequence[float]
    exposed: Sequence[float]


@dataclass(frozen=True, slots=True)
class Layout:
    """Which elements have a bit of their own in a table, and how the others share the rest."""

    own: Sequence[int]
    shared: Sequence[int]
    bits_per_tag: int
    expected_false_positives: float
    delivery: Sequence[int] = ()
    """Internal links that were given a few bits apart from all links."""


class Elements:
    """What needs ids: the directed links and, when wanted, the nodes' internal links.

    The internal link of a node with a single neighbour needs no id of its own: such a node is on a tree only as a
    subscriber, so the id of the link that leads to it says the same.
    """

    def __init__(self, graph: Graph, internal: bool) -> None:
        self.graph = graph
        self.of_node: list[int | None] = [None] * len(graph.names)
        self.count = len(graph.links)
        if internal:
            for node, out in enumerate(graph.out_links):
                if len(out) == 1:
                    self.of_node[node] = graph.reverse[out[0]]
                else:
                    self.of_node[node] = self.count
                    self.count += 1


def profile_source(elements: Elements, routing: Routing, source: Node, group: int) -> PlacementProfile:
    """Exact for subscribers drawn evenly: a link is used when its subtree holds at least one of them."""
    graph = elements.graph
    tree = routing.whole_tree(source)
    others = len(tree.parents)
    subscribers = min(group - 1, others)
    below = dict.fromkeys(tree.parents, 1)
    for node, link in reversed(tree.parents.items()):
        parent = graph.links[link][0]
        if parent != source:
            below[parent] += below[node]
    needed = [_chance_of_any(others, size, subscribers) for size in range(others + 1)]
    used = [0.0] * elements.count
    exposed = [0.0] * elements.count
    for node, link in tree.parents.items():
        used[link] = needed[below[node]]
    for node, out in enumerate(graph.out_links):
        if node != source and node not in below:
            continue
        visited = 1.0 if node == source else needed[below[node]]
        arrival = tree.parents.get(node, -1)
        for link in out:
            if graph.reverse[link] != arrival:
                exposed[link] = visited - used[link]
        element = elements.of_node[node]
        if element is not None and element >= len(graph.links) and node != source:
            used[element] = subscribers / others
            exposed[element] = visited - used[element]
    return PlacementProfile(used, exposed)


def _chance_of_any(population: int, marked: int, drawn: int) -> float:
    """Chance that at least one of `marked` is among `drawn` of `population`."""
    if population - marked < drawn:
        return 1.0
    lg = math.lgamma
    none = lg(population - marked + 1) - lg(population - marked - drawn + 1)
    none -= lg(population + 1) - lg(population - drawn + 1)
    return 1.0 - math.exp(none)


def mean_profile(profiles: Sequence[PlacementProfile]) -> PlacementProfile:
    share = 1 / len(profiles)
    return PlacementProfile(
        used=[sum(column) * share for column in zip(*(profile.used for profile in profiles), strict=True)],
        exposed=[sum(column) * share for column in zip(*(profile.exposed for profile in profiles), strict=True)],
    )


def choose_layout(profile: PlacementProfile, links: int) -> Layout:
    """How one table's bits are shared out. Elements from number `links` on are internal links.

    A false match of an internal link costs no link, only a look by the node's own stack, which has no such
    subscription and drops the packet. So where bits are short, internal links may get in each other's way but
    not in the links' way.
    """
    everything = range(len(profile.used))
    joint = _best_layout(everything, profile, FILTER_BITS)
    if joint.expected_false_positives <= MAX_JOINT_FALSE_POSITIVES or links == len(everything):
        return joint
    apart = _best_layout(range(links), profile, FILTER_BITS - DELIVERY_BITS)
    return replace(apart, delivery=everything[links:])


def _best_layout(chosen: Sequence[int], profile: PlacementProfile, budget: int) -> Layout:
    """The pool size and bits per tag with the fewest expected false positives among `budget` bits."""
    used, exposed = profile.used, profile.exposed
    elements = sorted(chosen, key=lambda e: (-used[e], -exposed[e]))
    if len(elements) <= budget:
        return Layout(elements, (), 1, 0.0)
    best: tuple[bool, float, Layout] | None = None
    for bits in range(1, MAX_POOL_BITS_PER_TAG + 1):
        for pool in range(SMALLEST_POOL, budget + 1, POOL_STEP):
            order = _order_by_gain(elements, profile, budget - pool, bits)
            own, shared = order[: budget - pool], order[budget - pool :]
            expected_use = sum(used[e] for e in shared)
            cost = sum(exposed[e] for e in shared) * _mean_match(expected_use, pool, bits)
            fill = sum(used[e] for e in own) + pool * (1 - (1 - bits / pool) ** expected_use)
            too_full = fill > TARGET_FILL * budget
            rank = fill if too_full else cost
            if best is None or (too_full, rank) < best[:2]:
                best = too_full, rank, Layout(own, shared, bits, cost)
    if best is None:
        raise AssertionError("there is always a pool size to try")
    return best[2]


def _order_by_gain(elements: list[int], profile: PlacementProfile, own: int, bits: int) -> list[int]:
    """Elements that would do most harm in the pool first.

    The pool's expected false positives are exposure times (use)^bits, so an element's share of the harm is its
    share of the pool's exposure plus `bits` times its share of the pool's use.
    """
    used, exposed = profile.used, profile.exposed
    order = elements
    for _ in range(2):
        exposure = sum(exposed[e] for e in order[own:]) + NEGLIGIBLE
        use = sum(used[e] for e in order[own:]) + NEGLIGIBLE
        by_exposure, by_use = 1 / exposure, bits / use
        order = sorted(order, key=lambda e: -(exposed[e] * by_exposure + used[e] * by_use))
    return order


def _mean_match(expected_use: float, pool: int, bits: int) -> float:
    """Chance that a tag of the pool is covered, when the number of pool links in a tree is Poisson."""
    if expected_use > SPREAD_MATTERS_BELOW:
        return float((1 - (1 - bits / pool) ** expected_use) ** bits)
    total, chance = 0.0, math.exp(-expected_use)
    for links in range(3 * SPREAD_MATTERS_BELOW):
        total += chance * (1 - (1 - bits / pool) ** links) ** bits
        chance *= expected_use / (links + 1)
    return total


def draw_tags(layout: Layout, count: int, rng: random.Random) -> list[int]:
    """Tags of all elements in one table."""
    positions = list(range(FILTER_BITS))
    rng.shuffle(positions)
    tags = [0] * count
    if layout.delivery:
        apart = [positions.pop() for _ in range(DELIVERY_BITS)]
        for turn, element in enumerate(rng.sample(layout.delivery, len(layout.delivery))):
            tags[element] = 1 << apart[turn % DELIVERY_BITS]
    for element, position in zip(layout.own, positions, strict=False):
        tags[element] = 1 << position
    pool = positions[len(layout.own) :]
    taken: set[int] = set()
    for element in layout.shared:
        for _ in range(DRAWS_PER_CODE):
            tag = sum(1 << position for position in rng.sample(pool, layout.bits_per_tag))
            if tag not in taken:
                break
        taken.add(tag)
        tags[element] = tag
    return tags


def cluster(profiles: Sequence[PlacementProfile], groups: int, rng: random.Random) -> list[list[int]]:
    """Group publishers whose trees use the same links (k-means on use, started from far-apart publishers)."""
    vectors = [{e: value for e, value in enumerate(p.used) if value > 0} for p in profiles]

    def centre(members: Iterable[int]) -> tuple[dict[int, float], float]:
        total: dict[int, float] = {}
        chosen = list(members)
        for member in chosen:
            for e, value in vectors[member].items():
                total[e] = total.get(e, 0.0) + value / len(chosen)
        return total, sum(value * value for value in total.values())

    def distance(member: int, middle: tuple[dict[int, float], float]) -> float:
        values, norm = middle
        get = values.get
        return norm + sum(value * (value - 2 * get(e, 0.0)) for e, value in vectors[member].items())

    everyone = range(len(profiles))
    centres = [centre([rng.randrange(len(profiles))])]
    nearest = [distance(member, centres[0]) for member in everyone]
    while len(centres) < min(groups, len(profiles)):
        centres.append(centre([max(everyone, key=nearest.__getitem__)]))
        nearest = [min(nearest[member], distance(member, centres[-1])) for member in everyone]
    members: list[list[int]] = []
    for _ in range(CLUSTER_ROUNDS):
        before = members
        members = [[] for _ in centres]
        for member in everyone:
            members[min(range(len(centres)), key=lambda c: distance(member, centres[c]))].append(member)
        if members == before:
            break
        centres = [centre(group) if group else old for group, old in zip(members, centres, strict=True)]
    return [group for group in members if group]


@dataclass(frozen=True, slots=True)
class PlacementCost:
    """What a placement came to, per table."""

    own_bits: tuple[int, ...]
    bits_per_shared_tag: tuple[int, ...]
    expected_false_positives: tuple[float, ...]


def place_tags(
    routings: Sequence[Routing], rng: random.Random, group: int = DEFAULT_GROUP, internal: bool = True
) -> tuple[TagBook, PlacementCost]:
    """Choose all ids of a network.

    `routings` are the ways its ties may be broken: one when the topology manager decides once. With
    `internal` false, internal ids are drawn as in LIPSIN and take no part in the plan.
    """
    graph = routings[0].graph
    elements = Elements(graph, internal)
    sources = list(range(len(graph.names)))
    if len(sources) > MAX_PROFILED_SOURCES:
        sources = sorted(rng.sample(sources, MAX_PROFILED_SOURCES))
    profiles = [
        mean_profile([profile_source(elements, routing, source, group) for routing in routings]) for source in sources
    ]
    groups = [list(range(len(profiles)))] if elements.count <= FILTER_BITS else cluster(profiles, TABLES, rng)
    layouts = [
        choose_layout(mean_profile([profiles[member] for member in members]), len(graph.links)) for members in groups
    ]
    # With fewer groups than tables, the remaining tables draw the same layouts again.
    by_table = [layouts[table % len(layouts)] for table in range(TABLES)]
    columns = [draw_tags(layout, elements.count, rng) for layout in by_table]
    by_element = list(zip(*columns, strict=True))
    book = TagBook(
        links=tuple(by_element[: len(graph.links)]),
        internal=tuple(random_tags(rng) if element is None else by_element[element] for element in elements.of_node),
    )
    cost = PlacementCost(
        own_bits=tuple(len(layout.own) for layout in by_table),
        bits_per_shared_tag=tuple(layout.bits_per_tag if layout.shared else 0 for layout in by_table),
        expected_false_positives=tuple(layout.expected_false_positives for layout in by_table),
    )
    return book, cost
