"""What travels between gateways: a publication of some protocol, with what its body alone does not say.

The envelope is the content of a version: four bytes of length, a MessagePack header, the body as it is. It holds
nothing that differs between gateways of one domain, so equal publications are equal versions wherever they enter the
network, and whoever takes over from another publisher goes on where that one was.

The label is the version's attributes: where the publication entered, which number it got there, and what its gateway
knew of others. By it a gateway knows its own publications and judges which of others' are news (`exchange.judging`).

Envelopes of version 1, which named the adapter that made them and had no label, are still read.
"""

import struct
from typing import Annotated

import msgspec
from msgspec import Meta, Struct

from exchange.model import GATEWAY_BYTES, MAX_KNOWN, SELF, OriginId, Profile, pack_origins, unpack_origins

ENVELOPE_VERSION = 2
LABEL_VERSION = 1
MAX_HEADER_BYTES = 64 * 1024
MAX_ATTRIBUTES = 32
_LENGTH = struct.Struct("!I")
_OLD_KINDS = {"push": Profile.DOCUMENT, "chat": Profile.MESSAGE}
"""What adapters published, as envelopes of version 1 named them."""

_Text = Annotated[str, Meta(max_length=8192)]


class EnvelopeError(ValueError):
    """Bytes that no gateway put together."""


class Header(Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """Beside the body."""

    version: Annotated[int, Meta(ge=ENVELOPE_VERSION, le=ENVELOPE_VERSION)]
    profile: Profile
    name: _Text
    """What it is a publication of, as its namespace shows it: a topic URL, `user@domain`."""
    content_type: Annotated[str, Meta(max_length=1024)]
    attributes: Annotated[tuple[tuple[_Text, _Text], ...], Meta(max_length=MAX_ATTRIBUTES)] = ()
    deadline_ms: Annotated[int, Meta(ge=0)] = 0


class _OldHeader(Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """Version 1."""

    version: Annotated[int, Meta(ge=1, le=1)]
    kind: Annotated[str, Meta(max_length=32)]
    name: _Text
    content_type: Annotated[str, Meta(max_length=1024)]
    self_url: _Text = ""


class _Label(Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    version: Annotated[int, Meta(ge=LABEL_VERSION, le=LABEL_VERSION)]
    gateway: Annotated[bytes, Meta(min_length=GATEWAY_BYTES, max_length=GATEWAY_BYTES)]
    number: Annotated[int, Meta(ge=0, lt=1 << 62)]
    known: bytes = b""


_encoder = msgspec.msgpack.Encoder()
_decoder: msgspec.msgpack.Decoder[Header] = msgspec.msgpack.Decoder(Header)
_old_decoder: msgspec.msgpack.Decoder[_OldHeader] = msgspec.msgpack.Decoder(_OldHeader)
_label_decoder: msgspec.msgpack.Decoder[_Label] = msgspec.msgpack.Decoder(_Label)


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
    return _header(data[_LENGTH.size : end]), data[end:]


def _header(packed: bytes) -> Header:
    try:
        return _decoder.decode(packed)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        reason = error
    try:
        old = _old_decoder.decode(packed)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        raise EnvelopeError(f"not a header: {reason}") from None
    profile = _OLD_KINDS.get(old.kind, Profile.EVENT)
    attributes = ((SELF, old.self_url),) if old.self_url else ()
    return Header(ENVELOPE_VERSION, profile, old.name, old.content_type, attributes)


def label(origin: OriginId, known: tuple[OriginId, ...]) -> bytes:
    return _encoder.encode(_Label(LABEL_VERSION, origin.gateway, origin.number, pack_origins(known[:MAX_KNOWN])))


def read_label(packed: bytes) -> tuple[OriginId | None, tuple[OriginId, ...]]:
    """Where a publication entered, and what its gateway knew. Without a label: nowhere that is known."""
    if not packed:
        return None, ()
    try:
        found = _label_decoder.decode(packed)
        return OriginId(found.gateway, found.number), unpack_origins(found.known)
    except (msgspec.MsgspecError, ValueError) as error:
        raise EnvelopeError(f"not a label: {error}") from None
