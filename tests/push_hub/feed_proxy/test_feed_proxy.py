"""`/feeds/URL` over real sockets: what readers get, and what strangers cannot do with it."""

import asyncio
from pathlib import Path

import aiohttp
import pytest
from yarl import URL

from push_hub.client.requests import discover_topic
from push_hub.feed_proxy.proxy import FeedProxyConfig
from push_hub.server import ServerConfig
from serving.limits import Rate
from serving.outbound.addresses import AddressPolicy
from serving.outbound.client import ClientConfig, OutboundClient
from tests.push_hub.harness import Publisher, Subscriber, atom
from tests.push_hub.world import whole_hub

FEEDS = FeedProxyConfig(enabled=True)


class Seconds:
    now = 1000.0

    def __call__(self) -> float:
        return self.now


async def test_a_reader_finds_this_hub_and_is_sent_what_is_published(
    tmp_path: Path, publisher: Publisher, subscriber: Subscriber, http: aiohttp.ClientSession
) -> None:
    publisher.body = atom(1)
    publisher.extra_headers = {"Link": f'<https://other.example/>; rel="hub", <{publisher.url("/self")}>; rel="self"'}
    client = OutboundClient(ClientConfig(policy=AddressPolicy(True)))
    async with whole_hub(tmp_path, feeds=FEEDS) as hub:
        found = await discover_topic(client, f"{hub.url}feeds/{publisher.url()}")
        assert (found.topic, found.hubs) == (publisher.url("/self"), (hub.url,))
        form = {"hub.mode": "subscribe", "hub.topic": found.topic, "hub.callback": subscriber.url()}
        async with http.post(found.hubs[0], data=form) as answer:
            assert answer.status == 202
        await subscriber.next_check()
        publisher.body = atom(2, 1)
        async with http.post(hub.url, data={"hub.mode": "publish", "hub.url": found.topic}) as answer:
            assert answer.status == 204
        assert b"Entry 2" in (await subscriber.next_received()).body
    await client.close()


async def test_documents_are_kept_for_a_while_and_then_asked_for_with_their_validators(
    tmp_path: Path, publisher: Publisher, http: aiohttp.ClientSession
) -> None:
    publisher.body = atom(1)
    clock = Seconds()
    async with whole_hub(tmp_path, feeds=FEEDS, monotonic=clock) as hub:
        url = f"{hub.url}feeds/{publisher.url()}"
        async with http.get(url) as answer:
            assert answer.status == 200
            assert answer.headers["Content-Security-Policy"] == "sandbox; default-src 'none'"
            tag = answer.headers["ETag"]
        async with http.get(url, headers={"If-None-Match": tag}) as answer:
            assert (answer.status, await answer.read()) == (304, b"")
        async with http.get(url, headers={"Host": "other.example"}) as answer:
            assert answer.headers["ETag"] != tag
            assert 'rel="hub" href="http://other.example/"' in await answer.text()
        assert publisher.fetches.qsize() == 1
        clock.now += FEEDS.keep + 1
        async with http.get(url, headers={"If-None-Match": tag}) as answer:
            assert answer.status == 304
        await publisher.next_fetch()
        assert "If-None-Match" in await publisher.next_fetch()
        publisher.body = atom(2, 1)
        clock.now += FEEDS.keep + 1
        async with http.get(url, headers={"If-None-Match": tag}) as answer:
            assert (answer.status, "Entry 2" in await answer.text()) == (200, True)


@pytest.mark.parametrize("form", ["{url}", "{once}", "{encoded}"])
async def test_the_address_may_stand_there_as_proxies_and_scripts_write_it(
    tmp_path: Path, publisher: Publisher, http: aiohttp.ClientSession, form: str
) -> None:
    publisher.body = atom(1)
    url = publisher.url("/a%20b?x=1&y=%26")
    encoded = url.replace("%", "%25").replace(":", "%3A").replace("/", "%2F").replace("?", "%3F").replace("&", "%26")
    written = form.format(url=url, once=url.replace("://", ":/"), encoded=encoded)
    async with whole_hub(tmp_path, feeds=FEEDS) as hub:
        async with http.get(URL(f"{hub.url}feeds/{written}", encoded=True)) as answer:
            assert answer.status == 200, await answer.text()
            assert answer.headers["Link"] == f'<{hub.url}>; rel="hub", <{url}>; rel="self"'
        async with http.get(f"{hub.url}feeds/", params={"url": url}, allow_redirects=False) as answer:
            assert (answer.status, answer.headers["Location"]) == (302, f"{hub.url}feeds/{url}")


async def test_what_strangers_cannot_have(tmp_path: Path, publisher: Publisher, http: aiohttp.ClientSession) -> None:
    publisher.body, publisher.content_type = b"<html><script>alert(1)</script></html>", "text/html"
    async with (
        whole_hub(tmp_path / "a", feeds=FEEDS, topics=("http://127.0.0.1:9/",)) as hub,
        http.get(f"{hub.url}feeds/{publisher.url()}") as answer,
    ):
        assert (answer.status, await answer.text()) == (403, "this hub does not serve this topic\n")
    async with whole_hub(tmp_path / "b", feeds=FEEDS, allow_private=False) as hub:
        async with http.get(f"{hub.url}feeds/{publisher.url()}") as answer:
            assert answer.status == 403
        for path in ("feeds/file:///etc/passwd", "feeds/x", f"feeds/{hub.url}feeds/http://a.example/"):
            async with http.get(hub.url + path) as answer:
                assert answer.status in (400, 403), path
    async with whole_hub(tmp_path / "c", feeds=FEEDS) as hub:
        for body in (publisher.body, b"\x89PNG", b"secret of another server"):
            publisher.body = body
            async with http.get(f"{hub.url}feeds/{publisher.url()}") as answer:
                assert answer.status == 502
                assert "it is no feed" in await answer.text()
        async with http.get(f"{hub.url}feeds/") as answer:
            assert "form-action 'self'" in answer.headers["Content-Security-Policy"]
    # It is off unless the operator wants it.
    async with whole_hub(tmp_path / "d") as hub, http.get(f"{hub.url}feeds/{publisher.url()}") as answer:
        assert answer.status == 404


async def test_each_network_may_have_so_many_fetched_and_what_is_kept_is_bounded(
    tmp_path: Path, publisher: Publisher, http: aiohttp.ClientSession
) -> None:
    publisher.body = atom(1)
    server = ServerConfig(feeds_per_client=Rate(0.001, 3))
    config = FeedProxyConfig(enabled=True, max_kept=2)
    async with whole_hub(tmp_path, feeds=config, server=server) as hub:

        async def status(number: int) -> int:
            async with http.get(f"{hub.url}feeds/{publisher.url(f'/{number}')}") as answer:
                return answer.status

        # Three are fetched; what is kept costs nothing, and the first is not kept any more.
        assert [await status(number) for number in (1, 2, 3, 3, 2, 1)] == [200, 200, 200, 200, 200, 429]
        assert publisher.fetches.qsize() == 3


async def test_one_fetch_serves_all_who_ask_at_the_same_time(
    tmp_path: Path, publisher: Publisher, http: aiohttp.ClientSession
) -> None:
    publisher.body = atom(1)
    async with whole_hub(tmp_path, feeds=FEEDS) as hub:

        async def status() -> int:
            async with http.get(f"{hub.url}feeds/{publisher.url()}") as answer:
                return answer.status

        assert set(await asyncio.gather(*(status() for _ in range(20)))) == {200}
        assert publisher.fetches.qsize() == 1
