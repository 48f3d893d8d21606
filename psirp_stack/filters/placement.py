"""Ids chosen over the known topology, so that links which are tested against a filter rarely match by chance.

Four observations carry it:

- A link can only be a false positive where a packet passes: at a node of the tree, on a link that is not in the tree.
  How often a link is *used* and how often it is so *exposed* follows from the graph and its routing.
- A bit that belongs to one link alone never causes a false positive. There are 248 bits and often more links, so the
  links with the most to lose get a bit of their own, and the others share a pool.
- In the pool a link that is exposed often and used seldom can afford many bits: few filters pay for them, and each bit
  halves its false positives or better. A link that is used often gets few. So bits follow the logarithm of exposure
  by use, as in a weighted Bloom filter.
- There are eight tables and the sender names one. Publishers whose trees use the same links share a table made for
  them, so that in every table fewer links matter.

Nothing is tuned by hand for a network: use and exposure are computed from the graph, the rest follows.
"""

import math
import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import fmean

from psirp_stack.filters.tags import TagBook, random_tags
from psirp_stack.forwarding_model import FILTER_BITS, TABLES
from psirp_stack.graph import Graph, Node, Routing

GROUPS = (32, 24, 16, 12, 8)
"""Publisher and subscribers of the trees that ids are chosen for, one after the other until it is small enough."""
TOLERABLE_FALSE_POSITIVES = 10.0
"""Expected in a tree of a whole group. The sender's choice of the table and of the division removes about as many."""
MAX_PROFILED_SOURCES = 256
MAX_BITS_PER_TAG = 10
SMALLEST_POOL = 16
OWN_SHARES = (0.0, 0.06, 0.12, 0.25, 0.4, 0.55, 0.7, 0.85, 0.95)
"""Parts of the bits that may be given away one by one: the best of these is taken."""
POOL_FILLS = (0.3, 0.35, 0.4, 0.45, 0.48)
"""How full the pool may be in an average filter: the best of these is taken."""
FILL_STEPS = 9
CLUSTER_ROUNDS = 5
SMALLEST_CLUSTER = 1 / (4 * TABLES)
"""Fewer publishers than this share are no reason for a table of their own."""
DRAWS_PER_TAG = 32
DELIVERY_BITS = 8
RARE = 1e-6
USUAL_BITS = 4


@dataclass(frozen=True, slots=True)
class PlacementProfile:
    """How often each element (a link, or a node's internal link) is in a tree, or only tested beside one."""

    used: Sequence[float]
    exposed: Sequence[float]


@dataclass(frozen=True, slots=True)
class Layout:
    """Which elements have a bit of their own in a table, and how many bits the others have in the shared pool."""

    own: Sequence[int]
    shared: Sequence[int] = ()
    bits: Sequence[int] = ()
    """By shared element."""
    delivery: Sequence[int] = ()
    """Internal links, which share a few bits apart from all links."""
    expected_false_positives: float = 0.0


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
    if len(everything) <= FILTER_BITS:
        return Layout(everything)
    delivery = everything[links:]
    budget = FILTER_BITS - (DELIVERY_BITS if delivery else 0)
    if links <= budget:
        return Layout(everything[:links], delivery=delivery)
    best: Layout | None = None
    for share in OWN_SHARES:
        own = min(int(share * budget), budget - SMALLEST_POOL)
        order = _order_by_gain(list(everything[:links]), profile, own)
        for fill in POOL_FILLS:
            bits, cost = _weigh(profile, order[own:], budget - own, fill)
            if best is None or cost < best.expected_false_positives:
                best = Layout(order[:own], order[own:], bits, delivery, cost)
    if best is None:
        raise AssertionError("there is always a share to try")
    return best


def _weigh(profile: PlacementProfile, shared: Sequence[int], pool: int, fill: float) -> tuple[list[int], float]:
    """Bits for each shared element so that an average filter fills the pool as asked; expected false positives."""
    used = [profile.used[e] for e in shared]
    exposed = [profile.exposed[e] for e in shared]
    ratios = [math.log((x + RARE) / (u + RARE)) for x, u in zip(exposed, used, strict=True)]
    gain = 1 / -math.log(fill)
    wanted = -math.log(1 - fill) * pool

    def bits_at(shift: float) -> list[int]:
        return [min(MAX_BITS_PER_TAG, max(1, round((ratio + shift) * gain))) for ratio in ratios]

    low, high = -max(ratios), MAX_BITS_PER_TAG / gain - min(ratios)
    for _ in range(FILL_STEPS):
        middle = (low + high) / 2
        if sum(u * k for u, k in zip(used, bits_at(middle), strict=True)) > wanted:
            high = middle
        else:
            low = middle
    bits = bits_at(low)
    covered = 1 - math.exp(-sum(u * k for u, k in zip(used, bits, strict=True)) / pool)
    return bits, sum(x * covered**k for x, k in zip(exposed, bits, strict=True))


