"""Frames that were made up: as a real publisher, rendezvous or neighbour would send them, by somebody who is none.

Names, ids, seeds and filters are those of the attacked world; they are no secrets.
"""

import random
from collections.abc import Callable, Iterator, Sequence

from exchange.model import Profile
from gateway.protocols.psirp.envelope import ENVELOPE_VERSION, Header, seal
from identifiers import DEFAULT_NAMING, ItemId, Topic
from perf.numbered_feed import document
from psirp_stack.control.codes import Function, ServiceRole
from psirp_stack.control.courier_wire import Piece
from psirp_stack.control.courier_wire import encode as encode_courier
from psirp_stack.control.frames import build_control
from psirp_stack.control.messages import (
    OPEN_SCOPE,
    AgedState,
    FilterGrant,
    Hello,
    LinkState,
    LinkStates,
    Message,
    Served,
    StopPublish,
    encode,
)
from psirp_stack.control.tag_source import DerivedTags
from psirp_stack.forwarding_model import BROADCAST_FID
from psirp_stack.transport.frames import control_frame, first_way, segment_frame, segment_prefix
from psirp_stack.transport.messages import Announcement
from psirp_stack.transport.messages import encode as encode_transport
from psirp_stack.transport.sender import Sender
from psirp_stack.transport.versions import content_ids, in_memory
from psirp_stack.wire.numbers import FID_BYTES, HeaderType
from trials.attack.places import FEED, ITEM

TAGS = DerivedTags(b"psph")
TABLE = 0
MTU = 1400
FAR_AHEAD = 999_999
"""A number that the innocent publisher does not reach."""
FAR_EPOCH = 1 << 62
MANY = 1 << 24
SMALL = 64
FEED_ITEM = DEFAULT_NAMING.of_topic(Topic.parse(FEED))
Sign = Callable[..., bytes]


def filter_into(node: str) -> bytes:
    """A filter of a frame that this node delivers to itself."""
    return TAGS.internal_tags(node)[TABLE].to_bytes(FID_BYTES - 1, "big") + bytes((TABLE,))


def forged_contents() -> dict[ItemId, bytes]:
    """Of the items that somebody innocent is subscribed to."""
    header = Header(ENVELOPE_VERSION, Profile.DOCUMENT, FEED, "application/atom+xml")
    return {ITEM: f"innocent {FAR_AHEAD}".encode(), FEED_ITEM: seal(header, document(FAR_AHEAD))}


def publication(
    item: ItemId, content: bytes, publisher: str, to: str, fid: bytes, boot: int, wall_ms: int
) -> list[bytes]:
    """Announcement and segments, as the publisher's own node would send them in this life of it."""
    sender = Sender(
        publisher,
        TAGS.internal_tags(publisher),
        in_memory(boot),
        route_to=lambda name: (fid, MTU),
        wall_ms=lambda now: wall_ms,
        rng=random.Random(1),  # noqa: S311  (repeatable on purpose)
    )
    sender.grant(item, 1, (FilterGrant(fid, (to,), MTU),), 0.0)
    frames: list[bytes] = []
    for turn in range(6):
        now = turn / 10
        if turn < 3:
            sender.publish(item, content + b" " * turn, b"", now)
        due = sender.next_timer()
        if due is not None and due <= now:
            sender.handle_timer(now)
        while (frame := sender.next_frame(now)) is not None:
            frames.append(frame)
    return frames


def huge_announcement(item: ItemId, publisher: str, fid: bytes, epoch: int, number: int) -> list[bytes]:
    """Of 16 MiB in the smallest segments, a few of which come: each at another end of the whole."""
    content = b"%d %d" % (epoch, number)
    version_id, sha256 = content_ids(content)
    last = MANY // SMALL - 1
    said = Announcement(publisher, epoch, number, 1, b"", 0, sha256, SMALL)
    way = first_way(TAGS.internal_tags(publisher), TABLE)
    key = bytes(item)
    announced = control_frame(
        HeaderType.PUBLISH_METADATA, fid, key, version_id, 0, way, encode_transport(said),
        length=MANY, max_seqnum=last,
    )  # fmt: skip
    prefix = segment_prefix(fid, key, version_id)
    return [announced, *(segment_frame(prefix, at, bytes(SMALL)) for at in (0, last // 2, last))]


def neighbourly(name: str, roles: int = int(ServiceRole.RENDEZVOUS | ServiceRole.TOPOLOGY)) -> Iterator[bytes]:
    """What a neighbour says: that it is there, that it has all roles, and that others have no links any more."""
    said: list[Message] = [Hello(name, FAR_EPOCH, ("hub", "core", "far"), MTU)]
    for origin in ("core", "hub", "far", name):
        state = encode(LinkState(origin, FAR_EPOCH, 1, roles, ()))
        said.append(LinkStates((AgedState(0, state),)))
    for message in said:
        yield build_control(BROADCAST_FID, Function.LINK_STATE, None, encode(message))


def letter(source: str, boot: int, number: int, to: str, function: Function, message: Message, fid: bytes) -> bytes:
    """A message of the control plane with this sender's name under it."""
    piece = Piece(source, boot, number, number, int(function), 0, 0, 1, False, encode(message))
    return build_control(fid, function, to, encode_courier(piece))


def orders(item: ItemId) -> Sequence[tuple[str, Message]]:
    """What a topology manager says to those who publish and are subscribed: stop, and nobody serves you."""
    sid, rid, generation = bytes(item.sid), bytes(item.rid), 1 << 60
    return (
        ("hub", StopPublish(sid, rid, generation)),
        ("far", Served(sid, rid, generation, None, 1, OPEN_SCOPE)),
    )


def everything_for(to: str, neighbour: str, boot: int, wall_ms: int) -> list[bytes]:
    """All that somebody on a wire can say to a node that has a neighbour of this name there."""
    fid = filter_into(to)
    frames = list(neighbourly(neighbour))
    for item, content in forged_contents().items():
        for life in (boot, FAR_EPOCH >> 24):
            for publisher in ("hub", neighbour):
                frames += publication(item, content, publisher, to, fid, life, wall_ms)
        for number in range(1, 40):
            frames += huge_announcement(item, "hub", fid, boot << 24, number)
        for told, message in orders(item):
            frames.append(letter("core", FAR_EPOCH, 0, told, Function.NODE, message, fid))
    return frames
