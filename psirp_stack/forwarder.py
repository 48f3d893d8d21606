"""The fast forwarder: what happens to a frame at a node, on raw bytes and integers.

Sans-I/O: frames, the arrival link and the time come in; decisions, or calls of the send functions that were attached,
go out. Two ways in, one set of rules behind them: `decide` answers with a `Decision` for one frame, `forward` takes
a whole batch and is what a node runs.

The rules, in their order: a malformed chain of headers is dropped; the all-ones filter goes one hop; a table index
that does not exist, a filter more than half full and a time to live of zero are dropped; then every link whose tag
is contained in the filter gets the frame, except the one it came from, and the node itself when its internal tag is.
What depends on the forwarding header alone is in `forwarding_rules`.

The cache is keyed on the whole 42-byte forwarding header, per arrival link, and holds what to write instead: one lookup
answers for the header's own validity, the filter and the time to live together. Frames of one flow reach one node
with one time to live, so that this costs no hits. Dropped frames are not cached: junk cannot push out live flows.

A batch leaves as it came: what goes out on one link is collected and handed to that link at once.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import repeat
from operator import length_hint
from typing import Protocol

from psirp_stack.forwarding_memory import LoopMemory, RouteCache
from psirp_stack.forwarding_model import FILTER_BYTES, TABLES, Decision, Drop, ForwardingTable, LinkNumber, Tags
from psirp_stack.forwarding_rules import ForwardingRoute, ForwardingRules
from psirp_stack.wire.chain import MALFORMED, metadata_offset
from psirp_stack.wire.numbers import (
    COLLECTED_FID_OFFSET,
    FID_OFFSET,
    FORWARDING_BYTES,
    NEXT_OFFSET,
    PROTOCOL_VERSION,
    RENDEZVOUS_BYTES,
    RENDEZVOUS_PROTO_OFFSET,
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
SendMany = Callable[[Sequence[bytes]], object]

_AFTER_TTL = TTL_OFFSET + 1
_DATA_BYTES = FORWARDING_BYTES + RENDEZVOUS_BYTES
_DATA_PROTO_OFFSET = FORWARDING_BYTES + RENDEZVOUS_PROTO_OFFSET
_ONCE = repeat(1)
# Made once: a slice written out in a loop is a new object each time.
_HEADER = slice(0, FORWARDING_BYTES)
_FID = slice(FID_OFFSET, FORWARDING_BYTES)
_TYPE_AND_NEXT = slice(FORWARDING_BYTES, FORWARDING_BYTES + 2)
# A rendezvous header with only payload behind it is what most frames carry: one comparison instead of a walk.
_LAST_RENDEZVOUS = {int(kind): bytes((kind, HeaderType.PAYLOAD)) for kind in RENDEZVOUS_TYPES}


@dataclass(slots=True)
class ForwarderStatistics:
    """Counters of one forwarder. Every frame is in `received`, and in `forwarded`, `delivered` or one drop reason."""

    received: int = 0
    forwarded: int = 0
    """Frames sent on at least one link."""
    copies: int = 0
    """Frames handed to links: a frame that branches counts once for each branch."""
    delivered: int = 0
    detoured: int = 0
    """Frames sent round a link that is down."""
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


class FrameForwarder(Protocol):
    """What a node needs of whatever forwards for it."""

    @property
    def statistics(self) -> ForwarderStatistics: ...

    def replace_table(self, table: ForwardingTable) -> None: ...

    def attach(self, number: LinkNumber, send: Send, send_many: SendMany | None = None) -> None: ...

    def detach(self, number: LinkNumber) -> None: ...

    def deliver_to(self, receive: Send | None) -> None: ...

    def forward(self, frames: Iterable[bytes], arrival: LinkNumber | None, now: float) -> None: ...


class _Departure:
    """The way out on one link or on several, and the frames of the present batch that take it."""

    __slots__ = ("links", "sends", "waiting")

    def __init__(self, links: int, sends: Sequence[SendMany]) -> None:
        self.links = links
        self.sends = sends
        self.waiting: list[bytes] = []


_ShortWay = tuple[bytes | None, bytes, bytes, _Departure]
"""What the two bytes after the forwarding header must be (None: anything); bytes whose first occurrence is or ends in
the time to live, and what to write instead (one copy of the frame, cutting and joining would be two); the way out.

A plain tuple, since it is taken apart in the innermost loop. Flows that need the same share one, so that it is told by
its identity.
"""

_NO_ROUTE = ForwardingRoute(b"", drop=Drop.MALFORMED)

_Known = tuple[_ShortWay | None, ForwardingRoute]
"""The short way, where the frames of a flow may take it, and the route in full for those that may not.

