"""`psph mqtt` as a process, with clients that are not ours: mosquitto's, paho, a WebSocket."""

import asyncio
import re
import shutil
import subprocess
import threading
from collections.abc import AsyncIterator
from pathlib import Path

import paho.mqtt.client as paho
import pytest
from paho.mqtt.enums import CallbackAPIVersion
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties

from tests.gateway.gateway_process import Process
from tests.serving.test_outbound_client import certificate
from tests.waiting import until

needs_mosquitto = pytest.mark.skipif(shutil.which("mosquitto_pub") is None, reason="mosquitto-clients is not installed")


class Broker:
    def __init__(self, folder: Path, *words: str) -> None:
        self.words = ("mqtt", "--port", "0", "--data", str(folder / "data"), *words)
        self.process: Process | None = None
        self.port = 0

    async def start(self) -> None:
        self.process = await Process.start(*self.words, up="mqtt" if "--websocket-port" not in self.words else "ws://")
        found = re.search(r"MQTT at mqtts?://127\.0\.0\.1:(\d+)", " ".join(self.process.lines))
        assert found, self.process.lines
        self.port = int(found[1])

    async def kill(self) -> None:
        assert self.process is not None
        await self.process.kill()

    async def stop(self) -> None:
        if self.process is not None:
            await self.process.stop()


@pytest.fixture
async def broker(tmp_path: Path) -> AsyncIterator[Broker]:
    broker = Broker(tmp_path)
    await broker.start()
    try:
        yield broker
    finally:
        await broker.stop()


class PahoClient:
    def __init__(self, port: int, name: str, protocol: int = paho.MQTTv5, transport: str = "tcp") -> None:
        self.got: list[tuple[str, bytes, int, bool]] = []
        self.connected = threading.Event()
        self.present: list[bool] = []
        self.subscribed = threading.Event()
        self.client = paho.Client(
            CallbackAPIVersion.VERSION2,
            client_id=name,
            protocol=protocol,  # type: ignore[arg-type]
            transport=transport,  # type: ignore[arg-type]
            clean_session=None if protocol == paho.MQTTv5 else False,
        )
        self.port = port
        self.client.on_message = lambda _c, _u, m: self.got.append((m.topic, m.payload, m.qos, m.retain))
        self.client.on_connect = self._on_connect
        self.client.on_subscribe = lambda *_: self.subscribed.set()

    def _on_connect(self, _client: object, _data: object, flags: object, *_: object) -> None:
        self.present.append(flags.session_present)  # type: ignore[attr-defined]
        self.connected.set()

    def connect(self, expiry: int = 0) -> None:
        if self.client.protocol == paho.MQTTv5:
            properties = Properties(PacketTypes.CONNECT)
            properties.SessionExpiryInterval = expiry
            self.client.connect("127.0.0.1", self.port, clean_start=False, properties=properties)
        else:
            self.client.connect("127.0.0.1", self.port)
        self.client.loop_start()
        assert self.connected.wait(30)

    def subscribe(self, wanted: str, qos: int) -> None:
        self.client.subscribe(wanted, qos)
        assert self.subscribed.wait(30)

    def close(self) -> None:
        self.client.disconnect()
        self.client.loop_stop()


@needs_mosquitto
async def test_mosquittos_clients_talk_to_each_other(broker: Broker) -> None:
    port = str(broker.port)
    for version in ("mqttv31", "mqttv311", "mqttv5"):
        reader = await asyncio.create_subprocess_exec(
            "mosquitto_sub", "-p", port, "-V", version, "-t", "kitchen/#", "-q", "2", "-v", "-C", "3",
            stdout=subprocess.PIPE,
        )  # fmt: skip
        subscribed = f"{version}-ready"
        # Retained, so that it does not matter who comes first.
        for qos in ("0", "1", "2"):
            done = await asyncio.create_subprocess_exec(
                "mosquitto_pub", "-p", port, "-V", version, "-t", f"kitchen/{qos}", "-q", qos, "-m", subscribed, "-r"
            )
            assert await done.wait() == 0
        out, _ = await asyncio.wait_for(reader.communicate(), 60)
        assert sorted(set(out.decode().split("\n")[:-1])) == [f"kitchen/{qos} {subscribed}" for qos in "012"]
        for qos in "012":
            done = await asyncio.create_subprocess_exec("mosquitto_pub", "-p", port, "-t", f"kitchen/{qos}", "-r", "-n")
            assert await done.wait() == 0


@pytest.mark.parametrize("protocol", [paho.MQTTv311, paho.MQTTv5])
async def test_a_session_survives_kill_9_of_the_broker(tmp_path: Path, protocol: int) -> None:
    broker = Broker(tmp_path)
    await broker.start()
    try:
        reader = PahoClient(broker.port, "reader", protocol)
        await asyncio.to_thread(reader.connect, 3600)
        await asyncio.to_thread(reader.subscribe, "a/#", 2)
        await asyncio.to_thread(reader.close)
        writer = PahoClient(broker.port, "writer", protocol)
        await asyncio.to_thread(writer.connect)
        infos = [writer.client.publish("a/b", f"{number}".encode(), 1 + number % 2) for number in range(40)]
        for info in infos:
            await asyncio.to_thread(info.wait_for_publish, 30)
        await broker.kill()
        await asyncio.to_thread(writer.close)
        await broker.start()
        again = PahoClient(broker.port, "reader", protocol)
        await asyncio.to_thread(again.connect, 3600)
        assert again.present == [True]
        await until(lambda: len(again.got) >= 40)
        for qos in (1, 2):
            got = [int(payload) for _, payload, its_qos, _ in again.got if its_qos == qos]
            assert got == list(range(qos - 1, 40, 2))
        await asyncio.to_thread(again.close)
    finally:
        await broker.stop()


async def test_users_tls_and_websockets(tmp_path: Path) -> None:
    users = tmp_path / "users.txt"
    if shutil.which("mosquitto_passwd") is None:
        pytest.skip("mosquitto is not installed")
    users.touch(mode=0o600)
    made = await asyncio.create_subprocess_exec("mosquitto_passwd", "-b", str(users), "ana", "secret")
    assert await made.wait() == 0
    users.chmod(0o600)
    pem = certificate(tmp_path)
    pem.chmod(0o600)
    broker = Broker(
        tmp_path, "--users", str(users), "--websocket-port", "0",
        "--tls-certificate", str(pem), "--tls-key", str(pem),
    )  # fmt: skip
    await broker.start()
    try:
        for password, code in (("secret", 0), ("wrong", 5), (None, 5)):
            words = ["mosquitto_pub", "-p", str(broker.port), "--cafile", str(pem), "--insecure", "-t", "t", "-m", "x"]
            words += [] if password is None else ["-u", "ana", "-P", password]
            done = await asyncio.create_subprocess_exec(*words, stderr=subprocess.DEVNULL)
            assert (await done.wait() == 0) is (code == 0), password
        assert broker.process is not None
        found = re.search(r"ws://127\.0\.0\.1:(\d+)/mqtt", " ".join(broker.process.lines))
        assert found
        client = PahoClient(int(found[1]), "web", paho.MQTTv5, "websockets")
        client.client.ws_set_options("/mqtt")
        client.client.username_pw_set("ana", "secret")
        await asyncio.to_thread(client.connect)
        await asyncio.to_thread(client.subscribe, "t", 1)
        client.client.publish("t", b"over a WebSocket" * 9_000, 1)
        await until(lambda: client.got)
        assert client.got[0][1] == b"over a WebSocket" * 9_000
        await asyncio.to_thread(client.close)
    finally:
        await broker.stop()
