"""Checklist H41 to H61: fetching and distribution, by the whole hub over real sockets."""

import hashlib
import hmac
from pathlib import Path

import aiohttp
import pytest

from push_hub.hub import Hub, HubConfig
from push_hub.intake import Intake, IntakeConfig
from push_hub.model import Content, HubPublication
from storage import StorageError
from tests.push_hub.harness import Publisher, Subscriber, atom, until
from tests.push_hub.world import World, whole_hub


async def test_h41_fetches_after_a_ping_conditionally_with_user_agent(world: World) -> None:
    world.publisher.extra_headers = {"Last-Modified": "Thu, 01 Jan 2026 00:00:00 GMT"}
    await world.ask("subscribe")
    await world.ask("subscribe", path="/second")
    await world.publish(atom(1))
    first = await world.publisher.next_fetch()
    assert first["User-Agent"] == "psph-hub (2 subscribers)"
    assert "If-None-Match" not in first
    await world.ping()
    second = await world.publisher.next_fetch()
    assert second["If-None-Match"]
    assert second["If-Modified-Since"] == "Thu, 01 Jan 2026 00:00:00 GMT"


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


async def test_h51_self_is_the_canonical_address_that_was_discovered(world: World) -> None:
    canonical = world.publisher.url("/canonical")
    world.publisher.extra_headers = {"Link": f'<{canonical}>; rel="self"'}
    await world.ask("subscribe")
    (link,) = (await world.publish(atom(1))).headers.getall("Link")
    assert f'<{canonical}>; rel="self"' in link


async def test_h51_self_on_another_origin_is_not_believed_by_itself(world: World) -> None:
    """Anybody may write anybody's address into a document."""
    world.publisher.extra_headers = {"Link": '<https://canonical.example/feed>; rel="self"'}
    await world.ask("subscribe")
    (link,) = (await world.publish(atom(1))).headers.getall("Link")
    assert f'<{world.topic}>; rel="self"' in link
    assert "canonical.example" not in link


@pytest.mark.parametrize("status", [200, 201, 202, 204, 299])
async def test_h52_any_2xx_is_success_and_its_body_is_ignored(world: World, status: int) -> None:
    await world.ask("subscribe")
    world.subscriber.status = status
    await world.publish(atom(1))
    await until(lambda: world.hub.delivery.history(world.found().id))
    (entry,) = world.hub.delivery.history(world.found().id)
    assert (entry.status, entry.reason) == (status, None)
    assert world.hub.delivery.owed(world.found().id) == []


@pytest.mark.parametrize("status", [301, 302, 307, 308, 304, 400, 401, 403, 404, 429, 500, 503])
async def test_h52_everything_else_fails_and_redirects_are_not_followed(world: World, status: int) -> None:
    await world.ask("subscribe")
    world.subscriber.status = status
    world.subscriber.answer_headers = {"Location": world.subscriber.url("/elsewhere")}
    assert (await world.publish(atom(1))).path_qs == "/cb"
    await until(lambda: world.hub.delivery.owed(world.found().id))
    assert world.subscriber.received.empty()
    assert world.hub.subscriptions.count(world.topic) == 1


async def test_h54_failures_are_retried_until_they_succeed(world: World) -> None:
    await world.ask("subscribe")
    world.subscriber.status = 500
    await world.publish(atom(1))
    number = world.found().id
    for tries in (1, 2):
        await until(lambda tries=tries: [one.attempts for one in world.hub.delivery.owed(number)] == [tries])
        if tries == 2:
            world.subscriber.status = 200
        await world.wait_ahead(60)
        assert (await world.subscriber.next_received()).body == atom(1)
    await until(lambda: not world.hub.delivery.owed(number))
    await world.wait_ahead(3600)
    assert world.subscriber.received.empty()
    assert [one.status for one in world.hub.delivery.history(number)] == [500, 500, 200]


