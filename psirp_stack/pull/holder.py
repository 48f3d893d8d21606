"""Answers for versions that a node has: its own publications, and what it keeps of others'.

Requests that only pass by are answered for what the cache holds whole; everything else goes on to the holder that it is
for. Answers are bounded by what one request may bring, and nothing is remembered between two.
"""

from collections.abc import Callable, Iterable, Iterator
from itertools import chain, islice
from typing import NamedTuple, Protocol

from psirp_stack.control.codes import Code
from psirp_stack.control.frames import CONTROL_OVERHEAD
from psirp_stack.pull.cache import VersionCache, VersionKey
from psirp_stack.pull.messages import (
    MAX_OFFERED,
    FetchPieces,
    OfferedVersion,
    SeekVersions,
    VersionOffer,
    VersionPiece,
    encode,
)
from psirp_stack.transport.messages import Range, segment_count
from psirp_stack.transport.versions import Version, Versions

PIECES_AN_ANSWER = 128
MAX_SCANNED = 4096
"""Numbers of one range that are looked at for one request."""


class OwnVersions(Protocol):
    """What a node publishes itself."""

    def __call__(self, item: bytes) -> Versions | None: ...


class ItemAccess(Protocol):
    """Whether versions of an item may be given to anybody who asks: True, False, None while it is not known."""

    def __call__(self, item: bytes) -> bool | None: ...


class _Sequence(NamedTuple):
    """A publisher's order, as far as it is here."""

    publisher: str
    epoch: int
    newest: int
    get: Callable[[int], Version | None]


