"""Checklist H22 to H38: subscription state, denial, verification of intent."""

import time
from pathlib import Path

import aiohttp
import pytest
from aiohttp import web

from push_hub.protocol.numbers import CHALLENGE_ALPHABET, Mode
from push_hub.verifier import IntentVerifierConfig
from tests.push_hub.conformance.test_conformance_requests import TOPIC, form, post, settled
from tests.push_hub.harness import Check, Publisher, Subscriber, atom, confirm, until
from tests.push_hub.running import RunningHub, run_hub
from tests.push_hub.world import Clock, World, whole_hub


class Refuser:
    async def refusal(self, topic: str, callback: str) -> str | None:
        return "not a topic of this hub" if topic != TOPIC else None


async def test_h22_key_is_topic_and_callback(
    hub: RunningHub, http: aiohttp.ClientSession, subscriber: Subscriber
) -> None:
    for topic, path in ((TOPIC, "/a"), (TOPIC, "/b"), (TOPIC, "/a"), (TOPIC + "2", "/a")):
        await post(http, hub, form(subscriber.url(path), topic=topic))
        await settled(hub)
    assert (hub.subscriptions.count(TOPIC), hub.subscriptions.count(TOPIC + "2")) == (2, 1)


async def test_h23_h24_new_state_only_once_verified(
    hub: RunningHub, http: aiohttp.ClientSession, subscriber: Subscriber
) -> None:
    async def secret_after(*more: tuple[str, str]) -> bytes | None:
        await post(http, hub, form(subscriber.url(), *more))
        await settled(hub)
        found = hub.subscriptions.find(TOPIC, subscriber.url(), time.time())
        assert found is not None
        return found.secret

    assert await secret_after(("hub.secret", "one")) == b"one"
    subscriber.reply = lambda _check: web.Response(status=404)
    assert await secret_after(("hub.secret", "two")) == b"one"
    subscriber.reply = confirm
    assert await secret_after(("hub.secret", "two")) == b"two"
    assert await secret_after() is None


async def test_h23_failed_unsubscribe_changes_nothing(
    hub: RunningHub, http: aiohttp.ClientSession, subscriber: Subscriber
) -> None:
    await post(http, hub, form(subscriber.url()))
    await settled(hub)
    subscriber.reply = lambda _check: web.Response(text="nonsense")
    await post(http, hub, form(subscriber.url(), mode="unsubscribe"))
    await settled(hub)
    assert hub.subscriptions.count(TOPIC) == 1


async def test_h25_leases_end(tmp_path: Path, http: aiohttp.ClientSession, subscriber: Subscriber) -> None:
    clock = Clock()
    async with run_hub(tmp_path, clock=clock) as hub:
        await post(http, hub, form(subscriber.url(), ("hub.lease_seconds", "600")))
        await settled(hub)
        clock.ahead += 599
        await hub.verifier.sweep()
        assert hub.subscriptions.count(TOPIC) == 1
        clock.ahead += 2
        assert hub.subscriptions.page(TOPIC, 0, 10, clock()) == []  # over, even before it is swept
        await hub.verifier.sweep()
        assert hub.subscriptions.count(TOPIC) == 0
        assert [change.live for change in hub.changes] == [1, 0]


async def test_h25_no_lease_is_perpetual(hub: RunningHub, http: aiohttp.ClientSession, subscriber: Subscriber) -> None:
    """Neither asking for ever nor 0.3's missing or empty lease gets more than the maximum."""
    for path, more in (("/a", [("hub.lease_seconds", "9" * 200)]), ("/b", [("hub.verify", "async")])):
        await post(http, hub, form(subscriber.url(path), *more))
        await settled(hub)
        found = hub.subscriptions.find(TOPIC, subscriber.url(path), time.time())
        assert found is not None
        assert found.lease_until <= time.time() + 30 * 86_400


async def test_h26_ten_days_by_default(hub: RunningHub, http: aiohttp.ClientSession, subscriber: Subscriber) -> None:
    await post(http, hub, form(subscriber.url()))
    assert (await subscriber.next_check()).query["hub.lease_seconds"] == str(10 * 86400)


