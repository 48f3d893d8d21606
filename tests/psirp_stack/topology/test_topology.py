"""The topology manager: nearest publishers, right filters, and no word too many."""

import random
from collections import deque

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from psirp_stack.control.codes import Code
from psirp_stack.control.known_graph import KnownGraph, NodeState
from psirp_stack.control.messages import (
    MAX_FILTERS,
    OPEN_SCOPE,
    Match,
    MatchServed,
    ScopePolicy,
    Served,
    StartPublish,
    StopPublish,
)
from psirp_stack.control.relay_frames import MAX_STATIONS, relay_overhead
from psirp_stack.control.tag_source import DerivedTags
from psirp_stack.filters.reach import Reach
from psirp_stack.filters.zfilter import ZFilter
from psirp_stack.graph import Graph, backbone_graph, grid_graph
from psirp_stack.topology.manager import PLAN_BITS, RETRY_AFTER, Output, TopologyDrop, TopologyManager

TAGS = DerivedTags(b"topology test")
RV = "rv"
SID, RID = b"S" * 32, b"R" * 32
MTU = 1500


class Network:
    """A graph whose links and nodes can be switched, a manager on it, and nodes that note what they are told."""

    def __init__(self, graph: Graph, rendezvous: str) -> None:
        self.rendezvous = rendezvous
        self.edges = {frozenset(graph.names[end] for end in link) for link in graph.links}
        self.names = set(graph.names)
        self.cut: set[frozenset[str]] = set()
        self.gone: set[str] = set()
        self.boots = dict.fromkeys(graph.names, 1)
        self.mtus: dict[frozenset[str], int] = {}
        self.known = self.look()
        self.manager = TopologyManager(self.known, TAGS)
        self.log: list[tuple[str, Output]] = []
        self.started: dict[tuple[str, bytes], StartPublish] = {}
        self.served: dict[tuple[str, bytes], Served] = {}
        self.answers: dict[bytes, MatchServed] = {}
        self.generations: dict[tuple[str, bytes, type], int] = {}

    def look(self) -> KnownGraph:
        up = [edge for edge in self.edges - self.cut if not edge & self.gone]
        states = {
            name: NodeState(
                self.boots[name],
                0,
                {other: self.mtus.get(edge, MTU) for edge in up if name in edge for other in edge - {name}},
            )
            for name in self.names - self.gone
        }
        return KnownGraph.of(states, self.rendezvous)

    def link(self, one: str, other: str, works: bool) -> list[tuple[str, Output]]:
        (self.cut.discard if works else self.cut.add)(frozenset((one, other)))
        return self.graph_changed()

    def node(self, name: str, there: bool, restarted: bool = False) -> list[tuple[str, Output]]:
        (self.gone.discard if there else self.gone.add)(name)
        if restarted:
            self.boots[name] += 1
            for told in (self.started, self.served):
                for key in [key for key in told if key[0] == name]:
                    del told[key]  # type: ignore[attr-defined]
        return self.graph_changed()

    def graph_changed(self) -> list[tuple[str, Output]]:
        self.known = self.look()
        self.manager.graph_changed(self.known)
        return self.settle()

    def match(
        self,
        publishers: str | list[str],
        subscribers: str | list[str],
        generation: int,
        rid: bytes = RID,
        policy: ScopePolicy = OPEN_SCOPE,
    ) -> list[tuple[str, Output]]:
        names = [given.split() if isinstance(given, str) else given for given in (publishers, subscribers)]
        self.manager.receive(Match(SID, rid, generation, tuple(names[0]), tuple(names[1]), policy), self.rendezvous)
        return self.settle()

    def settle(self) -> list[tuple[str, Output]]:
        new = []
        while (said := self.manager.next_message()) is not None:
            name, message = said
            new.append(said)
            assert name in self.known.numbers, "told a node that is not there"
            if isinstance(message, MatchServed):
                assert name == self.rendezvous
                self.answers[message.rid] = message
                continue
            kind = Served if isinstance(message, Served) else StartPublish
            slot = (name, message.rid, kind)
            assert message.generation > self.generations.get(slot, -1), "generations grow"
            self.generations[slot] = message.generation
            if isinstance(message, StartPublish):
                assert len(message.filters) <= MAX_FILTERS
                before = self.started.get((name, message.rid))
                told = None if before is None else (before.filters, before.every_packet_signed)
                assert told != (message.filters, message.every_packet_signed), "a needless start"
                self.started[name, message.rid] = message
            elif isinstance(message, StopPublish):
                self.started.pop((name, message.rid), None)
            else:
                self.served[name, message.rid] = message
        self.log += new
        assert self.manager.waiting == 0
        return new

    def hops(self, start: str) -> dict[str, int]:
        graph, numbers = self.known.graph, self.known.numbers
        if start not in numbers:
            return {}
        found = {start: 0}
        queue = deque([start])
        while queue:
            name = queue.popleft()
            for link in graph.out_links[numbers[name]]:
                head = graph.names[graph.links[link][1]]
                if head not in found:
                    found[head] = found[name] + 1
                    queue.append(head)
        return found

    def check(self, match: Match, never_overfull: bool = True) -> None:
        """What nodes were told is what a plain look at the whole network says, with filters that really get there."""
        rid = match.rid
        distances = {publisher: self.hops(publisher) for publisher in match.publishers}
        wanted: dict[str, set[str]] = {}
        unserved = {}
        for subscriber in match.subscribers:
            reach = sorted((far[subscriber], name) for name, far in distances.items() if subscriber in far)
            told = self.served.get((subscriber, rid))
            if reach:
                wanted.setdefault(reach[0][1], set()).add(subscriber)
                if never_overfull:
                    assert told is not None
                    assert (told.publisher, told.code) == (reach[0][1], Code.SUCCESS)
            else:
                code = Code.UNREACHABLE if match.publishers else Code.ITEM_DOES_NOT_EXIST
                unserved[subscriber] = int(code)
                if subscriber in self.known.numbers:
                    assert told is not None
                    assert (told.publisher, told.code) == (None, code)
        if never_overfull:
            assert dict(self.answers[rid].unserved) == unserved
        assert self.answers[rid].generation == match.generation
        started = {name: start for (name, item), start in self.started.items() if item == rid}
        assert {name for name in started if name in self.known.numbers} == set(wanted)
        reach_of = Reach(self.known.graph, self.known.book(TAGS))
        for name, subscribers in wanted.items():
            granted = [sub for grant in started[name].filters for sub in grant.subscribers]
            assert len(granted) == len(set(granted))
            if never_overfull:
                assert set(granted) == subscribers - {name}
            for grant in started[name].filters:
                delivered: set[int] = set()
                links: set[int] = set()
                for station, fid in [(name, grant.fid), *((onward.station, onward.fid) for onward in grant.onward)]:
                    zfilter = ZFilter.from_fid(fid)
                    assert not zfilter.overfull
                    delivered |= reach_of.delivered(zfilter, self.known.numbers[station])
                    links |= reach_of.links_used(zfilter, self.known.numbers[station])
                assert {self.known.numbers[sub] for sub in grant.subscribers} <= delivered
                overhead = relay_overhead(len(grant.onward)) if grant.onward else 0
                assert grant.mtu >= min(self.known.mtus[link] for link in links) - overhead


