"""What a relay makes of wrapped frames, and what it refuses."""

import pytest

from psirp_stack.control.codes import Function
from psirp_stack.control.frames import build_control, parse_control
from psirp_stack.control.known_graph import KnownGraph, NodeState
from psirp_stack.control.messages import FilterGrant, Onward
from psirp_stack.control.relay_frames import NO_FILTER, Station, relay_overhead, station_name, unwrap, wrap
from psirp_stack.control.routes import ControlRoute
from psirp_stack.node import relays as relaying
from psirp_stack.node.relays import RelayDrop, Relays
from psirp_stack.transport.frames import HANDLE_TABLE, segment_frame, segment_prefix
from psirp_stack.wire.numbers import FID_OFFSET, FORWARDING_BYTES

NAMES = ("a", "b", "c", "d", "e")
LINE = {
    name: NodeState(1, 0, {NAMES[other]: 1500 for other in (at - 1, at + 1) if 0 <= other < len(NAMES)})
    for at, name in enumerate(NAMES)
}
INTERNAL = (1 << 200,) * 8
REACH = 2
"""In these tests a filter holds so many links."""


def fid(text: str) -> bytes:
    return text.encode().ljust(31, b"\0") + b"\x00"


def relays(name: str) -> Relays:
    known = KnownGraph.of(LINE, name)

    def route_to(to: str) -> ControlRoute | None:
        if to not in NAMES:
            return None
        here, there = NAMES.index(name), NAMES.index(to)
        hops = abs(there - here)
        relay = None if hops <= REACH else NAMES[here + REACH * (1 if there > here else -1)]
        return ControlRoute(fid(f"{name}-{relay or to}"), 1500 - (relay_overhead(1) if relay else 0), hops, relay)

    return Relays(name, INTERNAL, route_to, lambda: known)


def segment(filter_: bytes) -> bytes:
    return segment_frame(segment_prefix(filter_, bytes(64), bytes(32)), 0, b"content")


def filters_of(frames: list[bytes]) -> list[bytes]:
    return [frame[FID_OFFSET:FORWARDING_BYTES] for frame in frames]


def test_a_control_frame_goes_from_relay_to_relay_and_arrives_as_it_was() -> None:
    message = build_control(fid("anything"), Function.NODE, "e", b"message")
    (first,) = relays("a").control("e", message)
    assert filters_of([first]) == [fid("a-c")]
    (second,) = relays("c").relayed(parse_control(first, "c").payload)
    assert filters_of([second]) == [fid("c-e")]
    assert parse_control(second, "e").payload == b"message"


def test_a_copy_serves_each_station_on_its_way() -> None:
    node = relays("a")
    onward = (Onward("c", fid("from c")), Onward("e", fid("from e")), Onward("e", fid("also from e")))
    grant = node.local(FilterGrant(fid("near"), ("b", "c", "d", "e"), 1000, onward))
    assert grant.fid[-1] == HANDLE_TABLE
    assert node.local(FilterGrant(fid("near"), ("b",), 900, onward)).fid == grant.fid
    near, far = node.outgoing([segment(grant.fid)])
    assert filters_of([near, far]) == [fid("near"), fid("a-c")]
    at_c = relays("c").relayed(parse_control(far, "c").payload)
    assert filters_of(at_c) == [fid("from c"), fid("c-e")]
    at_e = relays("e").relayed(parse_control(at_c[1], "e").payload)
    assert at_e == [segment(fid("from e")), segment(fid("also from e"))]


def test_short_ways_need_no_relay_and_no_handle() -> None:
    node = relays("a")
    assert node.way_to("c") == (fid("a-c"), 1500)
    assert node.way_to("nobody") is None
    plain = FilterGrant(fid("near"), ("b",), 1000)
    assert node.local(plain) is plain
    frames = [segment(fid("near"))]
    assert node.outgoing(frames) is frames
    handle = node.way_to("e")
    assert handle is not None
    assert handle[1] == 1500 - relay_overhead(1)
    (wrapped,) = node.outgoing([segment(handle[0])])
    assert unwrap(parse_control(wrapped, "c").payload).stations == (Station(station_name("e"), NO_FILTER),)


def test_what_cannot_go_on_is_dropped_and_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    node = relays("a")
    inner = segment(fid("x"))

    def relayed(stations: list[Station], left: int = 9) -> list[bytes]:
        return node.relayed(parse_control(wrap(fid("y"), "a", left, stations, inner), "a").payload)

    assert relayed([Station(station_name("nobody"))]) == []
    assert relayed([Station(station_name("e"))], left=0) == []
    assert relayed([Station(station_name("a"), b"\xff" * 31 + b"\x00")]) == []
    assert node.relayed(b"\x01") == []
    assert node.drops == {
        RelayDrop.UNKNOWN_STATION: 1,
        RelayDrop.TOO_MANY_RELAYS: 1,
        RelayDrop.MALFORMED: 2,
    }
    monkeypatch.setattr(relaying, "MAX_HANDLES", 1)
    old, new = node.way_to("d"), node.way_to("e")
    assert old is not None
    assert new is not None
    assert node.outgoing([segment(old[0])]) == []
    assert node.drops[RelayDrop.FORGOTTEN] == 1
    assert len(node.outgoing([segment(new[0])])) == 1
