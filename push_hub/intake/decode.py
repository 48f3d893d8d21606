"""Undo Content-Encoding with a bound on what comes out, so that a decompression bomb stops at the limit."""

import importlib
import importlib.util
import zlib

from push_hub.intake.ports import FetchError

MAX_CODINGS = 3
"""A response coded more often than this is refused."""

_GZIP_WINDOW = 16 + zlib.MAX_WBITS


_brotli = importlib.import_module("brotli") if importlib.util.find_spec("brotli") else None

ACCEPT_ENCODING = "gzip, deflate, br" if _brotli is not None else "gzip, deflate"


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
        elif coding == "br" and _brotli is not None:
            body = _unbrotli(body, limit)
        else:
            raise FetchError(f"the content encoding {coding[:40]!r} was not asked for and is not understood")
    if len(body) > limit:
        raise FetchError(f"the content is larger than {limit} bytes")
    return body


def _gunzip(body: bytes, limit: int) -> bytes:
    """All members of the stream, as gzip allows; zero padding after the last is tolerated."""
    out: list[bytes] = []
    room = limit
    while True:
        piece, body = _inflate(body, _GZIP_WINDOW, room, "gzip")
        out.append(piece)
        room -= len(piece)
        body = body.lstrip(b"\0")
        if not body:
            return b"".join(out)


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
        raise FetchError("the content is larger than the limit once decompressed")
    if not stream.eof:
        raise FetchError(f"the {name} content ends too early")
    return piece, stream.unused_data


def _unbrotli(body: bytes, limit: int) -> bytes:
    assert _brotli is not None  # noqa: S101 - the caller looked
    stream = _brotli.Decompressor()
    out = bytearray()
    step = 4096
    try:
        # A small step keeps what one step can blow up to within reach of the limit.
        for start in range(0, len(body), step):
            out += stream.process(body[start : start + step])
            if len(out) > limit:
                raise FetchError("the content is larger than the limit once decompressed")
        if not stream.is_finished():
            raise FetchError("the br content ends too early")
    except _brotli.error as error:
        raise FetchError(f"the br content is broken: {error}") from None
    return bytes(out)
