"""What a signature covers, and how it is made: publications, single packets, requests to the rendezvous.

Each kind begins with its own text, so that a signature of one kind never counts as one of another. All numbers are in
network order and every variable part has its length in front: two different things never give the same bytes.
"""

import hashlib
import struct
from dataclasses import dataclass, replace

import msgspec

from psirp_stack.authentication.keys import KeyPair
from psirp_stack.control.messages import (
    Credential,
    Declaration,
    Declare,
    KeepAlive,
    ListItems,
    PublishItem,
    PublishScope,
    SubscribeItem,
    SubscribeScope,
    UnpublishItem,
    UnpublishScope,
    UnsubscribeItem,
    UnsubscribeScope,
)
from psirp_stack.wire.codec import (
    ZERO_FID,
    AuthenticationHeader,
    ForwardingHeader,
    Frame,
    Header,
    MetadataHeader,
    WireError,
    build,
)
from psirp_stack.wire.numbers import FORWARDING_BYTES, ID_BYTES, SIGNATURE_BYTES, HeaderType

PUBLICATION_CONTEXT = b"psph publication 2\0"
PACKET_CONTEXT = b"psph packet 1\0"
REQUEST_CONTEXT = b"psph request 1\0"
DECLARATION_CONTEXT = b"psph declaration 1\0"

PACKET_SIGNED = 0x01
"""Flag of the authentication header: the signature covers this frame. Without it, it covers the publication."""

DEFAULT_LIFETIME_MS = 30 * 24 * 3600 * 1000
"""How long a signature counts: as long as versions may be retained for late subscribers."""

_PUBLICATION = struct.Struct("!32s32s32sQQQ32s32s32sQQQ")
_TIMES = struct.Struct("!QQ")

Signable = (
    PublishScope
    | UnpublishScope
    | SubscribeScope
    | UnsubscribeScope
    | ListItems
    | PublishItem
    | UnpublishItem
    | SubscribeItem
    | UnsubscribeItem
    | KeepAlive
    | Declare
    | Declaration
)
_encode = msgspec.msgpack.Encoder().encode


@dataclass(frozen=True, slots=True)
class PublicationFacts:
    """What a publication's signature vouches for: which version of which item this is, and all of its bytes."""

    sid: bytes
    rid: bytes
    vrid: bytes
    length: int
    epoch: int
    number: int
    content_digest: bytes
    attributes_digest: bytes
    publisher: str
    """The node in whose order it stands."""

    def __post_init__(self) -> None:
        # `struct` would cut or fill byte strings of another length, and two publications would look alike.
        parts = (self.sid, self.rid, self.vrid, self.content_digest, self.attributes_digest)
        if any(len(part) != ID_BYTES for part in parts):
            raise ValueError(f"ids and digests have {ID_BYTES} bytes")
        if not all(0 <= number < 1 << 64 for number in (self.length, self.epoch, self.number)):
            raise ValueError("length, epoch and number are unsigned 64-bit numbers")

    @classmethod
    def of(
        cls,
        sid: bytes,
        rid: bytes,
        vrid: bytes,
        publisher: str,
        epoch: int,
        number: int,
        content: bytes,
        attributes: bytes,
    ) -> "PublicationFacts":
        digests = hashlib.sha256(content).digest(), hashlib.sha256(attributes).digest()
        return cls(sid, rid, vrid, len(content), epoch, number, *digests, publisher)


class Signer:
    """Signs with one key. Sequence numbers begin at the microseconds of the first use, so that those of a later life
    of the signer are higher without anything being kept on disk, and then grow by one."""

    __slots__ = ("_next", "key", "lifetime_ms")

    def __init__(self, key: KeyPair, now_ms: int, lifetime_ms: int = DEFAULT_LIFETIME_MS) -> None:
        self.key = key
        self.lifetime_ms = lifetime_ms
        self._next = now_ms * 1000

    def sign_publication(self, facts: PublicationFacts, now_ms: int) -> AuthenticationHeader:
        """The header that goes with the metadata of a version."""
        header = self._header(now_ms, flags=0)
        return replace(header, signature=self.key.sign(publication_bytes(facts, header)))

    def sign_frame(self, frame: Frame, now_ms: int) -> Frame:
        """The frame with an authentication header of its own, which covers all but what changes on the way."""
        headers = tuple(header for header in frame.headers if not isinstance(header, AuthenticationHeader))
        unsigned = replace(frame, headers=(*headers, self._header(now_ms, flags=PACKET_SIGNED)))
        signature = self.key.sign(packet_bytes(unsigned))
        signed = tuple(
            replace(header, signature=signature) if isinstance(header, AuthenticationHeader) else header
            for header in unsigned.headers
        )
        return replace(unsigned, headers=signed)

    def credential(self, request: Signable, node: str, now_ms: int) -> Credential:
        """The proof to put into a request (or a part of a declaration) that `node` is about to send."""
        sequence = self._take()
        data = request_bytes(request, node, now_ms, sequence)
        return Credential(self.key.public.raw, now_ms, sequence, self.key.sign(data))

    def _header(self, now_ms: int, flags: int) -> AuthenticationHeader:
        return AuthenticationHeader(self.key.hash, now_ms, self._take(), now_ms + self.lifetime_ms, flags)

    def _take(self) -> int:
        self._next += 1
        return self._next - 1


def publication_bytes(facts: PublicationFacts, header: AuthenticationHeader) -> bytes:
    name = facts.publisher.encode()
    return (
        PUBLICATION_CONTEXT
        + bytes((len(name),))
        + name
        + _PUBLICATION.pack(
            facts.sid,
            facts.rid,
            facts.vrid,
            facts.length,
            facts.epoch,
            facts.number,
            facts.content_digest,
            facts.attributes_digest,
            header.signer,
            header.timestamp,
            header.sequence,
            header.expiry,
        )
    )


def packet_bytes(frame: Frame) -> bytes:
    """All of a frame after its forwarding header, with the collected way back and the signature set to zero.

    Padding is left out: links add it. Raises `WireError` for a frame that cannot be built.
    """
    headers: list[Header] = []
    for header in frame.headers:
        if isinstance(header, MetadataHeader):
            headers.append(replace(header, collected_fid=ZERO_FID))
        elif isinstance(header, AuthenticationHeader):
            headers.append(replace(header, signature=bytes(SIGNATURE_BYTES)))
        else:
            headers.append(header)
    if not headers or not isinstance(headers[0], ForwardingHeader):
        raise WireError(0, "a frame begins with a forwarding header")
    covered = build(Frame(tuple(headers), frame.payload))
    # The type of the first header after the forwarding header is covered by that header itself.
    first = headers[1].type if len(headers) > 1 else HeaderType.NONE
    return PACKET_CONTEXT + bytes((first,)) + covered[FORWARDING_BYTES:]


def request_bytes(request: Signable, node: str, timestamp: int, sequence: int) -> bytes:
    """What a credential covers: the request without it, and the name of the node that asks."""
    name = node.encode()
    context = DECLARATION_CONTEXT if isinstance(request, Declaration) else REQUEST_CONTEXT
    body = _encode(msgspec.structs.replace(request, credential=None))
    return context + bytes((len(name),)) + name + _TIMES.pack(timestamp, sequence) + body
