"""The transport over simulated networks: multicast, repair, order, flow control, late subscribers, new grants."""

import hashlib
import random

import pytest

from psirp_stack.control.messages import OPEN_SCOPE, ScopePolicy
from psirp_stack.links.impairment import Impairment
from psirp_stack.transport.config import TransportConfig
from psirp_stack.transport.events import ReceiverCaughtUp, ReceiverLeftBehind, VersionAcknowledged
from psirp_stack.transport.messages import Announcement
from psirp_stack.transport.sender import TransportFull
from psirp_stack.transport.versions import RetentionLimits, content_ids
from psirp_stack.wire.codec import AuthenticationHeader, Frame, MetadataHeader, build, parse
from psirp_stack.wire.numbers import FORWARDING_BYTES, RENDEZVOUS_BYTES, HeaderType
from tests.psirp_stack.transport.transport_network import ITEM, WALL_START_MS, Network, item_named, line, ring, star

BAD = Impairment(delay=0.003, jitter=0.001, loss=0.15, reorder=0.1, duplication=0.05)


def content(number: int, size: int = 100) -> bytes:
    return random.Random(number).randbytes(size)


def sender_events(net: Network, node: int = 0) -> list[object]:
    events = []
    while (event := net.hosts[node].sender.next_event()) is not None:
        events.append(event)
    return events


def test_a_version_arrives_with_all_that_was_said_about_it() -> None:
    net = Network(line(4))
    net.subscribe(3)
    net.grant(0, [3])
    net.run(0.5)
    net.publish(0, b"content", b"attributes")
    net.run(1)
    (arrived,) = net.hosts[3].arrived
    assert (arrived.item, arrived.publisher, arrived.number) == (ITEM, "n0", 1)
    assert (arrived.content, arrived.attributes, arrived.signer) == (b"content", b"attributes", None)
    assert arrived.version_id == content_ids(b"content")[0]
    assert arrived.published_ms == WALL_START_MS + 500
    assert sender_events(net) == [VersionAcknowledged(ITEM, arrived.epoch, 1)]
    assert net.hosts[3].receiver.held_bytes == 0


@pytest.mark.parametrize("size", [0, 1, 1345, 1346, 1347, 4096, 100_000])
@pytest.mark.parametrize("attributes", [0, 256, 257, 4096])
def test_all_sizes_of_content_and_attributes_arrive(size: int, attributes: int) -> None:
    net = Network(line(3))
    net.subscribe(2)
    net.grant(0, [2])
    net.publish(0, content(1, size), content(2, attributes))
    net.run(2)
    assert [(version.content, version.attributes) for version in net.hosts[2].arrived] == [
        (content(1, size), content(2, attributes))
    ]
    assert max(link.counters.oversized for link in net.links.values()) == 0


def test_the_publishers_link_carries_one_copy_for_each_filter_not_for_each_receiver() -> None:
    net = Network(star(50))
    leaves = range(2, 52)
    for leaf in leaves:
        net.subscribe(leaf)
    net.grant(0, leaves)
    for number in range(20):
        net.publish(0, content(number, 3000))
    net.run(5)
    assert all(net.hosts[leaf].contents == [content(number, 3000) for number in range(20)] for leaf in leaves)
    assert net.crossed_kinds[(0, 1), HeaderType.PUBLISH_METADATA] == 20
    assert net.crossed_kinds[(0, 1), HeaderType.PUBLISH_DATA] == 20 * 3
    assert net.hosts[0].sender.counters.repaired_segments == 0


def test_two_filters_carry_two_copies() -> None:
    net = Network(star(20))
    for leaf in range(2, 22):
        net.subscribe(leaf)
    net.grant(0, range(2, 12), range(12, 22))
    net.publish(0, content(1, 2000))
    net.run(2)
    assert all(net.hosts[leaf].numbers == [1] for leaf in range(2, 22))
    assert net.crossed_kinds[(0, 1), HeaderType.PUBLISH_DATA] == 2 * 2


