"""What travels between gateways: a publication of some protocol, with what its body alone does not say.

Four bytes of length, a MessagePack header, the body as it is. The header holds nothing that differs between gateways
of one domain, so equal publications are equal versions wherever they enter the network.
"""

import struct
from typing import Annotated

import msgspec
from msgspec import Meta, Struct

ENVELOPE_VERSION = 1
MAX_HEADER_BYTES = 64 * 1024
_LENGTH = struct.Struct("!I")


class EnvelopeError(ValueError):
    """Bytes that no gateway put together."""


class Header(Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """Beside the body."""

    version: Annotated[int, Meta(ge=1, le=ENVELOPE_VERSION)]
    kind: Annotated[str, Meta(max_length=32)]
    """Which adapter made it: says how to read it."""
    name: Annotated[str, Meta(max_length=8192)]
    """What it is a publication of, as that adapter names it: a topic URL, `user@domain`."""
    content_type: Annotated[str, Meta(max_length=1024)]
    self_url: Annotated[str, Meta(max_length=8192)] = ""


_encoder = msgspec.msgpack.Encoder()
_decoder: msgspec.msgpack.Decoder[Header] = msgspec.msgpack.Decoder(Header)


def seal(header: Header, body: bytes) -> bytes:
    packed = _encoder.encode(header)
    return _LENGTH.pack(len(packed)) + packed + body


def unseal(data: bytes) -> tuple[Header, bytes]:
    """Header and body; `EnvelopeError` when there are none."""
    if len(data) < _LENGTH.size:
        raise EnvelopeError("too short for an envelope")
    (size,) = _LENGTH.unpack_from(data)
    end = _LENGTH.size + size
    if size > MAX_HEADER_BYTES or end > len(data):
        raise EnvelopeError(f"a header of {size} bytes is announced")
    try:
        return _decoder.decode(data[_LENGTH.size : end]), data[end:]
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise EnvelopeError(f"not a header: {error}") from None
