"""A WebSub subscriber and a publisher as somebody else would write them: from the W3C text alone, nothing of ours.

The subscriber finds the hub in the topic's Link headers (section 4), asks (5.1), confirms the intent (5.3), and takes
content only with the Link headers of section 7 and a right signature (7.1).
"""

import asyncio
import hmac
import re
import secrets
from dataclasses import dataclass

from aiohttp import ClientSession, web

_LINK = re.compile(r'<([^>]*)>\s*;\s*rel="?([^",;]+)"?')


def links(header: list[str]) -> dict[str, list[str]]:
    """The targets of Link headers by relation (RFC 8288, as far as WebSub needs it)."""
    found: dict[str, list[str]] = {}
    for line in header:
        for target, relations in _LINK.findall(line):
            for relation in relations.split():
                found.setdefault(relation, []).append(target)
    return found


class Site:
    """Handlers on a free port of an address; use as `async with`."""

    def __init__(self, host: str = "127.0.0.1") -> None:
        self.app = web.Application(client_max_size=4 * 1024 * 1024)
        self._runner = web.AppRunner(self.app, access_log=None)
        self._host = host
        self.name: str | None = None
        """What others call this host; without it, its address."""
        self.port = 0

    async def open(self) -> None:
        await self._runner.setup()
        site = web.TCPSite(self._runner, self._host, 0)
        await site.start()
        self.port = self._runner.addresses[0][1]

    async def close(self) -> None:
        await self._runner.cleanup()

    def url(self, path: str) -> str:
        return f"http://{self.name or self._host}:{self.port}{path}"


class StockPublisher:
    """One document, with Link headers that name its hub and itself, and a ping in PubSubHubbub's words."""

    def __init__(self, body: bytes, content_type: str, host: str = "127.0.0.1") -> None:
        self.body = body
        self.content_type = content_type
        self.hub = ""
        self.site = Site(host)
        self.site.app.router.add_get("/feed", self._serve)

    async def __aenter__(self) -> "StockPublisher":
        await self.site.open()
        self._http = ClientSession()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._http.close()
        await self.site.close()

    @property
    def topic(self) -> str:
        return self.site.url("/feed")

    async def publish(self, body: bytes) -> None:
        self.body = body
        form = {"hub.mode": "publish", "hub.url": self.topic, "hub.topic": self.topic}
        async with self._http.post(self.hub, data=form) as answer:
            assert 200 <= answer.status < 300, await answer.text()

    async def _serve(self, request: web.Request) -> web.Response:
        answer = web.Response(body=self.body, headers={"Content-Type": self.content_type})
        answer.headers.add("Link", f'<{self.hub}>; rel="hub"')
        answer.headers.add("Link", f'<{self.topic}>; rel="self"')
        return answer


@dataclass(frozen=True, slots=True)
class Taken:
    content_type: str
    body: bytes
    hub: str
    topic: str


class StockSubscriber:
    """`subscribe` returns when the hub has verified the intent, or has said that it denies the subscription."""

    def __init__(self, host: str = "127.0.0.1") -> None:
        self.taken: list[Taken] = []
        self.ignored: list[str] = []
        """Why content was acknowledged and not believed."""
        self.denied: str | None = None
        self.lease = 0
        self._secret = secrets.token_hex(16)
        self._pending: tuple[str, str] | None = None
        self._answered = asyncio.Event()
        self._news = asyncio.Event()
        self._path = f"/{secrets.token_hex(8)}"
        self.site = Site(host)
        self.site.app.router.add_get(self._path, self._confirm)
        self.site.app.router.add_post(self._path, self._take)

    async def __aenter__(self) -> "StockSubscriber":
        await self.site.open()
        self._http = ClientSession()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._http.close()
        await self.site.close()

    @property
    def callback(self) -> str:
        return self.site.url(self._path)

    async def discover(self, url: str) -> tuple[str, str]:
        """Hub and canonical topic that a document names in its headers."""
        async with self._http.get(url) as answer:
            named = links(answer.headers.getall("Link", []))
        return named["hub"][0], named["self"][0]

    async def ask(self, hub: str, topic: str, mode: str = "subscribe", lease: int | None = None) -> None:
        self._pending = (mode, topic)
        self._answered.clear()
        self.denied = None
        form = {"hub.mode": mode, "hub.topic": topic, "hub.callback": self.callback, "hub.secret": self._secret}
        if lease is not None:
            form["hub.lease_seconds"] = str(lease)
        async with self._http.post(hub, data=form) as answer:
            assert answer.status == 202, f"{answer.status}: {await answer.text()}"
        async with asyncio.timeout(30):
            await self._answered.wait()

    async def arrived(self, number: int) -> None:
        """Wait until so much has been taken."""
        while len(self.taken) < number:
            self._news.clear()
            await self._news.wait()

    async def _confirm(self, request: web.Request) -> web.Response:
        mode, topic = request.query.get("hub.mode"), request.query.get("hub.topic")
        if mode == "denied" and self._pending is not None and topic == self._pending[1]:
            self.denied = request.query.get("hub.reason", "")
            self._answered.set()
            return web.Response()
        if (mode, topic) != self._pending:
            return web.Response(status=404)
        if mode == "subscribe":
            self.lease = int(request.query["hub.lease_seconds"])
        self._answered.set()
        return web.Response(text=request.query["hub.challenge"])

    async def _take(self, request: web.Request) -> web.Response:
        body = await request.read()
        method, _, given = request.headers.get("X-Hub-Signature", "").partition("=")
        named = links(request.headers.getall("Link", []))
        if method not in ("sha1", "sha256", "sha384", "sha512"):
            self.ignored.append(f"no signature that section 7.1 knows: {method!r}")
        elif not hmac.compare_digest(hmac.new(self._secret.encode(), body, method).hexdigest(), given):
            self.ignored.append("a wrong signature")
        elif "hub" not in named or "self" not in named:
            self.ignored.append(f"without the links of section 7: {named}")
        else:
            self.taken.append(Taken(request.headers["Content-Type"], body, named["hub"][0], named["self"][0]))
            self._news.set()
        return web.Response(status=204)