async def test_h27_0_3_is_rechecked_before_its_end(
    tmp_path: Path, http: aiohttp.ClientSession, subscriber: Subscriber
) -> None:
    clock = Clock()
    async with run_hub(tmp_path, clock=clock) as hub:
        await post(http, hub, form(subscriber.url(), ("hub.verify", "sync"), ("hub.verify_token", "t")))
        first = await subscriber.next_check()
        clock.ahead += int(first.query["hub.lease_seconds"]) - 3600
        await hub.verifier.sweep()
        again = await subscriber.next_check()
        assert again.query["hub.mode"] == "subscribe"
        assert again.query["hub.verify_token"] == "t"
        assert again.query["hub.challenge"] != first.query["hub.challenge"]
        assert "hub.lease_seconds" in again.query
        await settled(hub)
        clock.ahead += 7200  # past the first lease
        await hub.verifier.sweep()
        assert hub.subscriptions.count(TOPIC) == 1
        subscriber.reply = lambda _check: web.Response(status=404)
        clock.ahead += int(first.query["hub.lease_seconds"]) - 10_800
        await hub.verifier.sweep()
        await subscriber.next_check()
        await settled(hub)
        assert hub.subscriptions.count(TOPIC) == 0


async def test_h27_a_recheck_that_fails_for_a_while_is_repeated(
    tmp_path: Path, http: aiohttp.ClientSession, subscriber: Subscriber
) -> None:
    clock = Clock()
    async with run_hub(tmp_path, verifier_config=IntentVerifierConfig(), clock=clock) as hub:
        await post(http, hub, form(subscriber.url(), ("hub.verify", "sync")))
        check = await subscriber.next_check()
        clock.ahead += int(check.query["hub.lease_seconds"]) - 3600
        subscriber.reply = lambda _check: web.Response(status=503)
        await hub.verifier.sweep()
        await subscriber.next_check()
        await until(lambda: hub.verifier.waiting and not hub.verifier.running)
        subscriber.reply = confirm
        clock.ahead += 60
        await hub.verifier.sweep()
        await subscriber.next_check()
        await settled(hub)
        assert hub.subscriptions.find(TOPIC, subscriber.url(), clock() + 7200) is not None


async def test_h28_lease_from_the_check_not_from_its_answer(
    hub: RunningHub, http: aiohttp.ClientSession, subscriber: Subscriber
) -> None:
    answered: list[float] = []

    def reply(check: Check) -> web.Response:
        answered.append(time.time())
        return confirm(check)

    subscriber.reply = reply
    before = time.time()
    await post(http, hub, form(subscriber.url(), ("hub.lease_seconds", "500")))
    await settled(hub)
    found = hub.subscriptions.find(TOPIC, subscriber.url(), time.time())
    assert found is not None
    assert before + 500 <= found.lease_until <= answered[0] + 500


async def test_h29_h30_denied_with_topic_and_reason(
    tmp_path: Path, http: aiohttp.ClientSession, subscriber: Subscriber
) -> None:
    async with run_hub(tmp_path, validator=Refuser()) as hub:
        assert (await post(http, hub, form(subscriber.url(), topic="http://other.example/")))[0] == 202
        check = await subscriber.next_check()
        assert check.query == {
            "hub.mode": "denied",
            "hub.topic": "http://other.example/",
            "hub.reason": "not a topic of this hub",
        }
        await settled(hub)
        assert hub.subscriptions.count("http://other.example/") == 0
        await post(http, hub, form(subscriber.url()))
        assert (await subscriber.next_check()).query["hub.mode"] == "subscribe"


async def test_h30_a_synchronous_request_is_refused_and_the_callback_told(
    tmp_path: Path, http: aiohttp.ClientSession, subscriber: Subscriber
) -> None:
    async with run_hub(tmp_path, validator=Refuser()) as hub:
        data = form(subscriber.url(), ("hub.verify", "sync"), topic="http://other.example/")
        assert await post(http, hub, data) == (409, "not confirmed: not a topic of this hub\n")
        assert (await subscriber.next_check()).query["hub.mode"] == "denied"


async def test_h30_a_denial_that_cannot_be_told_is_repeated_but_not_for_ever(
    tmp_path: Path, http: aiohttp.ClientSession, subscriber: Subscriber
) -> None:
    clock = Clock()
    async with run_hub(tmp_path, verifier_config=IntentVerifierConfig(), validator=Refuser(), clock=clock) as hub:
        subscriber.reply = lambda check: web.Response(status=503 if check.query["hub.mode"] == "denied" else 400)
        await post(http, hub, form(subscriber.url(), topic="http://other.example/"))
        assert len(await time_of_each_try(hub, clock, subscriber)) == 2


