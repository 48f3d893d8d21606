"""Link state: every node comes to know the network as it is, whatever happens to links and nodes."""

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from psirp_stack.control import messages
from psirp_stack.control.codes import Function, ServiceRole
from psirp_stack.control.frames import ControlFrameError, build_control, parse_control
from psirp_stack.control.known_graph import KnownGraph, NodeState
from psirp_stack.control.link_state import LinkStateProtocol
from psirp_stack.control.link_state_events import GraphChanged, NameConflict, NeighbourDown, NeighbourUp, TableChanged
from psirp_stack.control.link_state_settings import LinkStateConfig, LinkStateDrop
from psirp_stack.control.relay_frames import relay_overhead
from psirp_stack.control.routes import Routes
from psirp_stack.control.tag_source import DerivedTags, PlacedTags
from psirp_stack.filters.zfilter import ZFilter
from psirp_stack.forwarder import Forwarder
from psirp_stack.graph import Graph, backbone_graph, grid_graph
from psirp_stack.links.impairment import Impairment
from tests.psirp_stack.control.link_state_net import CONFIG, MTU, LinkStateNet

GOOD = Impairment(delay=0.002)
BAD = Impairment(delay=0.01, jitter=0.008, loss=0.2, duplication=0.05, reorder=0.05)
TAGS = DerivedTags(b"test")


def ring(size: int) -> Graph:
    return Graph.from_edges([f"r{n}" for n in range(size)], [(n, (n + 1) % size) for n in range(size)])


def node(name: str = "a", boot: int = 1, **more: object) -> LinkStateProtocol:
    state = LinkStateProtocol(name, boot, TAGS, random.Random(1), 0.0, **more)  # type: ignore[arg-type]
    state.add_link(1, MTU, 0.0)
    state.add_link(2, MTU, 0.0)
    return state


def hello(name: str, *heard: str, boot: int = 1, mtu: int = MTU) -> bytes:
    return messages.encode(messages.Hello(name, boot, heard, mtu))


def flooded(state: messages.LinkState, age: int = 0) -> bytes:
    return messages.encode(messages.LinkStates((messages.AgedState(age, messages.encode(state)),)))


def said(state: LinkStateProtocol, now: float = 0.0) -> list[tuple[int, messages.Message | messages.LinkState]]:
    frames: list[tuple[int, messages.Message | messages.LinkState]] = []
    while (frame := state.next_frame(now)) is not None:
        message = messages.decode(frame[1])
        if isinstance(message, messages.LinkStates):
            frames += [(frame[0], messages.decode_state(aged.state)) for aged in message.states]
        else:
            frames.append((frame[0], message))
    return frames


def events(state: LinkStateProtocol) -> list[object]:
    found: list[object] = []
    while (event := state.next_event()) is not None:
        found.append(event)
    return found


def test_a_neighbour_is_up_when_both_hear_each_other() -> None:
    state = node()
    assert said(state) == [(1, messages.Hello("a", 1, (), MTU)), (2, messages.Hello("a", 1, (), MTU))]
    state.receive(1, hello("b"), 0.0)
    assert events(state) == []
    assert said(state) == [(1, messages.Hello("a", 1, ("b",), MTU))]  # answered at once
    assert state.table().links == {}
    state.receive(1, hello("b", "a", mtu=1400), 0.01)
    assert events(state) == [NeighbourUp("b", 1), TableChanged()]
    assert state.table().links == {1: TAGS.link_tags("a", "b")}
    assert state.table().incoming == {1: TAGS.link_tags("b", "a")}
    assert state.table().internal == TAGS.internal_tags("a")
    state.handle_timer(CONFIG.originate_interval)
    told = [message for link, message in said(state, 0.1) if link == 1 and isinstance(message, messages.LinkState)]
    assert told[-1].neighbours == (("b", 1400),)


def test_silence_a_carrier_error_and_a_neighbour_that_does_not_hear_us_take_a_neighbour_down() -> None:
    for how in ("silence", "carrier", "unheard", "removed"):
        state = node()
        state.receive(1, hello("b", "a"), 0.0)
        events(state)
        if how == "silence":
            silence = state.config.hello_interval * state.config.dead_after
            while (timer := state.next_timer()) is not None and timer < silence:
                state.handle_timer(timer)
            assert state.neighbours() == {"b": 1}
            state.handle_timer(silence)
        elif how == "carrier":
            state.carrier_failed(1, 0.1)
        elif how == "removed":
            state.remove_link(1, 0.1)
        else:
            state.receive(1, hello("b"), 0.1)
            assert state.neighbours() == {"b": 1}  # one such hello may only be late
            state.receive(1, hello("b"), 0.2)
        assert NeighbourDown("b", 1) in events(state)
        assert state.table().links == {}


