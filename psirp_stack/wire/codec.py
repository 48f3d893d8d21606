"""Frames to bytes and back, with precompiled `struct`s: the wire format as the running stack uses it.

A frame starts at the forwarding header (links put the Ethernet header on and take it off). Headers do not hold
their `next` byte: it follows from what comes after them, so a chain can never be inconsistent once it is an object.

Everything read here is hostile. Whatever is wrong with the bytes, and whatever cannot be written, gives a `WireError`
that says at which byte and why; nothing else is raised.
"""

import struct
from dataclasses import dataclass
from typing import ClassVar, NamedTuple, Self, TypeVar

from psirp_stack.wire.numbers import (
    AUTHENTICATION_BYTES,
    AUTHENTICATION_FLAGS_OFFSET,
    AUTHENTICATION_RESERVED_BYTES,
    AUTHENTICATION_RESERVED_OFFSET,
    AUTHENTICATION_SEQUENCE_OFFSET,
    AUTHENTICATION_TYPE,
    COLLECTED_FID_OFFSET,
    D_OFFSET,
    EXPIRY_OFFSET,
    FID_BYTES,
    FID_OFFSET,
    FORWARDING_BYTES,
    FORWARDING_PROTO_OFFSET,
    FORWARDING_RESERVED_BYTES,
    FORWARDING_RESERVED_OFFSET,
    FORWARDING_TYPE,
    HEADER_BYTES,
    ID_BYTES,
    INITIAL_TTL,
    KEY_HASH_BYTES,
    LENGTH_OFFSET,
    MAX_SEQNUM_OFFSET,
    METADATA_BYTES,
    METADATA_FLAGS_OFFSET,
    METADATA_RESERVED_BYTES,
    METADATA_RESERVED_OFFSET,
    METADATA_TYPE,
    NEXT_OFFSET,
    PROTO_OFFSETS,
    PROTOCOL_VERSION,
    RENDEZVOUS_BYTES,
    RENDEZVOUS_PROTO_OFFSET,
    RENDEZVOUS_RESERVED_BYTES,
    RENDEZVOUS_RESERVED_OFFSET,
    RENDEZVOUS_TYPE_OFFSET,
    RENDEZVOUS_TYPES,
    RID_OFFSET,
    SEQNUM_OFFSET,
    SID_OFFSET,
    SIGNATURE_BYTES,
    SIGNATURE_OFFSET,
    SIGNER_OFFSET,
    TIMESTAMP_OFFSET,
    TTL_OFFSET,
    VRID_OFFSET,
    HeaderType,
)

ZERO_ID = bytes(ID_BYTES)
ZERO_FID = bytes(FID_BYTES)

_FORWARDING = struct.Struct("!BBBBB5s32s")
_RENDEZVOUS = struct.Struct("!BB32s32s32sQB5s")
_METADATA = struct.Struct("!BB32s32s32s32sQQBB4s")
_AUTHENTICATION = struct.Struct("!BB32sQQQB5s64s")

_NONE = int(HeaderType.NONE)
_PAYLOAD = int(HeaderType.PAYLOAD)


class WireError(Exception):
    """Bytes that are no frame, or values that fit into none."""

    def __init__(self, offset: int, reason: str) -> None:
        super().__init__(f"byte {offset}: {reason}")
        self.offset = offset
        self.reason = reason


class Field(NamedTuple):
    """Where one field lies in its header. `number` fields are unsigned integers, the others byte strings."""

    name: str
    offset: int
    size: int
    number: bool


