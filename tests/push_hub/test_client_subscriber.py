"""The client side over real loopback sockets, against a small hub written for the test."""

import hashlib
import hmac
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import aiohttp
import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer
from hypothesis import given
from hypothesis import strategies as st

from push_hub.client import (
    MIGRATIONS,
    ClientError,
    Delivery,
    State,
    Subscriber,
    SubscriberConfig,
    Wish,
    WishStore,
    callback_app,
    discover_topic,
    publish,
)
from push_hub.client.callbacks import signature_fits
from push_hub.client.wishes import asked, is_due, new_wish, takes_deliveries, verified
from storage import Database
from tests.push_hub.feeds import atom
from tests.push_hub.fetcher import AiohttpFetch


class Client:
    """One loopback server that is publisher, hub and callback at once."""

    def __init__(self, path: Path, session: aiohttp.ClientSession) -> None:
        self.now = 1_000_000.0
        self.session = session
        self.fetch = AiohttpFetch(session)
        self.database = Database.open(path, MIGRATIONS)
        self.wishes = WishStore(self.database)
        self.received: list[Delivery] = []
        self.asked: list[list[tuple[str, str]]] = []
        self.base = ""

    @property
    def subscriber(self) -> Subscriber:
        return Subscriber(self.wishes, self.fetch, SubscriberConfig(self.base + "/cb"), lambda: self.now)

    async def take(self, delivery: Delivery) -> None:
        self.received.append(delivery)

    async def hub(self, request: web.Request) -> web.Response:
        self.asked.append([(name, str(value)) for name, value in (await request.post()).items()])
        return web.Response(status=202)

    async def intent(self, wish: Wish, **changes: str) -> tuple[int, str, aiohttp.ClientResponse]:
        values = {"mode": "subscribe", "topic": wish.topic, "challenge": "abc", "lease_seconds": "1000", **changes}
        query = {f"hub.{name}": value for name, value in values.items()}
        async with self.session.get(f"{self.base}/cb/{wish.token}", params=query) as response:
            return response.status, await response.text(), response

    async def deliver(self, wish: Wish, body: bytes, signature: str | None = None) -> int:
        headers = {"X-Hub-Signature": signature} if signature else {}
        async with self.session.post(f"{self.base}/cb/{wish.token}", data=body, headers=headers) as response:
            return response.status

    async def wish(self) -> Wish:
        return await self.subscriber.subscribe_at(self.base + "/hub", self.base + "/feed")

    def stored(self, wish: Wish) -> Wish:
        found = self.wishes.by_token(wish.token)
        assert found is not None
        return found


@pytest.fixture
async def client(tmp_path: Path) -> AsyncIterator[Client]:
    async with aiohttp.ClientSession() as session:
        client = Client(tmp_path / "client.db", session)

        async def feed(_: web.Request) -> web.Response:
            body = atom([], self_url=client.base + "/canonical", hub=client.base + "/moved")
            return web.Response(body=body, content_type="application/atom+xml")

        async def moved(_: web.Request) -> web.Response:
            raise web.HTTPPermanentRedirect("/hub")

        async def plain(_: web.Request) -> web.Response:
            return web.Response(text="nothing here")

        app = web.Application()
        app.router.add_get("/feed", feed)
        app.router.add_get("/plain", plain)
        app.router.add_post("/hub", client.hub)
        app.router.add_post("/moved", moved)
        app.add_subapp("/cb/", callback_app(client.wishes, client.take, lambda: client.now))
        async with TestServer(app) as server:
            client.base = str(server.make_url("")).rstrip("/")
            yield client
        client.database.close()


async def test_discovers_and_asks_for_the_self_url_following_the_hub_s_308(client: Client) -> None:
    wish = await client.subscriber.subscribe(client.base + "/feed")
    fields = dict(client.asked[0])
    assert fields["hub.topic"] == client.base + "/canonical" == wish.topic
    assert fields["hub.callback"] == f"{client.base}/cb/{wish.token}"
    assert "hub.secret" not in fields  # S4: the hub is not reached over https
    with pytest.raises(ClientError, match="names no hub"):
        await discover_topic(client.fetch, client.base + "/plain")


