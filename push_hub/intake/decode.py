"""Undo Content-Encoding with a bound on what comes out, so that a decompression bomb stops at the limit."""

import zlib

import brotli

from push_hub.intake.ports import FetchError

MAX_CODINGS = 3
"""A response coded more often than this is refused."""
MAX_MEMBERS = 256
"""A gzip stream may have several members; each costs a copy of the rest, so not any number."""

_GZIP_WINDOW = 16 + zlib.MAX_WBITS

ACCEPT_ENCODING = "gzip, deflate, br"


class DecodedTooLargeError(FetchError):
    """More than the limit came out."""


def decode_body(body: bytes, content_encoding: str, limit: int) -> bytes:
    """The body without its codings; raises `FetchError` when it is broken or larger than `limit` bytes."""
    codings = [word for raw in content_encoding.split(",") if (word := raw.strip().lower()) and word != "identity"]
    if len(codings) > MAX_CODINGS:
        raise FetchError(f"the content is encoded {len(codings)} times, at most {MAX_CODINGS} are accepted")
    for coding in reversed(codings):
        if coding in ("gzip", "x-gzip"):
            body = _gunzip(body, limit)
        elif coding == "deflate":
            body = _inflate_either(body, limit)
        elif coding == "br":
            body = _unbrotli(body, limit)
        else:
            raise FetchError(f"the content encoding {coding[:40]!r} was not asked for and is not understood")
    if len(body) > limit:
        raise DecodedTooLargeError(f"the content is larger than {limit} bytes")
    return body


def _gunzip(body: bytes, limit: int) -> bytes:
    """All members of the stream, as gzip allows; zero padding after the last is tolerated."""
    out: list[bytes] = []
    room = limit
    for _ in range(MAX_MEMBERS):
        piece, body = _inflate(body, _GZIP_WINDOW, room, "gzip")
        out.append(piece)
        room -= len(piece)
        body = body.lstrip(b"\0")
        if not body:
            return b"".join(out)
    raise FetchError(f"the gzip content has more than {MAX_MEMBERS} members")


def _inflate_either(body: bytes, limit: int) -> bytes:
    # The name means zlib, but some servers send the bare stream; browsers take both, and so do we.
    zlib_header = len(body) >= 2 and body[0] & 0x0F == 8 and (body[0] << 8 | body[1]) % 31 == 0
    return _inflate(body, zlib.MAX_WBITS if zlib_header else -zlib.MAX_WBITS, limit, "deflate")[0]


def _inflate(body: bytes, window: int, room: int, name: str) -> tuple[bytes, bytes]:
    stream = zlib.decompressobj(window)
    try:
        piece = stream.decompress(body, room + 1)
    except zlib.error as error:
        raise FetchError(f"the {name} content is broken: {error}") from None
    if len(piece) > room:
        raise DecodedTooLargeError("the content is larger than the limit once decompressed")
    if not stream.eof:
        raise FetchError(f"the {name} content ends too early")
    return piece, stream.unused_data


def _unbrotli(body: bytes, limit: int) -> bytes:
    stream = brotli.Decompressor()
    out = bytearray()
    try:
        # A few bytes of brotli can stand for gigabytes: what comes out of one step must be bounded, not what goes in.
        out += stream.process(body, output_buffer_limit=limit + 1)
        while len(out) <= limit and not stream.can_accept_more_data():
            out += stream.process(b"", output_buffer_limit=limit + 1 - len(out))
    except brotli.error as error:
        raise FetchError(f"the br content is broken: {error}") from None
    if len(out) > limit:
        raise DecodedTooLargeError("the content is larger than the limit once decompressed")
    if not stream.is_finished():
        raise FetchError("the br content ends too early")
    return bytes(out)
