"""Checklist H41 to H61: fetching and distribution, by the whole hub over real sockets."""

import hashlib
import hmac
import time
from pathlib import Path

import aiohttp
import pytest

from push_hub.hub import Hub, HubConfig
from push_hub.model import Content, Publication
from tests.push_hub.harness import Publisher, Subscriber, atom, until
from tests.push_hub.world import World


async def test_h41_fetches_after_a_ping_conditionally_with_user_agent(world: World) -> None:
    await world.ask("subscribe")
    await world.publish(atom(1))
    first = await world.publisher.next_fetch()
    assert first["User-Agent"]
    await world.ping()
    assert "If-None-Match" in await world.publisher.next_fetch()


async def test_h41_follows_redirects_of_the_topic(world: World) -> None:
    world.topic = world.publisher.url("/redirect")
    await world.ask("subscribe")
    received = await world.publish(atom(1))
    assert b"urn:entry:1" in received.body


async def test_h42_new_changed_and_surrounding_changes_are_told(world: World) -> None:
    await world.ask("subscribe")
    for body in (atom(1), atom(2, 1), atom(2, 1).replace(b"text 1", b"new text"), atom(2, 1, title="other")):
        received = await world.publish(body)
        assert received.body


async def test_h45_posts_to_the_callback_exactly_as_subscribed(world: World) -> None:
    await world.ask("subscribe", path="/cb?a=1&a&b=%20")
    received = await world.publish(atom(1))
    assert received.path_qs == "/cb?a=1&a&b=%20"
    assert b"a=1" not in received.body


@pytest.mark.parametrize("content_type", ["application/atom+xml; charset=UTF-8", "application/atom+xml"])
async def test_h46_h47_content_type_character_by_character(world: World, content_type: str) -> None:
    world.publisher.content_type = content_type
    await world.ask("subscribe")
    assert (await world.publish(atom(1))).headers["Content-Type"] == content_type


async def test_h47_any_other_content_is_passed_on_whole(world: World) -> None:
    world.publisher.content_type = "image/png"
    await world.ask("subscribe")
    received = await world.publish(b"\x89PNG\x00\xff")
    assert (received.headers["Content-Type"], received.body) == ("image/png", b"\x89PNG\x00\xff")


async def test_h48_0_3_gets_only_what_is_new(world: World) -> None:
    await world.ask("subscribe", ("hub.verify", "sync"), expected=204)
    await world.publish(atom(1))
    received = await world.publish(atom(2, 1))
    assert b"<id>urn:entry:2</id>" in received.body
    assert b"urn:entry:1" not in received.body
    assert b"<id>urn:feed</id>" in received.body
    assert b"<title>Feed one</title>" in received.body
    assert b"<updated>" in received.body


async def test_h50_websub_gets_the_full_document(world: World) -> None:
    await world.ask("subscribe")
    await world.publish(atom(1))
    assert (await world.publish(atom(2, 1))).body == atom(2, 1)


async def test_h51_links_to_hub_and_self_in_one_header(world: World) -> None:
    await world.ask("subscribe")
    received = await world.publish(atom(1))
    (link,) = received.headers.getall("Link")
    assert f'<{world.hub.url}>; rel="hub"' in link
    assert f'<{world.topic}>; rel="self"' in link


async def test_h52_h55_redirects_fail_and_a_failure_does_not_end_the_subscription(world: World) -> None:
    await world.ask("subscribe")
    world.subscriber.status = 302
    world.subscriber.answer_headers = {"Location": world.subscriber.url("/elsewhere")}
    assert (await world.publish(atom(1))).path_qs == "/cb"
    found = world.hub.subscriptions.find(world.topic, world.subscriber.url(), time.time())
    assert found is not None
    # H54: what failed is owed, with a time for its next try.
    await until(lambda: world.hub.delivery.owed(found.id))
    assert world.subscriber.received.empty()
    assert world.hub.subscriptions.count(world.topic) == 1


async def test_h53_gone_ends_the_subscription(world: World) -> None:
    await world.ask("subscribe")
    world.subscriber.status = 410
    await world.publish(atom(1))
    await until(lambda: world.hub.subscriptions.count(world.topic) == 0)


@pytest.mark.parametrize("method", ["sha1", "sha256", "sha384", "sha512"])
async def test_h57_signature_over_the_exact_body(world: World, method: str) -> None:
    await world.ask("subscribe", ("hub.secret", "geheim"), ("hub.signature", method))
    received = await world.publish(atom(1))
    expected = hmac.new(b"geheim", received.body, getattr(hashlib, method)).hexdigest()
    assert received.headers["X-Hub-Signature"] == f"{method}={expected}"


