"""The surroundings of two gateways: publishers and subscribers in both domains, and what must be true of them.

A topic's document is a number that only grows. A ping that was acknowledged is a promise: every subscriber, in either
domain, gets a document at least as new. Numbers may be passed over (a newer state replaces one that was never fetched),
but never come late, and never come as something else than the publisher wrote.

Topics of the zones that the gateways manage have a hub of their own elsewhere, which is pinged instead. Its word is a
promise too. Some of these topics have one subscriber only, who comes and goes: whatever it is acknowledged must be
answered, with a check or a denial.
"""

import asyncio
import hashlib
import re
from collections import Counter
from collections.abc import Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from typing import Self
from urllib.parse import parse_qs, urlencode, urlsplit

from perf.loopback import LoopbackClient, LoopbackRequest, Reply, Server, answer
from trials.crash.gateway_process import STOCK, ZONES, host_in

OK = answer(204)
TYPE = "text/plain; charset=utf-8"
EXAMPLES_KEPT = 10
"""Of each kind of problem."""
ACKNOWLEDGED = (202, 204)
ANSWER_PATIENCE = 60.0
ASK_AGAIN = 0.3
SUBSCRIBE = "subscribe"
UNSUBSCRIBE = "unsubscribe"
DENIED = "denied"
_NUMBER = re.compile(rb"^/topic/(\d+) says (\d+)\n")


@dataclass(frozen=True, slots=True)
class GatewaySize:
    """In each of the two domains."""

    topics: int = 4
    callbacks: int = 10
    """For each topic of either domain."""
    document_bytes: int = 900
    distant: int = 2
    """Topics of its zone that are to be had by bootstrapping only."""
    coming: int = 1
    """More of these, whose only subscriber comes and goes."""


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
    upstream_acknowledged: int = 0
    """Pings that the stock hub took, among the acknowledged."""
    bootstrapped: int = 0
    """Deliveries of what came from the stock hub through both gateways."""
    passed_over: int = 0
    """States that a gateway took from the stock hub, and a newer one replaced before they were sent on."""
    came: int = 0
    went: int = 0
    denied: int = 0
    """Subscriptions that were denied because somebody who was needed was away."""


@dataclass(slots=True)
class Callback:
    """One subscriber of one topic."""

    topic: int
    domain: str
    path: str
    seen: set[int] = field(default_factory=set)
    newest: int = 0
    coming: bool = False
    """It comes and goes."""
    wanted: bool = True
    confirmed: bool = False
    since: int = 0
    """What the topic said when the subscription was confirmed; only what is newer is owed."""
    answers: asyncio.Queue[str] = field(default_factory=asyncio.Queue)
    """The mode of each check or denial that arrived."""


def document(topic: int, number: int, size: int) -> bytes:
    head = f"/topic/{topic} says {number}\n".encode()
    return head + (f"{number} " * size).encode()[: max(0, size - len(head))]