def line(*names: str) -> Graph:
    return Graph.from_edges(names, [(n, n + 1) for n in range(len(names) - 1)])


def kinds(said: list[tuple[str, Output]]) -> list[tuple[str, str]]:
    return sorted((name, type(message).__name__) for name, message in said)


def the_match(publishers: str, subscribers: str, generation: int) -> Match:
    return Match(SID, RID, generation, tuple(publishers.split()), tuple(subscribers.split()), OPEN_SCOPE)


def test_publish_first_and_subscribe_first_end_alike_with_one_start() -> None:
    ends = []
    for first in (("p", ""), ("", "s")):
        net = Network(line(RV, "p", "m", "s"), RV)
        said = net.match(*first, 1)
        assert not any(isinstance(message, StartPublish) for _, message in said)
        said = net.match("p", "s", 2)
        assert kinds(said) == [("p", "StartPublish"), (RV, "MatchServed"), ("s", "Served")]
        net.check(the_match("p", "s", 2))
        ends.append((net.started, net.served["s", RID]))
    assert ends[0] == ends[1]
    start = ends[0][0]["p", RID]
    assert start.generation >= 2 << PLAN_BITS
    assert start.filters[0].subscribers == ("s",)
    assert start.filters[0].mtu == MTU


def test_the_last_unsubscribe_stops_the_publisher_once_and_the_item_is_forgotten() -> None:
    net = Network(line(RV, "p", "s", "t"), RV)
    net.match("p", "s t", 1)
    assert kinds(net.match("p", "s", 2)) == [("p", "StartPublish"), (RV, "MatchServed")]
    assert kinds(net.match("p", "", 3)) == [("p", "StopPublish"), (RV, "MatchServed")]
    assert kinds(net.match("p", "", 4)) == [(RV, "MatchServed")]
    assert kinds(net.match("", "", 5)) == [(RV, "MatchServed")]
    assert net.manager.items == 0
    assert kinds(net.match("", "", 6)) == [(RV, "MatchServed")]


