"""Numbers of the control plane: which function a message is for, and how a request ended."""

from enum import IntEnum, IntFlag

from psirp_stack.wire.numbers import ID_BYTES


class Function(IntEnum):
    """Who a control message is for at the node it reaches: the last byte of the control scope it travels under."""

    RENDEZVOUS = 0xFF
    TOPOLOGY = 0xFE
    NODE = 0xFD
    """Answers and events for the node itself."""
    LINK_STATE = 0xFB
    """Hellos and link states: one hop, under the all-ones filter."""
    RELAY = 0xFA
    """A control frame that a node on the way is to send on (`relay_frames.py`)."""
    RELAY_DATA = 0xF9
    """The same for frames of publications, which do not go before others in queues."""
    PULL = 0xF8
    """Asks for versions, once; a node on the way that has them answers (`pull/`)."""
    PULLED = 0xF7
    """What was asked for; in queues it is no better than other publications."""


CONTROL_PREFIX = b"\xff" * (ID_BYTES - 1)


def control_scope(function: Function) -> bytes:
    """The scope id of the frames that carry messages for a function."""
    return CONTROL_PREFIX + bytes((function,))


class ServiceRole(IntFlag):
    """What a node does for the others beside forwarding; bits of `LinkState.roles`."""

    RENDEZVOUS = 1
    TOPOLOGY = 2


class Code(IntEnum):
    """How a request ended. 0 to 10 are the ancestor's, which kept them to itself; ours reach the caller, by name."""

    SUCCESS = 0
    WRONG_IDS = 1
    STRATEGY_MISMATCH = 2
    EXISTS = 3
    FATHER_DOES_NOT_EXIST = 4
    ITEM_WITH_SAME_ID = 5
    SCOPE_DOES_NOT_EXIST = 6
    SCOPE_WITH_SAME_ID = 7
    ITEM_DOES_NOT_EXIST = 8
    DOES_NOT_EXIST = 9
    UNKNOWN_REQUEST = 10
    NOT_ALLOWED = 11
    """The scope is restricted and this key is not among those who may."""
    BAD_SIGNATURE = 12
    """The credential is missing, expired, replayed or wrong."""
    LIMIT_REACHED = 13
    NOT_EMPTY = 14
    """A scope that still holds scopes cannot be unpublished."""
    UNREACHABLE = 15
    """No path leads there, or nobody answered in time."""
    FILTER_TOO_FULL = 16
    NO_RENDEZVOUS = 17
    """No node with the rendezvous role is known."""
    SCHEME_MISMATCH = 18
    """The other side names topics by another scheme or hash."""
    TOO_LARGE = 19
    GONE = 20
    """The version asked for is no longer retained."""
    OUT_OF_STEP = 21
    """The rendezvous does not know what this node declared: declare everything again."""
