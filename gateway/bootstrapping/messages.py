"""What gateways tell each other on a zone's signalling channels: who manages it, what is wanted, what became of it.

| item, below the zone's signalling scope | content | published by |
|---|---|---|
| h(".com") | `ZoneAnnouncement` | the zone's manager |
| h(".com/REQUESTER") | `TopicRequests`: everything that one gateway wants of the zone | that gateway |
| h(".com/REQUESTER/answers") | `RequestAnswers`: what became of each | the zone's manager |

Each version is the whole state, not a change of it, so a lost or repeated one does no harm. A subscriber in the network
hears only one publisher of an item: that is why every requester has an item of its own.
"""

from enum import StrEnum
from typing import Annotated

import msgspec
from msgspec import Meta, Struct

from identifiers import Identifier, ItemId, Naming, Zone

MAX_TOPICS_IN_MESSAGE = 10_000
MAX_MESSAGE_BYTES = 16 * 1024 * 1024
MAX_REASON = 300
REQUESTER_ID_BYTES = 16

Count = Annotated[int, Meta(ge=0, le=(1 << 63) - 1)]
Name = Annotated[str, Meta(min_length=1, max_length=300)]
Url = Annotated[str, Meta(min_length=1, max_length=8192)]
RequesterId = Annotated[str, Meta(pattern=r"\A[0-9a-f]{32}\Z")]
Reason = Annotated[str, Meta(max_length=MAX_REASON)]


class RequestMode(StrEnum):
    SUBSCRIBE = "subscribe"
    UNSUBSCRIBE = "unsubscribe"


class _Message(Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    pass


class ZoneAnnouncement(_Message, frozen=True, tag="announcement"):
    """Somebody manages this zone, and names topics so."""

    zone: Name
    manager: Name
    naming: Name
    """`scheme/hash`"""


class TopicRequest(_Message, frozen=True):
    mode: RequestMode
    topic: Url
    number: Count
    """Asking again has a higher number: that renews the lease."""
    lease: Count


class TopicRequests(_Message, frozen=True, tag="requests"):
    """Everything that a requester wants of a zone; what is missing in it is wanted no longer."""

    zone: Name
    requester: RequesterId
    scheme: Name
    hash: Name
    serial: Count
    """Higher in every newer list of this requester."""
    requests: Annotated[tuple[TopicRequest, ...], Meta(max_length=MAX_TOPICS_IN_MESSAGE)]


class RequestAnswer(_Message, frozen=True):
    topic: Url
    number: Count
    """Of the request that this answers."""
    accepted: bool
    reason: Reason


class RequestAnswers(_Message, frozen=True, tag="answers"):
    zone: Name
    requester: RequesterId
    manager: Name
    naming: Name
    heard: Count
    """The serial of the last list that was heard."""
    answers: Annotated[tuple[RequestAnswer, ...], Meta(max_length=MAX_TOPICS_IN_MESSAGE)]


Message = ZoneAnnouncement | TopicRequests | RequestAnswers


class SignallingMessageError(ValueError):
    """Bytes that are no message of this protocol."""


_encoder = msgspec.msgpack.Encoder()
_decoder: msgspec.msgpack.Decoder[Message] = msgspec.msgpack.Decoder(Message)


def encode(message: Message) -> bytes:
    return _encoder.encode(message)


def decode(data: bytes) -> Message:
    """`SignallingMessageError` for what is none."""
    if len(data) > MAX_MESSAGE_BYTES:
        raise SignallingMessageError(f"longer than {MAX_MESSAGE_BYTES} bytes")
    try:
        return _decoder.decode(data)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise SignallingMessageError(str(error)) from None


def announcement_item(naming: Naming, zone: Zone) -> ItemId:
    return naming.of_signalling(zone)


def requests_item(naming: Naming, zone: Zone, requester: str) -> ItemId:
    return ItemId(scope_of(naming, zone), naming.of_seed(f".{zone.suffix}/{requester}"))


def answers_item(naming: Naming, zone: Zone, requester: str) -> ItemId:
    return ItemId(scope_of(naming, zone), naming.of_seed(f".{zone.suffix}/{requester}/answers"))


def scope_of(naming: Naming, zone: Zone) -> Identifier:
    return naming.of_signalling(zone).sid


def shortened(reason: str) -> str:
    """Fit for a message, and for a header line or query of whoever it is passed on to."""
    text = "".join(c if c.isprintable() else " " for c in reason)
    return text if len(text) <= MAX_REASON else f"{text[: MAX_REASON - 1]}…"
