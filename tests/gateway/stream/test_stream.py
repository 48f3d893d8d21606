"""The plain facade: following topics with GET and publishing with POST, across the network."""

import asyncio
import json
import socket
from collections.abc import AsyncIterator
from pathlib import Path
from shutil import which

import pytest
from aiohttp import ClientResponse, ClientSession, web
from aiohttp.test_utils import TestServer

from exchange.model import Draft, LogEntry, OriginId, Profile
from gateway.events import CrossingPublished
from gateway.protocols.rest.adapter import ReaderStream, RestConfig
from gateway.protocols.rest.routes import event_of
from identifiers import DEFAULT_NAMING, Topic
from tests.gateway.web_world import Domain, Reader, World, started_world
from tests.waiting import until

TOPIC = "http://news.example/a?x=1"
ITEM = DEFAULT_NAMING.of_topic(Topic.parse(TOPIC))


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    async with started_world(tmp_path) as world:
        yield world


async def post(world: World, domain: Domain, body: bytes | str, **headers: str) -> dict[str, str]:
    headers = {"Content-Type": "text/plain", **headers}
    answer = await world.http.post(domain.url("/topics"), params={"name": TOPIC}, data=body, headers=headers)
    assert answer.status == 201, await answer.text()
    found: dict[str, str] = await answer.json()
    return found


async def follow(world: World, domain: Domain, last: str | None = None) -> Reader:
    headers = {} if last is None else {"Last-Event-ID": last}
    answer = await world.http.get(domain.url("/topics"), params={"name": TOPIC}, headers=headers)
    assert answer.status == 200, await answer.text()
    assert answer.content_type == "text/event-stream"
    return Reader(answer)


async def test_what_is_posted_at_one_gateway_is_read_at_another(world: World) -> None:
    async with world.domain("n0", "a") as a, world.domain("n2", "b") as b:
        reader = await follow(world, a)
        published = await post(world, b, "first", **{"Content-Type": "text/html; charset=utf-8"})
        assert (published["sid"], published["rid"]) == (str(ITEM.sid), str(ITEM.rid))
        name, event = await reader.next()
        assert name == event["origin"] == published["origin"]
        assert (event["name"], event["self"]) == (TOPIC, TOPIC)
        assert (event["type"], event["text"]) == ("text/html; charset=utf-8", "first")
        await post(world, b, b"\xff\x00", **{"Content-Type": "image/png"})
        _, event = await reader.next()
        assert (event["type"], event["base64"]) == ("image/png", "/wA=")
        assert "text" not in event
        reader.answer.close()
        await until(lambda: a.streams.open_streams == 0)

        async def nobody_is_left() -> bool:
            return not await a.gateway.control.subscriptions(ITEM)

        await until(nobody_is_left)
        await until(lambda: not a.gateway.psirp.follows(ITEM))


async def test_who_comes_later_gets_the_current_version_also_when_others_have_it_already(world: World) -> None:
    async with world.domain("n0", "a") as a, world.domain("n2", "b") as b:
        await post(world, b, "old")
        await post(world, b, "current")
        await until(lambda: sum(isinstance(event, CrossingPublished) for event in world.events) == 2)
        first = await follow(world, a)
        assert (await first.next())[1]["text"] == "current"
        second = await follow(world, a)
        assert (await second.next())[1]["text"] == "current"
        by_ids = Reader(await world.http.get(a.url(f"/items/{ITEM.sid}/{ITEM.rid}")))
        assert (await by_ids.next())[1]["text"] == "current"
        await post(world, b, "next")
        for reader in (first, second, by_ids):
            assert (await reader.next())[1]["text"] == "next"
            reader.answer.close()


@pytest.mark.parametrize("others", [0, 1])
async def test_a_reader_that_comes_back_gets_what_it_missed_in_order(world: World, others: int) -> None:
    async with world.domain("n0", "a") as a, world.domain("n2", "b") as b:
        staying = [await follow(world, a) for _ in range(others)]
        reader = await follow(world, a)
        await post(world, b, "0")
        last, event = await reader.next()
        assert event["text"] == "0"
        reader.answer.close()
        await until(lambda: a.streams.open_streams == others)
        for number in range(1, 4):
            await post(world, b, str(number))
        reader = await follow(world, a, last)
        assert [(await reader.next())[1]["text"] for _ in range(3)] == ["1", "2", "3"]
        for other in staying:
            assert [(await other.next())[1]["text"] for _ in range(4)] == ["0", "1", "2", "3"]
            other.answer.close()
        reader.answer.close()