async def test_h54_retries_have_an_end(world: World) -> None:
    await world.ask("subscribe")
    world.subscriber.status = 500
    await world.publish(atom(1))
    await until(lambda: world.hub.delivery.owed(world.found().id))
    await world.wait_ahead(86_400)
    await world.subscriber.next_received()
    await until(world.hub.delivery.dead_letters)
    await world.wait_ahead(86_400)
    assert world.hub.delivery.owed(world.found().id) == []
    assert world.subscriber.received.empty()


async def test_h55_after_giving_up_the_subscription_stays_and_the_next_update_is_tried(world: World) -> None:
    await world.ask("subscribe")
    before = world.found()
    world.subscriber.status = 500
    await world.publish(atom(1))
    await until(lambda: world.hub.delivery.owed(before.id))
    await world.wait_ahead(86_400)
    await world.subscriber.next_received()
    await until(world.hub.delivery.dead_letters)
    assert world.found() == before
    world.subscriber.status = 200
    assert (await world.publish(atom(2, 1))).body == atom(2, 1)
    # ... until its lease ends, and not longer.
    await world.wait_ahead(10 * 86_400)
    assert world.hub.subscriptions.count(world.topic) == 0


async def test_h56_who_claims_readers_is_not_believed(world: World) -> None:
    """The text lets a hub ignore X-Hub-On-Behalf-Of by policy; this one does: anybody may claim any number."""
    await world.ask("subscribe")
    world.subscriber.answer_headers = {"X-Hub-On-Behalf-Of": "500000"}
    await world.publish(atom(1))
    await world.publisher.next_fetch()
    await world.publish(atom(2, 1))
    assert (await world.publisher.next_fetch())["User-Agent"] == "psph-hub (1 subscriber)"


async def test_h60_topics_of_one_callback_are_not_put_together(world: World) -> None:
    """Aggregation is optional in 0.3 and collides with the Recommendation's secret for each subscription."""
    for path in ("/feed", "/other"):
        world.topic = world.publisher.url(path)
        await world.ask("subscribe", ("hub.secret", path), ("hub.verify", "sync"), expected=204)
    world.publisher.body = atom(1)
    data = [("hub.mode", "publish"), *(("hub.url", world.publisher.url(path)) for path in ("/feed", "/other"))]
    async with world.http.post(world.hub.url, data=data) as answer:
        assert answer.status == 204
    got = [await world.subscriber.next_received() for _ in range(2)]
    macs = {hmac.new(path, one.body, "sha1").hexdigest() for one in got for path in (b"/feed", b"/other")}
    assert {one.headers["X-Hub-Signature"].removeprefix("sha1=") for one in got} <= macs
    assert {one.headers["Link"].partition(", <")[2].partition(">")[0] for one in got} == {
        world.publisher.url("/feed"),
        world.publisher.url("/other"),
    }


async def test_h49_a_difference_for_who_asks_for_it(world: World) -> None:
    await world.ask("subscribe", ("hub.difference", "true"))
    await world.publish(atom(1))
    received = await world.publish(atom(2, 1))
    assert b"urn:entry:2" in received.body
    assert b"urn:entry:1" not in received.body


async def test_h43_topics_that_never_ping_are_polled_when_the_operator_says_so(
    tmp_path: Path, http: aiohttp.ClientSession, publisher: Publisher, subscriber: Subscriber
) -> None:
    publisher.body = atom(1)
    async with whole_hub(tmp_path, intake=IntakeConfig(poll=True, poll_tick=0.01)) as hub:
        await World(hub, http, publisher, subscriber).ask("subscribe")
        assert (await subscriber.next_received()).body == atom(1)


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


async def test_h61_nothing_after_the_lease_ended(world: World) -> None:
    await world.ask("subscribe", ("hub.lease_seconds", "600"), path="/short")
    await world.ask("subscribe", path="/long")
    world.clock.ahead += 601  # not swept yet: the end of the lease counts, not the sweep
    assert (await world.publish(atom(1))).path_qs == "/long"
    await until(lambda: not world.hub.delivery.backlog)
    assert world.subscriber.received.empty()


