"""`psph bench hub`: subscribing, starting with a large store, and the way from a ping to the first delivery.

The hub is a real process with its defaults. Callbacks of the first part are a process of their own; the publisher and
the callbacks of the last part are here, so that one clock sees both ends.
"""

import argparse
import asyncio
import random
import sqlite3
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, closing
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlencode

import uvloop

from perf.bench.family import Bar, BenchError, BenchOutcome, Row, Sense, Ticker, percentile, progress_bar
from perf.bench.hub_seed import seed_store
from perf.hub_process import HubProcess, HubProcessError
from perf.loopback import LoopbackClient, LoopbackRequest, Reply, Server, answer
from perf.numbered_feed import document
from push_hub.hub import DATABASE_NAME

ADDRESSES = 20
CLIENT_ADDRESSES = 20
CONNECTIONS = 100
SEED = 1
WARM_UP = 10
PATIENCE = 60.0
POLL = 0.004
BAR = 1.5
BARE_COMMAND = (sys.executable, "-m", "perf.bench.hub_bare")
OK = answer(204)
FEED = "application/atom+xml"

Verified = Callable[[str], Awaitable[int]]
"""How many subscriptions of a topic are verified, or of all topics."""


@dataclass(frozen=True, slots=True)
class HubScale:
    """How much is measured. `pings_a_life` stays below the hub's bound on pings of one topic at once (200)."""

    subscriptions: int
    topics: int = 100_000
    rounds: int = 8
    subscriptions_a_round: int = 2000
    starts: int = 5
    lives: int = 3
    pings_a_life: int = 180


FULL = HubScale(1_000_000)
QUICK = HubScale(100_000, rounds=3, subscriptions_a_round=500, starts=2, lives=1, pings_a_life=120)


# Subscribing