async def test_readers_at_the_same_gateway_hear_it_and_so_does_a_websub_subscriber(world: World) -> None:
    received: list[tuple[str, bytes]] = []

    async def verify(request: web.Request) -> web.Response:
        return web.Response(text=request.query["hub.challenge"])

    async def take(request: web.Request) -> web.Response:
        received.append((request.headers["Content-Type"], await request.read()))
        return web.Response()

    app = web.Application()
    app.router.add_get("/callback", verify)
    app.router.add_post("/callback", take)
    callback = TestServer(app)
    await callback.start_server()
    try:
        async with world.domain("n0", "a") as a:
            await post(world, a, "so that there is somebody who publishes it")
            form = {"hub.mode": "subscribe", "hub.topic": TOPIC, "hub.callback": str(callback.make_url("/callback"))}
            assert (await world.http.post(a.gateway.hub.url, data=form)).status == 202
            await until(lambda: a.gateway.psirp.follows(ITEM))
            reader = await follow(world, a)
            await reader.next()
            await post(world, a, "to both")
            assert (await reader.next())[1]["text"] == "to both"
            await until(lambda: received[-1:] == [("text/plain", b"to both")])
            reader.answer.close()
    finally:
        await callback.close()


async def test_a_reader_chooses_where_to_begin(world: World) -> None:
    async with world.domain("n0", "a") as a:
        origins = [(await post(world, a, text))["origin"] for text in ("one", "two", "three")]

        async def texts(since: str, number: int) -> tuple[list[str], list[int]]:
            reader = Reader(await world.http.get(a.url("/topics"), params={"name": TOPIC, "since": since}))
            events = [(await reader.next())[1] for _ in range(number)]
            reader.answer.close()
            return [event["text"] for event in events], [event["number"] for event in events]

        everything, numbers = await texts("all", 3)
        assert everything == ["one", "two", "three"]
        assert (await texts("current", 1))[0] == ["three"]
        assert (await texts(str(numbers[0]), 2))[0] == ["two", "three"]
        assert (await texts(origins[1], 1))[0] == ["three"]
        assert (await texts("2020-01-01T00:00:00Z", 3))[0] == everything
        reader = Reader(await world.http.get(a.url("/topics"), params={"name": TOPIC, "since": "2999-01-01"}))
        await reader.block()
        await post(world, a, "four")
        assert (await reader.next())[1]["text"] == "four"
        reader.answer.close()


async def test_curl_is_enough(world: World) -> None:
    curl = which("curl")
    if curl is None:
        pytest.skip("curl is not installed")
    async with world.domain("n0", "a") as a:
        address = a.url("/topics?name=http://news.example/curl")
        reading = await asyncio.create_subprocess_exec(curl, "-sN", address, stdout=asyncio.subprocess.PIPE)
        assert reading.stdout is not None
        assert await reading.stdout.readline() == b": following http://news.example/curl\n"
        writing = await asyncio.create_subprocess_exec(
            curl, "-s", "-H", "Content-Type: text/plain", "-d", "from curl", address, stdout=asyncio.subprocess.PIPE
        )
        answer, _ = await writing.communicate()
        origin = json.loads(answer)["origin"]
        async with asyncio.timeout(20):
            await reading.stdout.readline()
            assert await reading.stdout.readline() == f"id: {origin}\n".encode()
            assert b'"text":"from curl"' in await reading.stdout.readline()
        reading.terminate()
        await reading.communicate()


async def refusal(answer: ClientResponse) -> tuple[int, str]:
    assert answer.content_type == "text/plain"
    text = await answer.text()
    assert text.endswith("\n")
    assert "\n" not in text[:-1]
    return answer.status, text


async def test_refusals_are_short_and_say_what_is_wrong(world: World) -> None:
    config = RestConfig(max_body=10, max_streams_per_client=1, tokens=("let me",), publish_below=("http://mine/",))
    async with world.domain("n0", "a", streams=config) as a:
        topics = a.url("/topics")
        for query in ({}, {"name": "ftp://x/"}, {"name": "http://"}):
            assert (await refusal(await world.http.get(topics, params=query)))[0] == 400
        assert (await refusal(await world.http.get(a.url("/items/::1/xyz"))))[0] == 400
        bad_id = await world.http.get(topics, params={"name": TOPIC}, headers={"Last-Event-ID": "yesterday"})
        assert (await refusal(bad_id))[0] == 400
        mine = {"name": "http://mine/x"}
        token = {"Authorization": "Bearer let me"}
        assert (await refusal(await world.http.post(topics, params=mine, data="x")))[0] == 401
        wrong = {"Authorization": "Bearer let"}
        assert (await refusal(await world.http.post(topics, params=mine, data="x", headers=wrong)))[0] == 403
        long = await world.http.post(topics, params=mine, data="x" * 11, headers=token)
        assert await refusal(long) == (413, "the body is longer than 10 bytes\n")
        elsewhere = await world.http.post(topics, params={"name": TOPIC}, data="x", headers=token)
        assert (await refusal(elsewhere))[0] == 400
        assert (await world.http.post(topics, params=mine, data="x", headers=token)).status == 201
        reader = await follow(world, a)
        assert (await refusal(await world.http.get(topics, params={"name": TOPIC})))[0] == 429
        reader.answer.close()
        assert (await refusal(await world.http.delete(topics)))[0] == 405


