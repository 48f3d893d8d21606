"""Checklist P1 to P4 and S1 to S14: the publisher's and the subscriber's side, over real sockets."""

import hashlib
import hmac
from collections.abc import Mapping, Sequence
from dataclasses import replace

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer
from hypothesis import given
from hypothesis import strategies as st

from push_hub.client import (
    ClientError,
    ClientSubscription,
    SubscriptionState,
    discover_topic,
    feed_links,
    html_links,
    link_header,
    publish_everywhere,
)
from push_hub.client.aggregated import sources_of
from push_hub.client.subscriptions import new_subscription
from push_hub.discovery import discover
from tests.push_hub.client.client_support import Client
from tests.push_hub.harness import atom, until
from tests.push_hub.intake.fetcher import Headers
from tests.push_hub.world import World

HUBS = ["https://hub.example/", "https://second.example/?a=1&b=2"]
TOPIC = "https://publisher.example/feed?x=1&y=2"
ATOM = '<feed xmlns="http://www.w3.org/2005/Atom"><id>urn:f</id>{}</feed>'
RSS = '<rss version="2.0" xmlns:atom="http://www.w3.org/2005/Atom"><channel>{}</channel></rss>'
HTML = "<!doctype html><html><head><title>x</title>{}</head><body></body></html>"


def found_in(
    content_type: str, body: str, headers: Sequence[tuple[str, str]] = ()
) -> tuple[tuple[str, ...], str | None]:
    links = discover(Headers(headers), content_type, body.encode(), "https://publisher.example/")
    return links.hubs, links.self_url


# -- publisher


@pytest.mark.parametrize(
    ("content_type", "frame", "prefix"),
    [("application/atom+xml", ATOM, ""), ("application/rss+xml", RSS, "atom:")],
)
def test_p1_feeds_name_their_hubs(content_type: str, frame: str, prefix: str) -> None:
    assert found_in(content_type, frame.format(feed_links(HUBS, TOPIC, prefix))) == (tuple(HUBS), TOPIC)


def test_p2_headers_name_hubs_and_exactly_one_self() -> None:
    header = link_header(HUBS, TOPIC)
    assert header.count('rel="hub"') == 2
    assert header.count('rel="self"') == 1
    assert found_in("image/png", "", [("Link", header)]) == (tuple(HUBS), TOPIC)
    for hubs, topic in (([], TOPIC), (["ftp://x/"], TOPIC), (HUBS, 'https://x/>; rel="hub"'), (HUBS, "https://x/\r\n")):
        with pytest.raises(ValueError, match=r"hub|URL|percent"):
            link_header(hubs, topic)


def test_p3_pages_name_them_in_their_head() -> None:
    assert found_in("text/html; charset=utf-8", HTML.format(html_links(HUBS, TOPIC))) == (tuple(HUBS), TOPIC)


async def test_p4_every_named_hub_is_told(client: Client) -> None:
    client.page_hubs = ["/hub", "/broken", "/slow"]
    outcomes = await publish_everywhere(client.fetch, client.base + "/feed")
    assert [outcomes[client.base + hub] for hub in ("/hub", "/slow")] == [None, None]
    assert "answered 500" in (outcomes[client.base + "/broken"] or "")
    assert [dict(one)["hub.url"] for one in client.asked] == [client.base + "/canonical"] * 2


# -- subscriber


async def page(content_type: str, body: str, headers: Mapping[str, str]) -> TestServer:
    async def serve(_: web.Request) -> web.Response:
        return web.Response(body=body.encode(), headers={"Content-Type": content_type, **headers})

    app = web.Application()
    app.router.add_get("/page", serve)
    server = TestServer(app)
    await server.start_server()
    return server


LINKS = feed_links(["http://embedded.example/hub"], "http://embedded.example/self")
HEADER = link_header(["http://header.example/hub"], "http://header.example/self")


@pytest.mark.parametrize(
    ("content_type", "body", "headers", "source"),
    [
        ("text/plain", "", {"Link": HEADER}, "header"),
        ("application/atom+xml", ATOM.format(LINKS), {"Link": HEADER}, "header"),
        ("application/atom+xml", ATOM.format(LINKS), {}, "embedded"),
        ("application/rss+xml", RSS.format(LINKS.replace("<link", "<atom:link")), {}, "embedded"),
        ("text/html", HTML.format(LINKS), {}, "embedded"),
    ],
)
async def test_s1_link_headers_first_then_embedded_links(
    client: Client, content_type: str, body: str, headers: dict[str, str], source: str
) -> None:
    server = await page(content_type, body, headers)
    found = await discover_topic(client.fetch, str(server.make_url("/page")))
    assert (found.topic, found.hubs) == (f"http://{source}.example/self", (f"http://{source}.example/hub",))
    await server.close()