class CallbackProcess:
    """The process of the callbacks."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(  # noqa: S603
            [sys.executable, "-m", "perf.bench.hub_sink", str(ADDRESSES)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        if self._process.stdout is None:
            raise BenchError("the callbacks' process has no output")
        self._port = int(self._process.stdout.readline())

    def url(self, round_number: int, number: int) -> str:
        return f"http://127.0.0.{1 + number % ADDRESSES}:{self._port}/callback/{round_number}/{number}"

    def close(self) -> None:
        self._process.communicate(b"", timeout=10)


async def subscribe_all(url: str, forms: list[str]) -> None:
    """From several addresses: the hub limits what one client may ask."""
    left = iter(forms)

    async def work(number: int) -> None:
        client = LoopbackClient(url, f"127.0.0.{1 + number % CLIENT_ADDRESSES}")
        try:
            for form in left:
                status, said = await client.post_form("/", form)
                if status != 202:
                    raise BenchError(f"a subscription was answered {status}: {said.decode(errors='replace').strip()}")
        finally:
            client.close()

    await asyncio.gather(*(work(number) for number in range(CONNECTIONS)))


async def subscribing_round(sink: CallbackProcess, url: str, number: int, count: int, verified: Verified) -> float:
    """Subscriptions a second, from the first request until the last is verified (and, by a hub, stored)."""
    topic = f"http://publisher.example/{number}"
    forms = [
        urlencode({"hub.mode": "subscribe", "hub.topic": topic, "hub.callback": sink.url(number, one)})
        for one in range(count)
    ]
    before = await verified(topic)
    started = time.monotonic()
    await subscribe_all(url, forms)
    while await verified(topic) < before + count:
        if time.monotonic() - started > PATIENCE:
            raise BenchError(f"{count} subscriptions were not verified within {PATIENCE:g} seconds")
        await asyncio.sleep(POLL)
    return count / (time.monotonic() - started)


def stored_subscriptions(data: Path, topic: str) -> int:
    with closing(sqlite3.connect(f"file:{data / DATABASE_NAME}?mode=ro", uri=True)) as reader:
        rows = reader.execute("SELECT live FROM subscriber_counts WHERE topic = ?", (topic,)).fetchall()
    return int(rows[0][0]) if rows else 0


async def measure_subscribing(folder: Path, scale: HubScale, tick: Ticker) -> tuple[list[Row], float]:
    sink = CallbackProcess()
    hub = await HubProcess.start(folder / "subscribing")
    bare = await HubProcess.run(BARE_COMMAND)
    rates: dict[str, list[float]] = {"hub": [], "bare loop": []}
    try:
        if not (await hub.listening() and await bare.listening()):
            raise BenchError("a server of this benchmark did not start")
        counter = LoopbackClient(bare.url)

        async def by_hub(topic: str) -> int:
            return await asyncio.to_thread(stored_subscriptions, folder / "subscribing", topic)

        async def by_bare_loop(_topic: str) -> int:
            return int((await counter.request("GET", "/verified"))[1])

        for number in range(scale.rounds + 1):
            count = scale.subscriptions_a_round if number else scale.subscriptions_a_round // 4
            measured = await subscribing_round(sink, hub.url, number, count, by_hub)
            beside = await subscribing_round(sink, bare.url, number, count, by_bare_loop)
            if number:  # the first round only opened connections
                rates["hub"].append(measured)
                rates["bare loop"].append(beside)
            tick("subscribing")
        counter.close()
        await hub.stop()
        await bare.stop()
    finally:
        hub.kill()
        bare.kill()
        sink.close()
    rows = [
        row("subscriptions/s through verification", who, statistics.median(found), samples=len(found))
        for who, found in rates.items()
    ]
    return rows, statistics.median(rates["hub"]) / statistics.median(rates["bare loop"])


# A large store


@dataclass(slots=True)
class Store:
    """One of the two that are compared, and what was measured on it."""

    name: str
    data: Path
    topics: int
    subscriptions: int
    start_seconds: list[float] = field(default_factory=list)
    memory_at_start: list[float] = field(default_factory=list)
    memory_after_pings: list[float] = field(default_factory=list)
    delays: list[float] = field(default_factory=list)

    @property
    def size(self) -> float:
        return sum(file.stat().st_size for file in self.data.iterdir()) / 2**20


def memory_of(pid: int) -> float:
    """Resident memory in MiB."""
    for line in Path(f"/proc/{pid}/status").read_text(encoding="ascii").splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) / 1024
    raise BenchError(f"the kernel does not say how much memory process {pid} has")


@asynccontextmanager
async def running(store: Store) -> AsyncIterator[tuple[HubProcess, LoopbackClient]]:
    """A hub on this store; how long it took to answer, and its memory then, are noted."""
    hub = await HubProcess.start(store.data)
    try:
        if not await hub.listening():
            raise BenchError(f"the hub did not start with {store.name}")
        client = LoopbackClient(hub.url)
        status, _ = await client.request("GET", "/health")
        if status != 200:
            raise BenchError(f"the hub with {store.name} says that it is not healthy")
        store.start_seconds.append(time.monotonic() - hub.started_at)
        store.memory_at_start.append(memory_of(hub.pid))
        yield hub, client
        client.close()
        await hub.stop()
    finally:
        hub.kill()


async def measure_starts(stores: list[Store], starts: int, tick: Ticker) -> None:
    for _ in range(starts):
        for store in stores:
            async with running(store):
                pass
            tick("starting")


# From a ping to the first delivery


class Surroundings:
    """The topics and callbacks of both hubs: `/topic/STORE/T` and `/callback/STORE/T/N`."""

    def __init__(self) -> None:
        self._numbers: dict[str, int] = {}
        self._waiting: dict[str, asyncio.Future[float]] = {}
        self.server = Server(self._handle, ADDRESSES)

    def topic(self, store: int, number: int) -> str:
        return self.server.url(f"/topic/{store}/{number}")

    def callback(self, store: int, topic: int, number: int) -> str:
        return self.server.url(f"/callback/{store}/{topic}/{number}", 1 + (topic + number) % ADDRESSES)

    def change(self, store: int, topic: int) -> "asyncio.Future[float]":
        """The topic says something new; resolves with the time its first delivery arrives."""
        key = f"{store}/{topic}"
        self._numbers[key] = self._numbers.get(key, 1) + 1
        self._waiting[key] = asyncio.get_running_loop().create_future()
        return self._waiting[key]

    def _handle(self, request: LoopbackRequest, reply: Reply) -> None:
        _, kind, store, topic, *_ = request.target.split("/")
        key = f"{store}/{topic}"
        if kind == "callback":
            arrived = time.monotonic()
            reply(OK)
            first = self._waiting.pop(key, None)
            if first is not None and not first.done():
                first.set_result(arrived)
            return
        number = self._numbers.get(key, 1)
        reply(answer(200, document(number), {"Content-Type": FEED, "ETag": f'"{number}"'}))


async def one_ping(client: LoopbackClient, around: Surroundings, store: int, topic: int) -> float:
    arrival = around.change(store, topic)
    form = urlencode({"hub.mode": "publish", "hub.url": around.topic(store, topic)})
    sent = time.monotonic()
    status, said = await client.post_form("/", form)
    if status != 204:
        raise BenchError(f"a ping was answered {status}: {said.decode(errors='replace').strip()}")
    try:
        return await asyncio.wait_for(arrival, PATIENCE) - sent
    except TimeoutError:
        raise BenchError(f"nothing was delivered within {PATIENCE:g} seconds of a ping") from None


async def measure_delays(stores: list[Store], around: Surroundings, scale: HubScale, tick: Ticker) -> None:
    rng = random.Random(SEED)  # noqa: S311 - the same topics in each run
    pings = WARM_UP + scale.pings_a_life
    for _ in range(scale.lives):
        async with running(stores[0]) as (one, one_client), running(stores[1]) as (many, many_client):
            sides = [(0, stores[0], one_client), (1, stores[1], many_client)]
            for number in range(pings):
                for index, store, client in sides if number % 2 else sides[::-1]:
                    delay = await one_ping(client, around, index, rng.randrange(store.topics))
                    if number >= WARM_UP:
                        store.delays.append(delay)
                    await asyncio.sleep(0.001)  # the other subscribers of the topic, if any, get theirs
                tick("pinging", 1 / pings)
            stores[0].memory_after_pings.append(memory_of(one.pid))
            stores[1].memory_after_pings.append(memory_of(many.pid))


# All of it


def row(what: str, who: str, median: float, p99: float | None = None, samples: int = 0) -> Row:
    return {"measured": what, "on": who, "median": median, "p99": p99, "samples": samples}


async def measure(scale: HubScale) -> BenchOutcome:
    around = Surroundings()
    per_topic = scale.subscriptions // scale.topics
    steps = scale.rounds + 1 + 10 + 2 * scale.starts + scale.lives
    with tempfile.TemporaryDirectory(prefix="psph-bench-") as name, progress_bar("hub", steps) as tick:
        folder = Path(name)
        try:
            rows, ratio = await measure_subscribing(folder, scale, tick)
            async with around.server:
                stores = [
                    Store("1 topic", folder / "one", 1, per_topic),
                    Store(f"{scale.topics:,} topics", folder / "many", scale.topics, scale.subscriptions),
                ]
                for index, store in enumerate(stores):
                    await asyncio.to_thread(seed, store, index, around, per_topic, scale, tick)
                await measure_starts(stores, scale.starts, tick)
                await measure_delays(stores, around, scale, tick)
        except (HubProcessError, ConnectionError) as error:
            raise BenchError(str(error)) from error
        rows += [one for store in stores for one in rows_of(store)]
    slower = statistics.median(stores[1].delays) / statistics.median(stores[0].delays)
    return BenchOutcome(
        {
            "subscriptions": scale.subscriptions,
            "topics": scale.topics,
            "subscriptions a round": scale.subscriptions_a_round,
            "connections": CONNECTIONS,
        },
        rows,
        [Bar(f"ping to first delivery, p50: {scale.topics:,} topics / 1 topic", slower, Sense.AT_MOST, BAR)],
        [
            f"Subscribing: the hub does {ratio:.2f} of a bare loop with the same HTTP exchanges and no logic.",
            "Delay: from sending the ping to the arrival of the first delivery; fetch and storing are within it.",
        ],
    )


def seed(store: Store, index: int, around: Surroundings, per_topic: int, scale: HubScale, tick: Ticker) -> None:
    seed_store(
        store.data,
        store.topics,
        per_topic,
        lambda number: around.topic(index, number),
        lambda topic, number: around.callback(index, topic, number),
        lambda done: tick("filling the store", 10 * done / scale.topics),
    )


def rows_of(store: Store) -> list[Row]:
    who = f"{store.name}, {store.subscriptions:,} subscriptions"
    delays = sorted(store.delays)
    return [
        row(
            "start until /health answers, s",
            who,
            statistics.median(store.start_seconds),
            percentile(sorted(store.start_seconds), 0.99),
            len(store.start_seconds),
        ),
        row(
            "memory after start, MiB", who, statistics.median(store.memory_at_start), samples=len(store.memory_at_start)
        ),
        row(
            "memory after pings, MiB",
            who,
            statistics.median(store.memory_after_pings),
            samples=len(store.memory_after_pings),
        ),
        row(
            "ping to first delivery, ms",
            who,
            percentile(delays, 0.5) * 1000,
            percentile(delays, 0.99) * 1000,
            len(delays),
        ),
        row("store, MiB", who, store.size),
    ]


class HubBenchmark:
    name = "hub"
    description = (
        "Subscriptions a second through verification, beside a bare loop of the same HTTP exchanges; time until a\n"
        "hub answers and its memory with a million subscriptions; and the delay from a ping to the first delivery\n"
        "with one topic and with 100,000, interleaved. The hub is a real process with its defaults.\n\n"
        "example:\n  psph bench hub --quick"
    )

    def configure(self, parser: argparse.ArgumentParser) -> None:
        """No options of its own."""

    def run(self, options: argparse.Namespace) -> BenchOutcome:
        return uvloop.run(measure(QUICK if options.quick else FULL))


BENCHMARK = HubBenchmark()
