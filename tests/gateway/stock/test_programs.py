"""Programs of others at the hub: a subscriber from npm, a blog in PHP, Prometheus. Each skips where it is missing."""

import asyncio
import contextlib
import json
import os
import shutil
from collections.abc import AsyncIterator
from pathlib import Path

import aiohttp
import pytest

from gateway.admin.config import AdminConfig
from gateway.hub_alone import HubAlone, HubAloneConfig
from push_hub.canary import CanaryConfig
from push_hub.hub import HubConfig
from tests.gateway.proxies.test_reverse_proxies import free_port
from tests.push_hub.harness import Publisher, Subscriber, atom
from tests.push_hub.world import whole_hub
from tests.waiting import until

HERE = Path(__file__).parent
NPM = Path(__file__).parents[3] / ".venv" / "npm" / "node_modules"


def program(name: str) -> str:
    found = shutil.which(name)
    if found is None:
        pytest.skip(f"{name} is not installed")
    return found


@contextlib.asynccontextmanager
async def running(*words: str, folder: Path, **environment: str) -> AsyncIterator[asyncio.subprocess.Process]:
    process = await asyncio.create_subprocess_exec(
        *words, cwd=folder, env={"PATH": os.environ["PATH"], "HOME": str(folder), **environment},
        stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.DEVNULL,
    )  # fmt: skip
    try:
        yield process
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.terminate()
        await process.communicate()


@pytest.fixture
async def http() -> AsyncIterator[aiohttp.ClientSession]:
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=30)) as session:
        yield session


@pytest.fixture
async def publisher() -> AsyncIterator[Publisher]:
    found = await Publisher().start()
    yield found
    await found.close()


@pytest.fixture
async def subscriber() -> AsyncIterator[Subscriber]:
    found = await Subscriber().start()
    yield found
    await found.close()


async def test_the_subscriber_from_npm(tmp_path: Path, publisher: Publisher) -> None:
    node = program("node")
    if not (NPM / "pubsubhubbub").exists():
        pytest.skip("npm's pubsubhubbub is not installed (make npm-packages)")
    publisher.body = atom(1)
    async with whole_hub(tmp_path) as hub:
        topic = publisher.url()
        words = (node, str(HERE / "npm" / "reader.js"), str(NPM), topic, hub.url)
        async with running(*words, folder=tmp_path) as reader, asyncio.timeout(60):
            assert reader.stdout is not None
            assert (await reader.stdout.readline()).decode() == f"subscribed {topic} {hub.url}\n"
            await until(lambda: hub.subscriptions.count(topic))
            await hub.ping([topic])
            what, _, feed = (await reader.stdout.readline()).decode().partition(" ")
            assert (what, json.loads(feed)) == ("feed", publisher.body.decode())
            assert await reader.stdout.readline() == b"unsubscribed\n"
            await until(lambda: not hub.subscriptions.count(topic))


async def test_a_blog_in_php(tmp_path: Path, subscriber: Subscriber, http: aiohttp.ClientSession) -> None:
    php = program("php")
    port = free_port()
    topic = f"http://127.0.0.1:{port}/feed"
    async with whole_hub(tmp_path) as hub:
        words = (php, "-S", f"127.0.0.1:{port}", str(HERE / "blog.php"))
        async with running(*words, folder=tmp_path, HUB=hub.url, ENTRIES=str(tmp_path / "entries")):
            await answers(topic, http)
            form = {"hub.mode": "subscribe", "hub.topic": topic, "hub.callback": subscriber.url()}
            async with http.post(hub.url, data=form) as answer:
                assert answer.status == 202
            await until(lambda: hub.subscriptions.count(topic))
            for entry in ("first & foremost", "second"):
                async with http.post(topic, data=entry) as answer:
                    assert await answer.text() == "HTTP/1.1 204 No Content"
                received = await subscriber.next_received()
                assert received.headers["Content-Type"] == "application/rss+xml; charset=UTF-8"
                assert f"<title>{entry.replace('&', '&amp;')}</title>".encode() in received.body


async def answers(url: str, http: aiohttp.ClientSession) -> None:
    async def one() -> bool:
        try:
            async with http.get(url):
                return True
        except aiohttp.ClientConnectionError:
            return False

    await until(one)


async def test_prometheus_takes_what_a_hub_says(
    tmp_path: Path, http: aiohttp.ClientSession, publisher: Publisher, subscriber: Subscriber
) -> None:
    prometheus = program("prometheus")
    hub_config = HubConfig(tmp_path / "hub", allow_private=True, canary=CanaryConfig(enabled=False))
    alone = HubAlone(HubAloneConfig(hub_config, AdminConfig("127.0.0.1", 0)))
    await alone.start()
    try:
        assert alone.admin is not None
        async with http.post(
            alone.hub.url,
            data={"hub.mode": "subscribe", "hub.topic": publisher.url(), "hub.callback": subscriber.url()},
        ) as answer:
            assert answer.status == 202
        await until(lambda: alone.hub.subscriptions.count(publisher.url()))
        async with http.get(f"{alone.admin.url}metrics") as answer:
            (tmp_path / "metrics").write_bytes(await answer.read())
        target = alone.admin.url.removeprefix("http://").rstrip("/")
        (tmp_path / "prometheus.yml").write_text(
            "global: {scrape_interval: 1s, scrape_timeout: 1s}\n"
            f"scrape_configs: [{{job_name: psph, static_configs: [{{targets: ['{target}']}}]}}]\n"
        )
        port = free_port()
        listens = f"--web.listen-address=127.0.0.1:{port}"
        words = (prometheus, "--config.file=prometheus.yml", "--storage.tsdb.path=tsdb", listens)
        async with running(*words, folder=tmp_path):
            asked = f"http://127.0.0.1:{port}/api/v1/query"
            await answers(asked, http)
            await until(lambda: value(http, asked, "psph_hub_subscriptions"))
            assert await value(http, asked, "psph_hub_subscriptions") == 1.0
            assert await value(http, asked, "up") == 1.0
    finally:
        await alone.stop()


async def value(http: aiohttp.ClientSession, url: str, query: str) -> float | None:
    async with http.get(url, params={"query": query}) as answer:
        if answer.status != 200:  # it is not ready yet
            return None
        document = await answer.json()
    result = document.get("data", {}).get("result", [])
    return float(result[0]["value"][1]) if result else None
