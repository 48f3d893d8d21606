"""Virtual links: fewer bits in the filter for more state in the nodes."""

import random

import pytest

from psirp_stack.filters.planner import FilterPlanner
from psirp_stack.filters.reach import Reach
from psirp_stack.filters.tags import forwarding_tables, random_book
from psirp_stack.filters.virtual import VirtualLinkError, common_trunks, virtual_link
from psirp_stack.filters.zfilter import ZFilter
from psirp_stack.graph import Graph, Routing, grid_graph


def long_trunk() -> Graph:
    """Six nodes in a row, then three leaves."""
    row = [(node, node + 1) for node in range(5)]
    return Graph.from_edges([str(node) for node in range(9)], [*row, (5, 6), (5, 7), (5, 8)])


def test_one_id_stands_for_a_trunk() -> None:
    graph = long_trunk()
    rng = random.Random(1)
    book = random_book(graph, rng)
    tree = Routing(graph).delivery_tree(0, [6, 7])
    trunk = [graph.link(node, node + 1) for node in range(5)]
    wide = book.with_virtual([virtual_link(graph, trunk, rng)])
    assert len(wide.named_by(tree, internal=False)) == 3
    assert len(book.named_by(tree, internal=False)) == 7
    plan = FilterPlanner(graph, wide).plan(tree)
    assert plan.copies == 1
    zfilter = plan.filters[0].zfilter
    assert zfilter.bits_set < ZFilter.of(book.named_by(tree), zfilter.table).bits_set
    assert set(tree.links) <= Reach(graph, wide).links_used(zfilter, 0)
    assert Reach(graph, wide).delivered(zfilter, 0) >= {6, 7}


def test_state_goes_to_the_nodes_on_the_virtual_link() -> None:
    graph = long_trunk()
    rng = random.Random(2)
    book = random_book(graph, rng)
    virtual = virtual_link(graph, [graph.link(2, 3), graph.link(3, 4)], rng)
    wide = book.with_virtual([virtual])
    tables = forwarding_tables(graph, wide)
    assert [len(table.virtual) for table in tables] == [0, 0, 1, 1, 0, 0, 0, 0, 0]
    assert tables[2].virtual[0].out == {graph.link_number(graph.link(2, 3))}
    assert tables[2].virtual[0].tags == virtual.tags
    assert wide.state_bytes(graph, 2) - book.state_bytes(graph, 2) == 8 * 31
    assert wide.state_bytes(graph, 0) == book.state_bytes(graph, 0)


def test_a_virtual_link_that_leaves_the_tree_is_not_used() -> None:
    graph = long_trunk()
    rng = random.Random(3)
    book = random_book(graph, rng).with_virtual([virtual_link(graph, [graph.link(5, 6), graph.link(5, 7)], rng)])
    tree = Routing(graph).delivery_tree(4, [6, 8])
    assert book.virtual[0].tags not in book.named_by(tree)


@pytest.mark.parametrize(
    ("ends", "reason"),
    [
        ([], "at least one"),
        ([(0, 1), (2, 3)], "this set has 2"),
        ([(0, 1), (2, 1)], "lead to the same node"),
        ([(0, 1), (1, 0)], "this set has 0"),
    ],
)
def test_sets_that_are_no_virtual_link(ends: list[tuple[int, int]], reason: str) -> None:
    graph = long_trunk()
    with pytest.raises(VirtualLinkError, match=reason):
        virtual_link(graph, [graph.link(*pair) for pair in ends], random.Random(1))
    with pytest.raises(VirtualLinkError, match="does not have"):
        virtual_link(graph, [999], random.Random(1))


def test_common_trunks_are_found_and_usable() -> None:
    graph = long_trunk()
    routing = Routing(graph)
    trees = [routing.delivery_tree(0, [leaf]) for leaf in (6, 7, 8)]
    assert common_trunks(graph, trees, 1) == [frozenset(graph.link(node, node + 1) for node in range(5))]
    assert common_trunks(graph, trees, 0) == []
    grid = grid_graph(6, 6)
    routing = Routing(grid, 4)
    rng = random.Random(4)
    found = common_trunks(grid, [routing.delivery_tree(0, rng.sample(range(1, 36), 3)) for _ in range(5)], 5)
    assert found
    for links in found:
        assert virtual_link(grid, links, rng).links == links