async def test_nobody_publishes_where_the_operator_has_said_nothing(world: World) -> None:
    async with world.domain("n0", "a", streams=RestConfig(anyone_may_publish=False)) as a:
        refused = await world.http.post(a.url("/topics"), params={"name": TOPIC}, data="x")
        assert await refusal(refused) == (
            403,
            "nobody may publish here: the operator can set web.publish_tokens_file\n",
        )


async def test_scripts_of_other_sites_need_the_operators_word(world: World) -> None:
    origin = {"Origin": "https://page.example"}
    async with world.domain("n0", "a") as a:
        answer = await world.http.post(a.url("/topics"), params={"name": TOPIC}, data="x", headers=origin)
        assert (await refusal(answer))[0] == 403
        own = {"Origin": a.url("")}
        answer = await world.http.post(a.url("/topics"), params={"name": TOPIC}, data="x", headers=own)
        assert answer.status == 201
    async with world.domain("n0", "a", cors_origins=("https://page.example",)) as a:
        asked = {**origin, "Access-Control-Request-Method": "POST"}
        answer = await world.http.options(a.url("/topics"), headers=asked)
        assert answer.status == 204
        assert answer.headers["Access-Control-Allow-Origin"] == "https://page.example"
        answer = await world.http.get(a.url("/topics"), params={"name": TOPIC}, headers=origin)
        assert answer.headers["Access-Control-Allow-Origin"] == "https://page.example"
        answer.close()


async def test_a_reader_that_takes_nothing_is_cut_off(world: World) -> None:
    config = RestConfig(max_waiting_bytes=400_000, write_timeout=60)
    # A small buffer on the reading side, so that what is not read is soon not taken.
    async with world.domain("n0", "a", streams=config) as a, ClientSession(read_bufsize=1024) as http:
        answer = await http.get(a.url("/topics"), params={"name": TOPIC})
        for number in range(60):
            if a.streams.cut:
                break
            await post(world, a, str(number) * 200_000)
        await until(lambda: a.streams.cut == 1)
        await until(lambda: a.streams.open_streams == 0)
        answer.close()


async def test_a_socket_that_is_never_read_holds_up_nobody(world: World) -> None:
    """By time, not by size: whoever takes nothing for so long is gone, and others hear everything meanwhile."""
    config = RestConfig(write_timeout=0.5)
    async with world.domain("n0", "a", streams=config) as a:
        with socket.socket() as lazy:
            lazy.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            lazy.setblocking(False)
            loop = asyncio.get_running_loop()
            await loop.sock_connect(lazy, ("127.0.0.1", int(a.web.url.rstrip("/").rpartition(":")[2])))
            await loop.sock_sendall(
                lazy, b"GET /topics?name=http://news.example/a?x=1 HTTP/1.1\r\nHost: localhost\r\n\r\n"
            )
            await until(lambda: a.streams.open_streams == 1)
            eager = await follow(world, a)
            sent = 0
            while not a.streams.cut:
                sent += 1
                await post(world, a, f"{sent} " * 100_000)
                assert (await eager.next())[1]["text"].startswith(f"{sent} ")
            await until(lambda: a.streams.open_streams == 1)
            eager.answer.close()


async def test_a_reader_comes_back_to_a_gateway_that_was_started_again(world: World) -> None:
    async with world.domain("n2", "b") as b:
        async with world.domain("n0", "a") as a:
            reader = await follow(world, a)
            await post(world, b, "one")
            last, event = await reader.next()
            assert event["text"] == "one"
        for text in ("two", "three"):
            await post(world, b, text)
        async with world.domain("n0", "a") as a:
            reader = await follow(world, a, last)
            assert [(await reader.next())[1]["text"] for _ in range(2)] == ["two", "three"]
            reader.answer.close()


def entry(number: int, content_type: str = "text/plain", body: bytes | None = None) -> LogEntry:
    body = b"%d" % number if body is None else body
    draft = Draft(ITEM, "n", Profile.DOCUMENT, content_type, body, published_ms=number)
    return LogEntry(number, OriginId(bytes(16), number), "stream", draft, number)


async def test_a_stream_that_is_full_is_overrun_but_one_large_document_passes() -> None:
    stream = ReaderStream("who", "what", 100)
    stream.offer(entry(0, body=bytes(1000)))
    assert await stream.next(0) is not None
    stream.offer(entry(1))
    stream.offer(entry(2))
    assert stream.overrun
    assert await stream.next(0) is None


def test_a_body_that_is_not_what_its_type_says_is_given_as_bytes() -> None:
    assert b'"base64":"/w=="' in event_of(entry(1, "text/plain", b"\xff"))
    assert b'"base64":"YQ=="' in event_of(entry(1, "text/plain; charset=utf-16", b"a"))
    assert b'"text":"a\\nb"' in event_of(entry(1, "application/atom+xml", b"a\nb"))
