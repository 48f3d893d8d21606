"""Control frames: a message for a function of one node, or for all neighbours.

Forwarding header, rendezvous header (`PUBLISH_DATA`, scope the function, Rid = SHA-256 of the destination's name; zero
for all neighbours), payload. Filters sometimes reach nodes they should not, so a node looks at the Rid first.
"""

from dataclasses import dataclass
from enum import StrEnum
from functools import lru_cache
from hashlib import sha256

from psirp_stack.control.codes import CONTROL_PREFIX, Function, control_scope
from psirp_stack.wire.codec import ForwardingHeader, Frame, RendezvousHeader, WireError, build, parse
from psirp_stack.wire.numbers import (
    FORWARDING_BYTES,
    ID_BYTES,
    NEXT_OFFSET,
    RENDEZVOUS_BYTES,
    RID_OFFSET,
    SID_OFFSET,
    HeaderType,
)

CONTROL_OVERHEAD = FORWARDING_BYTES + RENDEZVOUS_BYTES
"""Bytes of a control frame before its payload."""
ALL_NEIGHBOURS = bytes(ID_BYTES)
MAX_REMEMBERED_NAMES = 8192

_SID_AT = FORWARDING_BYTES + SID_OFFSET
_RID_AT = FORWARDING_BYTES + RID_OFFSET
_FUNCTIONS = {int(function): function for function in Function}
_PUBLISH_DATA = int(HeaderType.PUBLISH_DATA)
_FUNCTION_AT = _SID_AT + len(CONTROL_PREFIX)
_CARRY_CONTENT = frozenset((int(Function.RELAY_DATA), int(Function.PULLED)))
_RELAYS = frozenset((int(Function.RELAY), int(Function.RELAY_DATA)))


class ControlDrop(StrEnum):
    """Why a frame is no control frame for this node."""

    MALFORMED = "malformed"
    NOT_CONTROL = "not a control frame"
    UNKNOWN_FUNCTION = "unknown function"
    NOT_FOR_US = "for another node"


class ControlFrameError(ValueError):
    """A frame that carries no message for this node."""

    def __init__(self, drop: ControlDrop, reason: str) -> None:
        super().__init__(f"{drop.value}: {reason}")
        self.drop = drop


@dataclass(frozen=True, slots=True)
class ControlFrame:
    """What a control frame says."""

    function: Function
    to_all_neighbours: bool
    payload: bytes


@lru_cache(maxsize=MAX_REMEMBERED_NAMES)
def node_rid(name: str) -> bytes:
    """The Rid that stands for a node in control frames."""
    return sha256(name.encode()).digest()


def is_control(frame: bytes) -> bool:
    """Whether the frame's scope is one of the control plane's; cheap, says nothing of the rest."""
    return has_control_scope(frame) and frame[_FUNCTION_AT] not in _CARRY_CONTENT


def has_control_scope(frame: bytes) -> bool:
    """The same, but also for frames that carry content: of others, to a relay, or for who asked."""
    return (
        len(frame) >= CONTROL_OVERHEAD
        and frame[NEXT_OFFSET] == _PUBLISH_DATA
        and frame[_SID_AT:_FUNCTION_AT] == CONTROL_PREFIX
    )


def is_wrapped(frame: bytes) -> bool:
    """Whether the frame carries another to a relay (`relay_frames.py`)."""
    return has_control_scope(frame) and frame[_FUNCTION_AT] in _RELAYS


def build_control(fid: bytes, function: Function, to: str | None, payload: bytes) -> bytes:
    """A frame with a message for `to`, or for all neighbours when that is None."""
    sid = control_scope(function)
    rid = ALL_NEIGHBOURS if to is None else node_rid(to)
    headers = (ForwardingHeader(fid), RendezvousHeader(HeaderType.PUBLISH_DATA, sid, rid))
    return build(Frame(headers, payload))


def parse_control(frame: bytes, name: str) -> ControlFrame:
    """The message in a frame that reached the node `name`; `ControlFrameError` when there is none for it."""
    try:
        parsed = parse(frame)
    except WireError as error:
        raise ControlFrameError(ControlDrop.MALFORMED, str(error)) from None
    header = parsed.rendezvous
    if header is None or parsed.payload is None or header.type != HeaderType.PUBLISH_DATA:
        raise ControlFrameError(ControlDrop.NOT_CONTROL, "expected a rendezvous header for data, and payload")
    if header.sid[:-1] != CONTROL_PREFIX:
        raise ControlFrameError(ControlDrop.NOT_CONTROL, f"the scope is {header.sid.hex()}")
    function = _FUNCTIONS.get(header.sid[-1])
    if function is None:
        raise ControlFrameError(ControlDrop.UNKNOWN_FUNCTION, f"0x{header.sid[-1]:02x}")
    to_all = header.rid == ALL_NEIGHBOURS
    if not to_all and header.rid != node_rid(name):
        raise ControlFrameError(ControlDrop.NOT_FOR_US, f"the Rid is not that of {name!r}")
    return ControlFrame(function, to_all, parsed.payload)
