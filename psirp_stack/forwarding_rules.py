"""The rules of forwarding for a header that is well formed: a table, a header and the arrival link give a route.

Nothing is remembered here. `Forwarder` caches what these rules say, and adds what they cannot know: the chain of
headers behind the first, and filters that came round.
"""

from collections.abc import Mapping
from typing import NamedTuple

from psirp_stack.forwarding_model import (
    BROADCAST_FID,
    FILTER_BITS,
    FILTER_BYTES,
    MAX_FILTER_FILL,
    TABLES,
    Drop,
    ForwardingTable,
    LinkNumber,
    Tags,
)
from psirp_stack.wire.numbers import FID_OFFSET, TTL_OFFSET

_ALL_BITS = (1 << FILTER_BITS) - 1
_AFTER_TTL = TTL_OFFSET + 1


class ForwardingRoute(NamedTuple):
    """What the rules say of a forwarding header that arrived on a given link."""

    header: bytes
    """As it leaves."""
    out: tuple[LinkNumber, ...] = ()
    deliver: bool = False
    drop: Drop | None = None
    may_return: bool = False
    """The filter also names a way back into this node through another link."""
    detoured: bool = False
    """The filter leaves longer than it came, by a way round a link that is down."""


class ForwardingRules:
    """One node's table, laid out for testing filters."""

    def __init__(self, table: ForwardingTable) -> None:
        self.table = table
        self._links = [_tags_of(table.links, index) for index in range(TABLES)]
        self._incoming = [_tags_of(table.incoming, index) for index in range(TABLES)]
        self._detours = [
            [
                (detour.tags[index], detour.way[index], detour.out)
                for detour in table.detours
                if detour.out in table.links
            ]
            for index in range(TABLES)
        ]
        self._every_link = tuple(sorted(table.links))

    def route(self, header: bytes, arrival: LinkNumber | None) -> ForwardingRoute:
        fid = header[FID_OFFSET:]
        ttl = header[TTL_OFFSET]
        if fid == BROADCAST_FID:
            return self._broadcast(header, ttl, arrival)
        index = fid[FILTER_BYTES]
        if index >= TABLES:
            return ForwardingRoute(header, drop=Drop.UNKNOWN_TABLE)
        filter_bits = int.from_bytes(fid[:FILTER_BYTES], "big")
        if filter_bits.bit_count() > MAX_FILTER_FILL:
            return ForwardingRoute(header, drop=Drop.OVERFULL)
        if ttl == 0:
            return ForwardingRoute(header, drop=Drop.TTL_EXPIRED)
        out, deliver = self._named(filter_bits, index, arrival)
        arrived = header
        if self._detours and self._detours[index]:
            header = self._sent_round(header, filter_bits, index, out)
        if not out and not deliver:
            return ForwardingRoute(header, drop=Drop.NO_MATCH)
        if ttl == 1:
            if not deliver:
                return ForwardingRoute(header, drop=Drop.TTL_EXPIRED)
            out = set()
        missing = filter_bits ^ _ALL_BITS
        may_return = any(not tag & missing for number, tag in self._incoming[index] if number != arrival)
        return ForwardingRoute(
            _one_hop_older(header, ttl), tuple(sorted(out)), deliver, None, may_return, header is not arrived
        )

    def _broadcast(self, header: bytes, ttl: int, arrival: LinkNumber | None) -> ForwardingRoute:
        """The all-ones filter goes one hop: out on every link where it begins, up the stack where it arrives."""
        if arrival is not None:
            return ForwardingRoute(_one_hop_older(header, ttl), deliver=True)
        if not self._every_link:
            return ForwardingRoute(header, drop=Drop.NO_MATCH)
        if ttl <= 1:
            return ForwardingRoute(header, drop=Drop.TTL_EXPIRED)
        return ForwardingRoute(_one_hop_older(header, ttl), self._every_link)

    def _sent_round(self, header: bytes, filter_bits: int, index: int, out: set[LinkNumber]) -> bytes:
        """Add the ways round links that are named and down. They may begin where the frame came from."""
        extended = filter_bits
        for tag, way, number in self._detours[index]:
            larger = extended | way
            if tag and not tag & ~filter_bits and way & ~filter_bits and larger.bit_count() <= MAX_FILTER_FILL:
                extended = larger
                out.add(number)
        if extended == filter_bits:
            return header
        return header[:FID_OFFSET] + extended.to_bytes(FILTER_BYTES, "big") + bytes((index,))

    def _named(self, filter_bits: int, index: int, arrival: LinkNumber | None) -> tuple[set[LinkNumber], bool]:
        """The links that the filter names, without the one it came from; and whether it names this node."""
        # A tag is contained when it has no bit where the filter has none.
        missing = filter_bits ^ _ALL_BITS
        out = {number for number, tag in self._links[index] if not tag & missing}
        internal = self.table.internal[index]
        deliver = internal != 0 and not internal & missing
        if arrival is not None:
            out.discard(arrival)
        return out, deliver


def _one_hop_older(header: bytes, ttl: int) -> bytes:
    return header[:TTL_OFFSET] + bytes((max(ttl - 1, 0),)) + header[_AFTER_TTL:]


def _tags_of(links: Mapping[LinkNumber, Tags], index: int) -> list[tuple[LinkNumber, int]]:
    """Link numbers and tags in one table; a tag of zero would be contained in every filter and stands for none."""
    return [(number, tags[index]) for number, tags in links.items() if tags[index]]