def _order_by_gain(elements: list[int], profile: PlacementProfile, own: int) -> list[int]:
    """Elements that would do most harm in the pool first.

    The pool's expected false positives grow with exposure and with use, so an element's share of the harm is its
    share of the pool's exposure plus, some bits being set for each use, a multiple of its share of the pool's use.
    """
    used, exposed = profile.used, profile.exposed
    order = elements
    for _ in range(2):
        by_exposure = 1 / (sum(exposed[e] for e in order[own:]) + RARE)
        by_use = USUAL_BITS / (sum(used[e] for e in order[own:]) + RARE)
        order = sorted(order, key=lambda e: -(exposed[e] * by_exposure + used[e] * by_use))
    return order


def draw_tags(layout: Layout, count: int, rng: random.Random) -> list[int]:
    """Tags of all elements in one table."""
    positions = list(range(FILTER_BITS))
    rng.shuffle(positions)
    tags = [0] * count
    if layout.delivery:
        apart = [positions.pop() for _ in range(DELIVERY_BITS)]
        for turn, element in enumerate(rng.sample(layout.delivery, len(layout.delivery))):
            tags[element] = 1 << apart[turn % DELIVERY_BITS]
    for element in layout.own:
        tags[element] = 1 << positions.pop()
    taken: set[int] = set()
    for element, bits in zip(layout.shared, layout.bits, strict=True):
        for _ in range(DRAWS_PER_TAG):
            tag = sum(1 << position for position in rng.sample(positions, bits))
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

    def nearest_of(centres: Sequence[tuple[dict[int, float], float]]) -> list[list[int]]:
        members: list[list[int]] = [[] for _ in centres]
        for member in everyone:
            members[min(range(len(centres)), key=lambda c: distance(member, centres[c]))].append(member)
        return members

    everyone = range(len(profiles))
    centres = [centre([rng.randrange(len(profiles))])]
    nearest = [distance(member, centres[0]) for member in everyone]
    while len(centres) < min(groups, len(profiles)):
        centres.append(centre([max(everyone, key=nearest.__getitem__)]))
        nearest = [min(nearest[member], distance(member, centres[-1])) for member in everyone]
    members: list[list[int]] = []
    for _ in range(CLUSTER_ROUNDS):
        before, members = members, nearest_of(centres)
        if members == before:
            break
        centres = [centre(group) if group else old for group, old in zip(members, centres, strict=True)]
    large = [c for c, group in zip(centres, members, strict=True) if len(group) >= SMALLEST_CLUSTER * len(profiles)]
    if len(large) < len(centres):
        members = nearest_of(large)
    return [group for group in members if group]


def share_tables(groups: Sequence[Sequence[int]]) -> list[int]:
    """Which group each table is made for: each group has one, and the large ones have those that are left."""
    given = [0] * len(groups)
    tables = []
    for _ in range(TABLES):
        group = max(range(len(groups)), key=lambda g: (given[g] == 0, len(groups[g]) / (given[g] + 1)))
        given[group] += 1
        tables.append(group)
    return tables


@dataclass(frozen=True, slots=True)
class PlacementCost:
    """What a placement came to."""

    group: int
    """Users of the trees that the ids were chosen for."""
    own_bits: tuple[int, ...]
    """By table, as are the others."""
    most_bits: tuple[int, ...]
    """Of one tag."""
    expected_false_positives: tuple[float, ...]


def place_tags(
    routings: Sequence[Routing], rng: random.Random, internal: bool = True, groups: Sequence[int] = GROUPS
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
    for group in groups:
        layouts = _layouts(elements, routings, sources, group, rng)
        expected = [layout.expected_false_positives for layout in layouts]
        if fmean(expected) <= TOLERABLE_FALSE_POSITIVES:
            break
    columns = [draw_tags(layout, elements.count, rng) for layout in layouts]
    by_element = list(zip(*columns, strict=True))
    book = TagBook(
        links=tuple(by_element[: len(graph.links)]),
        internal=tuple(random_tags(rng) if element is None else by_element[element] for element in elements.of_node),
    )
    cost = PlacementCost(
        group,
        own_bits=tuple(len(layout.own) for layout in layouts),
        most_bits=tuple(max(layout.bits, default=1) for layout in layouts),
        expected_false_positives=tuple(expected),
    )
    return book, cost


def _layouts(
    elements: Elements, routings: Sequence[Routing], sources: Sequence[Node], group: int, rng: random.Random
) -> list[Layout]:
    """One for each table. Tables of the same publishers have the same layout, and differ in what is drawn for it."""
    profiles = [
        mean_profile([profile_source(elements, routing, source, group) for routing in routings]) for source in sources
    ]
    if elements.count <= FILTER_BITS:
        return [choose_layout(profiles[0], len(elements.graph.links))] * TABLES
    groups = cluster(profiles, TABLES, rng)
    made = [
        choose_layout(mean_profile([profiles[member] for member in members]), len(elements.graph.links))
        for members in groups
    ]
    return [made[number] for number in share_tables(groups)]