def test_each_subscriber_is_served_by_its_nearest_publisher_alone() -> None:
    net = Network(line(RV, "a", "b", "c", "d", "e"), RV)
    net.match("a e", "b c d", 1)
    assert net.started["a", RID].filters[0].subscribers == ("b", "c")  # c is as near to e: the first name wins
    assert net.started["e", RID].filters[0].subscribers == ("d",)
    said = net.match("a", "b c d", 2)
    assert kinds(said) == [("a", "StartPublish"), ("d", "Served"), ("e", "StopPublish"), (RV, "MatchServed")]
    net.check(the_match("a", "b c d", 2))


def test_a_subscriber_on_the_publishers_own_node_needs_no_filter() -> None:
    net = Network(line(RV, "p", "s"), RV)
    assert kinds(net.match("p", "p", 1)) == [("p", "Served"), ("p", "StartPublish"), (RV, "MatchServed")]
    assert net.started["p", RID].filters == ()
    net.match("p", "p s", 2)
    assert [grant.subscribers for grant in net.started["p", RID].filters] == [("s",)]
    assert net.served["p", RID].publisher == "p"
    net.match("p", "p", 3)
    net.node("p", there=False)
    assert net.answers[RID].unserved == (("p", int(Code.UNREACHABLE)),)
    net.node("p", there=True)
    assert net.answers[RID].unserved == ()


def test_nothing_is_said_again_when_nothing_changed_for_somebody() -> None:
    net = Network(grid_graph(4, 4), "0.0")
    net.match("1.1", "3.3 0.3", 1)
    assert kinds(net.match("1.1", "3.3 0.3", 2)) == [("0.0", "MatchServed")]
    assert net.graph_changed() == []
    said = net.match("1.1", "3.3 0.3", 3, policy=ScopePolicy(every_packet_signed=True))
    assert kinds(said) == [
        ("0.0", "MatchServed"),
        ("0.3", "Served"),
        ("1.1", "StartPublish"),  # its frames change
        ("3.3", "Served"),
    ]
    assert net.started["1.1", RID].every_packet_signed


def test_a_dead_link_moves_only_what_used_it_and_its_return_moves_it_back() -> None:
    net = Network(Graph.from_edges([RV, "p", "x", "y", "z", "s"], [(0, 1), (1, 2), (2, 5), (1, 3), (3, 4), (4, 5)]), RV)
    net.match("p", "s", 1)
    net.match("p", "y", 1, rid=b"Y" * 32)
    before = net.started["p", RID]
    assert kinds(net.link("p", "x", works=False)) == [("p", "StartPublish")]
    net.check(the_match("p", "s", 1))
    assert net.link("x", "s", works=False) == []
    assert net.link("x", "s", works=True) == []
    assert kinds(net.link("p", "x", works=True)) == [("p", "StartPublish")]
    assert net.started["p", RID].filters == before.filters
    assert net.started["p", RID].generation > before.generation
    net.check(the_match("p", "s", 1))


def test_a_node_that_dies_is_reported_and_served_again_when_it_returns() -> None:
    net = Network(line(RV, "p", "m", "s"), RV)
    net.match("p", "s", 1)
    assert kinds(net.node("m", there=False)) == [("p", "StopPublish"), (RV, "MatchServed")]
    assert net.answers[RID].unserved == (("s", int(Code.UNREACHABLE)),)
    assert kinds(net.node("m", there=True)) == [("p", "StartPublish"), (RV, "MatchServed")]
    assert net.answers[RID].unserved == ()
    # The publisher: its subscriber is told, and what the publisher was told is still true when it returns.
    assert kinds(net.node("p", there=False)) == [(RV, "MatchServed")]  # nobody else is left
    net = Network(Graph.from_edges([RV, "p", "s"], [(0, 1), (0, 2)]), RV)
    net.match("p", "s", 1)
    assert kinds(net.node("p", there=False)) == [(RV, "MatchServed"), ("s", "Served")]
    assert kinds(net.node("p", there=True)) == [(RV, "MatchServed"), ("s", "Served")]
    net.check(the_match("p", "s", 1))


