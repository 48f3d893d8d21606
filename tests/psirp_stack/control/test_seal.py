"""Seals and the control frames that carry them."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from psirp_stack.control.codes import Function, control_scope
from psirp_stack.control.frames import (
    CONTROL_OVERHEAD,
    ControlDrop,
    ControlFrameError,
    build_control,
    is_control,
    node_rid,
    parse_control,
)
from psirp_stack.control.seal import SEAL_BYTES, Seal, SealError
from psirp_stack.forwarding_model import BROADCAST_FID
from psirp_stack.wire.codec import ForwardingHeader, Frame, RendezvousHeader, build
from psirp_stack.wire.numbers import FORWARDING_BYTES, RID_OFFSET, SID_OFFSET, HeaderType

SECRET = b"a secret of the domain"
FID = bytes(range(31)) + b"\x03"


@given(st.binary(max_size=300), st.binary(max_size=70))
def test_what_is_sealed_opens_again(payload: bytes, context: bytes) -> None:
    seal = Seal(SECRET)
    sealed = seal.seal(payload, context)
    assert len(sealed) == len(payload) + SEAL_BYTES == len(payload) + seal.overhead
    assert seal.open(sealed, context) == payload
    assert Seal(None).open(Seal(None).seal(payload)) == payload


@given(st.binary(max_size=60), st.data())
def test_a_changed_bit_another_secret_or_another_context_breaks_the_seal(payload: bytes, data: st.DataObject) -> None:
    sealed = Seal(SECRET).seal(payload, b"here")
    at = data.draw(st.integers(0, 8 * len(sealed) - 1))
    changed = bytearray(sealed)
    changed[at // 8] ^= 1 << at % 8
    for seal, bytes_, context in (
        (Seal(SECRET), bytes(changed), b"here"),
        (Seal(SECRET + b"!"), sealed, b"here"),
        (Seal(SECRET), sealed, b"there"),
        (Seal(SECRET), sealed[: SEAL_BYTES - 1], b"here"),
    ):
        with pytest.raises(SealError):
            seal.open(bytes_, context)


def test_the_boundary_between_context_and_payload_is_sealed_too() -> None:
    seal = Seal(SECRET)
    with pytest.raises(SealError):
        seal.open(seal.seal(b"bc", b"a"), b"ab")
    assert seal.seal(b"bc", b"a")[:SEAL_BYTES] != seal.seal(b"c", b"ab")[:SEAL_BYTES]


def test_a_secret_that_can_be_guessed_is_refused() -> None:
    with pytest.raises(ValueError, match="at least 16 bytes"):
        Seal(b"short")


@pytest.mark.parametrize("seal", [Seal(None), Seal(SECRET)])
@pytest.mark.parametrize("function", Function)
@pytest.mark.parametrize("to", ["berlin", None])
def test_a_control_frame_reaches_the_node_it_names(seal: Seal, function: Function, to: str | None) -> None:
    frame = build_control(FID, function, to, b"message", seal)
    assert len(frame) == CONTROL_OVERHEAD + seal.overhead + len(b"message")
    assert is_control(frame)
    parsed = parse_control(frame, "berlin", seal)
    assert (parsed.function, parsed.to_all_neighbours, parsed.payload) == (function, to is None, b"message")


def refused(frame: bytes, seal: Seal | None = None) -> ControlDrop:
    with pytest.raises(ControlFrameError) as caught:
        parse_control(frame, "berlin", seal if seal is not None else Seal(SECRET))
    return caught.value.drop


def test_every_other_frame_is_refused_with_its_reason() -> None:
    seal = Seal(SECRET)
    good = build_control(FID, Function.NODE, "berlin", b"message", seal)
    assert refused(good[:100]) is ControlDrop.MALFORMED
    assert refused(build_control(FID, Function.NODE, "paris", b"message", seal)) is ControlDrop.NOT_FOR_US
    assert refused(good, Seal(b"another domain's secret")) is ControlDrop.BAD_SEAL
    assert refused(build_control(FID, Function.NODE, "berlin", b"message", Seal(None))) is ControlDrop.BAD_SEAL
    other_scope = RendezvousHeader(HeaderType.PUBLISH_DATA, bytes(32), node_rid("berlin"))
    data = build(Frame((ForwardingHeader(FID), other_scope), b"data"))
    assert refused(data) is ControlDrop.NOT_CONTROL
    assert not is_control(data)
    assert refused(build(Frame((ForwardingHeader(BROADCAST_FID),), b"bare"))) is ControlDrop.NOT_CONTROL
    unknown = bytearray(good)
    unknown[FORWARDING_BYTES + SID_OFFSET + 31] = 0x01
    assert refused(bytes(unknown)) is ControlDrop.UNKNOWN_FUNCTION


def test_a_sealed_payload_cannot_be_moved_to_another_function_or_node() -> None:
    seal = Seal(SECRET)
    frame = bytearray(build_control(FID, Function.NODE, "paris", b"message", seal))
    frame[FORWARDING_BYTES + RID_OFFSET : FORWARDING_BYTES + RID_OFFSET + 32] = node_rid("berlin")
    assert refused(bytes(frame)) is ControlDrop.BAD_SEAL
    frame = bytearray(build_control(FID, Function.NODE, "berlin", b"message", seal))
    frame[FORWARDING_BYTES + SID_OFFSET : FORWARDING_BYTES + SID_OFFSET + 32] = control_scope(Function.RENDEZVOUS)
    assert refused(bytes(frame)) is ControlDrop.BAD_SEAL
