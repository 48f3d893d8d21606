"""`psph bench fanout`: how fast the hub delivers, beside a bare loop of its client library and bare aiohttp.

All three post the same bodies to the same callbacks of the same sink, a process of its own. The hub signs each
delivery and keeps its log and cursor in a real file; the bare loops do neither.

Two kinds of rounds. An update alone gives the delay: it is handed over when nothing is under way, so the wait for the
disk before the first delivery is in it whole. A stream of updates, each handed over when the one before is stored,
gives the rate; of it, only the first update's wait for the disk shows. Senders take turns round by round, and a ratio
is the median over the rounds of what neighbours in time measured, so that a noisy machine disturbs both alike.
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
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp
import pycurl
import uvloop

from perf.bench.family import Bar, BenchOutcome, Row, Sense, Ticker, percentile, progress_bar
from push_hub.delivery import MIGRATIONS as DELIVERY_TABLES
from push_hub.delivery import Delivery, DeliveryConfig
from push_hub.model import Content, Dialect, SignatureMethod
from push_hub.schema import HUB_TABLES, SUBSCRIPTION_TABLES
from push_hub.subscriptions import Subscriptions
from serving.outbound.addresses import AddressPolicy
from serving.outbound.client import ClientConfig, OutboundClient
from storage import Database

ADDRESSES = 40
BODY_SIZE = 1400
HUB_URL = "http://hub.example/"
CONTENT_TYPE = "application/atom+xml"
BARE_CONCURRENCY = 128
BAR_CALLBACKS = 1000
SLOW_CALLBACKS = 20
STREAM = 4  # updates
LONGEST_STREAM = 4000  # deliveries, unless one update alone has more
SENDERS = ("hub", "bare pycurl", "bare aiohttp")
DRAIN_SECONDS = 60.0
Sender = Callable[[Sequence[bytes]], Awaitable[None]]
TABLES = [*HUB_TABLES, *SUBSCRIPTION_TABLES, *DELIVERY_TABLES]


@dataclass(frozen=True, slots=True)
class RoundPlan:
    """How many rounds; fewer, but never none, when they take longer than `seconds` together."""

    rounds: int
    seconds: float

    def numbers(self) -> Iterator[int]:
        started = time.monotonic()
        for number in range(self.rounds):
            if number and time.monotonic() - started > self.seconds:
                return
            yield number


QUICK = {1: RoundPlan(20, 2), 100: RoundPlan(10, 3), 1000: RoundPlan(12, 12), 10_000: RoundPlan(1, 0)}
QUICK_SLOW = RoundPlan(20, 8)
QUICK_ONE_HOST = RoundPlan(10, 5)
FULL = {1: RoundPlan(200, 20), 100: RoundPlan(60, 30), 1000: RoundPlan(60, 120), 10_000: RoundPlan(8, 60)}
FULL_SLOW = RoundPlan(60, 60)
FULL_ONE_HOST = RoundPlan(40, 40)


@dataclass(slots=True)
class RateSamples:
    """What one sender's rounds measured, in their order."""

    rates: list[float] = field(default_factory=list)
    rates_alone: list[float] = field(default_factory=list)
    cpu: list[float] = field(default_factory=list)
    p99s: list[float] = field(default_factory=list)
    delays: list[float] = field(default_factory=list)

    def add_stream(self, started: float, cpu: float, arrivals: Sequence[float]) -> None:
        self.rates.append(len(arrivals) / (max(arrivals) - started))
        self.cpu.append(cpu / len(arrivals))

    def add_alone(self, started: float, arrivals: Sequence[float]) -> None:
        delays = sorted(arrival - started for arrival in arrivals)
        self.rates_alone.append(len(delays) / delays[-1])
        self.p99s.append(percentile(delays, 0.99))
        self.delays += delays

    def row(self, callbacks: int, what: str) -> Row:
        delays = sorted(self.delays)
        return {
            "callbacks": callbacks,
            "sender": what,
            "rounds": len(self.rates_alone),
            "deliveries/s": statistics.median(self.rates) if self.rates else None,
            "CPU µs": statistics.median(self.cpu) * 1e6 if self.cpu else None,
            "alone: /s": statistics.median(self.rates_alone),
            "p50 ms": percentile(delays, 0.50) * 1000,
            "p99 ms": percentile(delays, 0.99) * 1000,
        }


