"""MQTT as a protocol of the gateway: a broker at its door."""

import asyncio
import time
import uuid
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from aiohttp import web

from exchange.model import Appended
from gateway import __version__
from gateway.events import GatewayStoreFailed
from gateway.protocols.descriptor import (
    Figure,
    ListeningDoor,
    LiveSetting,
    OpenDoor,
    ProtocolDescriptor,
    ProtocolHost,
    RunningProtocol,
)
from gateway.protocols.mqtt.adapter import MqttAdapter
from gateway.protocols.mqtt.bridge import MqttBridge
from gateway.protocols.mqtt.broker import MqttBroker
from gateway.protocols.mqtt.connection import MqttConnection
from gateway.protocols.mqtt.doors import MqttDoor, WebSocketWire
from gateway.protocols.mqtt.gate import RulesGate
from gateway.protocols.mqtt.names import MqttNamespace, TopicNames
from gateway.protocols.mqtt.numbers import ReasonCode
from gateway.protocols.mqtt.packets import ConnectPacket
from gateway.protocols.mqtt.runner import READ_ON_AT, BrokerRunner
from gateway.protocols.mqtt.section import MqttConfig, MqttSection, mqtt_config
from gateway.protocols.mqtt.store import LABEL, MIGRATIONS, BrokerStore
from identifiers import ItemId, TopicError
from push_hub.health import QueueLevel
from serving.acceptor import ConnectionRoom

LOGGED_AT_ONCE = READ_ON_AT // 2
"""Messages on their way to disk from which on those of QoS 0, which nobody was promised, are not kept for others."""


@dataclass(frozen=True, slots=True)
class _Parts:
    broker: MqttBroker
    runner: BrokerRunner
    store: BrokerStore
    names: TopicNames
    adapter: MqttAdapter