def test_loss_reordering_and_duplication_are_repaired_for_many_receivers() -> None:
    net = Network(star(20), impairment=BAD, seed=3)
    for leaf in range(2, 22):
        net.subscribe(leaf)
    net.grant(0, range(2, 22))
    sent = []
    for number in range(30):
        sent.append(content(number, 1 + number * 300))
        net.publish(0, sent[-1])
        net.run(0.01)
    net.run(60)
    for leaf in range(2, 22):
        assert net.hosts[leaf].contents == sent
    events = sender_events(net)
    assert isinstance(events[-1], VersionAcknowledged) and events[-1].number == 30


def test_sixteen_mebibytes_arrive_over_a_lossy_path() -> None:
    net = Network(line(3), impairment=Impairment(delay=0.002, loss=0.02, bandwidth=1e9))
    net.subscribe(2)
    net.grant(0, [2])
    big = content(1, 16 * 1024 * 1024)
    net.publish(0, big)
    net.run(120)
    assert net.hosts[2].contents == [big]
    assert net.hosts[2].receiver.held_bytes == 0


def test_segments_fit_the_narrowest_link_on_the_way() -> None:
    net = Network(line(4), mtus={(1, 2): 900})
    net.subscribe(3)
    net.grant(0, [3])
    net.publish(0, content(1, 10_000), content(2, 1000))
    net.run(2)
    assert net.hosts[3].contents == [content(1, 10_000)]
    assert max(link.counters.oversized for link in net.links.values()) == 0


def test_a_new_way_with_a_smaller_mtu_in_the_middle_of_a_version() -> None:
    slow = Impairment(delay=0.01, loss=0.1, bandwidth=2e6)
    net = Network([(0, 1), (1, 3), (0, 2), (2, 3)], mtus={(2, 3): 900}, impairment=slow)
    net.subscribe(3)
    net.grant(0, [3])
    net.publish(0, content(1, 300_000))
    net.run(0.5)
    assert not net.hosts[3].arrived
    net.down.add(frozenset((0, 1)))
    net.grant(0, [3])
    net.run(60)
    assert net.hosts[3].contents == [content(1, 300_000)]


def test_a_late_subscriber_gets_the_current_version_at_once_and_the_others_do_not_get_it_again() -> None:
    net = Network(star(3))
    net.subscribe(2)
    net.grant(0, [2])
    for number in range(3):
        net.publish(0, content(number))
    net.run(1)
    before = net.crossed[1, 2]
    net.subscribe(3)
    net.grant(0, [2, 3])
    net.run(1)
    assert net.hosts[3].numbers == [3]
    assert net.crossed_kinds[(1, 2), HeaderType.PUBLISH_DATA] == 0, "announcements carry what is short"
    assert net.crossed[1, 2] == before
    net.publish(0, content(9))
    net.run(1)
    assert (net.hosts[2].numbers, net.hosts[3].numbers) == ([1, 2, 3, 4], [3, 4])


def test_publish_and_subscribe_in_either_order() -> None:
    for publish_first in (True, False):
        net = Network(line(3))
        if publish_first:
            net.publish(0, b"x")
        net.subscribe(2)
        net.grant(0, [2])
        net.run(1)
        if not publish_first:
            net.publish(0, b"x")
        net.run(1)
        assert net.hosts[2].contents == [b"x"]


def test_one_who_wants_only_the_future_does_not_get_the_current_version() -> None:
    net = Network(line(3))
    net.publish(0, b"old")
    net.run(1)
    net.subscribe(2, future_only=True)
    net.grant(0, [2])
    net.run(1)
    assert not net.hosts[2].arrived
    net.publish(0, b"new")
    net.run(1)
    assert net.hosts[2].contents == [b"new"]


@pytest.mark.parametrize("by_number", [True, False])
def test_everything_since_a_version_arrives(by_number: bool) -> None:
    net = Network(line(3), impairment=BAD, seed=5)
    for number in range(200):
        net.publish(0, content(number))
    epoch = net.hosts[0].sender.current(ITEM).epoch  # type: ignore[union-attr]
    since = (epoch, 50) if by_number else content_ids(content(49))[0]
    net.subscribe(2, since=since)
    net.grant(0, [2])
    net.run(60)
    assert net.hosts[2].numbers == list(range(51, 201))
    assert not net.hosts[2].skipped


