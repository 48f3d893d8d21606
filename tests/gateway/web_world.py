"""Gateways with a web port on an emulated network, for the tests of the adapters behind it."""

import asyncio
import json
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from aiohttp import ClientResponse, ClientSession

from gateway.access import AccessRules
from gateway.admin.config import AdminConfig
from gateway.gateway import Gateway, gateway_config
from gateway.protocols.chat.adapter import ChatAdapter, ChatConfig
from gateway.protocols.chat.protocol import ChatProtocol
from gateway.protocols.rest.adapter import RestAdapter, RestConfig
from gateway.protocols.rest.protocol import RestProtocol
from gateway.web.server import WebConfig, WebServer
from psirp_stack.emulation.network import EmulatedNetwork, socket_of
from psirp_stack.emulation.plan import plan
from psirp_stack.node.config import TimesFile
from push_hub.canary import CanaryConfig
from push_hub.hub import HubConfig

PATIENCE = 60.0


class Domain:
    """A running gateway with its web port."""

    def __init__(self, gateway: Gateway, web: WebServer) -> None:
        self.gateway = gateway
        self.web = web

    @property
    def streams(self) -> RestAdapter:
        adapter = self.gateway.core.protocol(RestProtocol).adapter
        assert adapter is not None
        return adapter

    @property
    def chat(self) -> ChatAdapter:
        adapter = self.gateway.core.protocol(ChatProtocol).adapter
        assert adapter is not None
        return adapter

    def url(self, path: str) -> str:
        return self.web.url.rstrip("/") + path


class World:
    def __init__(self, network: EmulatedNetwork, data: Path, http: ClientSession) -> None:
        self.network = network
        self.data = data
        self.http = http
        self.events: list[object] = []

    @asynccontextmanager
    async def domain(
        self,
        node: str,
        name: str,
        *,
        streams: RestConfig | None = None,
        chat: ChatConfig | None = None,
        port: int = 0,
        access: AccessRules | None = None,
        admin: AdminConfig | None = None,
        protocols: Mapping[str, object] | None = None,
        **more: Any,
    ) -> AsyncGenerator[Domain, None]:
        hub = HubConfig(self.data / name / "hub", allow_private=True, canary=CanaryConfig(enabled=False))
        chat = chat or ChatConfig(f"{name}.example")
        web = WebConfig(port=port, **more)
        config = gateway_config(
            self.data / name,
            hub,
            attach=socket_of(self.data / "net", node),
            web=web,
            rest=streams,
            chat=chat,
            access=access or AccessRules(),
            name=f"gateway-{name}",
            admin=admin,
            protocols=dict(protocols or {}),
        )
        gateway = Gateway(config, observer=self.events.append)
        await gateway.start()
        try:
            assert gateway.web is not None
            yield Domain(gateway, gateway.web)
        finally:
            await gateway.stop()


@asynccontextmanager
async def started_world(data: Path) -> AsyncGenerator[World, None]:
    (data / "net").mkdir()
    network_plan = plan({"generate": {"kind": "line", "nodes": 3}}, data)
    network = await EmulatedNetwork.start(network_plan, data / "net", TimesFile(hello=0.1))
    try:
        await network.settled()
        async with ClientSession() as http:
            yield World(network, data, http)
    finally:
        await network.close()


class Reader:
    """Reads Server-Sent Events from an answer, as a browser would."""

    def __init__(self, answer: ClientResponse) -> None:
        self.answer = answer
        self._lines: list[bytes] = []

    async def block(self) -> list[bytes]:
        """The next event or comment, without the empty line that ends it."""
        lines: list[bytes] = []
        async with asyncio.timeout(PATIENCE):
            while line := await self.answer.content.readline():
                if line == b"\n":
                    return lines
                lines.append(line.rstrip(b"\n"))
        raise EOFError

    async def next(self) -> tuple[str, Any]:
        """Id and data of the next event; comments are passed over."""
        while True:
            fields = dict(line.split(b": ", 1) for line in await self.block() if not line.startswith(b":"))
            if fields:
                return fields[b"id"].decode(), json.loads(fields[b"data"])
