"""What an application and its node say to each other: MessagePack arrays, each behind its length in four bytes.

Requests carry a number that the answer repeats. An application subscribes to an item once; if several listeners of one
application want it, its client library shares it among them. Publications flow only as far as the application has room:
`Consumed` gives back the room of what was handled.
"""

import struct
from typing import Annotated

import msgspec
from msgspec import Meta, Struct

from psirp_stack.control.messages import MAX_LISTED, Count, Id, KeyHash, Name, Names, Reason, ScopePolicy
from psirp_stack.pull.messages import Place
from psirp_stack.wire.numbers import ID_BYTES

PROTOCOL_VERSION = 1
MAX_CONTENT_BYTES = 16 * 1024 * 1024
MAX_ATTRIBUTE_BYTES = 4096
MAX_ATTACHMENT_BYTES = MAX_CONTENT_BYTES + 64 * 1024
LENGTH = struct.Struct("!I")

Content = Annotated[bytes, Meta(max_length=MAX_CONTENT_BYTES)]
Attributes = Annotated[bytes, Meta(max_length=MAX_ATTRIBUTE_BYTES)]
CodeNumber = Annotated[int, Meta(ge=0, le=255)]


class AttachmentError(ValueError):
    """Bytes that are no message between an application and its node."""


class _Value(Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """A part of messages."""


# From the application to its node.


class Attach(_Value, frozen=True, tag=1):
    version: Count
    application: Annotated[str, Meta(max_length=64)]


class LocalPublishScope(_Value, frozen=True, tag=2):
    number: Count
    sid: Id
    parent: Id
    policy: ScopePolicy | None


class LocalUnpublishScope(_Value, frozen=True, tag=3):
    number: Count
    sid: Id
    parent: Id


class LocalSubscribeScope(_Value, frozen=True, tag=4):
    number: Count
    sid: Id


class LocalUnsubscribeScope(_Value, frozen=True, tag=5):
    number: Count
    sid: Id


class Publish(_Value, frozen=True, tag=6):
    """A new version of an item; the first one also announces this node as a publisher of the item."""

    number: Count
    sid: Id
    rid: Id
    content: Content
    attributes: Attributes


class Advertise(_Value, frozen=True, tag=7):
    """Be a publisher of the item before there is anything to publish."""

    number: Count
    sid: Id
    rid: Id


class Withdraw(_Value, frozen=True, tag=8):
    """Be a publisher of the item no longer."""

    number: Count
    sid: Id
    rid: Id


class Subscribe(_Value, frozen=True, tag=9):
    """Want an item: the current version and all later ones; from `since` on, if that version is named."""

    number: Count
    sid: Id
    rid: Id
    since: Id | None = None
    future_only: bool = False


class Unsubscribe(_Value, frozen=True, tag=10):
    number: Count
    sid: Id
    rid: Id


class AskExplanation(_Value, frozen=True, tag=11):
    number: Count
    sid: Id
    rid: Id


class AskStatus(_Value, frozen=True, tag=12):
    number: Count


class AskPaths(_Value, frozen=True, tag=14):
    """Which links the item's filters take from these publishers to these subscribers, and which by mistake."""

    number: Count
    sid: Id
    rid: Id
    publishers: Names
    subscribers: Names


class GetVersions(_Value, frozen=True, tag=15):
    """Want some versions of an item, once: 1 is its publisher's first, -1 the newest."""

    number: Count
    sid: Id
    rid: Id
    first: Place = -1
    last: Place = -1


class GetItems(_Value, frozen=True, tag=16):
    """Which items of a scope are published, whose Rids begin with the prefix and come after the one that is named?"""

    number: Count
    sid: Id
    prefix: Annotated[bytes, Meta(max_length=ID_BYTES)]
    after: Id


class Consumed(_Value, frozen=True, tag=13):
    """The application has handled so many bytes of an item's publications."""

    sid: Id
    rid: Id
    size: Count


Asked = (
    LocalPublishScope
    | LocalUnpublishScope
    | LocalSubscribeScope
    | LocalUnsubscribeScope
    | Publish
    | Advertise
    | Withdraw
    | Subscribe
    | Unsubscribe
    | AskExplanation
    | AskStatus
    | AskPaths
    | GetVersions
    | GetItems
)
"""Requests that are answered."""
Request = Asked | Attach | Consumed


# From the node to the application.


class Done(_Value, frozen=True, tag=20):
    """How a request ended: a `Code`, and why in words. `version` names what was published."""

    number: Count
    code: CodeNumber
    reason: Reason = ""
    version: Id | None = None


class ReceivedVersion(_Value, frozen=True, tag=21):
    """One version of an item."""

    sid: Id
    rid: Id
    version: Id
    epoch: Count
    order: Count
    """The version's place in its publisher's order; places are comparable within an epoch."""
    published_ms: Count
    attributes: Attributes
    content: Content
    signer: KeyHash | None = None
    hops: Count | None = None
    """Links it came by; None when it was published on this node."""


class Skipped(_Value, frozen=True, tag=22):
    """Versions that this application will not get, and why."""

    sid: Id
    rid: Id
    count: Count
    reason: Reason


class ScopeChanged(_Value, frozen=True, tag=23):
    """SCOPE_PUBLISHED or SCOPE_UNPUBLISHED: a scope or item came under a subscribed scope, or left it."""

    parent: Id
    child: Id
    is_scope: bool
    published: bool


class ServingChanged(_Value, frozen=True, tag=24):
    """Which publisher serves a subscribed item now; None and the code of the reason when nobody does."""

    sid: Id
    rid: Id
    publisher: Name | None
    code: CodeNumber


class Why(_Value, frozen=True, tag=25):
    """Everything known about why an item arrives or does not."""

    number: Count
    code: CodeNumber
    reason: Reason
    scope_exists: bool
    item_exists: bool
    publishers: Names
    subscribers: Names
    refusals: Annotated[tuple[Reason, ...], Meta(max_length=32)]
    unserved: Annotated[tuple[tuple[Name, Count], ...], Meta(max_length=4096)]


class NodeStatus(_Value, frozen=True, tag=26):
    """The node's own account of itself, as JSON."""

    number: Count
    document: Annotated[str, Meta(max_length=MAX_CONTENT_BYTES)]


class DemandChanged(_Value, frozen=True, tag=27):
    """Whether anybody is subscribed to an item that this application publishes or advertises.

    Not told: nobody is, as far as this node has heard.
    """

    sid: Id
    rid: Id
    wanted: bool


class VersionGot(_Value, frozen=True, tag=28):
    """One of the versions that were asked for with this number; `Done` follows the last."""

    number: Count
    version: ReceivedVersion
    holder: Name
    """The node that had it."""


class ItemsFound(_Value, frozen=True, tag=29):
    """Published items of a scope by their Rids; more than these when it says so."""

    number: Count
    rids: Annotated[tuple[Id, ...], Meta(max_length=MAX_LISTED)]
    more: bool


Told = (
    Done
    | ReceivedVersion
    | Skipped
    | ScopeChanged
    | ServingChanged
    | Why
    | NodeStatus
    | DemandChanged
    | VersionGot
    | ItemsFound
)

_encoder = msgspec.msgpack.Encoder()
_requests: msgspec.msgpack.Decoder[Request] = msgspec.msgpack.Decoder(Request)
_told: msgspec.msgpack.Decoder[Told] = msgspec.msgpack.Decoder(Told)


def framed(message: Request | Told) -> bytes:
    body = _encoder.encode(message)
    return LENGTH.pack(len(body)) + body


def read_request(body: bytes) -> Request:
    try:
        return _requests.decode(body)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise AttachmentError(str(error)) from None


def read_told(body: bytes) -> Told:
    try:
        return _told.decode(body)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise AttachmentError(str(error)) from None


class Unframer:
    """Cuts a byte stream into messages; bounded, since a length comes from outside."""

    def __init__(self, limit: int = MAX_ATTACHMENT_BYTES) -> None:
        self._limit = limit
        self._waiting = bytearray()

    def feed(self, data: bytes) -> list[bytes]:
        """The bodies that are complete now; `AttachmentError` when a length is beyond the bound."""
        self._waiting += data
        bodies = []
        start = 0
        while len(self._waiting) - start >= LENGTH.size:
            (size,) = LENGTH.unpack_from(self._waiting, start)
            if size > self._limit:
                raise AttachmentError(f"a message of {size} bytes was announced; at most {self._limit} are allowed")
            end = start + LENGTH.size + size
            if len(self._waiting) < end:
                break
            bodies.append(bytes(self._waiting[start + LENGTH.size : end]))
            start = end
        del self._waiting[:start]
        return bodies