async def test_h57_0_3_is_signed_with_sha1(world: World) -> None:
    await world.ask("subscribe", ("hub.secret", "geheim"), ("hub.verify", "sync"), expected=204)
    assert (await world.publish(atom(1))).headers["X-Hub-Signature"].startswith("sha1=")


async def test_h58_no_secret_no_signature(world: World) -> None:
    await world.ask("subscribe")
    assert "X-Hub-Signature" not in (await world.publish(atom(1))).headers


async def test_h59_one_delivery_each_with_its_own_signature(world: World) -> None:
    for n in range(3):
        await world.ask("subscribe", ("hub.secret", f"secret {n}"), path=f"/{n}")
    received = [await world.publish(atom(1))]
    received += [await world.subscriber.next_received() for _ in range(2)]
    assert sorted(one.path_qs for one in received) == ["/0", "/1", "/2"]
    for one in received:
        mac = hmac.new(f"secret {one.path_qs[1:]}".encode(), one.body, "sha256").hexdigest()
        assert one.headers["X-Hub-Signature"] == f"sha256={mac}"
    await until(lambda: not world.hub.delivery.backlog)
    assert world.subscriber.received.empty()


async def test_h61_nothing_after_a_verified_unsubscribe(world: World) -> None:
    await world.ask("subscribe", path="/stays")
    await world.ask("subscribe", path="/leaves")
    await world.ask("unsubscribe", path="/leaves")
    assert (await world.publish(atom(1))).path_qs == "/stays"
    await until(lambda: not world.hub.delivery.backlog)
    assert world.subscriber.received.empty()


async def test_h31_a_later_denial_ends_a_subscription(world: World) -> None:
    await world.ask("subscribe")
    await world.hub.deny(world.topic, world.subscriber.url(), "over")
    assert (await world.subscriber.next_check()).query["hub.mode"] == "denied"
    assert world.hub.subscriptions.count(world.topic) == 0


class Listener:
    def __init__(self) -> None:
        self.publications: list[Publication] = []
        self.live: list[int] = []

    def publication_accepted(self, publication: Publication) -> None:
        self.publications.append(publication)

    def subscription_changed(self, topic: str, live: int) -> None:
        self.live.append(live)


async def test_a_listener_hears_of_publications_and_subscriptions_but_not_its_own_echo(world: World) -> None:
    listener = Listener()
    world.hub.add_listener(listener)
    await world.ask("subscribe")
    await world.publish(atom(1))
    await until(lambda: listener.publications)
    assert (listener.live, [one.topic for one in listener.publications]) == ([1], [world.topic])
    await world.hub.deliver(world.topic, world.topic, Content("text/plain", b"from afar"))
    assert (await world.subscriber.next_received()).body == b"from afar"
    assert len(listener.publications) == 1


async def test_fat_ping_from_an_allowed_publisher_only(world: World) -> None:
    await world.ask("subscribe")
    url = f"{world.hub.url}?hub.mode=publish"
    bring = {"params": {"hub.url": world.topic}, "data": b"hello"}
    for token, status in ((None, 401), ("wrong", 403), ("letmein", 204)):
        headers = {"Content-Type": "text/plain"}
        if token is not None:
            headers["Authorization"] = f"Bearer {token}"
        async with world.http.post(url, headers=headers, **bring) as answer:
            assert answer.status == status
    received = await world.subscriber.next_received()
    assert (received.body, received.headers["Content-Type"]) == (b"hello", "text/plain")


async def test_loopback_callbacks_are_refused_without_allow_private(
    tmp_path: Path, http: aiohttp.ClientSession, subscriber: Subscriber
) -> None:
    hub = Hub(HubConfig(tmp_path / "guarded"))
    await hub.start()
    data = [("hub.mode", "subscribe"), ("hub.topic", "http://p.example/"), ("hub.callback", subscriber.url())]
    async with http.post(hub.url, data=[*data, ("hub.verify", "sync")]) as answer:
        assert answer.status == 409
        assert "loopback or private" in await answer.text()
    assert subscriber.checks.empty()
    await hub.stop()


async def test_a_stopped_hub_goes_on_where_it_was(
    tmp_path: Path, http: aiohttp.ClientSession, publisher: Publisher, subscriber: Subscriber
) -> None:
    config = HubConfig(tmp_path / "data", allow_private=True)
    hub = Hub(config)
    await hub.start()
    await World(hub, http, publisher, subscriber).ask("subscribe")
    await hub.stop()
    again = Hub(config)
    await again.start()
    assert b"urn:entry:1" in (await World(again, http, publisher, subscriber).publish(atom(1))).body
    await again.stop()
