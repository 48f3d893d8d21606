"""Frames that travel further than one filter reaches: wrapped in a control frame for a node on the way, a relay.

A filter holds some thirty links, so a frame for a node behind more of them is wrapped: the outer frame goes to a relay,
which unwraps it and sends it on with a filter of its own, through a further relay if it must. A wrapped frame names its
*stations* in their order: a node, and the filter that the inner frame is sent along from there. A station without a
filter is the one whom the frame is for.
"""

from collections.abc import Sequence
from typing import NamedTuple

from psirp_stack.control.codes import Function
from psirp_stack.control.frames import CONTROL_OVERHEAD, build_control, is_control, is_wrapped, node_rid
from psirp_stack.forwarding_model import FID_BYTES, TABLES
from psirp_stack.wire.numbers import FID_OFFSET, FORWARDING_BYTES

NAME_BYTES = 8
"""Of a station's name, so many bytes of its digest: more than enough to tell the nodes of a domain apart."""
MAX_STATIONS = 6
MAX_RELAYS = 255
"""A wrapped frame passes so many relays at most."""
NO_FILTER = bytes(FID_BYTES)

_STATION_BYTES = NAME_BYTES + FID_BYTES
_FIXED_BYTES = 2


class RelayError(ValueError):
    """A wrapped frame that cannot be unwrapped."""


class Station(NamedTuple):
    """Where a wrapped frame goes, and the filter that its inner frame gets there."""

    name: bytes
    """The beginning of the digest of its name."""
    fid: bytes = NO_FILTER


class WrappedFrame(NamedTuple):
    """What a relay gets."""

    relays_left: int
    stations: tuple[Station, ...]
    inner: bytes


def station_name(name: str) -> bytes:
    return node_rid(name)[:NAME_BYTES]


def relay_overhead(stations: int) -> int:
    """Bytes that wrapping adds to a frame."""
    return CONTROL_OVERHEAD + _FIXED_BYTES + stations * _STATION_BYTES


def wrap(fid: bytes, relay: str, relays_left: int, stations: Sequence[Station], inner: bytes) -> bytes:
    """A frame for a relay, which the filter leads to. What wraps a control frame is one too."""
    function = Function.RELAY if is_control(inner) else Function.RELAY_DATA
    named = b"".join(station.name + station.fid for station in stations)
    return build_control(fid, function, relay, bytes((relays_left, len(stations))) + named + inner)


def unwrap(payload: bytes) -> WrappedFrame:
    """The parts of a wrapping control frame's payload."""
    if len(payload) < _FIXED_BYTES:
        raise RelayError("no stations")
    left, count = payload[:_FIXED_BYTES]
    begin = _FIXED_BYTES + count * _STATION_BYTES
    if not 1 <= count <= MAX_STATIONS:
        raise RelayError(f"{count} stations: expected 1 to {MAX_STATIONS}")
    if len(payload) < begin + FORWARDING_BYTES:
        raise RelayError("the inner frame is cut off")
    stations = tuple(
        Station(payload[at : at + NAME_BYTES], payload[at + NAME_BYTES : at + _STATION_BYTES])
        for at in range(_FIXED_BYTES, begin, _STATION_BYTES)
    )
    if any(station.fid[-1] >= TABLES for station in stations):
        raise RelayError("a filter names a table that does not exist")
    inner = payload[begin:]
    if is_wrapped(inner):
        raise RelayError("wrapped twice: one frame would become many")
    return WrappedFrame(left, stations, inner)


def with_fid(frame: bytes, fid: bytes) -> bytes:
    """The same frame, to be sent along another filter."""
    return frame[:FID_OFFSET] + fid + frame[FORWARDING_BYTES:]
