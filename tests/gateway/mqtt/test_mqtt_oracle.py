"""The codec beside another implementation of 5.0, the package mqtt5: each reads what the other writes.

The order of properties and the writing out of defaults are free, so bytes are compared when mqtt5 has written both.
"""

import string
from collections.abc import Iterator
from typing import Any

import mqtt5
from hypothesis import given
from hypothesis import strategies as st

from gateway.protocols.mqtt.decode import Decoder
from gateway.protocols.mqtt.encode import write
from gateway.protocols.mqtt.numbers import Level, PacketType, Property
from gateway.protocols.mqtt.packets import (
    AckPacket,
    ConnackPacket,
    ConnectPacket,
    DisconnectPacket,
    MqttPacket,
    PingreqPacket,
    PingrespPacket,
    PublishPacket,
    SubackPacket,
    SubscribePacket,
    SubscriptionRequest,
    UnsubackPacket,
    UnsubscribePacket,
    Will,
)
from gateway.protocols.mqtt.properties import Value, read_properties, with_length, write_all

TEXTS = st.text(string.ascii_letters + string.digits + "äß€/-_ 𐍈", max_size=30)
TOPICS = TEXTS.filter(bool)
FILTERS = st.sampled_from(["a", "a/+", "#", "+/b/#", "$share/s/a/#", "/", "$SYS/#"])
IDS = st.integers(1, 65_535)
SECONDS = st.integers(0, 2**32 - 1)
PAIRS = st.lists(st.tuples(TEXTS, TEXTS), max_size=3)
DATA = st.binary(max_size=60)
FLAGS = st.booleans()


def members(kind: Any) -> list[Any]:
    """Of an enumeration of mqtt5, which says that it can be iterated over and cannot."""
    return [getattr(kind, name) for name in dir(kind) if name.isupper()]


QOS = st.sampled_from(members(mqtt5.QoS))


def read_ours(data: bytes, *, server: bool = True) -> MqttPacket:
    """What our codec takes it for, as a session that is connected."""
    reader = Decoder(server=server, level=None if data[0] >> 4 == PacketType.CONNECT else Level.V5)
    found = reader.feed(data)
    assert reader.error is None, reader.error
    assert not reader.waiting
    (packet,) = found
    return packet


def read_theirs(data: bytes) -> Any:
    packet, size = mqtt5.read(memoryview(data))
    assert size == len(data)
    return packet


def both_ways(theirs: Any, ours: MqttPacket, *, server: bool = True) -> None:
    """Each reads the other's bytes, and what is read is written again so that the first one knows it."""
    read = read_ours(theirs.write(), server=server)
    assert read == ours
    assert read_theirs(write(ours, Level.V5)).write() == theirs.write()
    assert read_ours(write(read, Level.V5), server=server) == ours


def told(theirs: mqtt5.PublishPacket | mqtt5.Will) -> bytes:
    """The properties of a message that subscribers get, in the order in which they are written below."""
    found: list[tuple[Property, Value]] = []
    if theirs.payload_format_indicator:
        found.append((Property.PAYLOAD_FORMAT, theirs.payload_format_indicator))
    for which, value in (
        (Property.CONTENT_TYPE, theirs.content_type),
        (Property.RESPONSE_TOPIC, theirs.response_topic),
        (Property.CORRELATION_DATA, theirs.correlation_data),
    ):
        if value is not None:
            found.append((which, value))
    return write_all(found + [(Property.USER_PROPERTY, pair) for pair in theirs.user_properties])


def pieces(properties: bytes) -> list[tuple[object, ...]]:
    """Properties without their order; of user properties the order counts."""
    found, _ = read_properties(with_length(properties), 0, len(with_length(properties)), PacketType.PUBLISH)
    return [*sorted(found.values.items()), *found.pairs]


@st.composite
def messages(draw: st.DrawFn) -> dict[str, Any]:
    return {
        "qos": draw(QOS),
        "retain": draw(FLAGS),
        "payload_format_indicator": draw(st.integers(0, 1)),
        "message_expiry_interval": draw(st.none() | SECONDS),
        "content_type": draw(st.none() | TEXTS),
        "response_topic": draw(st.none() | TOPICS),
        "correlation_data": draw(st.none() | DATA),
        "user_properties": draw(PAIRS),
    }


@given(TEXTS, DATA, messages(), IDS, FLAGS, st.none() | IDS, st.lists(st.integers(1, 268_435_455), max_size=3))
def test_messages(
    topic: str, payload: bytes, more: dict[str, Any], number: int, dup: bool, alias: int | None, ids: list[int]
) -> None:
    if not topic and alias is None:
        topic = "t"
    qos = int(more["qos"])
    theirs = mqtt5.PublishPacket(
        topic,
        payload,
        packet_id=number if qos else None,
        duplicate=bool(qos) and dup,
        topic_alias=alias,
        subscription_ids=ids,
        **more,
    )
    read = read_ours(theirs.write(), server=False)
    assert isinstance(read, PublishPacket)
    ours = PublishPacket(
        topic,
        payload,
        qos,
        more["retain"],
        bool(qos) and dup,
        number if qos else 0,
        read.properties,
        alias or 0,
        -1 if more["message_expiry_interval"] is None else more["message_expiry_interval"],
        tuple(ids),
    )
    assert read == ours
    assert pieces(read.properties) == pieces(told(theirs))
    assert read_theirs(write(ours, Level.V5)).write() == theirs.write()