class MqttProtocol(RunningProtocol[MqttConfig]):
    def __init__(self, config: MqttConfig, host: ProtocolHost) -> None:
        super().__init__(config, host)
        self.open: list[MqttDoor] = []
        self.unlogged = 0
        """Messages of QoS 0 that only clients of the broker were given, because the disk was behind."""
        self._parts: _Parts | None = None
        self.bridges: list[MqttBridge] = []
        self._telling: asyncio.Task[None] | None = None
        self._checking: set[asyncio.Task[None]] = set()
        self._noting: set[asyncio.Task[None]] = set()
        self._room = ConnectionRoom(config.clients, config.clients_per_network)
        self._began = time.monotonic()

    @property
    def broker(self) -> MqttBroker:
        return self._running.broker

    @property
    def runner(self) -> BrokerRunner:
        return self._running.runner

    @property
    def _running(self) -> _Parts:
        if self._parts is None:
            raise RuntimeError("the gateway is not running")
        return self._parts

    # Its life.

    async def prepare(self) -> None:
        config, host = self.config, self.host
        names = TopicNames(config.domain, host.naming, host.namespaces)
        store = BrokerStore(host.database, names)
        gate = RulesGate(host.access, names)
        broker = MqttBroker(config.broker, _new_id, gate, self._is_wanted_elsewhere)
        runner = BrokerRunner(
            broker, store, host.database, host.clock, self._entered, self._filters_changed, self._failed
        )
        adapter = MqttAdapter(broker, store, names, host.naming, host.namespaces, host.control, runner.soon)
        self._parts = _Parts(broker, runner, store, names, adapter)
        broker.now = host.clock()
        for stored in store.sessions(config.broker.max_inflight):
            session = stored.session
            broker.recall(session)
            for request, identifier in stored.filters:
                broker.routes.add(session, request, identifier)
        for message in store.retained():
            broker.retained.put(message)
        for client_id, will, at in store.wills():
            broker.recall_will(client_id, will, at)
        if host.web is not None and config.websocket:
            host.web.app.router.add_get(config.websocket, self._websocket)

    async def start(self) -> None:
        parts = self._running
        parts.runner.start()
        await parts.adapter.start()
        for place in self.config.doors:
            door = MqttDoor(place.host, place.port, place.tls, self._room, self.host.observer)
            self.open.append(door)
            door.open(parts.runner, self._connection)
        gateway = self.host.control.exchange.gateway.hex()
        for plan in self.config.bridges:
            bridge = MqttBridge(plan, parts.broker, gateway, parts.runner.soon)
            self.bridges.append(bridge)
            bridge.start()
        if self.config.figures_every:
            self._tell_figures()
            self._telling = asyncio.create_task(self._tell())

    def close(self) -> None:
        """Clients come back to whoever listens then."""
        if self._parts is not None:
            self._parts.runner.end_all(lambda one: one.end(ReasonCode.SERVER_SHUTTING_DOWN))

    async def stop(self) -> None:
        if self._telling is not None:
            self._telling.cancel()
            await asyncio.gather(self._telling, return_exceptions=True)
        bridges, self.bridges = self.bridges, []
        await asyncio.gather(*(bridge.stop() for bridge in bridges))
        doors, self.open = self.open, []
        for door in doors:
            await door.close()
        parts = self._parts
        if parts is not None:
            for connection, wire in list(parts.runner.wires.items()):
                connection.end(ReasonCode.SERVER_SHUTTING_DOWN)
                wire.flush()
                connection.lost(self.host.clock())
            await parts.adapter.stop()
            await parts.runner.stop()
            await asyncio.gather(*self._noting, *self._checking, return_exceptions=True)
            self._parts = None

    def take_up(self, config: MqttConfig) -> None:
        before, self.config = self.config, config
        for door, place in zip(self.open, config.doors, strict=False):
            door.take_up(place.tls)
        redirect = config.redirect
        if redirect is not None and redirect != before.redirect and self._parts is not None:
            self._parts.runner.end_all(
                lambda one: one.send_elsewhere(redirect.server, is_moved=redirect.moved, is_active=redirect.active)
            )

    async def keep_to_rules(self) -> int:
        """Filters that a session may not have any more; what it hears by others is decided message by message."""
        if self._parts is None:
            return 0
        broker = self._parts.broker
        ended = 0
        for session in list(broker.sessions.values()):
            for wanted in list(session.subscriptions):
                if broker.gate is not None and broker.gate.may_subscribe(session, wanted) is not None:
                    broker.unsubscribe(session, wanted)
                    ended += 1
        self._parts.runner.soon()
        return ended

    # Connections.

    def _connection(self, address: str) -> MqttConnection:
        return MqttConnection(
            self.broker, address, check=self._check, referral=self._referral, extended=self.config.extension
        )

    async def _websocket(self, request: web.Request) -> web.StreamResponse:
        host = self.host
        if host.web is None:
            raise web.HTTPNotFound
        host.web.gate.client(request)
        wire = WebSocketWire(self.runner, self._connection(host.web.gate.client_address(request)))
        return await wire.serve(request)

    def _referral(self) -> tuple[str, bool] | None:
        redirect = self.config.redirect
        return None if redirect is None else (redirect.server, redirect.moved)

    def _check(self, connection: MqttConnection, packet: ConnectPacket) -> ReasonCode | None:
        """Who a client is; None while a password is looked at."""
        users = self.config.users
        password = packet.password or b""
        if password and users.has_token(password):
            return self._admitted(connection, packet, packet.user or "", is_known=True)
        if packet.user is None and packet.password is None:
            if users.allow_anonymous:
                return self._admitted(connection, packet, "", is_known=False)
            return ReasonCode.NOT_AUTHORIZED
        if users.is_empty and users.allow_anonymous:
            return self._admitted(connection, packet, packet.user or "", is_known=False)
        if not users.users:
            return ReasonCode.BAD_USER_OR_PASSWORD
        task = asyncio.create_task(self._look_up(connection, packet, packet.user or "", password))
        self._checking.add(task)
        task.add_done_callback(self._checking.discard)
        return None

    async def _look_up(self, connection: MqttConnection, packet: ConnectPacket, user: str, password: bytes) -> None:
        fits = await asyncio.to_thread(self.config.users.has_password, user, password)
        if fits:
            reason = self._admitted(connection, packet, user, is_known=True)
        else:
            await asyncio.sleep(0.5)  # guessing is slow
            reason = ReasonCode.BAD_USER_OR_PASSWORD
        connection.checked(reason, self.host.clock())
        self.runner.soon()

    def _admitted(self, connection: MqttConnection, packet: ConnectPacket, user: str, *, is_known: bool) -> ReasonCode:
        """Somebody's session is nobody else's."""
        session = self.broker.sessions.get(packet.client_id)
        if session is not None and session.is_known and (session.user != user or not is_known):
            return ReasonCode.CLIENT_ID_NOT_VALID
        connection.user, connection.is_known = user, is_known
        return ReasonCode.SUCCESS

    # Between broker and exchange.

    def _is_wanted_elsewhere(self, topic: str) -> bool:
        """Whether what nobody was promised is kept for readers of other protocols."""
        parts = self._running
        try:
            item = parts.names.of_topic(topic)[1]
        except TopicError:
            return False
        if not self.host.control.exchange.may_want(item, LABEL):
            return False
        if parts.broker.waiting >= LOGGED_AT_ONCE:
            self.unlogged += 1
            return False
        return True

    def _entered(self, entered: Sequence[tuple[ItemId, Appended]]) -> None:
        task = asyncio.create_task(self.host.control.exchange.note_many(entered, LABEL))
        self._noting.add(task)
        task.add_done_callback(self._noting.discard)

    def _filters_changed(self, filters: set[str]) -> None:
        self._running.adapter.filters_changed(filters)

    def _failed(self, reason: str) -> None:
        self.host.tell(GatewayStoreFailed(reason))

    # Figures.

    async def _tell(self) -> None:
        while True:
            await asyncio.sleep(self.config.figures_every)
            self._tell_figures()

    def _tell_figures(self) -> None:
        broker = self.broker
        counters = broker.counters
        for name, value in (
            ("version", f"psph version {__version__}"),
            ("uptime", f"{int(time.monotonic() - self._began)} seconds"),
            ("clients/connected", broker.connected),
            ("clients/disconnected", len(broker.sessions) - broker.connected),
            ("clients/total", len(broker.sessions)),
            ("subscriptions/count", broker.routes.count),
            ("retained messages/count", len(broker.retained)),
            ("messages/received", counters.published),
            ("messages/sent", counters.delivered),
            ("publish/messages/dropped", counters.dropped),
            ("bytes/received", counters.bytes_in),
            ("bytes/sent", counters.bytes_out),
        ):
            broker.tell_system(f"$SYS/broker/{name}", str(value).encode())
        self.runner.soon()

    def doors(self) -> Iterable[OpenDoor]:
        for door in self.open:
            yield OpenDoor("MQTT", door.url)
        web_port = self.host.web
        if self.config.websocket and web_port is not None:
            url = web_port.url.replace("http", "ws", 1).rstrip("/") + self.config.websocket
            yield OpenDoor("MQTT over WebSocket", url)

    def queues(self) -> Sequence[QueueLevel]:
        if self._parts is None:
            return ()
        return (QueueLevel("mqtt messages on their way to disk", self.broker.waiting, READ_ON_AT),)

    def figures(self) -> Iterable[Figure]:
        if self._parts is None:
            return
        broker, counters = self.broker, self.broker.counters
        yield Figure("clients", "Connected clients.", broker.connected)
        yield Figure("sessions", "Sessions, of clients that are away too.", len(broker.sessions))
        yield Figure("subscriptions", "Filters of all sessions.", broker.routes.count)
        yield Figure("retained", "Retained messages.", len(broker.retained))
        yield Figure(
            "queued", "Messages that wait for acknowledgement.", sum(s.queued for s in broker.sessions.values())
        )
        yield Figure("published", "Messages that were published.", counters.published, counts=True)
        yield Figure("delivered", "Messages that were sent to clients.", counters.delivered, counts=True)
        yield Figure("dropped", "Messages for which a client had no room.", counters.dropped, counts=True)
        yield Figure("expired", "Messages that were too old to be sent.", counters.expired, counts=True)
        yield Figure("unlogged", "Messages of QoS 0 that only clients were given.", self.unlogged, counts=True)
        yield Figure("refused", "Clients that were not let in.", counters.refused + self._room.refused, counts=True)
        yield Figure("denied", "What the rules forbade.", counters.denied, counts=True)
        yield Figure("taken_over", "Sessions that went to another connection.", counters.taken_over, counts=True)
        yield Figure("received_bytes", "Bytes from clients.", counters.bytes_in, counts=True)
        yield Figure("sent_bytes", "Bytes to clients.", counters.bytes_out, counts=True)
        for bridge in self.bridges:
            name = (("bridge", bridge.plan.name),)
            yield Figure("bridge_up", "1 when the other broker is there.", bridge.is_up, labels=name)
            yield Figure("bridge_sent", "Messages the other broker took.", bridge.sent, counts=True, labels=name)
            yield Figure("bridge_received", "Messages it brought.", bridge.received, counts=True, labels=name)
            yield Figure("bridge_looped", "Messages that had been here.", bridge.looped, counts=True, labels=name)
        for reason, count in sorted(counters.by_reason.items()):
            yield Figure("errors", "Packets that were none.", count, counts=True, labels=(("reason", reason),))

    def panel(self) -> Iterable[tuple[str, str | int]]:
        if self._parts is None:
            return
        counters = self.broker.counters
        yield "MQTT clients", self.broker.connected
        yield "MQTT sessions", len(self.broker.sessions)
        yield "MQTT subscriptions", self.broker.routes.count
        yield "MQTT messages in / out", f"{counters.published} / {counters.delivered}"
        yield "MQTT messages dropped", counters.dropped
        yield "MQTT protocol errors", counters.errors
        for bridge in self.bridges:
            state = f"up, {bridge.sent} out, {bridge.received} in" if bridge.is_up else f"down: {bridge.error[:80]}"
            yield f"bridge {bridge.plan.name}", state

    async def explain(self, name: str) -> Sequence[str]:
        parts = self._running
        topic = parts.names.topic_of(self.host.namespaces.read(name).shown)
        route = parts.broker.routes.of(topic)
        said = [f"clients of the broker call it {topic}"]
        for target in route.targets[:10]:
            session = target.session
            wanted = ", ".join(one for one in session.subscriptions if _matches(one, topic))
            state = "connected" if session.connection is not None else "away"
            hears = parts.broker.gate is None or parts.broker.gate.may_hear(session, topic)
            waits = f", {session.queued} messages wait for it" if session.queued else ""
            forbidden = "" if hears else ", and the rules do not let it hear this"
            said.append(f"{session.client_id} ({state}) is subscribed by {wanted}{waits}{forbidden}")
        if len(route.targets) > 10:
            said.append(f"and {len(route.targets) - 10} sessions more")
        for group in route.groups[:10]:
            names = ", ".join(session.client_id for session in list(group.members)[:10])
            more = f" and {len(group.members) - 10} more" if len(group.members) > 10 else ""
            wanted = next((one.filter for one in group.members.values()), "")
            said.append(f"each message goes to one of those who share {wanted}: {names}{more}")
        if not route.targets and not route.groups:
            said.append("no client of the broker is subscribed to it")
        if parts.broker.retained.get(topic) is not None:
            said.append("a message is retained for those who come")
        return said


def _matches(wanted: str, topic: str) -> bool:
    levels, names = wanted.split("/"), topic.split("/")
    for place, level in enumerate(levels):
        if level == "#":
            return True
        if place >= len(names) or level not in ("+", names[place]):
            return False
    return len(levels) == len(names)


def _new_id() -> str:
    return f"auto-{str(uuid.uuid4()).upper()}"


def _listening(config: MqttConfig) -> Iterable[ListeningDoor]:
    for place in config.doors:
        what = "MQTT" if place.tls is None else "MQTT over TLS"
        yield ListeningDoor(what, place.host, place.port, section="mqtt", tls=place.tls)


MQTT = ProtocolDescriptor(
    label=LABEL,
    title="a broker for MQTT 3.1, 3.1.1 and 5.0, whose topics are names of the domain",
    sections={"mqtt": MqttSection},
    configured=mqtt_config,
    make=MqttProtocol,
    namespaces=(MqttNamespace(),),
    tables=tuple(MIGRATIONS),
    listening=_listening,
    live=(LiveSetting("users"), LiveSetting("redirect"), LiveSetting("figures_every")),
)
