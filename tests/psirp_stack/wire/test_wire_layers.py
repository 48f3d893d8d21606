"""The scapy layers and the codec are two descriptions of one format: every field and every byte agrees, both ways."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scapy.layers.l2 import Ether
from scapy.packet import NoPayload, Packet, Padding, Raw

from psirp_stack.tools.layers import CHAINED, PSIRPForwarding, PSIRPHeader, PSIRPPublishData, PSIRPRendezvous, chain_of
from psirp_stack.wire.codec import Frame, WireError, build, parse
from psirp_stack.wire.numbers import ETHERTYPE, HEADER_BYTES, HeaderType
from tests.psirp_stack.wire.test_wire_codec import GOLDEN
from tests.psirp_stack.wire.wire_strategies import LAYERS, as_packet, frames, mutated_frames

MACS = {"src": "02:00:00:00:00:01", "dst": "02:00:00:00:00:02"}


def layers_of(packet: Packet) -> list[Packet]:
    found = []
    while not isinstance(packet, NoPayload):
        found.append(packet)
        packet = packet.payload
    return found


@pytest.mark.parametrize("layer", [PSIRPForwarding, *CHAINED])
def test_sizes(layer: type[PSIRPHeader]) -> None:
    assert len(bytes(layer())) == layer.size == HEADER_BYTES[layer.header_type]


@given(frames())
def test_scapy_builds_the_bytes_the_codec_builds(frame: Frame) -> None:
    assert bytes(as_packet(frame)) == build(frame)


@given(frames())
def test_scapy_dissects_the_fields_the_codec_parses(frame: Frame) -> None:
    data = build(frame)
    layers = layers_of(PSIRPForwarding(data))
    for header, layer in zip(frame.headers, layers, strict=False):
        assert type(layer) is LAYERS[header.type]
        assert layer.type == header.type
        for field in header.LAYOUT:
            assert layer.getfieldval(field.name) == getattr(header, field.name)
    rest = layers[len(frame.headers) :]
    following = [header.type for header in frame.headers[1:]]
    following.append(HeaderType.NONE if frame.payload is None else HeaderType.PAYLOAD)
    assert [layer.next for layer in layers[: len(frame.headers)]] == following
    if frame.payload:
        assert [type(layer) for layer in rest] == [Raw]
        assert rest[0].load == frame.payload
    elif frame.padding:
        assert [type(layer) for layer in rest] == [Padding]
        assert rest[0].load == frame.padding
    else:
        assert rest == []


@given(frames())
def test_what_scapy_dissects_it_builds_again_field_by_field(frame: Frame) -> None:
    data = build(frame)
    packet = PSIRPForwarding(data)
    for layer in layers_of(packet):
        layer.raw_packet_cache = None  # else scapy returns the bytes it kept instead of building them
    assert bytes(packet) == data


@given(st.one_of(st.binary(max_size=500), mutated_frames()))
def test_both_refuse_the_same_chains(data: bytes) -> None:
    try:
        parse(data)
        parsed = True
    except WireError:
        parsed = False
    assert (chain_of(data) is not None) == parsed


@pytest.mark.parametrize("name", GOLDEN)
def test_golden_vectors(name: str) -> None:
    frame, text = GOLDEN[name]
    data = bytes.fromhex(text)
    assert bytes(as_packet(frame)) == data
    assert bytes(PSIRPForwarding(data)) == data


def test_bound_to_the_ethertype() -> None:
    frame, text = GOLDEN["data chunk"]
    data = bytes(Ether(**MACS) / as_packet(frame))
    assert data == bytes.fromhex("020000000002020000000001acdc" + text)
    again = Ether(data)
    assert again.type == ETHERTYPE
    assert isinstance(again.payload, PSIRPForwarding)
    assert PSIRPRendezvous in again
    assert PSIRPPublishData in again


def test_summary_names_every_header_with_short_ids() -> None:
    packet = Ether(**MACS) / as_packet(GOLDEN["everything"][0])
    assert Ether(bytes(packet)).summary() == (
        "Ether / PSIRP ttl 255 fid 01020304…1c1d1e1f table 3"
        " / signed by dddddddd…dddddddd sequence 7"
        " / publish data ::aaaaaaaa…aaaaaaaa/::bbbbbbbb…bbbbbbbb seqnum 72623859790382856"
        " / metadata ::aaaaaaaa…aaaaaaaa/::bbbbbbbb…bbbbbbbb length 512000 max_seqnum 499"
        " back 40000000…00000000 table 2"
        " / Raw"
    )


def test_a_long_chain_of_repeated_headers_does_not_nest_deeply() -> None:
    pair = b"\x04\x06" + bytes(104) + b"\x01" + bytes(5) + b"\x06\x04" + bytes(150)
    packet = PSIRPForwarding(b"\x01\x04\xff\x00\x01" + bytes(37) + pair * 200)
    assert [type(layer).__name__ for layer in layers_of(packet)] == [
        "PSIRPForwarding",
        "PSIRPPublishData",
        "PSIRPMetadata",
        "Raw",
    ]
