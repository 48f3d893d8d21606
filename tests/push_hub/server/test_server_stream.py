"""Server-Sent Events: readers without a public address see the same publications, and come back where they were."""

import asyncio
from pathlib import Path

import aiohttp
import pytest

from push_hub.model import Content
from push_hub.sse import HubStreamConfig
from tests.push_hub.harness import PATIENCE, Publisher, Subscriber, until
from tests.push_hub.world import World, whole_hub


async def say(world: World, text: bytes, content_type: str = "text/plain") -> None:
    await world.hub.deliver(world.topic, world.topic, Content(content_type, text))


@pytest.mark.parametrize("where", ["header", "query"])
async def test_a_stream_resumes_where_it_was(where: str, world: World) -> None:
    for text in (b"one", b"two"):
        await say(world, text)
    params = {"topic": world.topic} | ({"last_event_id": "1"} if where == "query" else {})
    headers = {"Last-Event-ID": "1"} if where == "header" else {}
    async with world.http.get(f"{world.hub.url}stream", params=params, headers=headers) as stream:
        assert stream.content_type == "text/event-stream"
        await stream.content.readuntil(b"\n\n")
        assert b'"text": "two"' in await stream.content.readuntil(b"\n\n")
        await say(world, b"\xff", "image/png")
        event = await stream.content.readuntil(b"\n\n")
        assert event.startswith(b"id: 3\n")
        assert b'"base64": "/w=="' in event


async def test_a_new_reader_gets_what_comes_next_of_its_topic_only(world: World) -> None:
    await say(world, b"before")
    async with world.http.get(f"{world.hub.url}stream", params={"topic": world.topic}) as stream:
        assert await stream.content.readuntil(b"\n\n") == f": following {world.topic}\n\n".encode()
        await world.hub.deliver("http://other.example/", "http://other.example/", Content("text/plain", b"other"))
        await say(world, b"line\nid: 99\n\ndata: forged")
        event = await stream.content.readuntil(b"\n\n")
        assert event.count(b"\n") == 4  # id, event, data, end: a body cannot break out of its line
        assert b"forged" in event


@pytest.mark.parametrize(
    ("query", "headers"),
    [
        ({}, {}),
        ({"topic": "gopher://x/"}, {}),
        ({"topic": "http://t.example/"}, {"Last-Event-ID": "x"}),
        ({"topic": "http://t.example/"}, {"Last-Event-ID": "9" * 30}),
        ({"topic": "http://t.example/", "last_event_id": "-1"}, {}),
    ],
)
async def test_wrong_questions_are_400(world: World, query: dict[str, str], headers: dict[str, str]) -> None:
    async with world.http.get(f"{world.hub.url}stream", params=query, headers=headers) as answer:
        assert (answer.status, answer.content_type) == (400, "text/plain")


async def test_head_opens_no_stream(world: World) -> None:
    async with world.http.head(f"{world.hub.url}stream", params={"topic": world.topic}) as answer:
        assert (answer.status, answer.content_type) == (200, "text/event-stream")


async def test_streams_are_bounded_and_places_come_free(
    tmp_path: Path, http: aiohttp.ClientSession, publisher: Publisher, subscriber: Subscriber
) -> None:
    config = HubStreamConfig(max_streams=3, max_streams_per_client=2, heartbeat=0.01)
    async with whole_hub(tmp_path, streams=config) as hub:
        url, params = f"{hub.url}stream", {"topic": publisher.url()}
        first = await http.get(url, params=params)
        second = await http.get(url, params=params)
        async with http.get(url, params=params) as refused:
            assert (refused.status, refused.headers["Retry-After"]) == (429, "30")
        first.close()
        assert hub._parts is not None
        streams = hub._parts.streams
        await until(lambda: streams._open == 1)  # its next heartbeat finds it gone
        streams._open = 3
        async with http.get(url, params=params) as refused:
            assert (refused.status, refused.headers["Retry-After"]) == (503, "30")
        streams._open = 1
        async with http.get(url, params=params) as stream:
            assert stream.status == 200
        second.close()


async def test_a_reader_that_takes_nothing_is_cut_off(
    tmp_path: Path, http: aiohttp.ClientSession, publisher: Publisher, subscriber: Subscriber
) -> None:
    async with whole_hub(tmp_path, streams=HubStreamConfig(write_timeout=0.1)) as hub:
        host, _, port = hub.url.removeprefix("http://").rstrip("/").rpartition(":")
        reader, writer = await asyncio.open_connection(host, int(port), limit=1024)
        writer.write(f"GET /stream?topic={publisher.url()} HTTP/1.1\r\nHost: h\r\n\r\n".encode())
        assert await reader.readline() == b"HTTP/1.1 200 OK\r\n"
        assert hub._parts is not None
        streams = hub._parts.streams
        await until(lambda: streams._open == 1)
        topic = publisher.url()
        for _ in range(3):
            await hub.deliver(topic, topic, Content("application/octet-stream", b"\xff" * 3_000_000))
        await until(lambda: streams._open == 0)
        writer.close()


async def test_a_stop_ends_the_streams(
    tmp_path: Path, http: aiohttp.ClientSession, publisher: Publisher, subscriber: Subscriber
) -> None:
    async with whole_hub(tmp_path) as hub:
        stream = await http.get(f"{hub.url}stream", params={"topic": publisher.url()})
    assert (await asyncio.wait_for(stream.content.read(), PATIENCE)).startswith(b": following")
    assert stream.content.at_eof()
    stream.close()
