"""`psph bench fanout`: how fast the hub delivers, beside a bare loop of its client library and bare aiohttp.

All three post the same bodies to the same callbacks of the same sink, a process of its own. The hub signs each
delivery and keeps its log and cursor in a real file; the bare loops do neither. Runs are interleaved, and each figure
is the median of its rounds, so that a noisy machine disturbs them alike.
"""

import argparse
import asyncio
import hashlib
import statistics
import subprocess
import sys
import tempfile
import time
from array import array
from collections.abc import Awaitable, Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp
import pycurl
import uvloop

from perf.bench.family import Bar, Outcome, Row, Sense, percentile, progress_bar
from push_hub.delivery import MIGRATIONS as DELIVERY_TABLES
from push_hub.delivery import Delivery, DeliveryConfig
from push_hub.model import Content, Dialect, SignatureMethod
from push_hub.outbound.addresses import AddressPolicy
from push_hub.outbound.client import ClientConfig, OutboundClient
from push_hub.schema import HUB_TABLES, SUBSCRIPTION_TABLES
from push_hub.subscriptions import Subscriptions
from storage import Database

ADDRESSES = 40
BODY_SIZE = 1400
HUB_URL = "http://hub.example/"
CONTENT_TYPE = "application/atom+xml"
BARE_CONCURRENCY = 128
BAR_CALLBACKS = 1000
SLOW_CALLBACKS = 20
DRAIN_SECONDS = 60.0
TABLES = [*HUB_TABLES, *SUBSCRIPTION_TABLES, *DELIVERY_TABLES]


@dataclass(slots=True)
class Samples:
    """Rates and processor time a round, and the delays of all deliveries."""

    rates: list[float] = field(default_factory=list)
    cpu: list[float] = field(default_factory=list)
    delays: list[float] = field(default_factory=list)
    p99s: list[float] = field(default_factory=list)

    def add(self, started: float, cpu: float, arrivals: Sequence[float]) -> None:
        self.rates.append(len(arrivals) / (max(arrivals) - started))
        self.cpu.append(cpu / len(arrivals))
        delays = sorted(arrival - started for arrival in arrivals)
        self.p99s.append(percentile(delays, 0.99))
        self.delays += delays

    @property
    def rate(self) -> float:
        return statistics.median(self.rates)

    def row(self, callbacks: int, what: str) -> Row:
        delays = sorted(self.delays)
        return {
            "callbacks": callbacks,
            "sender": what,
            "rounds": len(self.rates),
            "deliveries/s": self.rate,
            "p50 ms": percentile(delays, 0.50) * 1000,
            "p99 ms": percentile(delays, 0.99) * 1000,
            "sender's CPU µs": statistics.median(self.cpu) * 1e6,
        }


