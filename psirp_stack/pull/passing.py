"""What passes by a node: versions are put together from announcements, segments, offers and pieces of others.

Nothing is asked for: a version of which a piece did not come by is not kept. What is being put together is bounded in
bytes; the oldest gives way.
"""

import hashlib
from collections import OrderedDict
from dataclasses import dataclass, field

from psirp_stack.pull.cache import VersionCache, VersionKey
from psirp_stack.pull.messages import OfferedVersion, VersionOffer, VersionPiece
from psirp_stack.transport.frames import packed, read_control, read_segment
from psirp_stack.transport.messages import Announcement, TransportMessageError, decode, segment_count
from psirp_stack.transport.versions import Version

PART_COST = 64
"""Bytes that keeping book of a piece takes."""
PARTIAL_COST = 1024
SHARE = 4
"""This part of a cache's memory, and as much again, may hold versions that are not whole."""


@dataclass(slots=True)
class _Partial:
    """A version that is being put together."""

    key: VersionKey
    offered: OfferedVersion
    attributes: bytes | None
    """Where they stand in the announcement; None when they are in the body."""
    attributes_sha256: bytes
    """What long attributes must come to; empty when nothing says."""
    piece_size: int
    parts: dict[int, bytes] = field(default_factory=dict)
    held: int = PARTIAL_COST

    @property
    def body_size(self) -> int:
        return self.offered.length if self.attributes is not None else self.offered.body_size


class PassingVersions:
    """Puts together what passes by, and gives it to the cache."""

    def __init__(self, cache: VersionCache) -> None:
        self.held = 0
        self._cache = cache
        self._partials: OrderedDict[tuple[bytes, bytes], _Partial] = OrderedDict()
        """By item and version id."""

    def announced(self, frame: bytes) -> None:
        """A frame with metadata of a version."""
        control = read_control(frame)
        if control is None:
            return
        try:
            message = decode(control.payload)
        except TransportMessageError:
            return
        if not isinstance(message, Announcement) or not message.cacheable:
            return
        offered = OfferedVersion(
            message.number,
            control.vrid,
            message.sha256,
            control.length,
            message.attributes_in_body,
            message.published_ms,
            b"" if control.authentication is None else packed(control.authentication),
        )
        key = VersionKey(control.item, message.publisher, message.epoch, message.number)
        inline = not message.attributes_in_body
        self._begin(
            _Partial(
                key,
                offered,
                message.attributes if inline else None,
                b"" if inline else message.attributes,
                message.segment_size,
            )
        )
        partial = self._partials.get((control.item, control.vrid))
        if message.body and partial is not None:
            self._part(partial, message.segment_size, 0, message.body)

    def segment(self, frame: bytes) -> None:
        """A plain segment."""
        item, version_id, number, payload = read_segment(frame)
        partial = self._partials.get((item, version_id))
        if partial is not None:
            self._part(partial, partial.piece_size, number, payload)

    def offered(self, offer: VersionOffer) -> None:
        if not offer.cacheable:
            return
        for version in offer.versions:
            key = VersionKey(offer.sid + offer.rid, offer.publisher, offer.epoch, version.number)
            self._begin(_Partial(key, version, None, b"", 0))

    def piece(self, piece: VersionPiece) -> None:
        partial = self._partials.get((piece.sid + piece.rid, piece.version_id))
        if partial is not None and partial.key[1:] == (piece.publisher, piece.epoch, piece.number):
            self._part(partial, piece.piece_size, piece.place, piece.content)

    def _begin(self, partial: _Partial) -> None:
        place = partial.key.item, partial.offered.version_id
        if place in self._partials or not self._cache.wants(partial.key, partial.body_size):
            return
        self._partials[place] = partial
        self.held += partial.held
        if not partial.body_size:
            self._finish(partial, b"")
            return
        while self.held * SHARE > self._cache.most_bytes and len(self._partials) > 1:
            self._drop(next(iter(self._partials)))

    def _part(self, partial: _Partial, piece_size: int, number: int, payload: bytes) -> None:
        size = partial.body_size
        if partial.piece_size == 0:
            partial.piece_size = piece_size
        count = segment_count(size, piece_size) if piece_size > 0 else 0
        if piece_size != partial.piece_size or number >= count or number in partial.parts:
            return
        if len(payload) != (piece_size if number < count - 1 else size - (count - 1) * piece_size):
            return
        partial.parts[number] = payload
        cost = len(payload) + PART_COST
        partial.held += cost
        self.held += cost
        if len(partial.parts) == count:
            self._finish(partial, b"".join(partial.parts[place] for place in range(count)))
            return
        while self.held * SHARE > self._cache.most_bytes and len(self._partials) > 1:
            self._drop(next(iter(self._partials)))

    def _finish(self, partial: _Partial, body: bytes) -> None:
        offered, key = partial.offered, partial.key
        self._drop((key.item, offered.version_id))
        if partial.attributes is not None:
            attributes, content = partial.attributes, body
        else:
            attributes, content = body[: offered.attributes_size], body[offered.attributes_size :]
            if partial.attributes_sha256 not in (b"", hashlib.sha256(attributes).digest()):
                return
        self._cache.add(key, version_of(key, offered, attributes, content))

    def _drop(self, place: tuple[bytes, bytes]) -> None:
        self.held -= self._partials.pop(place).held


def version_of(key: VersionKey, offered: OfferedVersion, attributes: bytes, content: bytes) -> Version:
    return Version(
        key.epoch,
        key.number,
        offered.version_id,
        offered.sha256,
        offered.published_ms,
        attributes,
        content,
        offered.authentication,
    )
