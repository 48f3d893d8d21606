"""Bytes to packets, with every rule of the specifications that a packet can break by itself. Sans-I/O.

    decoder = Decoder()                    # of a broker; `Decoder(server=False)` reads what brokers send
    for packet in decoder.feed(data): ...
    if decoder.error is not None: ...      # what came behind those packets is no packet: this is the end

What a subscriber is not told is not taken apart: properties of a PUBLISH that are passed on stay as bytes.
"""

from collections.abc import Callable
from typing import Final

from gateway.protocols.mqtt.numbers import (
    ACK_REASONS,
    NAMES,
    WILL,
    Level,
    PacketType,
    Property,
    ReasonCode,
)
from gateway.protocols.mqtt.packets import (
    PINGRESP,
    AckPacket,
    AuthPacket,
    CodecError,
    ConnackPacket,
    ConnectPacket,
    DisconnectPacket,
    MqttPacket,
    PingreqPacket,
    PublishPacket,
    SubackPacket,
    SubscribePacket,
    SubscriptionRequest,
    UnsubackPacket,
    UnsubscribePacket,
    Will,
    malformed,
    protocol_error,
)
from gateway.protocols.mqtt.properties import (
    EMPTY,
    PropertySet,
    read_binary,
    read_properties,
    read_text,
)
from gateway.protocols.mqtt.redirection import read_callback
from gateway.protocols.mqtt.texts import check_filter, split_shared, text_of, topic_of

MAX_PACKET: Final = 268_435_455 + 5
TOPICS_KEPT: Final = 4_096
_PINGREQ: Final = PingreqPacket()
_FLAGS: Final = {PacketType.PUBREL: 2, PacketType.SUBSCRIBE: 2, PacketType.UNSUBSCRIBE: 2}
_OF_SERVERS: Final = frozenset({PacketType.CONNACK, PacketType.SUBACK, PacketType.UNSUBACK, PacketType.PINGRESP})
_ACKS: Final = frozenset({PacketType.PUBACK, PacketType.PUBREC, PacketType.PUBREL, PacketType.PUBCOMP})


