"""One client's session: what it wants, what is on its way to it, what came from it and is not released. Sans-I/O.

A packet identifier is given when a message is put into the queue, not when it is sent: it is written down in the same
commit, so a message of QoS 2 keeps it over every kill, and its receiver knows it again.
"""

from collections import deque
from typing import Protocol

from gateway.protocols.mqtt.encode import write_ack
from gateway.protocols.mqtt.messages import BrokerMessage, OutgoingPublish
from gateway.protocols.mqtt.numbers import PacketType
from gateway.protocols.mqtt.packets import PublishPacket, SubscriptionRequest, Will

IN_MEMORY = 4_000
"""Messages of a queue that wait in memory; the others of a durable session wait in the store."""
LAST_ID = 65_535


class ClientLine(Protocol):
    """A session's connection, as the session needs it."""

    @property
    def is_5(self) -> bool: ...

    @property
    def window(self) -> int:
        """How many messages may be sent and not acknowledged."""

    @property
    def is_congested(self) -> bool: ...

    def write(self, data: bytes) -> None: ...

    def send(self, out: OutgoingPublish) -> bool:
        """Write a message; False when the client takes none so large, or it has expired."""

    def give_up(self, out: OutgoingPublish) -> None:
        """A message was not sent and never will be."""

    def read_on(self) -> None:
        """More of the session's queue waits in the store."""

    def take_over(self) -> None:
        """Another connection of the same client is there."""


class Subscription:
    """A filter of a session."""

    __slots__ = ("filter", "identifier", "request", "session", "share")

    def __init__(self, session: "MqttSession", request: SubscriptionRequest, identifier: int, share: str) -> None:
        self.session = session
        self.request = request
        self.filter = request.filter
        self.identifier = identifier
        self.share = share


class MqttSession:
    __slots__ = (
        "address",
        "client_id",
        "connection",
        "dropped",
        "durable",
        "ends",
        "expiry",
        "inflight",
        "is_known",
        "is_loading",
        "last_id",
        "loaded",
        "number",
        "pending",
        "queued",
        "queued_bytes",
        "received",
        "received_bytes",
        "sent_before",
        "seq",
        "stored",
        "subscriptions",
        "user",
        "will",
        "will_at",
    )

    def __init__(self, client_id: str, number: int = 0, user: str = "") -> None:
        self.client_id = client_id
        self.number = number
        """In the store; 0: it ends with its connection."""
        self.user = user
        self.address = ""
        self.is_known = False
        """Its user has shown a password or a token."""
        self.durable = number > 0
        self.expiry = 0
        self.ends = 0.0
        """When it does, once nobody is connected."""
        self.connection: ClientLine | None = None
        self.subscriptions: dict[str, Subscription] = {}
        self.inflight: dict[int, OutgoingPublish] = {}
        """Sent and not acknowledged, in order."""
        self.pending: deque[OutgoingPublish] = deque()
        self.queued = 0
        """Messages of QoS 1 and 2 that are not acknowledged, wherever they wait."""
        self.queued_bytes = 0
        self.seq = 0
        """The last that was given."""
        self.stored = 0
        """The last that is in the store for certain."""
        self.loaded = 0
        """The last that is in memory, or was."""
        self.is_loading = False
        self.last_id = 0
        self.received: dict[int, PublishPacket] = {}
        """Messages of QoS 2 that the client has not released."""
        self.received_bytes = 0
        self.sent_before: set[int] = set()
        """Packet identifiers that an earlier connection may have been sent."""
        self.will: Will | None = None
        self.will_at = 0.0
        self.dropped = 0

    @property
    def has_backlog(self) -> bool:
        """Whether something waits in the store that is not in memory."""
        return self.durable and self.loaded < self.stored

    def next_id(self) -> int:
        """An identifier that is not in use: those that wait are the last that were given, and fewer than there are."""
        while True:
            self.last_id = self.last_id % LAST_ID + 1
            if self.last_id not in self.inflight:
                return self.last_id

    def enqueue(self, message: BrokerMessage, qos: int, retain: bool, ids: tuple[int, ...]) -> OutgoingPublish:
        self.seq += 1
        self.queued += 1
        self.queued_bytes += message.size
        return OutgoingPublish(message, qos, retain, ids, self.next_id(), self.seq)

    def offer(self, out: OutgoingPublish) -> None:
        """It is in the store, if it has to be there: send it, or let it wait."""
        if not self.durable:
            self.pending.append(out)
            self.pump()
            return
        self.stored = max(self.stored, out.seq)
        if self.connection is None or self.is_loading or self.loaded != out.seq - 1 or len(self.pending) >= IN_MEMORY:
            return  # it is read from the store when its turn comes
        self.loaded = out.seq
        self.pending.append(out)
        self.pump()

    def pump(self) -> None:
        """Send what may be sent."""
        line = self.connection
        if line is None or self.is_loading:
            return
        pending, inflight, window = self.pending, self.inflight, line.window
        while pending and len(inflight) < window and not line.is_congested:
            out = pending.popleft()
            inflight[out.packet_id] = out
            if out.is_released:
                line.write(write_ack(PacketType.PUBREL, out.packet_id))
            elif not line.send(out):
                del inflight[out.packet_id]
                line.give_up(out)
        if not pending and self.has_backlog:
            self.is_loading = True
            line.read_on()

    def acknowledge(self, out: OutgoingPublish) -> None:
        """It has arrived, or never will."""
        self.inflight.pop(out.packet_id, None)
        self.queued -= 1
        self.queued_bytes -= out.message.size

    def forget_connection(self) -> None:
        """What was sent may have arrived."""
        self.connection = None
        if self.durable:
            self.sent_before.update(self.inflight)
            self.inflight.clear()
            self.pending.clear()
            self.loaded = 0
            self.is_loading = True
