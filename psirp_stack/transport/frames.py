"""Frames of the transport: built from ready-made pieces, and taken apart again.

A segment is by far the most frequent frame, so it has a way of its own on both sides: its headers always come in the
same order, and every field lies at a fixed place.
"""

import struct
from typing import NamedTuple

from psirp_stack.forwarding_model import FILTER_BYTES, MAX_FILTER_FILL, TABLES, Tags
from psirp_stack.wire.codec import (
    AuthenticationHeader,
    Frame,
    WireError,
    parse,
)
from psirp_stack.wire.numbers import (
    AUTHENTICATION_BYTES,
    AUTHENTICATION_TYPE,
    COLLECTED_FID_OFFSET,
    CONGESTION_MARK,
    FORWARDING_BYTES,
    FORWARDING_PROTO_OFFSET,
    FORWARDING_RESERVED_BYTES,
    FORWARDING_TYPE,
    INITIAL_TTL,
    LENGTH_OFFSET,
    MARKS_OFFSET,
    METADATA_BYTES,
    METADATA_TYPE,
    PROTOCOL_VERSION,
    RENDEZVOUS_BYTES,
    RENDEZVOUS_PROTO_OFFSET,
    RENDEZVOUS_RESERVED_BYTES,
    RENDEZVOUS_TYPES,
    SEQNUM_OFFSET,
    SID_OFFSET,
    TTL_OFFSET,
    VRID_OFFSET,
    HeaderType,
)

DATA_OVERHEAD = FORWARDING_BYTES + RENDEZVOUS_BYTES
SIGNED_DATA_OVERHEAD = DATA_OVERHEAD + AUTHENTICATION_BYTES
ANNOUNCEMENT_OVERHEAD = FORWARDING_BYTES + RENDEZVOUS_BYTES + METADATA_BYTES + AUTHENTICATION_BYTES

HANDLE_TABLE = 0xF0
"""The table index of handles (`node/relays.py`), which stand for a way over relays and never leave the node."""

_SEGMENT_START = bytes((HeaderType.PUBLISH_DATA, HeaderType.PAYLOAD))
_TYPES_AT = FORWARDING_BYTES
_TYPES_END = FORWARDING_BYTES + 2
_ITEM_AT = FORWARDING_BYTES + SID_OFFSET
_VRID_AT = FORWARDING_BYTES + VRID_OFFSET
_SEQNUM_AT = FORWARDING_BYTES + SEQNUM_OFFSET
_SEQNUM_END = _SEQNUM_AT + 8
_PROTO_AT = FORWARDING_BYTES + RENDEZVOUS_PROTO_OFFSET
_AFTER_SEQNUM = bytes((PROTOCOL_VERSION,)) + bytes(RENDEZVOUS_RESERVED_BYTES)
_METADATA_AT = FORWARDING_BYTES + RENDEZVOUS_BYTES
_METADATA_ITEM_AT = _METADATA_AT + SID_OFFSET
_METADATA_ITEM_END = _METADATA_AT + VRID_OFFSET
_COLLECTED_AT = _METADATA_AT + COLLECTED_FID_OFFSET
_LENGTH_AT = _METADATA_AT + LENGTH_OFFSET
_METADATA_END = _METADATA_AT + METADATA_BYTES
_CONTROL_STARTS = frozenset(bytes((kind, METADATA_TYPE)) for kind in RENDEZVOUS_TYPES)
_LAST_AUTHENTICATION = bytes((AUTHENTICATION_TYPE, HeaderType.PAYLOAD))
_TWO_NUMBERS = struct.Struct("!QQ")
_METADATA_TAIL = struct.Struct("!QQBB4s")
_NO_RESERVED = bytes(4)
_PAYLOAD = int(HeaderType.PAYLOAD)


def forwarding_header(fid: bytes, following: int) -> bytes:
    start = bytes((FORWARDING_TYPE, following, INITIAL_TTL, 0, PROTOCOL_VERSION))
    return start + bytes(FORWARDING_RESERVED_BYTES) + fid


def segment_prefix(fid: bytes, item: bytes, vrid: bytes) -> bytes:
    """All of a segment's frame up to its number."""
    return forwarding_header(fid, HeaderType.PUBLISH_DATA) + _SEGMENT_START + item + vrid


def segment_frame(prefix: bytes, number: int, payload: bytes) -> bytes:
    return b"".join((prefix, number.to_bytes(8, "big"), _AFTER_SEQNUM, payload))


class Segment(NamedTuple):
    """What a data frame carries."""

    item: bytes
    vrid: bytes
    number: int
    payload: bytes


def is_segment(frame: bytes) -> bool:
    """Whether the frame is a plain, unsigned data frame, whose fields lie at fixed places."""
    return frame[_TYPES_AT:_TYPES_END] == _SEGMENT_START and len(frame) >= DATA_OVERHEAD


def read_segment(frame: bytes) -> Segment:
    """The parts of a frame for which `is_segment` holds."""
    return Segment(
        frame[_ITEM_AT:_VRID_AT],
        frame[_VRID_AT:_SEQNUM_AT],
        int.from_bytes(frame[_SEQNUM_AT:_SEQNUM_END], "big"),
        frame[DATA_OVERHEAD:],
    )


def signed_segment(prefix: bytes, number: int, payload: bytes) -> Frame:
    """The frame of a segment as an object, for a packet signer."""
    return parse(segment_frame(prefix, number, payload))


