"""The hub's surroundings on loopback: a publisher whose topics change, and callbacks that note what they get.

Some callbacks are slow and some refuse a delivery the first time, chosen by the seed, so that the hub is killed
with retries written down and answers outstanding too.
"""

import asyncio
import random
import time
from collections.abc import Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass
from enum import StrEnum
from typing import Self
from urllib.parse import parse_qs, urlencode, urlsplit

from perf.loopback import LoopbackRequest, Reply, Server, answer
from perf.numbered_feed import document, number_in
from push_hub.delivery.signing import signature_matches
from push_hub.model import SignatureMethod
from trials.crash.ledger import SUBSCRIBE, CrashLedger
from trials.crash.stored import Pair

ADDRESSES = 20
SECRET = b"known to the hub and the callback"
FAILING = 0.02
SLOW = 0.02
SLOWEST = 0.6
OK = answer(204)
TRY_LATER = answer(503)
FEED_TYPE = "application/atom+xml"


class Moment(StrEnum):
    """What the surroundings of a hub notice, and a kill may be aimed at."""

    CHECK = "a callback was asked to confirm"
    FETCH = "the topic was fetched"
    DELIVERY = "a delivery arrived"
    ACKNOWLEDGEMENT = "a request was acknowledged"


class Style(StrEnum):
    """How a subscription is asked for."""

    WEBSUB = "websub"
    PUSH_03_ASYNC = "0.3 async"
    PUSH_03_SYNC = "0.3 sync"


@dataclass(frozen=True, slots=True)
class Size:
    """`wide` callbacks on one topic that everybody keeps, `callbacks` on each of `topics` that come and go.

    The content of `brought` of those topics comes with their pings.
    """

    topics: int = 12
    callbacks: int = 25
    wide: int = 2500
    brought: int = 2


class CrashWorld:
    """Use as `async with CrashWorld(...) as world`."""

    def __init__(self, size: Size, seed: int, notice: Callable[[Moment], None]) -> None:
        self._size = size
        self._notice = notice
        self._stack = AsyncExitStack()
        self._by_path: dict[str, Pair] = {}
        self._topic_of: dict[str, str] = {}
        self._refused: set[tuple[str, int]] = set()
        self._rng = random.Random(seed)  # noqa: S311 - a test that can be repeated
        self.life = 0
        self.styles: dict[Pair, Style] = {}
        self.numbers: dict[str, int] = {}
        self.wide_topic = ""
        self.wide: list[Pair] = []
        self.pinged: list[str] = []
        self.brought: list[str] = []
        self.changing: list[Pair] = []
        self.bad_signatures = 0

    async def __aenter__(self) -> Self:
        publisher = await self._stack.enter_async_context(Server(self._serve))
        callbacks = await self._stack.enter_async_context(Server(self._take, ADDRESSES))
        pairs: dict[str, list[Pair]] = {}
        for number in range(self._size.topics + 1):
            topic = publisher.url(f"/topic/{number}")
            self._topic_of[f"/topic/{number}"] = topic
            self.numbers[topic] = 0
            count = self._size.callbacks if number else self._size.wide
            pairs[topic] = [self._pair(callbacks, topic, number, n) for n in range(count)]
        self.wide_topic, *_ = pairs
        self.wide = pairs[self.wide_topic]
        first_brought = len(pairs) - self._size.brought
        self.pinged, self.brought = list(pairs)[:first_brought], list(pairs)[first_brought:]
        self.changing = [pair for topic, group in pairs.items() if topic != self.wide_topic for pair in group]
        self.ledger = CrashLedger(pairs, self.numbers)
        return self

    async def __aexit__(self, *error: object) -> None:
        await self._stack.aclose()

    def change(self, topic: str) -> int:
        """The topic says something new from now on."""
        self.numbers[topic] += 1
        self.ledger.changed(topic, self.numbers[topic], time.time())
        return self.numbers[topic]

    def form(self, pair: Pair, mode: str) -> str:
        fields = {"hub.mode": mode, "hub.topic": pair[0], "hub.callback": pair[1]}
        if mode == SUBSCRIBE:
            fields |= {"hub.secret": SECRET.decode(), "hub.signature": SignatureMethod.SHA256}
        if self.styles[pair] is not Style.WEBSUB:
            fields["hub.verify"] = "sync" if self.styles[pair] is Style.PUSH_03_SYNC else "async"
        return urlencode(fields)

    def _pair(self, callbacks: Server, topic: str, topic_number: int, number: int) -> Pair:
        path = f"/callback/{topic_number}/{number}"
        pair = (topic, callbacks.url(path, 1 + number % ADDRESSES))
        self._by_path[path] = pair
        styles = (Style.WEBSUB, Style.WEBSUB, Style.PUSH_03_ASYNC, Style.PUSH_03_SYNC)
        self.styles[pair] = styles[number % len(styles)] if topic_number else Style.WEBSUB
        return pair

    def _serve(self, request: LoopbackRequest, reply: Reply) -> None:
        number = self.numbers[self._topic_of[request.target]]
        tag = f'"{number}"'
        self._notice(Moment.FETCH)
        if request.header("If-None-Match") == tag:
            reply(answer(304, headers={"ETag": tag}))
        else:
            reply(answer(200, document(number), {"ETag": tag, "Content-Type": FEED_TYPE}))

    def _take(self, request: LoopbackRequest, reply: Reply) -> None:
        parts = urlsplit(request.target)
        if request.method == "GET":
            self._notice(Moment.CHECK)
            reply(answer(200, parse_qs(parts.query)["hub.challenge"][0].encode()))
            return
        pair = self._by_path[parts.path]
        number = number_in(request.body)
        if not signature_matches(
            SECRET, SignatureMethod.SHA256, request.body, request.header("X-Hub-Signature") or "none"
        ):
            self.bad_signatures += 1
        self.ledger.attempted(pair, number, self.life)
        key = (parts.path, number)
        if key not in self._refused and self._rng.random() < FAILING:
            self._refused.add(key)  # once only: the second try is taken
            self.ledger.counts.refused_by_callbacks += 1
            self._notice(Moment.DELIVERY)
            reply(TRY_LATER)
            return
        self.ledger.arrived(pair, number, self.life)
        self._notice(Moment.DELIVERY)
        if self._rng.random() < SLOW:
            asyncio.get_running_loop().call_later(self._rng.random() * SLOWEST, reply, OK)
        else:
            reply(OK)
