"""Keyed tags: a filter works for its flow, its arrival ports and its period, and for nothing else."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from psirp_stack.filters.keyed import (
    LOCAL_PORT,
    MAX_FLOW_BYTES,
    KeyedDomain,
    KeyPeriods,
    keyed_tag,
    node_secret,
    period_secret,
)
from psirp_stack.filters.zfilter import FilterOverfullError, ZFilter
from psirp_stack.forwarding_model import FILTER_BITS, TAG_BITS
from psirp_stack.graph import DeliveryTree, Graph, Routing, backbone_graph, grid_graph

SECRET = bytes(range(32))
FLOW = b"flow one"
PERIODS = KeyPeriods(length=100.0, grace=10.0)


def domain() -> tuple[KeyedDomain, Graph, DeliveryTree]:
    graph = backbone_graph(30, 45, 7)
    return KeyedDomain(graph, SECRET, PERIODS), graph, Routing(graph).delivery_tree(0, [9, 17, 28])


def delivered(keyed: KeyedDomain, source: int, zfilter: ZFilter, flow: bytes, now: float) -> set[int]:
    graph = keyed.graph
    found: set[int] = set()
    used: set[int] = set()
    arrivals = [(source, LOCAL_PORT)]
    while arrivals:
        node, arrival = arrivals.pop()
        match = keyed.node(node).match(zfilter, flow, arrival, now)
        if match.deliver:
            found.add(node)
        for number in match.out:
            link = graph.out_links[node][number]
            if link not in used:
                used.add(link)
                arrivals.append((graph.links[link][1], graph.link_number(graph.reverse[link])))
    return found


def test_a_filter_works_in_its_period_and_dies_with_it() -> None:
    keyed, _, tree = domain()
    zfilter = keyed.filter(tree, FLOW, period=4)
    assert delivered(keyed, 0, zfilter, FLOW, now=450.0) >= {9, 17, 28}
    assert delivered(keyed, 0, zfilter, FLOW, now=505.0) >= {9, 17, 28}, "packets under way at the change"
    assert not delivered(keyed, 0, zfilter, FLOW, now=510.0)
    assert not delivered(keyed, 0, zfilter, FLOW, now=650.0)
    assert not delivered(keyed, 0, zfilter, FLOW, now=399.0), "nor before its time"


def test_in_the_grace_both_periods_work() -> None:
    keyed, _, tree = domain()
    for period in (4, 5):
        assert delivered(keyed, 0, keyed.filter(tree, FLOW, period), FLOW, now=503.0) >= {9, 17, 28}


def test_another_flow_gets_nowhere() -> None:
    keyed, _, tree = domain()
    zfilter = keyed.filter(tree, FLOW, period=4)
    assert not delivered(keyed, 0, zfilter, b"flow two", now=450.0)


def test_another_arrival_port_gets_nowhere() -> None:
    keyed, graph, tree = domain()
    zfilter = keyed.filter(tree, FLOW, period=4)
    refused = 0
    for node, link in tree.parents.items():
        true_port = graph.link_number(graph.reverse[link])
        forwarder = keyed.node(node)
        right = forwarder.match(zfilter, FLOW, true_port, now=450.0)
        assert right.out or right.deliver
        for port in (*forwarder.links, LOCAL_PORT):
            if port != true_port:
                wrong = forwarder.match(zfilter, FLOW, port, now=450.0)
                refused += not wrong.out and not wrong.deliver
                assert (wrong.out, wrong.deliver) != (right.out, right.deliver)
    assert refused > 0


def test_a_node_without_the_secret_of_another_cannot_make_its_tags() -> None:
    assert node_secret(SECRET, "a") != node_secret(SECRET, "b")
    assert node_secret(SECRET, "a") != node_secret(bytes(32), "a")
    assert period_secret(SECRET, 1) != period_secret(SECRET, 2)
    with pytest.raises(ValueError, match="expected 32"):
        node_secret(b"short", "a")


@given(st.binary(min_size=32, max_size=32), st.integers(0, 65535), st.integers(0, 65535), st.binary(max_size=64))
def test_tags_have_their_bits_and_depend_on_everything(secret: bytes, arrival: int, leaving: int, flow: bytes) -> None:
    tag = keyed_tag(secret, arrival, leaving, flow, 0)
    assert tag.bit_count() == TAG_BITS
    assert 0 < tag < 1 << FILTER_BITS
    # Five of 248 bits: two tags agree by chance once in 7.5e9.
    assert tag != keyed_tag(secret, arrival, leaving, flow, 1)
    assert tag != keyed_tag(secret, arrival, leaving, flow + b"." if len(flow) < 64 else flow[1:], 0)
    assert tag != keyed_tag(secret, arrival, (leaving + 1) % 65536, flow, 0)
    assert tag != keyed_tag(secret, (arrival + 1) % 65536, leaving, flow, 0)


def test_overfull_filters_and_overlong_flows_match_nothing() -> None:
    keyed, _, tree = domain()
    zfilter = keyed.filter(tree, FLOW, period=4)
    full = ZFilter((1 << FILTER_BITS) - 1, 0)
    for filter_, flow in ((full, FLOW), (zfilter, bytes(MAX_FLOW_BYTES + 1))):
        match = keyed.node(0).match(filter_, flow, LOCAL_PORT, now=450.0)
        assert (match.out, match.deliver) == ((), False)
    with pytest.raises(ValueError, match="at most 64"):
        keyed_tag(SECRET, 0, 0, bytes(65), 0)


def test_a_tree_too_large_is_refused() -> None:
    graph = grid_graph(10, 10)
    with pytest.raises(FilterOverfullError):
        KeyedDomain(graph, SECRET).filter(Routing(graph).delivery_tree(0, range(1, 100)), FLOW, period=1)


def test_periods() -> None:
    assert PERIODS.accepted(450.0) == (4,)
    assert PERIODS.accepted(400.0) == (4, 3)
    assert PERIODS.accepted(410.0) == (4,)
    assert PERIODS.accepted(3.0) == (0,)
    with pytest.raises(ValueError, match="grace"):
        KeyPeriods(length=10.0, grace=10.0)