async def test_a_wanted_intent_is_echoed_safely_and_any_other_is_404(client: Client) -> None:
    wish = await client.wish()
    assert (await client.intent(wish, topic="http://example.org/other"))[0] == 404
    assert (await client.intent(wish, mode="unsubscribe"))[0] == 404
    assert (await client.intent(wish, challenge="<script>"))[0] == 404
    assert (await client.intent(wish, lease_seconds="soon"))[0] == 404
    assert (await client.intent(replace(wish, token="unknown")))[0] == 404
    assert client.stored(wish).state is State.ASKED
    status, text, response = await client.intent(wish)
    assert (status, text, response.content_type) == (200, "abc", "text/plain")
    assert response.headers["X-Content-Type-Options"] == "nosniff"
    assert client.stored(wish).lease_until == client.now + 1000


async def test_deliveries_count_only_when_signed_rightly(client: Client) -> None:
    wish = await client.wish()
    assert await client.deliver(wish, b"early") == 404
    await client.intent(wish)
    client.wishes.save(replace(client.stored(wish), secret=b"key")).result()
    good = "sha256=" + hmac.new(b"key", b"body", hashlib.sha256).hexdigest()
    assert [await client.deliver(wish, b"body", s) for s in (None, "sha256=00", "md5=00", good)] == [202] * 4
    assert [d.body for d in client.received] == [b"body"]
    client.now += 1001
    assert await client.deliver(wish, b"body", good) == 404


async def test_denied_ends_it_and_deliveries_then_get_410(client: Client) -> None:
    wish = await client.wish()
    assert (await client.intent(wish, mode="denied", reason="no"))[0] == 200
    assert client.stored(wish).reason == "denied: no"
    assert await client.deliver(wish, b"x") == 410
    assert (await client.wish()).state is State.ASKED  # a later try is allowed


async def test_renewal_comes_before_the_lease_ends_also_after_a_restart(client: Client) -> None:
    wish = await client.wish()
    await client.intent(wish)
    client.now += 799
    assert await client.subscriber.renew_due() == 0
    client.now += 2
    assert await client.subscriber.renew_due() == 1  # a new object: only the table carried the wish
    assert len(client.asked) == 2
    await client.intent(wish)
    assert client.stored(wish).lease_until == client.now + 1000


async def test_unsubscribe_is_confirmed_and_then_over(client: Client) -> None:
    wish = await client.wish()
    await client.intent(wish)
    await client.subscriber.unsubscribe(client.stored(wish))
    assert dict(client.asked[1])["hub.mode"] == "unsubscribe"
    assert (await client.intent(wish, mode="unsubscribe"))[0] == 200
    assert client.stored(wish).state is State.GONE


async def test_publish_sends_both_names_and_a_dead_hub_is_said_so(client: Client) -> None:
    assert await publish(client.fetch, client.base + "/hub", ["http://a/", "http://b/"]) == 202
    assert [v for k, v in client.asked[0] if k == "hub.url"] == ["http://a/", "http://b/"]
    with pytest.raises(ClientError, match="answered 404"):
        await publish(client.fetch, client.base + "/nowhere", ["http://a/"])


@given(st.integers(1, 10**8), st.integers(0, 20))
def test_a_renewal_is_always_due_before_the_lease_ends(lease: int, failures: int) -> None:
    wish = new_wish("http://t/", "https://h/", 0.0)
    assert wish.secret is not None and len(wish.secret) < 200
    for _ in range(failures):
        wish = asked(wish, 0.0, "failed")
    active = verified(wish, "subscribe", "http://t/", str(lease), 100.0)
    assert active is not None and active.renew_at < active.lease_until
    assert is_due(active, active.renew_at) and takes_deliveries(active, active.renew_at)
    assert not takes_deliveries(active, active.lease_until)


@given(st.none() | st.text(max_size=80), st.binary(max_size=40))
def test_signature_headers_of_strangers_never_raise_and_never_fit(header: str | None, body: bytes) -> None:
    assert not signature_fits(header, b"key", body)