class Decoder:
    """`level` is known once CONNECT was read; a client sets it."""

    def __init__(
        self, *, server: bool = True, level: Level | None = None, max_packet: int = MAX_PACKET, extended: bool = True
    ) -> None:
        self.level = level
        self.error: CodecError | None = None
        self.asked = 0
        """The version that CONNECT asked for."""
        self._server = server
        self._max_packet = max_packet
        self._extended = extended
        self._rest = b""
        self._parts: list[bytes] = []
        self._missing = 0
        """Bytes of a packet that is partly there; what came of it waits in `_parts`."""
        self._topics: dict[bytes, str] = {}

    @property
    def waiting(self) -> int:
        """Bytes of a packet that is not complete."""
        return len(self._rest) + sum(map(len, self._parts))

    def feed(self, data: bytes) -> list[MqttPacket]:
        found: list[MqttPacket] = []
        if self.error is not None:
            return found
        if self._missing > len(data):
            self._parts.append(data)
            self._missing -= len(data)
            return found
        if self._parts:
            data = b"".join((*self._parts, data))
            self._parts.clear()
            self._missing = 0
        elif self._rest:
            data = self._rest + data
        self._rest = b""
        try:
            self._read(data, found.append)
        except CodecError as error:
            self.error = error
            self._rest = b""
            self._parts.clear()
        return found

    def _read(self, data: bytes, take: Callable[[MqttPacket], None]) -> None:
        at, end = 0, len(data)
        topics, max_packet = self._topics, self._max_packet
        is_5 = self.level == Level.V5
        publishes = self.level is not None
        while at < end:
            first = data[at]
            if end - at < 2:
                self._check_first(first)
                break
            length = data[at + 1]
            body = at + 2
            if length >= 0x80:
                self._check_first(first)
                shift, length = 7, length & 0x7F
                while True:
                    if body >= end:
                        self._rest = data[at:]
                        return
                    byte = data[body]
                    body += 1
                    length |= (byte & 0x7F) << shift
                    if byte < 0x80:
                        break
                    shift += 7
                    if shift > 21:
                        raise CodecError(ReasonCode.MALFORMED_PACKET, "a length has more than 4 bytes", silent=True)
            stop = body + length
            if stop - at > max_packet:
                self._check_first(first)
                raise CodecError(ReasonCode.PACKET_TOO_LARGE, f"a packet has at most {max_packet} bytes here")
            if stop > end:
                self._check_first(first)
                self._missing = stop - end
                self._parts.append(data[at:])
                return
            if first & 0xF0 == 0x30 and publishes:
                # The one that is there by the thousands.
                name = body + 2
                if name > stop:
                    raise malformed("a PUBLISH without a topic")
                behind = name + (data[body] << 8 | data[body + 1])
                raw = data[name:behind]
                topic = topics.get(raw)
                if topic is None or behind > stop:
                    topic = self._topic(raw, behind, stop)
                if is_5 or first & 6:
                    take(self._publish(data, first, topic, behind, stop))
                elif first & 8:
                    raise malformed("a PUBLISH of QoS 0 that says it is there again")
                elif topic:
                    take(PublishPacket(topic, data[behind:stop], 0, first & 1 == 1))
                else:
                    raise malformed("a PUBLISH without a topic")
            else:
                take(self._other(data, first, body, stop))
                is_5 = self.level == Level.V5
                publishes = self.level is not None
            at = stop
        self._rest = data[at:]

    def _topic(self, raw: bytes, behind: int, stop: int) -> str:
        if behind > stop:
            raise malformed("a topic is cut off")
        topic = topic_of(raw)
        if len(self._topics) >= TOPICS_KEPT:
            self._topics.clear()
        self._topics[raw] = topic
        return topic

    def _publish(self, data: bytes, first: int, topic: str, at: int, stop: int) -> PublishPacket:
        qos = first >> 1 & 3
        if qos == 3:
            raise malformed("there is no QoS 3")
        if not qos and first & 8:
            raise malformed("a PUBLISH of QoS 0 that says it is there again")
        packet_id = 0
        if qos:
            packet_id, at = _packet_id(data, at, stop, self.level)
        if self.level != Level.V5:
            if not topic:
                raise malformed("a PUBLISH without a topic")
            return PublishPacket(topic, data[at:stop], qos, first & 1 == 1, first & 8 == 8, packet_id)
        if at < stop and data[at] == 0:
            if not topic:
                raise malformed("a PUBLISH with neither topic nor alias")
            return PublishPacket(topic, data[at + 1 : stop], qos, first & 1 == 1, first & 8 == 8, packet_id)
        found, at = read_properties(data, at, stop, PacketType.PUBLISH)
        alias = found.number(Property.TOPIC_ALIAS, 0)
        ids: tuple[int, ...] = ()
        if Property.SUBSCRIPTION_ID in found.values:
            if self._server:
                raise protocol_error("a client's PUBLISH has no subscription identifier")
            ids = tuple(found.identifiers)
        if not topic and not alias:
            raise malformed("a PUBLISH with neither topic nor alias")
        return PublishPacket(
            topic,
            data[at:stop],
            qos,
            first & 1 == 1,
            first & 8 == 8,
            packet_id,
            found.forwarded,
            alias,
            found.number(Property.MESSAGE_EXPIRY, -1),
            ids,
        )

    def _check_first(self, first: int) -> None:
        """What the first byte of a packet says already. Raises `CodecError`."""
        kind, flags = first >> 4, first & 0x0F
        if self.level is None:
            if kind != PacketType.CONNECT:
                raise CodecError(ReasonCode.PROTOCOL_ERROR, "the first packet is CONNECT", silent=True)
            return
        if kind == 0:
            raise protocol_error("there is no packet of type 0")
        if kind == PacketType.PUBLISH:
            return
        if kind == PacketType.AUTH and self.level != Level.V5:
            if self.level != Level.EXTENDED:
                raise protocol_error("there is no packet of type 15 before 5.0")
            return
        if self._server and kind in _OF_SERVERS:
            raise protocol_error("only brokers send this packet")
        if kind == PacketType.AUTH and flags:
            raise protocol_error("the flags of AUTH are 0")
        if self.level in (Level.V31, Level.EXTENDED):
            return  # 3.1 has DUP and QoS there
        if flags != _FLAGS.get(PacketType(kind), 0):
            raise malformed(f"the flags of {PacketType(kind).name} are wrong")

    def _other(self, data: bytes, first: int, at: int, stop: int) -> MqttPacket:
        self._check_first(first)
        kind = PacketType(first >> 4)
        if kind is PacketType.CONNECT:
            if self.level is not None:
                raise protocol_error("a second CONNECT")
            return self._connect(data, first, at, stop)
        if kind in _ACKS:
            return self._ack(kind, data, at, stop)
        if kind in (PacketType.PINGREQ, PacketType.PINGRESP):
            if at != stop:
                raise CodecError(ReasonCode.MALFORMED_PACKET, "a ping has no content", silent=True)
            return _PINGREQ if kind is PacketType.PINGREQ else PINGRESP
        if kind is PacketType.SUBSCRIBE:
            return self._subscribe(data, at, stop)
        if kind is PacketType.UNSUBSCRIBE:
            return self._unsubscribe(data, at, stop)
        if kind is PacketType.DISCONNECT:
            return self._disconnect(data, at, stop)
        if kind is PacketType.AUTH and self.level == Level.EXTENDED:
            return read_callback(data[at:stop])
        if kind is PacketType.AUTH:
            return self._auth(data, at, stop)
        return self._of_server(kind, data, at, stop)

    def _ack(self, kind: PacketType, data: bytes, at: int, stop: int) -> AckPacket:
        packet_id, at = _packet_id(data, at, stop, self.level)
        reason, text = 0, ""
        if self.level == Level.V5 and at < stop:
            reason = data[at]
            at += 1
            if at < stop:
                found, at = read_properties(data, at, stop, kind)
                text = found.text(Property.REASON_STRING) or ""
            if at == stop and reason not in ACK_REASONS[kind]:
                raise protocol_error(f"{kind.name} has no reason {reason:#04x}")
        _check_end(at, stop)
        return AckPacket(kind, packet_id, reason, text)

    def _subscribe(self, data: bytes, at: int, stop: int) -> SubscribePacket:
        packet_id, at = _packet_id(data, at, stop, None)
        found = EMPTY
        is_5 = self.level == Level.V5
        if is_5:
            found, at = read_properties(data, at, stop, PacketType.SUBSCRIBE)
        wanted: list[SubscriptionRequest] = []
        while at < stop:
            text, at = read_text(data, at, stop)
            check_filter(text)
            if at >= stop:
                raise malformed("a filter without options")
            options = data[at]
            at += 1
            if options & 3 == 3 or options >> 4 & 3 == 3 or options & (0xC0 if is_5 else 0xFC):
                raise malformed(f"there are no options {options:#04x}")
            if options & 4 and split_shared(text)[0]:
                raise protocol_error("a shared subscription has no «no local»")
            wanted.append(SubscriptionRequest(text, options & 3, options & 4 == 4, options & 8 == 8, options >> 4 & 3))
        if not wanted:
            raise malformed("a SUBSCRIBE without a filter")
        return SubscribePacket(packet_id, tuple(wanted), found.number(Property.SUBSCRIPTION_ID, 0))

    def _unsubscribe(self, data: bytes, at: int, stop: int) -> UnsubscribePacket:
        packet_id, at = _packet_id(data, at, stop, None)
        if self.level == Level.V5:
            _, at = read_properties(data, at, stop, PacketType.UNSUBSCRIBE)
        filters: list[str] = []
        while at < stop:
            text, at = read_text(data, at, stop)
            check_filter(text)
            filters.append(text)
        if not filters:
            raise malformed("an UNSUBSCRIBE without a filter")
        return UnsubscribePacket(packet_id, tuple(filters))

    def _disconnect(self, data: bytes, at: int, stop: int) -> DisconnectPacket:
        if self.level != Level.V5:
            _check_end(at, stop)
            return DisconnectPacket()
        if at == stop:
            return DisconnectPacket()
        reason, found = data[at], EMPTY
        at += 1
        if at < stop:
            found, at = read_properties(data, at, stop, PacketType.DISCONNECT)
        _check_end(at, stop)
        return DisconnectPacket(
            reason, found.number(Property.SESSION_EXPIRY, -1), found.text(Property.SERVER_REFERENCE) or ""
        )

    def _auth(self, data: bytes, at: int, stop: int) -> AuthPacket:
        if self._server:
            # No method is known here, so none was agreed on.
            raise protocol_error("no authentication method was agreed on")
        if at == stop:
            return AuthPacket()
        found, behind = EMPTY, at + 1
        if behind < stop:
            found, behind = read_properties(data, behind, stop, PacketType.AUTH)
        _check_end(behind, stop)
        method = found.text(Property.AUTHENTICATION_METHOD)
        return AuthPacket(data[at], method, found.data(Property.AUTHENTICATION_DATA) or b"")

    # CONNECT.

    def _connect(self, data: bytes, first: int, at: int, stop: int) -> ConnectPacket:
        name, at = read_binary(data, at, stop)
        if name not in NAMES or at + 4 > stop:
            raise CodecError(ReasonCode.PROTOCOL_ERROR, "this is no MQTT", silent=True)
        number, flags, keep_alive = data[at], data[at + 1], data[at + 2] << 8 | data[at + 3]
        self.asked = number
        if number not in NAMES[name] or (number == Level.EXTENDED and not self._extended):
            raise CodecError(ReasonCode.UNSUPPORTED_VERSION, f"there is no version {number} of {name.decode()} here")
        level = Level(number)
        if first & 0x0F and level in (Level.V311, Level.V5):
            raise CodecError(ReasonCode.MALFORMED_PACKET, "the flags of CONNECT are 0", silent=True)
        self.level = level
        return _connect(level, flags, keep_alive, data, at + 4, stop)

    # What brokers send.

    def _of_server(self, kind: PacketType, data: bytes, at: int, stop: int) -> MqttPacket:
        is_5 = self.level == Level.V5
        if kind is PacketType.CONNACK:
            return _connack(self.level, data, at, stop)
        packet_id, at = _packet_id(data, at, stop, self.level)
        found = EMPTY
        if is_5:
            found, at = read_properties(data, at, stop, kind)
        reasons = tuple(data[at:stop])
        if kind is PacketType.UNSUBACK:
            return UnsubackPacket(packet_id, reasons)
        return SubackPacket(packet_id, reasons, found.text(Property.REASON_STRING) or "")


