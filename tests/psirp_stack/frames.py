"""Frames and tables for the tests, built by hand from the numbers of the wire format."""

import random

from psirp_stack.forwarding_model import FILTER_BITS, FILTER_BYTES, TABLES, TAG_BITS, ForwardingTable, Tags
from psirp_stack.wire.numbers import (
    AUTHENTICATION_BYTES,
    COLLECTED_FID_OFFSET,
    HEADER_BYTES,
    INITIAL_TTL,
    METADATA_BYTES,
    PROTO_OFFSETS,
    PROTOCOL_VERSION,
    RENDEZVOUS_BYTES,
    HeaderType,
)

__all__ = [
    "AUTHENTICATION_BYTES",
    "METADATA_BYTES",
    "RENDEZVOUS_BYTES",
    "collected_fid",
    "draw_tags",
    "fid",
    "frame",
    "table",
]


def fid(*tags: int, index: int = 0) -> bytes:
    bits = 0
    for tag in tags:
        bits |= tag
    return bits.to_bytes(FILTER_BYTES, "big") + bytes((index,))


def frame(filter_: bytes, *headers: HeaderType, ttl: int = INITIAL_TTL, payload: bytes | None = b"payload") -> bytes:
    """A well-formed frame: the forwarding header, then `headers` with zeros in all free fields, then the payload."""
    last = HeaderType.NONE if payload is None else HeaderType.PAYLOAD
    chain = [*headers, last]
    built = bytes((HeaderType.FORWARDING, chain[0], ttl, 0, PROTOCOL_VERSION)) + bytes(5) + filter_
    for header, following in zip(headers, chain[1:], strict=True):
        fields = bytearray(HEADER_BYTES[header])
        fields[:2] = header, following
        if header in PROTO_OFFSETS:
            fields[PROTO_OFFSETS[header]] = PROTOCOL_VERSION
        built += fields
    return built + (payload or b"")


def collected_fid(carrying: bytes, metadata_at: int) -> bytes:
    start = metadata_at + COLLECTED_FID_OFFSET
    return carrying[start : start + 32]


def draw_tags(source: random.Random) -> Tags:
    """One tag of five bits for each table."""
    return tuple(sum(1 << bit for bit in source.sample(range(FILTER_BITS), TAG_BITS)) for _ in range(TABLES))


def single_bit(bit: int) -> Tags:
    """Tags of one bit, the same in all tables: no false positives in a small network."""
    return (1 << bit,) * TABLES


def table(*links: int, incoming: dict[int, Tags] | None = None) -> ForwardingTable:
    """Link n has bit n, the node itself bit 200; nothing overlaps."""
    return ForwardingTable({link: single_bit(link) for link in links}, single_bit(200), incoming or {})
