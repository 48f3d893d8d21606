"""The ten checks that the facts about PSIRP hold an emulator to, each on a whole network of real nodes."""

from collections import Counter

import pytest

from identifiers import HashName
from identifiers.content import version_id
from psirp_stack.control.codes import Code
from psirp_stack.control.messages import ROOT_SCOPE
from psirp_stack.emulation.simulation import SimulatedNetwork
from psirp_stack.forwarding_model import BROADCAST_FID, Drop
from psirp_stack.links.impairment import Impairment
from psirp_stack.node.attachment import ScopeChanged
from psirp_stack.wire.codec import build, parse
from psirp_stack.wire.numbers import FID_OFFSET, HEADER_BYTES, INITIAL_TTL, NEXT_OFFSET, TTL_OFFSET, HeaderType
from tests.psirp_stack.frames import frame
from tests.psirp_stack.simulated import Networks, Orders, item, line, ring, scope

ITEM = item(7)
PUBLISHES = (int(HeaderType.PUBLISH_DATA), int(HeaderType.PUBLISH_METADATA))


class Wire:
    """Every frame that a node sent by a link, with both ends."""

    def __init__(self) -> None:
        self.frames: list[tuple[str, str, bytes]] = []

    def __call__(self, sender: str, receiver: str, sent: bytes) -> None:
        self.frames.append((sender, receiver, sent))


def injected(network: SimulatedNetwork, at: str, by: str, sent: bytes) -> None:
    """A frame that comes to a node by the link from a neighbour."""
    network.nodes[at].receive(network.nodes[at].link_state.neighbours()[by], [sent], network.clock.now())
    network.run(0.01)


def test_check_01_header_sizes_and_chains_on_the_wire_are_those_of_the_format(networks: Networks) -> None:
    assert (HEADER_BYTES[HeaderType.FORWARDING], HEADER_BYTES[HeaderType.PUBLISH_DATA]) == (42, 112)
    assert HEADER_BYTES[HeaderType.METADATA] == 152
    wire = Wire()
    network = networks(line(3), tap=wire)
    network.application("n0").publish(ITEM, b"x" * 5000)
    network.application("n2").subscribe(ITEM)
    network.run(3)
    kinds: Counter[HeaderType] = Counter()
    for _, _, sent in wire.frames:
        parsed = parse(sent)
        assert build(parsed) == sent
        assert parsed.rendezvous is not None
        kinds[HeaderType(parsed.rendezvous.type)] += 1
        headers = 42 + 112 + (152 if parsed.metadata is not None else 0)
        assert len(sent) == headers + len(parsed.payload or b"")
    assert kinds[HeaderType.PUBLISH_METADATA]
    assert kinds[HeaderType.PUBLISH_DATA]
    assert kinds[HeaderType.SUBSCRIBE_METADATA]


def test_check_02_ttl_falls_by_one_a_hop_and_ends_at_zero(networks: Networks) -> None:
    wire = Wire()
    network = networks(line(4), tap=wire)
    subscriber = network.application("n3")
    subscriber.subscribe(ITEM)
    network.application("n0").publish(ITEM, b"far")
    network.run(3)
    assert subscriber.contents(ITEM) == [b"far"]
    for hops in range(3):
        ttls = {
            sent[TTL_OFFSET]
            for sender, receiver, sent in wire.frames
            if (sender, receiver) == (f"n{hops}", f"n{hops + 1}")
            and sent[NEXT_OFFSET] in PUBLISHES
            and parse(sent).rendezvous.sid == bytes(ITEM.sid)  # type: ignore[union-attr]
        }
        assert ttls == {INITIAL_TTL - 1 - hops}  # the publisher's own forwarder is the first to count
    dying = next(sent for sender, _, sent in wire.frames if sender == "n0" and sent[NEXT_OFFSET] in PUBLISHES)
    route = network.nodes["n0"].link_state.route_to("n3")
    assert route is not None
    before = network.nodes["n1"].forwarder.statistics.drops[Drop.TTL_EXPIRED]
    wire.frames.clear()
    last_breath = dying[:TTL_OFFSET] + b"\x01" + dying[TTL_OFFSET + 1 : FID_OFFSET] + route.fid
    injected(network, "n1", "n0", last_breath + dying[FID_OFFSET + 32 :])
    assert network.nodes["n1"].forwarder.statistics.drops[Drop.TTL_EXPIRED] == before + 1
    assert not [sent for sender, _, sent in wire.frames if sender == "n1" and sent[FID_OFFSET:42] == route.fid]


def test_check_03_a_filter_with_more_than_half_its_bits_is_dropped_and_counted(networks: Networks) -> None:
    wire = Wire()
    network = networks(line(3), tap=wire)
    wire.frames.clear()
    crowded = b"\xff" * 30 + b"\x00\x00"
    injected(network, "n1", "n0", frame(crowded, HeaderType.PUBLISH_DATA))
    assert network.nodes["n1"].forwarder.statistics.drops[Drop.OVERFULL] == 1
    assert not [sent for _, _, sent in wire.frames if sent[FID_OFFSET:42] == crowded]


def test_check_04_nothing_goes_back_by_the_interface_it_came_by(networks: Networks) -> None:
    wire = Wire()
    network = networks(ring(6), tap=wire)
    tags = network.nodes["n1"].settings.tags
    both = tags.link_tags("n1", "n0")[0] | tags.link_tags("n1", "n2")[0]
    filter_ = both.to_bytes(31, "big") + b"\x00"
    wire.frames.clear()
    injected(network, "n1", "n0", frame(filter_, HeaderType.PUBLISH_DATA))
    went = {(sender, receiver) for sender, receiver, sent in wire.frames if sent[FID_OFFSET:42] == filter_}
    assert ("n1", "n2") in went
    assert ("n1", "n0") not in went