def _packet_id(data: bytes, at: int, stop: int, level: Level | None) -> tuple[int, int]:
    if at + 2 > stop:
        raise malformed("a packet identifier is cut off")
    packet_id = data[at] << 8 | data[at + 1]
    if not packet_id:
        wrong = "a packet identifier is not 0"
        raise protocol_error(wrong) if level == Level.V5 else malformed(wrong)
    return packet_id, at + 2


def _check_end(at: int, stop: int) -> None:
    if at != stop:
        raise malformed("there is more in the packet than belongs there")


def _connect(level: Level, flags: int, keep_alive: int, data: bytes, at: int, stop: int) -> ConnectPacket:
    is_5 = level == Level.V5
    has_will, will_qos, will_retain = flags & 4 == 4, flags >> 3 & 3, flags & 0x20 == 0x20
    has_user, has_password = flags & 0x80 == 0x80, flags & 0x40 == 0x40
    if flags & 1 and level not in (Level.V31, Level.EXTENDED):
        raise malformed("a reserved flag of CONNECT is set")
    if will_qos == 3 or (not has_will and (will_qos or will_retain)):
        raise malformed("the flags of the will are wrong")
    if has_password and not has_user and not is_5:
        raise malformed("there is a password and no user")
    found = EMPTY
    if is_5:
        found, at = read_properties(data, at, stop, PacketType.CONNECT)
    raw, at = read_binary(data, at, stop)
    try:
        client_id = text_of(raw)
    except CodecError as error:
        raise CodecError(ReasonCode.CLIENT_ID_NOT_VALID, str(error)) from None
    will: Will | None = None
    if has_will:
        will, at = _will(is_5, will_qos, will_retain, data, at, stop)
    user: str | None = None
    password: bytes | None = None
    try:
        if has_user:
            user, at = read_text(data, at, stop)
        if has_password:
            password, at = read_binary(data, at, stop)
    except CodecError as error:
        raise CodecError(error.reason, str(error), silent=True) from None
    _check_end(at, stop)
    method = found.text(Property.AUTHENTICATION_METHOD)
    if method is None and Property.AUTHENTICATION_DATA in found.values:
        raise protocol_error("there is authentication data and no method")
    return ConnectPacket(
        client_id,
        level,
        flags & 2 == 2,
        keep_alive,
        will,
        user,
        password,
        found.number(Property.SESSION_EXPIRY, 0),
        found.number(Property.RECEIVE_MAXIMUM, 65_535),
        found.number(Property.MAXIMUM_PACKET_SIZE, 0),
        found.number(Property.TOPIC_ALIAS_MAXIMUM, 0),
        found.number(Property.REQUEST_PROBLEM, 1) == 1,
        method,
        found.data(Property.AUTHENTICATION_DATA) or b"",
        tuple(found.pairs),
    )


