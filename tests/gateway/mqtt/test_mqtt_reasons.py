"""Refusals that say why: to clients that want to know, in packets of a size that they take."""

from pathlib import Path
from typing import Any

from gateway.protocols.mqtt.connection import MqttConnection
from gateway.protocols.mqtt.encode import write
from gateway.protocols.mqtt.numbers import Level, PacketType, ReasonCode
from gateway.protocols.mqtt.packets import (
    AckPacket,
    ConnackPacket,
    ConnectPacket,
    PublishPacket,
    SubackPacket,
    SubscribePacket,
    SubscriptionRequest,
)
from tests.gateway.mqtt.broker_bench import BenchClient, running_broker
from tests.gateway.mqtt.test_mqtt_broker import ForbiddingGate

V4, V5 = Level.V311, Level.V5


def test_reasons_are_told_to_who_wants_them_and_has_room(tmp_path: Path) -> None:
    refused = PublishPacket("secret/b", b"x", 2, packet_id=3)
    publish = AckPacket(PacketType.PUBREC, 3, ReasonCode.NOT_AUTHORIZED)
    subscribe = SubackPacket(1, (ReasonCode.NOT_AUTHORIZED,))
    with running_broker(tmp_path, ForbiddingGate(), max_sessions=1, max_subscriptions=1) as bench:
        told = AckPacket(PacketType.PUBREC, 3, ReasonCode.NOT_AUTHORIZED, "not here")
        cases: tuple[tuple[dict[str, Any], bool], ...] = (
            ({}, True),
            ({"request_problem": False}, False),
            ({"maximum_packet": len(write(told, V5))}, True),
            ({"maximum_packet": len(write(told, V5)) - 1}, False),
        )
        for more, texts in cases:
            client = bench.connect("one", V5, **more)
            assert client.send(refused) == [told if texts else publish], more
            client.vanish()
        client = bench.connect("one", V5)
        many = tuple(SubscriptionRequest(f"secret/{number}") for number in range(60))
        (answer,) = client.send(SubscribePacket(1, many))
        assert isinstance(answer, SubackPacket)
        assert answer.reasons == (ReasonCode.NOT_AUTHORIZED,) * 60
        assert answer.text == "; ".join(f"secret/{number}: not here" for number in range(4))
        assert client.subscribe("a") == [SubackPacket(1, (0,))]
        assert client.subscribe("b") == [
            SubackPacket(1, (ReasonCode.QUOTA_EXCEEDED,), "a session has at most 1 filters")
        ]
        quiet = bench.connect("one", V5, request_problem=False)
        assert quiet.subscribe("secret/a") == [subscribe]
        _, full = bench.ask(ConnectPacket("two", V5))
        assert isinstance(full, ConnackPacket)
        assert b"\x1f\0" in full.properties
        assert b"1 sessions" in full.properties


def test_who_is_not_let_in_is_told_why(tmp_path: Path) -> None:
    with running_broker(tmp_path) as bench:

        def answer(reason: ReasonCode, *, problem: bool = True, level: Level = V5) -> bytes:
            connection = MqttConnection(bench.broker, "192.0.2.1", check=lambda *_: reason)
            client = BenchClient(bench, connection, level)
            connection.receive(write(ConnectPacket("one", level, request_problem=problem), level), bench.now)
            assert not client.is_open
            return client.raw()

        assert answer(ReasonCode.BAD_USER_OR_PASSWORD, problem=False) == b"\x20\x03\0\x86\0"
        assert answer(ReasonCode.BAD_USER_OR_PASSWORD, level=V4) == b"\x20\x02\0\x04"
        for reason, word in (
            (ReasonCode.BAD_USER_OR_PASSWORD, b"no such user"),
            (ReasonCode.NOT_AUTHORIZED, b"a token"),
            (ReasonCode.CLIENT_ID_NOT_VALID, b"another user"),
        ):
            assert word in answer(reason)
