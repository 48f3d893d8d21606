"""The rules of forwarding, one test each, against the reference forwarder."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from psirp_stack.forwarding_model import BROADCAST_FID, Decision, Drop, ForwardingTable, Tags
from psirp_stack.tools.reference import reference_decision
from psirp_stack.wire.codec import (
    AuthenticationHeader,
    ForwardingHeader,
    Frame,
    MetadataHeader,
    RendezvousHeader,
    build,
    parse,
)
from psirp_stack.wire.numbers import HeaderType
from tests.psirp_stack.wire.wire_strategies import frames


def tags(*bits: int) -> Tags:
    """The given bits in table 0, moved up by one in each following table."""
    return tuple(sum(1 << bit + index for bit in bits) for index in range(8))


TABLE = ForwardingTable(
    links={1: tags(10, 100), 2: tags(20, 120), 3: tags(30, 140)},
    internal=tags(0, 200),
)


def fid(index: int, *of: Tags) -> bytes:
    zfilter = 0
    for each in of:
        zfilter |= each[index]
    return zfilter.to_bytes(31, "big") + bytes([index])


def frame(fid_bytes: bytes, ttl: int = 255) -> bytes:
    return build(Frame((ForwardingHeader(fid_bytes, ttl),), b"payload"))


def decide(data: bytes, arrival: int | None = None) -> Decision:
    return reference_decision(data, arrival, TABLE)


@pytest.mark.parametrize("index", range(8))
def test_out_on_every_link_whose_tag_is_contained(index: int) -> None:
    data = frame(fid(index, TABLE.links[3], TABLE.links[1]))
    assert decide(data) == Decision((1, 3), False, frame(fid(index, TABLE.links[3], TABLE.links[1]), ttl=254))


def test_tags_of_another_table_do_not_count() -> None:
    wrong = fid(1, TABLE.links[1])[:-1] + b"\x00"
    assert decide(frame(wrong)) == Decision((), False, frame(wrong), Drop.NO_MATCH)


def test_part_of_a_tag_is_no_match() -> None:
    assert decide(frame((1 << 10).to_bytes(31, "big") + b"\0")).drop is Drop.NO_MATCH


def test_a_zero_tag_never_matches() -> None:
    table = ForwardingTable(links={1: (0,) * 8, 2: tags(4)}, internal=(0,) * 8)
    assert reference_decision(frame(fid(0, tags(7))), None, table).drop is Drop.NO_MATCH


def test_never_back_out_of_the_arrival_link() -> None:
    data = frame(fid(0, TABLE.links[1], TABLE.links[2]))
    assert decide(data, arrival=1).out == (2,)
    assert decide(frame(fid(0, TABLE.links[1])), arrival=1).drop is Drop.NO_MATCH


def test_the_internal_tag_delivers() -> None:
    decision = decide(frame(fid(0, TABLE.internal, TABLE.links[2])), arrival=1)
    assert (decision.out, decision.deliver, decision.drop) == ((2,), True, None)


@pytest.mark.parametrize("index", [8, 9, 255])
def test_unknown_table(index: int) -> None:
    assert decide(frame(fid(0, TABLE.links[1])[:-1] + bytes([index]))).drop is Drop.UNKNOWN_TABLE


@pytest.mark.parametrize(("bits", "drop"), [(124, None), (125, Drop.OVERFULL), (248, Drop.OVERFULL)])
def test_more_than_half_full_is_dropped(bits: int, drop: Drop | None) -> None:
    zfilter = (1 << bits) - 1
    assert decide(frame(zfilter.to_bytes(31, "big") + b"\0")).drop is drop


@pytest.mark.parametrize(
    ("ttl", "to", "out", "deliver", "drop"),
    [
        (0, "out", (), False, Drop.TTL_EXPIRED),
        (0, "both", (), False, Drop.TTL_EXPIRED),
        (1, "out", (), False, Drop.TTL_EXPIRED),
        (1, "both", (), True, None),
        (1, "here", (), True, None),
        (1, "nowhere", (), False, Drop.NO_MATCH),
        (2, "both", (2,), True, None),
    ],
)
def test_ttl(ttl: int, to: str, out: tuple[int, ...], deliver: bool, drop: Drop | None) -> None:
    ways = {"out": [TABLE.links[2]], "here": [TABLE.internal], "both": [TABLE.links[2], TABLE.internal], "nowhere": []}
    decision = decide(frame(fid(0, *ways[to]), ttl), arrival=1)
    assert (decision.out, decision.deliver, decision.drop) == (out, deliver, drop)
    assert parse(decision.frame).forwarding.ttl == (ttl if drop else ttl - 1)


def test_all_ones_from_a_link_is_delivered_and_goes_no_further() -> None:
    decision = decide(frame(BROADCAST_FID), arrival=2)
    assert (decision.out, decision.deliver, decision.drop) == ((), True, None)


def test_all_ones_made_here_goes_one_hop_on_every_link() -> None:
    decision = decide(frame(BROADCAST_FID, ttl=2))
    assert (decision.out, decision.deliver, decision.drop) == ((1, 2, 3), False, None)
    assert parse(decision.frame).forwarding.ttl == 1
    alone = ForwardingTable(links={}, internal=tags(0))
    assert reference_decision(frame(BROADCAST_FID), None, alone).drop is Drop.NO_MATCH


def request(collected_fid: bytes) -> Frame:
    return Frame(
        (
            ForwardingHeader(fid(0, TABLE.links[2])),
            RendezvousHeader(HeaderType.SUBSCRIBE_METADATA, b"s" * 32, b"r" * 32),
            AuthenticationHeader(b"k" * 32, 1, 2, 3, signature=b"x" * 64),
            MetadataHeader(b"s" * 32, b"r" * 32, collected_fid=collected_fid, flags=1),
        ),
        b"tail",
    )


@pytest.mark.parametrize("index", range(8))
def test_the_way_back_is_collected_in_the_table_its_fid_names(index: int) -> None:
    before = fid(index, tags(50))
    sent = request(before)
    decision = decide(build(sent), arrival=1)
    forwarding, rendezvous, authentication, metadata = sent.headers
    assert isinstance(forwarding, ForwardingHeader)
    assert isinstance(metadata, MetadataHeader)
    assert parse(decision.frame) == replace(
        sent,
        headers=(
            replace(forwarding, ttl=254),
            rendezvous,
            authentication,
            replace(metadata, collected_fid=fid(index, tags(50), TABLE.links[1])),
        ),
    )


@pytest.mark.parametrize(("arrival", "index"), [(None, 0), (1, 8), (1, 255), (77, 0)])
def test_the_way_back_is_left_alone(arrival: int | None, index: int) -> None:
    sent = request(fid(0, tags(50))[:-1] + bytes([index]))
    assert parse(decide(build(sent), arrival).frame).metadata == sent.metadata


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\x01",
        bytes(42),
        frame(fid(0))[:41],
        b"\x01\x09" + bytes(40),
        b"\x01\x04" + bytes(40) + b"\x05" + bytes(111),
    ],
)
def test_malformed(data: bytes) -> None:
    assert decide(data, arrival=1) == Decision((), False, data, Drop.MALFORMED)


@given(frames(), st.sampled_from([None, 1, 2, 3]))
def test_a_decision_is_consistent_and_changes_nothing_else(sent: Frame, arrival: int | None) -> None:
    data = build(sent)
    decision = decide(data, arrival)
    assert (decision.drop is None) == bool(decision.out or decision.deliver)
    assert arrival not in decision.out
    after = parse(decision.frame)
    if decision.drop:
        assert decision.frame == data
    assert after.payload == sent.payload
    assert after.padding == sent.padding
    assert after.forwarding.fid == sent.forwarding.fid
    assert (after.rendezvous, after.authentication) == (sent.rendezvous, sent.authentication)
