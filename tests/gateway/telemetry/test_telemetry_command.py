"""`psph gateway` as an operator runs it: the dashboard's address, a JSON log, spans.

That no secret is in any of them is looked at in `test_access_secrets_process`.
"""

import asyncio
import json
import os
import sys
from pathlib import Path

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from psirp_stack.emulation.network import EmulatedNetwork, socket_of
from psirp_stack.emulation.plan import plan
from psirp_stack.node.config import TimesFile
from tests.gateway.crossing.test_crossing import Publisher, Subscriber
from tests.waiting import until

pytestmark = pytest.mark.timeout(180)
PATIENCE = 60.0


class Collector:
    """Takes what an OpenTelemetry exporter sends."""

    def __init__(self) -> None:
        self.bodies: list[bytes] = []
        app = web.Application()
        app.router.add_post("/v1/traces", self._take)
        self.server = TestServer(app)

    async def _take(self, request: web.Request) -> web.Response:
        self.bodies.append(await request.read())
        return web.Response()


async def test_a_gateway_tells_what_it_does(tmp_path: Path) -> None:
    pytest.importorskip("opentelemetry.sdk", reason="needs the extra otel")
    import aiohttp

    (tmp_path / "net").mkdir()
    network = await EmulatedNetwork.start(
        plan({"generate": {"kind": "line", "nodes": 2}}, tmp_path), tmp_path / "net", TimesFile(hello=0.1)
    )
    token = tmp_path / "operators.tokens"
    token.write_text("t0ken-of-operator\n")
    token.chmod(0o600)
    config = tmp_path / "gateway.toml"
    config.write_text(
        f'[gateway]\nname = "told"\n[network]\nattach = {json.dumps(str(socket_of(tmp_path / "net", "n0")))}\n'
        '[hub]\nlisten = "127.0.0.1:0"\nallow_private = true\ncanary = { enabled = false }\n'
        '[admin]\nlisten = "127.0.0.1:0"\noperator_tokens_file = "operators.tokens"\n'
    )
    collector = Collector()
    await collector.server.start_server()
    await network.settled()
    command = [sys.executable, "-m", "gateway.cli.main", "gateway", "-c", str(config), "--log", "json"]
    where = {"OTEL_EXPORTER_OTLP_ENDPOINT": str(collector.server.make_url("/")).rstrip("/")}
    process = await asyncio.create_subprocess_exec(
        *command, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE, env=os.environ | where
    )
    try:
        assert process.stdout is not None
        async with asyncio.timeout(PATIENCE):
            hub = (await process.stdout.readline()).decode().removeprefix("hub at ").strip()
            line = (await process.stdout.readline()).decode()
            assert b"is up" in await process.stdout.readline()
        assert line.startswith("dashboard at http://127.0.0.1:")
        dashboard = line.removeprefix("dashboard at ").strip()
        headers = {"Authorization": "Bearer t0ken-of-operator"}
        async with aiohttp.ClientSession() as http, Publisher() as blog, Subscriber() as reader:
            form = {"hub.mode": "subscribe", "hub.topic": blog.topic, "hub.secret": "s3cret-of-subscriber"}
            form["hub.callback"] = f"{reader.callback}?key=k3y-of-callback"
            async with http.post(hub, data=form) as answer:
                assert answer.status == 202

            async def is_subscribed() -> bool:
                async with http.get(f"{dashboard}api/topics", params={"q": "feed"}, headers=headers) as answer:
                    found = await answer.json()
                return bool(found and found[0]["subscribers"])

            await until(is_subscribed)
            async with http.post(hub, data={"hub.mode": "publish", "hub.url": blog.topic}) as answer:
                assert answer.status in (202, 204)
            await until(lambda: reader.received)
            action = {"topic": blog.topic, "callback": form["hub.callback"]}
            async with http.post(f"{dashboard}api/actions/verify", json=action, headers=headers) as answer:
                assert await answer.json() == {"done": True}

            async def ways() -> object:  # those that are in the network
                async with http.get(f"{dashboard}api/ways", params={"topic": blog.topic}, headers=headers) as answer:
                    return await answer.json()

            await until(ways)
    finally:
        if process.returncode is None:
            process.terminate()
        _, errors = await asyncio.wait_for(process.communicate(), PATIENCE)
        await network.close()
        await collector.server.close()
    assert process.returncode == 0, errors.decode()
    lines = [json.loads(line) for line in errors.decode().splitlines()]
    assert all(line["gateway"] == "told" for line in lines)
    accepted = next(line for line in lines if line["event"] == "PublicationAccepted")
    crossed = next(line for line in lines if line["event"] == "CrossingPublished")
    assert crossed["publication"] == accepted["publication"]
    assert crossed["version"].startswith("56657273696f6e::")
    assert any(line["event"] == "FanoutFinished" and line["delivered"] == 1 for line in lines)
    traces = b"".join(collector.bodies)
    assert crossed["version"].encode() in traces
    audit = (tmp_path / "var" / "gateway" / "audit.jsonl").read_bytes()
    assert b"verify" in audit
