"""A bridge to the operator's own broker: a 5.0 client there, a session of its own here.

Out: the bridge's session in this broker is durable, and a message is settled when the other broker has acknowledged it.
In: a message is acknowledged there when it is on disk here. What goes out says through which gateways it came, and what
comes in by its own way again is let go; what came in is not handed to the session that it came by.
"""

import asyncio
import contextlib
from collections.abc import Callable
from dataclasses import dataclass

import aiomqtt
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties
from paho.mqtt.subscribeoptions import SubscribeOptions

from gateway.protocols.mqtt.broker import MqttBroker
from gateway.protocols.mqtt.messages import BrokerMessage, OutgoingPublish
from gateway.protocols.mqtt.numbers import NEVER, Level, PacketType, Property
from gateway.protocols.mqtt.packets import CodecError, ConnectPacket, SubscriptionRequest
from gateway.protocols.mqtt.properties import read_properties, with_length, write_one
from gateway.protocols.mqtt.session import MqttSession
from gateway.protocols.mqtt.texts import check_filter
from storage.backoff import BackOff, Waits

WAY = "psph-way"
"""The user property in which a message says through which gateways it came."""
AGAIN = BackOff(0.5, longest=30.0)
WAITING = 1_000
KEEP_ALIVE = 30


@dataclass(frozen=True, slots=True)
class BridgePlan:
    """What is exchanged with which broker."""

    name: str
    host: str
    port: int = 1883
    out: tuple[str, ...] = ()
    """Filters of this broker."""
    incoming: tuple[str, ...] = ()
    """Filters of the other one."""
    share: str = ""
    """Several gateways take what comes in by turns, under this name."""
    qos: int = 1
    user: str | None = None
    password: str | None = None