def test_since_a_version_that_is_not_retained_gives_all_that_is_and_says_so() -> None:
    net = Network(line(2), limits=RetentionLimits(count=10))
    for number in range(30):
        net.publish(0, content(number))
    net.subscribe(1, since=content_ids(content(3))[0])
    net.grant(0, [1])
    net.run(5)
    assert net.hosts[1].numbers == list(range(21, 31))
    assert "not retained" in net.hosts[1].skipped[0].reason


def test_versions_that_left_the_window_while_a_receiver_was_away_are_skipped_and_told() -> None:
    net = Network(line(3), limits=RetentionLimits(count=5))
    net.subscribe(2)
    net.grant(0, [2])
    net.publish(0, content(0))
    net.run(1)
    net.down.add(frozenset((1, 2)))
    net.grant(0, [2])
    for number in range(1, 21):
        net.publish(0, content(number))
    net.run(1)
    net.down.clear()
    net.grant(0, [2])
    net.run(10)
    assert net.hosts[2].numbers == [1, 17, 18, 19, 20, 21]
    assert [(skip.first, skip.last) for skip in net.hosts[2].skipped] == [(2, 16)]
    assert net.hosts[2].receiver.counters.skipped == 15


def test_a_b_a_arrives_as_three_versions() -> None:
    for impairment in (Impairment(delay=0.001), BAD):
        net = Network(line(3), impairment=impairment)
        net.subscribe(2)
        net.grant(0, [2])
        for what in (b"A" * 3000, b"B" * 3000, b"A" * 3000):
            net.publish(0, what)
        net.run(20)
        assert [version.content[:1] for version in net.hosts[2].arrived] == [b"A", b"B", b"A"]


def test_equal_content_with_other_attributes_of_the_same_length_keeps_its_attributes() -> None:
    net = Network(line(3), impairment=BAD, seed=11)
    net.subscribe(2)
    net.grant(0, [2])
    for what, attributes in ((b"A", b"x"), (b"B", b"y"), (b"A", b"z"), (b"B", b"x")):
        net.publish(0, what * 3000, attributes * 3000)
    net.run(30)
    assert [(version.content[:1], version.attributes[:1]) for version in net.hosts[2].arrived] == [
        (b"A", b"x"),
        (b"B", b"y"),
        (b"A", b"z"),
        (b"B", b"x"),
    ]


def test_the_same_content_from_another_publisher_is_not_handed_up_again() -> None:
    net = Network(line(4))
    for what in (b"A", b"B"):
        net.publish(0, what)
        net.run(1)
    net.subscribe(1)
    net.grant(0, [1])
    net.run(1)
    net.grant(3, [1])
    for what in (b"B", b"C"):
        net.publish(3, what)
    net.run(1)
    assert [(version.publisher, version.content) for version in net.hosts[1].arrived] == [("n0", b"B"), ("n3", b"C")]
    assert net.hosts[1].receiver.counters.equal_versions == 1


def test_the_same_content_with_other_attributes_is_another_publication() -> None:
    """One publisher goes A, the other B, A: the last A is no repetition of the first."""
    net = Network(line(4))
    net.subscribe(1)
    net.grant(0, [1])
    net.grant(3, [1])
    for node, what, says in ((0, b"A", b"n0: 1"), (3, b"B", b"n3: 1"), (3, b"A", b"n3: 2")):
        net.publish(node, what, says)
        net.run(1)
    assert net.hosts[1].contents == [b"A", b"B", b"A"]
    assert net.hosts[1].receiver.counters.equal_versions == 0


def test_a_publisher_that_takes_over_goes_on_after_what_the_other_has_brought() -> None:
    net = Network(line(4))
    net.subscribe(1)
    net.grant(0, [1])
    for what in (b"A", b"B"):
        net.publish(0, what)
    net.run(1)
    for what in (b"B", b"A", b"B", b"C", b"D"):
        net.publish(3, what)
        net.run(1)
    net.grant(0)
    net.grant(3, [1])
    net.run(2)
    # It had the second A and B later than the first publisher had its last B.
    assert net.hosts[1].contents == [b"A", b"B", b"A", b"B", b"C", b"D"]
    assert net.hosts[1].receiver.counters.equal_versions == 0