@dataclass(frozen=True, slots=True)
class ForwardingHeader:
    """Says which links the frame takes. `d` is written 0: the table index is the last byte of the FID."""

    TYPE: ClassVar[int] = FORWARDING_TYPE
    SIZE: ClassVar[int] = FORWARDING_BYTES
    NAME: ClassVar[str] = "forwarding"
    LAYOUT: ClassVar[tuple[Field, ...]] = (
        Field("ttl", TTL_OFFSET, 1, True),
        Field("d", D_OFFSET, 1, True),
        Field("proto", FORWARDING_PROTO_OFFSET, 1, True),
        Field("reserved", FORWARDING_RESERVED_OFFSET, FORWARDING_RESERVED_BYTES, False),
        Field("fid", FID_OFFSET, FID_BYTES, False),
    )

    fid: bytes
    ttl: int = INITIAL_TTL
    d: int = 0
    proto: int = PROTOCOL_VERSION
    reserved: bytes = bytes(FORWARDING_RESERVED_BYTES)

    @property
    def type(self) -> int:
        return FORWARDING_TYPE

    def pack(self, next_type: int) -> bytes:
        return _FORWARDING.pack(FORWARDING_TYPE, next_type, self.ttl, self.d, self.proto, self.reserved, self.fid)

    @classmethod
    def unpack(cls, frame: bytes, offset: int) -> Self:
        _, _, ttl, d, proto, reserved, fid = _FORWARDING.unpack_from(frame, offset)
        return cls(fid, ttl, d, proto, reserved)


@dataclass(frozen=True, slots=True)
class RendezvousHeader:
    """Names the publication: a request or an answer for one chunk of it, or for its metadata."""

    SIZE: ClassVar[int] = RENDEZVOUS_BYTES
    NAME: ClassVar[str] = "rendezvous"
    LAYOUT: ClassVar[tuple[Field, ...]] = (
        Field("sid", SID_OFFSET, ID_BYTES, False),
        Field("rid", RID_OFFSET, ID_BYTES, False),
        Field("vrid", VRID_OFFSET, ID_BYTES, False),
        Field("seqnum", SEQNUM_OFFSET, 8, True),
        Field("proto", RENDEZVOUS_PROTO_OFFSET, 1, True),
        Field("reserved", RENDEZVOUS_RESERVED_OFFSET, RENDEZVOUS_RESERVED_BYTES, False),
    )

    type: HeaderType
    sid: bytes
    rid: bytes
    vrid: bytes = ZERO_ID
    seqnum: int = 0
    proto: int = PROTOCOL_VERSION
    reserved: bytes = bytes(RENDEZVOUS_RESERVED_BYTES)

    def pack(self, next_type: int) -> bytes:
        return _RENDEZVOUS.pack(
            self.type, next_type, self.sid, self.rid, self.vrid, self.seqnum, self.proto, self.reserved
        )

    @classmethod
    def unpack(cls, frame: bytes, offset: int) -> Self:
        kind, _, sid, rid, vrid, seqnum, proto, reserved = _RENDEZVOUS.unpack_from(frame, offset)
        return cls(HeaderType(kind), sid, rid, vrid, seqnum, proto, reserved)


@dataclass(frozen=True, slots=True)
class MetadataHeader:
    """Describes the publication and gathers the way back: each hop adds its link to `collected_fid`."""

    TYPE: ClassVar[int] = METADATA_TYPE
    SIZE: ClassVar[int] = METADATA_BYTES
    NAME: ClassVar[str] = "metadata"
    LAYOUT: ClassVar[tuple[Field, ...]] = (
        Field("sid", SID_OFFSET, ID_BYTES, False),
        Field("rid", RID_OFFSET, ID_BYTES, False),
        Field("vrid", VRID_OFFSET, ID_BYTES, False),
        Field("collected_fid", COLLECTED_FID_OFFSET, FID_BYTES, False),
        Field("length", LENGTH_OFFSET, 8, True),
        Field("max_seqnum", MAX_SEQNUM_OFFSET, 8, True),
        Field("rendezvous_type", RENDEZVOUS_TYPE_OFFSET, 1, True),
        Field("flags", METADATA_FLAGS_OFFSET, 1, True),
        Field("reserved", METADATA_RESERVED_OFFSET, METADATA_RESERVED_BYTES, False),
    )

    sid: bytes
    rid: bytes
    vrid: bytes = ZERO_ID
    collected_fid: bytes = ZERO_FID
    length: int = 0
    max_seqnum: int = 0
    rendezvous_type: int = 0
    flags: int = 0
    reserved: bytes = bytes(METADATA_RESERVED_BYTES)

    @property
    def type(self) -> int:
        return METADATA_TYPE

    def pack(self, next_type: int) -> bytes:
        return _METADATA.pack(
            METADATA_TYPE,
            next_type,
            self.sid,
            self.rid,
            self.vrid,
            self.collected_fid,
            self.length,
            self.max_seqnum,
            self.rendezvous_type,
            self.flags,
            self.reserved,
        )

    @classmethod
    def unpack(cls, frame: bytes, offset: int) -> Self:
        _, _, *values = _METADATA.unpack_from(frame, offset)
        return cls(*values)


