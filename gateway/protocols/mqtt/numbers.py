"""The numbers of MQTT 3.1, 3.1.1 and 5.0, with names. No I/O."""

from enum import IntEnum
from typing import Final

MAX_VARINT: Final = 268_435_455
MAX_STRING: Final = 65_535
NEVER: Final = 0xFFFFFFFF
"""A session expiry interval that does not end."""


class Level(IntEnum):
    """The protocol level of CONNECT."""

    V31 = 3
    V311 = 4
    V5 = 5
    EXTENDED = 0xFF
    """3.1 of a client that understands the redirection extension."""


NAMES: Final = {
    b"MQIsdp": (Level.V31, Level.EXTENDED),
    b"MQTT": (Level.V311, Level.V5),
}


class PacketType(IntEnum):
    """The type of a packet."""

    CONNECT = 1
    CONNACK = 2
    PUBLISH = 3
    PUBACK = 4
    PUBREC = 5
    PUBREL = 6
    PUBCOMP = 7
    SUBSCRIBE = 8
    SUBACK = 9
    UNSUBSCRIBE = 10
    UNSUBACK = 11
    PINGREQ = 12
    PINGRESP = 13
    DISCONNECT = 14
    AUTH = 15
    """In 5.0. On sessions of the extension to 3.1 it is PUBCALLBACK*."""


class ReasonCode(IntEnum):
    """ReasonCode codes of 5.0."""

    SUCCESS = 0x00
    GRANTED_1 = 0x01
    GRANTED_2 = 0x02
    DISCONNECT_WITH_WILL = 0x04
    NO_MATCHING_SUBSCRIBERS = 0x10
    NO_SUBSCRIPTION_EXISTED = 0x11
    CONTINUE_AUTHENTICATION = 0x18
    REAUTHENTICATE = 0x19
    UNSPECIFIED_ERROR = 0x80
    MALFORMED_PACKET = 0x81
    PROTOCOL_ERROR = 0x82
    IMPLEMENTATION_SPECIFIC = 0x83
    UNSUPPORTED_VERSION = 0x84
    CLIENT_ID_NOT_VALID = 0x85
    BAD_USER_OR_PASSWORD = 0x86
    NOT_AUTHORIZED = 0x87
    SERVER_UNAVAILABLE = 0x88
    SERVER_BUSY = 0x89
    BANNED = 0x8A
    SERVER_SHUTTING_DOWN = 0x8B
    BAD_AUTHENTICATION_METHOD = 0x8C
    KEEP_ALIVE_TIMEOUT = 0x8D
    SESSION_TAKEN_OVER = 0x8E
    TOPIC_FILTER_INVALID = 0x8F
    TOPIC_NAME_INVALID = 0x90
    PACKET_ID_IN_USE = 0x91
    PACKET_ID_NOT_FOUND = 0x92
    RECEIVE_MAXIMUM_EXCEEDED = 0x93
    TOPIC_ALIAS_INVALID = 0x94
    PACKET_TOO_LARGE = 0x95
    MESSAGE_RATE_TOO_HIGH = 0x96
    QUOTA_EXCEEDED = 0x97
    ADMINISTRATIVE_ACTION = 0x98
    PAYLOAD_FORMAT_INVALID = 0x99
    RETAIN_NOT_SUPPORTED = 0x9A
    QOS_NOT_SUPPORTED = 0x9B
    USE_ANOTHER_SERVER = 0x9C
    SERVER_MOVED = 0x9D
    SHARED_NOT_SUPPORTED = 0x9E
    CONNECTION_RATE_EXCEEDED = 0x9F
    MAXIMUM_CONNECT_TIME = 0xA0
    SUBSCRIPTION_IDS_NOT_SUPPORTED = 0xA1
    WILDCARDS_NOT_SUPPORTED = 0xA2


class ReturnCode(IntEnum):
    """CONNACK of 3.1 and 3.1.1, and of the extension."""

    ACCEPTED = 0
    UNACCEPTABLE_VERSION = 1
    IDENTIFIER_REJECTED = 2
    SERVER_UNAVAILABLE = 3
    BAD_USER_OR_PASSWORD = 4
    NOT_AUTHORIZED = 5
    RENEW = 6
    """Extension: the address of another broker follows."""
    RENEW_ACTIVE = 7
    """Extension: go to the other broker, where your topics are active already."""
    RENEW_TOPICS = 8
    """Extension: go to the other broker, and subscribe again."""


