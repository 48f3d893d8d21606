"""Frames of the control plane: for one node's function, or for all neighbours."""

import pytest

from psirp_stack.control.codes import Function
from psirp_stack.control.frames import (
    CONTROL_OVERHEAD,
    ControlDrop,
    ControlFrameError,
    build_control,
    has_control_scope,
    is_control,
    node_rid,
    parse_control,
)
from psirp_stack.forwarding_model import BROADCAST_FID
from psirp_stack.wire.codec import ForwardingHeader, Frame, RendezvousHeader, build
from psirp_stack.wire.numbers import FORWARDING_BYTES, SID_OFFSET, HeaderType

FID = bytes(range(31)) + b"\x03"


@pytest.mark.parametrize("function", Function)
@pytest.mark.parametrize("to", ["berlin", None])
def test_a_control_frame_reaches_the_node_it_names(function: Function, to: str | None) -> None:
    frame = build_control(FID, function, to, b"message")
    assert len(frame) == CONTROL_OVERHEAD + len(b"message")
    assert is_control(frame) is (function not in (Function.RELAY_DATA, Function.PULLED))
    assert has_control_scope(frame)
    parsed = parse_control(frame, "berlin")
    assert (parsed.function, parsed.to_all_neighbours, parsed.payload) == (function, to is None, b"message")


def refused(frame: bytes) -> ControlDrop:
    with pytest.raises(ControlFrameError) as caught:
        parse_control(frame, "berlin")
    return caught.value.drop


def test_every_other_frame_is_refused_with_its_reason() -> None:
    good = build_control(FID, Function.NODE, "berlin", b"message")
    assert refused(good[:100]) is ControlDrop.MALFORMED
    assert refused(build_control(FID, Function.NODE, "paris", b"message")) is ControlDrop.NOT_FOR_US
    other_scope = RendezvousHeader(HeaderType.PUBLISH_DATA, bytes(32), node_rid("berlin"))
    data = build(Frame((ForwardingHeader(FID), other_scope), b"data"))
    assert refused(data) is ControlDrop.NOT_CONTROL
    assert not is_control(data)
    assert refused(build(Frame((ForwardingHeader(BROADCAST_FID),), b"bare"))) is ControlDrop.NOT_CONTROL
    unknown = bytearray(good)
    unknown[FORWARDING_BYTES + SID_OFFSET + 31] = 0x01
    assert refused(bytes(unknown)) is ControlDrop.UNKNOWN_FUNCTION