class GatewayWorld:
    """Use as `async with GatewayWorld(...) as world`."""

    def __init__(self, size: GatewaySize, hubs: dict[str, str], stock_hub: str = "") -> None:
        """Without the address of a stock hub there are no topics of that kind."""
        self.size = size
        self.stock_hub = stock_hub
        self.counts = GatewayCounts()
        self.problems: Counter[str] = Counter()
        self.examples: list[str] = []
        self.home: list[str] = [domain for domain in hubs for _ in range(size.topics)]
        """The domain of each topic's publisher, or the stock hub."""
        self.zone: dict[int, str] = {}
        """Of the topics that are to be had by bootstrapping only."""
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
        if stock_hub:
            self._add_distant()
        self.numbers = [0] * len(self.home)
        self.promised = [0] * len(self.home)

    def _add_distant(self) -> None:
        for manager, zone in ZONES.items():
            for number in range(self.size.distant + self.size.coming):
                topic = len(self.home)
                self.home.append(STOCK)
                self.zone[topic] = zone
                coming = number >= self.size.distant
                for domain in self.hubs:
                    if domain != manager:
                        for one in range(1 if coming else self.size.callbacks):
                            path = f"/callback/{domain}/{topic}/{one}"
                            self.callbacks[path] = Callback(topic, domain, path, coming=coming, wanted=not coming)

    async def __aenter__(self) -> Self:
        self._publisher = await self._stack.enter_async_context(Server(self._serve))
        self._receiver = await self._stack.enter_async_context(Server(self._take))
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._stack.aclose()

    def topic(self, number: int) -> str:
        url = self._publisher.url(f"/topic/{number}")
        zone = self.zone.get(number)
        return url if zone is None else url.replace("//127.0.0.1:", f"//{host_in(zone)}:")

    def publish_at(self, topic: int) -> str:
        """The hub that the topic's publisher pings."""
        return self.stock_hub if topic in self.zone else self.hubs[self.home[topic]]

    def callback_url(self, callback: Callback) -> str:
        return self._receiver.url(callback.path)

    def problem(self, kind: str, example: str) -> None:
        self.problems[kind] += 1
        if self.problems[kind] <= EXAMPLES_KEPT:
            self.examples.append(f"{kind}: {example}")

    # What the driver does.

    async def subscribe(self, callback: Callback) -> None:
        """Until it is confirmed. A denial of what needs the other domain is an answer, and asked again."""
        await self._asked(callback, SUBSCRIBE)
        callback.confirmed = True

    async def come(self, callback: Callback) -> None:
        callback.seen, callback.newest = set(), 0
        await self._asked(callback, SUBSCRIBE)
        callback.wanted = callback.confirmed = True
        self.counts.came += 1

    async def go(self, callback: Callback) -> None:
        callback.wanted = callback.confirmed = False
        await self._asked(callback, UNSUBSCRIBE)
        self.counts.went += 1

    async def _asked(self, callback: Callback, mode: str) -> None:
        """Ask until the hub acknowledges it and the check comes; what is acknowledged must be answered."""
        while True:
            while not callback.answers.empty():
                callback.answers.get_nowait()
            try:
                acknowledged = await self._ask(callback, mode)
            except ConnectionError:
                acknowledged = False
            if acknowledged:
                said = await self._answer(callback, mode)
                if said != DENIED:
                    return
                self.counts.denied += 1
            await asyncio.sleep(ASK_AGAIN)

    async def _ask(self, callback: Callback, mode: str) -> bool:
        form = {
            "hub.mode": mode,
            "hub.topic": self.topic(callback.topic),
            "hub.callback": self.callback_url(callback),
        }
        client = LoopbackClient(self.hubs[callback.domain])
        try:
            status, body = await client.post_form("/", urlencode(form))
        finally:
            client.close()
        if status not in ACKNOWLEDGED:
            self.problem("subscription refused", f"{callback.path}: {status} {body[:100]!r}")
        return status in ACKNOWLEDGED

    async def _answer(self, callback: Callback, mode: str) -> str:
        try:
            async with asyncio.timeout(ANSWER_PATIENCE):
                while (said := await callback.answers.get()) not in (mode, DENIED):
                    pass
        except TimeoutError:
            self.problem("acknowledged, not answered", f"{mode} of {callback.path}")
            return mode
        return said

    async def publish(self, client: LoopbackClient, topic: int) -> bool:
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
        self.counts.upstream_acknowledged += topic in self.zone
        self.promised[topic] = max(self.promised[topic], number)
        return True

    def killed(self) -> None:
        self.duplicates_since_kill = 0

    def behind(self) -> list[Callback]:
        """Who has not got what was promised."""
        return [
            callback
            for callback in self.callbacks.values()
            if callback.wanted and max(callback.newest, callback.since) < self.promised[callback.topic]
        ]

    def count_passed_over(self, taken: Mapping[str, set[str]]) -> None:
        """States that a gateway took from the stock hub, by their SHA-256, and that did not come to all who never went,
        because it found a newer one when it looked."""
        for topic in self.zone:
            digests = taken.get(self.topic(topic), set())
            numbers = {
                number
                for number in range(1, self.numbers[topic] + 1)
                if hashlib.sha256(document(topic, number, self.size.document_bytes)).hexdigest() in digests
            }
            taken_here = len(numbers)
            for callback in self.callbacks.values():
                if callback.topic == topic and not callback.coming:
                    numbers &= callback.seen
            self.counts.passed_over += taken_here - len(numbers)

    # What the gateways ask.

    def _serve(self, request: LoopbackRequest, reply: Reply) -> None:
        topic = int(request.target.rpartition("/")[2])
        number = self.numbers[topic]
        tag = f'"{number}"'
        if request.header("If-None-Match") == tag:
            reply(answer(304, headers={"ETag": tag}))
            return
        headers = {"ETag": tag, "Content-Type": TYPE}
        if topic in self.zone:
            headers["Link"] = f'<{self.stock_hub}>; rel="hub", <{self.topic(topic)}>; rel="self"'
        reply(answer(200, document(topic, number, self.size.document_bytes), headers))

    def _take(self, request: LoopbackRequest, reply: Reply) -> None:
        parts = urlsplit(request.target)
        callback = self.callbacks[parts.path]
        if request.method == "GET":
            self._check(callback, parse_qs(parts.query), reply)
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

    def _check(self, callback: Callback, query: Mapping[str, list[str]], reply: Reply) -> None:
        mode = query["hub.mode"][0]
        if mode == DENIED:
            reply(OK)
            if callback.confirmed:
                self.problem("subscription taken back", f"{callback.path}: {query.get('hub.reason')}")
        else:
            callback.since = self.numbers[callback.topic] if mode == SUBSCRIBE and callback.coming else callback.since
            reply(answer(200, query["hub.challenge"][0].encode()))
        callback.answers.put_nowait(mode)

    def _count(self, callback: Callback, number: int) -> None:
        self.counts.delivered += 1
        if callback.topic in self.zone:
            self.counts.bootstrapped += 1
        else:
            self.counts.crossed += callback.domain != self.home[callback.topic]
        if not callback.wanted:
            return  # it is going, or was denied, and this was under way
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
