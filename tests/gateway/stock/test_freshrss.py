"""FreshRSS at the hub: its requests and answers, byte for byte.

It cannot be installed from the registries, so this is its conversation as its code (and PHP's libcurl) writes it: what
it asks with is `hub.verify=sync`, the words of PubSubHubbub 0.3, and it knows its feed by the `k` in its callback.
"""

import asyncio
import re
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import parse_qs, quote_plus

import pytest

from push_hub.feed_proxy.proxy import FeedProxyConfig
from push_hub.hub import Hub
from tests.push_hub.harness import Publisher, atom
from tests.push_hub.world import whole_hub
from tests.waiting import until

KEY = "8f14e45fceea167a5a36dedd4bea2543a1f3d1c0"
HEAD = (
    "User-Agent: FreshRSS/1.24.3 (Linux; https://freshrss.org)\r\nAccept: */*\r\n"
    "Accept-Encoding: deflate, gzip, br, zstd\r\nContent-Length: {length}\r\n"
    "Content-Type: application/x-www-form-urlencoded\r\n\r\n"
)


@dataclass
class FreshRss:
    """`p/api/pshb.php`: echoes the challenge, takes documents, and says how many users have got one."""

    heard: "asyncio.Queue[bytes]" = field(default_factory=asyncio.Queue)
    push_answer: bytes = (
        b"HTTP/1.1 200 OK\r\nContent-Type: text/plain; charset=UTF-8\r\nContent-Length: 8\r\n\r\nDone: 1\n"
    )
    port: int = 0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            try:
                head = await reader.readuntil(b"\r\n\r\n")
            except asyncio.IncompleteReadError:
                break
            length = re.search(rb"(?i)\r\ncontent-length: (\d+)", head)
            body = await reader.readexactly(int(length[1])) if length else b""
            self.heard.put_nowait(head + body)
            asked = parse_qs(head.split(b" ")[1].partition(b"?")[2].decode())
            if "hub.challenge" in asked:
                challenge = asked["hub.challenge"][0].encode()
                writer.write(
                    b"HTTP/1.1 200 OK\r\nContent-Type: text/plain; charset=UTF-8\r\n"
                    b"Content-Length: %d\r\n\r\n%b" % (len(challenge), challenge)
                )
            else:
                writer.write(self.push_answer)
            await writer.drain()
        writer.close()

    @property
    def callback(self) -> str:
        return f"http://127.0.0.1:{self.port}/api/pshb.php?k={KEY}"

    async def next(self) -> bytes:
        return await asyncio.wait_for(self.heard.get(), 10)


@pytest.fixture
async def freshrss() -> AsyncIterator[FreshRss]:
    found = FreshRss()
    server = await asyncio.start_server(found.serve, "127.0.0.1", 0)
    found.port = server.sockets[0].getsockname()[1]
    async with server:
        yield found


@pytest.fixture
async def publisher() -> AsyncIterator[Publisher]:
    found = await Publisher().start()
    yield found
    await found.close()


async def asked(hub: Hub, mode: str, topic: str, callback: str) -> bytes:
    """What FreshRSS sends when somebody adds a feed or removes it; the answer without its date."""
    fields = (("hub.verify", "sync"), ("hub.mode", mode), ("hub.topic", topic), ("hub.callback", callback))
    body = "&".join(f"{name}={quote_plus(value)}" for name, value in fields)
    host = hub.local_url.removeprefix("http://").rstrip("/")
    reader, writer = await asyncio.open_connection(*host.split(":"))
    writer.write(f"POST / HTTP/1.1\r\nHost: {host}\r\n{HEAD.format(length=len(body))}{body}".encode())
    head = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), 10)
    writer.close()
    return re.sub(rb"(Date|Server): [^\r]*\r\n", b"", head)


async def test_a_feed_is_added_pushed_and_removed(tmp_path: Path, freshrss: FreshRss, publisher: Publisher) -> None:
    publisher.body = atom(1)
    async with whole_hub(tmp_path, feeds=FeedProxyConfig(enabled=True)) as hub:
        topic = publisher.url()
        answer = await asked(hub, "subscribe", topic, freshrss.callback)
        assert answer == (
            b"HTTP/1.1 204 No Content\r\nAccess-Control-Allow-Origin: *\r\n"
            b"Access-Control-Expose-Headers: Allow, Link, Retry-After\r\nX-Content-Type-Options: nosniff\r\n\r\n"
        )
        # It finds its feed by `k`, and its lease in `hub.lease_seconds`.
        check = await freshrss.next()
        line = check.partition(b"\r\n")[0].decode()
        written = re.escape(quote_plus(topic))
        assert re.fullmatch(
            rf"GET /api/pshb\.php\?k={KEY}&hub\.mode=subscribe&hub\.topic={written}"
            r"&hub\.challenge=[A-Za-z0-9_-]{20,}&hub\.lease_seconds=864000 HTTP/1\.1",
            line,
        ), line
        await hub.ping([topic])
        first = await freshrss.next()
        assert first.endswith(publisher.body), "what there is, as it is"
        publisher.body = atom(2, 1)
        await hub.ping([topic])
        push = await freshrss.next()
        head, _, body = push.partition(b"\r\n\r\n")
        assert head.startswith(f"POST /api/pshb.php?k={KEY} HTTP/1.1\r\n".encode())
        headers = {
            name.lower(): value for name, _, value in (line.partition(b": ") for line in head.split(b"\r\n")[1:])
        }
        assert headers[b"content-type"] == b"application/atom+xml; charset=UTF-8"
        assert headers[b"link"] == f'<{hub.url}>; rel="hub", <{topic}>; rel="self"'.encode()
        assert b"<id>urn:entry:2</id>" in body and b"<id>urn:entry:1</id>" not in body
        answer = await asked(hub, "unsubscribe", topic, freshrss.callback)
        assert answer.startswith(b"HTTP/1.1 204 No Content\r\n")
        assert b"hub.mode=unsubscribe" in (await freshrss.next()).partition(b"\r\n")[0]
        assert hub.subscriptions.count(topic) == 0


async def test_when_nobody_reads_a_feed_any_more_it_says_so_and_is_left_alone(
    tmp_path: Path, freshrss: FreshRss, publisher: Publisher
) -> None:
    freshrss.push_answer = (
        b"HTTP/1.1 410 Gone\r\nContent-Type: text/plain; charset=UTF-8\r\nContent-Length: 41\r\n\r\n"
        b"Nobody is subscribed to this feed anymore"
    )
    publisher.body = atom(1)
    async with whole_hub(tmp_path) as hub:
        topic = publisher.url()
        assert (await asked(hub, "subscribe", topic, freshrss.callback)).startswith(b"HTTP/1.1 204 ")
        await freshrss.next()
        await hub.ping([topic])
        assert (await freshrss.next()).startswith(b"POST ")
        await until(lambda: not hub.subscriptions.count(topic))


async def test_a_callback_that_is_not_there_is_refused_in_the_answer(
    tmp_path: Path, freshrss: FreshRss, publisher: Publisher
) -> None:
    """FreshRSS writes the answer into its log and does not try again soon."""
    async with whole_hub(tmp_path) as hub:
        answer = await asked(hub, "subscribe", publisher.url(), "http://127.0.0.1:1/api/pshb.php?k=00")
        assert answer.startswith(b"HTTP/1.1 409 Conflict\r\n")
