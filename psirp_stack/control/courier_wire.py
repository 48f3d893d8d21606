"""What couriers say to each other: pieces of messages, and what became of them.

`floor` is the lowest number that its sender still waits for: everything below is settled, so the receiver may forget
it and need not wait for it. Numbers are at most `WINDOW` above the floor, which bounds what a receiver keeps.

Anybody could write any name under a datagram. So each courier has a token for each name, which it tells that node by
the way that leads there, and counts only datagrams that show it: who is not on that way does not know it.
"""

from typing import Annotated, NamedTuple

import msgspec
from msgspec import Meta, Struct

from psirp_stack.control.messages import MAX_MESSAGE_BYTES, Count, Name

WINDOW = 32
"""Messages of one sender to one receiver that may be unsettled."""
MAX_PIECES = 1024
MAX_RECEIVED_FIELDS = 1 + 1 + 66 + 6 * 9 + 3
"""Longest encoding of an answer without what it says of held messages."""
MAX_HELD_FIELDS = 1 + 2 * 9 + 2
MAX_PIECE_FIELDS = 1 + 4 + 66 + 7 * 9 + 3 * 5 + 5
"""Longest encoding of a piece without its bytes: array, kind, name, numbers up to 64 bits, small numbers, length."""

Bits = Annotated[bytes, Meta(max_length=MAX_PIECES // 8)]


class CourierWireError(ValueError):
    """Bytes that no courier wrote."""


class Speaker(NamedTuple):
    """Who says something to one other node, and what proves it there."""

    source: str
    boot: int
    shown: int
    """The other's token for this node, 0 while it is not known."""
    token: int
    """This node's token for the other."""


class Piece(Struct, frozen=True, array_like=True, forbid_unknown_fields=True, tag=1):
    """A part of the message `number` of a sender's life to this receiver."""

    source: Name
    boot: Count
    floor: Count
    number: Count
    function: Annotated[int, Meta(ge=0, le=255)]
    cut: Count
    """Grows when the sender cuts the message anew, because the path's MTU has shrunk."""
    part: Annotated[int, Meta(ge=0, le=MAX_PIECES - 1)]
    parts: Annotated[int, Meta(ge=1, le=MAX_PIECES)]
    ask: bool
    """Say what you hold of this message."""
    body: Annotated[bytes, Meta(max_length=MAX_MESSAGE_BYTES)]
    shown: Count = 0
    """The receiver's token for the source: without the right one it is answered with a `Challenge`."""
    token: Count = 0
    """The source's token for the receiver, to be shown in what it says."""


class HeldPieces(Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """Parts of a message that its receiver has, while it is not settled: bit i of byte i // 8."""

    number: Count
    cut: Count
    bits: Bits


class Received(Struct, frozen=True, array_like=True, forbid_unknown_fields=True, tag=2):
    """What a receiver made of the messages of one life of their sender."""

    source: Name
    """Who says this."""
    boot: Count
    to_boot: Count
    """The life of the sender that this is about."""
    base: Count
    done: Annotated[int, Meta(ge=0, lt=1 << WINDOW)]
    """Bit i: the message base + i was handled."""
    held: Annotated[tuple[HeldPieces, ...], Meta(max_length=WINDOW)] = ()
    shown: Count = 0
    token: Count = 0
    """Both as in a piece."""


class Challenge(Struct, frozen=True, array_like=True, forbid_unknown_fields=True, tag=3):
    """Show this token in what you say to the source of this."""

    source: Name
    token: Count
    echo: Count
    """The token of whom this is for, from the datagram that this answers: who did not send one need not listen."""


_encoder = msgspec.msgpack.Encoder()
CourierDatagram = Piece | Received | Challenge
_decoder: msgspec.msgpack.Decoder[CourierDatagram] = msgspec.msgpack.Decoder(CourierDatagram)


def encode(said: CourierDatagram) -> bytes:
    return _encoder.encode(said)


def decode(data: bytes) -> CourierDatagram:
    """What the bytes say; `CourierWireError` when they are not a courier's."""
    try:
        said = _decoder.decode(data)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise CourierWireError(f"not a courier's datagram: {error}") from None
    if isinstance(said, Piece) and not (said.part < said.parts and said.floor <= said.number < said.floor + WINDOW):
        raise CourierWireError(f"part {said.part} of {said.parts}, number {said.number} above {said.floor}: cannot be")
    return said


def bits_of(parts: set[int], total: int) -> bytes:
    """A set of part numbers as `HeldPieces` carries it."""
    bits = bytearray((total + 7) // 8)
    for part in parts:
        bits[part // 8] |= 1 << part % 8
    return bytes(bits)


def parts_in(bits: bytes, total: int) -> set[int]:
    return {part for part in range(min(total, 8 * len(bits))) if bits[part // 8] >> part % 8 & 1}
