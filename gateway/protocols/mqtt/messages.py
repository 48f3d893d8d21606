"""Messages on their way through the broker, and what has to be written down of it. Sans-I/O.

Whatever must outlive the process goes into a `WorkGroup`: the shell commits it in one transaction and then calls what
is to happen `after`, in order. Nothing is acknowledged before.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from msgspec import Struct

from gateway.protocols.mqtt.encode import publish_first, write_publish
from gateway.protocols.mqtt.numbers import Property
from gateway.protocols.mqtt.packets import PublishPacket
from gateway.protocols.mqtt.properties import NONE, string, with_length, write_one

if TYPE_CHECKING:
    from gateway.protocols.mqtt.session import MqttSession

MS = 1000


class BrokerMessage:
    """What was published, once for all who get it."""

    __slots__ = (
        "_head",
        "_plain",
        "_plain_5",
        "expires_ms",
        "payload",
        "position",
        "properties",
        "publisher",
        "qos",
        "retain",
        "topic",
    )

    def __init__(
        self,
        topic: str,
        payload: bytes,
        qos: int = 0,
        retain: bool = False,
        properties: bytes = b"",
        expires_ms: int = 0,
        publisher: "MqttSession | None" = None,
        position: int = 0,
    ) -> None:
        self.topic = topic
        self.payload = payload
        self.qos = qos
        self.retain = retain
        self.properties = properties
        self.expires_ms = expires_ms
        """Wall clock; 0: never."""
        self.publisher = publisher
        self.position = position
        """In the log; 0: it is not there, or not yet."""
        self._head = b""
        self._plain = b""
        self._plain_5 = b""

    @property
    def size(self) -> int:
        return len(self.payload) + len(self.topic) + len(self.properties)

    def is_expired(self, now: float) -> bool:
        return bool(self.expires_ms) and self.expires_ms <= now * MS

    def plain(self, is_5: bool) -> bytes:
        """As most get it: QoS 0, not retained, without properties of the subscription or of time."""
        if is_5:
            if not self._plain_5:
                self._plain_5 = write_publish(0x30, self.head, b"", with_length(self.properties), self.payload)
            return self._plain_5
        if not self._plain:
            self._plain = write_publish(0x30, self.head, b"", b"", self.payload)
        return self._plain

    @property
    def head(self) -> bytes:
        """The topic with its length."""
        if not self._head:
            self._head = string(self.topic)
        return self._head

    def written(
        self,
        is_5: bool,
        qos: int,
        retain: bool,
        dup: bool,
        packet_id: int,
        ids: tuple[int, ...],
        now: float,
        alias: int = 0,
        with_topic: bool = True,
    ) -> bytes:
        first = publish_first(qos, retain, dup)
        number = packet_id.to_bytes(2) if qos else b""
        if not is_5:
            return write_publish(first, self.head, number, b"", self.payload)
        properties = self.properties
        if ids:
            properties = b"".join(write_one(Property.SUBSCRIPTION_ID, one) for one in ids) + properties
        if alias:
            properties = write_one(Property.TOPIC_ALIAS, alias) + properties
        if self.expires_ms:
            left = max(1, -(-(self.expires_ms - int(now * MS)) // MS))
            properties += write_one(Property.MESSAGE_EXPIRY, left)
        written = with_length(properties) if properties else NONE
        return write_publish(first, self.head if with_topic else NONE + NONE, number, written, self.payload)


def message_of(packet: PublishPacket, topic: str, publisher: "MqttSession | None", now: float) -> BrokerMessage:
    expires = 0 if packet.expiry < 0 else max(1, int(now * MS) + packet.expiry * MS)
    return BrokerMessage(topic, packet.payload, packet.qos, packet.retain, packet.properties, expires, publisher)


class OutgoingPublish:
    """A message for one session, until it is acknowledged."""

    __slots__ = ("dup", "ids", "is_released", "message", "packet_id", "qos", "retain", "seq")

    def __init__(
        self,
        message: BrokerMessage,
        qos: int,
        retain: bool,
        ids: tuple[int, ...],
        packet_id: int = 0,
        seq: int = 0,
    ) -> None:
        self.message = message
        self.qos = qos
        self.retain = retain
        self.ids = ids
        self.packet_id = packet_id
        self.seq = seq
        """Its place in the session's queue."""
        self.dup = False
        self.is_released = False
        """PUBREC has come."""


# What is written down.


class SessionPut(Struct, frozen=True):
    number: int
    client_id: str
    expiry: int
    ends: float
    """0: it is connected."""
    user: str


class SessionDropped(Struct, frozen=True):
    number: int


class SubscriptionPut(Struct, frozen=True):
    number: int
    filter: str
    options: int
    identifier: int


class SubscriptionDropped(Struct, frozen=True):
    number: int
    filter: str


class MessageAcked(Struct, frozen=True):
    number: int
    seq: int
    position: int


class MessageReleased(Struct, frozen=True):
    number: int
    seq: int


class ReceivedPut(Struct, frozen=True):
    """A message of QoS 2 that is here and not released."""

    number: int
    packet_id: int
    packet: bytes


class ReceivedDropped(Struct, frozen=True):
    number: int
    packet_id: int


class RetainedDropped(Struct, frozen=True):
    topic: str


class WillPut(Struct, frozen=True):
    client_id: str
    packet: bytes
    delay: int


class WillDue(Struct, frozen=True):
    client_id: str
    at: float


class WillDropped(Struct, frozen=True):
    client_id: str


StoreOp = (
    SessionPut
    | SessionDropped
    | SubscriptionPut
    | SubscriptionDropped
    | MessageAcked
    | MessageReleased
    | ReceivedPut
    | ReceivedDropped
    | RetainedDropped
    | WillPut
    | WillDue
    | WillDropped
)


@dataclass(slots=True)
class EnteringMessage:
    """A message that is put into the log, with those who are to have it for certain."""

    message: BrokerMessage
    targets: "list[tuple[MqttSession, OutgoingPublish]]" = field(default_factory=list)
    is_new: bool = True
    """It is not in the log yet."""
    is_retained: bool = False
    """It takes the place of what was retained, which an empty one only ends."""
    mark: tuple[str, int] | None = None
    """How far its item has been taken from the log."""


@dataclass(slots=True)
class WorkGroup:
    entering: list[EnteringMessage] = field(default_factory=list)
    ops: list[StoreOp] = field(default_factory=list)
    after: list[Callable[[], None]] = field(default_factory=list)

    @property
    def is_empty(self) -> bool:
        return not (self.entering or self.ops or self.after)
