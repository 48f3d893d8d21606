"""The forwarder's rules one by one, its cache, its memory for loops and its counters."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from psirp_stack.forwarder import Forwarder
from psirp_stack.forwarding_model import BROADCAST_FID, TABLES, Drop, ForwardingTable
from psirp_stack.wire.chain import metadata_offset
from psirp_stack.wire.numbers import FORWARDING_BYTES, TTL_OFFSET, HeaderType
from tests.psirp_stack.frames import (
    METADATA_BYTES,
    RENDEZVOUS_BYTES,
    collected_fid,
    draw_tags,
    fid,
    frame,
    single_bit,
    table,
)

LOCAL = 1 << 200
NOW = 1000.0


def forwarder(*links: int) -> Forwarder:
    return Forwarder(table(*links))


def test_a_frame_leaves_on_the_links_in_its_filter_with_its_ttl_one_lower() -> None:
    arrived = frame(fid(1 << 1, 1 << 3))
    decision = forwarder(1, 2, 3, 4).decide(arrived, 2, NOW)
    assert (decision.out, decision.deliver, decision.drop) == ((1, 3), False, None)
    assert decision.frame[TTL_OFFSET] == 0xFE
    assert decision.frame[:TTL_OFFSET] + b"\xff" + decision.frame[TTL_OFFSET + 1 :] == arrived


def test_a_frame_never_goes_back_where_it_came_from() -> None:
    assert forwarder(1, 2).decide(frame(fid(1 << 1, 1 << 2)), 1, NOW).out == (2,)
    assert forwarder(1).decide(frame(fid(1 << 1)), 1, NOW).drop is Drop.NO_MATCH


def test_the_internal_tag_delivers_and_forwarding_goes_on() -> None:
    decision = forwarder(1, 2).decide(frame(fid(1 << 1, LOCAL)), 2, NOW)
    assert (decision.out, decision.deliver) == ((1,), True)


def test_a_tag_of_zero_matches_nothing() -> None:
    empty = ForwardingTable({1: (0,) * TABLES}, (0,) * TABLES)
    assert Forwarder(empty).decide(frame(fid(1 << 5)), None, NOW).drop is Drop.NO_MATCH


@pytest.mark.parametrize(
    ("ttl", "filter_", "out", "deliver", "drop"),
    [
        (0, fid(1 << 1, LOCAL), (), False, Drop.TTL_EXPIRED),
        (1, fid(1 << 1, LOCAL), (), True, None),
        (1, fid(1 << 1), (), False, Drop.TTL_EXPIRED),
        (1, fid(1 << 9), (), False, Drop.NO_MATCH),
        (2, fid(1 << 1, LOCAL), (1,), True, None),
    ],
)
def test_time_to_live(ttl: int, filter_: bytes, out: tuple[int, ...], deliver: bool, drop: Drop | None) -> None:
    decision = forwarder(1, 2).decide(frame(filter_, ttl=ttl), 2, NOW)
    assert (decision.out, decision.deliver, decision.drop) == (out, deliver, drop)


def test_all_ones_goes_one_hop() -> None:
    node = forwarder(1, 2, 3)
    begun = node.decide(frame(BROADCAST_FID), None, NOW)
    assert (begun.out, begun.deliver, begun.frame[TTL_OFFSET]) == ((1, 2, 3), False, 0xFE)
    arrived = node.decide(begun.frame, 2, NOW)
    assert (arrived.out, arrived.deliver, arrived.drop) == ((), True, None)


def test_all_ones_is_delivered_even_when_its_ttl_is_used_up() -> None:
    assert forwarder(1).decide(frame(BROADCAST_FID, ttl=0), 1, NOW).deliver
    assert forwarder(1).decide(frame(BROADCAST_FID, ttl=1), None, NOW).drop is Drop.TTL_EXPIRED
    assert forwarder().decide(frame(BROADCAST_FID), None, NOW).drop is Drop.NO_MATCH


def test_a_filter_more_than_half_full_is_dropped() -> None:
    half = (1 << 124) - 1
    assert forwarder(1).decide(frame(fid(half)), None, NOW).out == (1,)
    assert forwarder(1).decide(frame(fid(half, 1 << 130)), None, NOW).drop is Drop.OVERFULL


def test_a_table_that_does_not_exist_is_dropped() -> None:
    assert forwarder(1).decide(frame(fid(1 << 1, index=7)), None, NOW).out == (1,)
    assert forwarder(1).decide(frame(fid(1 << 1, index=8)), None, NOW).drop is Drop.UNKNOWN_TABLE


def test_the_tag_of_the_named_table_counts() -> None:
    tags = tuple(1 << index for index in range(TABLES))
    node = Forwarder(ForwardingTable({1: tags}, single_bit(200)))
    assert node.decide(frame(fid(1 << 3, index=3)), None, NOW).out == (1,)
    assert node.decide(frame(fid(1 << 3, index=4)), None, NOW).drop is Drop.NO_MATCH


WELL_FORMED = [
    (),
    (HeaderType.PUBLISH_DATA,),
    (HeaderType.SUBSCRIBE_METADATA, HeaderType.METADATA),
    (HeaderType.SUBSCRIBE_METADATA, HeaderType.METADATA, HeaderType.AUTHENTICATION),
]


@pytest.mark.parametrize("headers", WELL_FORMED)
@pytest.mark.parametrize("payload", [None, b"", b"x" * 900])
def test_well_formed_chains_pass(headers: tuple[HeaderType, ...], payload: bytes | None) -> None:
    decision = forwarder(1).decide(frame(fid(1 << 1), *headers, payload=payload), None, NOW)
    assert decision.drop is None


def malformed_frames() -> list[bytes]:
    good = frame(fid(1 << 1), HeaderType.PUBLISH_DATA)
    rendezvous_at = FORWARDING_BYTES
    return [
        b"",
        good[: FORWARDING_BYTES - 1],
        b"\x02" + good[1:],
        good[:4] + b"\x02" + good[5:],
        good[:148] + b"\x02" + good[149:],
        good[:1] + b"\x08" + good[2:],
        good[:1] + b"\x01" + good[2:],
        good[: FORWARDING_BYTES + RENDEZVOUS_BYTES - 1],
        good[:rendezvous_at] + b"\x05" + good[rendezvous_at + 1 :],
        good[: rendezvous_at + 1] + b"\x33" + good[rendezvous_at + 2 :],
        frame(fid(1 << 1), HeaderType.PUBLISH_DATA, HeaderType.PUBLISH_DATA),
        frame(fid(1 << 1), HeaderType.PUBLISH_DATA, HeaderType.SUBSCRIBE_DATA),
        frame(fid(1 << 1), HeaderType.METADATA, HeaderType.METADATA),
        frame(fid(1 << 1), HeaderType.AUTHENTICATION, HeaderType.AUTHENTICATION),
    ]


@pytest.mark.parametrize("bad", malformed_frames())
@pytest.mark.parametrize("warm", [False, True], ids=["cold", "warm"])
def test_malformed_frames_are_dropped_also_when_their_header_is_cached(bad: bytes, warm: bool) -> None:
    node = forwarder(1)
    sent: list[bytes] = []
    node.attach(1, sent.append)
    if warm:
        for headers in WELL_FORMED:
            node.forward([frame(fid(1 << 1), *headers)], None, NOW)
    sent.clear()
    node.forward([bad], None, NOW)
    assert sent == []
    assert node.statistics.drops[Drop.MALFORMED] == 1
    assert node.decide(bad, None, NOW).frame == bad


def test_the_way_back_is_collected_in_the_table_that_the_collected_filter_names() -> None:
    tags = tuple(1 << (10 + index) for index in range(TABLES))
    node = Forwarder(ForwardingTable({1: single_bit(1), 2: tags}, single_bit(200)))
    asked = frame(fid(1 << 1), HeaderType.SUBSCRIBE_METADATA, HeaderType.METADATA)
    metadata_at = FORWARDING_BYTES + RENDEZVOUS_BYTES
    assert metadata_offset(asked) == metadata_at
    index_at = metadata_at + 98 + 31
    for index in range(TABLES):
        named = asked[:index_at] + bytes((index,)) + asked[index_at + 1 :]
        collected = collected_fid(node.decide(named, 2, NOW).frame, metadata_at)
        assert collected == fid(1 << (10 + index), index=index)
    beyond = asked[:index_at] + b"\x08" + asked[index_at + 1 :]
    assert collected_fid(node.decide(beyond, 2, NOW).frame, metadata_at) == fid(index=8)
    assert collected_fid(node.decide(asked, None, NOW).frame, metadata_at) == fid()
    assert len(asked) == metadata_at + METADATA_BYTES + len(b"payload")


def test_a_filter_that_may_come_round_is_dropped_when_it_does() -> None:
    ring = table(1, 2, incoming={1: single_bit(51), 2: single_bit(52)})
    node = Forwarder(ring, loop_window=1.0)
    looping = frame(fid(1 << 2, 1 << 1, 1 << 51, 1 << 52))
    assert node.decide(looping, 1, NOW).out == (2,)
    assert node.decide(looping, 2, NOW + 0.5).drop is Drop.LOOP
    assert node.decide(looping, 1, NOW + 0.9).out == (2,), "the first link may go on"
    assert node.decide(looping, 2, NOW + 1.8).drop is Drop.LOOP, "each use renews the memory"
    assert node.decide(looping, 2, NOW + 2.0).out == (1,), "the memory ends with its window"
    assert node.statistics.drops[Drop.LOOP] == 2


def test_a_frame_of_our_own_that_comes_back_is_a_loop() -> None:
    node = Forwarder(table(1, 2, incoming={2: single_bit(52)}))
    looping = frame(fid(1 << 1, 1 << 52))
    assert node.decide(looping, None, NOW).out == (1,)
    assert node.decide(looping, 2, NOW).drop is Drop.LOOP


def test_an_ordinary_tree_is_not_remembered() -> None:
    node = Forwarder(table(1, 2, incoming={1: single_bit(51), 2: single_bit(52)}))
    assert node.decide(frame(fid(1 << 2, 1 << 51)), 1, NOW).out == (2,)
    assert node.remembered_loops == 0


def test_the_memory_for_loops_is_bounded_and_empties_itself() -> None:
    node = Forwarder(table(1, 2, incoming={2: single_bit(52)}), loop_entries=10, loop_window=1.0)
    for bit in range(60, 160):
        node.decide(frame(fid(1 << 2, 1 << 52, 1 << bit)), 1, NOW)
    assert (node.remembered_loops, node.statistics.loop_evictions) == (10, 90)
    node.decide(frame(fid(1 << 2)), 1, NOW + 2)
    assert node.remembered_loops == 0


def test_the_cache_is_bounded_and_forgets_the_least_recently_used() -> None:
    node = Forwarder(table(1), cache_entries=10)
    kept = frame(fid(1 << 1))
    for bit in range(2, 102):
        node.decide(frame(fid(1 << 1, 1 << bit)), None, NOW)
        node.decide(kept, None, NOW)
    assert node.cached <= 20
    assert node.statistics.cache_misses == 101, "what is in use stays"
    assert node.statistics.cache_turnovers > 0


def test_dropped_frames_do_not_fill_the_cache() -> None:
    node = Forwarder(table(1), cache_entries=10)
    for bit in range(2, 102):
        node.decide(frame(fid(1 << bit)), None, NOW)
    assert node.cached == 0


def test_a_new_table_takes_effect_on_cached_filters() -> None:
    node = forwarder(1, 2)
    moving = frame(fid(1 << 2))
    assert node.decide(moving, 1, NOW).out == (2,)
    node.replace_table(table(1, 3))
    assert node.decide(moving, 1, NOW).drop is Drop.NO_MATCH
    node.replace_table(table(1, 2))
    assert node.decide(moving, 1, NOW).out == (2,)


def test_a_table_replaced_by_a_delivered_frame_counts_for_the_rest_of_the_batch() -> None:
    node = forwarder(1, 2)
    sent: list[bytes] = []
    node.attach(2, sent.append)
    node.deliver_to(lambda _: node.replace_table(table(1)))
    node.forward([frame(fid(1 << 2))] * 3 + [frame(fid(LOCAL))] + [frame(fid(1 << 2))] * 3, 1, NOW)
    assert len(sent) == 3
    assert node.statistics.drops[Drop.NO_MATCH] == 3


def test_every_frame_is_counted() -> None:
    node = forwarder(1, 2, 3)
    sent: list[bytes] = []
    for number in (1, 2, 3):
        node.attach(number, sent.append)
    both = frame(fid(1 << 2, 1 << 3))
    node.forward([both, both, frame(fid(LOCAL)), frame(fid(1 << 9)), b"junk"], 1, NOW)
    counted = node.statistics
    assert (counted.received, counted.forwarded, counted.copies, counted.delivered, counted.dropped) == (5, 2, 4, 1, 2)
    assert (counted.cache_hits, counted.cache_misses) == (1, 3)
    assert len(sent) == 4


SOURCE = random.Random(3)
LINKS = {number: draw_tags(SOURCE) for number in range(6)}
INTERNAL = draw_tags(SOURCE)
RANDOM_TABLE = ForwardingTable(
    LINKS,
    INTERNAL,
    {number: draw_tags(SOURCE) for number in range(6)},
)


@st.composite
def hostile_frames(draw: st.DrawFn) -> bytes:
    """Frames that come near to being right: real filters and chains, then a cut or a changed byte."""
    index = draw(st.integers(0, 9))
    numbers = draw(st.sets(st.integers(0, 5), max_size=4))
    tags = [LINKS[number][index % TABLES] for number in numbers]
    tags += draw(st.sampled_from([[], [INTERNAL[index % TABLES]], [RANDOM_TABLE.incoming[2][index % TABLES]]]))
    filter_ = draw(st.sampled_from([fid(*tags, index=index), fid(*tags, index=index), BROADCAST_FID]))
    headers = draw(st.sampled_from(WELL_FORMED))
    ttl = draw(st.sampled_from([255, 255, 2, 1, 0]))
    built = frame(filter_, *headers, ttl=ttl, payload=draw(st.sampled_from([None, b"", b"data" * 50])))
    match draw(st.integers(0, 4)):
        case 0:
            return built[: draw(st.integers(0, len(built)))]
        case 1:
            at = draw(st.integers(0, len(built) - 1))
            return built[:at] + draw(st.binary(min_size=1, max_size=1)) + built[at + 1 :]
    return built


@given(st.lists(st.tuples(hostile_frames(), st.sampled_from([None, 0, 1, 2])), max_size=30))
def test_a_batch_does_what_single_decisions_say_and_counts_the_same(arrivals: list[tuple[bytes, int | None]]) -> None:
    one_by_one, batched = (Forwarder(RANDOM_TABLE, cache_entries=4) for _ in range(2))
    expected: list[tuple[int | str, bytes]] = []
    seen: list[tuple[int | str, bytes]] = []
    for number in LINKS:
        batched.attach(number, lambda sent, number=number: seen.append((number, sent)))
    batched.deliver_to(lambda up: seen.append(("up", up)))
    for each, arrival in arrivals:
        decision = one_by_one.decide(each, arrival, NOW)
        assert (decision.drop is None) == bool(decision.out or decision.deliver)
        expected += [(number, decision.frame) for number in decision.out]
        expected += [("up", decision.frame)] if decision.deliver else []
        batched.forward([each], arrival, NOW)
    assert seen == expected
    assert batched.statistics == one_by_one.statistics
