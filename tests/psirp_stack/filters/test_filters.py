"""Filters on generated graphs: no false negatives, the half-full rule, selection, splitting, counting."""

import random
from collections import deque
from dataclasses import dataclass

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from psirp_stack.control.known_graph import path_filter
from psirp_stack.control.tag_source import PlacedTags
from psirp_stack.filters.division import PlannedFilter, depth_first, divide, shared_links
from psirp_stack.filters.placement import (
    DELIVERY_BITS,
    MAX_BITS_PER_TAG,
    Elements,
    PlacementProfile,
    choose_layout,
    cluster,
    draw_tags,
    mean_profile,
    place_tags,
    profile_source,
    share_tables,
)
from psirp_stack.filters.planner import FilterPlanner
from psirp_stack.filters.reach import Reach
from psirp_stack.filters.selection import candidates, choose_followed, choose_fpa, choose_fpr
from psirp_stack.filters.tags import TagBook, forwarding_tables, random_book, random_tag
from psirp_stack.filters.zfilter import FilterOverfullError, ZFilter
from psirp_stack.forwarding_model import FILTER_BITS, MAX_FILTER_FILL, TABLES, TAG_BITS
from psirp_stack.graph import DeliveryTree, Graph, Routing, backbone_graph, grid_graph


@st.composite
def trees(draw: st.DrawFn, most_nodes: int = 40) -> tuple[Graph, DeliveryTree, random.Random]:
    nodes = draw(st.integers(3, most_nodes))
    links = draw(st.integers(nodes - 1, min(nodes * (nodes - 1) // 2, 3 * nodes)))
    seed = draw(st.integers(0, 2**32))
    graph = backbone_graph(nodes, links, seed)
    rng = random.Random(seed)
    users = rng.sample(range(nodes), draw(st.integers(2, nodes)))
    return graph, Routing(graph, seed).delivery_tree(users[0], users[1:]), rng


def brute_force_links(graph: Graph, book: TagBook, zfilter: ZFilter, source: int) -> set[tuple[int, int]]:
    """The plainest simulation: packets in a queue, names of nodes, all links looked at for every arrival."""
    used: set[tuple[int, int]] = set()
    packets: deque[tuple[int, int | None]] = deque([(source, None)])
    while packets:
        node, came_from = packets.popleft()
        for link, (tail, head) in enumerate(graph.links):
            tag = book.links[link][zfilter.table]
            if tail == node and head != came_from and zfilter.bits | tag == zfilter.bits and (tail, head) not in used:
                used.add((tail, head))
                packets.append((head, node))
    return used


@settings(deadline=None)
@given(trees(), st.booleans(), st.booleans())
def test_every_plan_reaches_every_subscriber(
    case: tuple[Graph, DeliveryTree, random.Random], internal: bool, placed: bool
) -> None:
    graph, tree, rng = case
    book = place_tags([Routing(graph)], rng)[0] if placed else random_book(graph, rng)
    planner = FilterPlanner(graph, book, internal=internal)
    plan = planner.plan(tree)
    reach = Reach(graph, book)
    covered: list[int] = []
    for planned in plan.filters:
        assert planned.zfilter.bits_set <= MAX_FILTER_FILL
        part = tree.narrowed(graph, planned.subscribers)
        assert all(planned.zfilter.names(book.links[link]) for link in part.links)
        used = reach.links_used(planned.zfilter, tree.source)
        assert set(part.links) <= used
        assert len(used) == planned.links_used
        if internal:
            assert set(planned.subscribers) <= reach.delivered(planned.zfilter, tree.source)
        covered += planned.subscribers
    assert sorted(covered) == sorted(tree.subscribers)
    assert plan.links_used >= plan.tree_links == len(tree.parents)
    assert 0 < plan.efficiency <= 1
    assert planner.counters.planned == 1
    assert planner.counters.split == (plan.copies > 1)


@settings(deadline=None)
@given(trees(25), st.integers(0, TABLES - 1), st.integers(0, 120))
def test_links_used_agree_with_brute_force(
    case: tuple[Graph, DeliveryTree, random.Random], table: int, more_bits: int
) -> None:
    graph, tree, rng = case
    book = random_book(graph, rng)
    # Extra bits make many false positives, loops included.
    noise = sum(1 << position for position in rng.sample(range(FILTER_BITS), more_bits))
    zfilter = ZFilter(ZFilter.of(book.named_by(tree), table).bits | noise, table)
    used = Reach(graph, book).links_used(zfilter, tree.source)
    assert {graph.links[link] for link in used} == brute_force_links(graph, book, zfilter, tree.source)


@settings(deadline=None)
@given(trees(25))
def test_false_positives_are_counted_as_defined(case: tuple[Graph, DeliveryTree, random.Random]) -> None:
    graph, tree, rng = case
    book = random_book(graph, rng)
    zfilter = ZFilter.of(book.named_by(tree), 3)
    tested = hits = 0
    on_tree = {tree.source} | {graph.links[link][1] for link in tree.links}
    for link, (tail, _) in enumerate(graph.links):
        if tail in on_tree and link not in tree.links and graph.reverse[link] not in tree.links:
            tested += 1
            hits += zfilter.bits & book.links[link][3] == book.links[link][3]
    found = Reach(graph, book).false_positives(zfilter, tree)
    assert (found.hits, found.tests) == (hits, tested)


@settings(deadline=None)
@given(trees(30))
def test_selection_keeps_the_best_candidate(case: tuple[Graph, DeliveryTree, random.Random]) -> None:
    graph, tree, rng = case
    book = random_book(graph, rng)
    reach = Reach(graph, book)
    named = book.named_by(tree, internal=False)
    fit = [candidate for candidate in candidates(named) if candidate.bits_set <= MAX_FILTER_FILL]
    if not fit:
        with pytest.raises(FilterOverfullError):
            choose_fpa(named)
        return
    assert choose_fpa(named).bits_set == min(candidate.bits_set for candidate in fit)
    least = min(reach.false_positives(candidate, tree).hits for candidate in fit)
    assert reach.false_positives(choose_fpr(reach, tree, named), tree).hits == least
    chosen = choose_followed(reach, tree, named)

    def followed(candidate: ZFilter) -> tuple[bool, int]:
        used = reach.links_used(candidate, tree.source)
        stray = used - set(tree.links)
        return any(graph.links[link][1] in {tree.source, *tree.parents} for link in stray), len(used)

    assert (chosen.returns, chosen.links_used) == followed(chosen.zfilter) == min(map(followed, fit))


def test_fpr_can_be_asked_to_spare_chosen_links() -> None:
    graph = grid_graph(6, 6)
    rng = random.Random(5)
    book = random_book(graph, rng)
    reach = Reach(graph, book)
    tree = Routing(graph).delivery_tree(0, [35, 30, 17, 23, 11])
    named = book.named_by(tree)
    assert any(not candidate.overfull for candidate in candidates(named))
    spared = 0
    for link in range(len(graph.links)):
        if link in tree.links:
            continue
        matching = [candidate for candidate in candidates(named) if candidate.names(book.links[link])]
        if matching:
            spared += 1
            assert not choose_fpr(reach, tree, named, {link}).names(book.links[link])
    assert spared > 0, "the case never came up"


def test_fpa_reckons_with_different_tag_sizes() -> None:
    graph = grid_graph(4, 4)
    bits = (2, 5, 5, 5, 5, 5, 5, 12)
    book = random_book(graph, random.Random(2), bits)
    assert [tag.bit_count() for tag in book.links[0]] == list(bits)
    tree = Routing(graph).delivery_tree(0, [3, 12])
    # Two bits a tag make the emptiest filter but the worst rate: (12/248)^2 against about (30/248)^5.
    assert choose_fpa(book.named_by(tree, internal=False)).table != 0


def test_a_tree_too_large_is_refused_or_split() -> None:
    graph = grid_graph(10, 10)
    book = random_book(graph, random.Random(1))
    tree = Routing(graph).delivery_tree(0, range(1, 100))
    single = FilterPlanner(graph, book, max_filters=1)
    with pytest.raises(FilterOverfullError, match=r"of 248 bits set; at most 124 may be"):
        single.plan(tree)
    assert (single.counters.refused, single.counters.overfull, single.counters.planned) == (1, 1, 0)
    many = FilterPlanner(graph, book)
    plan = many.plan(tree)
    assert plan.copies > 2
    assert (many.counters.refused, many.counters.split) == (0, 1)
    assert sorted(node for planned in plan.filters for node in planned.subscribers) == list(range(1, 100))
    few = FilterPlanner(graph, book, max_filters=3)
    with pytest.raises(FilterOverfullError):
        few.plan(tree)


def test_a_path_too_long_for_any_filter_is_refused() -> None:
    graph = grid_graph(150, 1)
    planner = FilterPlanner(graph, random_book(graph, random.Random(1)))
    with pytest.raises(FilterOverfullError):
        planner.plan(Routing(graph).delivery_tree(0, [149]))
    assert planner.counters.refused == 1


@given(trees(), st.integers(0, 5))
def test_depth_first_order_has_every_subscriber_once_and_branches_together(
    case: tuple[Graph, DeliveryTree, random.Random], turn: int
) -> None:
    graph, tree, _ = case
    order = depth_first(graph, tree, turn)
    assert sorted(order) == sorted(tree.subscribers)
    for node in tree.parents:
        below = [place for place, subscriber in enumerate(order) if node in ways(graph, tree, subscriber)]
        assert below == list(range(below[0], below[-1] + 1)) if below else True
    shared = shared_links(graph, tree, order)
    for place in range(1, len(order)):
        left, right = (
            tree.narrowed(graph, part).links for part in (order[place - 1 : place], order[place : place + 1])
        )
        assert shared[place] == len(set(left) & set(right))


def ways(graph: Graph, tree: DeliveryTree, subscriber: int) -> set[int]:
    return {graph.links[link][1] for link in tree.path(graph, subscriber)}


@given(trees(most_nodes=14), st.integers(1, 4))
def test_a_division_serves_everybody_once_and_no_run_is_overfull(
    case: tuple[Graph, DeliveryTree, random.Random], holds: int
) -> None:
    """With a filter that holds a number of subscribers, as many filters are made as that takes, and none needlessly."""
    graph, tree, _ = case

    def fit(nodes: tuple[int, ...]) -> PlannedFilter | None:
        links = len(tree.narrowed(graph, nodes).parents)
        return None if len(nodes) > holds else PlannedFilter(ZFilter(0, 0), nodes, links, links)

    enough = -(-len(tree.subscribers) // holds)
    parts = divide(graph, tree, fit, len(tree.subscribers))
    assert parts is not None
    assert sorted(node for part in parts for node in part.subscribers) == sorted(tree.subscribers)
    assert len(parts) >= enough
    if enough > 1:
        assert divide(graph, tree, fit, enough - 1) is None


def test_a_branching_source_is_divided_without_shared_links() -> None:
    graph = Graph.from_edges(list("sabcd"), [(0, 1), (0, 2), (1, 3), (2, 4)])
    tree = Routing(graph).delivery_tree(0, [3, 4])
    assert shared_links(graph, tree, depth_first(graph, tree)) == [0, 0]


def test_no_subscribers_need_no_filter() -> None:
    graph = grid_graph(2, 2)
    planner = FilterPlanner(graph, random_book(graph, random.Random(1)))
    assert planner.plan(Routing(graph).delivery_tree(0, [0])).filters == ()


@given(st.integers(0, (1 << FILTER_BITS) - 1), st.integers(0, TABLES - 1))
def test_fid_round_trip(bits: int, table: int) -> None:
    zfilter = ZFilter(bits, table)
    fid = zfilter.to_fid()
    assert len(fid) == 32
    assert ZFilter.from_fid(fid) == zfilter
    assert zfilter.overfull == (bits.bit_count() > 124)


@pytest.mark.parametrize("fid", [b"", bytes(31), bytes(33), bytes(31) + b"\x08", b"\xff" * 32])
def test_bad_fids_are_refused(fid: bytes) -> None:
    with pytest.raises(ValueError, match=r"bytes|table index"):
        ZFilter.from_fid(fid)


def test_the_half_full_bound_is_exact() -> None:
    assert ZFilter((1 << 124) - 1, 0).checked().bits_set == 124
    with pytest.raises(FilterOverfullError) as caught:
        ZFilter((1 << 125) - 1, 0).checked()
    assert caught.value.bits_set == 125


def test_random_tags_have_five_bits() -> None:
    rng = random.Random(3)
    assert {random_tag(rng).bit_count() for _ in range(200)} == {TAG_BITS}


def test_an_empty_tag_is_refused() -> None:
    with pytest.raises(ValueError, match="at least one"):
        TagBook(links=((0,) * TABLES,), internal=())


def test_forwarding_tables_follow_a_plan() -> None:
    """Walk a filter through the nodes' own tables: the same links as the planner reckons with."""
    graph = backbone_graph(40, 70, 4)
    book = random_book(graph, random.Random(4))
    tables = forwarding_tables(graph, book)
    tree = Routing(graph).delivery_tree(3, [9, 20, 31, 38])
    plan = FilterPlanner(graph, book).plan(tree)
    for planned in plan.filters:
        used, delivered, arrivals = set(), set(), [(tree.source, -1)]
        while arrivals:
            node, arrival = arrivals.pop()
            if planned.zfilter.names(tables[node].internal) and node != tree.source:
                delivered.add(node)
            for number, tags in tables[node].links.items():
                link = graph.out_links[node][number]
                assert tables[node].incoming[number] == book.links[graph.reverse[link]]
                if planned.zfilter.names(tags) and graph.reverse[link] != arrival and link not in used:
                    used.add(link)
                    arrivals.append((graph.links[link][1], link))
        assert len(used) == planned.links_used
        assert delivered >= set(planned.subscribers)


def test_few_links_have_bits_of_their_own_and_no_false_positives() -> None:
    graph = backbone_graph(60, 110, 9)
    routing = Routing(graph, 9)
    book, cost = place_tags([routing], random.Random(9), internal=False)
    assert set(cost.own_bits) == {220}
    for table in range(TABLES):
        tags = [book.links[link][table] for link in range(220)]
        assert all(tag.bit_count() == 1 for tag in tags)
        assert len(set(tags)) == 220
    planner = FilterPlanner(graph, book, internal=False)
    assert planner.plan(routing.delivery_tree(0, range(1, 40))).efficiency == 1.0


def test_links_keep_bits_of_their_own_when_internal_links_do_not_fit_beside_them() -> None:
    graph = backbone_graph(65, 108, 9)
    book, _ = place_tags([Routing(graph)], random.Random(9))
    assert len(graph.links) < FILTER_BITS < len(graph.links) + len(graph.names)
    assert len({tags[0] for tags in book.links}) == len(graph.links)
    assert FilterPlanner(graph, book).plan(Routing(graph).delivery_tree(0, range(1, 40))).efficiency == 1.0


def test_use_of_links_is_the_measured_frequency() -> None:
    graph = backbone_graph(25, 40, 6)
    routing = Routing(graph, 6)
    profile = profile_source(Elements(graph, internal=True), routing, 4, group=6)
    rng = random.Random(6)
    rounds = 3000
    used = [0] * len(graph.links)
    exposed = [0] * len(graph.links)
    for _ in range(rounds):
        tree = routing.delivery_tree(4, rng.sample([node for node in range(25) if node != 4], 5))
        for node in (tree.source, *tree.parents):
            for link in graph.out_links[node]:
                if link in tree.links:
                    used[link] += 1
                elif graph.reverse[link] not in tree.links:
                    exposed[link] += 1
    for link in range(len(graph.links)):
        assert profile.used[link] == pytest.approx(used[link] / rounds, abs=0.04)
        assert profile.exposed[link] == pytest.approx(exposed[link] / rounds, abs=0.04)


def test_many_links_share_a_pool_with_different_tags() -> None:
    count = 700
    profile = PlacementProfile([1 / (1 + e) for e in range(count)], [0.5] * count)
    layout = choose_layout(mean_profile([profile, profile]), count)
    assert sorted((*layout.own, *layout.shared)) == list(range(count))
    tags = draw_tags(layout, count, random.Random(1))
    assert all(tags)
    own = [tags[e] for e in layout.own]
    pool = 0
    for e, bits in zip(layout.shared, layout.bits, strict=True):
        assert tags[e].bit_count() == bits <= MAX_BITS_PER_TAG
        pool |= tags[e]
    assert all(tag.bit_count() == 1 and not tag & pool for tag in own)
    assert len(set(own)) == len(own)
    assert 0 in layout.own, "the most used link does not share"


def test_the_less_a_link_is_used_the_more_bits_it_can_afford() -> None:
    often, seldom = [0.2] * 450, [0.002] * 450
    layout = choose_layout(PlacementProfile(often + seldom, [0.5] * 900), 900)
    bits = dict(zip(layout.shared, layout.bits, strict=True))
    assert max(bits[e] for e in bits if e < 450) < min(bits[e] for e in bits if e >= 450)


def test_scarce_bits_keep_internal_links_apart() -> None:
    count, links = 900, 700
    layout = choose_layout(PlacementProfile([0.1] * count, [0.5] * count), links)
    assert list(layout.delivery) == list(range(links, count))
    tags = draw_tags(layout, count, random.Random(1))
    of_links = 0
    for tag in tags[:links]:
        of_links |= tag
    assert all(tag.bit_count() == 1 and not tag & of_links for tag in tags[links:])
    assert len(set(tags[links:])) == DELIVERY_BITS


def test_a_few_odd_publishers_are_no_reason_for_a_table() -> None:
    alike = [PlacementProfile([1.0, 0.0, 0.0], [0.0] * 3)] * 60 + [PlacementProfile([0.0, 1.0, 0.0], [0.0] * 3)] * 40
    odd = PlacementProfile([0.0, 0.0, 1.0], [0.0] * 3)
    groups = cluster([*alike, odd], 3, random.Random(1))
    assert sorted(map(len, groups)) in ([40, 61], [41, 60])
    assert sorted(share_tables(groups).count(group) for group in range(2)) in ([3, 5], [4, 4])


@dataclass
class Walked:
    """What planners did on the same trees, as the plainest simulation sees it."""

    needed: int = 0
    used: int = 0
    copies: int = 0
    most_copies: int = 0

    def walk(self, graph: Graph, planner: FilterPlanner, tree: DeliveryTree) -> None:
        plan = planner.plan(tree)
        self.needed += len(tree.parents)
        self.copies += plan.copies
        self.most_copies = max(self.most_copies, plan.copies)
        for planned in plan.filters:
            used = brute_force_links(graph, planner.book, planned.zfilter, tree.source)
            self.used += len(used)
            for node in planned.subscribers:
                assert node in {head for _, head in used}
                assert planned.zfilter.names(planner.book.internal[node])

    @property
    def efficiency(self) -> float:
        return self.needed / self.used


def walked(graph: Graph, seed: int, users: int, trees: int, most: int) -> tuple[Walked, Walked]:
    """Placed tags with so many copies, and random ones with as many as they need, on the same trees."""
    rng = random.Random(seed)
    routing = Routing(graph, seed)
    books = place_tags([routing], rng)[0], random_book(graph, rng)
    found = Walked(), Walked()
    planners = FilterPlanner(graph, books[0], max_filters=most), FilterPlanner(graph, books[1], max_filters=64)
    for _ in range(trees):
        source, *subscribers = rng.sample(range(len(graph.names)), users)
        for into, planner in zip(found, planners, strict=True):
            into.walk(graph, planner, routing.delivery_tree(source, subscribers))
    return found


def test_thirty_two_users_of_a_carrier_network_get_nearly_nothing_that_is_not_needed() -> None:
    placed, _ = walked(backbone_graph(138, 372, 13), seed=8, users=32, trees=8, most=2)
    assert placed.efficiency >= 0.985


def test_placed_tags_are_no_worse_than_random_ones_for_a_large_group() -> None:
    placed, plain = walked(backbone_graph(200, 400, 5), seed=5, users=100, trees=3, most=64)
    assert placed.efficiency >= 0.95 > plain.efficiency
    assert placed.copies < plain.copies


def test_no_control_path_strays_with_placed_tags() -> None:
    """Every pair of nodes: a false positive there would meet each control frame between the two, again and again."""
    graph = backbone_graph(65, 108, 3)
    tags = PlacedTags(graph, b"seed")
    names = graph.names
    book = TagBook(
        tuple(tags.link_tags(names[tail], names[head]) for tail, head in graph.links),
        tuple(map(tags.internal_tags, names)),
    )
    routing = Routing(graph)
    for source in range(0, 65, 4):
        tree = routing.whole_tree(source)
        for to in tree.parents:
            path = tree.path(graph, to)[::-1]
            zfilter = path_filter(graph, tags, path, to)
            assert zfilter is not None
            assert Reach(graph, book).links_used(zfilter, source) == set(path)


def test_a_stub_delivers_by_the_id_of_the_link_that_leads_to_it() -> None:
    graph = Graph.from_edges(list("abc"), [(0, 1), (1, 2)])
    book, _ = place_tags([Routing(graph)], random.Random(1))
    assert book.internal[2] == book.links[graph.link(1, 2)]
    assert book.internal[1] not in book.links