@given(st.data(), TEXTS, messages(), st.none() | TEXTS, st.none() | DATA, FLAGS, FLAGS, PAIRS)
def test_connect(
    data: st.DataObject,
    client_id: str,
    more: dict[str, Any],
    user: str | None,
    password: bytes | None,
    clean: bool,
    problem: bool,
    pairs: list[tuple[str, str]],
) -> None:
    will = None
    if data.draw(FLAGS):
        will = mqtt5.Will(data.draw(TOPICS), payload=data.draw(DATA), will_delay_interval=data.draw(SECONDS), **more)
    numbers = {
        "keep_alive": data.draw(st.integers(0, 65_535)),
        "session_expiry_interval": data.draw(SECONDS),
        "receive_max": data.draw(IDS),
        "topic_alias_max": data.draw(st.integers(0, 65_535)),
        "max_packet_size": data.draw(st.none() | st.integers(1, 2**32 - 1)),
    }
    theirs = mqtt5.ConnectPacket(
        client_id,
        username=user,
        password=password,
        clean_start=clean,
        will=will,
        request_problem_info=problem,
        user_properties=pairs,
        **numbers,
    )
    read = read_ours(theirs.write())
    assert isinstance(read, ConnectPacket)
    last = None
    if will is not None:
        assert read.will is not None
        message = read.will.message
        assert pieces(message.properties) == pieces(told(will))
        expiry = more["message_expiry_interval"]
        last = Will(
            PublishPacket(
                will.topic,
                will.payload or b"",
                int(will.qos),
                will.retain,
                properties=message.properties,
                expiry=-1 if expiry is None else expiry,
            ),
            will.will_delay_interval,
        )
    ours = ConnectPacket(
        client_id,
        Level.V5,
        clean,
        numbers["keep_alive"],
        last,
        user,
        password,
        numbers["session_expiry_interval"],
        numbers["receive_max"],
        numbers["max_packet_size"] or 0,
        numbers["topic_alias_max"],
        problem,
        user_properties=tuple(pairs),
    )
    both_ways(theirs, ours)


@st.composite
def acknowledgements(draw: st.DrawFn) -> tuple[Any, AckPacket]:
    kind, packet, codes = draw(
        st.sampled_from(
            [
                (PacketType.PUBACK, mqtt5.PubAckPacket, mqtt5.PubAckReasonCode),
                (PacketType.PUBREC, mqtt5.PubRecPacket, mqtt5.PubRecReasonCode),
                (PacketType.PUBREL, mqtt5.PubRelPacket, mqtt5.PubRelReasonCode),
                (PacketType.PUBCOMP, mqtt5.PubCompPacket, mqtt5.PubCompReasonCode),
            ]
        )
    )
    number, reason, text = draw(IDS), draw(st.sampled_from(members(codes))), draw(st.none() | TOPICS)  # type: ignore[call-overload]
    theirs = packet(number, reason_code=reason, reason_str=text)  # type: ignore[operator]
    return theirs, AckPacket(kind, number, int(reason), text or "")


@given(acknowledgements())
def test_acknowledgements(each: tuple[Any, AckPacket]) -> None:
    both_ways(*each)


@given(
    IDS,
    st.lists(
        st.tuples(FILTERS, QOS, FLAGS, FLAGS, st.sampled_from(members(mqtt5.RetainHandling))), min_size=1, max_size=4
    ),
    st.none() | st.integers(1, 268_435_455),
)
def test_subscriptions(
    number: int,
    wanted: list[tuple[str, mqtt5.QoS, bool, bool, mqtt5.RetainHandling]],
    identifier: int | None,
) -> None:
    filters, requests = [], []
    for pattern, qos, no_local, keeps, handling in wanted:
        only_others = no_local and not pattern.startswith("$share/")
        filters.append(
            mqtt5.TopicFilter(
                pattern, max_qos=qos, no_local=only_others, retain_as_published=keeps, retain_handling=handling
            )
        )
        requests.append(SubscriptionRequest(pattern, int(qos), only_others, keeps, int(handling)))
    theirs = mqtt5.SubscribePacket(number, filters, subscription_id=identifier)
    both_ways(theirs, SubscribePacket(number, tuple(requests), identifier or 0))
    patterns = [one.filter for one in requests]
    both_ways(mqtt5.UnsubscribePacket(number, patterns), UnsubscribePacket(number, tuple(patterns)))