def test_a_second_link_to_a_neighbour_takes_over() -> None:
    state = node()
    state.receive(2, hello("b", "a"), 0.0)
    state.receive(1, hello("b", "a"), 0.0)
    assert state.neighbours() == {"b": 1}
    state.carrier_failed(1, 0.1)
    assert state.neighbours() == {"b": 2}
    assert state.table().links == {2: TAGS.link_tags("a", "b")}
    assert TableChanged() in events(state)


def test_what_cannot_be_is_counted_and_changes_nothing() -> None:
    fixed = Graph.from_edges(["a", "b", "c"], [(0, 1)])
    state = node(fixed=fixed)
    state.receive(9, hello("b"), 0)
    state.receive(1, b"junk", 0)
    state.receive(1, messages.encode(messages.TopologyStarted(1)), 0)
    state.receive(1, hello("a"), 0)
    state.receive(1, hello("c"), 0)
    one = messages.LinkState("z", 1, 1, 0, ())
    state.receive(1, flooded(one), 0)
    state.receive(1, hello("b", "a", boot=3), 0)
    state.receive(1, hello("b", boot=2), 0)
    state.receive(1, flooded(messages.LinkState("z", 1, 1, 0, (), part=1, parts=1)), 0)
    state.receive(1, flooded(messages.LinkState("z", 1, 1, 0, ()), age=10**9), 0)
    assert state.drops == dict.fromkeys(
        [
            LinkStateDrop.UNKNOWN_LINK,
            LinkStateDrop.MALFORMED,
            LinkStateDrop.NOT_LINK_STATE,
            LinkStateDrop.OWN_NAME,
            LinkStateDrop.STRANGER,
            LinkStateDrop.NO_NEIGHBOUR,
            LinkStateDrop.OLD_LIFE,
            LinkStateDrop.CONTRADICTION,
            LinkStateDrop.TOO_OLD,
        ],
        1,
    )
    state = node(config=LinkStateConfig(max_nodes=2))
    state.receive(1, hello("b", "a"), 0)
    state.receive(1, hello("d", "a"), 0)
    for name in "bcd":
        state.receive(1, flooded(messages.LinkState(name, 1, 1, 0, ())), 0)
    assert state.drops == {LinkStateDrop.SECOND_NEIGHBOUR: 1, LinkStateDrop.NO_ROOM: 2}
    with pytest.raises(ValueError, match="expected at least"):
        state.add_link(3, 500, 0)
    with pytest.raises(ValueError, match="already"):
        state.add_link(2, MTU, 0)


def test_somebody_with_our_name_is_noticed_and_our_state_prevails() -> None:
    state = node()
    state.receive(1, hello("b", "a"), 0)
    state.receive(1, flooded(messages.LinkState("a", 7, 40, 0, (("x", 1500),))), 0)
    assert NameConflict() in events(state)
    state.handle_timer(1.0)
    own = [m for _, m in said(state, 1.0) if isinstance(m, messages.LinkState) and m.origin == "a"]
    assert (own[-1].boot, own[-1].number) > (7, 40)
    assert own[-1].neighbours == (("b", MTU),)


def test_a_link_counts_only_when_both_ends_name_it_and_somebody_can_reach_it() -> None:
    states = {
        "a": NodeState(1, 0, {"b": 1500, "c": 1500}),
        "b": NodeState(1, 2, {"a": 1300}),
        "c": NodeState(1, 0, {}),
        "x": NodeState(1, 1, {"y": 1500}),
        "y": NodeState(1, 0, {"x": 1500}),
    }
    known = KnownGraph.of(states, "a")
    assert known.graph.names == ("a", "b")
    assert known.mtus == (1300, 1300)
    assert known.with_role(ServiceRole.TOPOLOGY) == ("b",)
    assert known.with_role(ServiceRole.RENDEZVOUS) == ()
    assert KnownGraph.of(states, "a", allowed=[]).graph.names == ("a",)


@pytest.mark.parametrize("impairment", [GOOD, BAD])
@pytest.mark.parametrize("graph", [ring(8), grid_graph(4, 4), backbone_graph(20, 30, seed=2)])
def test_all_come_to_know_the_graph(graph: Graph, impairment: Impairment) -> None:
    net = LinkStateNet(graph, impairment, seed=5)
    net.run_until_converged(within=2 if impairment is GOOD else 20)


def test_a_star_with_200_neighbours_says_its_state_in_parts() -> None:
    graph = Graph.from_edges(["hub", *(f"spoke-{n}" for n in range(200))], [(0, n + 1) for n in range(200)])
    net = LinkStateNet(graph, GOOD)
    net.run_until_converged(within=5)


