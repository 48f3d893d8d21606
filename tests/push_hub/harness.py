"""Real subscribers on real sockets for the tests of the hub's HTTP surface."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field

from aiohttp import web
from aiohttp.test_utils import TestServer
from multidict import CIMultiDict, CIMultiDictProxy

PATIENCE = 10.0


async def until(holds: Callable[[], object]) -> None:
    """Let the event loop run until something is so."""
    async with asyncio.timeout(PATIENCE):
        while not holds():  # noqa: ASYNC110 - what is waited for is a state of the hub, which has no event for tests
            await asyncio.sleep(0)


@dataclass(frozen=True, slots=True)
class Check:
    """One GET at the callback."""

    path_qs: str
    query: dict[str, str]


@dataclass(frozen=True, slots=True)
class Received:
    """One POST at the callback."""

    path_qs: str
    headers: CIMultiDictProxy[str]
    body: bytes


Reply = Callable[[Check], web.Response]


def confirm(check: Check) -> web.Response:
    return web.Response(text=check.query.get("hub.challenge", ""))


@dataclass
class Subscriber:
    """A callback that confirms, or answers whatever a test tells it to."""

    reply: Reply = confirm
    status: int = 200
    answer_headers: dict[str, str] = field(default_factory=dict)
    checks: "asyncio.Queue[Check]" = field(default_factory=asyncio.Queue)
    received: "asyncio.Queue[Received]" = field(default_factory=asyncio.Queue)
    server: TestServer | None = None

    async def start(self) -> "Subscriber":
        app = web.Application()
        app.router.add_get("/{tail:.*}", self._check)
        app.router.add_post("/{tail:.*}", self._receive)
        self.server = TestServer(app, host="127.0.0.1")
        await self.server.start_server()
        return self

    async def close(self) -> None:
        if self.server is not None:
            await self.server.close()

    def url(self, path: str = "/cb") -> str:
        assert self.server is not None
        return f"http://127.0.0.1:{self.server.port}{path}"

    async def next_check(self) -> Check:
        return await asyncio.wait_for(self.checks.get(), PATIENCE)

    async def next_received(self) -> Received:
        return await asyncio.wait_for(self.received.get(), PATIENCE)

    async def _check(self, request: web.Request) -> web.Response:
        check = Check(request.raw_path, dict(request.query))
        response = self.reply(check)
        self.checks.put_nowait(check)
        return response

    async def _receive(self, request: web.Request) -> web.Response:
        body = await request.read()
        self.received.put_nowait(Received(request.raw_path, CIMultiDictProxy(CIMultiDict(request.headers)), body))
        return web.Response(status=self.status, headers=self.answer_headers, text="thanks, ignored")


ATOM = """<?xml version="1.0" encoding="utf-8"?>
<feed xmlns="http://www.w3.org/2005/Atom"><id>urn:feed</id><title>Feed {title}</title>
<updated>2026-01-01T00:00:00Z</updated>{entries}</feed>
"""
ENTRY = (
    "<entry><id>urn:entry:{n}</id><title>Entry {n}</title><updated>2026-01-01T00:00:00Z</updated>"
    "<content>text {n}</content></entry>"
)


def atom(*numbers: int, title: str = "one") -> bytes:
    return ATOM.format(title=title, entries="".join(ENTRY.format(n=n) for n in numbers)).encode()


@dataclass
class Publisher:
    """A topic that serves what a test puts into it."""

    body: bytes = b""
    content_type: str = "application/atom+xml; charset=UTF-8"
    extra_headers: dict[str, str] = field(default_factory=dict)
    fetches: "asyncio.Queue[CIMultiDictProxy[str]]" = field(default_factory=asyncio.Queue)
    server: TestServer | None = None

    async def start(self) -> "Publisher":
        app = web.Application()
        app.router.add_get("/redirect", self._redirect)
        app.router.add_get("/{tail:.*}", self._serve)
        self.server = TestServer(app, host="127.0.0.1")
        await self.server.start_server()
        return self

    async def close(self) -> None:
        if self.server is not None:
            await self.server.close()

    def url(self, path: str = "/feed") -> str:
        assert self.server is not None
        return f"http://127.0.0.1:{self.server.port}{path}"

    async def next_fetch(self) -> CIMultiDictProxy[str]:
        return await asyncio.wait_for(self.fetches.get(), PATIENCE)

    async def _redirect(self, _request: web.Request) -> web.Response:
        return web.Response(status=302, headers={"Location": self.url("/feed")})

    async def _serve(self, request: web.Request) -> web.Response:
        self.fetches.put_nowait(CIMultiDictProxy(CIMultiDict(request.headers)))
        tag = f'"{hash(self.body)}"'
        if request.headers.get("If-None-Match") == tag:
            return web.Response(status=304, headers={"ETag": tag})
        return web.Response(
            body=self.body, headers={"Content-Type": self.content_type, "ETag": tag, **self.extra_headers}
        )