RETURN_CODES: Final = {
    ReasonCode.SUCCESS: ReturnCode.ACCEPTED,
    ReasonCode.UNSUPPORTED_VERSION: ReturnCode.UNACCEPTABLE_VERSION,
    ReasonCode.CLIENT_ID_NOT_VALID: ReturnCode.IDENTIFIER_REJECTED,
    ReasonCode.SERVER_UNAVAILABLE: ReturnCode.SERVER_UNAVAILABLE,
    ReasonCode.SERVER_BUSY: ReturnCode.SERVER_UNAVAILABLE,
    ReasonCode.QUOTA_EXCEEDED: ReturnCode.SERVER_UNAVAILABLE,
    ReasonCode.USE_ANOTHER_SERVER: ReturnCode.SERVER_UNAVAILABLE,
    ReasonCode.SERVER_MOVED: ReturnCode.SERVER_UNAVAILABLE,
    ReasonCode.BAD_USER_OR_PASSWORD: ReturnCode.BAD_USER_OR_PASSWORD,
    ReasonCode.NOT_AUTHORIZED: ReturnCode.NOT_AUTHORIZED,
}
"""How those who know no reason codes are told of a refused CONNECT; others are told nothing."""


class Property(IntEnum):
    PAYLOAD_FORMAT = 0x01
    MESSAGE_EXPIRY = 0x02
    CONTENT_TYPE = 0x03
    RESPONSE_TOPIC = 0x08
    CORRELATION_DATA = 0x09
    SUBSCRIPTION_ID = 0x0B
    SESSION_EXPIRY = 0x11
    ASSIGNED_CLIENT_ID = 0x12
    SERVER_KEEP_ALIVE = 0x13
    AUTHENTICATION_METHOD = 0x15
    AUTHENTICATION_DATA = 0x16
    REQUEST_PROBLEM = 0x17
    WILL_DELAY = 0x18
    REQUEST_RESPONSE = 0x19
    RESPONSE_INFORMATION = 0x1A
    SERVER_REFERENCE = 0x1C
    REASON_STRING = 0x1F
    RECEIVE_MAXIMUM = 0x21
    TOPIC_ALIAS_MAXIMUM = 0x22
    TOPIC_ALIAS = 0x23
    MAXIMUM_QOS = 0x24
    RETAIN_AVAILABLE = 0x25
    USER_PROPERTY = 0x26
    MAXIMUM_PACKET_SIZE = 0x27
    WILDCARD_AVAILABLE = 0x28
    SUBSCRIPTION_ID_AVAILABLE = 0x29
    SHARED_AVAILABLE = 0x2A


class Form(IntEnum):
    """How a property's value is written."""

    BYTE = 0
    TWO_BYTES = 1
    FOUR_BYTES = 2
    VARINT = 3
    STRING = 4
    BINARY = 5
    PAIR = 6


_P = Property
FORMS: Final[dict[int, Form]] = {
    **dict.fromkeys(
        (
            _P.PAYLOAD_FORMAT,
            _P.REQUEST_PROBLEM,
            _P.REQUEST_RESPONSE,
            _P.MAXIMUM_QOS,
            _P.RETAIN_AVAILABLE,
            _P.WILDCARD_AVAILABLE,
            _P.SUBSCRIPTION_ID_AVAILABLE,
            _P.SHARED_AVAILABLE,
        ),
        Form.BYTE,
    ),
    **dict.fromkeys((_P.SERVER_KEEP_ALIVE, _P.RECEIVE_MAXIMUM, _P.TOPIC_ALIAS_MAXIMUM, _P.TOPIC_ALIAS), Form.TWO_BYTES),
    **dict.fromkeys(
        (_P.MESSAGE_EXPIRY, _P.SESSION_EXPIRY, _P.WILL_DELAY, _P.MAXIMUM_PACKET_SIZE),
        Form.FOUR_BYTES,
    ),
    _P.SUBSCRIPTION_ID: Form.VARINT,
    **dict.fromkeys(
        (
            _P.CONTENT_TYPE,
            _P.RESPONSE_TOPIC,
            _P.ASSIGNED_CLIENT_ID,
            _P.AUTHENTICATION_METHOD,
            _P.RESPONSE_INFORMATION,
            _P.SERVER_REFERENCE,
            _P.REASON_STRING,
        ),
        Form.STRING,
    ),
    **dict.fromkeys((_P.CORRELATION_DATA, _P.AUTHENTICATION_DATA), Form.BINARY),
    _P.USER_PROPERTY: Form.PAIR,
}