A plain tuple, since it is taken apart for every frame.
"""


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
        self._statistics = ForwarderStatistics()
        self._cache_entries = cache_entries
        self._sends: dict[LinkNumber, SendMany] = {}
        self._departures: dict[tuple[LinkNumber, ...], _Departure] = {}
        self._short_ways: dict[tuple[bytes | None, bytes, bytes, tuple[LinkNumber, ...]], _ShortWay] = {}
        self._deliver: Send | None = None
        self._caches: dict[LinkNumber | None, RouteCache[_Known]] = {}
        self._loops = LoopMemory(loop_entries, loop_window)
        self.replace_table(table)

    @property
    def statistics(self) -> ForwarderStatistics:
        self._statistics.cache_turnovers = sum(cache.turnovers for cache in self._caches.values())
        self._statistics.loop_evictions = self._loops.evictions
        return self._statistics

    @property
    def table(self) -> ForwardingTable:
        return self._rules.table

    @property
    def cached(self) -> int:
        return sum(map(len, self._caches.values()))

    @property
    def remembered_loops(self) -> int:
        return len(self._loops)

    def replace_table(self, table: ForwardingTable) -> None:
        """Use another table from now on. What was cached or remembered under the old one is forgotten."""
        self._rules = ForwardingRules(table)
        self._forget()
        self._loops.clear()

    def attach(self, number: LinkNumber, send: Send, send_many: SendMany | None = None) -> None:
        """Say how `forward` sends on a link: one frame, or a batch at once where the link can do that.

        A link in the table that is not attached counts copies and sends none.
        """

        def one_by_one(frames: Sequence[bytes]) -> None:
            for frame in frames:
                send(frame)

        self._sends[number] = send_many or one_by_one
        self._forget()

    def detach(self, number: LinkNumber) -> None:
        self._sends.pop(number, None)
        self._forget()

    def deliver_to(self, receive: Send | None) -> None:
        """Say who gets the frames that are for this node."""
        self._deliver = receive

    def decide(self, frame: bytes, arrival: LinkNumber | None, now: float) -> Decision:
        """What happens to one frame. `arrival` is None for a frame that this node originates."""
        route, leaving, drop = self._judge(frame, arrival, now)
        if drop is not None:
            return Decision((), False, frame, drop)
        statistics = self._statistics
        statistics.forwarded += bool(route.out)
        statistics.copies += len(route.out)
        statistics.delivered += route.deliver
        return Decision(route.out, route.deliver, leaving)

    def forward(self, frames: Iterable[bytes], arrival: LinkNumber | None, now: float) -> None:
        """Decide on a batch of frames from one link, sending and delivering them through what was attached."""
        batch = frames if isinstance(frames, list) else list(frames)
        routes = self._cache_for(arrival).younger
        if self._loops.first_seen:
            self._loops.expire(now)
        elif (way := _common_way(batch, routes)) is not None:
            _, old, new, departure = way
            count = len(batch)
            statistics = self._statistics
            statistics.received += count
            statistics.cache_hits += count
            # A comprehension says the same in a sixth more time.
            self._send(departure, list(map(bytes.replace, batch, repeat(old), repeat(new), _ONCE)))
            return
        self._forward_each(batch, routes, arrival, now)

    def _forward_each(
        self, batch: list[bytes], routes: Mapping[bytes, _Known], arrival: LinkNumber | None, now: float
    ) -> None:
        """A batch whose frames go different ways, or of which some need all the rules."""
        returning = self._loops.first_seen
        nothing_returns = not returning
        header_of, fid_of, type_and_next_of = _HEADER, _FID, _TYPE_AND_NEXT
        used: list[_Departure] = []
        on_the_long_way = 0
        remaining = iter(batch)
        try:
            for frame in remaining:
                try:
                    way = routes[frame[header_of]][0]
                except KeyError:
                    way = None
                if way is not None and (nothing_returns or frame[fid_of] not in returning):
                    chain, old, new, departure = way
                    if chain is None or (
                        frame[type_and_next_of] == chain
                        and len(frame) >= _DATA_BYTES
                        and frame[_DATA_PROTO_OFFSET] == PROTOCOL_VERSION
                    ):
                        waiting = departure.waiting
                        if not waiting:
                            used.append(departure)
                        waiting.append(frame.replace(old, new, 1))
                        continue
                on_the_long_way += 1
                self._forward_judged(frame, arrival, now, used)
                nothing_returns = not returning
        finally:
            hits = len(batch) - length_hint(remaining) - on_the_long_way
            self._statistics.received += hits
            self._statistics.cache_hits += hits
            self._flush(used)

    def _forward_judged(self, frame: bytes, arrival: LinkNumber | None, now: float, used: list[_Departure]) -> None:
        """The long way of one frame of a batch: all rules, one by one."""
        route, leaving, drop = self._judge(frame, arrival, now)
        if drop is not None:
            return
        if route.out:
            departure = self._departure(route.out)
            if not departure.waiting:
                used.append(departure)
            departure.waiting.append(leaving)
        if route.deliver:
            self._statistics.delivered += 1
            if self._deliver is not None:
                # Whoever takes it may change anything here, so nothing is left waiting.
                self._flush(used)
                self._deliver(leaving)

    def _flush(self, used: list[_Departure]) -> None:
        for departure in used:
            # Emptied before it is sent: whoever sends may come back to this forwarder with further frames.
            frames = departure.waiting[:]
            departure.waiting.clear()
            self._send(departure, frames)
        used.clear()

    def _send(self, departure: _Departure, frames: list[bytes]) -> None:
        self._statistics.forwarded += len(frames)
        self._statistics.copies += len(frames) * departure.links
        for send_many in departure.sends:
            send_many(frames)

    def _judge(
        self, frame: bytes, arrival: LinkNumber | None, now: float
    ) -> tuple[ForwardingRoute, bytes, Drop | None]:
        """Route, frame as it leaves, and why it is dropped. Counts what is known here: arrival, cache, drop."""
        statistics = self._statistics
        statistics.received += 1
        metadata = metadata_offset(frame)
        if metadata == MALFORMED:
            statistics.drops[Drop.MALFORMED] += 1
            return _NO_ROUTE, frame, Drop.MALFORMED
        key = frame[:FORWARDING_BYTES]
        cache = self._cache_for(arrival)
        entry = cache.find(key)
        if entry is None:
            statistics.cache_misses += 1
            route = self._rules.route(key, arrival)
            if route.drop is None:
                cache.remember(key, (self._short_way(key, route), route))
        else:
            statistics.cache_hits += 1
            route = entry[1]
        drop = route.drop
        if (
            drop is None
            and (route.may_return or self._loops.first_seen)
            and self._loops.is_repeat(key[FID_OFFSET:], route.may_return, arrival, now)
        ):
            drop = Drop.LOOP
        if drop is not None:
            statistics.drops[drop] += 1
            return route, frame, drop
        statistics.detoured += route.detoured
        leaving = route.header + frame[FORWARDING_BYTES:]
        if metadata and arrival is not None and (way_back := self._rules.table.links.get(arrival)):
            leaving = _with_reverse_path(leaving, metadata, way_back)
        return route, leaving, None

    def _forget(self) -> None:
        self._departures.clear()
        self._short_ways = {}
        for cache in self._caches.values():
            cache.clear()

    def _cache_for(self, arrival: LinkNumber | None) -> RouteCache[_Known]:
        cache = self._caches.get(arrival)
        if cache is None:
            cache = self._caches[arrival] = RouteCache(self._cache_entries)
        return cache

    def _short_way(self, key: bytes, route: ForwardingRoute) -> _ShortWay | None:
        """How the frames of a flow get through `forward` quickly, None when each needs all the rules."""
        if route.deliver or route.may_return or route.detoured:
            return None
        following = key[NEXT_OFFSET]
        chain = None if following == HeaderType.PAYLOAD else _LAST_RENDEZVOUS.get(following)
        if chain is None and following != HeaderType.PAYLOAD:
            return None
        # The time to live alone is found fastest, unless one of the two bytes before it is the same.
        start = TTL_OFFSET if key[TTL_OFFSET] not in key[:TTL_OFFSET] else 0
        old, new = key[start:_AFTER_TTL], route.header[start:_AFTER_TTL]
        name = (chain, old, new, route.out)
        way = self._short_ways.get(name)
        if way is None:
            if len(self._short_ways) >= self._cache_entries:
                self._short_ways.clear()
            way = self._short_ways[name] = (chain, old, new, self._departure(route.out))
        return way

    def _departure(self, out: tuple[LinkNumber, ...]) -> _Departure:
        """The one way out on these links: frames of one flow that take it keep their order."""
        departure = self._departures.get(out)
        if departure is None:
            if len(self._departures) >= self._cache_entries:
                self._departures.clear()
            sends = [self._sends[number] for number in out if number in self._sends]
            departure = self._departures[out] = _Departure(len(out), sends)
        return departure


def _common_way(batch: list[bytes], routes: Mapping[bytes, _Known]) -> _ShortWay | None:
    """The short way that all frames take, None when there is none: most batches are of flows that leave by one link."""
    if not batch:
        return None
    header_of, type_and_next_of = _HEADER, _TYPE_AND_NEXT
    try:
        way = routes[batch[-1][header_of]][0]
        # Three frames tell most mixed batches, before all the others are looked up in vain.
        if (
            way is None
            or routes[batch[0][header_of]][0] is not way
            or routes[batch[len(batch) // 2][header_of]][0] is not way
        ):
            return None
        ways = [routes[frame[header_of]][0] for frame in batch]
    except KeyError:
        return None
    if ways.count(way) != len(batch):
        return None
    chain = way[0]
    if chain is not None:
        for frame in batch:
            if (
                frame[type_and_next_of] != chain
                or len(frame) < _DATA_BYTES
                or frame[_DATA_PROTO_OFFSET] != PROTOCOL_VERSION
            ):
                return None
    return way


def _with_reverse_path(frame: bytes, metadata: int, way_back: Tags) -> bytes:
    """The frame with the tag of the link back added to the filter that its metadata header collects."""
    start = metadata + COLLECTED_FID_OFFSET
    end = start + FILTER_BYTES
    index = frame[end]
    if index >= TABLES:
        return frame
    collected = int.from_bytes(frame[start:end], "big") | way_back[index]
    return frame[:start] + collected.to_bytes(FILTER_BYTES, "big") + frame[end:]
