"""The fast forwarder: what happens to a frame at a node, on raw bytes and integers.

Sans-I/O: frames, the arrival link and the time come in; decisions, or calls of the send functions that were attached,
go out. Two ways in, one set of rules behind them: `decide` answers with a `Decision` for one frame, `forward` takes
a whole batch and is what a node runs.

The rules, in their order: a malformed chain of headers is dropped; the all-ones filter goes one hop; a table index
that does not exist, a filter more than half full and a time to live of zero are dropped; then every link whose tag
is contained in the filter gets the frame, except the one it came from, and the node itself when its internal tag is.

The cache is keyed on the whole 42-byte forwarding header, per arrival link, and holds the header to send instead:
one lookup answers for the header's own validity, the filter and the time to live together. Frames of one flow reach
one node with one time to live, so that this costs no hits. Dropped frames are not cached: junk cannot push out live
flows.
"""

from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

from psirp_stack.forwarding_model import (
    BROADCAST_FID,
    FILTER_BYTES,
    MAX_FILTER_FILL,
    TABLES,
    Decision,
    Drop,
    ForwardingTable,
    LinkNumber,
    Tags,
)
from psirp_stack.wire.numbers import (
    AUTHENTICATION_BYTES,
    AUTHENTICATION_TYPE,
    COLLECTED_FID_OFFSET,
    FID_OFFSET,
    FORWARDING_BYTES,
    FORWARDING_PROTO_OFFSET,
    FORWARDING_TYPE,
    METADATA_BYTES,
    METADATA_TYPE,
    NEXT_OFFSET,
    PROTOCOL_VERSION,
    RENDEZVOUS_BYTES,
    RENDEZVOUS_TYPES,
    TTL_OFFSET,
    HeaderType,
)

DEFAULT_CACHE_ENTRIES = 8192
"""Headers remembered per arrival link in the younger of two generations; the older holds as many again at most."""
DEFAULT_LOOP_ENTRIES = 1024
DEFAULT_LOOP_WINDOW = 1.0
"""Seconds for which a filter that may come round again is remembered."""

Send = Callable[[bytes], object]

_PAYLOAD = int(HeaderType.PAYLOAD)
_NONE = int(HeaderType.NONE)
_AFTER_TTL = TTL_OFFSET + 1
_DATA_BYTES = FORWARDING_BYTES + RENDEZVOUS_BYTES
_AFTER_TYPE_AND_NEXT = FORWARDING_BYTES + 2
# A rendezvous header with only payload behind it is what most frames carry: one comparison instead of a walk.
_LAST_RENDEZVOUS = {int(kind): bytes((kind, HeaderType.PAYLOAD)) for kind in RENDEZVOUS_TYPES}

_MALFORMED = -1
_NO_METADATA = 0


def metadata_offset(frame: bytes) -> int:
    """Where the metadata header begins; 0 when there is none, -1 when the chain of headers is malformed."""
    size = len(frame)
    if size < FORWARDING_BYTES or frame[0] != FORWARDING_TYPE or frame[FORWARDING_PROTO_OFFSET] != PROTOCOL_VERSION:
        return _MALFORMED
    metadata = _NO_METADATA
    rendezvous = authentication = False
    at = FORWARDING_BYTES
    following = frame[NEXT_OFFSET]
    while following != _PAYLOAD and following != _NONE:
        if following in RENDEZVOUS_TYPES:
            if rendezvous:
                return _MALFORMED
            rendezvous = True
            end = at + RENDEZVOUS_BYTES
        elif following == METADATA_TYPE:
            if metadata:
                return _MALFORMED
            metadata = at
            end = at + METADATA_BYTES
        elif following == AUTHENTICATION_TYPE:
            if authentication:
                return _MALFORMED
            authentication = True
            end = at + AUTHENTICATION_BYTES
        else:
            return _MALFORMED
        if end > size or frame[at] != following:
            return _MALFORMED
        following = frame[at + 1]
        at = end
    return metadata


