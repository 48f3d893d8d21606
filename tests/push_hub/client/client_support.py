"""One loopback server that is publisher, hub and callback at once, for the tests of the client side."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import aiohttp
from aiohttp import web
from aiohttp.test_utils import TestServer

from push_hub.client import (
    MIGRATIONS,
    ClientSubscription,
    ClientSubscriptionStore,
    ReceivedDelivery,
    Subscriber,
    SubscriberConfig,
    callback_app,
)
from storage import Database
from tests.push_hub.intake.fetcher import AiohttpFetch


class Client:
    """`page_hubs` and `page_self` are what the feed says about itself; each hub path behaves in its own way."""

    def __init__(self, path: Path, session: aiohttp.ClientSession) -> None:
        self.now = 1_000_000.0
        self.session = session
        self.fetch = AiohttpFetch(session)
        self.database = Database.open(path, MIGRATIONS)
        self.subscriptions = ClientSubscriptionStore(self.database)
        self.received: list[ReceivedDelivery] = []
        self.asked: list[list[tuple[str, str]]] = []
        self.base = ""
        self.page_hubs = ["/moved"]
        self.page_self = "/canonical"
        self.config: SubscriberConfig | None = None
        self.fail = False
        self.hold = asyncio.Event()
        self.hold.set()

    @property
    def subscriber(self) -> Subscriber:
        """A new object each time: only the table carries the wishes."""
        config = self.config or SubscriberConfig(self.base + "/cb")
        return Subscriber(self.subscriptions, self.fetch, config, lambda: self.now)

    async def take(self, delivery: ReceivedDelivery) -> None:
        self.received.append(delivery)

    async def hub(self, request: web.Request) -> web.Response:
        fields = [(name, str(value)) for name, value in (await request.post()).items()]
        if request.path == "/slow":
            await self.hold.wait()
        if request.path == "/old" and "hub.verify" not in dict(fields):
            return web.Response(status=400, text="hub.verify is missing")
        if request.path == "/broken" or self.fail:
            return web.Response(status=500)
        self.asked.append(fields)
        return web.Response(status=202)

    async def feed(self, _: web.Request) -> web.Response:
        links = "".join(f'<link rel="hub" href="{self.base}{hub}"/>' for hub in self.page_hubs)
        body = (
            '<feed xmlns="http://www.w3.org/2005/Atom"><id>urn:f</id>'
            f'<link rel="self" href="{self.base}{self.page_self}"/>{links}</feed>'
        )
        return web.Response(text=body, content_type="application/atom+xml")

    async def intent(
        self, subscription: ClientSubscription, *, token: str = "", **changes: str
    ) -> tuple[int, str, aiohttp.ClientResponse]:
        values = {
            "mode": "subscribe",
            "topic": subscription.topic,
            "challenge": "abc",
            "lease_seconds": "1000",
            **changes,
        }
        query = {f"hub.{name}": value for name, value in values.items()}
        async with self.session.get(f"{self.base}/cb/{token or subscription.token}", params=query) as response:
            return response.status, await response.text(), response

    async def deliver(
        self,
        subscription: ClientSubscription,
        body: bytes,
        signature: str | None = None,
        headers: dict[str, str] | None = None,
    ) -> int:
        sent = dict(headers or {})
        if signature:
            sent["X-Hub-Signature"] = signature
        async with self.session.post(f"{self.base}/cb/{subscription.token}", data=body, headers=sent) as response:
            return response.status

    async def subscription(self) -> ClientSubscription:
        return await self.subscriber.subscribe_at(self.base + "/hub", self.base + "/feed")

    def stored(self, subscription: ClientSubscription) -> ClientSubscription:
        found = self.subscriptions.by_token(subscription.token)
        assert found is not None
        return found


@asynccontextmanager
async def run_client(directory: Path) -> AsyncIterator[Client]:
    async with aiohttp.ClientSession() as session:
        client = Client(directory / "client.db", session)

        async def moved(_: web.Request) -> web.Response:
            raise web.HTTPPermanentRedirect("/hub")

        async def plain(_: web.Request) -> web.Response:
            return web.Response(text="nothing here")

        app = web.Application()
        app.router.add_get("/feed", client.feed)
        app.router.add_get("/plain", plain)
        for path in ("/hub", "/old", "/broken", "/deaf", "/slow"):
            app.router.add_post(path, client.hub)
        app.router.add_post("/moved", moved)
        app.add_subapp("/cb/", callback_app(client.subscriptions, client.take, lambda: client.now))
        async with TestServer(app) as server:
            client.base = str(server.make_url("")).rstrip("/")
            yield client
        client.database.close()
