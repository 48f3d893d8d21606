"""Whether an announcement is signed as it should be, and whether a version that is complete is what was announced."""

import hashlib
from typing import NamedTuple

from identifiers.identifier import ItemId
from psirp_stack.transport.frames import TransportFrame
from psirp_stack.transport.messages import Announcement
from psirp_stack.transport.receiver_context import ReceiverContext
from psirp_stack.transport.source import Slot
from psirp_stack.transport.versions import content_ids
from psirp_stack.wire.codec import MetadataHeader


class VersionParts(NamedTuple):
    """What segments carried together."""

    attributes: bytes
    content: bytes


def parts_as_announced(slot: Slot, announced: Announcement, body: bytes) -> VersionParts | None:
    """Attributes and content; None when they are not what was announced."""
    split = announced.attributes_in_body
    attributes, content = (body[:split], body[split:]) if split else (announced.attributes, body)
    version_id, sha256 = content_ids(content)
    if version_id != slot.version_id or sha256 != announced.sha256:
        return None
    if split and hashlib.sha256(attributes).digest() != announced.attributes:
        return None
    return VersionParts(attributes, content)


def refusal(
    context: ReceiverContext, item: ItemId, control: TransportFrame, announced: Announcement, now: float
) -> str | None:
    """Why an announcement does not count; None when it does, or when nobody checks."""
    if context.verify is None:
        return None
    header = MetadataHeader(bytes(item.sid), bytes(item.rid), control.vrid, length=control.length)
    return context.verify(item, header, announced, control.authentication, context.wall_ms(now))
