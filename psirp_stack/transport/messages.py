"""The payloads of the transport, declared once: MessagePack arrays, checked for type, length and count on decoding.

| message | travels under | from | to |
|---|---|---|---|
| `Announcement` | PUBLISH_METADATA, vrid of the version | publisher | all of a filter, or one receiver |
| `Retained` | PUBLISH_METADATA, vrid zero | publisher | one receiver |
| `Want` | SUBSCRIBE_DATA, vrid of the version | receiver | publisher |
| `Ask` | SUBSCRIBE_METADATA, vrid zero | receiver | publisher |
| `Have` | SUBSCRIBE_METADATA, vrid zero, seqnum = the number acknowledged | receiver | publisher |

All name the publisher: a filter may bring a frame to nodes it was not meant for.
"""

from typing import Annotated

import msgspec
from msgspec import Meta, Struct

from psirp_stack.control.messages import Count, Id, Name
from psirp_stack.transport.config import MAX_CONTENT_BYTES

MAX_ATTRIBUTES_BYTES = 4096
INLINE_ATTRIBUTES_BYTES = 256
"""Longer attributes travel in segments, so that an announcement fits into every frame."""
MAX_RANGES = 64
MIN_SEGMENT_BYTES = 64
"""Shorter segments would make the bookkeeping larger than the content."""
MAX_COPIES = 3
MAX_PAYLOAD_BYTES = 16 * 1024
"""No message is longer: more is not even decoded."""

DIGEST_BYTES = 32
Digest = Annotated[bytes, Meta(min_length=DIGEST_BYTES, max_length=DIGEST_BYTES)]
Number = Annotated[int, Meta(ge=1, le=(1 << 62))]
"""Of a version in its epoch: 1, 2, 3, ..."""
Copies = Annotated[int, Meta(ge=1, le=MAX_COPIES)]
"""How often to send each frame of an answer: more than once where several attempts were lost."""
Range = tuple[Count, Count]
"""First and last, both included."""
Ranges = Annotated[tuple[Range, ...], Meta(max_length=MAX_RANGES)]


class TransportMessageError(ValueError):
    """Bytes that are no message of the transport."""


class _Message(Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """A payload."""


class Announcement(_Message, frozen=True, tag=1):
    """A version: where it stands, and what is needed to put it together and to check it."""

    publisher: Name
    epoch: Count
    number: Number
    published_ms: Count
    attributes: Annotated[bytes, Meta(max_length=MAX_ATTRIBUTES_BYTES)]
    attributes_in_body: Annotated[int, Meta(ge=0, le=MAX_ATTRIBUTES_BYTES)]
    """Bytes of attributes that come before the content in the segments, because they are too long for this frame;
    `attributes` is their SHA-256 then."""
    sha256: Digest
    """Of the content."""
    segment_size: Annotated[int, Meta(ge=0, le=MAX_CONTENT_BYTES)]
    settled_ms: Count = 0
    """How long ago the version before the one that joiners begin with was published: who subscribed before that has to
    ask for an earlier one."""
    cacheable: bool = True
    """Nodes on the way may keep the version, and give it to anybody who asks."""
    on_request: bool = False
    """Its segments are sent to who asks for them: a node on the way may have them."""
    ack_bytes: Count = 0
    """After how many bytes the publisher would like to hear; 0: the receiver knows best."""
    body: Annotated[bytes, Meta(max_length=MAX_PAYLOAD_BYTES)] = b""
    """All that the only segment of a version would carry, if it finds room beside the announcement."""

    @property
    def has_valid_attributes(self) -> bool:
        """Short ones stand here, of long ones the SHA-256."""
        size = len(self.attributes)
        return size == DIGEST_BYTES if self.attributes_in_body else size <= INLINE_ATTRIBUTES_BYTES


class ArrivalReport(Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """What came of what a publisher sends, counted from the subscription on, and what that tells of the way."""

    frames: Count = 0
    missed: Count = 0
    """Taken for lost, and asked for."""
    marked: Count = 0
    """Had the mark of congestion."""
    beyond: Count = 0
    """Bytes that are there, but not in their turn yet: not in `progress`."""
    latest: tuple[Count, Count] = (0, 0)
    """The version and place (0: the announcement, then 1, 2, ... segments) that came last and were new."""
    held_us: Count = 0
    """How long ago that was, in microseconds."""


NOTHING_CAME = ArrivalReport()


class Want(_Message, frozen=True, tag=2):
    """These segments of a version are missing."""

    subscriber: Name
    boot: Count
    publisher: Name
    epoch: Count
    number: Number
    segment_size: Count
    ranges: Ranges
    room: Count
    have: Count
    progress: Count
    """`have` and `progress` as in `Have`: an acknowledgement that got lost must not keep the publisher waiting."""
    copies: Copies = 1
    arrivals: ArrivalReport = NOTHING_CAME


class Have(_Message, frozen=True, tag=3):
    """All versions up to `number` were handed up, and `progress` bytes of the next are there without a gap."""

    subscriber: Name
    boot: Count
    publisher: Name
    epoch: Count
    number: Count
    progress: Count
    room: Count
    """Bytes that may follow, counted from the next version's beginning."""
    arrivals: ArrivalReport = NOTHING_CAME


class Ask(_Message, frozen=True, tag=4):
    """Send these versions, metadata and all; or, to join, say where to begin."""

    subscriber: Name
    boot: Count
    publisher: Name
    epoch: Count
    """0 for one who has not heard of any."""
    ranges: Ranges
    room: Count
    have: Count
    progress: Count
    join: bool = False
    future_only: bool = False
    since_id: Id | None = None
    since_number: tuple[Count, Count] | None = None
    """Epoch and number of the last version the subscriber has."""
    copies: Copies = 1
    waited_ms: Count = 0
    """To join: all that was published in the last so many milliseconds is wanted."""
    token: Count = 0
    """A number that nobody can guess, to be repeated in `Retained`: the answer then comes from where the question went.
    Without ranges: a question what there is."""


class Retained(_Message, frozen=True, tag=5):
    """What the publisher has. Versions before `oldest` are gone."""

    publisher: Name
    subscriber: Name
    epoch: Count
    oldest: Count
    newest: Count
    """`oldest - 1` when there are none."""
    start: Count | None
    """For one who joins: the first version that it is going to get."""
    known: bool = True
    """Whether the version that the subscriber named was found."""
    settled_ms: Count | None = None
    """How long ago the version before `start` was published; None when `start` follows the version that was named."""
    token: Count = 0
    """That of the subscriber's last question."""


TransportMessage = Announcement | Want | Have | Ask | Retained

_encoder = msgspec.msgpack.Encoder()
_decoder: msgspec.msgpack.Decoder[TransportMessage] = msgspec.msgpack.Decoder(TransportMessage)

encode = _encoder.encode


def decode(data: bytes) -> TransportMessage:
    """The message in these bytes; `TransportMessageError` when they hold none."""
    if len(data) > MAX_PAYLOAD_BYTES:
        raise TransportMessageError(f"a message has at most {MAX_PAYLOAD_BYTES} bytes, not {len(data)}")
    try:
        return _decoder.decode(data)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise TransportMessageError(str(error)) from None


def valid_segment_size(segment_size: int, length: int) -> bool:
    """Whether content of this length may be cut so. Content in one piece may be as short as it likes."""
    return length == 0 or segment_size >= min(length, MIN_SEGMENT_BYTES)


def segment_count(length: int, segment_size: int) -> int:
    return -(-length // segment_size) if length else 0