class Sink:
    """The sink's process, seen from here."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(  # noqa: S603
            [sys.executable, "-m", "perf.bench.fanout_sink", str(ADDRESSES)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        if self._process.stdout is None:
            raise RuntimeError("the sink has no output")
        self.port = int(self._process.stdout.readline())

    def urls(self, count: int, slow: int = 0) -> list[str]:
        """`slow` of the callbacks, spread evenly and on the same addresses as the others, answer late."""
        every = count // slow if slow else count + 1
        return [
            f"http://127.0.0.{1 + n % ADDRESSES}:{self.port}/{'slow' if slow and n % every == 0 else 'callback'}/{n}"
            for n in range(count)
        ]

    async def arrivals(self, client: OutboundClient, count: int) -> list[float]:
        """Wait until `count` posts arrived, and return when each did."""
        times: array[float] = array("d")
        while len(times) < count:
            answer = await client.request(
                "GET", f"http://127.0.0.1:{self.port}/report", headers={}, body=None, timeout=10, max_bytes=1 << 24
            )
            times.frombytes(answer.body)
            if len(times) < count:
                await asyncio.sleep(0.02)
        return list(times)

    def close(self) -> None:
        self._process.communicate(b"", timeout=10)


def atom(number: int) -> bytes:
    head = (
        '<?xml version="1.0" encoding="utf-8"?>\n<feed xmlns="http://www.w3.org/2005/Atom"><id>http://example.com/f</id>'
        f"<title>f</title><entry><id>http://example.com/{number}</id><title>{number}</title><content>"
    )
    tail = "</content></entry></feed>"
    return (head + "x" * (BODY_SIZE - len(head) - len(tail)) + tail).encode()


async def send_with_hub(delivery: Delivery, topic: str, number: int) -> None:
    """One publication; the clock starts before it is stored."""
    await delivery.accept(topic, topic, Content(CONTENT_TYPE, atom(number)))


def send_with_curl(urls: Sequence[str], body: bytes, topic: str, idle: list[Any], multi: Any) -> None:
    """The plainest fast loop with pycurl: reused handles, `perform`, `select`."""
    link = f'Link: <{HUB_URL}>; rel="hub", <{topic}>; rel="self"'
    headers = [f"Content-Type: {CONTENT_TYPE}", link, "Expect:", "X-Hub-Signature: sha256=" + "0" * 64]
    while len(idle) < BARE_CONCURRENCY:
        curl = pycurl.Curl()
        curl.setopt(pycurl.NOSIGNAL, 1)
        curl.setopt(pycurl.POST, 1)
        curl.setopt(pycurl.TIMEOUT_MS, 30_000)
        curl.setopt(pycurl.HTTP_VERSION, pycurl.CURL_HTTP_VERSION_1_1)
        idle.append(curl)
    sent = done = 0
    while done < len(urls):
        while idle and sent < len(urls):
            curl = idle.pop()
            curl.setopt(pycurl.URL, urls[sent])
            curl.setopt(pycurl.HTTPHEADER, headers)
            curl.setopt(pycurl.POSTFIELDS, body)
            multi.add_handle(curl)
            sent += 1
        multi.perform()
        waiting = 1
        while waiting:
            waiting, finished, failed = multi.info_read(256)
            for curl in finished:
                multi.remove_handle(curl)
                idle.append(curl)
            if failed:
                raise RuntimeError(f"the bare loop failed: {failed[0][2]}")
            done += len(finished)
        if done < len(urls) and not (idle and sent < len(urls)):
            multi.select(1.0)


async def send_with_aiohttp(session: aiohttp.ClientSession, urls: Sequence[str], body: bytes, topic: str) -> None:
    headers = {
        "Content-Type": CONTENT_TYPE,
        "Link": f'<{HUB_URL}>; rel="hub", <{topic}>; rel="self"',
        "X-Hub-Signature": "sha256=" + "0" * 64,
    }
    left = iter(urls)

    async def worker() -> None:
        for url in left:
            async with session.post(url, data=body, headers=headers, allow_redirects=False) as answer:
                await answer.read()

    await asyncio.gather(*(worker() for _ in range(min(BARE_CONCURRENCY, len(urls)))))


class Stage:
    """Everything that is set up once: sink, store, hub, bare clients."""

    def __init__(self, sink: Sink, database: Database, delivery: Delivery, client: OutboundClient) -> None:
        self.sink = sink
        self.database = database
        self.delivery = delivery
        self.client = client
        self.session = aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=BARE_CONCURRENCY))
        self.multi = pycurl.CurlMulti()
        self.multi.setopt(pycurl.M_MAXCONNECTS, 2 * BARE_CONCURRENCY)
        self.idle: list[Any] = []
        self.number = 0

    async def subscribe(self, topic: str, urls: Sequence[str]) -> None:
        """Each callback has a secret of its own, as it would."""
        method, dialect = SignatureMethod.SHA256.value, Dialect.WEBSUB.value
        rows = [(topic, url, hashlib.sha256(url.encode()).digest(), method, dialect, 1e12) for url in urls]
        await asyncio.wrap_future(
            self.database.write(
                lambda tx: tx.execute_many(
                    "INSERT INTO subscriptions (topic, callback, secret, signature, dialect, lease_until, created_at) "
                    "VALUES (?, ?, ?, ?, ?, ?, 0)",
                    rows,
                )
            )
        )

    async def round(self, samples: Samples, expected: int, send: Callable[[], Awaitable[None]]) -> None:
        """One sender's turn. The sink is asked when all is sent, so that asking it disturbs no sender."""
        self.number += 1
        started, cpu = time.monotonic(), time.process_time()
        await send()
        while self.delivery.backlog:  # noqa: ASYNC110 - a benchmark may look; an observer would cost deliveries
            await asyncio.sleep(0.005)
        cpu = time.process_time() - cpu
        samples.add(started, cpu, await self.sink.arrivals(self.client, expected))

    async def drain(self) -> None:
        """Until nothing is under way any more, not even what waits for a slow answer."""
        async with asyncio.timeout(DRAIN_SECONDS):
            while not self.delivery.is_idle:  # noqa: ASYNC110
                await asyncio.sleep(0.01)

    async def hub_round(self, samples: Samples, topic: str, expected: int) -> None:
        await self.round(samples, expected, lambda: send_with_hub(self.delivery, topic, self.number))

    async def curl_round(self, samples: Samples, topic: str, urls: Sequence[str]) -> None:
        async def send() -> None:
            send_with_curl(urls, atom(self.number), topic, self.idle, self.multi)

        await self.round(samples, len(urls), send)

    async def aiohttp_round(self, samples: Samples, topic: str, urls: Sequence[str]) -> None:
        await self.round(samples, len(urls), lambda: send_with_aiohttp(self.session, urls, atom(self.number), topic))

    async def close(self) -> None:
        await self.session.close()
        await self.delivery.stop()
        await self.client.close()