async def test_h15_topics_outside_the_operator_s_are_denied(
    tmp_path: Path, http: aiohttp.ClientSession, publisher: Publisher, subscriber: Subscriber
) -> None:
    async with whole_hub(tmp_path, topics=("http://publisher.example",)) as hub:
        world = World(hub, http, publisher, subscriber)
        world.topic = TOPIC
        await world.ask("subscribe")
        assert hub.subscriptions.count(TOPIC) == 1
        # A longer host name that begins the same is somebody else's.
        for topic in ("http://publisher.example.evil/feed", "http://other.example/"):
            async with http.post(hub.url, data=form(subscriber.url(), topic=topic)) as answer:
                assert answer.status == 202
            check = await subscriber.next_check()
            assert check.query["hub.mode"] == "denied"
            assert check.query["hub.reason"] == "this hub does not serve this topic"
            assert hub.subscriptions.count(topic) == 0


async def test_h14_a_topic_must_be_its_own_self_when_the_operator_says_so(
    tmp_path: Path, http: aiohttp.ClientSession, publisher: Publisher, subscriber: Subscriber
) -> None:
    publisher.body = atom(1)
    publisher.extra_headers = {"Link": f'<{publisher.url("/feed")}>; rel="self"'}
    async with whole_hub(tmp_path, only_own_self=True) as hub:
        async with http.post(hub.url, data=form(subscriber.url(), topic=publisher.url("/alias"))) as answer:
            assert answer.status == 202
        check = await subscriber.next_check()
        assert check.query["hub.mode"] == "denied"
        assert check.query["hub.reason"] == f"the topic's own address is {publisher.url('/feed')}: subscribe to that"
        await World(hub, http, publisher, subscriber).ask("subscribe")
        assert hub.subscriptions.count(publisher.url("/feed")) == 1


async def test_h32_unsubscribe_is_not_validated_but_verified(
    tmp_path: Path, http: aiohttp.ClientSession, subscriber: Subscriber
) -> None:
    async with run_hub(tmp_path, validator=Refuser()) as hub:
        await post(http, hub, form(subscriber.url(), topic="http://other.example/", mode="unsubscribe"))
        assert (await subscriber.next_check()).query["hub.mode"] == "unsubscribe"


async def test_h33_check_has_its_parameters(
    hub: RunningHub, http: aiohttp.ClientSession, subscriber: Subscriber
) -> None:
    await post(http, hub, form(subscriber.url(), ("hub.lease_seconds", "600")))
    query = (await subscriber.next_check()).query
    assert {name: query[name] for name in query if name != "hub.challenge"} == {
        "hub.mode": "subscribe",
        "hub.topic": TOPIC,
        "hub.lease_seconds": "600",
    }
    await settled(hub)
    await post(http, hub, form(subscriber.url(), mode="unsubscribe"))
    query = (await subscriber.next_check()).query
    assert (query["hub.mode"], query["hub.topic"]) == (Mode.UNSUBSCRIBE, TOPIC)
    assert query["hub.challenge"]


@pytest.mark.parametrize("own", ["?a", "?a=1&a=2&hub.mode=mine", "?"])
async def test_h34_callback_query_is_kept(
    own: str, hub: RunningHub, http: aiohttp.ClientSession, subscriber: Subscriber
) -> None:
    await post(http, hub, form(subscriber.url("/cb" + own)))
    check = await subscriber.next_check()
    separator = "" if own == "?" else "&"
    assert check.path_qs.startswith(f"/cb{own}{separator}hub.mode=subscribe&hub.topic=")


async def test_h35_challenge_is_fresh_and_of_the_safe_characters(
    hub: RunningHub, http: aiohttp.ClientSession, subscriber: Subscriber
) -> None:
    challenges = []
    for _ in range(5):
        await post(http, hub, form(subscriber.url()))
        challenges.append((await subscriber.next_check()).query["hub.challenge"])
        await settled(hub)
    assert len(set(challenges)) == 5
    assert all(len(one) >= 32 and set(one) <= CHALLENGE_ALPHABET for one in challenges)


