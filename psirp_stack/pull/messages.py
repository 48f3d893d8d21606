"""What nodes say to each other about versions that are asked for once: MessagePack arrays, checked on decoding.

| message | function | from | to |
|---|---|---|---|
| `SeekVersions` | PULL | who asks | a holder; a node on the way may answer |
| `VersionOffer` | PULLED | a holder | who asks |
| `FetchPieces` | PULL | who asks | the same holder; a node on the way may answer |
| `VersionPiece` | PULLED | a holder | who asks |

Holders remember nothing of those who ask: whoever lacks something asks again.
"""

from typing import Annotated

import msgspec
from msgspec import Meta, Struct

from psirp_stack.control.messages import Count, Id, Name
from psirp_stack.transport.config import MAX_CONTENT_BYTES
from psirp_stack.transport.messages import MAX_ATTRIBUTES_BYTES, MAX_PAYLOAD_BYTES, Digest, Number, Ranges
from psirp_stack.wire.numbers import AUTHENTICATION_BYTES

MIN_PIECE_BYTES = 64
MAX_OFFERED = 64
"""Versions in one offer; fewer when the frame is full."""
MAX_BODY_BYTES = MAX_CONTENT_BYTES + MAX_ATTRIBUTES_BYTES

Place = Annotated[int, Meta(ge=-(1 << 62), le=1 << 62)]
"""Of a version in its publisher's order; below zero counted from the newest, which is -1."""


class PullMessageError(ValueError):
    """Bytes that are no message of this kind."""


class _Value(Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """A payload, or a part of one."""


class SeekVersions(_Value, frozen=True, tag=1):
    """Which of these versions are there?"""

    token: Count
    asker: Name
    holder: Name
    sid: Id
    rid: Id
    first: Place
    last: Place
    fresh: bool
    """Only the holder itself may answer: it is the publisher, and knows what is current."""


class OfferedVersion(_Value, frozen=True):
    """A version that can be fetched: where it stands, and what it takes to check it. Its body is its attributes, then
    its content."""

    number: Number
    version_id: Id
    sha256: Digest
    length: Annotated[int, Meta(ge=0, le=MAX_CONTENT_BYTES)]
    attributes_size: Annotated[int, Meta(ge=0, le=MAX_ATTRIBUTES_BYTES)]
    published_ms: Count
    authentication: Annotated[bytes, Meta(max_length=AUTHENTICATION_BYTES)] = b""
    """The packed header; empty when it is not signed."""

    @property
    def body_size(self) -> int:
        return self.attributes_size + self.length


class VersionOffer(_Value, frozen=True, tag=2):
    """What a holder has of what was asked for; with a code above 0, why it has nothing to say."""

    token: Count
    holder: Name
    sid: Id
    rid: Id
    code: Annotated[int, Meta(ge=0, le=255)]
    publisher: Name
    epoch: Count
    first: Count
    """The range that was asked for, as numbers."""
    last: Count
    versions: Annotated[tuple[OfferedVersion, ...], Meta(max_length=MAX_OFFERED)] = ()
    """Those of the range that are there, from its beginning, as many as fit."""
    cacheable: bool = True
    """Nodes on the way may keep them."""


class FetchPieces(_Value, frozen=True, tag=3):
    """These pieces of a version's body are wanted."""

    token: Count
    asker: Name
    holder: Name
    sid: Id
    rid: Id
    publisher: Name
    epoch: Count
    number: Number
    version_id: Id
    piece_size: Annotated[int, Meta(ge=MIN_PIECE_BYTES, le=MAX_PAYLOAD_BYTES)]
    ranges: Ranges


class VersionPiece(_Value, frozen=True, tag=4):
    """A piece of a version's body."""

    token: Count
    sid: Id
    rid: Id
    publisher: Name
    epoch: Count
    number: Number
    version_id: Id
    piece_size: Count
    place: Count
    content: Annotated[bytes, Meta(max_length=MAX_PAYLOAD_BYTES)]


PullMessage = SeekVersions | VersionOffer | FetchPieces | VersionPiece

_encoder = msgspec.msgpack.Encoder()
_decoder: msgspec.msgpack.Decoder[PullMessage] = msgspec.msgpack.Decoder(PullMessage)

encode = _encoder.encode


def decode(data: bytes) -> PullMessage:
    """The message in these bytes; `PullMessageError` when they hold none."""
    if len(data) > 2 * MAX_PAYLOAD_BYTES:
        raise PullMessageError(f"a message has at most {2 * MAX_PAYLOAD_BYTES} bytes, not {len(data)}")
    try:
        return _decoder.decode(data)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise PullMessageError(str(error)) from None