async def measure(rounds: dict[int, int], slow_rounds: int) -> Outcome:
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        sink = Sink()
        stack.callback(sink.close)
        database = stack.enter_context(Database.open(folder / "hub.db", TABLES))
        client = OutboundClient(ClientConfig(policy=AddressPolicy(allow_private=True)))
        delivery = Delivery(database, Subscriptions(database), client, DeliveryConfig(HUB_URL), time.time)
        await delivery.start()
        stage = Stage(sink, database, delivery, client)
        try:
            return await measure_on(stage, rounds, slow_rounds)
        finally:
            await stage.close()


async def measure_on(stage: Stage, rounds: dict[int, int], slow_rounds: int) -> Outcome:
    results: list[Row] = []
    ratios: dict[int, tuple[float, float]] = {}
    with progress_bar("fanout", sum(rounds.values()) + slow_rounds) as tick:
        for callbacks, count in rounds.items():
            urls = stage.sink.urls(callbacks)
            topic = f"http://publisher.example/{callbacks}"
            await stage.subscribe(topic, urls)
            hub, curl, plain = Samples(), Samples(), Samples()
            for number in range(count + 1):
                if number == 1:
                    hub, curl, plain = Samples(), Samples(), Samples()  # the first round only opened connections
                await stage.hub_round(hub, topic, callbacks)
                await stage.curl_round(curl, topic, urls)
                await stage.aiohttp_round(plain, topic, urls)
                tick(f"{callbacks} callbacks", 1 if number else 0)
            results += [
                hub.row(callbacks, "hub"),
                curl.row(callbacks, "bare pycurl"),
                plain.row(callbacks, "bare aiohttp"),
            ]
            ratios[callbacks] = (hub.rate / curl.rate, hub.rate / plain.rate)
        clean, slow = await measure_slow(stage, slow_rounds, lambda: tick("slow callbacks"))
    fast = BAR_CALLBACKS - SLOW_CALLBACKS
    results += [slow.row(fast, f"hub, {SLOW_CALLBACKS} more are slow"), clean.row(fast, "hub, none slow")]
    # The median of the rounds, as for the rates: one hiccup of the machine is not the slow callbacks' doing.
    held_back = statistics.median(slow.p99s) / statistics.median(clean.p99s)
    to_curl, to_aiohttp = ratios[BAR_CALLBACKS]
    return Outcome(
        {"body": BODY_SIZE, "addresses": ADDRESSES, "signature": "sha256", "bare concurrency": BARE_CONCURRENCY},
        results,
        [
            Bar(f"hub / bare pycurl at {BAR_CALLBACKS} callbacks", to_curl, Sense.AT_LEAST, 0.7),
            Bar(f"hub / bare aiohttp at {BAR_CALLBACKS} callbacks", to_aiohttp, Sense.AT_LEAST, 2.5),
            Bar("p99 beside slow callbacks / p99 without", held_back, Sense.AT_MOST, 1.5),
        ],
        [
            "Delay: from handing the publication over (the hub stores it first) to its arrival at the callback.",
            "Sender's CPU: a delivery's share of all its threads' time; it says more than the rate on a busy machine.",
        ],
    )


async def measure_slow(stage: Stage, rounds: int, tick: Callable[[], None]) -> tuple[Samples, Samples]:
    """Clean and slow rounds in turn; each begins when nothing of the one before is under way.

    Each round is a topic of its own: a slow callback is asked once, as by a publisher that just appeared.
    """
    clean, slow = Samples(), Samples()
    fast = BAR_CALLBACKS - SLOW_CALLBACKS
    for number in range(rounds):
        for samples, urls in (
            (clean, stage.sink.urls(fast)),
            (slow, stage.sink.urls(BAR_CALLBACKS, SLOW_CALLBACKS)),
        ):
            topic = f"http://publisher.example/slow/{number}/{len(urls)}"
            await stage.subscribe(topic, urls)
            await stage.drain()
            await stage.hub_round(samples, topic, fast)
        tick()
    await stage.drain()
    return clean, slow


class Fanout:
    name = "fanout"
    description = (
        "Deliveries a second and the delay from accepting a publication to its arrival, for 1 to 10,000 callbacks.\n"
        "Beside the hub, in the same run: a bare pycurl loop and bare aiohttp posting the same bodies to the same\n"
        "callbacks, and the case that 20 of 1,000 callbacks answer only after 5 seconds.\n\n"
        "example:\n  psph bench fanout --quick --json"
    )

    def configure(self, parser: argparse.ArgumentParser) -> None:
        """No options of its own."""

    def run(self, options: argparse.Namespace) -> Outcome:
        rounds = {1: 30, 100: 15, 1000: 15, 10_000: 3} if options.quick else {1: 300, 100: 60, 1000: 60, 10_000: 10}
        return uvloop.run(measure(rounds, 4 if options.quick else 12))


BENCHMARK = Fanout()
