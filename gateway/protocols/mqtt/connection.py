"""One connection: packets of a client to the broker, and what the client is answered. Sans-I/O.

| state | what may come | what makes the next |
|---|---|---|
| opening | CONNECT | its user is known, or has to be looked up |
| checking | what is sent ahead, kept until the next | `checked` |
| accepting | as before | the session is on disk, CONNACK is written |
| live | everything else | DISCONNECT, an error, silence, another connection of the same client |
| closed | nothing | |
"""

from collections.abc import Callable
from enum import Enum
from functools import partial

from gateway.protocols.mqtt.broker import MqttBroker
from gateway.protocols.mqtt.decode import Decoder
from gateway.protocols.mqtt.encode import PINGRESP_BYTES, write, write_ack
from gateway.protocols.mqtt.messages import (
    MessageReleased,
    OutgoingPublish,
    ReceivedDropped,
    ReceivedPut,
    message_of,
)
from gateway.protocols.mqtt.numbers import RETURN_CODES, Level, PacketType, Property, ReasonCode, ReturnCode
from gateway.protocols.mqtt.packets import (
    AckPacket,
    CodecError,
    ConnackPacket,
    ConnectPacket,
    DisconnectPacket,
    MqttPacket,
    PingreqPacket,
    PubCallbackPacket,
    PublishPacket,
    SubackPacket,
    SubscribePacket,
    UnsubackPacket,
    UnsubscribePacket,
    protocol_error,
)
from gateway.protocols.mqtt.properties import Value, with_length, write_all, write_one
from gateway.protocols.mqtt.redirection import write_renewal
from gateway.protocols.mqtt.session import MqttSession
from gateway.protocols.mqtt.texts import SHARED

GRACE = 1.5
"""Of the keep alive, as the specifications have it."""
MAX_REASON = 200
"""Characters of a reason string."""
MAX_REFUSALS = 4
"""Filters of one SUBSCRIBE whose refusal is explained."""
_NOT_ADMITTED = {
    ReasonCode.NOT_AUTHORIZED: "show a user and a password, or a token as the password",
    ReasonCode.BAD_USER_OR_PASSWORD: "there is no such user with this password, and no such token",
    ReasonCode.CLIENT_ID_NOT_VALID: "the session of this client identifier belongs to another user",
}
_REFUSED_VERSION = b"\x20\x03\x00\x84\x00"
_REFUSED_EXTENSION = b"\x20\x02\x00\x01"


class ConnectionState(Enum):
    OPENING = "opening"
    CHECKING = "checking"
    ACCEPTING = "accepting"
    LIVE = "live"
    CLOSED = "closed"