def test_check_05_the_all_ones_filter_is_delivered_one_hop_and_never_forwarded(networks: Networks) -> None:
    wire = Wire()
    network = networks(line(3), tap=wire)
    marked = frame(BROADCAST_FID, HeaderType.PUBLISH_DATA, payload=b"to all neighbours")
    delivered = network.nodes["n1"].forwarder.statistics.delivered
    wire.frames.clear()
    injected(network, "n1", "n0", marked)
    assert network.nodes["n1"].forwarder.statistics.delivered > delivered
    assert not [sent for _, _, sent in wire.frames if sent.endswith(b"to all neighbours")]


def test_check_06_republishing_a_scope_tells_the_new_parent_once_and_the_new_path_only(networks: Networks) -> None:
    network = networks(line(3))
    owner = network.application("n1")
    old, new, child = scope(10), scope(11), scope(12)
    for made, parent in ((old, ROOT_SCOPE), (new, ROOT_SCOPE), (child, old)):
        asked = owner.publish_scope(made, parent)
        network.run(1)
        assert owner.code(asked) is Code.SUCCESS
    watcher_of_old, watcher_of_new = network.application("n0"), network.application("n2")
    watcher_of_old.subscribe_scope(old)
    watcher_of_new.subscribe_scope(new)
    network.run(1)
    assert watcher_of_old.scopes == [ScopeChanged(old, child, True, True)]
    assert watcher_of_new.scopes == []
    owner.publish_scope(child, new)
    network.run(2)
    assert watcher_of_new.scopes == [ScopeChanged(new, child, True, True)]
    assert watcher_of_old.scopes == [ScopeChanged(old, child, True, True)]


@pytest.mark.parametrize("subscriber_first", [True, False])
def test_check_07_both_orders_end_in_the_same_state_and_one_start(networks: Networks, subscriber_first: bool) -> None:
    network = networks(line(4))
    orders = Orders(network.nodes["n1"])
    publisher, subscriber = network.application("n1"), network.application("n3")
    steps = [lambda: subscriber.subscribe(ITEM), lambda: publisher.publish(ITEM, b"content")]
    for step in steps if subscriber_first else reversed(steps):
        step()
        network.run(2)
    assert subscriber.contents(ITEM) == [b"content"]
    assert len(orders.starts) == 1
    assert [grant.subscribers for grant in orders.starts[0].filters] == [("n3",)]
    asked = publisher.explain(ITEM)
    network.run(1)
    why = publisher.answer(asked)
    assert (why.code, why.publishers, why.subscribers) == (Code.SUCCESS, ("n1",), ("n3",))  # type: ignore[union-attr]


@pytest.mark.parametrize("way", ["unsubscribe", "die"])
def test_check_08_the_last_unsubscribe_gives_one_stop_and_a_death_is_equal(networks: Networks, way: str) -> None:
    network = networks(line(4))
    orders = Orders(network.nodes["n0"])
    publisher = network.application("n0")
    first, second = network.application("n3"), network.application("n3")
    publisher.publish(ITEM, b"one")
    first.subscribe(ITEM)
    second.subscribe(ITEM)
    network.run(2)
    assert first.contents(ITEM) == second.contents(ITEM) == [b"one"]

    first.unsubscribe(ITEM) if way == "unsubscribe" else first.detach()
    network.run(2)
    assert orders.stops == []
    second.unsubscribe(ITEM) if way == "unsubscribe" else second.detach()
    network.run(2)
    assert len(orders.stops) == 1
    assert len(orders.starts) == 1
    asked = publisher.explain(ITEM)
    network.run(1)
    assert publisher.answer(asked).subscribers == ()  # type: ignore[union-attr]


def test_check_08_a_dead_publisher_is_equal_to_unpublishing_everything(networks: Networks) -> None:
    network = networks(line(3))
    publisher, other = network.application("n0"), network.application("n2")
    items = [item(number) for number in range(1, 6)]
    for published in items:
        publisher.publish(published, b"content")
    network.run(1)
    publisher.detach()
    network.run(15)
    for published in items:
        asked = other.explain(published)
        network.run(0.5)
        assert other.answer(asked).publishers == ()  # type: ignore[union-attr]


def test_check_09_equal_content_has_an_equal_version_id_on_two_nodes_in_any_order(networks: Networks) -> None:
    network = networks(ring(4))
    contents = [b"a" * 3000, b"b" * 10, b"c" * 12288]
    seen = []
    for node, order in (("n1", contents), ("n3", contents[::-1])):
        publisher = network.application(node)
        numbers = {content: publisher.publish(item(int(node[1])), content) for content in order}
        network.run(1)
        seen.append({content: publisher.answer(number).version for content, number in numbers.items()})  # type: ignore[union-attr]
    assert seen[0] == seen[1] == {content: bytes(version_id(content, HashName.SHA256)) for content in contents}


@pytest.mark.parametrize("loss", [0.1, 0.3, 0.5])
def test_check_10_control_loss_delays_the_match_and_start_is_seen_once(networks: Networks, loss: float) -> None:
    network = networks(line(3), impairment=Impairment(delay=0.002, loss=loss), settle=20)
    orders = Orders(network.nodes["n0"])
    publisher, subscriber = network.application("n0"), network.application("n2")
    asked = subscriber.subscribe(ITEM)
    publisher.publish(ITEM, b"in spite of all")
    assert network.run_until(lambda: subscriber.contents(ITEM) == [b"in spite of all"], 120)
    assert subscriber.code(asked) is Code.SUCCESS
    network.run(20)
    generations = [start.generation for start in orders.starts]
    assert len(generations) == len(set(generations))
    assert subscriber.contents(ITEM) == [b"in spite of all"]
