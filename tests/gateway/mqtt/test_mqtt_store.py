"""What a broker knows after a kill: its store is opened again, and nothing was told to it in between."""

from pathlib import Path

from gateway.protocols.mqtt.numbers import Level, PacketType
from gateway.protocols.mqtt.packets import AckPacket, ConnackPacket, ConnectPacket, PublishPacket, Will
from tests.gateway.mqtt.broker_bench import running_broker

V4, V5 = Level.V311, Level.V5


def test_sessions_queues_and_filters_are_there_again(tmp_path: Path) -> None:
    with running_broker(tmp_path) as bench:
        reader, writer = bench.connect("reader", clean=False), bench.connect("writer")
        reader.subscribe("a/#", 2)
        reader.subscribe("$share/s/b", 1)
        writer.publish("a/b", b"one", 1)
        writer.publish("a/b", b"two", 2)
        before = reader.messages()
        assert len(before) == 2
    with running_broker(tmp_path) as bench:
        client, answer = bench.ask(ConnectPacket("reader", V4, False))
        assert answer == ConnackPacket(0, True)
        again = client.early  # type: ignore[attr-defined]
        assert [(one.payload, one.packet_id, one.qos, one.dup) for one in again] == [
            (one.payload, one.packet_id, one.qos, True) for one in before
        ]
        client.acknowledge(*again)
        writer = bench.connect("writer")
        writer.publish("a/c", b"three", 1)
        writer.publish("b", b"four", 1)
        after = client.messages()
        assert [(one.payload, one.packet_id) for one in after] == [(b"three", 3), (b"four", 4)]
        client.acknowledge(*after)
        assert not bench.database.read("SELECT 1 FROM mqtt_queue UNION ALL SELECT 1 FROM exchange_log WHERE held != 0")


def test_qos_2_goes_on_where_it_was_on_both_sides(tmp_path: Path) -> None:
    with running_broker(tmp_path) as bench:
        reader, writer = bench.connect("reader", clean=False), bench.connect("writer", clean=False)
        reader.subscribe("t", 2)
        writer.publish("t", b"out", 2)
        (message,) = reader.messages()
        assert reader.send(AckPacket(PacketType.PUBREC, 1)) == [AckPacket(PacketType.PUBREL, 1)]
        assert writer.got()
        assert writer.send(PublishPacket("t", b"in", 2, packet_id=7)) == [AckPacket(PacketType.PUBREC, 7)]
        assert message.payload == b"out"
    with running_broker(tmp_path) as bench:
        client, _ = bench.ask(ConnectPacket("reader", V4, False))
        assert client.early == [AckPacket(PacketType.PUBREL, 1)]  # type: ignore[attr-defined]
        writer, _ = bench.ask(ConnectPacket("writer", V4, False))
        # It was acknowledged, so it is here, and is not there twice when its sender is not sure.
        assert writer.send(PublishPacket("t", b"in", 2, dup=True, packet_id=7)) == [AckPacket(PacketType.PUBREC, 7)]
        assert writer.send(AckPacket(PacketType.PUBREL, 7)) == [AckPacket(PacketType.PUBCOMP, 7)]
        assert [one.payload for one in client.messages()] == [b"in"]
    with running_broker(tmp_path) as bench:
        writer, _ = bench.ask(ConnectPacket("writer", V4, False))
        assert writer.send(AckPacket(PacketType.PUBREL, 7)) == [AckPacket(PacketType.PUBCOMP, 7)]
        assert bench.broker.sessions["reader"].queued == 2


def test_what_is_retained_stays(tmp_path: Path) -> None:
    with running_broker(tmp_path) as bench:
        writer = bench.connect("writer", V5)
        for payload in (b"old", b"new"):
            writer.publish("a", payload, 1, retain=True, properties=b"\x26\0\1p\0\1q")
        writer.publish("gone", b"x", 0, retain=True)
        writer.publish("gone", b"", 0, retain=True)
    with running_broker(tmp_path) as bench:
        found = bench.connect("reader", V5).subscribe("#", 2)
        (message,) = [one for one in found if isinstance(one, PublishPacket)]
        assert (message.payload, message.qos, message.properties) == (b"new", 1, b"\x26\0\1p\0\1q")
        assert bench.database.read("SELECT sum(held) FROM exchange_log") == [(1,)]


def test_wills_of_those_who_were_connected_are_published(tmp_path: Path) -> None:
    with running_broker(tmp_path) as bench:
        reader = bench.connect("reader", clean=False)
        reader.subscribe("will/#", 1)
        bench.connect("a", will=Will(PublishPacket("will/now", b"x", 1)))
        bench.connect("b", V5, will=Will(PublishPacket("will/late", b"x", 1), 10), session_expiry=100)
    with running_broker(tmp_path) as bench:
        reader, _ = bench.ask(ConnectPacket("reader", V4, False))
        bench.pass_time(1)
        assert [one.topic for one in reader.messages()] == ["will/now"]
        bench.pass_time(11)
        assert [one.topic for one in reader.messages()] == ["will/late"]
    with running_broker(tmp_path) as bench:
        bench.pass_time(100)
        assert bench.broker.sessions["reader"].queued == 2, "once"


def test_sessions_that_expired_meanwhile_are_gone(tmp_path: Path) -> None:
    with running_broker(tmp_path) as bench:
        bench.connect("away", V5, session_expiry=10).vanish()
        bench.connect("connected", V5, session_expiry=10)
    with running_broker(tmp_path) as bench:
        bench.pass_time(11)
        assert not bench.broker.sessions
        assert not bench.database.read("SELECT 1 FROM mqtt_sessions")
