"""Checklist H1 to H21: taking requests. One test a line, over real sockets."""

import time
from pathlib import Path

import aiohttp
import pytest
from aiohttp import web

from push_hub.server import ServerConfig
from tests.push_hub.harness import Check, Subscriber, confirm, until
from tests.push_hub.running import RunningHub, run_hub

TOPIC = "http://publisher.example/feed"
Form = list[tuple[str, str]]


def form(callback: str, *more: tuple[str, str], mode: str = "subscribe", topic: str = TOPIC) -> Form:
    return [("hub.mode", mode), ("hub.topic", topic), ("hub.callback", callback), *more]


async def post(http: aiohttp.ClientSession, hub: RunningHub, data: Form) -> tuple[int, str]:
    async with http.post(hub.url, data=data) as answer:
        return answer.status, await answer.text()


async def settled(hub: RunningHub) -> None:
    await until(lambda: not hub.verifier.waiting)


async def test_h01_one_url_serves_both(hub: RunningHub, http: aiohttp.ClientSession, subscriber: Subscriber) -> None:
    assert (await post(http, hub, form(subscriber.url())))[0] == 202
    assert (await post(http, hub, [("hub.mode", "publish"), ("hub.url", TOPIC)]))[0] == 204
    assert hub.pings.pings == [TOPIC]


async def test_h02_post_of_a_form_only(hub: RunningHub, http: aiohttp.ClientSession) -> None:
    async with http.post(hub.url, json={"hub.mode": "subscribe"}) as answer:
        assert answer.status == 415
    for method in ("PUT", "DELETE", "PATCH"):
        async with http.request(method, hub.url) as answer:
            assert answer.status == 405
            assert "POST" in answer.headers["Allow"]
    async with http.post(hub.url, data=b"hub.mode=\xff", headers={"Content-Type": FORM}) as answer:
        assert answer.status == 400


FORM = "application/x-www-form-urlencoded"


@pytest.mark.parametrize("missing", ["hub.mode", "hub.topic", "hub.callback"])
async def test_h03_needs_callback_mode_topic(missing: str, hub: RunningHub, http: aiohttp.ClientSession) -> None:
    data = [pair for pair in form("http://s.example/cb") if pair[0] != missing]
    status, text = await post(http, hub, data)
    assert status == 400
    assert missing in text
    status, _ = await post(http, hub, form("ftp://s.example/cb"))
    assert status == 400
    status, _ = await post(http, hub, form("http://s.example/cb", mode="dance"))
    assert status == 400
    assert hub.verifier.waiting == 0


async def test_h04_accepts_a_secret(hub: RunningHub, http: aiohttp.ClientSession, subscriber: Subscriber) -> None:
    assert (await post(http, hub, form(subscriber.url(), ("hub.secret", "geheim"))))[0] == 202
    await settled(hub)
    found = hub.subscriptions.find(TOPIC, subscriber.url(), time.time())
    assert found is not None
    assert found.secret == b"geheim"


async def test_h05_secret_below_200_bytes(hub: RunningHub, http: aiohttp.ClientSession, subscriber: Subscriber) -> None:
    assert (await post(http, hub, form(subscriber.url(), ("hub.secret", "é" * 99 + "x"))))[0] == 202
    status, text = await post(http, hub, form(subscriber.url(), ("hub.secret", "é" * 100)))
    assert status == 400
    assert "200" in text


async def test_h06_lease_asked_default_and_bounds(
    hub: RunningHub, http: aiohttp.ClientSession, subscriber: Subscriber
) -> None:
    for asked, granted in (
        ("3600", "3600"),
        (None, "864000"),
        ("", "864000"),
        ("1", "300"),
        ("99999999999", "2592000"),
    ):
        more = [] if asked is None else [("hub.lease_seconds", asked)]
        assert (await post(http, hub, form(subscriber.url(), *more)))[0] == 202
        assert (await subscriber.next_check()).query["hub.lease_seconds"] == granted
        await settled(hub)
    assert (await post(http, hub, form(subscriber.url(), ("hub.lease_seconds", "-5"))))[0] == 400


async def test_h07_lease_ignored_on_unsubscribe(
    hub: RunningHub, http: aiohttp.ClientSession, subscriber: Subscriber
) -> None:
    await post(http, hub, form(subscriber.url()))
    await settled(hub)
    data = form(subscriber.url(), ("hub.lease_seconds", "never"), mode="unsubscribe")
    assert (await post(http, hub, data))[0] == 202
    await settled(hub)
    assert hub.subscriptions.count(TOPIC) == 0


async def test_h08_verify_words(hub: RunningHub, http: aiohttp.ClientSession, subscriber: Subscriber) -> None:
    words = [("hub.verify", "telepathy"), ("hub.verify", "sync"), ("hub.verify", "async")]
    assert (await post(http, hub, form(subscriber.url(), *words)))[0] == 204
    assert (await post(http, hub, form(subscriber.url(), *reversed(words))))[0] == 202
    assert (await post(http, hub, form(subscriber.url(), words[0])))[0] == 400