async def test_s1_without_a_hub_it_says_so(client: Client) -> None:
    with pytest.raises(ClientError, match="names no hub"):
        await discover_topic(client.fetch, client.base + "/plain")


async def test_s2_the_topic_is_the_self_link(client: Client) -> None:
    subscription = await client.subscriber.subscribe(client.base + "/feed")
    assert dict(client.asked[0])["hub.topic"] == subscription.topic == client.base + "/canonical"


async def test_s3_callbacks_are_unguessable_unique_and_change_on_renewal(client: Client) -> None:
    wishes = [
        await client.subscriber.subscribe_at(client.base + hub, topic)
        for hub in ("/hub", "/deaf")
        for topic in ("http://t.example/1", "http://t.example/2")
    ]
    tokens = {subscription.token for subscription in wishes}
    assert len(tokens) == 4
    assert all(len(token) >= 32 for token in tokens)
    subscription = wishes[0]
    await client.intent(subscription)
    client.now += 801
    await client.subscriber.renew_due()
    new = dict(client.asked[-1])["hub.callback"].rpartition("/")[2]
    assert new not in tokens
    assert await client.deliver(subscription, b"until the new one is confirmed") == 202
    assert (await client.intent(subscription, token=new))[0] == 200
    assert await client.deliver(subscription, b"to the old callback") == 410
    renewed = client.subscriptions.by_topic(subscription.topic, subscription.hub)
    assert renewed is not None
    assert renewed.token == new
    assert await client.deliver(renewed, b"to the new one") == 202
    assert (await client.intent(subscription))[0] == 404  # nobody revives the old one


async def test_s4_secrets_are_random_and_travel_over_https_only(client: Client) -> None:
    await client.subscription()
    assert "hub.secret" not in dict(client.asked[0])
    secrets = {new_subscription("http://t/", "https://hub.example/", 0.0).secret for _ in range(5)}
    assert len(secrets) == 5
    assert all(secret is not None and 32 <= len(secret) < 200 for secret in secrets)
    assert new_subscription("http://t/", "http://hub.example/", 0.0).secret is None


async def test_s5_only_a_pending_wish_is_confirmed(client: Client) -> None:
    subscription = await client.subscription()
    assert (await client.intent(subscription, topic="http://other.example/"))[0] == 404
    assert (await client.intent(subscription, mode="unsubscribe"))[0] == 404
    assert (await client.intent(subscription, token="guessed"))[0] == 404
    assert (await client.intent(subscription, verify_token="not asked for"))[0] == 404
    assert client.stored(subscription).state is SubscriptionState.ASKED
    assert (await client.intent(subscription))[:2] == (200, "abc")


@pytest.mark.parametrize("challenge", ["", "<script>alert(1)</script>", "a" * 1025, "a b", "\x00", "é"])
async def test_s6_challenges_are_echoed_safely_or_not_at_all(client: Client, challenge: str) -> None:
    subscription = await client.subscription()
    status, text, response = await client.intent(subscription, challenge=challenge)
    assert status == 404
    assert challenge not in text or not challenge
    status, text, response = await client.intent(subscription, challenge="+-./0=A_z" * 100)
    assert (status, text) == (200, "+-./0=A_z" * 100)
    assert response.content_type == "text/plain"
    assert response.headers["X-Content-Type-Options"] == "nosniff"


async def test_s7_renewed_before_the_end_and_no_lease_needed_to_unsubscribe(client: Client) -> None:
    subscription = await client.subscription()
    await client.intent(subscription, lease_seconds="1000")
    client.now += 999
    assert await client.subscriber.renew_due() == 1
    await client.subscriber.unsubscribe(client.stored(subscription))
    assert "hub.lease_seconds" not in dict(client.asked[-1])
    assert (await client.intent(subscription, mode="unsubscribe", lease_seconds="nonsense"))[0] == 200


async def test_s8_denied_is_gone_until_somebody_tries_again(client: Client) -> None:
    subscription = await client.subscription()
    await client.intent(subscription)
    assert (await client.intent(subscription, mode="denied", reason="no more"))[0] == 200
    assert client.stored(subscription).state is SubscriptionState.DENIED
    client.now += 10**7
    assert await client.subscriber.renew_due() == 0
    assert (await client.subscription()).state is SubscriptionState.ASKED


