"""Packets to bytes. Sans-I/O."""

from gateway.protocols.mqtt.numbers import NEVER, Level, PacketType, Property
from gateway.protocols.mqtt.packets import (
    AckPacket,
    AuthPacket,
    ConnackPacket,
    ConnectPacket,
    DisconnectPacket,
    MqttPacket,
    PingreqPacket,
    PingrespPacket,
    PubCallbackPacket,
    PublishPacket,
    SubackPacket,
    SubscribePacket,
    UnsubackPacket,
    UnsubscribePacket,
    Will,
)
from gateway.protocols.mqtt.properties import NONE, Value, string, varint, with_length, write_all, write_one
from gateway.protocols.mqtt.redirection import write_callback

_PREFIXES: dict[PacketType, bytes] = {
    PacketType.PUBACK: b"\x40\x02",
    PacketType.PUBREC: b"\x50\x02",
    PacketType.PUBREL: b"\x62\x02",
    PacketType.PUBCOMP: b"\x70\x02",
}
PINGREQ_BYTES = b"\xc0\x00"
PINGRESP_BYTES = b"\xd0\x00"


def write(packet: MqttPacket, level: Level) -> bytes:
    """Any packet, as a session of this level has it."""
    is_5 = level == Level.V5
    if isinstance(packet, PublishPacket):
        return _publish(packet, is_5)
    if isinstance(packet, AckPacket):
        if not is_5:
            return write_ack(packet.kind, packet.packet_id)
        return write_ack(packet.kind, packet.packet_id, packet.reason, packet.text)
    if isinstance(packet, PingreqPacket):
        return PINGREQ_BYTES
    if isinstance(packet, PingrespPacket):
        return PINGRESP_BYTES
    if isinstance(packet, PubCallbackPacket):
        return write_callback(packet)
    first, body = _other(packet, is_5)
    return bytes((first,)) + varint(len(body)) + body


def write_ack(kind: PacketType, packet_id: int, reason: int = 0, text: str = "") -> bytes:
    if not reason and not text:
        return _PREFIXES[kind] + packet_id.to_bytes(2)
    body = packet_id.to_bytes(2) + bytes((reason,)) + (_reason_string(text) if text else b"")
    return _PREFIXES[kind][:1] + varint(len(body)) + body


def _reason_string(text: str) -> bytes:
    return with_length(write_one(Property.REASON_STRING, text)) if text else NONE


def write_publish(first: int, topic: bytes, packet_id: bytes, properties: bytes, payload: bytes) -> bytes:
    """From parts: `topic` and `properties` have their lengths in front, up to 3.1.1 `properties` is empty."""
    length = len(topic) + len(packet_id) + len(properties) + len(payload)
    if length < 0x80:
        return b"".join((bytes((first, length)), topic, packet_id, properties, payload))
    return b"".join((bytes((first,)), varint(length), topic, packet_id, properties, payload))


def publish_first(qos: int, retain: bool, dup: bool) -> int:
    return PacketType.PUBLISH << 4 | dup << 3 | qos << 1 | retain


def _publish(packet: PublishPacket, is_5: bool) -> bytes:
    properties = b""
    if is_5 and not packet.alias and packet.expiry < 0 and not packet.subscription_ids:
        properties = with_length(packet.properties)
    elif is_5:
        before: list[tuple[Property, Value]] = []
        if packet.alias:
            before.append((Property.TOPIC_ALIAS, packet.alias))
        before += [(Property.SUBSCRIPTION_ID, one) for one in packet.subscription_ids]
        behind = [] if packet.expiry < 0 else [(Property.MESSAGE_EXPIRY, packet.expiry)]
        properties = with_length(write_all(before) + packet.properties + write_all(behind))
    packet_id = packet.packet_id.to_bytes(2) if packet.qos else b""
    first = publish_first(packet.qos, packet.retain, packet.dup)
    return write_publish(first, string(packet.topic), packet_id, properties, packet.payload)