@dataclass(slots=True)
class ForwarderStatistics:
    """Counters of one forwarder. Every frame is in `received`, and in `forwarded`, `delivered` or one drop reason."""

    received: int = 0
    forwarded: int = 0
    """Frames sent on at least one link."""
    copies: int = 0
    """Frames handed to links: a frame that branches counts once for each branch."""
    delivered: int = 0
    cache_hits: int = 0
    cache_misses: int = 0
    cache_turnovers: int = 0
    """Times the younger generation of the cache was full and became the older one."""
    loop_evictions: int = 0
    """Filters forgotten before their time because the memory for loops was full."""
    drops: dict[Drop, int] = field(default_factory=lambda: dict.fromkeys(Drop, 0))

    @property
    def dropped(self) -> int:
        return sum(self.drops.values())


@dataclass(frozen=True, slots=True)
class _Route:
    """What the rules say of a forwarding header that arrived on a given link, before the memory of loops is asked."""

    header: bytes
    out: tuple[LinkNumber, ...] = ()
    deliver: bool = False
    drop: Drop | None = None
    may_return: bool = False
    """The filter also names a way back into this node through another link."""


_Cached = tuple[bytes, bytes, bytes | None, Send, tuple[Send, ...], _Route]
"""First bytes up to the time to live; what to write instead; what the two bytes after the forwarding header must be
(None: anything); where to send; where else to send; the route in full.

All but the last are for frames that are only sent on. `_NEVER` as the third leads all others to `decide`.
"""
_NEVER = b""


class _Generations:
    """A bounded map in two generations: when the younger is full it becomes the older, and the older is let go."""

    __slots__ = ("limit", "older", "younger")

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.younger: dict[bytes, _Cached] = {}
        self.older: dict[bytes, _Cached] = {}

    def recall(self, key: bytes) -> _Cached | None:
        """An entry of the older generation, which becomes young again by being used."""
        entry = self.older.pop(key, None)
        if entry is not None:
            self.remember(key, entry)
        return entry

    def remember(self, key: bytes, entry: _Cached) -> bool:
        """Keep an entry; true when the generations turned over to make room."""
        full = len(self.younger) >= self.limit
        if full:
            # The younger map stays the same object: the loop over a batch holds on to it.
            self.older = dict(self.younger)
            self.younger.clear()
        self.younger[key] = entry
        return full

    def clear(self) -> None:
        self.younger.clear()
        self.older.clear()

    def __len__(self) -> int:
        return len(self.younger) + len(self.older)


