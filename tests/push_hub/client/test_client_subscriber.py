"""The client side over real loopback sockets, against a small hub written for the test."""

import asyncio
import hashlib
import hmac
from dataclasses import replace

import pytest
from aiohttp import web
from aiohttp.test_utils import TestClient, TestServer
from hypothesis import given
from hypothesis import strategies as st

from push_hub.client import ClientError, SubscriberConfig, SubscriptionState, discover_topic, publish
from push_hub.client.callbacks import callback_app, signature_fits
from push_hub.client.subscriptions import ClientSubscription, asked, new_subscription, takes_deliveries, verified
from storage import StorageError
from tests.push_hub.client.client_support import Client
from tests.push_hub.harness import until


async def test_discovers_and_asks_for_the_self_url_following_the_hub_s_308(client: Client) -> None:
    subscription = await client.subscriber.subscribe(client.base + "/feed")
    fields = dict(client.asked[0])
    assert fields["hub.topic"] == client.base + "/canonical" == subscription.topic
    assert fields["hub.callback"] == f"{client.base}/cb/{subscription.token}"
    assert "hub.secret" not in fields  # S4: the hub is not reached over https
    with pytest.raises(ClientError, match="names no hub"):
        await discover_topic(client.fetch, client.base + "/plain")


async def test_a_wanted_intent_is_echoed_safely_and_any_other_is_404(client: Client) -> None:
    subscription = await client.subscription()
    assert (await client.intent(subscription, topic="http://example.org/other"))[0] == 404
    assert (await client.intent(subscription, mode="unsubscribe"))[0] == 404
    assert (await client.intent(subscription, challenge="<script>"))[0] == 404
    assert (await client.intent(subscription, lease_seconds="soon"))[0] == 404
    assert (await client.intent(replace(subscription, token="unknown")))[0] == 404
    assert client.stored(subscription).state is SubscriptionState.ASKED
    status, text, response = await client.intent(subscription)
    assert (status, text, response.content_type) == (200, "abc", "text/plain")
    assert response.headers["X-Content-Type-Options"] == "nosniff"
    assert client.stored(subscription).lease_until == client.now + 1000


async def test_deliveries_count_only_when_signed_rightly(client: Client) -> None:
    subscription = await client.subscription()
    assert await client.deliver(subscription, b"early") == 404
    await client.intent(subscription)
    client.subscriptions.save(replace(client.stored(subscription), secret=b"key")).result()
    good = "sha256=" + hmac.new(b"key", b"body", hashlib.sha256).hexdigest()
    assert [await client.deliver(subscription, b"body", s) for s in (None, "sha256=00", "md5=00", good)] == [202] * 4
    assert [d.body for d in client.received] == [b"body"]
    client.now += 1001
    assert await client.deliver(subscription, b"body", good) == 404


async def test_denied_ends_it_and_deliveries_then_get_410(client: Client) -> None:
    subscription = await client.subscription()
    assert (await client.intent(subscription, mode="denied", reason="no"))[0] == 200
    assert client.stored(subscription).reason == "denied: no"
    assert await client.deliver(subscription, b"x") == 410
    assert (await client.subscription()).state is SubscriptionState.ASKED  # a later try is allowed


async def test_renewal_comes_before_the_lease_ends_also_after_a_restart(client: Client) -> None:
    subscription = await client.subscription()
    await client.intent(subscription)
    client.now += 799
    assert await client.subscriber.renew_due() == 0
    client.now += 2
    assert await client.subscriber.renew_due() == 1  # a new object: only the table carried the wish
    assert len(client.asked) == 2
    renewed = client.stored(subscription)
    assert renewed.next_token is not None
    assert (await client.intent(subscription, token=renewed.next_token))[0] == 200
    assert client.stored(subscription).lease_until == client.now + 1000


async def test_unsubscribe_is_confirmed_and_then_over(client: Client) -> None:
    subscription = await client.subscription()
    await client.intent(subscription)
    await client.subscriber.unsubscribe(client.stored(subscription))
    assert dict(client.asked[1])["hub.mode"] == "unsubscribe"
    assert (await client.intent(subscription, mode="unsubscribe"))[0] == 200
    assert client.stored(subscription).state is SubscriptionState.GONE


async def test_publish_sends_both_names_and_a_dead_hub_is_said_so(client: Client) -> None:
    assert await publish(client.fetch, client.base + "/hub", ["http://a/", "http://b/"]) == 202
    assert [v for k, v in client.asked[0] if k == "hub.url"] == ["http://a/", "http://b/"]
    with pytest.raises(ClientError, match="answered 404"):
        await publish(client.fetch, client.base + "/nowhere", ["http://a/"])


