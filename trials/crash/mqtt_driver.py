"""kill -9 of a real broker, again and again, with clients that publish and subscribe meanwhile; then nothing that was
acknowledged may be missing, and nothing of QoS 2 may have come twice.

A client keeps what the specification calls its session state over its connections: what it sent and nobody confirmed it
sends again, and a packet identifier of QoS 2 that it knows it does not deliver twice. The broker's word is what a
publisher heard: PUBACK, or PUBREC for QoS 2.
"""

import asyncio
import random
import tempfile
import time
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from gateway.protocols.mqtt.decode import Decoder
from gateway.protocols.mqtt.encode import write
from gateway.protocols.mqtt.numbers import NEVER, Level, PacketType
from gateway.protocols.mqtt.packets import (
    AckPacket,
    ConnackPacket,
    ConnectPacket,
    MqttPacket,
    PublishPacket,
    SubackPacket,
    SubscribePacket,
    SubscriptionRequest,
)
from perf.bench.family import Ticker
from perf.processes import Part

HOST = "127.0.0.1"
PUBLISHERS = 4
SUBSCRIBERS = 3
WINDOW = 15
LONGEST_LIFE = 1.2
RETRY = 0.05
QUIET = 120.0
LAST_ID = 65_535
EXAMPLES = 10


@dataclass(frozen=True, slots=True)
class MqttCrashReport:
    seed: int
    kills: int
    seconds: float
    acknowledged: int
    delivered: int
    repeated: int
    """Of QoS 1, which may be."""
    settled_after: float
    problems: dict[str, int]
    examples: list[str]

    @property
    def passed(self) -> bool:
        return not self.problems


@dataclass(slots=True)
class _Ledger:
    acknowledged: set[tuple[str, int, int]] = field(default_factory=set)
    """Publisher, QoS, number."""
    arrived: dict[str, Counter[tuple[str, int, int]]] = field(default_factory=dict)
    sessions_lost: int = 0


class _Client:
    """Connects again and again until it is told to stop."""

    def __init__(self, name: str, level: Level, port: int, ledger: _Ledger) -> None:
        self.name = name
        self.level = level
        self.port = port
        self.ledger = ledger
        self.was_connected = False
        self.connections = 0
        self.stopping = False
        self._writer: asyncio.StreamWriter | None = None

    async def run(self) -> None:
        while not self.stopping:
            with suppress(OSError, EOFError, TimeoutError):
                await self._once()
            await asyncio.sleep(RETRY)

    async def _once(self) -> None:
        reader, writer = await asyncio.open_connection(HOST, self.port)
        try:
            self._writer = writer
            expiry = NEVER if self.level == Level.V5 else 0
            self.send(ConnectPacket(self.name, self.level, False, session_expiry=expiry))
            decoder = Decoder(server=False, level=self.level)
            while not self.stopping:
                data = await reader.read(65_536)
                if not data:
                    raise EOFError
                for packet in decoder.feed(data):
                    self.take(packet)
                if decoder.error is not None:
                    raise AssertionError(f"the broker sent what is no packet: {decoder.error}")
                await writer.drain()
        finally:
            self._writer = None
            writer.close()

    def send(self, packet: MqttPacket) -> None:
        if self._writer is not None:
            self._writer.write(write(packet, self.level))

    def take(self, packet: MqttPacket) -> None:
        if isinstance(packet, ConnackPacket):
            if packet.reason:
                return
            self.connections += 1
            if self.was_connected and not packet.session_present:
                self.ledger.sessions_lost += 1
            self.was_connected = True
            self.connected()

    def connected(self) -> None: ...


class _Publisher(_Client):
    def __init__(self, name: str, level: Level, port: int, ledger: _Ledger) -> None:
        super().__init__(name, level, port, ledger)
        self.number = 0
        self.open: dict[int, tuple[int, int, bool]] = {}
        """Packet identifier: QoS, number, whether PUBREC has come."""
        self.last_id = 0
        self.pausing = False

    def connected(self) -> None:
        for packet_id, (qos, number, received) in self.open.items():
            if received:
                self.send(AckPacket(PacketType.PUBREL, packet_id))
            else:
                self._publish(packet_id, qos, number, dup=True)
        self.fill()

    def _publish(self, packet_id: int, qos: int, number: int, *, dup: bool = False) -> None:
        payload = f"{self.name} {qos} {number}".encode()
        self.send(PublishPacket(f"crash/{self.name}", payload, qos, dup=dup, packet_id=packet_id))

    def fill(self) -> None:
        while not self.pausing and self._writer is not None and len(self.open) < WINDOW:
            self.number += 1
            self.last_id = self.last_id % LAST_ID + 1
            qos = 1 + self.number % 2
            self.open[self.last_id] = (qos, self.number, False)
            self._publish(self.last_id, qos, self.number)

    def take(self, packet: MqttPacket) -> None:
        super().take(packet)
        if not isinstance(packet, AckPacket) or packet.packet_id not in self.open:
            return
        qos, number, _ = self.open[packet.packet_id]
        if packet.kind in (PacketType.PUBACK, PacketType.PUBREC):
            self.ledger.acknowledged.add((self.name, qos, number))
        if packet.kind is PacketType.PUBREC:
            self.open[packet.packet_id] = (qos, number, True)
            self.send(AckPacket(PacketType.PUBREL, packet.packet_id))
            return
        del self.open[packet.packet_id]
        self.fill()


