"""Hostile packets for codec and broker of MQTT: every one has a reason, nothing escapes, memory stays flat.

A target is one client of one broker, which all targets share, as in `trials.fuzz.wire`. When it is sent away it comes
again as another client; its queues, sessions and retained messages are bounded, so that a million packets show whether
the bounds hold. What the broker wants on disk is taken as written: the store has crash runs of its own.
"""

import random
from collections.abc import Callable, Iterator

from gateway.protocols.mqtt.broker import BrokerConfig, MqttBroker
from gateway.protocols.mqtt.connection import ConnectionState, MqttConnection
from gateway.protocols.mqtt.encode import write
from gateway.protocols.mqtt.numbers import NEVER, Level, PacketType
from gateway.protocols.mqtt.packets import (
    AckPacket,
    ConnectPacket,
    DisconnectPacket,
    MqttPacket,
    PingreqPacket,
    PubCallbackPacket,
    PublishPacket,
    SubscribePacket,
    SubscriptionRequest,
    UnsubscribePacket,
    Will,
)

CLIENTS = 12
TOPICS = ("a", "a/b", "a/b/c", "/", "$SYS/x", "$web/a.example/x", "ü/ß")
FILTERS = ("#", "+", "a/+", "a/b/#", "$share/s/a/#", "$SYS/#", "/", "+/+/+")
BOUNDS = BrokerConfig(
    max_sessions=CLIENTS + 4,
    max_subscriptions=8,
    max_queued=40,
    max_queued_bytes=40_000,
    max_retained=20,
    max_retained_bytes=20_000,
    max_received_bytes=20_000,
    max_packet=4_096,
    relays_callbacks=True,
)
STEP = 0.02
"""Seconds that pass from packet to packet."""


class FuzzedBroker:
    def __init__(self, seed: int) -> None:
        self._rng = random.Random(seed)  # noqa: S311 - repeatable on purpose
        self._ids = 0
        self.now = 1_000_000.0
        self.broker = MqttBroker(BOUNDS, self._new_id)
        self.broker.now = self.now

    def _new_id(self) -> str:
        self._ids += 1
        return f"auto-{self._ids % CLIENTS}"

    def targets(self) -> dict[str, Callable[[bytes], str]]:
        return {
            "MQTT 3.1": _FuzzedClient(self, Level.EXTENDED),
            "MQTT 3.1.1": _FuzzedClient(self, Level.V311),
            "MQTT 5.0": _FuzzedClient(self, Level.V5),
            "MQTT, first packet": _FuzzedClient(self, None),
        }

    def settle(self) -> None:
        broker = self.broker
        while broker.has_work:
            for then in broker.take_work().after:
                then()
        while broker.pages:
            session = broker.pages.pop()
            broker.read(session, [], True)
        broker.dirty.clear()
        broker.filters_changed.clear()

    def pass_time(self) -> None:
        self.now += STEP
        self.broker.tick(self.now)

    def hostile(self) -> Iterator[bytes]:
        """Valid packets, spoilt ones, and noise."""
        rng = self._rng
        seeds = [write(packet, level) for level in (Level.V311, Level.V5) for packet in _packets(rng)]
        while True:
            data = bytearray(rng.choice(seeds))
            for _ in range(rng.choice((0, 0, 1, 1, 2, 5))):
                kind = rng.randrange(4)
                at = rng.randrange(len(data)) if data else 0
                if kind == 0 and data:
                    data[at] = rng.randrange(256)
                elif kind == 1:
                    data[at:at] = rng.randbytes(rng.randrange(1, 9))
                elif kind == 2:
                    del data[at : at + rng.randrange(1, 9)]
                else:
                    data += rng.choice(seeds)
            yield bytes(data) or b"\0"


class _FuzzedClient:
    def __init__(self, world: FuzzedBroker, level: Level | None) -> None:
        self._world = world
        self._level = level
        self._connection: MqttConnection | None = None

    def __call__(self, data: bytes) -> str:
        world = self._world
        connection = self._connection
        if connection is None or connection.state is ConnectionState.CLOSED or self._level is None:
            self._end()
            connection = self._connection = self._connected()
        before = world.broker.counters.errors
        connection.receive(data, world.now)
        world.settle()
        connection.out.clear()
        world.pass_time()
        connection.tick(world.now)
        if world.broker.counters.errors > before:
            return "sent away"
        return "closed" if connection.state is ConnectionState.CLOSED else "taken"

    def _end(self) -> None:
        if self._connection is not None:
            self._connection.lost(self._world.now)
            self._world.settle()

    def _connected(self) -> MqttConnection:
        world = self._world
        connection = MqttConnection(world.broker, "192.0.2.1")
        if self._level is not None:
            rng = world._rng
            packet = ConnectPacket(
                f"c{rng.randrange(CLIENTS)}",
                self._level,
                rng.random() < 0.5,
                60,
                Will(PublishPacket("a/b", b"gone", rng.randrange(3)), rng.randrange(3)) if rng.random() < 0.3 else None,
                session_expiry=rng.choice((0, 1, 10)) if self._level == Level.V5 else 0,
            )
            connection.receive(write(packet, self._level), world.now)
            world.settle()
            connection.out.clear()
        return connection


def _packets(rng: random.Random) -> list[MqttPacket]:
    found: list[MqttPacket] = [
        PingreqPacket(),
        DisconnectPacket(),
        ConnectPacket("c1", Level.V5, session_expiry=NEVER, topic_alias_maximum=5),
        ConnectPacket("c2", Level.V31, False),
        PubCallbackPacket(("c1", "c2"), write(PublishPacket("a", b"x"), Level.V31)),
    ]
    for number in range(60):
        qos = number % 3
        topic, size = rng.choice(TOPICS), rng.choice((0, 1, 10, 100, 1_000))
        packet_id = rng.randrange(1, 30) if qos else 0
        found.append(PublishPacket(topic, rng.randbytes(size), qos, rng.random() < 0.3, False, packet_id))
        found.append(
            PublishPacket(topic, b"x", qos, packet_id=packet_id, alias=rng.randrange(12), expiry=rng.randrange(-1, 3))
        )
        kind = rng.choice((PacketType.PUBACK, PacketType.PUBREC, PacketType.PUBREL, PacketType.PUBCOMP))
        found.append(AckPacket(kind, rng.randrange(1, 30)))
        wanted = SubscriptionRequest(rng.choice(FILTERS), rng.randrange(3), False, False, rng.randrange(3))
        found.append(SubscribePacket(rng.randrange(1, 30), (wanted,), rng.choice((0, 1, 300))))
        found.append(UnsubscribePacket(rng.randrange(1, 30), (rng.choice(FILTERS),)))
    return found