@given(st.integers(1, 10**8), st.integers(0, 20))
def test_a_renewal_is_always_due_before_the_lease_ends(lease: int, failures: int) -> None:
    subscription = new_subscription("http://t/", "https://h/", 0.0)
    assert subscription.secret is not None and len(subscription.secret) < 200
    for _ in range(failures):
        subscription = asked(subscription, 0.0, "failed")
    active = verified(subscription, "subscribe", "http://t/", str(lease), 100.0)
    assert active is not None and active.renew_at < active.lease_until
    assert takes_deliveries(active, active.renew_at)
    assert not takes_deliveries(active, active.lease_until)


@given(st.integers(60, 10**8), st.integers(1, 5))
def test_a_renewal_that_fails_is_tried_again_while_the_lease_runs(lease: int, failures: int) -> None:
    subscription = verified(new_subscription("http://t/", "https://h/", 0.0), "subscribe", "http://t/", str(lease), 0.0)
    assert subscription is not None
    for _ in range(failures):
        subscription = asked(subscription, subscription.renew_at, "failed")
    assert subscription.renew_at < subscription.lease_until


def test_a_hub_that_comes_back_after_the_lease_is_asked_soon_and_one_that_does_not_ever_less_often() -> None:
    subscription = verified(new_subscription("http://t/", "https://h/", 0.0), "subscribe", "http://t/", "12", 0.0)
    assert subscription is not None
    waits = []
    while subscription.renew_at < 2 * 86_400:
        now = subscription.renew_at
        subscription = asked(subscription, now, "failed")
        waits.append(subscription.renew_at - now)
    after = [wait for wait in waits if wait > 1.0]
    assert after == sorted(after)
    assert sum(wait < 10 for wait in waits) > 10
    assert after[-1] >= 6 * 3600.0


async def test_what_is_to_be_done_before_a_confirmation_is_done_before_it_is_written_and_answered(
    client: Client,
) -> None:
    subscription = await client.subscription()
    states: list[SubscriptionState] = []

    async def confirming(_: ClientSubscription) -> None:
        states.append(client.stored(subscription).state)
        if len(states) == 1:
            raise web.HTTPServiceUnavailable

    app = callback_app(client.subscriptions, client.take, lambda: client.now, confirming=confirming)
    query = {"hub.mode": "subscribe", "hub.topic": subscription.topic, "hub.challenge": "abc", "hub.lease_seconds": "9"}
    async with TestClient(TestServer(app)) as hub:
        assert (await hub.get(f"/{subscription.token}", params=query)).status == 503
        assert client.stored(subscription).state is SubscriptionState.ASKED
        assert (await hub.get(f"/{subscription.token}", params=query)).status == 200
    assert states == [SubscriptionState.ASKED, SubscriptionState.ASKED]
    assert client.stored(subscription).state is SubscriptionState.ACTIVE


@given(st.none() | st.text(max_size=80), st.binary(max_size=40))
def test_signature_headers_of_strangers_never_raise_and_never_fit(header: str | None, body: bytes) -> None:
    assert not signature_fits(header, b"key", body)


# -- several hubs, old hubs, hubs that fail


async def test_the_next_hub_is_tried_when_the_first_fails(client: Client) -> None:
    client.page_hubs = ["/broken", "/hub"]
    subscription = await client.subscriber.subscribe(client.base + "/feed")
    assert subscription.hub == client.base + "/hub"
    broken = client.subscriptions.by_topic(subscription.topic, client.base + "/broken")
    assert broken is not None
    assert broken.state is SubscriptionState.GONE  # it is not asked again and again beside the one that works
    assert "answered 500" in broken.reason


async def test_when_every_hub_fails_the_error_names_each(client: Client) -> None:
    client.page_hubs = ["/broken", "/nowhere"]
    with pytest.raises(ClientError, match=r"/broken answered 500.*; .*/nowhere answered 404"):
        await client.subscriber.subscribe(client.base + "/feed")


async def test_a_hub_that_takes_the_request_but_never_confirms_is_left_for_another(client: Client) -> None:
    client.page_hubs = ["/deaf", "/hub"]
    first = await client.subscriber.subscribe(client.base + "/feed")
    assert first.hub == client.base + "/deaf"
    for _ in range(3):
        client.now += 86_400
        await client.subscriber.renew_due()
    second = client.subscriptions.by_topic(first.topic, client.base + "/hub")
    assert second is not None
    assert second.state is SubscriptionState.ASKED
    assert client.stored(first).state is SubscriptionState.GONE


