"""Who asks too much is told to come back, with a time; and nobody can aim the hub at somebody else."""

from collections.abc import Sequence
from pathlib import Path

import aiohttp
import pytest
from aiohttp import web

from push_hub.protocol.verification import CheckSchedule
from push_hub.server import ServerConfig
from push_hub.verifier import IntentVerifierConfig
from serving.events import LimitReached
from serving.limits import Rate
from storage import StorageFullError
from tests.push_hub.conformance.test_conformance_requests import TOPIC, form, settled
from tests.push_hub.harness import Check, Publisher, Subscriber, until
from tests.push_hub.running import RunningHub, run_hub
from tests.push_hub.world import whole_hub

PING = [("hub.mode", "publish"), ("hub.url", TOPIC)]


class Frozen:
    now = 100.0

    def __call__(self) -> float:
        return self.now


async def statuses(
    http: aiohttp.ClientSession, hub: RunningHub, requests: Sequence[Sequence[tuple[str, str]]], **headers: str
) -> list[tuple[int, str | None]]:
    found = []
    for data in requests:
        async with http.post(hub.url, data=data, headers=headers) as answer:
            found.append((answer.status, answer.headers.get("Retry-After")))
    return found


async def test_429_per_client_and_its_time_is_true(tmp_path: Path, http: aiohttp.ClientSession) -> None:
    clock = Frozen()
    config = ServerConfig(per_client=Rate(0.1, 2))
    async with run_hub(tmp_path, config, monotonic=clock) as hub:
        assert await statuses(http, hub, [PING] * 3) == [(204, None), (204, None), (429, "10")]
        clock.now += 9
        assert await statuses(http, hub, [PING]) == [(429, "1")]
        clock.now += 1.01
        assert await statuses(http, hub, [PING]) == [(204, None)]
        assert hub.events.count(LimitReached("per_client")) == 2
        assert len(hub.pings.pings) == 3  # what was refused was not stored


async def test_a_ping_of_many_topics_costs_as_much_as_many_pings(tmp_path: Path, http: aiohttp.ClientSession) -> None:
    async with run_hub(tmp_path, ServerConfig(per_client=Rate(0.1, 50)), monotonic=Frozen()) as hub:
        many = [("hub.mode", "publish"), *(("hub.url", f"http://name{n}.example/") for n in range(49))]
        assert (await statuses(http, hub, [many]))[0][0] == 204
        assert [status for status, _ in await statuses(http, hub, [PING, PING])] == [204, 429]
        assert len(hub.pings.pings) == 50


async def test_topics_that_are_not_served_cannot_be_pinged_either(
    tmp_path: Path, http: aiohttp.ClientSession, publisher: Publisher
) -> None:
    async with whole_hub(tmp_path, topics=("http://blog.example/",)) as hub:
        for topic, status in (("http://blog.example/feed", 204), (publisher.url(), 403)):
            data = [("hub.mode", "publish"), ("hub.url", topic)]
            async with http.post(hub.url, data=data) as answer:
                assert answer.status == status
        async with http.post(
            hub.url,
            params={"hub.mode": "publish", "hub.url": publisher.url()},
            data=b"x",
            headers={"Authorization": "Bearer letmein", "Content-Type": "text/plain"},
        ) as answer:
            assert answer.status == 403
            assert "does not serve this topic" in await answer.text()
        assert hub.pinged_unwanted("", 10) == ["http://blog.example/feed"]


async def test_429_per_topic_leaves_other_topics_alone(tmp_path: Path, http: aiohttp.ClientSession) -> None:
    async with run_hub(tmp_path, ServerConfig(per_topic=Rate(0.5, 1)), monotonic=Frozen()) as hub:
        other = [("hub.mode", "publish"), ("hub.url", TOPIC + "2")]
        assert await statuses(http, hub, [PING, PING, other]) == [(204, None), (429, "2"), (204, None)]
        assert LimitReached("per_topic") in hub.events


async def test_429_per_callback_host_whatever_its_port_and_path(tmp_path: Path, http: aiohttp.ClientSession) -> None:
    config = ServerConfig(per_callback_host=Rate(0.01, 2))
    async with run_hub(tmp_path, config, monotonic=Frozen()) as hub:
        asks = [form(url) for url in ("http://v.example/1", "http://V.example:81/2", "https://v.example/3")]
        assert await statuses(http, hub, asks) == [(202, None), (202, None), (429, "100")]
        assert await statuses(http, hub, [form("http://w.example/1")]) == [(202, None)]


async def test_only_a_trusted_proxy_says_who_the_client_is(tmp_path: Path, http: aiohttp.ClientSession) -> None:
    rate = Rate(0.1, 1)
    async with run_hub(tmp_path, ServerConfig(per_client=rate), monotonic=Frozen()) as hub:
        first = await statuses(http, hub, [PING], **{"X-Forwarded-For": "192.0.2.1"})
        second = await statuses(http, hub, [PING], **{"X-Forwarded-For": "192.0.2.2"})
        assert (first[0][0], second[0][0]) == (204, 429)
    proxied = ServerConfig(per_client=rate, trusted_proxies=frozenset({"127.0.0.1"}))
    async with run_hub(tmp_path, proxied, monotonic=Frozen()) as hub:
        # Only the last address was written by our proxy; the others are the client's own invention.
        for forwarded, status in (
            ("192.0.2.1", 204),
            ("192.0.2.9, 192.0.2.1", 429),
            ("192.0.2.2", 429),
            ("198.51.100.2", 204),
            ("2001:db8:1:2::1", 204),
            ("2001:db8:1:2:ffff::9", 429),
            ("2001:db8:1:3::1", 204),
        ):
            assert (await statuses(http, hub, [PING], **{"X-Forwarded-For": forwarded}))[0][0] == status, forwarded


