"""A publication crosses from one domain's publisher to another domain's subscriber, over a network between them."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from aiohttp import ClientSession, web
from aiohttp.test_utils import TestServer

from gateway.gateway import Gateway, gateway_config
from psirp_stack.emulation.network import EmulatedNetwork, socket_of
from psirp_stack.emulation.plan import NetworkPlan, plan
from psirp_stack.node.config import TimesFile
from push_hub.canary import CanaryConfig
from push_hub.hub import HubConfig
from tests.waiting import until as until

ATOM = "application/atom+xml"


def feed(*titles: str) -> bytes:
    entries = "".join(f"<entry><id>urn:{title}</id><title>{title}</title></entry>" for title in titles)
    return f'<feed xmlns="http://www.w3.org/2005/Atom"><id>urn:feed</id>{entries}</feed>'.encode()


class Publisher:
    """A web server with one feed."""

    def __init__(self) -> None:
        self.body = feed("first")
        self.fetches = 0
        app = web.Application()
        app.router.add_get("/feed", self._feed)
        self._server = TestServer(app)

    async def _feed(self, request: web.Request) -> web.Response:
        self.fetches += 1
        return web.Response(body=self.body, content_type=ATOM)

    async def __aenter__(self) -> "Publisher":
        await self._server.start_server()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._server.close()

    @property
    def topic(self) -> str:
        return str(self._server.make_url("/feed"))


class Subscriber:
    """A callback that agrees to everything and keeps what it is sent."""

    def __init__(self) -> None:
        self.received: list[tuple[str, bytes, str]] = []
        self.arrived = asyncio.Event()
        app = web.Application()
        app.router.add_get("/callback", self._verify)
        app.router.add_post("/callback", self._take)
        self._server = TestServer(app)

    async def _verify(self, request: web.Request) -> web.Response:
        return web.Response(text=request.query["hub.challenge"])

    async def _take(self, request: web.Request) -> web.Response:
        self.received.append((request.headers["Content-Type"], await request.read(), request.headers["Link"]))
        self.arrived.set()
        return web.Response()

    async def __aenter__(self) -> "Subscriber":
        await self._server.start_server()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._server.close()

    @property
    def callback(self) -> str:
        return str(self._server.make_url("/callback"))


class World:
    def __init__(self, network: EmulatedNetwork, network_plan: NetworkPlan, data: Path, http: ClientSession) -> None:
        self.network = network
        self.data = data
        self.http = http
        self.plan = network_plan

    @asynccontextmanager
    async def gateway(
        self, node: str, name: str, observer: Callable[[object], None] | None = None
    ) -> AsyncIterator[Gateway]:
        hub = HubConfig(self.data / name / "hub", allow_private=True, canary=CanaryConfig(enabled=False))
        config = gateway_config(self.data / name, hub, attach=socket_of(self.data / "net", node))
        gateway = Gateway(config, observer=observer)
        await gateway.start()
        try:
            yield gateway
        finally:
            await gateway.stop()

    async def subscribe(self, gateway: Gateway, topic: str, callback: str, mode: str = "subscribe") -> None:
        form = {"hub.mode": mode, "hub.topic": topic, "hub.callback": callback}
        async with self.http.post(gateway.hub.url, data=form) as answer:
            assert answer.status == 202, await answer.text()
        live = 1 if mode == "subscribe" else 0
        await until(lambda: gateway.hub.subscriptions.count(topic) == live)

    async def ping(self, gateway: Gateway, topic: str) -> None:
        async with self.http.post(gateway.hub.url, data={"hub.mode": "publish", "hub.url": topic}) as answer:
            assert answer.status in (202, 204), await answer.text()


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    network_plan = plan({"generate": {"kind": "line", "nodes": 4}}, tmp_path)
    (tmp_path / "net").mkdir()
    network = await EmulatedNetwork.start(network_plan, tmp_path / "net", TimesFile(hello=0.1))
    await network.settled()
    async with ClientSession() as http:
        yield World(network, network_plan, tmp_path, http)
    await network.close()


async def test_subscribe_first_then_publish(world: World) -> None:
    async with (
        Publisher() as publisher,
        Subscriber() as subscriber,
        world.gateway("n3", "a") as a,
        world.gateway("n0", "b") as b,
    ):
        await world.subscribe(a, publisher.topic, subscriber.callback)
        await world.ping(b, publisher.topic)
        await until(lambda: subscriber.received)
        content_type, body, link = subscriber.received[0]
        assert (content_type, body) == (ATOM, publisher.body)
        assert f"<{publisher.topic}>" in link
        assert f"<{a.hub.url}>" in link


async def test_publish_first_then_subscribe_gets_the_current_version_and_later_ones_once(world: World) -> None:
    async with (
        Publisher() as publisher,
        Subscriber() as subscriber,
        world.gateway("n3", "a") as a,
        world.gateway("n0", "b") as b,
    ):
        await world.ping(b, publisher.topic)
        # Nobody wants it yet: it is fetched when the first does, who gets the state of then.
        assert list(b.hub.pinged_unwanted("", 10)) == [publisher.topic]
        assert publisher.fetches == 0
        await world.subscribe(a, publisher.topic, subscriber.callback)
        await until(lambda: subscriber.received)
        publisher.body = feed("second", "first")
        await world.ping(b, publisher.topic)
        await until(lambda: len(subscriber.received) == 2)
        await world.ping(b, publisher.topic)
        publisher.body = feed("third", "second", "first")
        await world.ping(b, publisher.topic)
        await until(lambda: len(subscriber.received) == 3)
        bodies = [body for _, body, _ in subscriber.received]
        assert bodies == [feed("first"), feed("second", "first"), feed("third", "second", "first")]


async def test_a_gateway_that_was_away_gets_what_it_missed_in_order(world: World) -> None:
    async with Publisher() as publisher, Subscriber() as subscriber, world.gateway("n0", "b") as b:
        async with world.gateway("n3", "a") as a:
            await world.subscribe(a, publisher.topic, subscriber.callback)
            await world.ping(b, publisher.topic)
            await until(lambda: subscriber.received)
        for number in range(3):
            publisher.body = feed(f"missed {number}")
            await world.ping(b, publisher.topic)
            await until(lambda: b.hub.delivery.latest(publisher.topic)[0].content.body == publisher.body)
        async with world.gateway("n3", "a"):
            await until(lambda: len(subscriber.received) == 4)
            bodies = [body for _, body, _ in subscriber.received]
            assert bodies == [feed("first"), *(feed(f"missed {number}") for number in range(3))]


async def test_nothing_is_sent_into_the_network_that_nobody_beyond_it_wants(world: World) -> None:
    async with Publisher() as publisher, Subscriber() as subscriber, world.gateway("n0", "b") as b:
        await world.subscribe(b, publisher.topic, subscriber.callback)
        await world.ping(b, publisher.topic)
        await until(lambda: subscriber.received)
        await until(lambda: world.network.nodes["n0"].node.request_table.published_items == 1)
        assert world.network.nodes["n0"].node.sender.counters.fresh_frames == 0
        assert world.network.nodes["n1"].node.request_table.subscribed_items == 0


async def test_what_nobody_wants_is_advertised_and_withdrawn_and_never_fetched(world: World) -> None:
    async with Publisher() as publisher, world.gateway("n0", "b") as b:
        node = world.network.nodes["n0"].node
        await world.ping(b, publisher.topic)
        await until(lambda: node.request_table.published_items == 1)
        async with world.gateway("n0", "other") as other:  # whoever is started again advertises again
            await world.ping(other, publisher.topic)
        async with world.gateway("n0", "other") as other:
            await until(lambda: len(node.request_table.applications) == 2)
            assert list(other.hub.pinged_unwanted("", 10)) == [publisher.topic]
        assert b.hub.elsewhere.wants(publisher.topic) is False
        b.hub.elsewhere.forgotten([publisher.topic])
        await until(lambda: node.request_table.published_items == 0)
        assert publisher.fetches == 0


async def test_the_last_unsubscription_lets_the_network_go(world: World) -> None:
    async with (
        Publisher() as publisher,
        Subscriber() as subscriber,
        world.gateway("n3", "a") as a,
        world.gateway("n0", "b"),
    ):
        await world.subscribe(a, publisher.topic, subscriber.callback)
        node = world.network.nodes["n3"].node
        await until(lambda: node.request_table.subscribed_items == 1)
        await world.subscribe(a, publisher.topic, subscriber.callback, "unsubscribe")
        await until(lambda: node.request_table.subscribed_items == 0)
