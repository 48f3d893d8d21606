"""The HTTP surface over real sockets: methods, types, sizes, slow clients, other sites' scripts, a graceful stop."""

import asyncio
import json
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import aiohttp
import pytest

from push_hub.hub import Hub, HubConfig
from push_hub.intake import Intake
from push_hub.server import ServerConfig
from serving.events import LimitReached, RequestRefused
from storage import Database, StorageError
from tests.push_hub.conformance.test_conformance_requests import TOPIC, form, post
from tests.push_hub.harness import PATIENCE, until
from tests.push_hub.running import RunningHub, run_hub
from tests.push_hub.world import World, whole_hub

FORM = {"Content-Type": "application/x-www-form-urlencoded"}


async def raw(url: str, data: bytes) -> bytes:
    """Send bytes as they are, and read until the hub closes."""
    host, _, port = url.removeprefix("http://").rstrip("/").rpartition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    try:
        writer.write(data)
        async with asyncio.timeout(PATIENCE):
            return await reader.read()
    finally:
        writer.close()


# -- sizes


async def test_413_by_declared_length_before_the_body_is_read(tmp_path: Path) -> None:
    async with run_hub(tmp_path, ServerConfig(linger=0.01)) as hub:
        answer = await raw(
            hub.url,
            b"POST / HTTP/1.1\r\nHost: h\r\nContent-Type: application/x-www-form-urlencoded\r\n"
            b"Content-Length: 99999999\r\n\r\nhub.mode=publish",
        )
    assert answer.startswith(b"HTTP/1.1 413 ")
    assert b"the body is longer than 65536 bytes\n" in answer


async def test_413_when_nobody_said_how_long_it_is(hub: RunningHub, http: aiohttp.ClientSession) -> None:
    async def endless():  # type: ignore[no-untyped-def]
        for _ in range(200):
            yield b"x" * 1024

    async with http.post(hub.url, data=endless(), headers=FORM) as answer:
        assert answer.status == 413
    assert hub.pings.pings == []


async def test_a_body_at_the_bound_is_read(hub: RunningHub, http: aiohttp.ClientSession) -> None:
    text = f"hub.mode=publish&hub.url={TOPIC}&x="
    async with http.post(hub.url, data=text.ljust(65536, "x").encode(), headers=FORM) as answer:
        assert answer.status == 204


async def test_fat_pings_have_their_own_bound(tmp_path: Path, http: aiohttp.ClientSession) -> None:
    config = ServerConfig(publisher_tokens=("t",), max_fat_ping=100_000)
    async with run_hub(tmp_path, config) as hub:
        headers = {"Authorization": "Bearer t", "Content-Type": "text/plain"}
        url = f"{hub.url}?hub.mode=publish&hub.url={TOPIC}"
        for size, status in ((100_000, 204), (100_001, 413)):
            async with http.post(url, data=b"x" * size, headers=headers) as answer:
                assert answer.status == status
        assert [len(content.body) for _, content in hub.pings.offers] == [100_000]


@pytest.mark.parametrize("encoding", ["gzip", "deflate", "br", "identity, gzip"])
async def test_compressed_requests_are_refused_unopened(
    encoding: str, hub: RunningHub, http: aiohttp.ClientSession
) -> None:
    headers = {**FORM, "Content-Encoding": encoding}
    async with http.post(hub.url, data=b"\x1f\x8b\x08\x00rubbish", headers=headers) as answer:
        assert answer.status == 415
        assert "Content-Encoding" in await answer.text()


# -- methods and types


@pytest.mark.parametrize("path", ["", "health", "robots.txt", ".well-known/websub", ".well-known/host-meta"])
async def test_head_is_get_without_the_body(path: str, hub: RunningHub, http: aiohttp.ClientSession) -> None:
    async with http.get(hub.url + path) as got, http.head(hub.url + path) as headed:
        assert (got.status, headed.status) == (200, 200)
        assert await headed.read() == b""
        for name in ("Content-Type", "Content-Length", "Vary"):
            assert headed.headers.get(name) == got.headers.get(name)