def ratio(above: Sequence[float], below: Sequence[float]) -> float:
    """The median of the rounds' ratios: neighbours in time, whatever else the machine did."""
    return statistics.median(a / b for a, b in zip(above, below, strict=True))


class SinkProcess:
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

    def urls(self, count: int, slow: int = 0, addresses: int = ADDRESSES) -> list[str]:
        """`slow` of the callbacks, spread evenly and on the same addresses as the others, answer late."""
        every = count // slow if slow else count + 1
        return [
            f"http://127.0.0.{1 + n % addresses}:{self.port}/{'slow' if slow and n % every == 0 else 'callback'}/{n}"
            for n in range(count)
        ]

    async def arrivals(self, client: OutboundClient, count: int) -> list[float]:
        """Wait until `count` posts arrived, and return when each did."""
        times: array[float] = array("d")
        while len(times) < count:
            times.frombytes(await self._ask(client, "report"))
            if len(times) < count:
                await asyncio.sleep(0.02)
        return list(times)

    async def release(self, client: OutboundClient) -> None:
        """Have the slow callbacks answer now: what they were to show has been measured."""
        await self._ask(client, "release")

    async def _ask(self, client: OutboundClient, what: str) -> bytes:
        url = f"http://127.0.0.1:{self.port}/{what}"
        return (await client.request("GET", url, headers={}, body=None, timeout=10, max_bytes=1 << 24)).body

    def close(self) -> None:
        self._process.communicate(b"", timeout=10)


def atom(number: int) -> bytes:
    head = (
        '<?xml version="1.0" encoding="utf-8"?>\n<feed xmlns="http://www.w3.org/2005/Atom"><id>http://example.com/f</id>'
        f"<title>f</title><entry><id>http://example.com/{number}</id><title>{number}</title><content>"
    )
    tail = "</content></entry></feed>"
    return (head + "x" * (BODY_SIZE - len(head) - len(tail)) + tail).encode()


async def send_with_hub(delivery: Delivery, topic: str, bodies: Sequence[bytes]) -> None:
    """Each is handed over when the one before is on disk, as by a publisher that waits for its answer."""
    for body in bodies:
        await delivery.accept(topic, topic, Content(CONTENT_TYPE, body))