class MqttConnection:
    """`out` is what is to be sent; `state` closed: and then no more."""

    def __init__(
        self,
        broker: MqttBroker,
        address: str,
        *,
        check: Callable[["MqttConnection", ConnectPacket], ReasonCode | None] | None = None,
        referral: Callable[[], tuple[str, bool] | None] | None = None,
        extended: bool = True,
    ) -> None:
        """`check` says who a client is: a reason code, or None when that takes time and `checked` is called then.
        `referral` names another broker that new clients are sent to, and whether for good."""
        self.broker = broker
        self.address = address
        self.state = ConnectionState.OPENING
        self.out: list[bytes] = []
        self.session: MqttSession | None = None
        self.level: Level = Level.V311
        self.is_5 = False
        self.window = broker.config.max_inflight
        self.is_paused = False
        """The shell cannot send as fast."""
        self.heard = broker.now
        self.keep_alive = 0.0
        """Seconds that it may be silent; 0: for ever."""
        self.user = ""
        self.is_known = False
        """Its user has shown a password or a token."""
        self._decoder = Decoder(max_packet=broker.config.max_packet, extended=extended)
        self._check = check
        self._referral = referral
        self._connect: ConnectPacket | None = None
        self._ahead: list[MqttPacket] = []
        self._aliases: dict[int, str] = {}
        self._own_aliases: dict[str, int] = {}
        self._most_aliases = 0
        self._max_packet = 0
        self._wants_reasons = True
        self._unacknowledged = 0
        """Messages of QoS 1 that are on their way to the disk."""
        self._expiry = -1
        self._with_will = True

    def _is_closed(self) -> bool:
        return self.state is ConnectionState.CLOSED

    # For the session.

    @property
    def is_congested(self) -> bool:
        return self.is_paused or self.state is not ConnectionState.LIVE

    def write(self, data: bytes) -> None:
        self.out.append(data)
        self.broker.dirty.add(self)

    def send(self, out: OutgoingPublish) -> bool:
        message, broker = out.message, self.broker
        if message.expires_ms and message.is_expired(broker.now):
            broker.counters.expired += 1
            return False
        if not out.qos and not out.retain and not out.ids and not message.expires_ms and not self._most_aliases:
            data = message.plain(self.is_5)
        else:
            data = self._written(out)
        if self._max_packet and len(data) > self._max_packet:
            broker.counters.dropped += 1
            return False
        broker.counters.delivered += 1
        self.out.append(data)
        broker.dirty.add(self)
        return True

    def _written(self, out: OutgoingPublish) -> bytes:
        alias, with_topic = 0, True
        if self._most_aliases:
            topic = out.message.topic
            alias = self._own_aliases.get(topic, 0)
            with_topic = not alias
            if not alias and len(self._own_aliases) < self._most_aliases:
                alias = self._own_aliases[topic] = len(self._own_aliases) + 1
        return out.message.written(
            self.is_5, out.qos, out.retain, out.dup, out.packet_id, out.ids, self.broker.now, alias, with_topic
        )

    def give_up(self, out: OutgoingPublish) -> None:
        if self.session is not None:
            self.broker.settled(self.session, out)

    def read_on(self) -> None:
        if self.session is not None:
            self.broker.pages.append(self.session)

    def take_over(self) -> None:
        self.session = None
        if self.state is ConnectionState.LIVE:
            self._say_goodbye(ReasonCode.SESSION_TAKEN_OVER)
        self.broker.dirty.add(self)
        self.state = ConnectionState.CLOSED

    # For the shell.

    def receive(self, data: bytes, now: float) -> None:
        broker = self.broker
        broker.now = self.heard = now
        broker.counters.bytes_in += len(data)
        if self._is_closed():
            return
        packets = self._decoder.feed(data)
        try:
            for packet in packets:
                self._take(packet)
                if self._is_closed():
                    return
        except CodecError as error:
            self._fail(error)
            return
        wrong = self._decoder.error
        if wrong is not None:
            self._fail(wrong)

    @property
    def is_waiting(self) -> bool:
        """Whether what it sends ahead should wait with its client."""
        return bool(self._ahead) or self._unacknowledged > 1_000

    def lost(self, now: float) -> None:
        """The connection has ended, whoever ended it."""
        self.broker.now = now
        self.state = ConnectionState.CLOSED
        session, self.session = self.session, None
        if session is not None:
            self.broker.close(session, self, with_will=self._with_will, expiry=self._expiry)

    def tick(self, now: float) -> None:
        """Time has passed."""
        silent = now - self.heard
        if self.state is ConnectionState.LIVE:
            if self.keep_alive and silent > self.keep_alive:
                self.end(ReasonCode.KEEP_ALIVE_TIMEOUT)
        elif silent > self.broker.config.connect_timeout:
            self.state = ConnectionState.CLOSED
            self.broker.dirty.add(self)

    def end(self, reason: ReasonCode, server: str = "") -> None:
        """Let a client go, and say why to those who can be told."""
        if self.state is not ConnectionState.CLOSED:
            self._say_goodbye(reason, server)
            self.state = ConnectionState.CLOSED

    def resume(self) -> None:
        """The shell can send again."""
        self.is_paused = False
        if self.session is not None:
            self.session.pump()

    def checked(self, reason: ReasonCode, now: float) -> None:
        """Who the client is was looked up."""
        self.broker.now = now
        packet = self._connect
        if self.state is ConnectionState.CHECKING and packet is not None:
            self._accept(packet, reason)

    # What comes.

    def _take(self, packet: MqttPacket) -> None:
        if self.state is not ConnectionState.LIVE:
            if self.state is ConnectionState.OPENING and isinstance(packet, ConnectPacket):
                self._open(packet)
            else:
                self._ahead.append(packet)
            return
        session = self.session
        if session is None:
            return
        if isinstance(packet, PublishPacket):
            self._publish(session, packet)
        elif isinstance(packet, AckPacket):
            self._acknowledged(session, packet)
        elif isinstance(packet, PingreqPacket):
            self.write(PINGRESP_BYTES)
        elif isinstance(packet, SubscribePacket):
            self._subscribe(session, packet)
        elif isinstance(packet, UnsubscribePacket):
            self._unsubscribe(session, packet)
        elif isinstance(packet, DisconnectPacket):
            self._disconnect(session, packet)
        elif isinstance(packet, PubCallbackPacket):
            self._call_back(session, packet)

    # CONNECT.

    def _open(self, packet: ConnectPacket) -> None:
        self.level, self.is_5 = packet.version, packet.version == Level.V5
        self._max_packet = packet.maximum_packet
        self._wants_reasons = packet.request_problem
        self._connect = packet
        self.state = ConnectionState.CHECKING
        if packet.authentication_method is not None:
            self._refuse(ReasonCode.BAD_AUTHENTICATION_METHOD)
        elif not packet.client_id and (
            self.level in (Level.V31, Level.EXTENDED) or (self.level == Level.V311 and not packet.clean_start)
        ):
            self._refuse(ReasonCode.CLIENT_ID_NOT_VALID)
        elif self._referral is not None and (elsewhere := self._referral()) is not None:
            self._refer(*elsewhere)
        else:
            reason = ReasonCode.SUCCESS if self._check is None else self._check(self, packet)
            if reason is not None:
                self._accept(packet, reason)

    def _accept(self, packet: ConnectPacket, reason: ReasonCode) -> None:
        if reason is not ReasonCode.SUCCESS:
            self._refuse(reason, _NOT_ADMITTED.get(reason, ""))
            return
        broker, config = self.broker, self.broker.config
        client_id = packet.client_id or broker.new_id()
        opened = broker.open(packet, client_id, self, self.user)
        if opened is None:
            self._refuse(
                ReasonCode.QUOTA_EXCEEDED, f"there are {broker.config.max_sessions} sessions, and may be no more"
            )
            return
        self.session, present = opened
        self.session.address, self.session.is_known = self.address, self.is_known
        self.state = ConnectionState.ACCEPTING
        keep_alive = packet.keep_alive
        properties: list[tuple[Property, Value]] = []
        if self.is_5:
            self.window = min(config.max_inflight, packet.receive_maximum)
            self._most_aliases = min(config.own_aliases, packet.topic_alias_maximum)
            if config.topic_aliases:
                properties.append((Property.TOPIC_ALIAS_MAXIMUM, config.topic_aliases))
            if config.max_keep_alive and keep_alive > config.max_keep_alive:
                keep_alive = config.max_keep_alive
                properties.append((Property.SERVER_KEEP_ALIVE, keep_alive))
            if not packet.client_id:
                properties.append((Property.ASSIGNED_CLIENT_ID, client_id))
            properties.append((Property.MAXIMUM_PACKET_SIZE, config.max_packet))
            properties.append((Property.RECEIVE_MAXIMUM, config.receive_maximum))
        self.keep_alive = keep_alive * GRACE
        written = with_length(write_all(properties)) if self.is_5 else b""
        connack = write(
            ConnackPacket(0, present and self.level not in (Level.V31, Level.EXTENDED), written), self.level
        )
        if self._max_packet and len(connack) > self._max_packet:
            self.state = ConnectionState.CLOSED
            broker.dirty.add(self)
            return
        if self.session.durable or packet.will is not None:
            broker.work.after.append(partial(self._accepted, connack))
        else:
            self._accepted(connack)

    def _accepted(self, connack: bytes) -> None:
        session = self.session
        if self.state is not ConnectionState.ACCEPTING or session is None:
            return
        self.write(connack)
        self.state = ConnectionState.LIVE
        self._connect = None
        self.broker.ready(session)
        ahead, self._ahead = self._ahead, []
        try:
            for packet in ahead:
                self._take(packet)
        except CodecError as error:
            self._fail(error)

    def _refuse(self, reason: ReasonCode, why: str = "") -> None:
        self.broker.counters.refused += 1
        self.state = ConnectionState.CLOSED
        self.broker.dirty.add(self)
        if self.is_5:
            self._explain(why, lambda text: ConnackPacket(reason, properties=_with_reason(text)))
            return
        code = RETURN_CODES.get(reason)
        if code is not None:
            self.write(write(ConnackPacket(code), Level.V311))

    def _refer(self, address: str, is_moved: bool) -> None:
        self.broker.counters.refused += 1
        self.state = ConnectionState.CLOSED
        if self.level == Level.EXTENDED:
            self.write(write_renewal(ReturnCode.RENEW, address))
            return
        reason = ReasonCode.SERVER_MOVED if is_moved else ReasonCode.USE_ANOTHER_SERVER
        if self.is_5:
            where = with_length(write_one(Property.SERVER_REFERENCE, address))
            self.write(write(ConnackPacket(reason, properties=where), Level.V5))
        else:
            self.write(write(ConnackPacket(RETURN_CODES[reason]), Level.V311))

    def send_elsewhere(self, address: str, *, is_moved: bool, is_active: bool) -> None:
        """A client that is connected is to go to another broker; `is_active`: its topics are known there."""
        if self.state is not ConnectionState.LIVE:
            return
        if self.level == Level.EXTENDED:
            self.write(write_renewal(ReturnCode.RENEW_ACTIVE if is_active else ReturnCode.RENEW_TOPICS, address))
            self.state = ConnectionState.CLOSED
        else:
            self.end(ReasonCode.SERVER_MOVED if is_moved else ReasonCode.USE_ANOTHER_SERVER, address)

    # Messages of the client.

    def _publish(self, session: MqttSession, packet: PublishPacket) -> None:
        broker = self.broker
        topic = packet.topic
        if packet.alias:
            if packet.alias > broker.config.topic_aliases:
                raise CodecError(ReasonCode.TOPIC_ALIAS_INVALID, "this topic alias is higher than was said")
            if topic:
                self._aliases[packet.alias] = topic
            else:
                found = self._aliases.get(packet.alias)
                if found is None:
                    raise CodecError(ReasonCode.TOPIC_ALIAS_INVALID, "nobody knows this topic alias")
                topic = found
        qos = packet.qos
        refusal = None if broker.gate is None else broker.gate.may_publish(session, topic)
        if refusal is not None:
            broker.counters.denied += 1
            self._deny(packet, refusal)
            return
        if not qos:
            broker.publish(message_of(packet, topic, session, broker.now))
            return
        pending = len(session.received) + self._unacknowledged
        if self.is_5 and packet.packet_id not in session.received and pending >= broker.config.receive_maximum:
            raise CodecError(ReasonCode.RECEIVE_MAXIMUM_EXCEEDED, "more is not acknowledged than may be")
        if qos == 1:
            self._unacknowledged += 1
            broker.publish(message_of(packet, topic, session, broker.now), partial(self._published, packet.packet_id))
            return
        self._receive_2(session, packet, topic)

    def _published(self, packet_id: int, count: int) -> None:
        self._unacknowledged -= 1
        if self.state is ConnectionState.LIVE:
            reason = ReasonCode.NO_MATCHING_SUBSCRIBERS if self.is_5 and not count else 0
            self.write(write_ack(PacketType.PUBACK, packet_id, reason))

    def _receive_2(self, session: MqttSession, packet: PublishPacket, topic: str) -> None:
        """Keep it until it is released."""
        broker = self.broker
        if packet.packet_id not in session.received:
            size = len(packet.payload) + len(topic)
            if session.received_bytes + size > broker.config.max_received_bytes:
                raise CodecError(ReasonCode.QUOTA_EXCEEDED, "too much of QoS 2 is not released")
            kept = PublishPacket(
                topic,
                packet.payload,
                2,
                packet.retain,
                packet_id=packet.packet_id,
                properties=packet.properties,
                expiry=packet.expiry,
            )
            session.received[packet.packet_id] = kept
            session.received_bytes += size
            if session.durable:
                broker.work.ops.append(ReceivedPut(session.number, packet.packet_id, write(kept, Level.V5)))
        self._answer(session, write_ack(PacketType.PUBREC, packet.packet_id))

    def _answer(self, session: MqttSession, data: bytes) -> None:
        """Once what came before it is on disk."""
        if session.durable:
            self.broker.work.after.append(partial(self._write_live, data))
        else:
            self.write(data)

    def _write_live(self, data: bytes) -> None:
        if self.state is ConnectionState.LIVE:
            self.write(data)

    def _release(self, session: MqttSession, packet_id: int) -> None:
        broker = self.broker
        kept = session.received.pop(packet_id, None)
        if kept is None:
            self._answer(session, write_ack(PacketType.PUBCOMP, packet_id))
            return
        session.received_bytes -= len(kept.payload) + len(kept.topic)
        if session.durable:
            broker.work.ops.append(ReceivedDropped(session.number, packet_id))

        def complete(_count: int) -> None:
            self._write_live(write_ack(PacketType.PUBCOMP, packet_id))

        broker.publish(message_of(kept, kept.topic, session, broker.now), complete)

    def _deny(self, packet: PublishPacket, why: str) -> None:
        if not packet.qos:
            return
        kind = PacketType.PUBACK if packet.qos == 1 else PacketType.PUBREC
        if not self.is_5:
            self.write(write_ack(kind, packet.packet_id))  # 3.1.1 can say no other
            return
        self._explain(why, lambda text: AckPacket(kind, packet.packet_id, ReasonCode.NOT_AUTHORIZED, text))

    # Acknowledgements of the client.

    def _acknowledged(self, session: MqttSession, packet: AckPacket) -> None:
        kind, packet_id = packet.kind, packet.packet_id
        if kind is PacketType.PUBREL:
            self._release(session, packet_id)
            return
        out = session.inflight.get(packet_id)
        if kind is PacketType.PUBACK:
            if out is None:
                return
            if out.qos != 1:
                raise protocol_error("PUBACK for a message of QoS 2")
            self.broker.settled(session, out)
            session.pump()
        elif kind is PacketType.PUBREC:
            self._received_by_client(session, packet, out)
        else:
            if out is None:
                return
            if not out.is_released:
                raise protocol_error("PUBCOMP before PUBREC")
            self.broker.settled(session, out)
            session.pump()

    def _received_by_client(self, session: MqttSession, packet: AckPacket, out: OutgoingPublish | None) -> None:
        if out is not None and out.qos != 2:
            raise protocol_error("PUBREC for a message of QoS 1")
        if packet.reason >= 0x80:
            if out is not None:
                self.broker.settled(session, out)
                session.pump()
            return
        if out is not None and not out.is_released:
            out.is_released = True
            if session.durable:
                self.broker.work.ops.append(MessageReleased(session.number, out.seq))
        self._answer(session, write_ack(PacketType.PUBREL, packet.packet_id))

    # Subscriptions.

    def _subscribe(self, session: MqttSession, packet: SubscribePacket) -> None:
        broker = self.broker
        reasons: list[int] = []
        refusals: list[str] = []
        retained = []
        for request in packet.wanted:
            is_new = request.filter not in session.subscriptions
            reason, why = broker.subscribe(session, request, packet.subscription_id)
            if why and len(refusals) < MAX_REFUSALS:
                refusals.append(f"{request.filter}: {why}" if len(packet.wanted) > 1 else why)
            reasons.append(reason if self.is_5 or reason < 0x80 else 0x80)
            is_told = request.retain_handling == 0 or (request.retain_handling == 1 and is_new)
            if reason < 0x80 and is_told and not request.filter.startswith(SHARED):
                retained.append(request)
        suback = self._explained("; ".join(refusals), lambda text: SubackPacket(packet.packet_id, tuple(reasons), text))

        def done() -> None:
            if self.state is ConnectionState.LIVE:
                self.write(suback)
                for request in retained:
                    broker.send_retained(session, request, packet.subscription_id)

        if session.durable:
            broker.work.after.append(done)
        else:
            done()

    def _unsubscribe(self, session: MqttSession, packet: UnsubscribePacket) -> None:
        reasons = tuple(self.broker.unsubscribe(session, wanted) for wanted in packet.filters)
        self._answer(session, write(UnsubackPacket(packet.packet_id, reasons), self.level))

    # Endings.

    def _disconnect(self, session: MqttSession, packet: DisconnectPacket) -> None:
        if packet.session_expiry > 0 and not session.expiry:
            raise protocol_error("a session that was to end with its connection cannot be prolonged")
        self._expiry = packet.session_expiry
        self._with_will = packet.reason != ReasonCode.SUCCESS
        self.state = ConnectionState.CLOSED
        self.broker.dirty.add(self)

    def _explain(self, why: str, refusal: Callable[[str], MqttPacket]) -> None:
        self.write(self._explained(why, refusal))

    def _explained(self, why: str, refusal: Callable[[str], MqttPacket]) -> bytes:
        """A refusal that says why, if the client wants to know and takes a packet of that size."""
        if why and self.is_5 and self._wants_reasons:
            written = write(refusal(" ".join(why.split())[:MAX_REASON]), Level.V5)
            if not self._max_packet or len(written) <= self._max_packet:
                return written
        return write(refusal(""), self.level)

    def _fail(self, error: CodecError) -> None:
        counters = self.broker.counters
        counters.errors += 1
        name = error.reason.name.lower()
        counters.by_reason[name] = counters.by_reason.get(name, 0) + 1
        was, self.state = self.state, ConnectionState.CLOSED
        self.broker.dirty.add(self)
        if error.silent:
            return
        if was is ConnectionState.LIVE:
            self._say_goodbye(error.reason)
        elif was is ConnectionState.OPENING:
            if error.reason is ReasonCode.UNSUPPORTED_VERSION:
                self.write(_REFUSED_EXTENSION if self._decoder.asked == Level.EXTENDED else _REFUSED_VERSION)
            elif self._decoder.level == Level.V5:
                self.write(write(ConnackPacket(error.reason), Level.V5))

    def _say_goodbye(self, reason: ReasonCode, server: str = "") -> None:
        self.broker.dirty.add(self)
        if self.is_5 and self.state is not ConnectionState.OPENING:
            self.write(write(DisconnectPacket(reason, server_reference=server), Level.V5))

    def _call_back(self, session: MqttSession, packet: PubCallbackPacket) -> None:
        """Hand the inner packet to those who are named and connected, byte by byte as it came: one PUBLISH of QoS 0
        that its sender may publish, and nothing behind it."""
        broker = self.broker
        reader = Decoder(server=False, level=Level.V31, max_packet=broker.config.max_packet)
        inner = reader.feed(packet.inner)
        if reader.error is not None or reader.waiting or len(inner) != 1 or not isinstance(inner[0], PublishPacket):
            raise protocol_error("behind the callbacks stands one whole PUBLISH")
        if inner[0].qos or not broker.config.relays_callbacks:
            raise protocol_error("packets for others are of QoS 0, and the operator allows them")
        if broker.gate is not None and broker.gate.may_publish(session, inner[0].topic) is not None:
            broker.counters.denied += 1
            return
        for client_id in packet.callbacks:
            other = broker.sessions.get(client_id)
            line = None if other is None else other.connection
            if line is not None and not line.is_5 and not line.is_congested:
                line.write(packet.inner)


def _with_reason(text: str) -> bytes:
    return with_length(write_one(Property.REASON_STRING, text)) if text else b""