class MqttBridge:
    """`is_5`, `window`, `write` and so on are what a session needs of a connection."""

    is_5 = True
    window = 20

    def __init__(self, plan: BridgePlan, broker: MqttBroker, gateway: str, woken: Callable[[], None]) -> None:
        """`gateway` is unique: it stands in the way of what goes out."""
        self.plan = plan
        self.is_up = False
        self.sent = 0
        self.received = 0
        self.looped = 0
        """Messages that had been here."""
        self.reconnects = 0
        self.error = ""
        self._broker = broker
        self._gateway = gateway
        self._woken = woken
        self._session: MqttSession | None = None
        self._waiting: asyncio.Queue[OutgoingPublish] = asyncio.Queue()
        self._task: asyncio.Task[None] | None = None

    # For the session here.

    @property
    def is_congested(self) -> bool:
        return not self.is_up or self._waiting.qsize() >= WAITING

    def write(self, data: bytes) -> None:
        """A release of QoS 2: what the other broker is sent is of QoS 1 at most here, so there is none."""

    def send(self, out: OutgoingPublish) -> bool:
        if out.message.is_expired(self._broker.now):
            return False
        self._waiting.put_nowait(out)
        return True

    def give_up(self, out: OutgoingPublish) -> None:
        if self._session is not None:
            self._broker.settled(self._session, out)

    def read_on(self) -> None:
        if self._session is not None:
            self._broker.pages.append(self._session)

    def take_over(self) -> None:
        self._session = None

    # Life.

    def start(self) -> None:
        self._task = asyncio.create_task(self._run())

    async def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def _run(self) -> None:
        waits = Waits(AGAIN)
        while True:
            try:
                async with self._client() as client:
                    waits.reset()
                    self.error = ""
                    await self._exchange(client)
            except (aiomqtt.MqttError, OSError, TimeoutError) as error:
                self.error = str(error) or type(error).__name__
            finally:
                self._leave()
            self.reconnects += 1
            await asyncio.sleep(waits.next())

    def _client(self) -> aiomqtt.Client:
        plan = self.plan
        properties = Properties(PacketTypes.CONNECT)  # type: ignore[no-untyped-call]
        properties.SessionExpiryInterval = NEVER
        client = aiomqtt.Client(
            plan.host,
            plan.port,
            username=plan.user,
            password=plan.password,
            identifier=f"psph-{self._gateway[:16]}-{plan.name}",
            protocol=aiomqtt.ProtocolVersion.V5,
            clean_start=False,
            properties=properties,
            keepalive=KEEP_ALIVE,
        )
        client._client.manual_ack_set(True)  # what comes in is acknowledged when it is on disk
        return client

    async def _exchange(self, client: aiomqtt.Client) -> None:
        plan = self.plan
        for wanted in plan.incoming:
            if plan.share:
                await client.subscribe(f"$share/{plan.share}/{wanted}", plan.qos)
            else:
                options = SubscribeOptions(plan.qos, noLocal=True, retainAsPublished=True)
                await client.subscribe(wanted, options=options)
        self._enter()
        self.is_up = True
        tasks = [asyncio.create_task(self._take_in(client)), asyncio.create_task(self._send_out(client))]
        try:
            await asyncio.gather(*tasks)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    def _enter(self) -> None:
        """Be a session of the broker here, as a client of its own would be."""
        name = f"bridge/{self.plan.name}"
        packet = ConnectPacket(name, Level.V5, False, session_expiry=NEVER)
        opened = self._broker.open(packet, name, self, "")
        if opened is None:
            raise OSError("the broker has no room for the session of a bridge")
        session = self._session = opened[0]
        session.is_known = True
        for wanted in set(session.subscriptions) - set(self.plan.out):
            self._broker.unsubscribe(session, wanted)
        for wanted in self.plan.out:
            request = SubscriptionRequest(wanted, min(1, self.plan.qos), no_local=True, retain_as_published=True)
            self._broker.routes.add(session, request, 0)
            self._broker.subscribe(session, request, 0)

        def ready() -> None:
            self._broker.ready(session)

        self._broker.work.after.append(ready)
        self._woken()

    def _leave(self) -> None:
        self.is_up = False
        session, self._session = self._session, None
        while not self._waiting.empty():
            self._waiting.get_nowait()
        if session is not None:
            self._broker.close(session, self, with_will=False)
            self._woken()

    async def _send_out(self, client: aiomqtt.Client) -> None:
        while True:
            out = await self._waiting.get()
            message = out.message
            found = _pairs(message.properties)
            way = dict(found).get(WAY, "")
            properties = Properties(PacketTypes.PUBLISH)  # type: ignore[no-untyped-call]
            others = [pair for pair in found if pair[0] != WAY]
            properties.UserProperty = [*others, (WAY, f"{way} {self._gateway}".strip())]
            if message.expires_ms:
                left = max(1, int(message.expires_ms / 1000 - self._broker.now))
                properties.MessageExpiryInterval = left
            await client.publish(message.topic, message.payload, out.qos, out.retain, properties)
            self.sent += 1
            if out.qos and self._session is not None:
                self._broker.settled(self._session, out)
                self._session.pump()
                self._woken()

    async def _take_in(self, client: aiomqtt.Client) -> None:
        paho = client._client
        async for message in client.messages:
            if await self._took(message):
                self.received += 1
            if message.qos:
                with contextlib.suppress(ValueError):
                    paho.ack(message.mid, message.qos)

    async def _took(self, message: aiomqtt.Message) -> bool:
        pairs = [tuple(pair) for pair in getattr(message.properties, "UserProperty", [])]
        if self._gateway in dict(pairs).get(WAY, "").split():
            self.looped += 1
            return False
        payload = message.payload if isinstance(message.payload, bytes) else b""
        properties = b"".join(write_one(Property.USER_PROPERTY, (str(a), str(b))) for a, b in pairs)
        incoming = BrokerMessage(
            str(message.topic), payload, min(message.qos, 2), message.retain, properties, publisher=self._session
        )
        done: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self._broker.publish(incoming, lambda count: None if done.done() else done.set_result(count))
        self._woken()
        await done
        return True


def check_plan(plan: BridgePlan) -> None:
    """Raises `CodecError`."""
    for wanted in (*plan.out, *plan.incoming):
        check_filter(wanted)


def _pairs(properties: bytes) -> list[tuple[str, str]]:
    if not properties:
        return []
    written = with_length(properties)
    try:
        return read_properties(written, 0, len(written), PacketType.PUBLISH)[0].pairs
    except CodecError:
        return []
