"""Gateways with an admin port on an emulated network, for the tests of dashboard, metrics and health."""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from aiohttp import ClientSession, web

from gateway.admin.config import AdminConfig
from gateway.admin.server import AdminServer
from gateway.gateway import Gateway, gateway_config
from gateway.protocols.chat.adapter import ChatConfig
from gateway.web.server import WebConfig
from psirp_stack.emulation.network import EmulatedNetwork, socket_of
from psirp_stack.emulation.plan import plan
from psirp_stack.node.config import TimesFile
from push_hub.canary import CanaryConfig
from push_hub.hub import HubConfig
from tests.gateway.crossing.test_crossing import Publisher, Subscriber, feed
from tests.waiting import until


class Reader(Subscriber):
    """A callback that first answers as it is told."""

    def __init__(self) -> None:
        super().__init__()
        self.answers: list[int] = []

    async def _take(self, request: web.Request) -> web.Response:
        if self.answers:
            return web.Response(status=self.answers.pop(0))
        return await super()._take(request)


class AdminWorld:
    """Domain B with a publisher, domain A with a subscriber, and the admin ports of both."""

    def __init__(
        self, network: EmulatedNetwork, a: Gateway, b: Gateway, http: ClientSession, blog: Publisher, reader: Reader
    ) -> None:
        self.network = network
        self.a = a
        self.b = b
        self.http = http
        self.blog = blog
        self.reader = reader
        self.count = 0

    @property
    def admin(self) -> AdminServer:
        assert self.a.admin is not None
        return self.a.admin

    async def subscribe(self, secret: str = "geheimnis") -> None:  # noqa: S107
        form = {"hub.mode": "subscribe", "hub.topic": self.blog.topic, "hub.callback": self.reader.callback}
        async with self.http.post(self.a.hub.url, data=form | {"hub.secret": secret}) as answer:
            assert answer.status == 202
        await until(lambda: self.a.hub.subscriptions.count(self.blog.topic))

    async def publish(self, *, arrives: bool = True) -> None:
        """Something new in domain B; waits until the subscriber in domain A has it."""
        self.count += 1
        self.blog.body = feed(*(f"entry{number}" for number in range(self.count + 1)))
        before = len(self.reader.received)
        async with self.http.post(self.b.hub.url, data={"hub.mode": "publish", "hub.url": self.blog.topic}) as answer:
            assert answer.status in (202, 204)
        if arrives:
            await until(lambda: len(self.reader.received) > before)

    async def get(self, path: str, status: int = 200, *, of: Gateway | None = None, **query: str) -> Any:
        admin = (of or self.a).admin
        assert admin is not None
        async with self.http.get(admin.url.rstrip("/") + path, params=query) as answer:
            assert answer.status == status, await answer.text()
            return await answer.json() if answer.content_type == "application/json" else await answer.text()

    async def act(self, action: str, status: int = 200, **body: str | int) -> Any:
        async with self.http.post(f"{self.admin.url}api/actions/{action}", json=body) as answer:
            assert answer.status == status, await answer.text()
            return await answer.json() if status == 200 else await answer.text()


@asynccontextmanager
async def admin_world(data: Path, admin_a: AdminConfig | None = None, nodes: int = 3) -> AsyncGenerator[AdminWorld]:
    net = data / "net"
    net.mkdir(parents=True)
    network_plan = plan({"generate": {"kind": "line", "nodes": nodes}, "roles": {"rendezvous": "n1"}}, data)
    network = await EmulatedNetwork.start(network_plan, net, TimesFile(hello=0.1))
    gateways: list[Gateway] = []
    try:
        await network.settled()
        for name, node, admin in (("b", "n0", AdminConfig()), ("a", f"n{nodes - 1}", admin_a or AdminConfig())):
            hub = HubConfig(data / name / "hub", allow_private=True, canary=CanaryConfig(enabled=False))
            config = gateway_config(
                data / name,
                hub,
                attach=socket_of(net, node),
                name=f"gateway-{name}",
                admin=admin,
                web=WebConfig(),
                chat=ChatConfig(f"{name}.example"),
            )
            gateways.append(Gateway(config))
            await gateways[-1].start()
        b, a = gateways
        assert a.admin is not None
        assert b.admin is not None
        a.admin.peers.add(b.admin.url)
        async with ClientSession() as http, Publisher() as blog, Reader() as reader:
            yield AdminWorld(network, a, b, http, blog, reader)
    finally:
        for gateway in reversed(gateways):
            await gateway.stop()
        await network.close()