def test_a_publisher_that_lost_its_versions_begins_a_new_epoch() -> None:
    net = Network(line(3))
    net.subscribe(2)
    net.grant(0, [2])
    for what in (b"A", b"B", b"C"):
        net.publish(0, what)
    net.run(1)
    net.hosts[0].sender = net.new_sender(0)
    net.grant(0, [2])
    net.publish(0, b"C")
    net.publish(0, b"D")
    net.run(2)
    assert net.hosts[2].contents == [b"A", b"B", b"C", b"D"]
    epochs = [version.epoch for version in net.hosts[2].arrived]
    assert epochs == sorted(epochs) and epochs[0] < epochs[-1]


def test_a_subscriber_that_restarts_gets_the_current_version_without_a_new_grant() -> None:
    net = Network(line(3))
    net.subscribe(2)
    net.grant(0, [2])
    net.publish(0, b"A")
    net.publish(0, b"B")
    net.run(1)
    host = net.hosts[2]
    host.receiver = net.new_receiver(2)
    host.arrived.clear()
    net.subscribe(2)
    host.receiver.served(ITEM, "n0", OPEN_SCOPE, net.clock.now())
    net.pump(2)
    net.run(2)
    assert host.contents == [b"B"]
    net.publish(0, b"C")
    net.run(1)
    assert host.contents == [b"B", b"C"]


def test_nothing_is_lost_when_a_link_dies_and_the_filter_changes() -> None:
    net = Network(ring(8), impairment=Impairment(delay=0.005, loss=0.05))
    net.subscribe(3)
    net.subscribe(5)
    net.grant(0, [3, 5])
    for number in range(300):
        net.publish(0, content(number, 500))
        net.run(0.002)
        if number == 100:
            net.down.add(frozenset((1, 2)))
        if number == 150:
            net.grant(0, [3, 5])
        if number == 220:
            net.down.clear()
            net.grant(0, [3, 5])
    net.run(30)
    for node in (3, 5):
        assert net.hosts[node].numbers == list(range(1, 301))
        assert not net.hosts[node].skipped


def test_a_forwarder_of_a_lossy_ring_dies_and_returns() -> None:
    net = Network(ring(20), impairment=Impairment(delay=0.002, loss=0.1, reorder=0.05), seed=4)
    subscribers = (3, 7, 10, 14, 18)
    for node in subscribers:
        net.subscribe(node)
    net.grant(0, subscribers)
    for number in range(500):
        net.publish(0, content(number))
        net.run(0.02)
        if number == 100:
            net.hosts[5].up = False
        if number in (150, 350):
            net.hosts[5].up = number == 350
            net.grant(0, subscribers)
    net.run(200)
    for node in subscribers:
        assert net.hosts[node].numbers == list(range(1, 501))
        assert not net.hosts[node].skipped


def test_grants_and_revocations_of_the_past_are_ignored() -> None:
    net = Network(line(3))
    net.subscribe(2)
    net.grant(0, [2])
    sender = net.hosts[0].sender
    generation = net.generation
    net.grant(0, [2])
    assert not sender.grant(ITEM, generation, (), net.clock.now())
    assert not sender.revoke(ITEM, generation, net.clock.now())
    net.publish(0, b"x")
    net.run(1)
    assert net.hosts[2].contents == [b"x"]
    assert sender.revoke(ITEM, net.generation + 1, net.clock.now())
    net.publish(0, b"y")
    net.run(1)
    assert net.hosts[2].contents == [b"x"]


def test_a_slow_reader_bounds_what_is_in_flight() -> None:
    net = Network(line(3), config=TransportConfig(left_behind_after=1000))
    net.subscribe(2)
    net.hosts[2].consumes = False
    net.hosts[2].receiver.set_room(ITEM, 20_000, net.clock.now())
    net.grant(0, [2])
    net.publish(0, content(0, 1000))
    net.run(1)
    for number in range(1, 100):
        net.publish(0, content(number, 1000))
    net.run(20)
    host = net.hosts[2]
    assert 10 < len(host.arrived) <= 15
    assert host.receiver.held_bytes < 20_000
    while len(host.arrived) < 100:
        before = len(host.arrived)
        for version in host.arrived[:before]:
            host.receiver.consumed(ITEM, version.cost, net.clock.now())
        net.pump(2)
        net.run(5)
        assert len(host.arrived) > before
    assert host.numbers == list(range(1, 101))