@pytest.mark.parametrize(
    ("path", "allowed"),
    [
        ("", "GET, HEAD, OPTIONS, POST"),
        ("health", "GET, HEAD, OPTIONS"),
        ("stream", "GET, HEAD, OPTIONS"),
        ("diagnostics/topic", "GET, HEAD, OPTIONS"),
        ("diagnostics/dead-letters/7/replay", "OPTIONS, POST"),
    ],
)
async def test_options_and_405_say_what_is_allowed(path: str, allowed: str, world: World) -> None:
    async with world.http.options(world.hub.url + path) as answer:
        assert (answer.status, answer.headers["Allow"]) == (204, allowed)
        assert await answer.read() == b""
    for method in {"PUT", "DELETE", "PATCH", "TRACE", "PROPFIND", "POST"} - set(allowed.split(", ")):
        async with world.http.request(method, world.hub.url + path) as answer:
            assert (answer.status, answer.headers["Allow"]) == (405, allowed)
            assert answer.content_type == "text/plain"


@pytest.mark.parametrize("content_type", ["text/plain", "multipart/form-data; boundary=x", "application/json", "", ";"])
async def test_only_forms_are_read(content_type: str, hub: RunningHub) -> None:
    body = f"hub.mode=publish&hub.url={TOPIC}".encode()
    line = f"Content-Type: {content_type}\r\n" if content_type else ""
    head = f"POST / HTTP/1.1\r\nHost: h\r\nConnection: close\r\n{line}Content-Length: {len(body)}\r\n\r\n"
    answer = await raw(hub.url, head.encode() + body)
    assert answer.startswith(b"HTTP/1.1 415 ")
    assert hub.pings.pings == []


@pytest.mark.parametrize("content_type", ["application/x-www-form-urlencoded; charset=utf-8", "APPLICATION/X-WWW-FORM-URLENCODED"])  # fmt: skip  # noqa: E501
async def test_forms_may_be_spelt_otherwise(content_type: str, hub: RunningHub, http: aiohttp.ClientSession) -> None:
    body = f"hub.mode=publish&hub.url={TOPIC}"
    async with http.post(hub.url, data=body.encode(), headers={"Content-Type": content_type}) as answer:
        assert answer.status == 204


async def test_bytes_that_are_no_http_get_400(hub: RunningHub) -> None:
    assert (await raw(hub.url, b"\x16\x03\x01\x02\x00 hello\r\n\r\n")).startswith(b"HTTP/1.0 400 ")


# -- scripts of other sites


async def test_scripts_of_other_sites_may_ask_and_read(world: World) -> None:
    asks = {"Origin": "https://elsewhere.example", "Access-Control-Request-Method": "POST"}
    async with world.http.options(world.hub.url, headers=asks) as answer:
        assert answer.status == 204
        assert answer.headers["Access-Control-Allow-Origin"] == "*"
        assert "POST" in answer.headers["Access-Control-Allow-Methods"]
        assert "Authorization" in answer.headers["Access-Control-Allow-Headers"]
        assert int(answer.headers["Access-Control-Max-Age"]) > 0
        assert "Access-Control-Allow-Credentials" not in answer.headers
    for method, path, status in (("GET", "", 200), ("POST", "", 415), ("GET", "nowhere", 404), ("GET", "stream", 400)):
        async with world.http.request(method, world.hub.url + path, data=b"x" if method == "POST" else None) as answer:
            assert answer.status == status
            assert answer.headers["Access-Control-Allow-Origin"] == "*"
            assert "Retry-After" in answer.headers["Access-Control-Expose-Headers"]
            assert answer.headers["X-Content-Type-Options"] == "nosniff"


# -- for people, and for programs that look around


async def test_the_page_for_people_names_this_hub_and_runs_nothing(
    hub: RunningHub, http: aiohttp.ClientSession
) -> None:
    async with http.get(hub.url, headers={"Host": 'evil"><script>alert(1)</script>'}) as answer:
        assert (answer.status, await answer.text()) == (400, "the Host header is no host name\n")
    async with http.get(hub.url) as answer:
        assert answer.content_type == "text/html"
        assert "default-src 'none'" in answer.headers["Content-Security-Policy"]
        text = await answer.text()
        assert f"curl {hub.url} -d hub.mode=subscribe" in text
        assert "/health" in text