class Forwarder:
    """Decides by filter, for one node. Not thread-safe."""

    def __init__(
        self,
        table: ForwardingTable,
        *,
        cache_entries: int = DEFAULT_CACHE_ENTRIES,
        loop_entries: int = DEFAULT_LOOP_ENTRIES,
        loop_window: float = DEFAULT_LOOP_WINDOW,
    ) -> None:
        if cache_entries < 1 or loop_entries < 1:
            raise ValueError("a forwarder needs room for at least one cached header and one remembered filter")
        self.statistics = ForwarderStatistics()
        self._cache_entries = cache_entries
        self._loop_entries = loop_entries
        self._loop_window = loop_window
        self._sends: dict[LinkNumber, Send] = {}
        self._deliver: Send | None = None
        self._caches: dict[LinkNumber | None, _Generations] = {}
        self._loops: OrderedDict[bytes, tuple[LinkNumber | None, float]] = OrderedDict()
        self.replace_table(table)

    @property
    def table(self) -> ForwardingTable:
        return self._table

    @property
    def cached(self) -> int:
        return sum(map(len, self._caches.values()))

    @property
    def remembered_loops(self) -> int:
        return len(self._loops)

    def replace_table(self, table: ForwardingTable) -> None:
        """Use another table from now on. What was cached or remembered under the old one is forgotten."""
        self._table = table
        self._forget()
        self._loops.clear()
        self._links_by_table = [_tags_of(table.links, index) for index in range(TABLES)]
        self._incoming_by_table = [_tags_of(table.incoming, index) for index in range(TABLES)]
        self._virtual_by_table = [
            [(link.tags[index], link.out & table.links.keys()) for link in table.virtual if link.tags[index]]
            for index in range(TABLES)
        ]
        self._every_link = tuple(sorted(table.links))

    def attach(self, number: LinkNumber, send: Send) -> None:
        """Say how `forward` sends on a link. A link in the table that is not attached counts copies and sends none."""
        self._sends[number] = send
        self._forget()

    def detach(self, number: LinkNumber) -> None:
        self._sends.pop(number, None)
        self._forget()

    def deliver_to(self, receive: Send | None) -> None:
        """Say who gets the frames that are for this node."""
        self._deliver = receive

    def decide(self, frame: bytes, arrival: LinkNumber | None, now: float) -> Decision:
        """What happens to one frame. `arrival` is None for a frame that this node originates."""
        statistics = self.statistics
        statistics.received += 1
        metadata = metadata_offset(frame)
        if metadata < 0:
            statistics.drops[Drop.MALFORMED] += 1
            return Decision((), False, frame, Drop.MALFORMED)
        key = frame[:FORWARDING_BYTES]
        cache = self._cache_for(arrival)
        entry = cache.younger.get(key) or cache.recall(key)
        if entry is None:
            statistics.cache_misses += 1
            route = self._route_and_cache(key, arrival, cache)
        else:
            statistics.cache_hits += 1
            route = entry[5]
        drop = route.drop
        if (
            drop is None
            and (route.may_return or self._loops)
            and self._is_loop(key[FID_OFFSET:], route.may_return, arrival, now)
        ):
            drop = Drop.LOOP
        if drop is not None:
            statistics.drops[drop] += 1
            return Decision((), False, frame, drop)
        leaving = route.header + frame[FORWARDING_BYTES:]
        if metadata and arrival is not None and (way_back := self._table.links.get(arrival)):
            leaving = _with_reverse_path(leaving, metadata, way_back)
        if route.out:
            statistics.forwarded += 1
            statistics.copies += len(route.out)
        if route.deliver:
            statistics.delivered += 1
        return Decision(route.out, route.deliver, leaving)

    def forward(self, frames: Iterable[bytes], arrival: LinkNumber | None, now: float) -> None:
        """Decide on a batch of frames from one link, sending and delivering them through what was attached."""
        cached = self._cache_for(arrival).younger.get
        loops = self._loops
        hits = further = 0
        for frame in frames:
            entry = cached(frame[:FORWARDING_BYTES])
            if entry is not None and not loops:
                old, new, chain, send, others, _ = entry
                if chain is None or (
                    frame[FORWARDING_BYTES:_AFTER_TYPE_AND_NEXT] == chain and len(frame) >= _DATA_BYTES
                ):
                    hits += 1
                    # The old bytes are where the frame begins, so that is what is replaced: one copy, not two.
                    leaving = frame.replace(old, new, 1)
                    send(leaving)
                    if others:
                        further += len(others)
                        for send in others:
                            send(leaving)
                    continue
            self._carry_out(self.decide(frame, arrival, now))
        statistics = self.statistics
        statistics.received += hits
        statistics.cache_hits += hits
        statistics.forwarded += hits
        statistics.copies += hits + further

    def _carry_out(self, decision: Decision) -> None:
        for number in decision.out:
            send = self._sends.get(number)
            if send is not None:
                send(decision.frame)
        if decision.deliver and self._deliver is not None:
            self._deliver(decision.frame)

    def _forget(self) -> None:
        for cache in self._caches.values():
            cache.clear()

    def _cache_for(self, arrival: LinkNumber | None) -> _Generations:
        cache = self._caches.get(arrival)
        if cache is None:
            cache = self._caches[arrival] = _Generations(self._cache_entries)
        return cache

    def _route_and_cache(self, key: bytes, arrival: LinkNumber | None, cache: _Generations) -> _Route:
        route = self._route(key, arrival)
        if route.drop is not None:
            return route
        following = key[NEXT_OFFSET]
        sends = tuple(self._sends[number] for number in route.out if number in self._sends)
        if route.deliver or route.may_return or len(sends) < len(route.out):
            chain: bytes | None = _NEVER
        elif following == _PAYLOAD:
            chain = None
        else:
            chain = _LAST_RENDEZVOUS.get(following, _NEVER)
        send, others = (sends[0], sends[1:]) if sends else (_nowhere, ())
        entry = (key[:_AFTER_TTL], route.header[:_AFTER_TTL], chain, send, others, route)
        if cache.remember(key, entry):
            self.statistics.cache_turnovers += 1
        return route

    def _route(self, header: bytes, arrival: LinkNumber | None) -> _Route:
        """The rules, for a forwarding header that is well formed."""
        fid = header[FID_OFFSET:]
        ttl = header[TTL_OFFSET]
        if fid == BROADCAST_FID:
            return self._route_broadcast(header, ttl, arrival)
        index = fid[FILTER_BYTES]
        if index >= TABLES:
            return _Route(header, drop=Drop.UNKNOWN_TABLE)
        filter_bits = int.from_bytes(fid[:FILTER_BYTES], "big")
        if filter_bits.bit_count() > MAX_FILTER_FILL:
            return _Route(header, drop=Drop.OVERFULL)
        if ttl == 0:
            return _Route(header, drop=Drop.TTL_EXPIRED)
        out = self._matching_links(filter_bits, index)
        if arrival is not None:
            out.discard(arrival)
        internal = self._table.internal[index]
        deliver = bool(internal) and filter_bits & internal == internal
        if not out and not deliver:
            return _Route(header, drop=Drop.NO_MATCH)
        if ttl == 1:
            if not deliver:
                return _Route(header, drop=Drop.TTL_EXPIRED)
            out = set()
        may_return = any(
            filter_bits & tag == tag for number, tag in self._incoming_by_table[index] if number != arrival
        )
        return _Route(_one_hop_older(header, ttl), tuple(sorted(out)), deliver, may_return=may_return)

    def _route_broadcast(self, header: bytes, ttl: int, arrival: LinkNumber | None) -> _Route:
        """The all-ones filter goes one hop: out on every link where it begins, up the stack where it arrives."""
        if arrival is not None:
            return _Route(_one_hop_older(header, ttl), deliver=True)
        if not self._every_link:
            return _Route(header, drop=Drop.NO_MATCH)
        if ttl <= 1:
            return _Route(header, drop=Drop.TTL_EXPIRED)
        return _Route(_one_hop_older(header, ttl), self._every_link)

    def _matching_links(self, filter_bits: int, index: int) -> set[LinkNumber]:
        out = {number for number, tag in self._links_by_table[index] if filter_bits & tag == tag}
        for tag, links in self._virtual_by_table[index]:
            if filter_bits & tag == tag:
                out |= links
        return out

    def _is_loop(self, fid: bytes, may_return: bool, arrival: LinkNumber | None, now: float) -> bool:
        """Whether a filter comes round a second time, by another link than the first; remembers it if it may."""
        loops = self._loops
        expired = now - self._loop_window
        while loops and next(iter(loops.values()))[1] < expired:
            loops.popitem(last=False)
        first = loops.get(fid)
        if first is not None and first[0] != arrival:
            return True
        if may_return:
            if first is None and len(loops) >= self._loop_entries:
                loops.popitem(last=False)
                self.statistics.loop_evictions += 1
            loops[fid] = (arrival, now)
            loops.move_to_end(fid)
        return False


def _nowhere(frame: bytes) -> None:
    """Stands in cached routes that send nothing; never called, since those lead to `decide`."""


def _one_hop_older(header: bytes, ttl: int) -> bytes:
    return header[:TTL_OFFSET] + bytes((max(ttl - 1, 0),)) + header[_AFTER_TTL:]


def _with_reverse_path(frame: bytes, metadata: int, way_back: Tags) -> bytes:
    """The frame with the tag of the link back added to the filter that its metadata header collects."""
    start = metadata + COLLECTED_FID_OFFSET
    end = start + FILTER_BYTES
    index = frame[end]
    if index >= TABLES:
        return frame
    collected = int.from_bytes(frame[start:end], "big") | way_back[index]
    return frame[:start] + collected.to_bytes(FILTER_BYTES, "big") + frame[end:]


def _tags_of(links: Mapping[LinkNumber, Tags], index: int) -> list[tuple[LinkNumber, int]]:
    """Link numbers and tags in one table; a tag of zero would be contained in every filter and stands for none."""
    return [(number, tags[index]) for number, tags in links.items() if tags[index]]
