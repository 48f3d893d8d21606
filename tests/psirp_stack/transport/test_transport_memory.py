"""A receiver's memory is bounded whatever is sent to it, and nobody's share is used up by somebody else."""

import random
import tracemalloc

from hypothesis import given, settings
from hypothesis import strategies as st

from identifiers import ItemId
from psirp_stack.control.messages import OPEN_SCOPE
from psirp_stack.node.awaiting_policy import MAX_BYTES, MAX_BYTES_OF_AN_ITEM, AwaitingPolicy
from psirp_stack.transport.accounts import SLOT_COST, Accounts, ByteHolder
from psirp_stack.transport.config import MAX_CONTENT_BYTES, TransportConfig
from psirp_stack.transport.frames import control_frame, segment_frame, segment_prefix
from psirp_stack.transport.messages import MIN_SEGMENT_BYTES, Announcement, encode, segment_count
from psirp_stack.transport.receiver import Receiver
from psirp_stack.wire.numbers import HeaderType
from tests.psirp_stack.transport.transport_network import ITEM, Network, item_named, line, wall_ms

SMALL = TransportConfig(
    reassembly_bytes=400_000, reassembly_bytes_per_link=300_000, reassembly_bytes_per_source=200_000
)


def announced(
    number: int, segment_size: int, length: int = MAX_CONTENT_BYTES, name: str = "n0", item: ItemId = ITEM
) -> bytes:
    message = Announcement(name, 7, number, 0, b"", 0, bytes(32), segment_size)
    return control_frame(
        HeaderType.PUBLISH_METADATA,
        bytes(32),
        bytes(item),
        number.to_bytes(32, "big"),
        1,
        bytes(32),
        encode(message),
        length=length,
        max_seqnum=segment_count(length, segment_size) - 1,
    )


def segment(number: int, at: int, size: int, item: ItemId = ITEM) -> bytes:
    return segment_frame(segment_prefix(bytes(32), bytes(item), number.to_bytes(32, "big")), at, bytes(size))


def receiver(config: TransportConfig) -> Receiver:
    made = Receiver("n1", 1, (1,) * 8, route_to=lambda name: None, wall_ms=wall_ms, rng=random.Random(1), config=config)
    made.subscribe(ITEM, 0.0)
    return made


def test_announcements_of_many_small_segments_cost_what_was_sent_and_not_what_they_announce() -> None:
    """113 kB of announcements, each of 16 MiB in segments of 64 bytes, took a node from 43 to 605 MB."""
    attacked = receiver(TransportConfig())
    for size in (MIN_SEGMENT_BYTES, 100, 600):
        frames = [announced(number, size) for number in range(1, 271)]
        tracemalloc.start()
        for frame in frames:
            attacked.receive(frame, 0.0, 1)
        grown = tracemalloc.get_traced_memory()[0]
        tracemalloc.stop()
        assert grown < 20 * sum(map(len, frames))
    assert attacked.counters.too_fine >= 270


def test_what_is_held_is_charged_with_its_bookkeeping() -> None:
    attacked = receiver(SMALL)
    attacked.receive(announced(1, 600, 120_000), 0.0, 1)
    tracemalloc.start()
    for at in range(199, 0, -1):
        attacked.receive(segment(1, at, 600), 0.0, 1)
    grown = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    assert grown <= attacked.held_bytes * 1.1


def test_one_publisher_does_not_use_up_the_share_of_another() -> None:
    net = Network(line(2), config=SMALL)
    other = item_named(70)
    net.subscribe(1)
    net.subscribe(1, other)
    attacked = net.hosts[1].receiver
    for name in ("n7", "n8", "n9"):
        # Nobody ever completes these.
        for number in range(1, 4):
            attacked.receive(announced(number, 600, 90_000, name, other), 0.0, "a link of strangers")
            for at in range(1, 149):
                attacked.receive(segment(number, at, 600, other), 0.0, "a link of strangers")
    assert attacked.held_bytes <= SMALL.reassembly_bytes_per_link
    net.grant(0, [1])
    net.publish(0, b"x" * 60_000)
    net.run(5)
    assert net.hosts[1].contents == [b"x" * 60_000]


def test_all_is_given_back() -> None:
    attacked = receiver(SMALL)
    rng = random.Random(5)
    for _ in range(3000):
        number = rng.randrange(1, 40)
        if rng.random() < 0.1:
            attacked.receive(announced(number, 600, 90_000, rng.choice("abc")), 0.0, rng.randrange(3))
        else:
            attacked.receive(segment(number, rng.randrange(150), 600), 0.0, rng.randrange(3))
    assert 0 < attacked.held_bytes <= SMALL.reassembly_bytes
    attacked.unsubscribe(ITEM)
    assert attacked.held_bytes == 0


def test_a_jump_of_numbers_gives_no_more_slots_than_there_is_room_for() -> None:
    config = TransportConfig(reassembly_bytes_per_source=100 * SLOT_COST)
    attacked = receiver(config)
    attacked.served(ITEM, "n0", OPEN_SCOPE, 0.0)
    attacked.receive(announced(1, 600, 100), 0.0, 1)
    attacked.receive(announced(1000, 600, 100), 0.0, 1)
    assert attacked.held_bytes <= 100 * SLOT_COST


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 2), st.integers(1, 60), st.booleans()), max_size=60))
def test_accounts_never_exceed_a_limit_and_add_up(steps: list[tuple[int, int, bool]]) -> None:
    accounts = Accounts(100, 80, 50)
    sources = [accounts.source(link) for link in ("a", "a", "b")]
    held = [0, 0, 0]
    for which, size, take in steps:
        if take:
            fits = held[which] + size <= 50 and sum(held) + size <= 100
            fits &= which == 2 or held[0] + held[1] + size <= 80
            assert sources[which].charge(size) is fits
            held[which] += size if fits else 0
        else:
            given_back = min(size, held[which])
            sources[which].release(given_back)
            held[which] -= given_back
        assert accounts.used == sum(held)
    assert set(accounts.refused) <= set(ByteHolder)


def test_frames_that_wait_for_a_policy_are_bounded_for_each_item_and_go_with_it() -> None:
    waiting = AwaitingPolicy()
    frames = {number: segment(1, 0, 1000, item_named(number)) for number in range(20)}
    while waiting.add(1, frames[0]):
        pass
    assert waiting.bytes_held <= MAX_BYTES_OF_AN_ITEM
    assert waiting.add(1, frames[1])
    for frame in frames.values():
        while waiting.add(2, frame):
            pass
    assert waiting.bytes_held <= MAX_BYTES
    for number in frames:
        waiting.take(bytes(item_named(number)))
    assert waiting.bytes_held == 0