def test_publish_refuses_when_receivers_cannot_follow_and_takes_more_when_they_do() -> None:
    net = Network(line(3), config=TransportConfig(max_pending_bytes=50_000, left_behind_after=1000))
    net.subscribe(2)
    host = net.hosts[2]
    host.consumes = False
    host.receiver.set_room(ITEM, 10_000, net.clock.now())
    net.grant(0, [2])
    net.publish(0, content(0, 5000))
    net.run(1)
    with pytest.raises(TransportFull, match="wait for their receivers"):
        for number in range(1, 100):
            net.publish(0, content(number, 5000))
            net.run(0.1)
    assert net.hosts[0].sender.room(ITEM) < 6000
    assert net.hosts[0].sender.counters.refused_full == 1
    host.consumes = True
    for version in host.arrived:
        host.receiver.consumed(ITEM, version.cost, net.clock.now())
    net.pump(2)
    net.run(5)
    assert net.hosts[0].sender.room(ITEM) == 50_000
    net.publish(0, b"more")
    net.run(1)
    assert host.contents[-1] == b"more"


def test_one_who_stays_silent_is_left_behind_and_catches_up() -> None:
    net = Network(star(3), config=TransportConfig(window_bytes=40_000, left_behind_after=3))
    for leaf in (2, 3):
        net.subscribe(leaf)
    net.grant(0, [2, 3])
    net.publish(0, content(0))
    net.run(1)
    net.down.add(frozenset((1, 3)))
    for number in range(1, 200):
        net.publish(0, content(number, 1000))
    net.run(0.1)
    assert len(net.hosts[2].arrived) < 199, "the window waits for both"
    net.run(6)
    assert net.hosts[2].numbers == list(range(1, 201)), "but not for ever"
    assert any(isinstance(event, ReceiverLeftBehind) and event.subscriber == "n3" for event in sender_events(net))
    net.down.clear()
    net.run(40)
    assert net.hosts[3].numbers == list(range(1, 201))
    assert any(isinstance(event, ReceiverCaughtUp) for event in sender_events(net))


def test_a_full_reader_does_not_stop_the_others_and_catches_up_later() -> None:
    net = Network(star(3), config=TransportConfig(left_behind_after=2))
    for leaf in (2, 3):
        net.subscribe(leaf)
    slow = net.hosts[3]
    slow.consumes = False
    slow.receiver.set_room(ITEM, 5000, net.clock.now())
    net.grant(0, [2, 3])
    for number in range(100):
        net.publish(0, content(number, 1000))
    net.run(10)
    assert net.hosts[2].numbers == list(range(1, 101))
    assert len(slow.arrived) < 20
    slow.consumes = True
    for version in list(slow.arrived):
        slow.receiver.consumed(ITEM, version.cost, net.clock.now())
    net.pump(3)
    net.run(60)
    assert slow.numbers == list(range(1, 101))


def test_without_a_route_everything_goes_by_filters_and_collected_ways() -> None:
    net = Network(star(4), impairment=BAD, routes=False, seed=8)
    for leaf in (2, 3):
        net.subscribe(leaf)
    net.grant(0, [2, 3])
    for number in range(50):
        net.publish(0, content(number, 2000))
    net.run(30)
    net.subscribe(4)
    net.grant(0, [2, 3, 4])
    net.run(5)
    net.publish(0, b"last")
    net.run(30)
    assert net.hosts[2].numbers == net.hosts[3].numbers == list(range(1, 52))
    assert net.hosts[4].numbers == [50, 51]


