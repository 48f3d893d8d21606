"""mqtt.js, the client of MQTT that browsers and Node.js have, at the broker: every version, over TCP and WebSockets."""

import asyncio
import json
import re
from pathlib import Path

import pytest

from tests.gateway.mqtt.test_mqtt_process import Broker
from tests.gateway.stock.test_programs import HERE, NPM, program, running


async def test_mqtt_js_talks_to_itself_in_every_version(tmp_path: Path) -> None:
    node = program("node")
    if not (NPM / "mqtt").exists():
        pytest.skip("npm's mqtt is not installed (make npm-packages)")
    broker = Broker(tmp_path, "--websocket-port", "0")
    await broker.start()
    try:
        assert broker.process is not None
        found = re.search(r"ws://127\.0\.0\.1:\d+/mqtt", " ".join(broker.process.lines))
        assert found
        for url, version in ((f"mqtt://127.0.0.1:{broker.port}", 3), (found[0], 4), (found[0], 5)):
            words = (node, str(HERE / "npm" / "sensor.js"), str(NPM), url, str(version))
            async with running(*words, folder=tmp_path) as client, asyncio.timeout(60):
                assert client.stdout is not None
                said = [json.loads(line) async for line in client.stdout]
            is_5 = version == 5
            heard = [one for one in said if "topic" in one]
            assert said[0] == {"granted": [2]}, said
            assert sorted(heard, key=lambda one: one["qos"]) == [
                {
                    "topic": f"js/{version}/{qos}",
                    "payload": f"{qos} degrees",
                    "qos": qos,
                    "contentType": "text/plain" if is_5 else "",
                    "userProperties": {"unit": "C"} if is_5 else {},
                }
                for qos in range(3)
            ]
            assert said[4:] == [{"refused": 0x87 if is_5 else 0}, {"ended": True}]
    finally:
        await broker.stop()