def test_partition_and_rejoin() -> None:
    net = LinkStateNet(ring(8), BAD, seed=9)
    net.run_until_converged(20)
    net.set_link("r0", "r1", works=False)
    net.set_link("r4", "r5", works=False)
    took = net.run_until_converged(30)
    assert took >= CONFIG.hello_interval
    assert set(net.state("r2").graph().graph.names) == {"r1", "r2", "r3", "r4"}
    net.run(CONFIG.max_age + 20)  # long enough for both sides to forget each other
    assert net.converged()
    assert len(net.state("r2")._database.origins) == 4
    net.set_link("r0", "r1", works=True)
    net.set_link("r4", "r5", works=True)
    net.run_until_converged(30)
    assert len(net.state("r2").graph().graph.names) == 8


def test_a_node_that_restarts_is_known_in_its_new_life() -> None:
    net = LinkStateNet(grid_graph(3, 3), BAD, seed=3)
    net.run_until_converged(20)
    net.start("1.1")  # at once: nobody noticed its silence
    net.run_until_converged(20)
    assert all(net.state(name).graph().boots["1.1"] == 2 for name in net.members)
    net.stop("1.1")
    net.run_until_converged(20)
    assert all("1.1" not in net.state(name).graph().numbers for name in net.members if name != "1.1")
    net.start("1.1")
    net.run_until_converged(20)


def test_a_link_that_only_works_one_way_is_not_used() -> None:
    net = LinkStateNet(ring(4), GOOD)
    net.run_until_converged(5)
    edge = frozenset(("r0", "r1"))
    net.edges[edge][0].impairment = Impairment(loss=1.0)
    net.cut.add(edge)
    net.run_until_converged(10)
    net.run(20)
    assert net.converged()


def test_in_quiet_times_only_hellos_and_refreshes_are_sent_and_no_events() -> None:
    net = LinkStateNet(ring(6), GOOD)
    net.run_until_converged(5)
    net.run(5)
    for member in net.members.values():
        member.events.clear()
    net.frames = 0
    net.run(100)
    hellos = 12 * 100 / CONFIG.hello_interval
    refreshes = 6 * 100 / (CONFIG.refresh_interval * 0.9) * 12 * 2
    assert net.frames < (hellos + refreshes) * 1.15
    assert all(member.events == [] for member in net.members.values())
    assert all(member.state is not None and member.state.repeated == 0 for member in net.members.values())


def test_roles_are_known_to_all_who_can_reach_them() -> None:
    net = LinkStateNet(
        ring(6), BAD, roles={"r1": ServiceRole.RENDEZVOUS, "r3": ServiceRole.RENDEZVOUS | ServiceRole.TOPOLOGY}
    )
    net.run_until_converged(20)
    assert net.state("r5").nodes_with(ServiceRole.RENDEZVOUS) == ("r1", "r3")
    assert net.state("r3").nodes_with(ServiceRole.TOPOLOGY) == ("r3",)
    net.stop("r3")
    net.run_until_converged(20)
    assert net.state("r5").nodes_with(ServiceRole.TOPOLOGY) == ()


def test_routes_lead_along_shortest_paths_and_change_with_the_graph() -> None:
    net = LinkStateNet(ring(20), GOOD)
    net.run_until_converged(10)
    state = net.state("r0")
    route = state.route_to("r3")
    assert route is not None
    assert (route.hops, route.mtu) == (3, MTU)
    zfilter = ZFilter.from_fid(route.fid)
    for tail, head in (("r0", "r1"), ("r1", "r2"), ("r2", "r3")):
        assert zfilter.names(TAGS.link_tags(tail, head))
    assert zfilter.names(TAGS.internal_tags("r3"))
    assert state.route_to("r3") is route
    assert state.route_to("nowhere") is None
    far = state.route_to("r10")
    assert far is not None
    assert far.hops == 10
    net.set_link("r0", "r1", works=False)
    net.run_until_converged(10)
    round_about = state.route_to("r3")
    assert round_about is not None
    assert round_about.hops == 17
    assert state.relayed_routes == 0


def test_forwarders_with_these_tables_carry_frames_along_these_routes() -> None:
    net = LinkStateNet(grid_graph(4, 4), GOOD)
    net.run_until_converged(10)
    forwarders = {name: Forwarder(net.state(name).table()) for name in net.members}
    for source in net.members:
        for to in net.members:
            route = net.state(source).route_to(to)
            assert route is not None
            frame = build_control(route.fid, Function.NODE, to, b"message")
            arrivals: list[tuple[str, int | None, bytes]] = [(source, None, frame)]
            delivered: list[str] = []
            while arrivals:
                at, link, frame = arrivals.pop()
                decision = forwarders[at].decide(frame, link, now=float(len(delivered)))
                if decision.deliver:
                    delivered.append(at)
                for number in decision.out:
                    neighbour = next(n for n, out in net.state(at).neighbours().items() if out == number)
                    arrivals.append((neighbour, net.state(neighbour).neighbours()[at], decision.frame))
            assert to in delivered
            for name in delivered:
                if name == to:
                    assert parse_control(frame, name).payload == b"message"
                else:
                    with pytest.raises(ControlFrameError, match="another node"):
                        parse_control(frame, name)


