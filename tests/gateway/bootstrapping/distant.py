"""A distant domain with a stock hub, and a stock subscriber: written from the WebSub text, nothing of ours imported.

Also programs of their own, for tests with several processes: `python -m tests.gateway.bootstrapping.distant
domain|reader` says where it is, takes one JSON command a line, and says what happens, one JSON object a line.
"""

import asyncio
import base64
import hashlib
import hmac
import json
import secrets
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Self
from urllib.parse import urlencode

from aiohttp import ClientError, ClientSession, web

ATOM = "application/atom+xml"
HOST = "news.feedspsirp.com"
"""Whose zone is feedspsirp.com. Gateways are told in their configuration that it is this machine."""


def feed(*titles: str) -> bytes:
    entries = "".join(f"<entry><id>urn:{title}</id><title>{title}</title></entry>" for title in titles)
    return f'<feed xmlns="http://www.w3.org/2005/Atom"><id>urn:feed</id>{entries}</feed>'.encode()


class _Server:
    def __init__(self) -> None:
        self.app = web.Application()
        self._runner = web.AppRunner(self.app, access_log=None)
        self.port = 0

    async def __aenter__(self) -> Self:
        self.http = ClientSession()
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", 0).start()
        self.port = int(self._runner.addresses[0][1])
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._runner.cleanup()
        await self.http.close()


@dataclass
class Subscribed:
    callback: str
    secret: str | None
    lease: int
    renewals: int = 0


@dataclass
class Rules:
    """How the hub behaves."""

    lease: int | None = None
    """What it grants, whatever is asked for."""
    deny: str | None = None
    """Its reason for denying everything."""
    names_hub: bool = True
    """Whether the topic's page names the hub."""
    status: int = 202
    """What it answers to requests."""


class DistantDomain(_Server):
    """The topic's web server and its own hub, which knows nothing of gateways."""

    def __init__(self) -> None:
        super().__init__()
        self.body = feed("first")
        self.rules = Rules()
        self.subscribed: dict[tuple[str, str], Subscribed] = {}
        """By topic and callback."""
        self.asked: list[dict[str, str]] = []
        self.unsubscribed = 0
        self._tasks: set[asyncio.Task[None]] = set()
        self.app.router.add_get("/{name}", self._page)
        self.app.router.add_post("/hub", self._request)

    @property
    def topic(self) -> str:
        return f"http://{HOST}:{self.port}/feed"

    @property
    def hub(self) -> str:
        return f"http://127.0.0.1:{self.port}/hub"

    async def _page(self, request: web.Request) -> web.Response:
        link = f'<http://{HOST}:{self.port}{request.path}>; rel="self"'
        if self.rules.names_hub:
            link += f', <{self.hub}>; rel="hub"'
        return web.Response(body=self.body, content_type=ATOM, headers={"Link": link})

    async def _request(self, request: web.Request) -> web.Response:
        form = {name: str(value) for name, value in (await request.post()).items()}
        self.asked.append(form)
        if self.rules.status == 202:
            task = asyncio.create_task(self._settle(form))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        return web.Response(status=self.rules.status)

    async def _settle(self, form: dict[str, str]) -> None:
        topic, callback, mode = form["hub.topic"], form["hub.callback"], form["hub.mode"]
        if self.rules.deny is not None and mode == "subscribe":
            await self.deny(topic, callback, self.rules.deny)
            return
        challenge = secrets.token_urlsafe(12)
        lease = self.rules.lease or int(form.get("hub.lease_seconds", "3600"))
        query = {"hub.mode": mode, "hub.topic": topic, "hub.challenge": challenge, "hub.lease_seconds": str(lease)}
        async with self.http.get(f"{callback}?{urlencode(query)}") as answer:
            if answer.status != 200 or await answer.text() != challenge:
                return
        known = self.subscribed.get((topic, callback))
        if mode == "unsubscribe":
            self.unsubscribed += self.subscribed.pop((topic, callback), None) is not None
        elif known is not None:
            known.renewals += 1
        else:
            self.subscribed[topic, callback] = Subscribed(callback, form.get("hub.secret"), lease)

    async def deny(self, topic: str, callback: str, reason: str) -> int:
        self.subscribed.pop((topic, callback), None)
        query = urlencode({"hub.mode": "denied", "hub.topic": topic, "hub.reason": reason})
        async with self.http.get(f"{callback}?{query}") as answer:
            return answer.status

    async def push(self, body: bytes, secret: str | None = None, topic: str | None = None) -> list[int]:
        """Content distribution; with `secret`, signed by somebody who knows neither it nor how to change the page.

        What each callback answered, 0 where nobody was.
        """
        if secret is None:
            self.body = body
        topic = topic or self.topic
        statuses = []
        for (name, callback), one in list(self.subscribed.items()):
            if name != topic:
                continue
            headers = {"Content-Type": ATOM, "Link": f'<{topic}>; rel="self", <{self.hub}>; rel="hub"'}
            used = secret or one.secret
            if used is not None:
                digest = hmac.new(used.encode(), body, hashlib.sha256).hexdigest()
                headers["X-Hub-Signature"] = f"sha256={digest}"
            try:
                async with self.http.post(callback, data=body, headers=headers) as answer:
                    statuses.append(answer.status)
                    if answer.status == 410:
                        self.subscribed.pop((name, callback), None)
            except ClientError:
                statuses.append(0)
        return statuses


