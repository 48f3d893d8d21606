"""What the ancestors lacked, and what applications may rely on: whole networks on a virtual clock."""

import json
import random
from dataclasses import replace

import pytest

from psirp_stack.control.codes import Code, ServiceRole
from psirp_stack.control.messages import ROOT_SCOPE
from psirp_stack.control.tag_source import DerivedTags
from psirp_stack.emulation.simulation import SimulatedNetwork
from psirp_stack.forwarding_model import FILTER_BITS, Tags
from psirp_stack.graph import Graph
from psirp_stack.links.impairment import Impairment
from psirp_stack.node.applications import RequestTableConfig
from psirp_stack.node.attachment import AskPaths, Done, Why
from psirp_stack.node.paths import describe_paths
from psirp_stack.node.settings import NodeSettings
from psirp_stack.rendezvous import RendezvousConfig
from tests.psirp_stack.simulated import Networks, Orders, item, line, ring, scope, served, star

ITEM = item(7)


def explained(network: SimulatedNetwork, by: str, wanted: object = ITEM) -> Why:
    application = network.application(by)
    asked = application.explain(wanted)  # type: ignore[arg-type]
    assert network.run_until(lambda: application.answer(asked) is not None, 60)
    answer = application.answer(asked)
    application.detach()
    assert isinstance(answer, Why)
    return answer


# What the ancestors lacked.


def test_the_first_update_is_seen_at_once_and_not_only_after_the_second(networks: Networks) -> None:
    network = networks(line(3))
    publisher, subscriber = network.application("n0"), network.application("n2")
    subscriber.subscribe(ITEM)
    network.run(2)
    publisher.publish(ITEM, b"first")
    network.run(1)
    assert subscriber.contents(ITEM) == [b"first"]


def test_the_current_value_can_be_read_before_listening(networks: Networks) -> None:
    network = networks(line(3))
    publisher = network.application("n0")
    publisher.publish(ITEM, b"old")
    publisher.publish(ITEM, b"current")
    network.run(2)
    reader = network.application("n2")
    reader.subscribe(ITEM)
    network.run(2)
    assert reader.contents(ITEM) == [b"current"]
    publisher.publish(ITEM, b"next")
    network.run(1)
    assert reader.contents(ITEM) == [b"current", b"next"]


def test_future_only_leaves_the_current_value_out(networks: Networks) -> None:
    network = networks(line(3))
    publisher = network.application("n0")
    publisher.publish(ITEM, b"current")
    network.run(2)
    reader = network.application("n2")
    reader.subscribe(ITEM, future_only=True)
    network.run(2)
    publisher.publish(ITEM, b"next")
    network.run(2)
    assert reader.contents(ITEM) == [b"next"]


def test_an_update_is_atomic_also_when_segments_are_lost(networks: Networks) -> None:
    network = networks(line(3), impairment=Impairment(delay=0.001, loss=0.2, reorder=0.1), settle=15)
    publisher, subscriber = network.application("n0"), network.application("n2")
    subscriber.subscribe(ITEM)
    versions = [bytes([letter]) * 20_000 for letter in b"abcde"]
    for version in versions:
        publisher.publish(ITEM, version)
        network.run(0.05)
    assert network.run_until(lambda: versions[-1] in subscriber.contents(ITEM), 60)
    got = subscriber.contents(ITEM)
    assert set(got) <= set(versions)  # whole versions and no mixture of two
    assert got == versions[versions.index(got[0]) :]


