"""Every packet goes through the codec and comes out as it was; whatever else goes in is an error and nothing worse."""

import string

from hypothesis import given
from hypothesis import strategies as st

from gateway.protocols.mqtt.decode import Decoder
from gateway.protocols.mqtt.encode import write
from gateway.protocols.mqtt.numbers import ACK_REASONS, FORMS, FORWARDED, Form, Level, PacketType, Property
from gateway.protocols.mqtt.packets import (
    AckPacket,
    ConnackPacket,
    ConnectPacket,
    DisconnectPacket,
    MqttPacket,
    PubCallbackPacket,
    PublishPacket,
    SubackPacket,
    SubscribePacket,
    SubscriptionRequest,
    UnsubackPacket,
    UnsubscribePacket,
    Will,
)
from gateway.protocols.mqtt.properties import Value, read_varint, varint, write_all

LEVELS = st.sampled_from([Level.V31, Level.V311, Level.V5])
TEXTS = st.text(string.ascii_letters + string.digits + "äß€/-_ 𐍈", max_size=30)
TOPICS = TEXTS.filter(bool)
IDS = st.integers(1, 65_535)
NUMBERS = {
    Form.BYTE: st.integers(0, 1),
    Form.TWO_BYTES: st.integers(1, 65_535),
    Form.FOUR_BYTES: st.integers(0, 2**32 - 1),
}


@st.composite
def forwarded(draw: st.DrawFn) -> bytes:
    pairs: list[tuple[Property, Value]] = []
    for which in draw(st.permutations(sorted(FORWARDED))):
        form = FORMS[which]
        if not draw(st.booleans()):
            continue
        if form is Form.PAIR:
            pairs += [(Property(which), draw(st.tuples(TEXTS, TEXTS))) for _ in range(draw(st.integers(1, 3)))]
        elif form is Form.BINARY:
            pairs.append((Property(which), draw(st.binary(max_size=20))))
        elif form is Form.STRING:
            pairs.append((Property(which), draw(TOPICS)))
        else:
            pairs.append((Property(which), draw(NUMBERS[form])))
    return write_all(pairs)


@st.composite
def publishes(draw: st.DrawFn, level: Level) -> PublishPacket:
    qos = draw(st.integers(0, 2))
    is_5 = level == Level.V5
    return PublishPacket(
        draw(TOPICS),
        draw(st.binary(max_size=300)),
        qos,
        draw(st.booleans()),
        bool(qos) and draw(st.booleans()),
        draw(IDS) if qos else 0,
        draw(forwarded()) if is_5 else b"",
        draw(st.integers(0, 65_535)) if is_5 else 0,
        draw(st.integers(-1, 2**32 - 1)) if is_5 else -1,
    )


FILTERS = st.sampled_from(["a", "a/+", "#", "+/b/#", "$share/s/a/#", "/", "$SYS/#"])


@st.composite
def of_clients(draw: st.DrawFn, level: Level) -> MqttPacket:
    is_5 = level == Level.V5
    kind = draw(st.integers(0, 4))
    if kind == 0:
        return draw(publishes(level))
    if kind == 1:
        which = draw(st.sampled_from(sorted(ACK_REASONS)))
        return AckPacket(PacketType(which), draw(IDS), draw(st.sampled_from(sorted(ACK_REASONS[which]))) if is_5 else 0)
    if kind == 2:
        wanted = [
            SubscriptionRequest(
                one, draw(st.integers(0, 2)), False, is_5 and draw(st.booleans()), is_5 * draw(st.integers(0, 2))
            )
            for one in draw(st.lists(FILTERS, min_size=1, max_size=4))
        ]
        return SubscribePacket(draw(IDS), tuple(wanted), is_5 * draw(st.integers(0, 268_435_455)))
    if kind == 3:
        return UnsubscribePacket(draw(IDS), tuple(draw(st.lists(FILTERS, min_size=1, max_size=4))))
    if not is_5:
        return DisconnectPacket()
    return DisconnectPacket(draw(st.integers(0, 255)), draw(st.integers(-1, 2**32 - 1)), draw(TEXTS))