WILL: Final = 0
"""Stands for the will's properties among kinds of packets."""
_ACK = frozenset({_P.REASON_STRING, _P.USER_PROPERTY})
_MESSAGE = frozenset(
    {
        _P.PAYLOAD_FORMAT,
        _P.MESSAGE_EXPIRY,
        _P.CONTENT_TYPE,
        _P.RESPONSE_TOPIC,
        _P.CORRELATION_DATA,
        _P.USER_PROPERTY,
    }
)
ALLOWED: Final[dict[int, frozenset[int]]] = {
    WILL: frozenset({_P.WILL_DELAY, *_MESSAGE}),
    PacketType.CONNECT: frozenset(
        {
            _P.SESSION_EXPIRY,
            _P.AUTHENTICATION_METHOD,
            _P.AUTHENTICATION_DATA,
            _P.REQUEST_PROBLEM,
            _P.REQUEST_RESPONSE,
            _P.RECEIVE_MAXIMUM,
            _P.TOPIC_ALIAS_MAXIMUM,
            _P.USER_PROPERTY,
            _P.MAXIMUM_PACKET_SIZE,
        }
    ),
    PacketType.CONNACK: frozenset(
        {
            _P.SESSION_EXPIRY,
            _P.ASSIGNED_CLIENT_ID,
            _P.SERVER_KEEP_ALIVE,
            _P.AUTHENTICATION_METHOD,
            _P.AUTHENTICATION_DATA,
            _P.RESPONSE_INFORMATION,
            _P.SERVER_REFERENCE,
            _P.REASON_STRING,
            _P.RECEIVE_MAXIMUM,
            _P.TOPIC_ALIAS_MAXIMUM,
            _P.MAXIMUM_QOS,
            _P.RETAIN_AVAILABLE,
            _P.USER_PROPERTY,
            _P.MAXIMUM_PACKET_SIZE,
            _P.WILDCARD_AVAILABLE,
            _P.SUBSCRIPTION_ID_AVAILABLE,
            _P.SHARED_AVAILABLE,
        }
    ),
    PacketType.PUBLISH: frozenset({_P.TOPIC_ALIAS, _P.SUBSCRIPTION_ID, *_MESSAGE}),
    PacketType.PUBACK: _ACK,
    PacketType.PUBREC: _ACK,
    PacketType.PUBREL: _ACK,
    PacketType.PUBCOMP: _ACK,
    PacketType.SUBSCRIBE: frozenset({_P.SUBSCRIPTION_ID, _P.USER_PROPERTY}),
    PacketType.SUBACK: _ACK,
    PacketType.UNSUBSCRIBE: frozenset({_P.USER_PROPERTY}),
    PacketType.UNSUBACK: _ACK,
    PacketType.DISCONNECT: frozenset({_P.SESSION_EXPIRY, _P.SERVER_REFERENCE, *_ACK}),
    PacketType.AUTH: frozenset({_P.AUTHENTICATION_METHOD, _P.AUTHENTICATION_DATA, *_ACK}),
}
"""Which packet may have which."""
REPEATABLE: Final = frozenset({_P.USER_PROPERTY})
FORWARDED: Final = _MESSAGE - {_P.MESSAGE_EXPIRY}
"""What a subscriber gets as the publisher wrote it."""

_R = ReasonCode
ACK_REASONS: Final[dict[int, frozenset[int]]] = {
    **dict.fromkeys(
        (PacketType.PUBACK, PacketType.PUBREC),
        frozenset(
            {
                _R.SUCCESS,
                _R.NO_MATCHING_SUBSCRIBERS,
                _R.UNSPECIFIED_ERROR,
                _R.IMPLEMENTATION_SPECIFIC,
                _R.NOT_AUTHORIZED,
                _R.TOPIC_NAME_INVALID,
                _R.PACKET_ID_IN_USE,
                _R.QUOTA_EXCEEDED,
                _R.PAYLOAD_FORMAT_INVALID,
            }
        ),
    ),
    **dict.fromkeys((PacketType.PUBREL, PacketType.PUBCOMP), frozenset({_R.SUCCESS, _R.PACKET_ID_NOT_FOUND})),
}
