"""The reverse proxies of docs/reverse-proxies.md, with its very files: nginx, Caddy and HAProxy before a gateway.

What is looked at behind each: links, the client's address in limits and in what is told, event streams, feeds.
"""

import asyncio
import contextlib
import os
import re
import shutil
import socket
import tomllib
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

import aiohttp
import pytest

from gateway.config import check
from gateway.gateway import Gateway
from serving.events import RequestRefused
from tests.documents.pages import ROOT, blocks
from tests.push_hub.harness import Publisher, Subscriber, atom
from tests.waiting import until

PAGE = ROOT / "docs" / "reverse-proxies.md"
FILES = {block.options["file"]: block.body for block in blocks(PAGE) if "file" in block.options}
CLIENT = "127.0.0.2"
PATH = os.pathsep.join([os.environ["PATH"], "/usr/sbin"])
PROGRAMS = {
    "nginx.conf": ["nginx", "-p", ".", "-e", "stderr", "-c", "nginx.conf"],
    "Caddyfile": ["caddy", "run", "--adapter", "caddyfile", "--config", "Caddyfile"],
    "haproxy.cfg": ["haproxy", "-f", "haproxy.cfg"],
    "tcp.cfg": ["haproxy", "-f", "tcp.cfg"],
}


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port: int = found.getsockname()[1]
        return port


@dataclass
class World:
    gateway: Gateway
    told: list[object]
    address: str
    """Of the proxy; ends in a slash."""


@contextlib.asynccontextmanager
async def behind(file: str, folder: Path, *, hub: dict[str, object] | None = None) -> AsyncIterator[World]:
    """The page's gateway, and in front of it the proxy that is configured by this file."""
    program = shutil.which(PROGRAMS[file][0], path=PATH)
    if program is None:
        pytest.skip(f"{PROGRAMS[file][0]} is not installed")
    told: list[object] = []
    front = free_port()
    document = tomllib.loads(FILES["gateway.toml"].replace(":8000", f":{front}"))
    document["hub"] |= {"listen": "127.0.0.1:0"} | (hub or {})
    document["web"] |= {"listen": "127.0.0.1:0"}
    gateway = Gateway(check(document, folder, "the page", {}), observer=told.append)
    await gateway.start()
    try:
        assert gateway.web is not None
        ports = {"8000": str(front), "8080": port_of(gateway.hub.local_url), "8081": port_of(gateway.web.local_url)}
        text = re.sub(r"127\.0\.0\.1:(80\d\d)", lambda found: f"127.0.0.1:{ports[found[1]]}", FILES[file])
        (folder / file).write_text(text)
        process = await asyncio.create_subprocess_exec(
            program, *PROGRAMS[file][1:], cwd=folder, env={**os.environ, "HOME": str(folder)},
            stdout=asyncio.subprocess.DEVNULL, stderr=asyncio.subprocess.DEVNULL,
        )  # fmt: skip
        try:
            await listens(front, process)
            yield World(gateway, told, f"http://127.0.0.1:{front}/")
        finally:
            with contextlib.suppress(ProcessLookupError):
                process.terminate()
            await process.wait()
    finally:
        await gateway.stop()


def port_of(url: str) -> str:
    return url.rstrip("/").rpartition(":")[2]


async def listens(port: int, process: asyncio.subprocess.Process) -> None:
    async def answers() -> bool:
        assert process.returncode is None, "the proxy ended"
        try:
            _, writer = await asyncio.open_connection("127.0.0.1", port)
        except ConnectionRefusedError:
            return False
        writer.close()
        return True

    await until(answers)


@pytest.fixture
async def http() -> AsyncIterator[aiohttp.ClientSession]:
    """A client that is not at the proxies' own address."""
    connector = aiohttp.TCPConnector(local_addr=(CLIENT, 0))
    async with aiohttp.ClientSession(connector=connector, timeout=aiohttp.ClientTimeout(total=30)) as session:
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


@pytest.mark.parametrize("file", ["nginx.conf", "Caddyfile", "haproxy.cfg"])
async def test_a_gateway_below_a_path(
    file: str, tmp_path: Path, http: aiohttp.ClientSession, publisher: Publisher, subscriber: Subscriber
) -> None:
    publisher.body = atom(1)
    async with behind(file, tmp_path) as world:
        hub = f"{world.address}hub/"
        await links_lead_back(http, hub)
        # Every client's own address counts, also of one that says it is somebody else.
        for claimed in ({}, {"X-Forwarded-For": "203.0.113.9"}, {"Forwarded": "for=203.0.113.9"}):
            async with http.post(hub, data={"hub.mode": "nonsense"}, headers=claimed) as answer:
                assert answer.status == 400
        refused = [event for event in world.told if isinstance(event, RequestRefused)]
        assert [event.client for event in refused] == [CLIENT] * 3
        # A feed of somebody else, and what its links lead to: a subscription through the proxy.
        async with http.get(f"{hub}feeds/{publisher.url()}") as answer:
            assert answer.status == 200, await answer.text()
            assert answer.headers["Link"] == f'<{hub}>; rel="hub", <{publisher.url()}>; rel="self"'
        form = {"hub.mode": "subscribe", "hub.topic": publisher.url(), "hub.callback": subscriber.url()}
        async with http.post(hub, data=form) as answer:
            assert answer.status == 202
        await subscriber.next_check()
        await a_stream_is_not_held_up(http, f"{world.address}topics-of-us/topics")


async def links_lead_back(http: aiohttp.ClientSession, hub: str) -> None:
    async with http.get(hub) as answer:
        link = re.search(r'<([^>]+)>; rel="service-desc"', answer.headers["Link"])
        assert link is not None
        page = await answer.text()
    assert link[1] == f"{hub}.well-known/websub"
    async with http.get(link[1]) as answer:
        document = await answer.json()
    assert document["hub"] == hub
    health = re.search(r'href="([^"]+health)"', page)
    assert health is not None and health[1] == document["health"]
    async with http.get(document["health"]) as answer:
        assert answer.status == 200


async def a_stream_is_not_held_up(http: aiohttp.ClientSession, topics: str) -> None:
    """Each event is there as soon as it was sent, while the stream goes on."""
    name = {"name": "http://news.example/weather"}
    async with http.get(topics, params=name) as stream:
        assert (await stream.content.readline()).startswith(b": following")
        for text in ("Sunny", "Rain"):
            async with http.post(topics, params=name, data=text, headers={"Content-Type": "text/plain"}) as answer:
                assert answer.status == 201, await answer.text()
            line = b""
            while not line.startswith(b"data:"):
                line = await stream.content.readline()
            assert text.encode() in line


async def test_the_proxy_protocol(tmp_path: Path, http: aiohttp.ClientSession) -> None:
    async with behind("tcp.cfg", tmp_path, hub={"proxy_header": "proxy-protocol", "public_url": None}) as world:
        async with http.get(world.address) as answer:
            assert answer.status == 200
        async with http.post(world.address, data={}, headers={"X-Forwarded-For": "203.0.113.9"}) as answer:
            assert answer.status == 400
        (refused,) = [event for event in world.told if isinstance(event, RequestRefused)]
        assert refused.client == CLIENT
        # Whoever comes past the proxy, from the proxy's own address, is not heard.
        async with aiohttp.ClientSession() as direct:
            with pytest.raises(aiohttp.ClientError):
                await direct.get(world.gateway.hub.local_url)


def test_the_page_has_a_file_for_each_proxy() -> None:
    assert set(FILES) == {"gateway.toml", *PROGRAMS}