def test_a_path_too_long_for_a_filter_leads_over_a_node_that_sends_on() -> None:
    names = [f"n{number:03}" for number in range(80)]
    states = {
        name: NodeState(1, 0, {names[other]: MTU for other in (at - 1, at + 1) if 0 <= other < 80})
        for at, name in enumerate(names)
    }
    routes = Routes("n000", DerivedTags(b"test"), KnownGraph.of(states, "n000"))
    near, far = routes.to("n020"), routes.to("n079")
    assert near is not None
    assert far is not None
    assert (near.relay, near.hops, near.mtu) == (None, 20, MTU)
    # Legs of about equal length, so that none is fuller than it must be.
    assert (far.relay, far.hops, far.mtu) == ("n027", 79, MTU - relay_overhead(1))
    leg = routes.to("n027")
    assert leg is not None
    assert leg.fid == far.fid
    assert routes.over_relays == 1


def test_a_fixed_graph_with_placed_tags_admits_only_its_own_links() -> None:
    planned = ring(6)
    wired = Graph.from_edges(planned.names, [*[(n, (n + 1) % 6) for n in range(6)], (0, 3)])
    tags = PlacedTags(planned, b"test")
    net = LinkStateNet(wired, GOOD, fixed=planned, tags=tags)
    net.cut.add(frozenset(("r0", "r3")))
    net.run_until_converged(10)
    assert net.state("r0").graph().graph.undirected_links == 6
    assert net.state("r0").drops[LinkStateDrop.STRANGER] > 0
    net.set_link("r0", "r1", works=False)
    net.run_until_converged(10)
    assert net.state("r0").table().links == {2: tags.link_tags("r0", "r5")}


Step = tuple[str, int, bool]


@settings(max_examples=25, deadline=None)
@given(
    st.integers(0, 1 << 30),
    st.lists(
        st.tuples(st.sampled_from(["link", "node", "restart", "wait"]), st.integers(0, 99), st.booleans()), max_size=12
    ),
)
def test_any_sequence_of_failures_and_returns_ends_in_the_truth(seed: int, steps: list[Step]) -> None:
    graph = backbone_graph(7, 10, seed % 5)
    net = LinkStateNet(graph, BAD, seed=seed)
    edges = [tuple(sorted(edge)) for edge in net.edges]
    for kind, which, on in steps:
        name = graph.names[which % 7]
        if kind == "link":
            one, other = edges[which % len(edges)]
            net.set_link(one, other, works=on)
        elif kind == "node" and on != (net.members[name].state is not None):
            (net.start if on else net.stop)(name)
        elif kind == "restart" and net.members[name].state is not None:
            net.start(name)
        net.run(which / 25)
    net.run_until_converged(60, step=0.5)


def test_a_node_that_was_held_up_itself_does_not_take_its_neighbours_for_dead() -> None:
    state = node()
    state.receive(1, hello("b", "a"), 0.0)
    state.handle_timer(30.0)  # the loop was busy: hellos wait in a queue
    assert state.neighbours() == {"b": 1}
    state.receive(1, hello("b", "a"), 30.0)
    state.handle_timer(31.0)
    assert state.neighbours() == {"b": 1}
    timer = state.next_timer()
    while timer is not None and timer < 40:
        state.handle_timer(timer)
        timer = state.next_timer()
    assert state.neighbours() == {}


def test_while_news_keep_coming_the_graph_is_worked_out_ever_more_seldom() -> None:
    state = node()
    state.receive(1, hello("b", "a"), 0.0)
    worked_out = 0
    for tick in range(1, 2000):
        now = tick / 1000
        neighbours = (("a", MTU), (f"n{tick}", MTU))
        state.receive(1, flooded(messages.LinkState("b", 1, tick, 0, neighbours)), now)
        other = messages.LinkState(f"n{tick}", 1, 1, 0, (("b", MTU),))
        state.receive(1, flooded(other), now)
        timer = state.next_timer()
        if timer is not None and timer <= now:
            state.handle_timer(now)
        worked_out += GraphChanged() in events(state)
    assert 8 < worked_out < 25
    assert state.graph().numbers.keys() > {"a", "b"}
