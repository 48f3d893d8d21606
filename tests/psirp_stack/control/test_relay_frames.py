"""Frames wrapped for a relay: what goes in comes out, and nothing else does."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from psirp_stack.control.codes import Function
from psirp_stack.control.frames import build_control, is_control, is_wrapped, parse_control
from psirp_stack.control.relay_frames import (
    MAX_STATIONS,
    RelayError,
    Station,
    relay_overhead,
    station_name,
    unwrap,
    with_fid,
    wrap,
)
from psirp_stack.transport.frames import HANDLE_TABLE, control_frame, segment_frame, segment_prefix, without_way_back
from psirp_stack.wire.codec import parse
from psirp_stack.wire.numbers import HeaderType

FID = bytes(range(31)) + b"\x03"
SEGMENT = segment_frame(segment_prefix(FID, bytes(64), bytes(32)), 7, b"payload")
FIDS = st.builds(lambda bits, table: bits + bytes((table,)), st.binary(min_size=31, max_size=31), st.integers(0, 7))
STATIONS = st.lists(st.builds(Station, st.binary(min_size=8, max_size=8), FIDS), min_size=1, max_size=MAX_STATIONS)


@given(STATIONS, st.integers(0, 255), st.booleans())
def test_what_is_wrapped_is_unwrapped(stations: list[Station], left: int, control: bool) -> None:
    inner = build_control(FID, Function.NODE, "berlin", b"message") if control else SEGMENT
    frame = wrap(FID, "paris", left, stations, inner)
    assert len(frame) == len(inner) + relay_overhead(len(stations))
    assert is_wrapped(frame)
    assert is_control(frame) is control
    wrapped = unwrap(parse_control(frame, "paris").payload)
    assert wrapped == (left, tuple(stations), inner)
    assert parse(with_fid(wrapped.inner, stations[0].fid)).headers[1:] == parse(inner).headers[1:]


@given(st.binary(max_size=400))
def test_other_bytes_are_refused_or_read_whole(payload: bytes) -> None:
    try:
        wrapped = unwrap(payload)
    except RelayError:
        return
    named = b"".join(station.name + station.fid for station in wrapped.stations)
    assert bytes((wrapped.relays_left, len(wrapped.stations))) + named + wrapped.inner == payload


def test_a_frame_is_wrapped_once() -> None:
    """Else a small frame could hold many, each of which becomes several."""
    inner = wrap(FID, "paris", 1, [Station(station_name("berlin"))], SEGMENT)
    frame = wrap(FID, "paris", 1, [Station(station_name("berlin"))], inner)
    with pytest.raises(RelayError, match="twice"):
        unwrap(parse_control(frame, "paris").payload)


def test_no_way_back_is_collected_behind_a_relay() -> None:
    frame = control_frame(HeaderType.PUBLISH_METADATA, FID, bytes(64), bytes(32), 0, FID, b"said", length=5)
    metadata = parse(without_way_back(frame)).metadata
    assert metadata is not None
    assert metadata.collected_fid[-1] == HANDLE_TABLE
    assert metadata.length == 5
    assert without_way_back(SEGMENT) == SEGMENT