def test_two_clients_of_one_node_fetch_one_item_at_the_same_time(networks: Networks) -> None:
    network = networks(line(3))
    publisher = network.application("n0")
    publisher.publish(ITEM, b"x" * 100_000)
    network.run(2)
    sent = network.nodes["n0"].sender.counters.fresh_frames
    first, second = network.application("n2"), network.application("n2")
    first.subscribe(ITEM)
    second.subscribe(ITEM)
    network.run(3)
    assert first.contents(ITEM) == second.contents(ITEM) == [b"x" * 100_000]
    # The network carried it once.
    counters = network.nodes["n0"].sender.counters
    segments = -(-100_000 // 1000) + 20
    assert counters.fresh_frames - sent + counters.repaired_segments <= segments


def test_a_network_of_one_node_works_by_itself(networks: Networks) -> None:
    network = networks(Graph.from_edges(["n0"], []))
    publisher, subscriber = network.application("n0"), network.application("n0")
    subscriber.subscribe(ITEM)
    network.run(1)
    publisher.publish(ITEM, b"at home")
    network.run(1)
    assert subscriber.contents(ITEM) == [b"at home"]


@pytest.mark.parametrize(
    ("request_", "code"),
    [
        (lambda a: a.publish_scope(scope(50), scope(99)), Code.FATHER_DOES_NOT_EXIST),
        (lambda a: a.unpublish_scope(scope(98), ROOT_SCOPE), Code.SCOPE_DOES_NOT_EXIST),
        (lambda a: a.publish_scope(ROOT_SCOPE, ROOT_SCOPE), Code.WRONG_IDS),
    ],
)
def test_return_codes_reach_the_application_by_name(networks: Networks, request_: object, code: Code) -> None:
    network = networks(line(2))
    application = network.application("n1")
    asked = request_(application)  # type: ignore[operator]
    network.run(2)
    answer = application.answer(asked)
    assert isinstance(answer, Done)
    assert Code(answer.code).name == code.name
    assert answer.reason


def test_without_a_rendezvous_the_application_is_told_so(networks: Networks) -> None:
    network = networks(line(2), roles={})
    application = network.application("n0")
    asked = application.subscribe(ITEM)
    network.run(60)
    assert application.code(asked) is Code.NO_RENDEZVOUS


# Why does nothing arrive?


def test_explain_says_that_there_is_no_publisher(networks: Networks) -> None:
    network = networks(line(3))
    network.application("n2").subscribe(ITEM)
    network.run(2)
    why = explained(network, "n1")
    assert "no publisher" in why.reason
    assert "'n2'" in why.reason


def test_explain_says_that_there_is_no_subscriber(networks: Networks) -> None:
    network = networks(line(3))
    network.application("n2").publish(ITEM, b"content")
    network.run(2)
    assert "no subscriber" in explained(network, "n1").reason


def test_explain_says_that_nobody_knows_the_item(networks: Networks) -> None:
    why = explained(networks(line(3)), "n1")
    assert "no publisher and no subscriber" in why.reason


def test_explain_says_that_both_sides_match(networks: Networks) -> None:
    network = networks(line(3))
    network.application("n2").publish(ITEM, b"content")
    network.application("n1").subscribe(ITEM)
    network.run(2)
    assert explained(network, "n0").code == Code.SUCCESS


def test_explain_says_that_a_subscriber_cannot_be_reached(networks: Networks) -> None:
    # n2 is behind a link that dies; its lease is long, so the rendezvous still counts on it.
    network = networks(line(4), rendezvous=RendezvousConfig(lease=3000.0))
    network.application("n3").subscribe(ITEM)
    network.run(2)
    network.cut("n2", "n3")
    network.run(10)
    network.application("n1").publish(ITEM, b"content")
    network.run(10)
    why = explained(network, "n1")
    assert why.code == Code.UNREACHABLE
    assert "'n3' is not served" in why.reason


class CrowdedTags:
    """Tags of so many bits that a filter holds few links."""

    def __init__(self) -> None:
        self._few = DerivedTags(b"crowded")

    def link_tags(self, tail: str, head: str) -> Tags:
        return self._crowded(self._few.link_tags(tail, head))

    def internal_tags(self, name: str) -> Tags:
        return self._few.internal_tags(name)

    def _crowded(self, tags: Tags) -> Tags:
        return tuple(sum(1 << bit for bit in random.Random(tag).sample(range(FILTER_BITS), 24)) for tag in tags)


def test_explain_says_that_the_filters_are_too_full(networks: Networks) -> None:
    network = networks(
        line(9), tags=CrowdedTags(), roles={"n4": ServiceRole.RENDEZVOUS | ServiceRole.TOPOLOGY}, settle=10
    )
    publisher, subscriber = network.application("n0"), network.application("n8")
    subscriber.subscribe(ITEM)
    publisher.publish(ITEM, b"content")
    network.run(10)
    why = explained(network, "n4")
    assert subscriber.contents(ITEM) == []
    assert why.code == Code.FILTER_TOO_FULL, why
    assert "does not fit" in why.reason


# Applications of one node.


def test_late_local_subscribers_get_what_the_node_has(networks: Networks) -> None:
    network = networks(line(3))
    publisher, early = network.application("n0"), network.application("n2")
    early.subscribe(ITEM)
    publisher.publish(ITEM, b"one")
    network.run(2)
    publisher.publish(ITEM, b"two")
    network.run(1)
    asked = network.nodes["n0"].sender.counters.fresh_frames
    late = network.application("n2")
    late.subscribe(ITEM)
    network.run(1)
    assert late.contents(ITEM) == [b"two"]
    assert network.nodes["n0"].sender.counters.fresh_frames == asked
    publisher.publish(ITEM, b"three")
    network.run(1)
    assert late.contents(ITEM) == [b"two", b"three"]
    assert early.contents(ITEM) == [b"one", b"two", b"three"]


def test_a_subscriber_on_the_publishers_own_node_gets_everything_once(networks: Networks) -> None:
    network = networks(line(3))
    publisher, local, far = network.application("n1"), network.application("n1"), network.application("n2")
    publisher.publish(ITEM, b"one")
    network.run(1)
    local.subscribe(ITEM)
    far.subscribe(ITEM)
    network.run(2)
    publisher.publish(ITEM, b"two")
    network.run(2)
    assert local.contents(ITEM) == far.contents(ITEM) == [b"one", b"two"]
    assert served(far, ITEM) == served(local, ITEM) == "n1"


def test_everything_since_a_version_follows_within_what_is_retained(networks: Networks) -> None:
    network = networks(line(3))
    publisher = network.application("n0")
    numbers = [publisher.publish(ITEM, b"version %d" % number) for number in range(10)]
    network.run(1)
    answer = publisher.answer(numbers[3])
    assert isinstance(answer, Done)
    for node in ("n2", "n0"):
        late = network.application(node)
        late.subscribe(ITEM, since=answer.version)
        network.run(2)
        assert late.contents(ITEM) == [b"version %d" % number for number in range(4, 10)]


def test_equal_content_is_not_published_again(networks: Networks) -> None:
    network = networks(line(2))
    publisher, subscriber = network.application("n0"), network.application("n1")
    subscriber.subscribe(ITEM)
    network.run(1)
    answers = [publisher.publish(ITEM, b"same") for _ in range(3)]
    network.run(2)
    assert subscriber.contents(ITEM) == [b"same"]
    assert len({publisher.answer(number).version for number in answers}) == 1  # type: ignore[union-attr]


def test_a_slow_application_slows_its_publisher_and_not_its_memory(networks: Networks) -> None:
    network = networks(line(2))
    publisher, slow = network.application("n0"), network.application("n1")
    slow.slow = True
    slow.subscribe(ITEM)
    network.run(2)
    sent = [b"%06d" % number + b"x" * 60_000 for number in range(100)]
    for content in sent:
        publisher.publish(ITEM, content)
    network.run(10)
    assert sum(map(len, slow.contents(ITEM))) <= 2 * 1024 * 1024
    slow.consume_all()
    assert network.run_until(lambda: len(slow.contents(ITEM)) == 100, 60)
    assert slow.contents(ITEM) == sent


def test_an_application_that_handles_nothing_does_not_stop_its_neighbour(networks: Networks) -> None:
    def impatient(settings: NodeSettings) -> NodeSettings:
        return replace(settings, request_table=RequestTableConfig(stuck_after=2.0))

    network = networks(line(2), settings=impatient)
    publisher, stuck, brisk = network.application("n0"), network.application("n1"), network.application("n1")
    stuck.slow = True
    stuck.subscribe(ITEM)
    brisk.subscribe(ITEM)
    network.run(2)
    sent = [b"%06d" % number + b"x" * 60_000 for number in range(60)]
    for content in sent:
        publisher.publish(ITEM, content)
    assert network.run_until(lambda: len(brisk.contents(ITEM)) == 60, 120)
    assert brisk.contents(ITEM) == sent
    assert network.nodes["n1"].request_table.stuck > 0
    assert any("not handled" in skipped.reason for skipped in stuck.skipped)


@pytest.mark.parametrize(("home", "reader"), [("n0", "n3"), ("n3", "n0")])
def test_what_was_published_is_delivered_although_its_publisher_goes_at_once(
    networks: Networks, home: str, reader: str
) -> None:
    """Also where the word to start comes later than the answer to the application, which then goes."""
    network = networks(line(4), impairment=Impairment(delay=0.01))
    subscriber = network.application(reader)
    subscriber.subscribe(ITEM)
    network.run(2)
    publisher = network.application(home)
    publisher.publish(ITEM, b"last words" * 2000)
    assert network.run_until(lambda: bool(publisher.told), 5, 0.001)
    publisher.detach()
    network.run(8)
    assert subscriber.contents(ITEM) == [b"last words" * 2000]
    network.run(8)
    assert explained(network, "n1").publishers == ()  # and then it is withdrawn


def test_an_item_of_which_nobody_has_heard_yet_lingers_for_a_moment(networks: Networks) -> None:
    network = networks(line(4))
    publisher = network.application("n3")
    publisher.publish(ITEM, b"short")
    assert network.run_until(lambda: bool(publisher.told), 5, 0.001)
    publisher.detach()
    network.run(0.5)
    assert explained(network, "n1").publishers == ("n3",)
    late = network.application("n1")
    late.subscribe(ITEM)
    network.run(5)
    assert late.contents(ITEM) == [b"short"]
    assert explained(network, "n2").publishers == ()


def test_a_publisher_that_returns_while_its_item_lingers_goes_on(networks: Networks) -> None:
    network = networks(line(3))
    subscriber = network.application("n2")
    subscriber.subscribe(ITEM)
    network.run(1)
    for number in range(5):
        publisher = network.application("n0")
        publisher.publish(ITEM, b"%d" % number)
        network.run(0.001)
        publisher.detach()
        network.run(0.3)
    network.run(10)
    assert subscriber.contents(ITEM) == [b"0", b"1", b"2", b"3", b"4"]


def test_a_dead_application_leaves_nothing_behind_at_its_node(networks: Networks) -> None:
    network = networks(line(2))
    dead = network.application("n1")
    for number in range(1, 6):
        dead.subscribe(item(number))
        dead.publish(item(100 + number), b"content")
    dead.subscribe_scope(scope(1))
    network.run(2)
    request_table = network.nodes["n1"].request_table
    assert (request_table.subscribed_items, request_table.published_items) == (5, 5)
    dead.detach()
    network.run(30)
    assert (request_table.subscribed_items, request_table.published_items, request_table.applications) == (0, 0, [])
    assert not network.nodes["n1"].intents._intents
    for number in (1, 101):
        why = explained(network, "n0", item(number))
        assert (why.publishers, why.subscribers) == ((), ())


def test_of_two_publishers_on_two_nodes_the_nearest_serves(networks: Networks) -> None:
    network = networks(line(5))
    left, right = network.application("n0"), network.application("n4")
    left.publish(ITEM, b"left")
    right.publish(ITEM, b"right")
    near_left, near_right = network.application("n1"), network.application("n3")
    near_left.subscribe(ITEM)
    near_right.subscribe(ITEM)
    network.run(3)
    assert near_left.contents(ITEM) == [b"left"]
    assert near_right.contents(ITEM) == [b"right"]


# Links and nodes that die.


def test_nothing_in_flight_is_lost_when_a_link_dies_and_returns(networks: Networks) -> None:
    network = networks(ring(6), impairment=Impairment(delay=0.01, bandwidth=2_000_000))
    publisher, subscriber = network.application("n1"), network.application("n3")
    subscriber.subscribe(ITEM)
    publisher.publish(ITEM, b"first")
    assert network.run_until(lambda: bool(subscriber.contents(ITEM)), 20)
    sent = [b"first"]
    for number in range(60):
        sent.append(b"%03d" % number + b"x" * 20_000)
        publisher.publish(ITEM, sent[-1])
        if number == 15:
            network.run(0.05)  # in the middle of a version
            network.cut("n2", "n3")
        if number == 40:
            network.mend("n2", "n3")
        network.run(0.3)
    assert network.run_until(lambda: len(subscriber.contents(ITEM)) == len(sent), 60)
    assert subscriber.contents(ITEM) == sent
    assert subscriber.skipped == []


def test_filters_are_made_again_when_a_link_dies_and_start_is_sent_again(networks: Networks) -> None:
    network = networks(ring(5))
    orders = Orders(network.nodes["n1"])
    publisher, subscriber = network.application("n1"), network.application("n3")
    subscriber.subscribe(ITEM)
    publisher.publish(ITEM, b"one")
    network.run(2)
    network.cut("n2", "n3")
    network.run(10)
    publisher.publish(ITEM, b"two")
    network.run(2)
    assert subscriber.contents(ITEM) == [b"one", b"two"]
    assert len(orders.starts) == 2
    assert orders.starts[0].filters != orders.starts[1].filters


def test_a_rendezvous_that_is_killed_and_returns_goes_on_where_it_was(networks: Networks) -> None:
    network = networks(ring(5))
    publisher, subscriber = network.application("n1"), network.application("n3")
    subscriber.subscribe(ITEM)
    publisher.publish(ITEM, b"one")
    network.run(2)
    network.kill("n0")
    network.run(8)
    publisher.publish(ITEM, b"two")  # nobody needs the rendezvous for that
    network.run(2)
    assert subscriber.contents(ITEM) == [b"one", b"two"]
    network.start("n0")
    network.run(10)
    late = network.application("n4")
    late.subscribe(ITEM)
    network.run(5)
    assert late.contents(ITEM) == [b"two"]
    publisher.publish(ITEM, b"three")
    network.run(2)
    assert subscriber.contents(ITEM) == [b"one", b"two", b"three"]
    assert late.contents(ITEM) == [b"two", b"three"]


def test_a_node_that_vanishes_is_forgotten_when_its_lease_ends(networks: Networks) -> None:
    network = networks(line(3), rendezvous=RendezvousConfig(lease=10.0))
    network.application("n2").subscribe(ITEM)
    network.run(2)
    assert explained(network, "n0").subscribers == ("n2",)
    network.kill("n2")
    network.run(60)
    assert explained(network, "n0").subscribers == ()


# Multicast.


@pytest.mark.parametrize("subscribers", [200])
def test_the_publishers_link_carries_what_the_plan_says_and_not_a_copy_each(
    networks: Networks, subscribers: int
) -> None:
    """A publisher behind one link, 200 subscribers on nodes of their own: 20 arms of 10."""
    arms, length = 20, subscribers // 20
    names = ["hub", "source", *(f"a{arm}-{place}" for arm in range(arms) for place in range(length))]
    edges = [(0, 1)]
    for arm in range(arms):
        first = 2 + arm * length
        edges.append((0, first))
        edges += [(first + place, first + place + 1) for place in range(length - 1)]
    carried: list[bytes] = []

    def tap(sender: str, receiver: str, sent: bytes) -> None:
        if (sender, receiver) == ("source", "hub") and sent.endswith(b"counted" * 10):
            carried.append(sent)

    network = networks(
        Graph.from_edges(names, edges), settle=8, roles={"hub": ServiceRole.RENDEZVOUS | ServiceRole.TOPOLOGY}, tap=tap
    )
    orders = Orders(network.nodes["source"])
    listeners = [network.application(name) for name in names[2:]]
    for listener in listeners:
        listener.subscribe(ITEM)
    network.run(2)
    publisher = network.application("source")
    publisher.publish(ITEM, b"first")
    assert network.run_until(lambda: all(listener.contents(ITEM) for listener in listeners), 60, 0.5)
    network.run(2)
    plan = orders.starts[-1].filters
    assert sum(len(grant.subscribers) for grant in plan) == subscribers
    carried.clear()
    publisher.publish(ITEM, b"counted" * 10)
    assert network.run_until(lambda: all(len(x.contents(ITEM)) == 2 for x in listeners), 60, 0.5)
    network.run(2)
    assert len(carried) == len(plan) < subscribers


def test_a_star_of_subscribers_shares_filters(networks: Networks) -> None:
    network = networks(star(12))
    orders = Orders(network.nodes["n1"])
    others = [network.application(f"n{number}") for number in range(2, 13)]
    for other in others:
        other.subscribe(ITEM)
    network.run(2)
    network.application("n1").publish(ITEM, b"to all")
    network.run(3)
    assert all(other.contents(ITEM) == [b"to all"] for other in others)
    assert len(orders.starts[-1].filters) < len(others)


# Which links a filter lights up.


def test_every_node_tells_the_same_links_and_the_publisher_those_it_was_given(networks: Networks) -> None:
    network = networks(ring(6))
    publisher, subscriber = network.application("n0"), network.application("n2")
    subscriber.subscribe(ITEM)
    publisher.publish(ITEM, b"first")
    assert network.run_until(lambda: subscriber.contents(ITEM) == [b"first"], 60)
    why = explained(network, "n4")
    asked = AskPaths(1, bytes(ITEM.sid), bytes(ITEM.rid), why.publishers, why.subscribers)
    told = {name: json.loads(describe_paths(network.nodes[name], asked)) for name in ("n0", "n2", "n4")}
    (sent,) = told["n0"]["filters"]
    assert sent["as_sent"]
    assert sent["links"] == [["n0", "n1"], ["n1", "n2"]]
    assert sent["missing"] == []
    for name in ("n2", "n4"):
        (planned,) = told[name]["filters"]
        assert not planned.pop("as_sent")
        assert planned == {key: value for key, value in sent.items() if key != "as_sent"}


def test_a_link_that_matches_by_mistake_is_told_apart(networks: Networks) -> None:
    class Careless(DerivedTags):
        """Two links of one node have the same tags: a filter for one matches the other."""

        def link_tags(self, tail: str, head: str) -> Tags:
            return super().link_tags(tail, "n2" if (tail, head) == ("n1", "n3") else head)

    graph = Graph.from_edges(["n0", "n1", "n2", "n3"], [(0, 1), (1, 2), (1, 3)])
    network = networks(graph)
    node = network.nodes["n0"]
    node.settings = replace(node.settings, tags=Careless(b"careless"))
    (shown,) = json.loads(describe_paths(node, AskPaths(1, bytes(32), bytes(32), ("n0",), ("n2",))))["filters"]
    assert shown["links"] == [["n0", "n1"], ["n1", "n2"]]
    assert shown["mistaken"] == [["n1", "n3"]]


def test_paths_of_strangers_and_of_nobody_are_none(networks: Networks) -> None:
    node = networks(line(2)).nodes["n0"]
    for publishers, subscribers in (((), ("n1",)), (("n0",), ()), (("x",), ("y",)), (("n0",), ("n0",))):
        asked = AskPaths(1, bytes(32), bytes(32), publishers, subscribers)
        assert json.loads(describe_paths(node, asked)) == {"filters": [], "left_out": 0}