@dataclass(frozen=True)
class Received:
    content_type: str
    body: bytes
    link: str


@dataclass
class Inbox:
    received: list[Received] = field(default_factory=list)
    verified: list[str] = field(default_factory=list)
    denied: list[str] = field(default_factory=list)
    """Reasons."""


class Reader(_Server):
    """A subscriber that agrees to everything."""

    def __init__(self, told: Callable[[dict[str, object]], None] = lambda _: None) -> None:
        super().__init__()
        self.inbox = Inbox()
        self._told = told
        self.app.router.add_get("/callback", self._check)
        self.app.router.add_post("/callback", self._take)

    @property
    def callback(self) -> str:
        return f"http://127.0.0.1:{self.port}/callback"

    async def ask(self, hub: str, topic: str, mode: str = "subscribe", **others: str) -> int:
        form = {"hub.mode": mode, "hub.topic": topic, "hub.callback": self.callback, **others}
        async with self.http.post(hub, data=form) as answer:
            return answer.status

    async def _check(self, request: web.Request) -> web.Response:
        mode = request.query["hub.mode"]
        if mode == "denied":
            self.inbox.denied.append(request.query.get("hub.reason", ""))
            self._told({"denied": self.inbox.denied[-1]})
            return web.Response()
        self.inbox.verified.append(mode)
        self._told({"verified": mode})
        return web.Response(text=request.query["hub.challenge"])

    async def _take(self, request: web.Request) -> web.Response:
        got = Received(request.headers["Content-Type"], await request.read(), request.headers.get("Link", ""))
        self.inbox.received.append(got)
        self._told({"received": base64.b64encode(got.body).decode(), "type": got.content_type, "link": got.link})
        return web.Response()


# As programs.


def say(what: dict[str, object]) -> None:
    sys.stdout.write(json.dumps(what) + "\n")
    sys.stdout.flush()


async def _commands() -> Any:
    reader = asyncio.StreamReader(limit=1 << 24)
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    while line := await reader.readline():
        yield json.loads(line)


async def domain_program() -> None:
    async with DistantDomain() as domain:
        say({"topic": domain.topic})
        async for command in _commands():
            if command["do"] == "push":
                statuses = await domain.push(base64.b64decode(command["body"]), command.get("secret"))
                say({"pushed": statuses})
            elif command["do"] == "count":
                say(
                    {
                        "subscribed": len(domain.subscribed),
                        "asked": len(domain.asked),
                        "secrets": sorted(one.secret or "" for one in domain.subscribed.values()),
                    }
                )


async def reader_program() -> None:
    async with Reader(say) as reader:
        say({"callback": reader.callback})
        async for command in _commands():
            say({"answer": await reader.ask(command["hub"], command["topic"], command["do"])})


if __name__ == "__main__":
    asyncio.run(domain_program() if sys.argv[1] == "domain" else reader_program())