@given(
    IDS,
    st.lists(st.sampled_from(members(mqtt5.SubAckReasonCode)), min_size=1, max_size=4),
    st.lists(st.sampled_from(members(mqtt5.UnsubAckReasonCode)), min_size=1, max_size=4),
    st.none() | TOPICS,
)
def test_what_subscribers_are_answered(
    number: int,
    granted: list[mqtt5.SubAckReasonCode],
    ended: list[mqtt5.UnsubAckReasonCode],
    text: str | None,
) -> None:
    suback = SubackPacket(number, tuple(map(int, granted)), text or "")
    both_ways(mqtt5.SubAckPacket(number, granted, reason_str=text), suback, server=False)
    unsuback = UnsubackPacket(number, tuple(map(int, ended)))
    both_ways(mqtt5.UnsubAckPacket(number, ended), unsuback, server=False)


@given(st.data(), st.sampled_from(members(mqtt5.ConnAckReasonCode)), FLAGS)
def test_connack(data: st.DataObject, reason: mqtt5.ConnAckReasonCode, present: bool) -> None:
    values: dict[str, Any] = {}
    pairs: list[tuple[Property, Value]] = []
    for name, which, drawn in (
        ("assigned_client_id", Property.ASSIGNED_CLIENT_ID, TEXTS),
        ("server_keep_alive", Property.SERVER_KEEP_ALIVE, st.integers(0, 65_535)),
        ("reason_str", Property.REASON_STRING, TEXTS),
        ("server_reference", Property.SERVER_REFERENCE, TEXTS),
        ("max_packet_size", Property.MAXIMUM_PACKET_SIZE, st.integers(1, 2**32 - 1)),
        ("receive_max", Property.RECEIVE_MAXIMUM, st.integers(1, 65_534)),
        ("topic_alias_max", Property.TOPIC_ALIAS_MAXIMUM, IDS),
    ):
        if data.draw(FLAGS):
            value: Any = data.draw(drawn)
            values[name] = value
            pairs.append((which, value))
    present = present and reason == mqtt5.ConnAckReasonCode.SUCCESS
    theirs = mqtt5.ConnAckPacket(reason_code=reason, session_present=present, **values)
    ours = ConnackPacket(int(reason), present, with_length(write_all(pairs)))
    assert read_theirs(write(ours, Level.V5)).write() == theirs.write()
    read = read_ours(theirs.write(), server=False)
    assert isinstance(read, ConnackPacket)
    assert (read.reason, read.session_present) == (int(reason), present)
    found, _ = read_properties(read.properties, 0, len(read.properties), PacketType.CONNACK)
    assert found.values == dict(pairs)


@given(st.sampled_from(members(mqtt5.DisconnectReasonCode)), st.none() | SECONDS, st.none() | TOPICS)
def test_endings(reason: mqtt5.DisconnectReasonCode, expiry: int | None, server: str | None) -> None:
    theirs = mqtt5.DisconnectPacket(reason_code=reason, session_expiry_interval=expiry, server_reference=server)
    ours = DisconnectPacket(int(reason), -1 if expiry is None else expiry, server or "")
    both_ways(theirs, ours)
    assert read_ours(mqtt5.PingReqPacket().write()) == PingreqPacket()
    assert read_ours(mqtt5.PingRespPacket().write(), server=False) == PingrespPacket()


def packets() -> Iterator[bytes]:
    """One of every kind that clients send."""
    yield mqtt5.PublishPacket("a/b", b"x", qos=mqtt5.QoS.EXACTLY_ONCE, packet_id=3, content_type="text/plain").write()
    yield mqtt5.PubAckPacket(3, reason_code=mqtt5.PubAckReasonCode.NOT_AUTHORIZED, reason_str="no").write()
    yield mqtt5.SubscribePacket(3, [mqtt5.TopicFilter("a/#")], subscription_id=7).write()
    yield mqtt5.UnsubscribePacket(3, ["a/#"]).write()
    yield mqtt5.DisconnectPacket(session_expiry_interval=7).write()


@given(st.sampled_from(list(packets())), st.data())
def test_what_is_cut_off_is_not_a_packet_to_either(written: bytes, data: st.DataObject) -> None:
    """The length in front says less than there is: both refuse it, or both find the same packet in it."""
    kept = data.draw(st.integers(2, len(written) - 1))
    cut = written[:1] + bytes((kept - 2,)) + written[2:kept]
    reader = Decoder(level=Level.V5)
    found = reader.feed(cut)
    try:
        theirs = read_theirs(cut)
    except (ValueError, IndexError):
        theirs = None
    assert bool(found) != (reader.error is not None)
    if isinstance(theirs, (mqtt5.SubscribePacket, mqtt5.UnsubscribePacket)) and not found:
        # [MQTT-3.8.3-2], [MQTT-3.10.3-2]: mqtt5 lets them have no filter.
        assert str(reader.error).endswith("without a filter"), reader.error
    else:
        assert bool(found) == (theirs is not None), (cut, reader.error, theirs)
