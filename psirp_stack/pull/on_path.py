"""What passes by a node that keeps versions: it is learned from, and requests for what is here go no further.

Requests for pieces of versions are answered, both those of nodes that ask once (`messages`) and those with which
subscribers ask their publisher for a version, or for segments that got lost (`transport/messages.py`).
"""

from collections.abc import Callable, Iterator, Sequence
from hashlib import sha256

from psirp_stack.control.codes import CONTROL_PREFIX, Function
from psirp_stack.control.frames import CONTROL_OVERHEAD, has_control_scope, node_rid
from psirp_stack.forwarding_model import FILTER_BYTES
from psirp_stack.pull.cache import VersionCache, VersionKey
from psirp_stack.pull.holder import VersionHolder, numbers_in
from psirp_stack.pull.messages import (
    FetchPieces,
    PullMessageError,
    SeekVersions,
    VersionOffer,
    VersionPiece,
    decode,
    encode,
)
from psirp_stack.pull.passing import PassingVersions
from psirp_stack.transport.frames import (
    ANNOUNCEMENT_OVERHEAD,
    DATA_OVERHEAD,
    HANDLE_TABLE,
    control_frame,
    is_segment,
    read_control,
    segment_frame,
    segment_prefix,
    segment_size_for,
)
from psirp_stack.transport.messages import (
    INLINE_ATTRIBUTES_BYTES,
    MIN_SEGMENT_BYTES,
    Announcement,
    Ask,
    TransportMessageError,
    Want,
    segment_count,
)
from psirp_stack.transport.messages import decode as decode_transport
from psirp_stack.transport.messages import encode as encode_transport
from psirp_stack.transport.versions import Version
from psirp_stack.wire.numbers import FORWARDING_BYTES, NEXT_OFFSET, RID_OFFSET, SID_OFFSET, HeaderType

MAX_VERSIONS_AN_ANSWER = 16
ANSWER_BYTES = 128 * 1024
"""Sent for one request."""
NO_WAY_BACK = bytes(FILTER_BYTES) + bytes((HANDLE_TABLE,))
"""Nothing is collected on the way: acknowledgements are for the publisher, not for the node that helped out."""

_FUNCTION_AT = FORWARDING_BYTES + SID_OFFSET + len(CONTROL_PREFIX)
_RID = slice(FORWARDING_BYTES + RID_OFFSET, FORWARDING_BYTES + RID_OFFSET + 32)
_SHORTEST = CONTROL_OVERHEAD
_PULL, _PULLED = int(Function.PULL), int(Function.PULLED)
_PUBLISH_DATA = int(HeaderType.PUBLISH_DATA)
_PUBLISH_METADATA = int(HeaderType.PUBLISH_METADATA)
_REQUESTS = frozenset({int(HeaderType.SUBSCRIBE_DATA), int(HeaderType.SUBSCRIBE_METADATA)})

RouteFor = Callable[[str], tuple[bytes, int] | None]
"""A filter to a node and the longest frame on the way; None when there is none, or only one over relays."""