async def test_h31_a_later_denial_ends_a_subscription(world: World) -> None:
    await world.ask("subscribe")
    await world.hub.deny(world.topic, world.subscriber.url(), "over")
    assert (await world.subscriber.next_check()).query["hub.mode"] == "denied"
    assert world.hub.subscriptions.count(world.topic) == 0


class Listener:
    def __init__(self) -> None:
        self.publications: list[HubPublication] = []
        self.live: list[int] = []

    def publication_accepted(self, publication: HubPublication) -> None:
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


@pytest.mark.parametrize(
    ("content_type", "body", "status", "said"),
    [
        ("application/atom+xml", b'<!DOCTYPE f [<!ENTITY a SYSTEM "file:///etc/passwd">]><f>&a;</f>', 422, ""),
        ("text/plain; x=\u20ac", b"x", 400, ""),
        ("", b"x", 400, "needs a Content-Type"),
    ],
)
async def test_brought_content_that_would_harm_is_refused(
    world: World, content_type: str, body: bytes, status: int, said: str
) -> None:
    headers = {"Authorization": "Bearer letmein", "Content-Type": content_type}
    params = {"hub.mode": "publish", "hub.url": world.topic}
    async with world.http.post(world.hub.url, params=params, data=body, headers=headers) as answer:
        assert answer.status == status
        assert said in await answer.text()
    assert world.hub.delivery.latest(world.topic) == []


async def test_a_start_that_fails_leaves_nothing_open(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def broken(_: Intake) -> None:
        raise StorageError("the disk is on fire")

    hub = Hub(HubConfig(tmp_path / "data"))
    with monkeypatch.context() as patch:
        patch.setattr(Intake, "start", broken)
        with pytest.raises(StorageError):
            await hub.start()
    await hub.start()  # neither the store's lock nor a socket is still held
    await hub.stop()


async def test_loopback_callbacks_are_refused_without_allow_private(
    tmp_path: Path, http: aiohttp.ClientSession, subscriber: Subscriber
) -> None:
    hub = Hub(HubConfig(tmp_path / "guarded"))
    await hub.start()
    data = [("hub.mode", "subscribe"), ("hub.topic", "http://p.example/"), ("hub.callback", subscriber.url())]
    async with http.post(hub.url, data=data) as answer:
        assert answer.status == 403
        assert "the callback" in await answer.text() and "loopback or private" in await answer.text()
    for fields in (
        {"hub.mode": "subscribe", "hub.topic": "http://10.0.0.1/feed", "hub.callback": "http://s.example/"},
        {"hub.mode": "publish", "hub.url": "http://[::1]/feed"},
    ):
        async with http.post(hub.url, data=fields) as answer:
            assert answer.status == 403
            assert "the topic" in await answer.text() and "loopback or private" in await answer.text()
    assert subscriber.checks.empty()
    await hub.stop()


async def test_a_synchronous_check_tells_nobody_where_a_name_leads(
    tmp_path: Path, http: aiohttp.ClientSession, subscriber: Subscriber
) -> None:
    """A name of the inside, and one that is nowhere: who asks cannot tell which is which."""
    answers = []
    async with whole_hub(tmp_path, allow_private=False) as hub:
        for host in ("localhost", "nobody.invalid"):
            callback = subscriber.url().replace("127.0.0.1", host)
            data = [("hub.mode", "subscribe"), ("hub.topic", "http://p.example/"), ("hub.callback", callback)]
            async with http.post(hub.url, data=[*data, ("hub.verify", "sync")]) as answer:
                answers.append((answer.status, await answer.text()))
    assert subscriber.checks.empty()
    assert answers[0] == answers[1]
    assert answers[0][0] == 409
    assert "127" not in answers[0][1]


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