async def test_s9_deliveries_are_answered_2xx_and_410_when_over(client: Client) -> None:
    subscription = await client.subscription()
    await client.intent(subscription)
    assert await client.deliver(subscription, b"x") == 202
    await client.subscriber.unsubscribe(client.stored(subscription))
    await client.intent(subscription, mode="unsubscribe")
    assert await client.deliver(subscription, b"x") == 410


@pytest.mark.parametrize("signature", ["sha256=00", "sha1=" + "0" * 40, "md5=00", "sha256", "=", "sha256=\u00e9"])
async def test_s10_a_bad_signature_gets_2xx_and_is_dropped(client: Client, signature: str) -> None:
    subscription = await signed(client)
    assert await client.deliver(subscription, b"forged", signature) == 202
    assert client.received == []


async def test_s11_with_a_secret_unsigned_deliveries_are_dropped(client: Client) -> None:
    subscription = await signed(client)
    assert await client.deliver(subscription, b"unsigned") == 202
    assert client.received == []
    for method in ("sha1", "sha256", "sha384", "sha512"):
        mac = hmac.new(b"key", b"body", getattr(hashlib, method)).hexdigest()
        assert await client.deliver(subscription, b"body", f"{method}={mac}") == 202
    assert len(client.received) == 4


async def test_s12_the_callback_tells_the_subscription_not_the_link_header(client: Client) -> None:
    subscription = await client.subscription()
    await client.intent(subscription)
    headers = {"Link": '<http://other.example/>; rel="self", <http://evil.example/>; rel="hub"'}
    assert await client.deliver(subscription, b"x", headers=headers) == 202
    assert [one.topic for one in client.received] == [subscription.topic]


async def test_s13_deliveries_of_several_topics_are_understood(client: Client) -> None:
    subscription = await client.subscription()
    await client.intent(subscription)
    source = "<entry><id>urn:{n}</id><source><id>urn:s{n}</id>{link}</source></entry>"
    body = ATOM.format(
        source.format(n=1, link='<link rel="self" href="http://a.example/"/>')
        + source.format(n=2, link="")
        + source.format(n=3, link='<link rel="self" href="http://a.example/"/>')
    ).encode()
    await client.deliver(subscription, body, headers={"Content-Type": "application/atom+xml"})
    await client.deliver(subscription, atom(1), headers={"Content-Type": "application/atom+xml"})
    await client.deliver(subscription, body, headers={"Content-Type": "text/plain"})
    assert [one.sources for one in client.received] == [("http://a.example/", "urn:s2"), (), ()]


async def test_s14_a_hub_s_307_and_308_are_followed(client: Client) -> None:
    subscription = await client.subscriber.subscribe_at(client.base + "/moved", "http://t.example/")
    assert dict(client.asked[0])["hub.topic"] == "http://t.example/"
    assert client.stored(subscription).hub == client.base + "/moved"  # the redirect may be gone next time


async def test_client_and_hub_understand_each_other(world: World, client: Client) -> None:
    """Our subscriber at our hub: discovered, verified, delivered, renewed at another callback, unsubscribed."""
    world.publisher.body = atom(1)
    world.publisher.extra_headers = {"Link": link_header([world.hub.url], world.topic)}
    client.now = world.clock()
    subscription = await client.subscriber.subscribe(world.topic)
    await until(lambda: client.stored(subscription).state is SubscriptionState.ACTIVE)
    await until(lambda: world.hub.subscriptions.count(world.topic) == 1)
    assert await publish_everywhere(client.fetch, world.topic) == {world.hub.url: None}
    await until(lambda: client.received)
    assert client.received[0].body == atom(1)  # whole: it was not taken for a 0.3 client
    client.now += 9 * 86_400
    await client.subscriber.renew_due()
    await until(lambda: world.hub.subscriptions.count(world.topic) == 2)
    await until(lambda: client.stored(subscription).retired == subscription.token)
    world.publisher.body = atom(2, 1)
    await publish_everywhere(client.fetch, world.topic)
    await until(lambda: world.hub.subscriptions.count(world.topic) == 1)  # the old callback answered 410
    await until(lambda: len(client.received) == 2)
    await client.subscriber.unsubscribe(client.stored(subscription))
    await until(lambda: world.hub.subscriptions.count(world.topic) == 0)
    assert len(client.received) == 2


async def signed(client: Client) -> ClientSubscription:
    subscription = await client.subscription()
    await client.intent(subscription)
    client.subscriptions.save(replace(client.stored(subscription), secret=b"key")).result()
    return client.stored(subscription)


@given(st.binary(max_size=300))
def test_sources_of_anything_is_an_answer(body: bytes) -> None:
    assert isinstance(sources_of("application/xml", b"<feed><entry><source>" + body), tuple)