class _Subscriber(_Client):
    def __init__(self, name: str, level: Level, port: int, ledger: _Ledger) -> None:
        super().__init__(name, level, port, ledger)
        self.known: set[int] = set()
        """Identifiers of QoS 2 that are received and not released."""
        self.is_subscribed = asyncio.Event()
        ledger.arrived[name] = Counter()

    def connected(self) -> None:
        if not self.is_subscribed.is_set():
            self.send(SubscribePacket(1, (SubscriptionRequest("crash/#", 2),)))

    def take(self, packet: MqttPacket) -> None:
        super().take(packet)
        if isinstance(packet, SubackPacket):
            self.is_subscribed.set()
        elif isinstance(packet, PublishPacket):
            if packet.qos == 1:
                self._arrived(packet)
                self.send(AckPacket(PacketType.PUBACK, packet.packet_id))
                return
            if packet.packet_id not in self.known:
                self.known.add(packet.packet_id)
                self._arrived(packet)
            self.send(AckPacket(PacketType.PUBREC, packet.packet_id))
        elif isinstance(packet, AckPacket) and packet.kind is PacketType.PUBREL:
            self.known.discard(packet.packet_id)
            self.send(AckPacket(PacketType.PUBCOMP, packet.packet_id))

    def _arrived(self, packet: PublishPacket) -> None:
        name, qos, number = packet.payload.decode().split()
        self.ledger.arrived[self.name][name, int(qos), int(number)] += 1


class MqttCrashTest:
    def __init__(self, kills: int, seed: int, tick: Ticker) -> None:
        self._kills = kills
        self._seed = seed
        self._tick = tick

    async def run(self) -> MqttCrashReport:
        started = time.monotonic()
        rng = random.Random(self._seed)  # noqa: S311 - repeatable on purpose
        ledger = _Ledger()
        with tempfile.TemporaryDirectory(prefix="psph-crash-") as folder:
            part, port = await _first_life(Path(folder))
            subscribers = [
                _Subscriber(f"reader{number}", Level.V5 if number % 2 else Level.V311, port, ledger)
                for number in range(SUBSCRIBERS)
            ]
            publishers = [
                _Publisher(f"writer{number}", Level.V5 if number % 2 else Level.V311, port, ledger)
                for number in range(PUBLISHERS)
            ]
            tasks = [asyncio.create_task(one.run()) for one in subscribers]
            try:
                await asyncio.gather(*(one.is_subscribed.wait() for one in subscribers))
                tasks += [asyncio.create_task(one.run()) for one in publishers]
                for _ in range(self._kills):
                    # Some are killed while they start, most at work.
                    await asyncio.sleep(rng.random() ** 2 * LONGEST_LIFE)
                    await part.kill()
                    await part.start()
                    if rng.random() < 0.8:
                        await part.ready()
                    self._tick("kills")
                settled = await _settle(publishers, ledger)
            finally:
                for one in (*subscribers, *publishers):
                    one.stopping = True
                for task in tasks:
                    task.cancel()
                await asyncio.gather(*tasks, return_exceptions=True)
                await part.end()
            failed = [task.exception() for task in tasks if not task.cancelled() and task.exception() is not None]
        return _judged(self._seed, self._kills, time.monotonic() - started, ledger, settled, failed)


async def _first_life(folder: Path) -> tuple[Part, int]:
    first = Part("broker", ["mqtt", "--port", "0", "--data", str(folder / "broker")])
    await first.start()
    port = int((await first.ready()).rsplit(":", 1)[1])
    await first.kill()
    part = Part("broker", ["mqtt", "--port", str(port), "--data", str(folder / "broker")])
    await part.start()
    await part.ready()
    return part, port


async def _settle(publishers: list[_Publisher], ledger: _Ledger) -> float:
    """A quiet time: nothing new, and everything that was promised comes."""
    began = time.monotonic()
    for one in publishers:
        one.pausing = True
    while time.monotonic() - began < QUIET:
        done = not any(one.open for one in publishers)
        if done and all(ledger.acknowledged <= arrived.keys() for arrived in ledger.arrived.values()):
            break
        await asyncio.sleep(RETRY)
    await asyncio.sleep(0.3)  # what comes twice comes now
    return time.monotonic() - began


def _judged(
    seed: int, kills: int, seconds: float, ledger: _Ledger, settled: float, failed: list[BaseException | None]
) -> MqttCrashReport:
    problems: Counter[str] = Counter()
    examples: list[str] = []
    repeated = 0
    for reader, arrived in ledger.arrived.items():
        for one in sorted(ledger.acknowledged - arrived.keys()):
            problems["acknowledged and lost"] += 1
            examples.append(f"{reader} never got {one}")
        for one, times in arrived.items():
            if times > 1 and one[1] == 2:
                problems["QoS 2 more than once"] += 1
                examples.append(f"{reader} got {one} {times} times")
            repeated += (times - 1) * (one[1] == 1)
    if ledger.sessions_lost:
        problems["sessions that were not there again"] = ledger.sessions_lost
    for error in failed:
        problems["what is no packet"] += 1
        examples.append(str(error))
    return MqttCrashReport(
        seed,
        kills,
        seconds,
        len(ledger.acknowledged),
        sum(arrived.total() for arrived in ledger.arrived.values()),
        repeated,
        settled,
        dict(problems),
        examples[:EXAMPLES],
    )
