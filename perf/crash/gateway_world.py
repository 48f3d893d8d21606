"""The surroundings of two gateways: publishers and subscribers in both domains, and what must be true of them.

A topic's document is a number that only grows. A ping that was acknowledged is a promise: every subscriber, in either
domain, gets a document at least as new. Numbers may be passed over (a newer state replaces one that was never fetched),
but never come late, and never come as something else than the publisher wrote.
"""

import asyncio
import re
from collections import Counter
from collections.abc import Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from typing import Self
from urllib.parse import parse_qs, urlencode, urlsplit

from perf.crash.loopback import Client, Reply, Request, Server, answer

OK = answer(204)
TYPE = "text/plain; charset=utf-8"
EXAMPLES_KEPT = 20
ACKNOWLEDGED = (202, 204)
_NUMBER = re.compile(rb"^/topic/(\d+) says (\d+)\n")


@dataclass(frozen=True, slots=True)
class GatewaySize:
    """In each of the two domains."""

    topics: int = 4
    callbacks: int = 10
    """For each topic of either domain."""
    document_bytes: int = 900


@dataclass(slots=True)
class GatewayCounts:
    written: int = 0
    acknowledged: int = 0
    unanswered: int = 0
    refused: int = 0
    delivered: int = 0
    duplicates: int = 0
    crossed: int = 0
    """Deliveries in the other domain than the publisher's."""


@dataclass(slots=True)
class Callback:
    """One subscriber of one topic."""

    topic: int
    domain: str
    path: str
    seen: set[int] = field(default_factory=set)
    newest: int = 0


def document(topic: int, number: int, size: int) -> bytes:
    head = f"/topic/{topic} says {number}\n".encode()
    return head + (f"{number} " * size).encode()[: max(0, size - len(head))]


class GatewayWorld:
    """Use as `async with GatewayWorld(...) as world`."""

    def __init__(self, size: GatewaySize, hubs: dict[str, str]) -> None:
        self.size = size
        self.counts = GatewayCounts()
        self.problems: Counter[str] = Counter()
        self.examples: list[str] = []
        self.home: list[str] = [domain for domain in hubs for _ in range(size.topics)]
        """The domain of each topic's publisher."""
        self.numbers = [0] * len(self.home)
        self.promised = [0] * len(self.home)
        self.callbacks: dict[str, Callback] = {}
        self.duplicates_since_kill = 0
        self.most_duplicates = 0
        self.changed = asyncio.Event()
        self.hubs = hubs
        self._stack = AsyncExitStack()
        for topic in range(len(self.home)):
            for domain in hubs:
                for number in range(size.callbacks):
                    path = f"/callback/{domain}/{topic}/{number}"
                    self.callbacks[path] = Callback(topic, domain, path)

    async def __aenter__(self) -> Self:
        self._publisher = await self._stack.enter_async_context(Server(self._serve))
        self._receiver = await self._stack.enter_async_context(Server(self._take))
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._stack.aclose()

    def topic(self, number: int) -> str:
        return self._publisher.url(f"/topic/{number}")

    def callback_url(self, callback: Callback) -> str:
        return self._receiver.url(callback.path)

    def problem(self, kind: str, example: str) -> None:
        self.problems[kind] += 1
        if len(self.examples) < EXAMPLES_KEPT:
            self.examples.append(f"{kind}: {example}")

    # What the driver does.

    async def subscribe(self, callback: Callback) -> None:
        form = {
            "hub.mode": "subscribe",
            "hub.topic": self.topic(callback.topic),
            "hub.callback": self.callback_url(callback),
        }
        client = Client(self.hubs[callback.domain])
        try:
            status, body = await client.post_form("/", urlencode(form))
        finally:
            client.close()
        if status not in ACKNOWLEDGED:
            self.problem("subscription refused", f"{callback.path}: {status} {body[:100]!r}")

    async def publish(self, client: Client, topic: int) -> bool:
        """A new number, and a ping; whether the hub gave its word. Raises `ConnectionError` when it is not there."""
        self.numbers[topic] += 1
        number = self.numbers[topic]
        self.counts.written += 1
        form = urlencode({"hub.mode": "publish", "hub.url": self.topic(topic)})
        try:
            status, _ = await client.post_form("/", form)
        except ConnectionError:
            self.counts.unanswered += 1
            raise
        if status not in ACKNOWLEDGED:
            self.counts.refused += 1
            return False
        self.counts.acknowledged += 1
        self.promised[topic] = max(self.promised[topic], number)
        return True

    def killed(self) -> None:
        self.duplicates_since_kill = 0

    def behind(self, promised: Sequence[int] | None = None) -> list[Callback]:
        """Who has not got what was promised."""
        promised = self.promised if promised is None else promised
        return [callback for callback in self.callbacks.values() if callback.newest < promised[callback.topic]]

    # What the gateways ask.

    def _serve(self, request: Request, reply: Reply) -> None:
        topic = int(request.target.rpartition("/")[2])
        number = self.numbers[topic]
        tag = f'"{number}"'
        if request.header("If-None-Match") == tag:
            reply(answer(304, headers={"ETag": tag}))
            return
        body = document(topic, number, self.size.document_bytes)
        reply(answer(200, body, {"ETag": tag, "Content-Type": TYPE}))

    def _take(self, request: Request, reply: Reply) -> None:
        parts = urlsplit(request.target)
        callback = self.callbacks[parts.path]
        if request.method == "GET":
            reply(answer(200, parse_qs(parts.query)["hub.challenge"][0].encode()))
            return
        reply(OK)
        found = _NUMBER.match(request.body)
        if found is None or int(found[1]) != callback.topic:
            self.problem("wrong document", f"{callback.path} got {request.body[:60]!r}")
            return
        number = int(found[2])
        if request.body != document(callback.topic, number, self.size.document_bytes):
            self.problem("changed document", f"{callback.path} got {request.body[:60]!r}")
        if request.header("Content-Type") != TYPE:
            self.problem("changed content type", f"{callback.path} got {request.header('Content-Type')!r}")
        self._count(callback, number)

    def _count(self, callback: Callback, number: int) -> None:
        self.counts.delivered += 1
        self.counts.crossed += callback.domain != self.home[callback.topic]
        if number in callback.seen:
            self.counts.duplicates += 1
            self.duplicates_since_kill += 1
            self.most_duplicates = max(self.most_duplicates, self.duplicates_since_kill)
            return
        if number < callback.newest:
            self.problem("late document", f"{callback.path} got {number} after {callback.newest}")
        callback.seen.add(number)
        callback.newest = max(callback.newest, number)
        self.changed.set()
