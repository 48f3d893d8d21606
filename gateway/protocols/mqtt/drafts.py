"""Messages as publications of the exchange, and back. Sans-I/O.

What MQTT says of a message beside its payload stands in one attribute: the QoS, whether it stays, and the properties
that subscribers get, so that it arrives at another gateway as it was sent. What other protocols can use stands where
they look for it: the content type, the deadline, and the profile (what stays is a state of its topic, all else an
event).
"""

from typing import Final

from exchange.model import SELF, Draft, LogEntry, Profile
from gateway.protocols.mqtt.messages import BrokerMessage
from gateway.protocols.mqtt.numbers import PacketType, Property
from gateway.protocols.mqtt.packets import CodecError
from gateway.protocols.mqtt.properties import read_properties, with_length, write_one
from identifiers import ItemId

ATTRIBUTE: Final = ".mqtt"
BYTES: Final = "application/octet-stream"
TEXT: Final = "text/plain; charset=utf-8"
MAX_TYPE: Final = 1_024
LOOKED_AT: Final = 16 * 1024
"""Bytes: a longer message that does not say what it is is taken for no text."""


def draft_of(message: BrokerMessage, name: str, item: ItemId) -> Draft:
    profile = Profile.DOCUMENT if message.retain else Profile.EVENT
    said = f"{message.qos}{'r' if message.retain else ''}"
    content_type = TEXT if _is_text(message.payload) else BYTES
    if message.properties:
        said = f"{said} {message.properties.hex()}"
        content_type = _content_type(message.properties) or content_type
    attributes = ((SELF, name), (ATTRIBUTE, said))
    return Draft(item, name, profile, content_type, message.payload, attributes, 0, message.expires_ms)


def _content_type(properties: bytes) -> str:
    written = with_length(properties)
    found, _ = read_properties(written, 0, len(written), PacketType.PUBLISH)
    given = found.text(Property.CONTENT_TYPE)
    if given:
        return given[:MAX_TYPE]
    return TEXT if found.number(Property.PAYLOAD_FORMAT, 0) == 1 else ""


def _is_text(payload: bytes) -> bool:
    """Most clients do not say what they send; what people can read is shown to them."""
    if len(payload) > LOOKED_AT or b"\0" in payload:
        return False
    try:
        payload.decode()
    except UnicodeDecodeError:
        return False
    return True


def message_from(entry: LogEntry, topic: str, *, qos: int = 1) -> BrokerMessage:
    """`qos` is that of what other protocols publish."""
    draft = entry.draft
    said = draft.attribute(ATTRIBUTE)
    level, _, written = said.partition(" ")
    retain = draft.profile is Profile.DOCUMENT
    properties = b""
    if level[:1] in ("0", "1", "2"):
        qos, retain = int(level[0]), level[1:] == "r"
        properties = _checked(written)
    elif draft.content_type and draft.content_type != BYTES:
        properties = write_one(Property.CONTENT_TYPE, draft.content_type[:MAX_TYPE])
    return BrokerMessage(topic, draft.body, qos, retain, properties, draft.deadline_ms, None, entry.position)


def _checked(written: str) -> bytes:
    """The attribute may have come from another gateway: what is no list of properties is none."""
    try:
        raw = bytes.fromhex(written)
        data = with_length(raw)
        return read_properties(data, 0, len(data), PacketType.PUBLISH)[0].forwarded
    except (ValueError, CodecError):
        return b""