def _will(is_5: bool, qos: int, retain: bool, data: bytes, at: int, stop: int) -> tuple[Will, int]:
    found: PropertySet = EMPTY
    if is_5:
        found, at = read_properties(data, at, stop, WILL)
    raw, at = read_binary(data, at, stop)
    topic = topic_of(raw)
    if not topic:
        raise malformed("a will without a topic")
    payload, at = read_binary(data, at, stop)
    expiry = found.number(Property.MESSAGE_EXPIRY, -1)
    message = PublishPacket(topic, payload, qos, retain, properties=found.forwarded, expiry=expiry)
    return Will(message, found.number(Property.WILL_DELAY, 0)), at


def _connack(level: Level | None, data: bytes, at: int, stop: int) -> ConnackPacket:
    if at + 2 > stop:
        raise malformed("a CONNACK is cut off")
    present, reason = data[at] & 1 == 1, data[at + 1]
    at += 2
    if level == Level.V5:
        begin = at
        _, at = read_properties(data, at, stop, PacketType.CONNACK)
        _check_end(at, stop)
        return ConnackPacket(reason, present, data[begin:stop])
    address = None
    if level == Level.EXTENDED and at < stop:
        address, at = read_text(data, at, stop)
    _check_end(at, stop)
    return ConnackPacket(reason, present, address=address)