async def test_h09_verify_token_echoed_only_when_given(
    hub: RunningHub, http: aiohttp.ClientSession, subscriber: Subscriber
) -> None:
    await post(http, hub, form(subscriber.url(), ("hub.verify", "sync"), ("hub.verify_token", "a&b")))
    assert (await subscriber.next_check()).query["hub.verify_token"] == "a&b"
    await post(http, hub, form(subscriber.url(), ("hub.verify", "sync")))
    assert "hub.verify_token" not in (await subscriber.next_check()).query


async def test_h10_unknown_parameters_ignored(
    hub: RunningHub, http: aiohttp.ClientSession, subscriber: Subscriber
) -> None:
    data = form(subscriber.url(), ("hub.weather", "fine"), ("hub.weather", "rain"), ("x", ""))
    assert (await post(http, hub, data))[0] == 202
    await settled(hub)


async def test_h11_no_fragment_in_0_3(hub: RunningHub, http: aiohttp.ClientSession, subscriber: Subscriber) -> None:
    old = ("hub.verify", "async")
    assert (await post(http, hub, form(subscriber.url("/cb#x"), old)))[0] == 400
    assert (await post(http, hub, form(subscriber.url(), old, topic=TOPIC + "#x")))[0] == 400
    assert (await post(http, hub, form(subscriber.url("/cb#x"))))[0] == 202
    await settled(hub)


async def test_h13_unreserved_escapes_decoded(
    hub: RunningHub, http: aiohttp.ClientSession, subscriber: Subscriber
) -> None:
    await post(http, hub, form(subscriber.url("/%63b"), topic="http://publisher.example/%66eed"))
    await settled(hub)
    await post(http, hub, form(subscriber.url("/cb"), topic=TOPIC))
    await settled(hub)
    assert hub.subscriptions.count(TOPIC) == 1


async def test_h16_sync_is_finished_before_the_answer(
    hub: RunningHub, http: aiohttp.ClientSession, subscriber: Subscriber
) -> None:
    assert (await post(http, hub, form(subscriber.url(), ("hub.verify", "sync"))))[0] == 204
    assert hub.subscriptions.count(TOPIC) == 1
    assert (await post(http, hub, form(subscriber.url(), ("hub.verify", "async"))))[0] == 202
    subscriber.reply = lambda _check: web.Response(status=404)
    status, text = await post(http, hub, form(subscriber.url("/other"), ("hub.verify", "sync")))
    assert status == 409
    assert "404" in text


@pytest.mark.parametrize("mode", ["subscribe", "unsubscribe"])
async def test_h17_h18_always_202(
    mode: str, hub: RunningHub, http: aiohttp.ClientSession, subscriber: Subscriber
) -> None:
    for reply in (confirm, lambda _check: web.Response(status=500), lambda _check: web.Response(text="no")):
        subscriber.reply = reply
        answer = await post(http, hub, form(subscriber.url(), mode=mode))
        assert answer == (202, "accepted: your callback will be asked to confirm\n")
        await settled(hub)
    # Nobody listens there at all.
    assert (await post(http, hub, form("http://127.0.0.1:9/cb", mode=mode)))[0] == 202


async def test_h19_errors_are_plain_text(hub: RunningHub, http: aiohttp.ClientSession) -> None:
    async with http.post(hub.url, data=[("hub.mode", "subscribe")]) as answer:
        assert answer.status == 400
        assert answer.content_type == "text/plain"
        assert (await answer.text()) == "hub.topic is missing: expected an http or https URL\n"


async def test_h20_a_hub_that_moved_says_where(tmp_path: Path, http: aiohttp.ClientSession) -> None:
    config = ServerConfig(moved_to="https://new.example/")
    async with (
        run_hub(tmp_path, config) as hub,
        http.post(hub.url, data=form("http://s.example/"), allow_redirects=False) as answer,
    ):
        assert answer.status == 308
        assert answer.headers["Location"] == "https://new.example/"


async def test_h21_verifies_at_once(hub: RunningHub, http: aiohttp.ClientSession, subscriber: Subscriber) -> None:
    asked: list[Check] = []

    def reply(check: Check) -> web.Response:
        asked.append(check)
        return confirm(check)

    subscriber.reply = reply
    await post(http, hub, form(subscriber.url()))
    await settled(hub)
    assert len(asked) == 1
    assert hub.subscriptions.count(TOPIC) == 1


async def test_h39_h40_publish_names_and_204(hub: RunningHub, http: aiohttp.ClientSession) -> None:
    urls = [("hub.url", "http://p.example/1"), ("hub.url", "http://p.example/2")]
    assert (await post(http, hub, [("hub.mode", "publish"), *urls]))[0] == 204
    assert (await post(http, hub, [("hub.mode", "publish"), ("hub.topic", "http://p.example/3")]))[0] == 204
    assert hub.pings.pings == [f"http://p.example/{n}" for n in (1, 2, 3)]
    assert (await post(http, hub, [("hub.mode", "publish")]))[0] == 400
    assert (await post(http, hub, [("hub.mode", "publish"), ("hub.url", "mailto:x")]))[0] == 400