@pytest.mark.parametrize("status", [200, 201, 202, 299])
async def test_h36_any_2xx_with_the_challenge(
    status: int, hub: RunningHub, http: aiohttp.ClientSession, subscriber: Subscriber
) -> None:
    subscriber.reply = lambda check: web.Response(status=status, text=check.query["hub.challenge"])
    await post(http, hub, form(subscriber.url()))
    await settled(hub)
    assert hub.subscriptions.count(TOPIC) == 1


@pytest.mark.parametrize("kind", ["newline", "empty", "other", "redirect", "long", "404", "410"])
async def test_h37_everything_else_fails_and_redirects_are_not_followed(
    kind: str, hub: RunningHub, http: aiohttp.ClientSession, subscriber: Subscriber
) -> None:
    def reply(check: Check) -> web.Response:
        challenge = check.query["hub.challenge"]
        if kind == "redirect":
            return web.Response(status=302, text=challenge, headers={"Location": "/elsewhere?" + check.path_qs})
        if kind.isdigit():
            return web.Response(status=int(kind), text=challenge)
        return web.Response(text={"newline": challenge + "\n", "empty": "", "other": "x", "long": "x" * 9999}[kind])

    subscriber.reply = reply
    await post(http, hub, form(subscriber.url()))
    await settled(hub)
    assert hub.subscriptions.count(TOPIC) == 0
    paths = {check.path_qs.partition("?")[0] for check in [await subscriber.next_check()]}
    while not subscriber.checks.empty():
        paths.add((await subscriber.next_check()).path_qs.partition("?")[0])
    assert paths == {"/cb"}
    assert "failed" in hub.subscriptions.history(TOPIC, subscriber.url())[0].what


@pytest.mark.parametrize(("status", "verify"), [(500, "sync"), (404, "async"), (404, "sync")])
async def test_h38_final_failures(
    status: int, verify: str, hub: RunningHub, http: aiohttp.ClientSession, subscriber: Subscriber
) -> None:
    subscriber.reply = lambda _check: web.Response(status=status)
    await post(http, hub, form(subscriber.url(), ("hub.verify", verify)))
    await settled(hub)
    assert subscriber.checks.qsize() == 1


@pytest.mark.parametrize("status", [302, 403, 500])
async def test_h38_asynchronous_failures_are_retried_for_six_hours_then_given_up(
    status: int, tmp_path: Path, http: aiohttp.ClientSession, subscriber: Subscriber
) -> None:
    clock = Clock()
    async with run_hub(tmp_path, verifier_config=IntentVerifierConfig(), clock=clock) as hub:
        await post(http, hub, form(subscriber.url(), ("hub.secret", "old"), ("hub.verify", "sync")))
        await subscriber.next_check()
        subscriber.reply = lambda _check: web.Response(status=status)
        await post(http, hub, form(subscriber.url(), ("hub.secret", "new"), ("hub.verify", "async")))
        waits = await time_of_each_try(hub, clock, subscriber)
        assert len(waits) >= 5
        assert 5.9 * 3600 <= sum(waits) <= 6.1 * 3600
        assert waits == sorted(waits)[: len(waits) - 1] + waits[-1:]  # ever longer, but for the last one at the end
        found = hub.subscriptions.find(TOPIC, subscriber.url(), clock())
        assert found is not None
        assert found.secret == b"old"  # the state before is kept


async def test_h38_later_texts_repeat_only_what_could_not_be_answered(
    tmp_path: Path, http: aiohttp.ClientSession, subscriber: Subscriber
) -> None:
    clock = Clock()
    async with run_hub(tmp_path, verifier_config=IntentVerifierConfig(), clock=clock) as hub:
        for status, repeats in ((403, 0), (302, 0), (503, 3), (429, 3)):
            subscriber.reply = lambda _check, status=status: web.Response(status=status)
            await post(http, hub, form(subscriber.url()))
            assert len(await time_of_each_try(hub, clock, subscriber)) == repeats


async def time_of_each_try(hub: RunningHub, clock: Clock, subscriber: Subscriber) -> list[float]:
    """The waits between the checks of the one request that is there, until the hub gives up."""
    waits: list[float] = []
    while True:
        await subscriber.next_check()
        await until(lambda: not hub.verifier.running)
        if not hub.verifier.waiting:
            return waits
        ((_, _, next_try_at),) = hub.subscriptions.all_pending(0, 2)
        waits.append(next_try_at - clock())
        clock.ahead += waits[-1]
        await hub.verifier.sweep()
