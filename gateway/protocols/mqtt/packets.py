"""Packets as values, and what can be wrong with bytes that should be one. No I/O."""

from typing import Final

from msgspec import Struct

from gateway.protocols.mqtt.numbers import Level, PacketType, ReasonCode

Pair = tuple[str, str]


class CodecError(Exception):
    """Bytes that are no packet, or one that may not be there.

    `silent`: the connection is closed without a word, as the specifications have it where no packet can be answered.
    """

    def __init__(self, reason: ReasonCode, text: str, *, silent: bool = False) -> None:
        super().__init__(text)
        self.reason = reason
        self.silent = silent


def malformed(text: str) -> CodecError:
    return CodecError(ReasonCode.MALFORMED_PACKET, text)


def protocol_error(text: str) -> CodecError:
    return CodecError(ReasonCode.PROTOCOL_ERROR, text)


class PublishPacket(Struct, frozen=True):
    topic: str
    """Empty: see `alias`."""
    payload: bytes
    qos: int = 0
    retain: bool = False
    dup: bool = False
    packet_id: int = 0
    properties: bytes = b""
    """Those that subscribers get as they are, in the order of the publisher."""
    alias: int = 0
    expiry: int = -1
    """Seconds; -1: never."""
    subscription_ids: tuple[int, ...] = ()
    """Only of a server."""


class Will(Struct, frozen=True):
    message: PublishPacket
    delay: int = 0


class ConnectPacket(Struct, frozen=True):
    client_id: str
    version: Level = Level.V311
    clean_start: bool = True
    keep_alive: int = 0
    will: Will | None = None
    user: str | None = None
    password: bytes | None = None
    session_expiry: int = 0
    receive_maximum: int = 65_535
    maximum_packet: int = 0
    """0: none."""
    topic_alias_maximum: int = 0
    request_problem: bool = True
    authentication_method: str | None = None
    authentication_data: bytes = b""
    user_properties: tuple[Pair, ...] = ()


class ConnackPacket(Struct, frozen=True):
    reason: int
    """A return code up to 3.1.1, a reason code in 5.0."""
    session_present: bool = False
    properties: bytes = b""
    address: str | None = None
    """Of the extension to 3.1: where to go."""


class AckPacket(Struct, frozen=True):
    """PUBACK, PUBREC, PUBREL or PUBCOMP."""

    kind: PacketType
    packet_id: int
    reason: int = 0
    text: str = ""
    """The reason string."""


class SubscriptionRequest(Struct, frozen=True):
    """A filter in a SUBSCRIBE, with its options."""

    filter: str
    qos: int = 0
    no_local: bool = False
    retain_as_published: bool = False
    retain_handling: int = 0


class SubscribePacket(Struct, frozen=True):
    packet_id: int
    wanted: tuple[SubscriptionRequest, ...]
    subscription_id: int = 0


class SubackPacket(Struct, frozen=True):
    packet_id: int
    reasons: tuple[int, ...]
    text: str = ""


class UnsubscribePacket(Struct, frozen=True):
    packet_id: int
    filters: tuple[str, ...]


class UnsubackPacket(Struct, frozen=True):
    packet_id: int
    reasons: tuple[int, ...] = ()


class PingreqPacket(Struct, frozen=True):
    pass


class PingrespPacket(Struct, frozen=True):
    pass


class DisconnectPacket(Struct, frozen=True):
    reason: int = 0
    session_expiry: int = -1
    """-1: as CONNECT said."""
    server_reference: str = ""


class AuthPacket(Struct, frozen=True):
    reason: int = 0
    method: str | None = None
    data: bytes = b""


class PubCallbackPacket(Struct, frozen=True):
    """Of the extension to 3.1: a packet for others, who are named."""

    callbacks: tuple[str, ...]
    inner: bytes
    """A whole PUBLISH, not taken apart."""


MqttPacket = (
    PublishPacket
    | ConnectPacket
    | ConnackPacket
    | AckPacket
    | SubscribePacket
    | SubackPacket
    | UnsubscribePacket
    | UnsubackPacket
    | PingreqPacket
    | PingrespPacket
    | DisconnectPacket
    | AuthPacket
    | PubCallbackPacket
)
PINGRESP: Final = PingrespPacket()
