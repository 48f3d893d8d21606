"""What a broker does with sessions, filters, messages and wills, in every version. No sockets, no waiting."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from gateway.protocols.mqtt.numbers import NEVER, Level, PacketType, ReasonCode, ReturnCode
from gateway.protocols.mqtt.packets import (
    AckPacket,
    ConnackPacket,
    ConnectPacket,
    DisconnectPacket,
    PubCallbackPacket,
    PublishPacket,
    SubackPacket,
    SubscribePacket,
    SubscriptionRequest,
    UnsubackPacket,
    UnsubscribePacket,
    Will,
)
from gateway.protocols.mqtt.redirection import ExtendedClient
from gateway.protocols.mqtt.session import MqttSession
from tests.gateway.mqtt.broker_bench import BrokerBench, running_broker

V31, V4, V5 = Level.V31, Level.V311, Level.V5


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[BrokerBench]:
    with running_broker(tmp_path) as bench:
        yield bench


@pytest.mark.parametrize("level", [V31, V4, V5])
@pytest.mark.parametrize("sent", [0, 1, 2])
@pytest.mark.parametrize("wanted", [0, 1, 2])
def test_a_message_arrives_with_the_lower_of_both_qos(bench: BrokerBench, level: Level, sent: int, wanted: int) -> None:
    reader, writer = bench.connect("reader", level), bench.connect("writer", V5)
    reader.subscribe("a/+", wanted)
    writer.publish("a/b", b"hello", sent)
    (message,) = reader.messages()
    assert (message.topic, message.payload, message.qos, message.dup) == ("a/b", b"hello", min(sent, wanted), False)
    reader.acknowledge(message)
    session = bench.broker.sessions["reader"]
    assert (session.queued, session.inflight) == (0, {})


def test_own_messages_come_before_their_acknowledgement(bench: BrokerBench) -> None:
    client = bench.connect("one")
    client.subscribe("t", 2)
    found = client.send(PublishPacket("t", b"x", 1, packet_id=5))
    assert [type(one) for one in found] == [PublishPacket, AckPacket]
    assert client.send(PublishPacket("t", b"y", 2, packet_id=6)) == [AckPacket(PacketType.PUBREC, 6)]
    found = client.send(AckPacket(PacketType.PUBREL, 6))
    assert [type(one) for one in found] == [PublishPacket, AckPacket]


def test_identifiers_of_a_session_count_up_and_go_round(bench: BrokerBench) -> None:
    reader, writer = bench.connect("reader"), bench.connect("writer")
    reader.subscribe("t", 1)
    writer.publish("t", b"1", 1)
    writer.publish("t", b"2", 1)
    first, second = reader.messages()
    assert (first.packet_id, second.packet_id) == (1, 2)
    session = bench.broker.sessions["reader"]
    session.last_id = 65_535
    reader.acknowledge(second)
    writer.publish("t", b"3", 1)
    (third,) = reader.messages()
    assert third.packet_id == 2, "1 is still in use"


def test_not_more_is_under_way_than_a_client_takes(bench: BrokerBench) -> None:
    reader, writer = bench.connect("reader", V5, receive_maximum=3), bench.connect("writer", V5)
    reader.subscribe("t", 2)
    for number in range(10):
        writer.publish("t", str(number).encode(), 1 + number % 2)
    got = reader.messages()
    assert len(got) == 3
    found = [one for one in reader.acknowledge(*got) if isinstance(one, PublishPacket)]
    while found:
        got += found
        found = [one for one in reader.acknowledge(*found) if isinstance(one, PublishPacket)]
    assert [one.payload for one in got] == [str(number).encode() for number in range(10)]


def test_a_client_that_sends_more_than_it_may_has_to_go(bench: BrokerBench) -> None:
    client = bench.connect("one", V5)
    for number in range(1, 21):
        assert client.send(PublishPacket("t", b"x", 2, packet_id=number)) == [AckPacket(PacketType.PUBREC, number)]
    assert client.send(PublishPacket("t", b"x", 2, packet_id=20)), "again is not more"
    found = client.send(PublishPacket("t", b"x", 2, packet_id=21))
    assert found == [DisconnectPacket(ReasonCode.RECEIVE_MAXIMUM_EXCEEDED)]


def test_a_durable_session_gets_what_it_missed_in_order(bench: BrokerBench) -> None:
    reader, writer = bench.connect("reader", clean=False), bench.connect("writer")
    reader.subscribe("a/#", 2)
    reader.send(DisconnectPacket())
    reader.vanish()
    for number in range(30):
        writer.publish("a/b", str(number).encode(), number % 3)
    client, answer = bench.ask(ConnectPacket("reader", V4, False))
    assert answer == ConnackPacket(ReturnCode.ACCEPTED, True)
    got: list[PublishPacket] = []
    found = [one for one in client.early if isinstance(one, PublishPacket)]  # type: ignore[attr-defined]
    while found:
        got += found
        found = [one for one in client.acknowledge(*found) if isinstance(one, PublishPacket)]
    assert [one.payload for one in got] == [str(number).encode() for number in range(30) if number % 3]


def test_what_was_not_acknowledged_comes_again_with_its_identifier(bench: BrokerBench) -> None:
    reader, writer = bench.connect("reader", clean=False), bench.connect("writer")
    reader.subscribe("t", 2)
    writer.publish("t", b"one", 1)
    writer.publish("t", b"two", 2)
    before = reader.messages()
    reader.vanish()
    client, _ = bench.ask(ConnectPacket("reader", V4, False))
    again = client.early  # type: ignore[attr-defined]
    assert [(one.packet_id, one.dup) for one in again] == [(one.packet_id, True) for one in before]
    # Half of QoS 2 is done: from then on only the release comes again.
    assert client.send(AckPacket(PacketType.PUBREC, 2)) == [AckPacket(PacketType.PUBREL, 2)]
    client.vanish()
    client, _ = bench.ask(ConnectPacket("reader", V4, False))
    assert client.early[1:] == [AckPacket(PacketType.PUBREL, 2)]  # type: ignore[attr-defined]


def test_another_connection_of_a_client_takes_its_session_over(bench: BrokerBench) -> None:
    first = bench.connect("one", V5, session_expiry=100)
    first.subscribe("t", 1)
    second, answer = bench.ask(ConnectPacket("one", V5, False, session_expiry=100))
    assert isinstance(answer, ConnackPacket)
    assert answer.session_present
    assert first.got() == [DisconnectPacket(ReasonCode.SESSION_TAKEN_OVER)]
    assert not first.is_open
    first.vanish()
    assert bench.broker.connected == 1
    bench.connect("writer").publish("t", b"x", 1)
    assert [one.payload for one in second.messages()] == [b"x"]


def test_sessions_expire_when_they_said(bench: BrokerBench) -> None:
    bench.connect("one", V5, session_expiry=10).vanish()
    bench.connect("ever", V5, session_expiry=NEVER).vanish()
    bench.connect("gone", V5).vanish()
    longer = bench.connect("longer", V5, session_expiry=1)
    longer.send(DisconnectPacket(0, 100))
    longer.vanish()
    assert set(bench.broker.sessions) == {"one", "ever", "longer"}
    bench.pass_time(9)
    assert set(bench.broker.sessions) == {"one", "ever", "longer"}
    bench.pass_time(2)
    assert set(bench.broker.sessions) == {"ever", "longer"}
    bench.pass_time(1e6)
    assert set(bench.broker.sessions) == {"ever"}
    assert [one.session.client_id for one in bench.store.sessions(20)] == ["ever"]


def test_a_clean_start_forgets(bench: BrokerBench) -> None:
    reader, writer = bench.connect("reader", clean=False), bench.connect("writer")
    reader.subscribe("t", 1)
    reader.vanish()
    writer.publish("t", b"x", 1)
    _, answer = bench.ask(ConnectPacket("reader", V4, True))
    assert answer == ConnackPacket(ReturnCode.ACCEPTED, False)
    writer.publish("t", b"x", 1)
    assert not bench.database.read("SELECT 1 FROM mqtt_queue UNION ALL SELECT 1 FROM exchange_log WHERE held != 0")


def test_retained_messages_are_for_those_who_come(bench: BrokerBench) -> None:
    writer = bench.connect("writer", V5)
    for qos in range(3):
        writer.publish(f"a/{qos}", b"state", qos, retain=True)
    reader = bench.connect("reader", V5)
    found = reader.subscribe("a/#", 2)
    assert isinstance(found[0], SubackPacket)
    got = [one for one in found[1:] if isinstance(one, PublishPacket)]
    assert sorted((one.topic, one.qos, one.retain) for one in got) == [(f"a/{qos}", qos, True) for qos in range(3)]
    writer.publish("a/1", b"new", retain=True)
    assert [one.retain for one in reader.messages()] == [False]
    writer.publish("a/1", b"", retain=True)
    assert [one.payload for one in reader.messages()] == [b""]
    assert len(bench.connect("third").subscribe("#")) == 3
    assert len(bench.connect("fourth").subscribe("$SYS/#")) == 1


def test_options_of_a_subscription(bench: BrokerBench) -> None:
    writer, reader = bench.connect("writer", V5), bench.connect("reader", V5)
    writer.publish("t", b"state", retain=True)
    assert len(reader.subscribe("t", retain_handling=1)) == 2, "it is new"
    assert len(reader.subscribe("t", retain_handling=1)) == 1
    assert len(reader.subscribe("t", retain_handling=0)) == 2
    assert len(reader.subscribe("t", retain_handling=2, retain_as_published=True, no_local=True)) == 1
    writer.publish("t", b"new", retain=True)
    assert [one.retain for one in reader.messages()] == [True]
    reader.publish("t", b"own")
    assert reader.messages() == []
    reader.subscribe("+")
    reader.publish("t", b"own")
    assert len(reader.messages()) == 1, "another filter has no such option"


def test_filters_that_match_twice_are_one_delivery(bench: BrokerBench) -> None:
    reader = bench.connect("reader", V5)
    reader.subscribe("a/#", 2, 2)
    reader.subscribe("a/+", 1, 3)
    reader.subscribe("b", 0, 268_435_455)
    bench.connect("writer").publish("a/b", b"x", 2)
    (message,) = reader.messages()
    assert message.qos == 2
    assert set(message.subscription_ids) == {2, 3}


def test_a_shared_subscription_is_served_in_turn(bench: BrokerBench) -> None:
    readers = [bench.connect(f"r{number}", V5) for number in range(3)]
    for reader in readers:
        reader.subscribe("$share/group/a/#", 1)
    other = bench.connect("other", V5)
    other.subscribe("$share/second/a/#", 1)
    plain = bench.connect("plain")
    plain.subscribe("a/b")
    writer = bench.connect("writer")
    for number in range(9):
        writer.publish("a/b", str(number).encode(), 1)
    assert [len(reader.messages()) for reader in readers] == [3, 3, 3]
    assert len(other.messages()) == len(plain.messages()) == 9
    readers[0].vanish()
    writer.publish("a/b", b"x", 1)
    writer.publish("a/b", b"y", 1)
    assert sum(len(reader.messages()) for reader in readers[1:]) == 2
    assert readers[1].send(UnsubscribePacket(1, ("$share/group/a/#",))) == [UnsubackPacket(1, (0,))]


def test_wills_are_published_when_their_time_has_come(bench: BrokerBench) -> None:
    reader = bench.connect("reader", V5)
    reader.subscribe("will", 1)
    will = Will(PublishPacket("will", b"gone", 1))
    bench.connect("a", will=will).vanish()
    assert [one.payload for one in reader.messages()] == [b"gone"]
    polite = bench.connect("b", will=will)
    polite.send(DisconnectPacket())
    polite.vanish()
    assert reader.messages() == []
    angry = bench.connect("c", V5, will=will)
    angry.send(DisconnectPacket(ReasonCode.DISCONNECT_WITH_WILL))
    angry.vanish()
    assert len(reader.messages()) == 1
    delayed = Will(PublishPacket("will", b"late"), 10)
    bench.connect("d", V5, will=delayed, session_expiry=60).vanish()
    bench.pass_time(9)
    assert reader.messages() == []
    bench.pass_time(2)
    assert [one.payload for one in reader.messages()] == [b"late"]
    # The end of the session is earlier; a client that is back in time is not dead.
    bench.connect("e", V5, will=delayed, session_expiry=5).vanish()
    bench.connect("f", V5, will=delayed, session_expiry=60).vanish()
    bench.pass_time(6)
    assert len(reader.messages()) == 1
    bench.connect("f", V5, clean=False, session_expiry=60)
    bench.pass_time(20)
    assert reader.messages() == []


def test_silence_ends_a_connection(bench: BrokerBench) -> None:
    reader = bench.connect("reader")
    reader.subscribe("will")
    client = bench.connect("one", V5, keep_alive=10, will=Will(PublishPacket("will", b"silent")))
    bench.now += 14
    client.connection.tick(bench.now)
    assert client.is_open
    bench.now += 2
    client.connection.tick(bench.now)
    assert client.got() == [DisconnectPacket(ReasonCode.KEEP_ALIVE_TIMEOUT)]
    client.vanish()
    assert [one.payload for one in reader.messages()] == [b"silent"]
    stranger = bench.open()
    bench.now += 11
    stranger.connection.tick(bench.now)
    assert not stranger.is_open


def test_messages_grow_old(bench: BrokerBench) -> None:
    reader, writer = bench.connect("reader", V5, session_expiry=100), bench.connect("writer", V5)
    reader.subscribe("t", 1)
    reader.vanish()
    writer.publish("t", b"short", 1, expiry=2)
    writer.publish("t", b"long", 1, expiry=60)
    writer.publish("s", b"state", 0, expiry=2, retain=True)
    bench.pass_time(3)
    client, _ = bench.ask(ConnectPacket("reader", V5, False, session_expiry=100))
    (message,) = client.early  # type: ignore[attr-defined]
    assert (message.payload, message.expiry) == (b"long", 57)
    assert len(client.subscribe("s")) == 1


def test_aliases_both_ways(bench: BrokerBench) -> None:
    client = bench.connect("one", V5, topic_alias_maximum=1)
    client.subscribe("t", 1)
    client.publish("t", b"1", alias=4)
    client.publish("", b"2", alias=4)
    first, second = client.messages()
    assert (first.topic, first.alias, second.topic, second.alias) == ("t", 1, "", 1)
    client.subscribe("u")
    client.publish("u", b"3")
    assert [(one.topic, one.alias) for one in client.messages()] == [("u", 0)], "only one was allowed"


def test_what_is_too_large_for_a_client_is_not_sent(bench: BrokerBench) -> None:
    client = bench.connect("one", V5, maximum_packet=30)
    client.subscribe("t", 1)
    client.publish("t", b"x" * 40, 1)
    client.publish("t", b"y", 1)
    assert [one.payload for one in client.messages()] == [b"y"]
    assert bench.broker.sessions["one"].queued == 1


def test_acknowledgements_of_something_else(bench: BrokerBench) -> None:
    for qos, kind in ((1, PacketType.PUBREC), (1, PacketType.PUBCOMP), (2, PacketType.PUBACK), (2, PacketType.PUBCOMP)):
        client = bench.connect("one", V5)
        client.subscribe("t", qos)
        client.publish("t", b"x", qos)
        (message,) = client.messages()
        found = client.send(AckPacket(kind, message.packet_id))
        assert found == [DisconnectPacket(ReasonCode.PROTOCOL_ERROR)], (qos, kind)


def test_queues_are_bounded_and_say_so(tmp_path: Path) -> None:
    with running_broker(tmp_path, max_queued=5, max_sessions=2, max_subscriptions=2) as bench:
        reader, writer = bench.connect("reader", clean=False), bench.connect("writer", V5)
        for wanted in ("a", "b"):
            reader.subscribe(wanted, 1)
        assert reader.subscribe("c", 1) == [SubackPacket(1, (0x80,))]
        reader.vanish()
        for _ in range(9):
            writer.publish("a", b"x", 1)
        assert (bench.broker.sessions["reader"].queued, bench.broker.counters.dropped) == (5, 4)
        _, answer = bench.ask(ConnectPacket("third", V5))
        assert isinstance(answer, ConnackPacket)
        assert answer.reason == ReasonCode.QUOTA_EXCEEDED


def test_a_queue_that_is_longer_than_memory_allows_comes_from_the_store(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gateway.protocols.mqtt.session.IN_MEMORY", 5)
    monkeypatch.setattr("gateway.protocols.mqtt.store.PAGE", 7)
    with running_broker(tmp_path, max_inflight=20) as bench:
        reader, writer = bench.connect("reader", clean=False), bench.connect("writer")
        reader.subscribe("t", 1)
        for number in range(60):
            writer.publish("t", str(number).encode(), 1)
        session = bench.broker.sessions["reader"]
        assert session.has_backlog
        got: list[PublishPacket] = []
        found = reader.messages()
        while found:
            got += found
            found = [one for one in reader.acknowledge(*found) if isinstance(one, PublishPacket)]
            if len(got) == 40:
                writer.publish("t", b"later", 1)
        assert [one.payload for one in got] == [*(str(number).encode() for number in range(60)), b"later"]
        assert not bench.database.read("SELECT 1 FROM mqtt_queue")


class ForbiddingGate:
    def may_publish(self, session: MqttSession, topic: str) -> str | None:
        return "not here" if topic.startswith("secret") else None

    def may_subscribe(self, session: MqttSession, wanted: str) -> str | None:
        return "not here" if wanted.startswith("secret") else None

    def may_hear(self, session: MqttSession, topic: str) -> bool:
        return topic != "a/secret"


def test_rules_are_asked_for_every_message(tmp_path: Path) -> None:
    with running_broker(tmp_path, ForbiddingGate()) as bench:
        five, four = bench.connect("five", V5), bench.connect("four")
        wanted = (SubscriptionRequest("secret/a"), SubscriptionRequest("#"))
        assert five.send(SubscribePacket(1, wanted)) == [
            SubackPacket(1, (ReasonCode.NOT_AUTHORIZED, 0), "secret/a: not here")
        ]
        assert four.send(SubscribePacket(1, wanted)) == [SubackPacket(1, (0x80, 0))]
        (answer,) = five.send(PublishPacket("secret/b", b"x", 1, packet_id=3))
        assert answer == AckPacket(PacketType.PUBACK, 3, ReasonCode.NOT_AUTHORIZED, "not here")
        assert four.send(PublishPacket("secret/b", b"x", 1, packet_id=3)) == [AckPacket(PacketType.PUBACK, 3)]
        five.publish("a/secret", b"x", 1)
        five.publish("a/public", b"x")
        assert [one.topic for one in four.messages()] == ["a/public"]
        assert bench.broker.counters.denied == 4


# The way to another broker.


def test_clients_are_sent_elsewhere_as_each_understands_it(bench: BrokerBench) -> None:
    broker = bench.broker
    where = b"\0\x0d10.0.0.2:1883"
    for level, begin, moved in (
        (Level.EXTENDED, b"\x20\x11\0\x06" + where, b"\x20\x11\0\x08" + where),
        (V5, b"\x20\x13\0\x9c\x10\x1c" + where, b"\xe0\x12\x9d\x10\x1c" + where),
        (V4, b"\x20\x02\0\x03", b""),
        (V31, b"\x20\x02\0\x03", b""),
    ):
        client = bench.open()
        client.connection._referral = lambda: ("10.0.0.2:1883", False)
        client.level = level
        client.connection.receive(_connect(level), bench.now)
        assert client.raw() == begin, level
        assert not client.is_open
        client = bench.connect("one", level)
        client.connection.send_elsewhere("10.0.0.2:1883", is_moved=True, is_active=False)
        assert client.raw() == moved, level
        assert not client.is_open
        client.vanish()
    active = bench.connect("one", Level.EXTENDED)
    active.connection.send_elsewhere("10.0.0.2:1883", is_moved=False, is_active=True)
    assert active.raw() == b"\x20\x11\0\x07" + where
    assert broker.counters.refused == 4


def _connect(level: Level) -> bytes:
    name = b"\0\6MQIsdp" if level in (V31, Level.EXTENDED) else b"\0\4MQTT"
    rest = bytes((level, 2)) + b"\0\x0a" + (b"\0" if level == V5 else b"") + b"\0\1p"
    return bytes((0x10, len(name + rest))) + name + rest


def test_a_client_of_the_extension_falls_back_and_follows() -> None:
    refused, silent = ExtendedClient("a:1883"), ExtendedClient("a:1883")
    refused.refused(ConnackPacket(ReturnCode.UNACCEPTABLE_VERSION))
    silent.refused(None)
    assert refused.level == silent.level == V31
    assert not refused.renewed(ConnackPacket(ReturnCode.RENEW, address="b:1883")), "3.1 has no such code"
    sent = ExtendedClient("a:1883")
    answer = ConnackPacket(ReturnCode.RENEW_ACTIVE, address="b:1883")
    assert sent.renewed(answer)
    assert sent.address == "b:1883"
    assert not sent.subscribes(answer)
    assert sent.subscribes(ConnackPacket(ReturnCode.RENEW_TOPICS, address="b:1883"))


def test_version_255_without_the_extension_is_refused_as_3_1_has_it(bench: BrokerBench) -> None:
    client = bench.open()
    client.connection._decoder._extended = False
    client.connection.receive(_connect(Level.EXTENDED), bench.now)
    assert client.raw() == b"\x20\x02\0\x01"


def test_pubcallback_is_handed_on_byte_by_byte_or_not_at_all(tmp_path: Path) -> None:
    inner = b"\x30\x04\0\1tx"
    exact = b'\xf0\x12\0\x0a{one"t%77o}' + inner[:4]
    with running_broker(tmp_path, relays_callbacks=1) as bench:
        sender, one = bench.connect("sender", Level.EXTENDED), bench.connect("one", Level.EXTENDED)
        two = bench.connect("two", V4)
        sender.send(PubCallbackPacket(("one", "two", "nobody"), inner))
        assert one.raw() == two.raw() == inner
        assert exact[:2] == b"\xf0\x12"
        assert sender.send(PubCallbackPacket(("one",), inner + b"\xe0\0")) == []
        assert not sender.is_open, "only one packet may be in it"
        assert one.raw() == b""
    with running_broker(tmp_path) as bench:
        sender, one = bench.connect("sender", Level.EXTENDED), bench.connect("one")
        sender.send(PubCallbackPacket(("one",), inner))
        assert (one.raw(), sender.is_open) == (b"", False)