@dataclass(frozen=True, slots=True)
class AuthenticationHeader:
    """Who signed the frame, when (milliseconds since the epoch) and until when it counts."""

    TYPE: ClassVar[int] = AUTHENTICATION_TYPE
    SIZE: ClassVar[int] = AUTHENTICATION_BYTES
    NAME: ClassVar[str] = "authentication"
    LAYOUT: ClassVar[tuple[Field, ...]] = (
        Field("signer", SIGNER_OFFSET, KEY_HASH_BYTES, False),
        Field("timestamp", TIMESTAMP_OFFSET, 8, True),
        Field("sequence", AUTHENTICATION_SEQUENCE_OFFSET, 8, True),
        Field("expiry", EXPIRY_OFFSET, 8, True),
        Field("flags", AUTHENTICATION_FLAGS_OFFSET, 1, True),
        Field("reserved", AUTHENTICATION_RESERVED_OFFSET, AUTHENTICATION_RESERVED_BYTES, False),
        Field("signature", SIGNATURE_OFFSET, SIGNATURE_BYTES, False),
    )

    signer: bytes
    timestamp: int
    sequence: int
    expiry: int
    flags: int = 0
    reserved: bytes = bytes(AUTHENTICATION_RESERVED_BYTES)
    signature: bytes = bytes(SIGNATURE_BYTES)

    @property
    def type(self) -> int:
        return AUTHENTICATION_TYPE

    def pack(self, next_type: int) -> bytes:
        return _AUTHENTICATION.pack(
            AUTHENTICATION_TYPE,
            next_type,
            self.signer,
            self.timestamp,
            self.sequence,
            self.expiry,
            self.flags,
            self.reserved,
            self.signature,
        )

    @classmethod
    def unpack(cls, frame: bytes, offset: int) -> Self:
        _, _, *values = _AUTHENTICATION.unpack_from(frame, offset)
        return cls(*values)


Header = ForwardingHeader | RendezvousHeader | MetadataHeader | AuthenticationHeader
HeaderOfKind = TypeVar("HeaderOfKind", ForwardingHeader, RendezvousHeader, MetadataHeader, AuthenticationHeader)

HEADER_CLASSES: dict[int, type[Header]] = {
    FORWARDING_TYPE: ForwardingHeader,
    **dict.fromkeys(map(int, RENDEZVOUS_TYPES), RendezvousHeader),
    METADATA_TYPE: MetadataHeader,
    AUTHENTICATION_TYPE: AuthenticationHeader,
}


@dataclass(frozen=True, slots=True)
class Frame:
    """A whole chain. `payload` is None when the chain says that none follows; only then can there be padding."""

    headers: tuple[Header, ...]
    payload: bytes | None = None
    padding: bytes = b""

    @property
    def forwarding(self) -> ForwardingHeader:
        header = self._of(ForwardingHeader)
        if header is None:
            raise WireError(0, "the frame has no forwarding header")
        return header

    @property
    def rendezvous(self) -> RendezvousHeader | None:
        return self._of(RendezvousHeader)

    @property
    def metadata(self) -> MetadataHeader | None:
        return self._of(MetadataHeader)

    @property
    def authentication(self) -> AuthenticationHeader | None:
        return self._of(AuthenticationHeader)

    def _of(self, kind: type[HeaderOfKind]) -> HeaderOfKind | None:
        return next((header for header in self.headers if isinstance(header, kind)), None)


class Chain(NamedTuple):
    """Where the headers of a frame lie, without their values."""

    headers: tuple[tuple[int, int], ...]
    """Type and offset of each header, in order."""
    end: int
    """Offset of the first byte after the last header."""
    last: int
    """What the last header says follows: `PAYLOAD` or `NONE`."""


_KINDS = {header_type: 1 << list(HEADER_CLASSES.values()).index(cls) for header_type, cls in HEADER_CLASSES.items()}