async def test_503_when_the_hub_itself_is_full(hub: RunningHub, http: aiohttp.ClientSession) -> None:
    hub.pings.busy = True
    async with http.post(hub.url, data=PING) as answer:
        assert (answer.status, answer.headers["Retry-After"]) == (503, "8")
        assert await answer.text() == "too many topics are waiting\n"


async def test_503_when_the_store_is_full(
    hub: RunningHub, http: aiohttp.ClientSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def full(*_: object) -> int:
        raise StorageFullError("/secret/path is full")

    monkeypatch.setattr(hub.subscriptions, "enqueue", full)
    async with http.post(hub.url, data=form("http://s.example/")) as answer:
        assert (answer.status, answer.headers["Retry-After"]) == (503, "5")
        assert "/secret/path" not in await answer.text()


async def test_503_when_too_many_checks_wait(tmp_path: Path, http: aiohttp.ClientSession) -> None:
    config = IntentVerifierConfig(max_pending=3, max_pending_per_prefix=2, concurrency=0)
    async with run_hub(tmp_path, verifier_config=config) as hub:
        asks = [form(f"http://{host}.example/{n}") for n, host in enumerate("aaabb")]
        assert await statuses(http, hub, asks) == [(202, None)] * 2 + [(503, "5"), (202, None), (503, "5")]
        assert {one.name for one in hub.events if isinstance(one, LimitReached)} == {
            "verifier.max_pending",
            "verifier.max_pending_per_prefix",
        }


async def test_verification_asks_each_callback_once_at_a_time_and_few_of_a_host(
    tmp_path: Path, http: aiohttp.ClientSession, subscriber: Subscriber
) -> None:
    config = IntentVerifierConfig(per_prefix=2)
    async with run_hub(tmp_path, verifier_config=config) as hub:
        most = 0

        def reply(check: Check) -> web.Response:
            nonlocal most
            most = max(most, hub.verifier.running)
            return web.Response(status=404)

        subscriber.reply = reply
        await statuses(http, hub, [form(subscriber.url(f"/{n}")) for n in range(20)])
        await settled(hub)
        assert most <= 2
        assert subscriber.checks.qsize() == 20


async def test_the_same_request_again_and_again_costs_the_victim_one_check_at_a_time(
    tmp_path: Path, http: aiohttp.ClientSession, subscriber: Subscriber
) -> None:
    """While a (topic, callback) waits, asking again replaces the row; it does not add a check."""
    async with run_hub(tmp_path, verifier_config=IntentVerifierConfig(concurrency=0)) as hub:
        await statuses(http, hub, [form(subscriber.url())] * 30)
        assert hub.verifier.waiting == 1


async def test_a_host_whose_checks_fail_is_not_asked_for_hours(
    tmp_path: Path, http: aiohttp.ClientSession, subscriber: Subscriber
) -> None:
    """0.3 retries for six hours; strangers must not be able to buy that many requests with one each."""
    config = IntentVerifierConfig(per_prefix=1, max_retries_per_prefix=3, schedule=CheckSchedule(first=1000.0))
    async with run_hub(tmp_path, verifier_config=config) as hub:
        subscriber.reply = lambda _check: web.Response(status=500)
        old = ("hub.verify", "async")
        await statuses(http, hub, [form(subscriber.url(f"/{n}"), old) for n in range(10)])
        await until(lambda: subscriber.checks.qsize() == 10 and not hub.verifier.running)
        assert hub.verifier.waiting == 3
        assert hub.events.count(LimitReached("verifier.max_retries_per_prefix")) == 7
        reasons = [hub.subscriptions.history(TOPIC, subscriber.url(f"/{n}"))[0].what for n in range(10)]
        assert sum("too many checks of its network fail" in reason for reason in reasons) == 7


async def test_a_check_brings_the_victim_no_more_bytes_than_the_attacker_sent(
    tmp_path: Path, http: aiohttp.ClientSession, subscriber: Subscriber
) -> None:
    async with run_hub(tmp_path) as hub:
        topic = "http://publisher.example/" + "?&=+/:" * 200
        data = form(subscriber.url("/" + "a" * 500), topic=topic)
        async with http.post(hub.url, data=data) as answer:
            assert answer.status == 202
            sent = len(aiohttp.FormData(data)()._value)  # type: ignore[attr-defined]
        check = await subscriber.next_check()
        assert len(check.path_qs) < sent + 200  # the challenge and the lease


async def test_checks_of_a_synchronous_request_count_too(
    tmp_path: Path, http: aiohttp.ClientSession, subscriber: Subscriber
) -> None:
    async with run_hub(tmp_path, verifier_config=IntentVerifierConfig(per_prefix=0)) as hub:
        found = await statuses(http, hub, [form(subscriber.url(), ("hub.verify", "sync"))])
        assert found == [(503, "5")]
        assert subscriber.checks.empty()
