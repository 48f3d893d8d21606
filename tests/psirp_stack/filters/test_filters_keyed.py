"""Keyed tags: a filter works for its flow, its arrival ports and its period, and for nothing else."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from psirp_stack.filters.keyed import (
    LOCAL_PORT,
    MAX_FLOW_BYTES,
    NO_FLOW,
    KeyedDomain,
    KeyPeriods,
    keyed_tag,
    node_secret,
    period_secret,
)
from psirp_stack.filters.tags import forwarding_tables, random_book
from psirp_stack.filters.zfilter import FilterOverfullError, ZFilter
from psirp_stack.forwarder import Forwarder
from psirp_stack.forwarding_model import FILTER_BITS, TAG_BITS, Drop
from psirp_stack.graph import DeliveryTree, Graph, Routing, backbone_graph, grid_graph
from tests.psirp_stack.frames import frame

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


class Network:
    """Fast forwarders that compute their tags, joined as the graph says; frames carried by hand."""

    def __init__(self, keyed: KeyedDomain, graph: Graph) -> None:
        self.graph = graph
        tables = forwarding_tables(graph, random_book(graph, random.Random(1)))
        self.nodes = [Forwarder(table, keyed=keyed.node(node)) for node, table in enumerate(tables)]

    def delivered(self, source: int, zfilter: ZFilter, now: float) -> set[int]:
        found: set[int] = set()
        under_way: list[tuple[int, int | None, bytes]] = [(source, None, frame(zfilter.to_fid(), ttl=20))]
        while under_way:
            node, arrival, data = under_way.pop()
            decision = self.nodes[node].decide(data, arrival, now)
            if decision.deliver:
                found.add(node)
            for number in decision.out:
                link = self.graph.out_links[node][number]
                to_port = self.graph.link_number(self.graph.reverse[link])
                under_way.append((self.graph.links[link][1], to_port, decision.frame))
        return found


def test_forwarders_that_compute_their_tags_let_a_harvested_filter_die_with_its_period() -> None:
    keyed, graph, tree = domain()
    network = Network(keyed, graph)
    zfilter = keyed.filter(tree, NO_FLOW, period=4)
    # The same forwarders all the way through: what they cached in one period must not count in the next.
    assert network.delivered(0, zfilter, now=399.9) == set()
    for now in (400.0, 450.0, 499.9, 505.0):
        assert network.delivered(0, zfilter, now) >= {9, 17, 28}
    assert network.delivered(0, zfilter, now=510.0) == set()
    assert network.delivered(0, keyed.filter(tree, NO_FLOW, period=5), now=510.0) >= {9, 17, 28}
    assert sum(node.statistics.cache_hits for node in network.nodes) > 0


def test_a_keyed_batch_does_what_single_decisions_say_over_a_change_of_period() -> None:
    keyed, graph, tree = domain()
    data = frame(keyed.filter(tree, NO_FLOW, period=4).to_fid())
    table = forwarding_tables(graph, random_book(graph, random.Random(1)))[0]
    single, batched = (Forwarder(table, keyed=keyed.node(0)) for _ in range(2))
    sent: list[tuple[int, bytes]] = []
    for number in table.links:
        batched.attach(number, lambda copy, number=number: sent.append((number, copy)))
    for now in (450.0, 450.0, 505.0, 510.0):
        sent.clear()
        batched.forward([data], None, now)
        decision = single.decide(data, None, now)
        assert sent == [(number, decision.frame) for number in decision.out]
    assert batched.statistics == single.statistics
    assert single.statistics.drops[Drop.NO_MATCH] == 1


def test_the_own_link_ids_of_the_table_open_nothing_when_tags_are_keyed() -> None:
    keyed, graph, _ = domain()
    book = random_book(graph, random.Random(1))
    table = forwarding_tables(graph, book)[0]
    static = ZFilter(table.links[0][0], 0)
    assert Forwarder(table).decide(frame(static.to_fid()), None, 450.0).out == (0,)
    assert Forwarder(table, keyed=keyed.node(0)).decide(frame(static.to_fid()), None, 450.0).drop is Drop.NO_MATCH


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