class OnPath:
    """Looks at the frames that come by links, before the forwarder does."""

    def __init__(
        self,
        name: str,
        cache: VersionCache,
        holder: VersionHolder,
        route_for: RouteFor,
        answer: Callable[[str, bytes], None],
        send: Callable[[bytes], None],
    ) -> None:
        """`answer` sends a PULLED message to a node, `send` a frame as it is."""
        self._name = name
        self._rid = node_rid(name)
        self._cache = cache
        self._holder = holder
        self._route_for = route_for
        self._answer = answer
        self._send = send
        self.passing = PassingVersions(cache)

    def look(self, frames: Sequence[bytes]) -> Sequence[bytes]:
        """Learn from the frames, and say which of them have to go on."""
        answered: set[int] = set()
        for place, frame in enumerate(frames):
            if len(frame) < _SHORTEST:
                continue
            kind = frame[NEXT_OFFSET]
            if kind == _PUBLISH_DATA:
                if has_control_scope(frame):
                    if self._is_answered(frame):
                        answered.add(place)
                elif is_segment(frame):
                    self.passing.segment(frame)
            elif kind == _PUBLISH_METADATA:
                self.passing.announced(frame)
            elif kind in _REQUESTS and self._is_served(frame):
                answered.add(place)
        return [frame for place, frame in enumerate(frames) if place not in answered] if answered else frames

    # Requests of those who ask once.

    def _is_answered(self, frame: bytes) -> bool:
        function = frame[_FUNCTION_AT]
        if function not in (_PULL, _PULLED) or (function == _PULL and frame[_RID] == self._rid):
            return False
        try:
            message = decode(frame[CONTROL_OVERHEAD:])
        except PullMessageError:
            return False
        match message:
            case VersionOffer():
                self.passing.offered(message)
            case VersionPiece():
                self.passing.piece(message)
            case SeekVersions():
                route = self._route_for(message.asker)
                offer = None if route is None else self._holder.offer_in_passing(message, route[1])
                if offer is not None:
                    self._answer(message.asker, encode(offer))
                return offer is not None
            case FetchPieces():
                pieces = self._holder.pieces_in_passing(message)
                if pieces is None:
                    self._cache.counters.misses += 1
                    return False
                self._cache.counters.hits += 1
                for piece in pieces:
                    self._cache.counters.hit_bytes += len(piece)
                    self._answer(message.asker, piece)
                return True
        return False

    # Requests of subscribers.

    def _is_served(self, frame: bytes) -> bool:
        control = read_control(frame)
        if control is None:
            return False
        try:
            message = decode_transport(control.payload)
        except TransportMessageError:
            return False
        if not isinstance(message, (Want, Ask)) or message.publisher == self._name:
            return False
        if isinstance(message, Ask) and (message.join or not message.ranges):
            return False
        frames = self._served(control.item, message)
        if frames is None:
            self._cache.counters.misses += 1
            return False
        self._cache.counters.hits += 1
        for out in frames:
            self._cache.counters.hit_bytes += len(out)
            self._send(out)
        return True

    def _served(self, item: bytes, message: Want | Ask) -> Iterator[bytes] | None:
        """What the publisher would send; None when not all of it is here, or the subscriber is too far away."""
        route = self._route_for(message.subscriber)
        if route is None:
            return None
        fid, mtu = route
        if isinstance(message, Want):
            version = self._cache.get(VersionKey(item, message.publisher, message.epoch, message.number))
            if version is None or not MIN_SEGMENT_BYTES <= message.segment_size <= mtu - DATA_OVERHEAD:
                return None
            return _segments(version, fid, item, message)
        numbers = list(numbers_in(message.ranges, 1 << 62, MAX_VERSIONS_AN_ANSWER + 1))
        if len(numbers) > MAX_VERSIONS_AN_ANSWER:
            return None
        found = [self._cache.get(VersionKey(item, message.publisher, message.epoch, number)) for number in numbers]
        versions = [version for version in found if version is not None]
        if len(versions) < len(numbers) or mtu < ANNOUNCEMENT_OVERHEAD + 2 * INLINE_ATTRIBUTES_BYTES:
            return None
        return _announced(versions, fid, mtu, item, message)


def _body(version: Version) -> bytes:
    """As a publisher cuts it: long attributes come before the content."""
    inline = len(version.attributes) <= INLINE_ATTRIBUTES_BYTES
    return version.content if inline else version.attributes + version.content


def _segments(version: Version, fid: bytes, item: bytes, want: Want) -> Iterator[bytes]:
    body, size = _body(version), want.segment_size
    prefix = segment_prefix(fid, item, version.version_id)
    for number in numbers_in(want.ranges, segment_count(len(body), size), ANSWER_BYTES // size + 1):
        yield segment_frame(prefix, number, body[number * size : (number + 1) * size])


def _announced(versions: Sequence[Version], fid: bytes, mtu: int, item: bytes, ask: Ask) -> Iterator[bytes]:
    """Versions with their metadata, as far as the subscriber has room."""
    size = segment_size_for(mtu, False)
    room = min(ask.room, ANSWER_BYTES)
    for version in versions:
        if room <= 0:
            return
        body = _body(version)
        yield announcement_frame(version, fid, item, ask.publisher, size)
        prefix = segment_prefix(fid, item, version.version_id)
        count = min(segment_count(len(body), size), room // size + 1)
        for number in range(count):
            yield segment_frame(prefix, number, body[number * size : (number + 1) * size])
        room -= version.cost


def announcement_frame(version: Version, fid: bytes, item: bytes, publisher: str, segment_size: int) -> bytes:
    """The publisher's word of a version, with its signature, in a frame of this node's."""
    inline = len(version.attributes) <= INLINE_ATTRIBUTES_BYTES
    announced = Announcement(
        publisher,
        version.epoch,
        version.number,
        version.published_ms,
        version.attributes if inline else sha256(version.attributes).digest(),
        0 if inline else len(version.attributes),
        version.sha256,
        segment_size,
    )
    return control_frame(
        HeaderType.PUBLISH_METADATA,
        fid,
        item,
        version.version_id,
        0,
        NO_WAY_BACK,
        encode_transport(announced),
        length=len(version.content),
        max_seqnum=max(segment_count(len(_body(version)), segment_size) - 1, 0),
        authentication=version.authentication,
    )
