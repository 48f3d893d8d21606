"""Properties of 5.0: read with all their rules, and written. Sans-I/O."""

from collections.abc import Iterable, Mapping
from typing import Final

from gateway.protocols.mqtt.numbers import (
    ALLOWED,
    FORMS,
    FORWARDED,
    MAX_VARINT,
    REPEATABLE,
    WILL,
    Form,
    PacketType,
    Property,
    ReasonCode,
)
from gateway.protocols.mqtt.packets import CodecError, Pair, malformed, protocol_error
from gateway.protocols.mqtt.texts import check_response_topic, text_of

Value = int | str | bytes | Pair
NONE: Final = b"\0"
"""No properties."""
_WHOLE: Final = frozenset({PacketType.SUBSCRIBE, PacketType.UNSUBSCRIBE})
"""Packets in which a property that may not be there makes the whole packet malformed."""
_FLAGS: Final = frozenset({Property.PAYLOAD_FORMAT, Property.REQUEST_PROBLEM, Property.REQUEST_RESPONSE})
_SIZES: Final = {Form.BYTE: 1, Form.TWO_BYTES: 2, Form.FOUR_BYTES: 4}


class PropertySet:
    """What stood in a packet."""

    __slots__ = ("forwarded", "identifiers", "pairs", "values")

    def __init__(self) -> None:
        self.values: dict[int, int | str | bytes] = {}
        self.pairs: list[Pair] = []
        self.identifiers: list[int] = []
        """Of subscriptions, in a PUBLISH."""
        self.forwarded = b""
        """Those that subscribers get, as they were written."""

    def number(self, which: Property, default: int) -> int:
        value = self.values.get(which, default)
        return value if isinstance(value, int) else default

    def text(self, which: Property) -> str | None:
        value = self.values.get(which)
        return value if isinstance(value, str) else None

    def data(self, which: Property) -> bytes | None:
        value = self.values.get(which)
        return value if isinstance(value, bytes) else None


EMPTY: Final = PropertySet()


def read_varint(data: bytes, at: int, end: int) -> tuple[int, int]:
    """A number and where it ends. Raises `CodecError`."""
    value = shift = 0
    while at < end:
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            if byte == 0 and shift:
                raise malformed("a number is written longer than it has to be")
            return value, at
        shift += 7
        if shift > 21:
            break
    raise malformed("a number of variable length does not end")


def varint(value: int) -> bytes:
    if value < 0x80:
        return bytes((value,))
    if value > MAX_VARINT:
        raise ValueError(f"{value} is more than a number of variable length can be")
    written = bytearray()
    while value >= 0x80:
        written.append(value & 0x7F | 0x80)
        value >>= 7
    written.append(value)
    return bytes(written)


def read_binary(data: bytes, at: int, end: int) -> tuple[bytes, int]:
    if at + 2 > end:
        raise malformed("a length is cut off")
    behind = at + 2 + (data[at] << 8 | data[at + 1])
    if behind > end:
        raise malformed("a string is cut off")
    return data[at + 2 : behind], behind


def read_text(data: bytes, at: int, end: int) -> tuple[str, int]:
    raw, behind = read_binary(data, at, end)
    return text_of(raw), behind


def read_properties(data: bytes, at: int, end: int, kind: int) -> tuple[PropertySet, int]:
    """The properties of a packet (or of a will), and where they end. Raises `CodecError`."""
    length, at = read_varint(data, at, end)
    if not length:
        return EMPTY, at
    stop = at + length
    if stop > end:
        raise malformed("properties are cut off")
    found = PropertySet()
    forwarded: list[bytes] = []
    while at < stop:
        begin = at
        which, at = read_varint(data, at, stop)
        form = FORMS.get(which)
        if form is None:
            raise malformed(f"there is no property {which:#04x}")
        value, at = _value(data, at, stop, form)
        _check(kind, which, value, found)
        if isinstance(value, tuple):
            found.pairs.append(value)
        else:
            found.values[which] = value
        if which in FORWARDED:
            forwarded.append(data[begin:at])
    found.forwarded = b"".join(forwarded)
    return found, at


def _value(data: bytes, at: int, end: int, form: Form) -> tuple[Value, int]:
    size = _SIZES.get(form)
    if size is not None:
        if at + size > end:
            raise malformed("a property's value is cut off")
        return int.from_bytes(data[at : at + size]), at + size
    if form is Form.VARINT:
        return read_varint(data, at, end)
    if form is Form.BINARY:
        return read_binary(data, at, end)
    text, at = read_text(data, at, end)
    if form is Form.STRING:
        return text, at
    second, at = read_text(data, at, end)
    return (text, second), at


def _check(kind: int, which: int, value: Value, found: PropertySet) -> None:
    if which not in ALLOWED.get(kind, frozenset()):
        wrong = f"the property {Property(which).name.lower()} may not be in this packet"
        raise malformed(wrong) if kind in _WHOLE else protocol_error(wrong)
    if which == Property.SUBSCRIPTION_ID and kind == PacketType.PUBLISH and isinstance(value, int):
        found.identifiers.append(value)
    elif which in found.values and which not in REPEATABLE:
        raise protocol_error(f"the property {Property(which).name.lower()} stands there twice")
    if which in _FLAGS and value not in (0, 1):
        raise protocol_error(f"the property {Property(which).name.lower()} is 0 or 1")
    if which in (Property.RECEIVE_MAXIMUM, Property.MAXIMUM_PACKET_SIZE) and not value:
        raise protocol_error(f"the property {Property(which).name.lower()} is not 0")
    if which == Property.SUBSCRIPTION_ID and not value and kind == PacketType.SUBSCRIBE:
        raise malformed("a subscription identifier is not 0")
    if which == Property.TOPIC_ALIAS and not value:
        raise CodecError(ReasonCode.TOPIC_ALIAS_INVALID, "a topic alias is not 0")
    if which == Property.RESPONSE_TOPIC and isinstance(value, str) and kind in (PacketType.PUBLISH, WILL):
        check_response_topic(value)


def write_one(which: Property, value: Value) -> bytes:
    form = FORMS[which]
    if isinstance(value, int):
        written = varint(value) if form is Form.VARINT else value.to_bytes(_SIZES[form])
    elif isinstance(value, tuple):
        written = b"".join(map(string, value))
    else:
        written = string(value) if isinstance(value, str) else len(value).to_bytes(2) + value
    return bytes((which,)) + written


def write_all(values: Mapping[Property, Value] | Iterable[tuple[Property, Value]]) -> bytes:
    """Without their length in front."""
    each = values.items() if isinstance(values, Mapping) else values
    return b"".join(write_one(which, value) for which, value in each)


def with_length(properties: bytes) -> bytes:
    return varint(len(properties)) + properties if properties else NONE


def string(text: str) -> bytes:
    raw = text.encode()
    return len(raw).to_bytes(2) + raw