async def test_well_known_documents_lead_to_the_hub(hub: RunningHub, http: aiohttp.ClientSession) -> None:
    async with http.get(f"{hub.url}.well-known/websub") as answer:
        document = await answer.json()
        assert document["hub"] == hub.url
        assert document["limits"] == {
            "body_bytes": 65536,
            "document_bytes": 8_388_608,
            "topics_per_ping": 100,
            "secret_bytes": 199,
            "url_characters": 2048,
        }
        assert document["signature_methods"] == ["sha1", "sha256", "sha384", "sha512"]
    async with http.get(f"{hub.url}.well-known/host-meta") as answer:
        assert answer.content_type == "application/xrd+xml"
        assert f'<Link rel="hub" href="{hub.url}"/>' in await answer.text()
    async with http.get(f"{hub.url}.well-known/host-meta.json") as answer:
        assert answer.content_type == "application/jrd+json"
        assert json.loads(await answer.text()) == {"links": [{"rel": "hub", "href": hub.url}]}
    for path in (".well-known/other", "nowhere", "favicon.ico"):
        async with http.get(hub.url + path) as answer:
            assert (answer.status, answer.content_type) == (404, "text/plain")
            assert "the hub, and help for people, is at /" in await answer.text()


async def test_the_public_address_is_what_is_told(tmp_path: Path, http: aiohttp.ClientSession) -> None:
    hub = Hub(HubConfig(tmp_path, public_url="https://hub.example/"))
    await hub.start()
    try:
        assert hub.url == "https://hub.example/"
        async with http.get(f"{hub.local_url}.well-known/websub") as answer:
            assert (await answer.json())["hub"] == "https://hub.example/"
    finally:
        await hub.stop()


async def test_a_mode_in_the_address_gets_a_hint(hub: RunningHub, http: aiohttp.ClientSession) -> None:
    async with http.post(hub.url, params={"hub.mode": "subscribe", "hub.topic": "http://a.example/"}) as answer:
        assert answer.status in (400, 415)
        assert "hub.mode stands in the address: send it and the rest in the body" in await answer.text()
    async with http.post(hub.url, params={"other": "1"}, data={"a": "b"}) as answer:
        assert await answer.text() == "hub.mode is missing: expected subscribe, unsubscribe or publish\n"


@pytest.mark.parametrize("given", ["https://example.com/hub/", "https://example.com/hub"])
async def test_links_are_right_under_a_path(tmp_path: Path, http: aiohttp.ClientSession, given: str) -> None:
    hub = Hub(HubConfig(tmp_path, public_url=given))
    await hub.start()
    try:
        async with http.get(hub.local_url) as answer:
            assert "<https://example.com/hub/.well-known/websub>" in answer.headers["Link"]
            assert 'href="https://example.com/hub/health"' in await answer.text()
        async with http.get(f"{hub.local_url}.well-known/websub") as answer:
            document = await answer.json()
            assert document["hub"] == given
            assert document["health"] == "https://example.com/hub/health"
    finally:
        await hub.stop()


async def test_health_is_json_and_has_its_status(hub: RunningHub, http: aiohttp.ClientSession) -> None:
    async with http.get(f"{hub.url}health") as answer:
        assert (answer.status, (await answer.json())["status"]) == (200, "ok")
    hub.health.append("the disk is on fire")
    async with http.get(f"{hub.url}health") as answer:
        assert answer.status == 503
        assert (await answer.json())["reasons"] == ["the disk is on fire"]


# -- slow clients


async def test_a_head_that_never_ends_is_cut_off(tmp_path: Path) -> None:
    async with run_hub(tmp_path, ServerConfig(header_timeout=0.05)) as hub:
        for start in (b"", b"POST / HTTP/1.1\r\nHost: h\r\nX-Slow: "):
            with suppress(ConnectionResetError):
                assert await raw(hub.url, start) == b""
        assert hub.port.cut == 2
        assert hub.events.count(LimitReached("header_timeout")) == 2


async def test_a_body_that_never_ends_gets_408(tmp_path: Path) -> None:
    async with run_hub(tmp_path, ServerConfig(body_timeout=0.05, linger=0.01)) as hub:
        answer = await raw(
            hub.url,
            b"POST / HTTP/1.1\r\nHost: h\r\nContent-Type: application/x-www-form-urlencoded\r\n"
            b"Content-Length: 100\r\n\r\nhub.mode=",
        )
        assert answer.startswith(b"HTTP/1.1 408 ")
        assert LimitReached("body_timeout") in hub.events


