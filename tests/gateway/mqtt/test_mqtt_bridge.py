"""A bridge to mosquitto: both ways, without loops, and on from where it was when that comes back."""

import asyncio
import re
import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import aiomqtt
import pytest

from gateway.core import CoreConfig, GatewayCore
from gateway.protocols.mqtt.bridge import BridgePlan
from gateway.protocols.mqtt.protocol import MQTT, MqttProtocol
from gateway.protocols.mqtt.section import MqttConfig, MqttPlace
from gateway.protocols.mqtt.users import KnownUsers
from serving.listening import open_socket
from storage.clock import steady
from tests.waiting import until

pytestmark = pytest.mark.skipif(shutil.which("mosquitto") is None, reason="mosquitto is not installed")


class Mosquitto:
    def __init__(self, folder: Path) -> None:
        reserved = open_socket("127.0.0.1", 0)
        self.port = int(reserved.getsockname()[1])
        reserved.close()
        self._file = folder / "mosquitto.conf"
        self._file.write_text(
            f"listener {self.port} 127.0.0.1\nallow_anonymous true\npersistence true\n"
            f"persistence_location {folder}/\nautosave_interval 1\nautosave_on_changes true\n"
        )
        self._process: asyncio.subprocess.Process | None = None

    async def start(self) -> None:
        self._process = await asyncio.create_subprocess_exec(
            "mosquitto", "-c", str(self._file), stderr=asyncio.subprocess.PIPE
        )
        assert self._process.stderr is not None
        while not re.search(rb"running", await self._process.stderr.readline()):
            assert self._process.returncode is None

    async def stop(self) -> None:
        if self._process is not None and self._process.returncode is None:
            self._process.terminate()
            await self._process.communicate()


@asynccontextmanager
async def bridged(folder: Path, mosquitto: Mosquitto, **plan: object) -> AsyncIterator[MqttProtocol]:
    bridge = BridgePlan("plant", "127.0.0.1", mosquitto.port, **plan)  # type: ignore[arg-type]
    config = MqttConfig(
        (MqttPlace("127.0.0.1", 0),), users=KnownUsers(allow_anonymous=True), bridges=(bridge,), figures_every=0
    )
    core = GatewayCore(CoreConfig(folder, {"mqtt": config}, (MQTT,)), steady, None)
    try:
        await core.prepare()
        await core.start()
        yield core.protocol(MqttProtocol)
    finally:
        await core.stop()


@pytest.fixture
async def mosquitto(tmp_path: Path) -> AsyncIterator[Mosquitto]:
    (tmp_path / "mosquitto").mkdir()
    (tmp_path / "mosquitto").chmod(0o777)
    one = Mosquitto(tmp_path / "mosquitto")
    await one.start()
    try:
        yield one
    finally:
        await one.stop()


def client(port: int, name: str) -> aiomqtt.Client:
    return aiomqtt.Client("127.0.0.1", port, identifier=name, protocol=aiomqtt.ProtocolVersion.V5)


async def payloads(one: aiomqtt.Client, count: int) -> list[str]:
    found: list[str] = []
    async with asyncio.timeout(60):
        async for message in one.messages:
            found.append(f"{message.topic} {bytes(message.payload).decode()}")  # type: ignore[arg-type]
            if len(found) == count:
                return found
    return found


@pytest.mark.parametrize("share", ["", "gateways"])
async def test_messages_go_both_ways_and_come_round_to_nobody(tmp_path: Path, mosquitto: Mosquitto, share: str) -> None:
    async with bridged(tmp_path / "a", mosquitto, out=("#",), incoming=("#",), share=share) as here:
        (bridge,) = here.bridges
        await until(lambda: bridge.is_up)
        port = here.open[0].port
        async with client(port, "here") as ours, client(mosquitto.port, "there") as theirs:
            await ours.subscribe("#", 1)
            await theirs.subscribe("#", 1)
            await ours.publish("a", b"from here", 1)
            await theirs.publish("b", b"from there", 1)
            assert sorted(await payloads(ours, 2)) == ["a from here", "b from there"]
            assert sorted(await payloads(theirs, 2)) == ["a from here", "b from there"]
            await until(lambda: not share or bridge.looped)
            await ours.publish("c", b"last", 1)
            assert await payloads(ours, 1) == ["c last"], "nothing came round before it"
            assert await payloads(theirs, 1) == ["c last"]


async def test_what_waits_while_the_other_broker_is_away_comes_to_it(tmp_path: Path, mosquitto: Mosquitto) -> None:
    async with bridged(tmp_path / "a", mosquitto, out=("out/#",), incoming=("in/#",)) as here:
        (bridge,) = here.bridges
        await until(lambda: bridge.is_up)
        async with client(here.open[0].port, "here") as ours:
            await mosquitto.stop()
            await until(lambda: not bridge.is_up)
            for number in range(5):
                await ours.publish("out/x", str(number).encode(), 1)
            assert here.broker.sessions["bridge/plant"].queued == 5
            await mosquitto.start()
            async with client(mosquitto.port, "there") as theirs:
                await theirs.subscribe("out/#", 1)
                await until(lambda: bridge.is_up)
                await until(lambda: here.broker.sessions["bridge/plant"].queued == 0)
        assert bridge.sent == 5
        assert dict(here.panel())["bridge plant"] == "up, 5 out, 0 in"
    assert bridge.reconnects