def test_two_items_do_not_mix() -> None:
    one, other = item_named(10), item_named(20)
    net = Network(line(3), impairment=BAD)
    for item in (one, other):
        net.subscribe(2, item)
        net.grant(0, [2], item=item)
    for number in range(40):
        net.publish(0, content(number), item=one)
        net.publish(0, content(number + 1000), item=other)
    net.run(30)
    for item, shift in ((one, 0), (other, 1000)):
        got = [version.content for version in net.hosts[2].arrived if version.item == item]
        assert got == [content(number + shift) for number in range(40)]


def test_after_unsubscribing_nothing_arrives_and_nothing_is_held() -> None:
    net = Network(line(2), impairment=Impairment(delay=0.001, bandwidth=1e6))
    net.subscribe(1)
    net.grant(0, [1])
    net.publish(0, content(1, 100_000))
    net.run(0.5)
    assert net.hosts[1].receiver.held_bytes > 0
    net.hosts[1].receiver.unsubscribe(ITEM)
    assert net.hosts[1].receiver.held_bytes == 0
    net.run(5)
    assert not net.hosts[1].arrived
    assert net.hosts[1].receiver.counters.not_ours > 0


def test_a_publisher_that_dies_in_the_middle_leaves_no_memory_behind() -> None:
    net = Network(line(2), impairment=Impairment(delay=0.001, bandwidth=1e6))
    net.subscribe(1)
    net.grant(0, [1])
    net.publish(0, content(1, 1_000_000))
    net.run(0.5)
    net.hosts[0].up = False
    net.run(1)
    assert net.hosts[1].receiver.held_bytes > 0
    net.run(60)
    assert net.hosts[1].receiver.held_bytes == 0
    assert net.hosts[1].receiver.counters.timed_out == 1
    assert "does not answer" in net.hosts[1].dropped[-1].reason
    assert net.hosts[1].receiver.next_timer() is None


def test_tampered_content_is_dropped_counted_and_asked_for_again() -> None:
    net = Network(line(3))
    net.subscribe(2)
    net.grant(0, [2])
    spoiled = []
    deliver = net.hosts[2].receiver.receive

    def receive(frame: bytes, now: float) -> bool:
        if frame[1] == HeaderType.PUBLISH_DATA and len(spoiled) < 2:
            spoiled.append(frame)
            frame = frame[:-1] + bytes((frame[-1] ^ 1,))
        return deliver(frame, now)

    net.hosts[2].receiver.receive = receive  # type: ignore[method-assign]
    net.publish(0, content(1, 3000))
    net.run(10)
    assert net.hosts[2].contents == [content(1, 3000)]
    assert net.hosts[2].receiver.counters.tampered == 1
    assert "not what was announced" in net.hosts[2].dropped[0].reason


SIGNER = b"s" * 32


def signature(item: object, header: MetadataHeader, announced: Announcement, now_ms: int) -> AuthenticationHeader:
    """Over what is the same in all frames of a version."""
    attributes = announced.attributes
    digest = attributes if announced.attributes_in_body else hashlib.sha256(attributes).digest()
    facts = (str(item), header.vrid, announced.publisher, announced.epoch, announced.number, announced.sha256, digest)
    covered = content_ids(repr(facts).encode())[1]
    return AuthenticationHeader(SIGNER, now_ms, 1, now_ms + 1000, signature=covered * 2)


def check(
    item: object, header: MetadataHeader, announced: Announcement, found: AuthenticationHeader | None, now_ms: int
) -> str | None:
    if found is None:
        return "it is not signed"
    return None if found.signature == signature(item, header, announced, 0).signature else "the signature does not fit"


def test_signed_versions_are_verified_with_what_was_signed() -> None:
    net = Network(line(3), impairment=BAD, mtus={(1, 2): 900}, receiver_hooks={"verify": check})
    net.subscribe(2)
    net.grant(0, [2])
    for number in range(5):
        net.hosts[0].sender.publish(ITEM, content(number, 3000), content(9, 200 * number), net.clock.now(), signature)
    net.pump(0)
    net.run(20)
    assert net.hosts[2].numbers == [1, 2, 3, 4, 5]
    assert {version.signer for version in net.hosts[2].arrived} == {SIGNER}
    assert net.hosts[2].receiver.counters.refused == 0