async def test_who_goes_away_in_the_middle_stores_nothing(hub: RunningHub) -> None:
    host, _, port = hub.url.removeprefix("http://").rstrip("/").rpartition(":")
    _, writer = await asyncio.open_connection(host, int(port))
    body = f"hub.mode=publish&hub.url={TOPIC}"
    writer.write(
        b"POST / HTTP/1.1\r\nHost: h\r\nContent-Type: application/x-www-form-urlencoded\r\n"
        b"Content-Length: 1000\r\n\r\n" + body.encode()
    )
    await writer.drain()
    writer.close()
    await until(lambda: RequestRefused(400, "the request body ended too early", "127.0.0.1") in hub.events)
    assert hub.pings.pings == []


async def test_too_many_connections_are_closed_and_others_served(tmp_path: Path) -> None:
    async with run_hub(tmp_path, ServerConfig(max_connections=3)) as hub:
        host, _, port = hub.url.removeprefix("http://").rstrip("/").rpartition(":")
        first = [await asyncio.open_connection(host, int(port)) for _ in range(3)]
        with pytest.raises((ConnectionResetError, asyncio.IncompleteReadError)):
            reader, writer = await asyncio.open_connection(host, int(port))
            first.append((reader, writer))
            await asyncio.wait_for(reader.readexactly(1), PATIENCE)
        assert LimitReached("max_connections") in hub.events
        reader, writer = first[0]
        writer.write(b"GET /health HTTP/1.1\r\nHost: h\r\n\r\n")
        assert await asyncio.wait_for(reader.readline(), PATIENCE) == b"HTTP/1.1 200 OK\r\n"
        for _, writer in first:
            writer.close()


# -- stopping


async def test_a_stop_answers_who_waits_for_a_check_and_takes_bounded_time(
    tmp_path: Path, http: aiohttp.ClientSession
) -> None:
    """A callback that never answers must hold up neither the stop nor the subscriber's client."""
    asked = asyncio.Event()
    never = asyncio.Event()

    async def silent(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        asked.set()
        await never.wait()
        writer.close()

    callback = await asyncio.start_server(silent, "127.0.0.1", 0)
    where = f"http://127.0.0.1:{callback.sockets[0].getsockname()[1]}/cb"
    async with whole_hub(tmp_path) as hub:
        sync = [*form(where), ("hub.verify", "sync")]
        waits = asyncio.create_task(post(http, hub, sync))  # type: ignore[arg-type]
        await asyncio.wait_for(asked.wait(), PATIENCE)
        async with http.post(hub.url, data=form(where, topic=TOPIC + "2")) as answer:
            assert answer.status == 202
        began = asyncio.get_running_loop().time()
    assert asyncio.get_running_loop().time() - began < 5.0
    assert await waits == (503, "the hub is stopping\n")
    never.set()
    callback.close()


async def test_a_stop_lets_a_request_under_way_finish(
    tmp_path: Path, http: aiohttp.ClientSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A ping is on its way to the disk when the stop begins: it is stored, and answered."""
    began, go = asyncio.Event(), asyncio.Event()
    ping = Intake.ping

    async def slow(self: Intake, topics: Sequence[str], client: str) -> None:
        began.set()
        await go.wait()
        await ping(self, topics, client)

    monkeypatch.setattr(Intake, "ping", slow)
    async with whole_hub(tmp_path) as hub:
        sent = asyncio.create_task(post(http, hub, [("hub.mode", "publish"), ("hub.url", TOPIC)]))  # type: ignore[arg-type]
        await asyncio.wait_for(began.wait(), PATIENCE)
        assert hub._parts is not None
        runner, database = hub._parts.port._runner, hub._parts.database
        assert runner is not None
        stopping = asyncio.create_task(hub.stop())
        await until(lambda: not runner.sites)
        with pytest.raises(aiohttp.ClientConnectorError):
            await http.get(hub.url)
        go.set()
        assert (await asyncio.wait_for(sent, PATIENCE))[0] == 204
        await stopping
        await hub.stop()  # a second time does nothing
        with pytest.raises(StorageError):
            database.write(lambda _tx: None)
    with Database.open(tmp_path / "data" / "hub.sqlite") as database:
        assert database.read("SELECT topic FROM unwanted_pings") == [(TOPIC,)]