class VersionHolder:
    """The versions of one node, for those who ask."""

    def __init__(self, name: str, cache: VersionCache, own: OwnVersions, access: ItemAccess) -> None:
        self._name = name
        self._cache = cache
        self._own = own
        self._access = access

    # Requests for this node.

    def offer(self, seek: SeekVersions, room: int) -> VersionOffer | None:
        """What there is of what is asked for; None when it cannot be said yet whether it may be given."""
        item = seek.sid + seek.rid
        allowed = True
        if self._own(item) is not None:
            known = self._access(item)
            if known is None:
                return None
            allowed = known
        if not allowed:
            return self.nothing(seek, Code.NOT_ALLOWED)
        sequence = self._sequence(item)
        if sequence is None:
            return self.nothing(seek, Code.ITEM_DOES_NOT_EXIST)
        first, last = resolved(seek.first, sequence.newest), resolved(seek.last, sequence.newest)
        numbers = range(max(first, 1), min(last, sequence.newest) + 1)
        found = (sequence.get(number) for number in islice(numbers, MAX_SCANNED))
        return self._offer(seek, sequence, first, last, (version for version in found if version is not None), room)

    def nothing(self, seek: SeekVersions, code: Code) -> VersionOffer:
        return VersionOffer(seek.token, self._name, seek.sid, seek.rid, int(code), self._name, 0, 0, 0)

    def pieces(self, fetch: FetchPieces) -> Iterator[bytes] | None:
        """The pieces as messages; None when the version is not here."""
        version = self._version(fetch)
        return None if version is None else _pieces(version, fetch)

    def kept(self, item: bytes, first: int, last: int) -> list[tuple[str, Version]]:
        """Publisher and version of those of a range that this node keeps."""
        sequence = self._cached(item)
        if sequence is None:
            return []
        numbers = range(max(resolved(first, sequence.newest), 1), resolved(last, sequence.newest) + 1)
        found = (sequence.get(number) for number in islice(numbers, MAX_SCANNED))
        return [(sequence.publisher, version) for version in found if version is not None]

    # Requests that pass by.

    def offer_in_passing(self, seek: SeekVersions, room: int) -> VersionOffer | None:
        """From the cache alone; None when the request has to go on."""
        if seek.fresh:
            return None
        item = seek.sid + seek.rid
        sequence = self._cached(item)
        if sequence is None:
            return None
        first, last = resolved(seek.first, sequence.newest), resolved(seek.last, sequence.newest)
        if not 1 <= first <= last <= sequence.newest or last - first >= MAX_OFFERED:
            return None
        versions = [sequence.get(number) for number in range(first, last + 1)]
        whole = [version for version in versions if version is not None]
        return self._offer(seek, sequence, first, last, whole, room) if len(whole) == len(versions) else None

    def pieces_in_passing(self, fetch: FetchPieces) -> Iterator[bytes] | None:
        version = self._cache.get(_key(fetch))
        return None if version is None or version.version_id != fetch.version_id else _pieces(version, fetch)

    # Within.

    def _sequence(self, item: bytes) -> _Sequence | None:
        own = self._own(item)
        if own is not None and own.newest >= own.oldest:
            return _Sequence(self._name, own.epoch, own.newest, own.get)
        return self._cached(item)

    def _cached(self, item: bytes) -> _Sequence | None:
        newest = self._cache.newest(item)
        if newest is None:
            return None
        publisher, epoch, number = newest
        return _Sequence(
            publisher, epoch, number, lambda wanted: self._cache.get(VersionKey(item, publisher, epoch, wanted))
        )

    def _version(self, fetch: FetchPieces) -> Version | None:
        version = None
        own = self._own(fetch.sid + fetch.rid)
        if own is not None and (fetch.publisher, fetch.epoch) == (self._name, own.epoch):
            version = own.get(fetch.number) if self._access(fetch.sid + fetch.rid) else None
        if version is None:
            version = self._cache.get(_key(fetch))
        return version if version is not None and version.version_id == fetch.version_id else None

    def _offer(
        self, seek: SeekVersions, sequence: _Sequence, first: int, last: int, versions: Iterable[Version], room: int
    ) -> VersionOffer:
        offered: list[OfferedVersion] = []
        offer = VersionOffer(
            seek.token,
            self._name,
            seek.sid,
            seek.rid,
            int(Code.SUCCESS),
            sequence.publisher,
            sequence.epoch,
            max(first, 1),
            max(min(last, sequence.newest), 0),
        )
        left = room - CONTROL_OVERHEAD - len(encode(offer))
        for version in versions:
            one = OfferedVersion(
                version.number,
                version.version_id,
                version.sha256,
                len(version.content),
                len(version.attributes),
                version.published_ms,
                version.authentication,
            )
            left -= len(encode(one))
            if left < 0 or len(offered) == MAX_OFFERED:
                break
            offered.append(one)
        return VersionOffer(
            offer.token,
            offer.holder,
            offer.sid,
            offer.rid,
            offer.code,
            offer.publisher,
            offer.epoch,
            offer.first,
            offer.last,
            tuple(offered),
        )


def resolved(place: int, newest: int) -> int:
    """A place as a number: below zero it is counted from the newest."""
    return place if place >= 0 else newest + 1 + place


def _key(fetch: FetchPieces) -> VersionKey:
    return VersionKey(fetch.sid + fetch.rid, fetch.publisher, fetch.epoch, fetch.number)


def numbers_in(ranges: Iterable[Range], end: int, most: int) -> Iterator[int]:
    """The first `most` numbers below `end` in the ranges."""
    every = chain.from_iterable(range(first, min(last + 1, end)) for first, last in ranges)
    return islice(every, most)


def _pieces(version: Version, fetch: FetchPieces) -> Iterator[bytes]:
    body = version.attributes + version.content if version.attributes else version.content
    size = fetch.piece_size
    for place in numbers_in(fetch.ranges, segment_count(len(body), size), PIECES_AN_ANSWER):
        yield encode(
            VersionPiece(
                fetch.token,
                fetch.sid,
                fetch.rid,
                fetch.publisher,
                fetch.epoch,
                fetch.number,
                fetch.version_id,
                size,
                place,
                body[place * size : (place + 1) * size],
            )
        )