def walk(frame: bytes) -> Chain:
    """Follow the chain from header to header and check that it holds together. Visits each kind once at most."""
    size = len(frame)
    offset = 0
    expected = FORWARDING_TYPE
    named_at = 0
    seen = 0
    headers = []
    while expected != _NONE and expected != _PAYLOAD:
        kind = _KINDS.get(expected)
        if kind is None:
            raise WireError(named_at, f"next header 0x{expected:02x} is not known")
        if seen & kind:
            raise WireError(named_at, f"a second {HEADER_CLASSES[expected].NAME} header")
        seen |= kind
        end = offset + HEADER_BYTES[expected]
        if end > size:
            name = HEADER_CLASSES[expected].NAME
            raise WireError(
                offset, f"{name} header cut short: {HEADER_BYTES[expected]} bytes expected, {size - offset} there"
            )
        if frame[offset] != expected:
            raise WireError(offset, f"header type 0x{frame[offset]:02x} where 0x{expected:02x} was announced")
        proto_at = PROTO_OFFSETS.get(expected)
        if proto_at is not None and frame[offset + proto_at] != PROTOCOL_VERSION:
            raise WireError(offset + proto_at, _wrong_proto(HEADER_CLASSES[expected].NAME, frame[offset + proto_at]))
        headers.append((expected, offset))
        named_at = offset + NEXT_OFFSET
        expected = frame[named_at]
        offset = end
    return Chain(tuple(headers), offset, expected)


def _wrong_proto(name: str, proto: int) -> str:
    return f"{name} header has proto 0x{proto:02x}: 0x{PROTOCOL_VERSION:02x} expected"


def parse(frame: bytes) -> Frame:
    """The frame's headers and payload. `build` gives back exactly the same bytes."""
    chain = walk(frame)
    headers = tuple(HEADER_CLASSES[header_type].unpack(frame, offset) for header_type, offset in chain.headers)
    rest = bytes(frame[chain.end :])
    return Frame(headers, rest) if chain.last == _PAYLOAD else Frame(headers, None, rest)


def build(frame: Frame) -> bytes:
    """The bytes of a frame, with every `next` byte filled in."""
    if not frame.headers or frame.headers[0].type != FORWARDING_TYPE:
        raise WireError(0, "a frame begins with a forwarding header")
    if frame.payload is not None and frame.padding:
        raise WireError(0, "a frame with payload has no padding: the payload goes to the end of the frame")
    parts: list[bytes] = []
    offset = seen = 0
    last = _NONE if frame.payload is None else _PAYLOAD
    following = [header.type for header in frame.headers[1:]] + [last]
    for header, next_type in zip(frame.headers, following, strict=True):
        kind = _KINDS.get(header.type)
        if kind is None or HEADER_CLASSES[header.type] is not type(header):
            raise WireError(offset, f"type {header.type} is none of a {header.NAME} header")
        if seen & kind:
            raise WireError(offset, f"a second {header.NAME} header")
        seen |= kind
        check_fields(header, offset)
        parts.append(header.pack(next_type))
        offset += header.SIZE
    parts.append(frame.padding if frame.payload is None else frame.payload)
    return b"".join(parts)


def check_fields(header: Header, offset: int = 0) -> None:
    """Refuse values that do not fit. `struct` alone would pad or cut byte strings without a word."""
    for field in header.LAYOUT:
        value = getattr(header, field.name)
        if field.number:
            if isinstance(value, int) and 0 <= value < 1 << 8 * field.size:
                continue
            wrong = f"an unsigned {8 * field.size}-bit number, not {value!r}"
        else:
            if isinstance(value, bytes) and len(value) == field.size:
                continue
            wrong = f"{field.size} bytes, not {len(value) if isinstance(value, bytes) else type(value).__name__}"
        raise WireError(offset + field.offset, f"{header.NAME} {field.name} takes {wrong}")
    proto_at = PROTO_OFFSETS.get(header.type)
    proto = getattr(header, "proto", PROTOCOL_VERSION)
    if proto_at is not None and proto != PROTOCOL_VERSION:
        raise WireError(offset + proto_at, _wrong_proto(header.NAME, proto))


def fid_of(frame: bytes) -> bytes:
    """The FID of a frame that is known to hold a forwarding header."""
    return frame[FID_OFFSET : FID_OFFSET + FID_BYTES]