@given(st.data(), LEVELS)
def test_what_clients_say_comes_out_as_it_was(data: st.DataObject, level: Level) -> None:
    packets = data.draw(st.lists(of_clients(level), min_size=1, max_size=5))
    stream = b"".join(write(one, level) for one in packets)
    reader = Decoder(level=level)
    at = data.draw(st.integers(0, len(stream)))
    assert reader.feed(stream[:at]) + reader.feed(stream[at:]) == packets
    assert reader.error is None
    assert not reader.waiting


@given(st.data(), LEVELS)
def test_connect_comes_out_as_it_was(data: st.DataObject, level: Level) -> None:
    is_5 = level == Level.V5
    will = None
    if data.draw(st.booleans()):
        message = data.draw(publishes(level))
        will = Will(
            PublishPacket(
                message.topic,
                message.payload,
                message.qos,
                message.retain,
                properties=message.properties,
                expiry=message.expiry,
            ),
            data.draw(st.integers(0, 2**32 - 1)) if is_5 else 0,
        )
    user = data.draw(st.none() | TEXTS)
    packet = ConnectPacket(
        data.draw(TEXTS),
        level,
        data.draw(st.booleans()),
        data.draw(st.integers(0, 65_535)),
        will,
        user,
        None if user is None else data.draw(st.none() | st.binary(max_size=30)),
        data.draw(st.integers(0, 2**32 - 1)) if is_5 else 0,
        data.draw(IDS) if is_5 else 65_535,
        data.draw(st.integers(0, 2**32 - 1)) if is_5 else 0,
        data.draw(st.integers(0, 65_535)) if is_5 else 0,
        not is_5 or data.draw(st.booleans()),
    )
    reader = Decoder()
    assert reader.feed(write(packet, level)) == [packet]
    assert reader.level == level


@given(IDS, st.lists(st.integers(0, 255), min_size=1, max_size=5).map(tuple), LEVELS, TOPICS)
def test_what_brokers_say_comes_out_as_it_was(
    packet_id: int, reasons: tuple[int, ...], level: Level, text: str
) -> None:
    is_5 = level == Level.V5
    for packet in (
        SubackPacket(packet_id, reasons),
        UnsubackPacket(packet_id, reasons if is_5 else ()),
        ConnackPacket(reasons[0], True, b"\0" if is_5 else b""),
    ):
        assert Decoder(server=False, level=level).feed(write(packet, level)) == [packet]
    extended = ConnackPacket(6, False, b"", text)
    assert Decoder(server=False, level=Level.EXTENDED).feed(write(extended, Level.EXTENDED)) == [extended]
    inner = write(PublishPacket(text, b"x"), Level.V31)
    call = PubCallbackPacket((text, 'a"b}c%'), inner)
    assert Decoder(level=Level.EXTENDED).feed(write(call, Level.EXTENDED)) == [call]


@given(st.sampled_from([None, *Level]), st.lists(st.binary(max_size=60), max_size=5))
def test_bytes_that_are_nothing_are_an_error_and_no_exception(level: Level | None, pieces: list[bytes]) -> None:
    reader = Decoder(level=level, max_packet=1_000)
    for piece in pieces:
        reader.feed(piece)
    assert reader.waiting <= 300 + 5 or reader.error is None


@given(st.data(), LEVELS)
def test_a_packet_with_a_byte_changed_is_a_packet_or_an_error(data: st.DataObject, level: Level) -> None:
    written = bytearray(write(data.draw(of_clients(level)), level))
    at = data.draw(st.integers(0, len(written) - 1))
    written[at] = data.draw(st.integers(0, 255))
    reader = Decoder(level=level)
    found = reader.feed(bytes(written))
    assert found or reader.error is not None or reader.waiting


@given(st.integers(0, 268_435_455))
def test_numbers_of_variable_length(number: int) -> None:
    written = varint(number)
    assert read_varint(written, 0, len(written)) == (number, len(written))