def _other(packet: MqttPacket, is_5: bool) -> tuple[int, bytes]:
    if isinstance(packet, ConnackPacket):
        head = bytes((packet.session_present, packet.reason))
        if is_5:
            return 0x20, head + (packet.properties or NONE)
        return 0x20, head if packet.address is None else head + string(packet.address)
    if isinstance(packet, ConnectPacket):
        return 0x10, _connect(packet)
    if isinstance(packet, SubscribePacket):
        ids = write_one(Property.SUBSCRIPTION_ID, packet.subscription_id) if packet.subscription_id else b""
        filters = b"".join(
            string(one.filter)
            + bytes((one.qos | one.no_local << 2 | one.retain_as_published << 3 | one.retain_handling << 4,))
            for one in packet.wanted
        )
        return 0x82, packet.packet_id.to_bytes(2) + (with_length(ids) if is_5 else b"") + filters
    if isinstance(packet, UnsubscribePacket):
        return 0xA2, packet.packet_id.to_bytes(2) + (NONE if is_5 else b"") + b"".join(map(string, packet.filters))
    if isinstance(packet, SubackPacket):
        return 0x90, packet.packet_id.to_bytes(2) + (_reason_string(packet.text) if is_5 else b"") + bytes(
            packet.reasons
        )
    if isinstance(packet, UnsubackPacket):
        return 0xB0, packet.packet_id.to_bytes(2) + (NONE + bytes(packet.reasons) if is_5 else b"")
    if isinstance(packet, DisconnectPacket):
        return 0xE0, _disconnect(packet) if is_5 else b""
    if isinstance(packet, AuthPacket):
        return 0xF0, _auth(packet)
    raise TypeError(f"{packet!r} is no packet")


def _disconnect(packet: DisconnectPacket) -> bytes:
    properties: list[tuple[Property, Value]] = []
    if packet.session_expiry >= 0:
        properties.append((Property.SESSION_EXPIRY, packet.session_expiry))
    if packet.server_reference:
        properties.append((Property.SERVER_REFERENCE, packet.server_reference))
    if properties:
        return bytes((packet.reason,)) + with_length(write_all(properties))
    return bytes((packet.reason,)) if packet.reason else b""


def _auth(packet: AuthPacket) -> bytes:
    properties: list[tuple[Property, Value]] = []
    if packet.method is not None:
        properties.append((Property.AUTHENTICATION_METHOD, packet.method))
    if packet.data:
        properties.append((Property.AUTHENTICATION_DATA, packet.data))
    return bytes((packet.reason,)) + with_length(write_all(properties)) if packet.reason or properties else b""


def _connect(packet: ConnectPacket) -> bytes:
    is_5 = packet.version == Level.V5
    is_31 = packet.version in (Level.V31, Level.EXTENDED)
    will = packet.will
    flags = packet.clean_start << 1 | (packet.user is not None) << 7 | (packet.password is not None) << 6
    if will is not None:
        flags |= 4 | will.message.qos << 3 | will.message.retain << 5
    parts = [string("MQIsdp" if is_31 else "MQTT"), bytes((packet.version, flags)), packet.keep_alive.to_bytes(2)]
    if is_5:
        parts.append(with_length(_connect_properties(packet)))
    parts.append(string(packet.client_id))
    if will is not None:
        if is_5:
            parts.append(with_length(_will_properties(will)))
        parts += [string(will.message.topic), len(will.message.payload).to_bytes(2), will.message.payload]
    if packet.user is not None:
        parts.append(string(packet.user))
    if packet.password is not None:
        parts += [len(packet.password).to_bytes(2), packet.password]
    return b"".join(parts)


def _connect_properties(packet: ConnectPacket) -> bytes:
    found: list[tuple[Property, Value]] = []
    if packet.session_expiry:
        found.append((Property.SESSION_EXPIRY, min(packet.session_expiry, NEVER)))
    if packet.receive_maximum != 65_535:
        found.append((Property.RECEIVE_MAXIMUM, packet.receive_maximum))
    if packet.maximum_packet:
        found.append((Property.MAXIMUM_PACKET_SIZE, packet.maximum_packet))
    if packet.topic_alias_maximum:
        found.append((Property.TOPIC_ALIAS_MAXIMUM, packet.topic_alias_maximum))
    if not packet.request_problem:
        found.append((Property.REQUEST_PROBLEM, 0))
    if packet.authentication_method is not None:
        found.append((Property.AUTHENTICATION_METHOD, packet.authentication_method))
    if packet.authentication_data:
        found.append((Property.AUTHENTICATION_DATA, packet.authentication_data))
    found += [(Property.USER_PROPERTY, pair) for pair in packet.user_properties]
    return write_all(found)


def _will_properties(will: Will) -> bytes:
    delay = write_one(Property.WILL_DELAY, will.delay) if will.delay else b""
    expiry = b"" if will.message.expiry < 0 else write_one(Property.MESSAGE_EXPIRY, will.message.expiry)
    return delay + will.message.properties + expiry
