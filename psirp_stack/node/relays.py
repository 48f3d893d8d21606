"""Paths longer than one filter holds: frames for far nodes are wrapped, and what others wrapped is sent on.

Parts of a node that only know filters get a *handle* in place of one: 31 bytes that stand for a first filter and the
stations behind it, and a table index that no forwarder knows. A handle never leaves the node.
"""

from collections import Counter, OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from hashlib import blake2b

from psirp_stack.control.known_graph import KnownGraph
from psirp_stack.control.messages import FilterGrant
from psirp_stack.control.relay_frames import (
    MAX_RELAYS,
    NO_FILTER,
    RelayError,
    Station,
    station_name,
    unwrap,
    with_fid,
    wrap,
)
from psirp_stack.control.routes import ControlRoute
from psirp_stack.forwarding_model import FILTER_BYTES, Tags
from psirp_stack.transport.frames import HANDLE_TABLE, first_way, is_usable, without_way_back
from psirp_stack.wire.numbers import FID_OFFSET, FORWARDING_BYTES

MAX_HANDLES = 16_384
"""Long ways remembered. Of more, the least recently used are forgotten; frames for them are dropped, counted."""


class RelayDrop(StrEnum):
    """Why a wrapped frame went no further."""

    MALFORMED = "malformed"
    UNKNOWN_STATION = "no node of that name is known"
    NO_WAY = "no path leads there"
    TOO_MANY_RELAYS = "too many relays"
    FORGOTTEN = "too many long ways are in use"


@dataclass(frozen=True, slots=True)
class _LongWay:
    """What a handle stands for."""

    first: bytes
    """The filter for those whom this node reaches itself; `NO_FILTER` when there are none."""
    stations: tuple[Station, ...]


class Relays:
    """Wraps what one node sends far away, and sends on what others wrapped."""

    def __init__(
        self,
        name: str,
        internal: Tags,
        route_to: Callable[[str], ControlRoute | None],
        graph: Callable[[], KnownGraph],
    ) -> None:
        self.passed = 0
        """Frames of others that this node sent on."""
        self.drops: Counter[RelayDrop] = Counter()
        self._name = name
        self._internal = internal
        self._route_to = route_to
        self._graph = graph
        self._handles: OrderedDict[bytes, _LongWay] = OrderedDict()
        self._names: dict[bytes, str] = {}
        self._names_of: KnownGraph | None = None

    # Ways for the parts of this node that only know filters.

    def way_to(self, name: str) -> tuple[bytes, int] | None:
        """A filter or a handle that leads to a node, and the longest frame that fits."""
        route = self._route_to(name)
        if route is None:
            return None
        if route.relay is None:
            return route.fid, route.mtu
        return self._handle(_LongWay(NO_FILTER, (Station(station_name(name)),))), route.mtu

    def local(self, grant: FilterGrant) -> FilterGrant:
        """The grant as this node's sender uses it."""
        if not grant.onward:
            return grant
        stations = tuple(Station(station_name(onward.station), onward.fid) for onward in grant.onward)
        return FilterGrant(self._handle(_LongWay(grant.fid, stations)), grant.subscribers, grant.mtu)

    def _handle(self, way: _LongWay) -> bytes:
        digest = blake2b(way.first, digest_size=FILTER_BYTES)
        for station in way.stations:
            digest.update(station.name + station.fid)
        handle = digest.digest() + bytes((HANDLE_TABLE,))
        self._handles[handle] = way
        self._handles.move_to_end(handle)
        if len(self._handles) > MAX_HANDLES:
            self._handles.popitem(last=False)
        return handle

    # Frames.

    def outgoing(self, frames: list[bytes]) -> list[bytes]:
        """What this node's frames become on their way out: those with a handle are wrapped."""
        if not self._handles:
            return frames
        out: list[bytes] = []
        for frame in frames:
            if frame[FORWARDING_BYTES - 1] == HANDLE_TABLE:
                out += self._wrapped(frame)
            else:
                out.append(frame)
        return out

    def control(self, to: str, frame: bytes) -> list[bytes]:
        """A control frame for a node that is too far away for one filter."""
        return self._onward((Station(station_name(to)),), frame, MAX_RELAYS)

    def relayed(self, payload: bytes) -> list[bytes]:
        """What to send because of a wrapped frame that reached this node."""
        try:
            left, stations, inner = unwrap(payload)
        except RelayError:
            self.drops[RelayDrop.MALFORMED] += 1
            return []
        self.passed += 1
        return self._onward(stations, inner, left)

    def _wrapped(self, frame: bytes) -> list[bytes]:
        handle = frame[FID_OFFSET:FORWARDING_BYTES]
        way = self._handles.get(handle)
        if way is None:
            self.drops[RelayDrop.FORGOTTEN] += 1
            return []
        self._handles.move_to_end(handle)
        first = [] if way.first == NO_FILTER else [with_fid(frame, way.first)]
        # The way back that forwarders collect would begin at the last relay: who answers has to find one himself.
        return first + self._onward(way.stations, without_way_back(frame), MAX_RELAYS)

    def _onward(self, stations: tuple[Station, ...], inner: bytes, left: int) -> list[bytes]:
        """Frames that bring `inner` to its stations: here, if this is the first of them, and on to the next."""
        out: list[bytes] = []
        while stations:
            name = self._named(stations[0].name)
            if name != self._name:
                return out + self._to_next(name, stations, inner, left)
            fid = stations[0].fid
            if fid == NO_FILTER:
                fid = first_way(self._internal, 0)
            if is_usable(fid):
                out.append(with_fid(inner, fid))
            else:
                self.drops[RelayDrop.MALFORMED] += 1
            stations = stations[1:]
        return out

    def _to_next(self, name: str | None, stations: tuple[Station, ...], inner: bytes, left: int) -> list[bytes]:
        if name is None:
            self.drops[RelayDrop.UNKNOWN_STATION] += 1
            return []
        route = self._route_to(name)
        if route is None:
            self.drops[RelayDrop.NO_WAY] += 1
            return []
        if route.relay is None and len(stations) == 1 and stations[0].fid == NO_FILTER:
            return [with_fid(inner, route.fid)]
        if left == 0:
            self.drops[RelayDrop.TOO_MANY_RELAYS] += 1
            return []
        return [wrap(route.fid, route.relay or name, left - 1, stations, inner)]

    def _named(self, station: bytes) -> str | None:
        known = self._graph()
        if known is not self._names_of:
            self._names_of = known
            self._names = {station_name(name): name for name in reversed(known.graph.names)}
        return self._names.get(station)