def control_frame(
    kind: HeaderType,
    fid: bytes,
    item: bytes,
    vrid: bytes,
    seqnum: int,
    collected: bytes,
    payload: bytes,
    *,
    length: int = 0,
    max_seqnum: int = 0,
    authentication: bytes = b"",
) -> bytes:
    """Everything but segments: forwarding, rendezvous, metadata that collects the way back, perhaps a signature."""
    return b"".join(
        (
            forwarding_header(fid, kind),
            bytes((kind, METADATA_TYPE)),
            item,
            vrid,
            seqnum.to_bytes(8, "big"),
            _AFTER_SEQNUM,
            bytes((METADATA_TYPE, HeaderType.AUTHENTICATION if authentication else HeaderType.PAYLOAD)),
            item,
            vrid,
            collected,
            _METADATA_TAIL.pack(length, max_seqnum, kind, 0, _NO_RESERVED),
            authentication,
            payload,
        )
    )


class TransportFrame(NamedTuple):
    """A frame of the transport that is no plain segment, taken apart."""

    kind: int
    item: bytes
    vrid: bytes
    seqnum: int
    collected: bytes | None
    """None when there is no metadata header."""
    length: int
    max_seqnum: int
    authentication: AuthenticationHeader | None
    payload: bytes


def read_control(frame: bytes) -> TransportFrame | None:
    """None for what is malformed or no frame about an item."""
    size = len(frame)
    if size >= _METADATA_END and frame[_TYPES_AT:_TYPES_END] in _CONTROL_STARTS and frame[0] == FORWARDING_TYPE:
        kind = frame[_TYPES_AT]
        follows = frame[_METADATA_AT + 1]
        item = frame[_ITEM_AT:_VRID_AT]
        if (
            frame[1] != kind
            or frame[FORWARDING_PROTO_OFFSET] != PROTOCOL_VERSION
            or frame[_PROTO_AT] != PROTOCOL_VERSION
            or frame[_METADATA_AT] != METADATA_TYPE
            or frame[_METADATA_ITEM_AT:_METADATA_ITEM_END] != item
        ):
            return None
        if follows == _PAYLOAD:
            authentication, payload = None, frame[_METADATA_END:]
        elif (
            follows == AUTHENTICATION_TYPE
            and size >= ANNOUNCEMENT_OVERHEAD
            and frame[_METADATA_END : _METADATA_END + 2] == _LAST_AUTHENTICATION
        ):
            authentication = AuthenticationHeader.unpack(frame, _METADATA_END)
            payload = frame[ANNOUNCEMENT_OVERHEAD:]
        else:
            return _read_any_order(frame)
        vrid = frame[_VRID_AT:_SEQNUM_AT]
        if frame[_METADATA_ITEM_END:_COLLECTED_AT] != vrid:
            return None
        seqnum = int.from_bytes(frame[_SEQNUM_AT:_SEQNUM_END], "big")
        length, max_seqnum = _TWO_NUMBERS.unpack_from(frame, _LENGTH_AT)
        return TransportFrame(
            kind, item, vrid, seqnum, frame[_COLLECTED_AT:_LENGTH_AT], length, max_seqnum, authentication, payload
        )
    return _read_any_order(frame)


def _read_any_order(frame: bytes) -> TransportFrame | None:
    """As the wire format allows it: headers in any order."""
    try:
        parsed = parse(frame)
    except WireError:
        return None
    rendezvous, metadata = parsed.rendezvous, parsed.metadata
    if rendezvous is None or parsed.payload is None:
        return None
    item = rendezvous.sid + rendezvous.rid
    if metadata is not None and (metadata.sid + metadata.rid != item or metadata.vrid != rendezvous.vrid):
        return None
    return TransportFrame(
        int(rendezvous.type),
        item,
        rendezvous.vrid,
        rendezvous.seqnum,
        metadata.collected_fid if metadata is not None else None,
        metadata.length if metadata is not None else 0,
        metadata.max_seqnum if metadata is not None else 0,
        parsed.authentication,
        parsed.payload,
    )


def first_way(internal: Tags, table: int) -> bytes:
    """What the origin of a frame puts into `collected_fid`: its own internal tag, so that answers are delivered."""
    return internal[table].to_bytes(FILTER_BYTES, "big") + bytes((table,))


def without_way_back(frame: bytes) -> bytes:
    """The frame, so that forwarders collect no way back in it; segments have none anyway."""
    if len(frame) < _METADATA_END or frame[_TYPES_AT:_TYPES_END] not in _CONTROL_STARTS:
        return frame
    return frame[: _LENGTH_AT - 1] + bytes((HANDLE_TABLE,)) + frame[_LENGTH_AT:]


def leads_somewhere(fid: bytes) -> bool:
    """Whether this node can send along it: a filter that is usable, or a handle for a way over relays."""
    return fid[FILTER_BYTES] == HANDLE_TABLE or is_usable(fid)


def is_usable(fid: bytes) -> bool:
    """Whether forwarders would take this filter: an existing table, and not more than half of the bits set."""
    if fid[FILTER_BYTES] >= TABLES:
        return False
    return 0 < int.from_bytes(fid[:FILTER_BYTES], "big").bit_count() <= MAX_FILTER_FILL


def links_travelled(frame: bytes) -> int:
    """How many links a frame that a forwarder delivered has come by: every node but one is at the end of a link."""
    return max(0, INITIAL_TTL - frame[TTL_OFFSET] - 1)


def is_marked(frame: bytes) -> bool:
    """Whether the frame waited in a queue that was filling up."""
    return frame[MARKS_OFFSET] & CONGESTION_MARK != 0


def segment_size_for(mtu: int, signed: bool) -> int:
    """How much content fits into a frame."""
    return mtu - (SIGNED_DATA_OVERHEAD if signed else DATA_OVERHEAD)


def packed(header: AuthenticationHeader) -> bytes:
    return header.pack(_PAYLOAD)
