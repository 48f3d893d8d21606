"""A WebSub hub as somebody else would write it: from the W3C text alone, nothing of ours, everything in memory.

It takes subscriptions (section 5), checks intents (5.3), fetches a topic when it is pinged and sends it on, signed
(section 7). It can also be a subscriber of another hub for a topic, and hand on what that one sends: hubs of the older
days did so for their domain.
"""

import asyncio
import hmac
import secrets
import time
from collections.abc import Coroutine
from contextlib import AsyncExitStack
from dataclasses import dataclass
from urllib.parse import urlencode

from aiohttp import ClientError, ClientSession, web

from tests.gateway.crossing.stock_subscriber import Site, StockSubscriber, links

LEASE = 86_400


@dataclass(frozen=True, slots=True)
class _Subscription:
    secret: str
    until: float


class StockHub:
    def __init__(self, host: str = "127.0.0.1", hosts: dict[str, str] | None = None) -> None:
        self.delivered = 0
        self.failed: list[str] = []
        self.upstreams: dict[str, StockSubscriber] = {}
        self._hosts = hosts or {}
        """Names that this hub reaches at other addresses: its /etc/hosts."""
        self._subscriptions: dict[tuple[str, str], _Subscription] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._stack = AsyncExitStack()
        self._host = host
        self.site = Site(host)
        self.site.app.router.add_post("/", self._request)

    async def __aenter__(self) -> "StockHub":
        await self.site.open()
        self._http = await self._stack.enter_async_context(ClientSession())
        return self

    async def __aexit__(self, *_: object) -> None:
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._stack.aclose()
        await self.site.close()

    @property
    def url(self) -> str:
        return self.site.url("/")

    def subscribers(self, topic: str) -> int:
        return sum(1 for known, _ in self._subscriptions if known == topic)

    async def follow(self, upstream: str, topic: str) -> StockSubscriber:
        """Be a subscriber of another hub, and send on what comes."""
        subscriber = await self._stack.enter_async_context(StockSubscriber(self._host))
        self.upstreams[topic] = subscriber
        await subscriber.ask(upstream, topic)
        self._run(self._hand_on(subscriber, topic))
        return subscriber

    async def _hand_on(self, subscriber: StockSubscriber, topic: str) -> None:
        done = 0
        while True:
            await subscriber.arrived(done + 1)
            while done < len(subscriber.taken):
                taken = subscriber.taken[done]
                done += 1
                await self._distribute(topic, taken.content_type, taken.body)

    async def _request(self, request: web.Request) -> web.Response:
        form = await request.post()
        fields = {name: str(value) for name, value in form.items()}
        mode = fields.get("hub.mode")
        if mode == "publish":
            self._run(self._fetch(fields.get("hub.topic") or fields["hub.url"]))
        elif mode in ("subscribe", "unsubscribe"):
            self._run(self._verify(mode, fields))
        else:
            return web.Response(status=400, text=f"hub.mode {mode!r} is unknown")
        return web.Response(status=202)

    async def _verify(self, mode: str, fields: dict[str, str]) -> None:
        topic, callback = fields["hub.topic"], fields["hub.callback"]
        challenge = secrets.token_hex(16)
        query = {"hub.mode": mode, "hub.topic": topic, "hub.challenge": challenge}
        if mode == "subscribe":
            query["hub.lease_seconds"] = str(LEASE)
        joined = "&" if "?" in callback else "?"
        async with self._http.get(f"{callback}{joined}{urlencode(query)}") as answer:
            if answer.status // 100 != 2 or await answer.text() != challenge:
                self.failed.append(f"{callback} did not confirm")
                return
        if mode == "subscribe":
            self._subscriptions[topic, callback] = _Subscription(fields.get("hub.secret", ""), time.time() + LEASE)
        else:
            self._subscriptions.pop((topic, callback), None)

    async def _fetch(self, topic: str) -> None:
        where = topic
        for name, address in self._hosts.items():
            where = where.replace(f"//{name}:", f"//{address}:")
        async with self._http.get(where) as answer:
            body = await answer.read()
            named = links(answer.headers.getall("Link", []))
            await self._distribute(named.get("self", [topic])[0], answer.headers["Content-Type"], body)

    async def _distribute(self, topic: str, content_type: str, body: bytes) -> None:
        for (known, callback), subscription in list(self._subscriptions.items()):
            if known != topic or subscription.until < time.time():
                continue
            headers = {"Content-Type": content_type, "Link": f'<{self.url}>; rel="hub", <{topic}>; rel="self"'}
            if subscription.secret:
                signature = hmac.new(subscription.secret.encode(), body, "sha256").hexdigest()
                headers["X-Hub-Signature"] = f"sha256={signature}"
            try:
                async with self._http.post(callback, data=body, headers=headers) as answer:
                    if answer.status // 100 == 2:
                        self.delivered += 1
                    else:
                        self.failed.append(f"{callback} answered {answer.status}")
            except ClientError as error:
                self.failed.append(f"{callback}: {error}")

    def _run(self, work: Coroutine[None, None, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self.failed.append(repr(error))