def send_with_curl(urls: Sequence[str], bodies: Sequence[bytes], topic: str, idle: list[Any], multi: Any) -> None:
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
    total = len(urls) * len(bodies)
    sent = done = 0
    while done < total:
        while idle and sent < total:
            curl = idle.pop()
            curl.setopt(pycurl.URL, urls[sent % len(urls)])
            curl.setopt(pycurl.HTTPHEADER, headers)
            curl.setopt(pycurl.POSTFIELDS, bodies[sent // len(urls)])
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
        if done < total and not (idle and sent < total):
            multi.select(1.0)


async def send_with_aiohttp(
    session: aiohttp.ClientSession, urls: Sequence[str], bodies: Sequence[bytes], topic: str
) -> None:
    headers = {
        "Content-Type": CONTENT_TYPE,
        "Link": f'<{HUB_URL}>; rel="hub", <{topic}>; rel="self"',
        "X-Hub-Signature": "sha256=" + "0" * 64,
    }
    left = iter([(url, body) for body in bodies for url in urls])

    async def worker() -> None:
        for url, body in left:
            async with session.post(url, data=body, headers=headers, allow_redirects=False) as answer:
                await answer.read()

    await asyncio.gather(*(worker() for _ in range(min(BARE_CONCURRENCY, len(urls) * len(bodies)))))


class FanoutStage:
    """Everything that is set up once: sink, store, hub, bare clients."""

    def __init__(self, sink: SinkProcess, database: Database, delivery: Delivery, client: OutboundClient) -> None:
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

    async def alone(self, samples: RateSamples, callbacks: int, send: Sender, *, is_stream: bool = False) -> None:
        """One update. `is_stream`: there are so many callbacks that it stands for a stream as well."""
        started, cpu, arrivals = await self._timed(callbacks, 1, send)
        samples.add_alone(started, arrivals)
        if is_stream:
            samples.add_stream(started, cpu, arrivals)

    async def stream(self, samples: RateSamples, callbacks: int, updates: int, send: Sender) -> None:
        samples.add_stream(*await self._timed(callbacks, updates, send))

    async def _timed(self, callbacks: int, updates: int, send: Sender) -> tuple[float, float, list[float]]:
        """One sender's turn: when it began, the processor time it took, and when its posts arrived.

        The sink is asked when all is sent, so that asking it disturbs no sender. The hub's turn ends when it has
        written down what it did: its processor time holds that, and the next sender does not run beside it.
        """
        bodies = [atom(self.number + n) for n in range(updates)]
        self.number += updates
        started, cpu = time.monotonic(), time.process_time()
        await send(bodies)
        await self.drain()
        cpu = time.process_time() - cpu
        return started, cpu, await self.sink.arrivals(self.client, callbacks * updates)

    async def round_with_slow_ones(self, samples: RateSamples, topic: str, fast: int) -> None:
        started = time.monotonic()
        await send_with_hub(self.delivery, topic, [atom(self.number)])
        self.number += 1
        while self.delivery.backlog:  # noqa: ASYNC110
            await asyncio.sleep(0.005)
        samples.add_alone(started, await self.sink.arrivals(self.client, fast))
        await self.sink.release(self.client)
        await self.drain()

    async def drain(self) -> None:
        """Until nothing is under way any more, not even what waits for a slow answer."""
        async with asyncio.timeout(DRAIN_SECONDS):
            while not self.delivery.is_idle:  # noqa: ASYNC110 - a benchmark may look; an observer would cost deliveries
                await asyncio.sleep(0.005)

    def senders(self, topic: str, urls: Sequence[str]) -> tuple[Sender, Sender, Sender]:
        """The hub, the bare loop of its library, and bare aiohttp."""

        async def curl(bodies: Sequence[bytes]) -> None:
            send_with_curl(urls, bodies, topic, self.idle, self.multi)

        return (
            lambda bodies: send_with_hub(self.delivery, topic, bodies),
            curl,
            lambda bodies: send_with_aiohttp(self.session, urls, bodies, topic),
        )

    async def close(self) -> None:
        await self.session.close()
        await self.delivery.stop()
        await self.client.close()


async def measure(plans: dict[int, RoundPlan], slow_plan: RoundPlan, host_plan: RoundPlan) -> BenchOutcome:
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        sink = SinkProcess()
        stack.callback(sink.close)
        database = stack.enter_context(Database.open(folder / "hub.db", TABLES))
        client = OutboundClient(ClientConfig(policy=AddressPolicy(allow_private=True)))
        delivery = Delivery(database, Subscriptions(database), client, DeliveryConfig(HUB_URL), time.time)
        await delivery.start()
        stage = FanoutStage(sink, database, delivery, client)
        try:
            return await measure_on(stage, plans, slow_plan, host_plan)
        finally:
            await stage.close()


async def measure_on(
    stage: FanoutStage, plans: dict[int, RoundPlan], slow_plan: RoundPlan, host_plan: RoundPlan
) -> BenchOutcome:
    results: list[Row] = []
    measured: dict[int, list[RateSamples]] = {}
    with progress_bar("fanout", sum(plan.rounds for plan in (*plans.values(), slow_plan, host_plan))) as tick:
        for callbacks, plan in plans.items():
            measured[callbacks] = samples = await measure_senders(stage, callbacks, plan, tick)
            results += [one.row(callbacks, name) for one, name in zip(samples, SENDERS, strict=True)]
        clean, slow = await measure_slow(stage, slow_plan, tick, ADDRESSES)
        host_clean, host_slow = await measure_slow(stage, host_plan, tick, 1)
    fast = BAR_CALLBACKS - SLOW_CALLBACKS
    results += [slow.row(fast, f"hub, {SLOW_CALLBACKS} more are slow"), clean.row(fast, "hub, none slow")]
    results += [
        host_slow.row(fast, f"hub, one host, {SLOW_CALLBACKS} more are slow"),
        host_clean.row(fast, "hub, one host, none slow"),
    ]
    hub, curl, plain = measured[BAR_CALLBACKS]
    return BenchOutcome(
        {
            "body": BODY_SIZE,
            "addresses": ADDRESSES,
            "signature": "sha256",
            "bare concurrency": BARE_CONCURRENCY,
            "updates a stream": STREAM,
        },
        results,
        [
            Bar(f"hub / bare pycurl at {BAR_CALLBACKS} callbacks", ratio(hub.rates, curl.rates), Sense.AT_LEAST, 0.7),
            Bar(f"hub / bare aiohttp at {BAR_CALLBACKS} callbacks", ratio(hub.rates, plain.rates), Sense.AT_LEAST, 2.5),
            Bar("p99 beside slow callbacks / p99 without", ratio(slow.p99s, clean.p99s), Sense.AT_MOST, 1.5),
            Bar("the same on one host", ratio(host_slow.p99s, host_clean.p99s), Sense.AT_MOST, 2.0),
        ],
        [
            f"deliveries/s and CPU: a stream of {STREAM} updates (one, beyond {LONGEST_STREAM} deliveries).",
            "CPU: a delivery's share of all the sender's threads' time; most reliable on a busy machine.",
            "alone, p50, p99: one update when nothing else is under way; the clock starts before the hub stores it.",
            f"The bars' rates are those of streams. {other_ratios(hub, curl, plain)}",
        ],
    )


def other_ratios(hub: RateSamples, curl: RateSamples, plain: RateSamples) -> str:
    return (
        f"Hub to bare pycurl and to bare aiohttp at {BAR_CALLBACKS} callbacks, one update alone: "
        f"{ratio(hub.rates_alone, curl.rates_alone):.2f} and {ratio(hub.rates_alone, plain.rates_alone):.2f}; "
        f"by processor time: {ratio(curl.cpu, hub.cpu):.2f} and {ratio(plain.cpu, hub.cpu):.2f}."
    )


async def measure_senders(stage: FanoutStage, callbacks: int, plan: RoundPlan, tick: Ticker) -> list[RateSamples]:
    urls = stage.sink.urls(callbacks)
    topic = f"http://publisher.example/{callbacks}"
    await stage.subscribe(topic, urls)
    updates = max(1, min(STREAM, LONGEST_STREAM // callbacks))
    senders = stage.senders(topic, urls)
    for send in senders:
        await stage.alone(RateSamples(), callbacks, send)  # opens connections
    measured = [RateSamples() for _ in senders]
    for _ in plan.numbers():
        for samples, send in zip(measured, senders, strict=True):
            await stage.alone(samples, callbacks, send, is_stream=updates == 1)
        for samples, send in zip(measured, senders, strict=True):
            if updates > 1:
                await stage.stream(samples, callbacks, updates, send)
        tick(f"{callbacks} callbacks")
    return measured


async def measure_slow(
    stage: FanoutStage, plan: RoundPlan, tick: Ticker, addresses: int
) -> tuple[RateSamples, RateSamples]:
    """Clean and slow rounds in turn; each begins when nothing of the one before is under way.

    Each round is a topic of its own: a slow callback is asked once, as by a publisher that just appeared.
    """
    fast = BAR_CALLBACKS - SLOW_CALLBACKS
    clean, slow = stage.sink.urls(fast, 0, addresses), stage.sink.urls(BAR_CALLBACKS, SLOW_CALLBACKS, addresses)

    async def one(name: str, samples: RateSamples, urls: Sequence[str]) -> None:
        topic = f"http://publisher.example/slow/{addresses}/{name}/{len(urls)}"
        await stage.subscribe(topic, urls)
        await stage.round_with_slow_ones(samples, topic, fast)

    await one("warm up", RateSamples(), slow)  # opens connections
    without, beside = RateSamples(), RateSamples()
    for number in plan.numbers():
        pair = [(without, clean), (beside, slow)]
        for samples, urls in pair if number % 2 else reversed(pair):
            await one(str(number), samples, urls)
        tick("slow callbacks")
    return without, beside


class Fanout:
    name = "fanout"
    description = (
        "Deliveries a second and the delay from accepting a publication to its arrival, for 1 to 10,000 callbacks.\n"
        "Beside the hub, in the same run: a bare pycurl loop and bare aiohttp posting the same bodies to the same\n"
        "callbacks, and the case that 20 of 1,000 callbacks answer only after 5 seconds, on many hosts and on one.\n\n"
        "example:\n  psph bench fanout --quick --json"
    )

    def configure(self, parser: argparse.ArgumentParser) -> None:
        """No options of its own."""

    def run(self, options: argparse.Namespace) -> BenchOutcome:
        return uvloop.run(
            measure(QUICK, QUICK_SLOW, QUICK_ONE_HOST) if options.quick else measure(FULL, FULL_SLOW, FULL_ONE_HOST)
        )


BENCHMARK = Fanout()
