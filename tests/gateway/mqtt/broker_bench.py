"""A broker without sockets and without a loop: its store is a real one, and time passes when a test says so."""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from exchange.sqlite.tables import EXCHANGE_TABLES
from gateway.protocols.mqtt.broker import BrokerConfig, ClientGate, MqttBroker
from gateway.protocols.mqtt.connection import ConnectionState, MqttConnection
from gateway.protocols.mqtt.decode import Decoder
from gateway.protocols.mqtt.encode import write
from gateway.protocols.mqtt.names import MqttNamespace, TopicNames
from gateway.protocols.mqtt.numbers import Level, PacketType
from gateway.protocols.mqtt.packets import (
    AckPacket,
    ConnackPacket,
    ConnectPacket,
    MqttPacket,
    PublishPacket,
    SubscribePacket,
    SubscriptionRequest,
    Will,
)
from gateway.protocols.mqtt.store import MIGRATIONS, BrokerStore
from identifiers import DEFAULT_NAMING
from identifiers.namespaces import STANDARD
from storage import Database

T0 = 1_000_000.0


class BenchClient:
    """A client that shows every packet it is sent."""

    def __init__(self, bench: "BrokerBench", connection: MqttConnection, level: Level) -> None:
        self.bench = bench
        self.connection = connection
        self.level = level
        self.decoder = Decoder(server=False, level=level)

    def send(self, *packets: MqttPacket | bytes) -> list[MqttPacket]:
        """What is answered when all is done."""
        for packet in packets:
            data = packet if isinstance(packet, bytes) else write(packet, self.level)
            self.connection.receive(data, self.bench.now)
        self.bench.settle()
        return self.got()

    def got(self) -> list[MqttPacket]:
        found = self.decoder.feed(self.raw())
        assert self.decoder.error is None, self.decoder.error
        return found

    def raw(self) -> bytes:
        data = b"".join(self.connection.out)
        self.connection.out.clear()
        return data

    def messages(self) -> list[PublishPacket]:
        return [one for one in self.got() if isinstance(one, PublishPacket)]

    def subscribe(self, wanted: str, qos: int = 0, identifier: int = 0, **options: object) -> list[MqttPacket]:
        request = SubscriptionRequest(wanted, qos, **options)  # type: ignore[arg-type]
        return self.send(SubscribePacket(1, (request,), identifier))

    def publish(self, topic: str, payload: bytes = b"x", qos: int = 0, *, packet_id: int = 9, **more: object) -> None:
        self.connection.receive(
            write(
                PublishPacket(topic, payload, qos, packet_id=packet_id if qos else 0, **more),  # type: ignore[arg-type]
                self.level,
            ),
            self.bench.now,
        )
        if qos == 2:
            self.bench.settle()
            self.connection.receive(write(AckPacket(PacketType.PUBREL, packet_id), self.level), self.bench.now)
        self.bench.settle()

    def acknowledge(self, *messages: PublishPacket) -> list[MqttPacket]:
        found: list[MqttPacket] = []
        for one in messages:
            if one.qos == 1:
                found += self.send(AckPacket(PacketType.PUBACK, one.packet_id))
            elif one.qos == 2:
                found += self.send(AckPacket(PacketType.PUBREC, one.packet_id))
                found += self.send(AckPacket(PacketType.PUBCOMP, one.packet_id))
        return found

    def vanish(self) -> None:
        self.connection.lost(self.bench.now)
        self.bench.settle()

    @property
    def is_open(self) -> bool:
        return self.connection.state is not ConnectionState.CLOSED


class BrokerBench:
    def __init__(self, folder: Path, gate: ClientGate | None = None, **config: int) -> None:
        self.now = T0
        self.database = Database.open(folder / "broker.sqlite", [*EXCHANGE_TABLES, *MIGRATIONS])
        names = TopicNames("home.example", DEFAULT_NAMING, STANDARD.plus(MqttNamespace()))
        self.store = BrokerStore(self.database, names)
        self.broker = MqttBroker(BrokerConfig(**config), lambda: "auto-1", gate)  # type: ignore[arg-type]
        self.broker.now = self.now
        for stored in self.store.sessions(self.broker.config.max_inflight):
            self.broker.recall(stored.session)
            for request, identifier in stored.filters:
                self.broker.routes.add(stored.session, request, identifier)
        for message in self.store.retained():
            self.broker.retained.put(message)
        for client_id, will, at in self.store.wills():
            self.broker.recall_will(client_id, will, at)

    def settle(self) -> None:
        broker = self.broker
        while broker.has_work or broker.pages:
            if broker.has_work:
                group = broker.take_work()
                self.database.write(partial(self.store.apply, group, int(self.now * 1000))).result()
                for then in group.after:
                    then()
            while broker.pages:
                session = broker.pages.pop()
                broker.read(session, *self.store.page(session))

    def connect(
        self,
        client_id: str = "one",
        level: Level = Level.V311,
        *,
        clean: bool = True,
        will: Will | None = None,
        **more: object,
    ) -> BenchClient:
        client, answer = self.ask(ConnectPacket(client_id, level, clean, will=will, **more))  # type: ignore[arg-type]
        assert isinstance(answer, ConnackPacket), answer
        assert answer.reason == 0
        return client

    def ask(self, packet: ConnectPacket) -> tuple[BenchClient, MqttPacket | None]:
        client = BenchClient(self, MqttConnection(self.broker, "192.0.2.1"), packet.version)
        found = client.send(packet)
        rest = found[1:]
        client.early = rest  # type: ignore[attr-defined]
        return client, found[0] if found else None

    def open(self) -> BenchClient:
        return BenchClient(self, MqttConnection(self.broker, "192.0.2.1"), Level.V5)

    def pass_time(self, seconds: float) -> None:
        self.now += seconds
        self.broker.tick(self.now)
        self.settle()

    def close(self) -> None:
        self.database.close()


@contextmanager
def running_broker(folder: Path, gate: ClientGate | None = None, **config: int) -> Iterator[BrokerBench]:
    """One after another in the same folder: what the one before was not told to write is lost, as after a kill."""
    bench = BrokerBench(folder, gate, **config)
    try:
        yield bench
    finally:
        bench.close()
