"""The codec alone: sizes, golden vectors, byte-identical round trips, and one kind of error for all bad input."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from psirp_stack.wire.chain import MALFORMED, NO_METADATA, metadata_offset
from psirp_stack.wire.codec import (
    HEADER_CLASSES,
    AuthenticationHeader,
    ForwardingHeader,
    Frame,
    Header,
    MetadataHeader,
    RendezvousHeader,
    WireError,
    build,
    fid_of,
    parse,
    walk,
)
from psirp_stack.wire.numbers import (
    COLLECTED_FID_OFFSET,
    ETHERNET_HEADER_BYTES,
    FID_OFFSET,
    HEADER_BYTES,
    MAX_CHAIN_BYTES,
    TABLE_INDEX_OFFSET,
    TTL_OFFSET,
    HeaderType,
)
from tests.psirp_stack.wire.wire_strategies import frames, mutated_frames

FID = bytes(range(1, 32)) + b"\x03"
SID = bytes(12) + b"\xaa" * 20
RID = bytes(12) + b"\xbb" * 20
VRID = b"Version\0" + bytes(4) + b"\xcc" * 20
FORWARDING = ForwardingHeader(FID)
RENDEZVOUS = RendezvousHeader(HeaderType.PUBLISH_DATA, SID, RID, VRID, seqnum=0x0102030405060708)
METADATA = MetadataHeader(SID, RID, VRID, b"\x40" + bytes(30) + b"\x02", 512_000, 499, rendezvous_type=0x05, flags=0x81)
AUTHENTICATION = AuthenticationHeader(
    b"\xdd" * 32, timestamp=0x0000018BCFE56800, sequence=7, expiry=0x0000018BCFE58F10, signature=b"\xee" * 64
)

# Written out by hand from the tables of the specification, so that a slip in both descriptions still shows.
HEX_FORWARDING = "ff0001 0000000000 0102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f03"
HEX_IDS = (
    "000000000000000000000000aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa"
    "000000000000000000000000bbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbb"
    "56657273696f6e0000000000cccccccccccccccccccccccccccccccccccccccc"
)
HEX_RENDEZVOUS = HEX_IDS + "0102030405060708 01 0000000000"
HEX_METADATA = (
    HEX_IDS
    + "4000000000000000000000000000000000000000000000000000000000000002"
    + "000000000007d000 00000000000001f3 05 81 00000000"
)
HEX_AUTHENTICATION = (
    "dddddddddddddddddddddddddddddddddddddddddddddddddddddddddddddddd"
    "0000018bcfe56800 0000000000000007 0000018bcfe58f10 00 0000000000"
    "eeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeee"
    "eeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeee"
)
GOLDEN: dict[str, tuple[Frame, str]] = {
    "forwarding only": (Frame((FORWARDING,)), "01 00" + HEX_FORWARDING),
    "padded by Ethernet": (Frame((FORWARDING,), None, bytes(4)), "01 00" + HEX_FORWARDING + "00000000"),
    "forwarding and payload": (Frame((FORWARDING,), b"hi"), "01 f0" + HEX_FORWARDING + "6869"),
    "data chunk": (
        Frame((FORWARDING, RENDEZVOUS), b"\x00\x01"),
        "01 04" + HEX_FORWARDING + "04 f0" + HEX_RENDEZVOUS + "0001",
    ),
    "request for metadata": (
        Frame((FORWARDING, replace(RENDEZVOUS, type=HeaderType.SUBSCRIBE_METADATA), METADATA)),
        "01 03" + HEX_FORWARDING + "03 06" + HEX_RENDEZVOUS + "06 00" + HEX_METADATA,
    ),
    "everything": (
        Frame((FORWARDING, AUTHENTICATION, RENDEZVOUS, METADATA), b"!"),
        "01 07"
        + HEX_FORWARDING
        + "07 04"
        + HEX_AUTHENTICATION
        + "04 06"
        + HEX_RENDEZVOUS
        + "06 f0"
        + HEX_METADATA
        + "21",
    ),
}


@pytest.mark.parametrize("name", GOLDEN)
def test_golden_vectors(name: str) -> None:
    frame, text = GOLDEN[name]
    data = bytes.fromhex(text)
    assert build(frame) == data
    assert parse(data) == frame


def test_header_sizes() -> None:
    assert {cls.NAME: cls.SIZE for cls in HEADER_CLASSES.values()} == {
        "forwarding": 42,
        "rendezvous": 112,
        "metadata": 152,
        "authentication": 128,
    }
    assert MAX_CHAIN_BYTES == 42 + 112 + 152 + 128


@pytest.mark.parametrize("header_type", HEADER_BYTES)
def test_headers_end_on_a_64_bit_word(header_type: int) -> None:
    before = ETHERNET_HEADER_BYTES if header_type == HeaderType.FORWARDING else 0
    assert (before + HEADER_BYTES[header_type]) % 8 == 0


@pytest.mark.parametrize("header", [FORWARDING, RENDEZVOUS, METADATA, AUTHENTICATION])
def test_layout_leaves_no_gap(header: Header) -> None:
    end = 2
    for field in header.LAYOUT:
        assert field.offset == end
        end += field.size
    assert end == header.SIZE == len(header.pack(0))


@given(frames())
def test_round_trip(frame: Frame) -> None:
    data = build(frame)
    assert parse(data) == frame
    assert build(parse(data)) == data


@given(frames())
def test_offsets_point_at_the_fields(frame: Frame) -> None:
    data = build(frame)
    forwarding, metadata = frame.forwarding, frame.metadata
    assert data[TTL_OFFSET] == forwarding.ttl
    assert fid_of(data) == data[FID_OFFSET : FID_OFFSET + 32] == forwarding.fid
    assert data[TABLE_INDEX_OFFSET] == forwarding.fid[-1]
    at = metadata_offset(data)
    if metadata is None:
        assert at == NO_METADATA
    else:
        start = at + COLLECTED_FID_OFFSET
        assert data[start : start + 32] == metadata.collected_fid
    assert [(kind, start) for kind, start in walk(data).headers] == [
        (header.type, sum(h.SIZE for h in frame.headers[:index])) for index, header in enumerate(frame.headers)
    ]


@given(st.binary(max_size=600))
def test_random_bytes_parse_or_raise_wire_error(data: bytes) -> None:
    try:
        frame = parse(data)
    except WireError as error:
        assert 0 <= error.offset <= len(data)
        assert error.reason
    else:
        assert build(frame) == data


@given(frames(), st.data())
def test_every_truncation_of_the_headers_is_refused(frame: Frame, draw: st.DataObject) -> None:
    data = build(frame)
    cut = draw.draw(st.integers(0, walk(data).end - 1))
    with pytest.raises(WireError, match="cut short"):
        parse(data[:cut])


@pytest.mark.parametrize(
    ("text", "offset", "reason"),
    [
        ("", 0, "forwarding header cut short: 42 bytes expected, 0 there"),
        ("02" + "00" * 41, 0, "header type 0x02 where 0x01 was announced"),
        ("0108" + HEX_FORWARDING, 1, "next header 0x08 is not known"),
        ("0101" + HEX_FORWARDING + "0100" + HEX_FORWARDING, 1, "a second forwarding header"),
        ("0104" + HEX_FORWARDING + "0200" + HEX_RENDEZVOUS, 42, "header type 0x02 where 0x04 was announced"),
        (
            "0104" + HEX_FORWARDING + "0402" + HEX_RENDEZVOUS + "0200" + HEX_RENDEZVOUS,
            43,
            "a second rendezvous header",
        ),
        ("01f0 ff0002" + HEX_FORWARDING[6:], 4, "forwarding header has proto 0x02: 0x01 expected"),
        (
            "0104" + HEX_FORWARDING + "04f0" + HEX_RENDEZVOUS.replace(" 01 ", "ff"),
            148,
            "rendezvous header has proto 0xff: 0x01 expected",
        ),
        ("0106" + HEX_FORWARDING + "0600", 42, "metadata header cut short: 152 bytes expected, 2 there"),
    ],
)
def test_bad_frames_say_where_and_why(text: str, offset: int, reason: str) -> None:
    with pytest.raises(WireError) as caught:
        parse(bytes.fromhex(text))
    assert (caught.value.offset, caught.value.reason) == (offset, reason)
    assert str(caught.value) == f"byte {offset}: {reason}"


@pytest.mark.parametrize(
    ("frame", "offset", "reason"),
    [
        (Frame(()), 0, "begins with a forwarding header"),
        (Frame((RENDEZVOUS,)), 0, "begins with a forwarding header"),
        (Frame((FORWARDING, FORWARDING)), 42, "a second forwarding header"),
        (Frame((FORWARDING,), b"x", b"y"), 0, "has no padding"),
        (Frame((ForwardingHeader(bytes(31)),)), 10, "forwarding fid takes 32 bytes, not 31"),
        (Frame((replace(FORWARDING, ttl=256),)), 2, "forwarding ttl takes an unsigned 8-bit number, not 256"),
        (Frame((FORWARDING, replace(RENDEZVOUS, seqnum=-1))), 140, "rendezvous seqnum takes an unsigned 64-bit number"),
        (
            Frame((FORWARDING, replace(RENDEZVOUS, type=HeaderType.METADATA))),
            42,
            "type 6 is none of a rendezvous header",
        ),
        (Frame((replace(FORWARDING, proto=0),)), 4, "forwarding header has proto 0x00: 0x01 expected"),
        (Frame((FORWARDING, replace(RENDEZVOUS, proto=2))), 148, "rendezvous header has proto 0x02: 0x01 expected"),
        (Frame((FORWARDING, replace(METADATA, length=2**64))), 172, "metadata length"),
        (Frame((FORWARDING, replace(AUTHENTICATION, signature=b""))), 106, "authentication signature takes 64 bytes"),
    ],
)
def test_values_that_do_not_fit_are_refused(frame: Frame, offset: int, reason: str) -> None:
    with pytest.raises(WireError) as caught:
        build(frame)
    assert caught.value.offset == offset
    assert reason in caught.value.reason


def test_a_frame_gives_its_headers_by_kind() -> None:
    frame = GOLDEN["everything"][0]
    found = (frame.forwarding, frame.rendezvous, frame.metadata, frame.authentication)
    assert found == (FORWARDING, RENDEZVOUS, METADATA, AUTHENTICATION)
    with pytest.raises(WireError, match="no forwarding header"):
        _ = Frame(()).forwarding


@given(st.one_of(st.binary(max_size=500), mutated_frames()))
def test_the_forwarders_short_walk_refuses_what_the_codec_refuses(data: bytes) -> None:
    try:
        metadata = parse(data).metadata
    except WireError:
        assert metadata_offset(data) == MALFORMED
    else:
        assert (metadata_offset(data) == NO_METADATA) == (metadata is None)
        assert metadata_offset(data) >= 0
