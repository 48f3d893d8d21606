"""The frames of one item, made for whatever filter they are to go along."""

import hashlib

from psirp_stack.forwarding_model import TABLES
from psirp_stack.transport.frames import (
    ANNOUNCEMENT_OVERHEAD,
    DATA_OVERHEAD,
    control_frame,
    first_way,
    segment_frame,
    segment_prefix,
    signed_segment,
)
from psirp_stack.transport.hooks import PacketSigner
from psirp_stack.transport.messages import DIGEST_BYTES, Announcement, Retained, encode
from psirp_stack.transport.peer import Answer
from psirp_stack.transport.positions import Outgoing, Positions
from psirp_stack.transport.sender_context import SenderContext
from psirp_stack.wire.codec import ZERO_ID, build, parse
from psirp_stack.wire.numbers import HeaderType

MOST_ANNOUNCED_BYTES = 128
"""What an announcement takes as a message, beside the publisher's name, the attributes and the body."""
UTF8_BYTES = 4


class ItemFrames:
    """Announcements, segments and messages of what is retained."""

    __slots__ = ("_prefix", "_prefix_of", "cacheable", "context", "joining", "key", "packet_signer", "positions")

    def __init__(self, context: SenderContext, key: bytes, positions: Positions) -> None:
        self.context = context
        self.key = key
        self.positions = positions
        self.packet_signer: PacketSigner | None = None
        self.cacheable = True
        """Whether nodes on the way may keep versions of the item."""
        self.joining = 0
        """What unheard receivers need to know to begin: the lowest `joined` among them, 0 when all were heard."""
        self._prefix = b""
        self._prefix_of: tuple[bytes, bytes] = (b"", b"")

    def is_on_request(self, out: Outgoing) -> bool:
        """Whether those who come late ask for its segments."""
        return self.cacheable and len(out.body) > self.context.config.on_request_above

    def announcement(
        self,
        out: Outgoing,
        fid: bytes,
        table: int,
        now: float,
        *,
        alone: bool = False,
        ack_bytes: int = 0,
        with_body: bool = False,
    ) -> bytes:
        """`alone`: to one receiver, who may have to ask for the segments. `with_body`: the only segment is in it."""
        self.context.counters.announcements += 1
        version = out.version
        payload = encode(
            Announcement(
                self.context.name,
                version.epoch,
                version.number,
                version.published_ms,
                version.attributes if out.inline else hashlib.sha256(version.attributes).digest(),
                0 if out.inline else len(version.attributes),
                version.sha256,
                out.segment_size,
                self._settled_ms(max(self.joining - 1, 1), now) if self.joining else 0,
                self.cacheable,
                alone and self.is_on_request(out),
                ack_bytes,
                out.body if with_body else b"",
            )
        )
        return control_frame(
            HeaderType.PUBLISH_METADATA,
            fid,
            self.key,
            version.version_id,
            self.joining,
            first_way(self.context.internal, table if table < TABLES else 0),
            payload,
            length=len(version.content),
            max_seqnum=max(out.segments - 1, 0),
            authentication=version.authentication,
        )

    def fits_beside(self, out: Outgoing) -> bool:
        """Whether all of a version travels in its announcement: one frame instead of two."""
        attributes = len(out.version.attributes) if out.inline else DIGEST_BYTES
        size = ANNOUNCEMENT_OVERHEAD + MOST_ANNOUNCED_BYTES + len(self.context.name) * UTF8_BYTES + attributes
        if out.segments != 1 or self.packet_signer is not None:
            return False
        return size + len(out.body) <= out.segment_size + DATA_OVERHEAD

    def segment(self, out: Outgoing, number: int, fid: bytes, now: float) -> bytes:
        at = number * out.segment_size
        payload = out.body[at : at + out.segment_size]
        if self._prefix_of != (fid, out.version_id):
            self._prefix = segment_prefix(fid, self.key, out.version_id)
            self._prefix_of = (fid, out.version_id)
        if self.packet_signer is None:
            return segment_frame(self._prefix, number, payload)
        return build(self.packet_signer(signed_segment(self._prefix, number, payload), self.context.wall_ms(now)))

    def _settled_ms(self, start: int, now: float) -> int:
        return int(self.positions.age_of(start - 1, now) * 1000)

    def retained(self, subscriber: str, token: int, answer: Answer, fid: bytes, table: int, now: float) -> bytes:
        positions, start = self.positions, answer.start
        payload = encode(
            Retained(
                self.context.name,
                subscriber,
                positions.versions.epoch,
                positions.oldest,
                positions.newest,
                start,
                answer.known,
                None if answer.follows or start is None else self._settled_ms(start, now),
                token,
            )
        )
        way = first_way(self.context.internal, table)
        frame = control_frame(HeaderType.PUBLISH_METADATA, fid, self.key, ZERO_ID, 0, way, payload)
        sign = self.context.sign_answer
        return frame if sign is None else build(sign(parse(frame), self.context.wall_ms(now)))