async def test_a_page_that_moved_is_followed_at_the_next_renewal(client: Client) -> None:
    subscription = await client.subscriber.subscribe(client.base + "/feed")
    await client.intent(subscription)
    client.page_hubs, client.page_self = ["/hub"], "/moved-topic"
    client.now += 801
    client.asked.clear()
    await client.subscriber.renew_due()
    modes = [(dict(one)["hub.mode"], dict(one)["hub.topic"]) for one in client.asked]
    assert modes == [("subscribe", client.base + "/moved-topic"), ("unsubscribe", subscription.topic)]


async def test_a_page_that_cannot_be_read_does_not_stop_the_renewal(client: Client) -> None:
    subscription = await client.subscriber.subscribe(client.base + "/feed")
    await client.intent(subscription)
    client.page_hubs = []
    client.now += 801
    client.asked.clear()
    await client.subscriber.renew_due()
    assert [dict(one)["hub.mode"] for one in client.asked] == ["subscribe"]


async def test_the_loop_renews_by_itself_and_survives_a_store_that_fails(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    subscription = await client.subscription()
    await client.intent(subscription)
    client.config = SubscriberConfig(client.base + "/cb", tick=0)
    subscriber = client.subscriber
    with monkeypatch.context() as patch:

        def broken(*_: object) -> list[object]:
            raise StorageError("the disk is full")

        patch.setattr(client.subscriptions, "due", broken)
        await subscriber.start()
        await until(lambda: subscriber.last_error == "StorageError: the disk is full")
    await until(lambda: subscriber.last_error is None)
    assert len(client.asked) == 1
    client.now += 801
    await until(lambda: len(client.asked) == 2)
    renewed = client.stored(subscription)
    await client.intent(subscription, token=renewed.next_token or "")
    client.now += 801
    await until(lambda: len(client.asked) == 3)
    await subscriber.stop()


async def test_one_slow_hub_does_not_hold_up_the_others(client: Client) -> None:
    slow = await client.subscriber.subscribe_at(client.base + "/slow", "http://t.example/1")
    quick = await client.subscriber.subscribe_at(client.base + "/hub", "http://t.example/2")
    client.now += 3600
    client.asked.clear()
    client.hold.clear()
    renewing = asyncio.create_task(client.subscriber.renew_due())
    await until(lambda: [dict(one)["hub.topic"] for one in client.asked] == [quick.topic])
    client.hold.set()
    assert await renewing == 2
    assert client.stored(slow).attempts == 2


async def test_a_0_3_hub_gets_what_it_needs_and_its_token_is_checked(client: Client) -> None:
    subscription = await client.subscriber.subscribe_at(client.base + "/old", client.base + "/feed")
    fields = dict(client.asked[-1])
    assert fields["hub.verify"] == "async"
    assert fields["hub.verify_token"] == subscription.verify_token
    assert (await client.intent(subscription))[0] == 404
    assert (await client.intent(subscription, verify_token="guess"))[0] == 404
    assert (await client.intent(subscription, verify_token=subscription.verify_token or ""))[0] == 200


async def test_a_newer_hub_is_not_taken_for_an_old_one(client: Client) -> None:
    subscription = await client.subscription()
    assert "hub.verify" not in dict(client.asked[0])
    assert (await client.intent(subscription, verify_token="x"))[0] == 404


async def test_a_failed_unsubscribe_is_repeated_until_the_lease_ends(client: Client) -> None:
    subscription = await client.subscriber.subscribe_at(client.base + "/hub", client.base + "/feed")
    await client.intent(subscription)
    client.fail = True
    with pytest.raises(ClientError, match="answered 500"):
        await client.subscriber.unsubscribe(client.stored(subscription))
    assert client.stored(subscription).state is SubscriptionState.LEAVING
    assert await client.deliver(subscription, b"still under way") == 202
    client.fail = False
    client.now += 61
    await client.subscriber.renew_due()
    assert dict(client.asked[-1])["hub.mode"] == "unsubscribe"
    client.now += 1000
    await client.subscriber.renew_due()
    assert client.stored(subscription).state is SubscriptionState.GONE
    assert await client.deliver(subscription, b"too late") == 410