def test_a_publisher_that_was_away_when_its_last_subscriber_left_is_stopped_on_return() -> None:
    net = Network(Graph.from_edges([RV, "p", "s"], [(0, 1), (0, 2)]), RV)
    net.match("p", "s", 1)
    net.node("p", there=False)
    net.match("", "", 2)
    assert net.manager.items == 1
    assert kinds(net.node("p", there=True)) == [("p", "StopPublish")]
    assert net.manager.items == 0


def test_a_restarted_node_is_told_everything_again() -> None:
    net = Network(Graph.from_edges([RV, "p", "s"], [(0, 1), (0, 2)]), RV)
    net.match("p", "s", 1)
    assert kinds(net.node("p", there=True, restarted=True)) == [("p", "StartPublish")]
    assert kinds(net.node("s", there=True, restarted=True)) == [("s", "Served")]
    net.node("p", there=False)
    assert kinds(net.node("p", there=True, restarted=True)) == [
        ("p", "StartPublish"),
        (RV, "MatchServed"),
        ("s", "Served"),
    ]


def test_what_a_node_did_not_take_is_said_again_later() -> None:
    net = Network(line(RV, "p", "s"), RV)
    said = net.match("p", "s", 1)
    for name, message in said:
        net.manager.delivery_failed(name, message, 10.0)
    net.started.clear()
    net.served.clear()
    assert net.settle() == []
    assert net.manager.next_timer() == 10.0 + RETRY_AFTER
    net.manager.handle_timer(10.0 + RETRY_AFTER)
    assert kinds(net.settle()) == kinds(said)
    assert net.manager.next_timer() is None
    [(_, stop)] = [said for said in net.match("", "s", 2) if said[0] == "p"]
    net.manager.delivery_failed("p", stop, 20.0)
    net.manager.handle_timer(30.0)
    assert kinds(net.settle()) == [("p", "StopPublish")]


def test_nodes_that_cannot_take_more_do_not_hold_up_others() -> None:
    net = Network(line(RV, "p", "s", "q"), RV)
    for number in range(300):
        publisher = "pq"[number % 2]
        net.manager.receive(Match(SID, number.to_bytes(32, "big"), 1, (publisher,), ("s",), OPEN_SCOPE), RV)
    told = []
    while (said := net.manager.next_message(lambda name: name == "q")) is not None:
        told.append(said)
    while net.manager.waiting:
        while (said := net.manager.next_message(lambda name: name == "q")) is not None:
            told.append(said)
    assert [name for name, _ in told] == ["q"] * 150
    rest = net.settle()
    assert len(rest) == 150 + 300 + 300


def test_an_older_match_is_ignored_and_messages_not_yet_sent_are_replaced() -> None:
    net = Network(line(RV, "p", "s", "t"), RV)
    net.match("p", "s", 5)
    assert net.match("p", "", 4) == []
    assert net.manager.drops[TopologyDrop.OLD] == 1
    net.manager.receive(the_match("p", "s t", 6), RV)
    net.manager.next_message(lambda name: False)
    net.manager.receive(the_match("p", "t", 7), RV)
    net.manager.next_message(lambda name: False)
    said = net.settle()
    assert kinds(said) == [("p", "StartPublish"), (RV, "MatchServed"), ("t", "Served")]
    assert net.answers[RID].generation == 7


def test_the_mtu_of_a_grant_is_that_of_the_narrowest_link_and_follows_it() -> None:
    net = Network(line(RV, "p", "m", "s"), RV)
    net.mtus[frozenset(("m", "s"))] = 1300
    net.graph_changed()
    net.match("p", "s", 1)
    assert net.started["p", RID].filters[0].mtu == 1300
    net.mtus[frozenset(("m", "s"))] = 1400
    assert kinds(net.graph_changed()) == [("p", "StartPublish")]
    assert net.started["p", RID].filters[0].mtu == 1400


