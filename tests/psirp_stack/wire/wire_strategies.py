"""Hypothesis strategies for frames, and the same frames as scapy packets."""

from hypothesis import strategies as st
from scapy.packet import Packet, Padding, Raw

from psirp_stack.tools.layers import (
    PSIRPAuthentication,
    PSIRPForwarding,
    PSIRPMetadata,
    PSIRPPublishData,
    PSIRPPublishMetadata,
    PSIRPSubscribeData,
    PSIRPSubscribeMetadata,
)
from psirp_stack.wire.codec import (
    AuthenticationHeader,
    ForwardingHeader,
    Frame,
    Header,
    MetadataHeader,
    RendezvousHeader,
    build,
)
from psirp_stack.wire.numbers import RENDEZVOUS_TYPES, HeaderType

LAYERS: dict[int, type[Packet]] = {
    HeaderType.FORWARDING: PSIRPForwarding,
    HeaderType.SUBSCRIBE_DATA: PSIRPSubscribeData,
    HeaderType.SUBSCRIBE_METADATA: PSIRPSubscribeMetadata,
    HeaderType.PUBLISH_DATA: PSIRPPublishData,
    HeaderType.PUBLISH_METADATA: PSIRPPublishMetadata,
    HeaderType.METADATA: PSIRPMetadata,
    HeaderType.AUTHENTICATION: PSIRPAuthentication,
}

STEERING = (0, 1, 2, 4, 41, 42, 43, 106, 148, 154, 155, 170, 171, 194, 195)
"""Bytes that decide how a frame is read: types, nexts, times to live, protos, table indexes."""

bytes_5 = st.binary(min_size=5, max_size=5)
bytes_32 = st.binary(min_size=32, max_size=32)
u8 = st.integers(0, 0xFF)
u64 = st.integers(0, 2**64 - 1)

forwarding_headers = st.builds(ForwardingHeader, fid=bytes_32, ttl=u8, d=u8, reserved=bytes_5)
rendezvous_headers = st.builds(
    RendezvousHeader,
    type=st.sampled_from(sorted(RENDEZVOUS_TYPES)),
    sid=bytes_32,
    rid=bytes_32,
    vrid=bytes_32,
    seqnum=u64,
    reserved=bytes_5,
)
metadata_headers = st.builds(
    MetadataHeader,
    sid=bytes_32,
    rid=bytes_32,
    vrid=bytes_32,
    collected_fid=bytes_32,
    length=u64,
    max_seqnum=u64,
    rendezvous_type=u8,
    flags=u8,
    reserved=st.binary(min_size=4, max_size=4),
)
authentication_headers = st.builds(
    AuthenticationHeader,
    signer=bytes_32,
    timestamp=u64,
    sequence=u64,
    expiry=u64,
    flags=u8,
    reserved=bytes_5,
    signature=st.binary(min_size=64, max_size=64),
)


@st.composite
def frames(draw: st.DrawFn) -> Frame:
    """Every header kind or not, in any order, with payload, padding or neither."""
    kinds = draw(st.permutations([rendezvous_headers, metadata_headers, authentication_headers]))
    chosen = kinds[: draw(st.integers(0, len(kinds)))]
    headers = (draw(forwarding_headers), *(draw(kind) for kind in chosen))
    if draw(st.booleans()):
        return Frame(headers, draw(st.binary(max_size=64)))
    return Frame(headers, None, draw(st.binary(max_size=8)))


BUILT = frames().map(build)


@st.composite
def mutated_frames(draw: st.DrawFn, built: st.SearchStrategy[bytes] = BUILT) -> bytes:
    """Frames that come near to being right: a few bytes changed, a cut, an insertion, or nothing at all."""
    data = bytearray(draw(built))
    for _ in range(draw(st.integers(0, 3))):
        at = draw(st.sampled_from([*STEERING, *range(0, len(data), 7)]))
        if at < len(data):
            data[at] = draw(st.one_of(st.sampled_from([0, 1, 2, 4, 6, 7, 8, 0xF0, 0xFF]), u8))
    match draw(st.integers(0, 9)):
        case 0:
            del data[draw(st.integers(0, len(data))) :]
        case 1:
            at = draw(st.integers(0, len(data)))
            data[at:at] = draw(st.binary(min_size=1, max_size=9))
    return bytes(data)


def as_layer(header: Header) -> Packet:
    return LAYERS[header.type](**{field.name: getattr(header, field.name) for field in header.LAYOUT})


def as_packet(frame: Frame) -> Packet:
    packet = as_layer(frame.headers[0])
    for header in frame.headers[1:]:
        packet = packet / as_layer(header)
    if frame.payload is not None:
        packet = packet / Raw(frame.payload)
    elif frame.padding:
        packet = packet / Padding(frame.padding)
    return packet