def test_a_version_that_is_refused_is_counted_and_does_not_stop_the_next() -> None:
    net = Network(line(3), receiver_hooks={"verify": check})
    net.subscribe(2)
    net.grant(0, [2])
    net.publish(0, b"unsigned")
    net.hosts[0].sender.publish(ITEM, b"signed", b"", net.clock.now(), signature)
    net.pump(0)
    net.run(20)
    assert net.hosts[2].contents == [b"signed"]
    assert net.hosts[2].receiver.counters.refused >= 3
    assert [(skip.first, skip.last) for skip in net.hosts[2].skipped] == [(1, 1)]
    assert {drop.reason for drop in net.hosts[2].dropped} == {"version 1: it is not signed"}
    assert [(skip.first, skip.last) for skip in net.hosts[2].skipped] == [(1, 1)]


def sign_packet(frame: Frame, now_ms: int) -> Frame:
    assert frame.payload is not None
    covered = content_ids(frame.payload)[1] * 2
    return Frame((*frame.headers, AuthenticationHeader(SIGNER, now_ms, 1, now_ms, signature=covered)), frame.payload)


def check_packet(item: object, frame: Frame, now_ms: int) -> str | None:
    assert frame.payload is not None
    header = frame.authentication
    return None if header is not None and header.signature == content_ids(frame.payload)[1] * 2 else "forged"


def test_every_packet_signed() -> None:
    net = Network(line(3), impairment=BAD, receiver_hooks={"verify_packet": check_packet})
    net.subscribe(2)
    net.hosts[0].sender.set_packet_signer(ITEM, sign_packet)
    net.grant(0, [2])
    policy = ScopePolicy(every_packet_signed=True)
    net.hosts[2].receiver.served(ITEM, "n0", policy, net.clock.now())
    net.publish(0, content(1, 30_000))
    net.run(20)
    assert net.hosts[2].contents == [content(1, 30_000)]
    assert max(link.counters.oversized for link in net.links.values()) == 0
    counters = net.hosts[2].receiver.counters
    net.hosts[0].sender.set_packet_signer(ITEM, None)
    net.publish(0, b"unsigned packets")
    net.run(5)
    assert counters.refused > 0
    assert len(net.hosts[2].arrived) == 1


def test_frames_have_the_headers_that_the_design_says() -> None:
    net = Network(line(2))
    long = content(1, 1300)
    net.publish(0, long)
    net.grant(0, [1])
    now = net.clock.now()
    sender = net.hosts[0].sender
    frames = [frame for _ in range(2) if (frame := sender.next_frame(now)) is not None]
    metadata, data = (parse(frame) for frame in frames)
    assert [header.type for header in metadata.headers] == [
        HeaderType.FORWARDING,
        HeaderType.PUBLISH_METADATA,
        HeaderType.METADATA,
    ]
    assert metadata.metadata is not None and data.rendezvous is not None
    assert metadata.metadata.collected_fid[:31] == net.tags[0][0].to_bytes(31, "big")
    assert (metadata.metadata.length, metadata.metadata.max_seqnum) == (1300, 0)
    assert [header.type for header in data.headers] == [HeaderType.FORWARDING, HeaderType.PUBLISH_DATA]
    assert data.payload == long
    assert data.rendezvous.vrid == metadata.metadata.vrid == content_ids(long)[0]
    assert all(build(parse(frame)) == frame for frame in frames)
    assert len(frames[1]) == FORWARDING_BYTES + RENDEZVOUS_BYTES + 1300
    assert sender.next_frame(now) is None


def test_what_is_short_travels_in_its_announcement() -> None:
    net = Network(line(2))
    net.subscribe(1)
    net.grant(0, [1])
    contents = [content(number, size) for number, size in enumerate((0, 1, 900, 1300, 900))]
    for one in contents:
        net.publish(0, one, b"attributes")
    net.run(1)
    assert net.hosts[1].contents == contents
    assert all(version.attributes == b"attributes" for version in net.hosts[1].arrived)
    kinds = [net.crossed_kinds[(0, 1), kind] for kind in (HeaderType.PUBLISH_METADATA, HeaderType.PUBLISH_DATA)]
    assert kinds == [5, 1]