def test_200_subscribers_take_a_few_filters_and_everybody_is_reached() -> None:
    graph = backbone_graph(201, 320, seed=4)
    net = Network(graph, "n0")
    others = [name for name in graph.names if name != "n7"]
    net.match(["n7"], others, 1)
    net.check(Match(SID, RID, 1, ("n7",), tuple(others), OPEN_SCOPE))
    copies = len(net.started["n7", RID].filters)
    assert 1 < copies <= MAX_FILTERS


def test_subscribers_too_far_for_a_filter_are_served_from_nodes_on_the_way() -> None:
    names = [f"n{number:03}" for number in range(300)]
    net = Network(line(*names), "n000")
    others = [names[number] for number in (3, 20, 89, 150, 151, 299)]
    net.match("n000", " ".join(others), 1)
    net.check(Match(SID, RID, 1, ("n000",), tuple(others), OPEN_SCOPE))
    (copy,) = net.started["n000", RID].filters
    assert copy.subscribers == tuple(others)
    assert [onward.station for onward in copy.onward] == ["n012", "n084", "n144", "n288"]


def test_more_stations_than_one_copy_names_take_another() -> None:
    names = [f"n{number:03}" for number in range(250)]
    net = Network(line(*names), "n000")
    net.match(["n000"], names[1:], 1)
    net.check(Match(SID, RID, 1, ("n000",), tuple(names[1:]), OPEN_SCOPE))
    filters = net.started["n000", RID].filters
    assert all(len(grant.onward) <= MAX_STATIONS for grant in filters)
    assert len(filters) <= 8


Event = tuple[str, int, int]


@settings(max_examples=150, deadline=None)
@given(
    st.integers(0, 20),
    st.lists(
        st.tuples(
            st.sampled_from(["match", "match", "match", "link", "link", "node", "restart", "fail"]),
            st.integers(0, 1 << 16),
            st.integers(0, 1 << 16),
        ),
        max_size=40,
    ),
)
def test_after_any_events_nodes_know_what_a_plain_recomputation_says(seed: int, events: list[Event]) -> None:
    graph = backbone_graph(9, 13, seed)
    net = Network(graph, "n0")
    matches: dict[bytes, Match] = {}
    edges = sorted(tuple(sorted(edge)) for edge in net.edges)
    for kind, one, other in events:
        rng = random.Random(f"{one} {other}")
        name = graph.names[1 + one % 8]
        if kind == "match":
            rid = bytes([one % 4]) * 32
            chosen = [rng.sample(graph.names, rng.choice([0, 1, 1, 2, 4])) for _ in range(2)]
            generation = matches[rid].generation + 1 if rid in matches else 1
            match = Match(SID, rid, generation, tuple(chosen[0]), tuple(chosen[1]), OPEN_SCOPE)
            for subscriber in graph.names:
                if subscriber not in match.subscribers:
                    net.served.pop((subscriber, rid), None)
            matches[rid] = match
            net.match(chosen[0], chosen[1], generation, rid)
        elif kind == "link":
            net.link(*edges[one % len(edges)], works=bool(other % 2))
        elif kind == "node":
            net.node(name, there=bool(other % 2))
        elif kind == "restart":
            net.node(name, there=True, restarted=True)
        elif kind == "fail" and net.log:
            to, message = net.log[-1 - one % min(5, len(net.log))]
            if not isinstance(message, MatchServed):
                net.manager.delivery_failed(to, message, 0.0)
                # Whether it got through cannot be known; here it did not, and is told anew.
                net.started.pop((to, message.rid), None)
                net.served.pop((to, message.rid), None)
                net.manager.node_restarted(to)
                for told in (net.started, net.served):
                    for key in [key for key in told if key[0] == to]:
                        del told[key]  # type: ignore[attr-defined]
                net.settle()
    for match in matches.values():
        net.check(match)


@pytest.mark.parametrize("seed", range(3))
def test_only_what_a_link_carries_is_planned_again(seed: int) -> None:
    graph = backbone_graph(30, 50, seed)
    net = Network(graph, "n0")
    rng = random.Random(seed)
    for number in range(200):
        chosen = rng.sample(graph.names, 4)
        net.match(chosen[:1], chosen[1:], 1, rid=number.to_bytes(32, "big"))
    edge = tuple(sorted(next(edge for edge in net.edges if "n0" not in edge)))
    using = len(
        net.manager._by_link.get((edge[0], edge[1]), set()) | net.manager._by_link.get((edge[1], edge[0]), set())
    )
    before = net.manager.planned
    net.link(*edge, works=False)
    assert net.manager.planned - before == using < 200
