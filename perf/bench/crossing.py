"""`psph bench crossing`: from a publisher's ping to the subscriber's callback, within one domain and across PSIRP.

    publisher -ping-> gateway n0 ==n0==n1==...==n8== gateway n1, n3 or n8 -POST-> subscriber        and a hub alone

Hub and gateways are processes, as an operator runs them but for the canary. The network's nodes are in this process on
in-process links, and so are publisher and callbacks: one clock sees both ends. Rendezvous and topology manager are at
a node where no gateway is, as in `docker-compose.yml`. One publication is under way at a time, and the ways take turns,
so that what else the machine does falls on all of them alike.
"""

import argparse
import asyncio
import json
import statistics
import tempfile
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import parse_qs, urlencode, urlsplit

import uvloop

from identifiers import DEFAULT_NAMING, Topic
from perf.bench.family import GATEWAYS_ARE, Bar, BenchError, BenchOutcome, Row, Sense, Ticker, percentile, progress_bar
from perf.loopback import LoopbackClient, LoopbackRequest, Reply, Server, answer
from perf.processes import Part, ProcessFailedError
from psirp_stack.emulation.network import EmulatedNetwork, socket_of
from psirp_stack.emulation.plan import plan
from psirp_stack.node.api import Client as PsirpClient
from psirp_stack.node.attachment import ReceivedVersion

ALONE = "hub alone"
HOPS = (1, 3, 8)
JUDGED = 3
ROLES_AT = "n5"
BAR = 1.5
SIZES = (287, 600, 1000, 1442)
LARGE = 100_000
WARM_UP = 5
PATIENCE = 30.0
CLIENT_ADDRESSES = 20
"""Pings come from several addresses: hubs limit what one client may ask."""
OK = answer(204)
ATOM = "application/atom+xml"


@dataclass(frozen=True, slots=True)
class CrossingScale:
    rounds: int
    """Publications of each size on each way."""
    firsts: int
    """Samples of ProcessD and TotalPushD."""
    topics: int
    seconds: float
    """How many topics publish as fast as they can, and for how long."""


FULL = CrossingScale(60, 20, 40, 8.0)
QUICK = CrossingScale(15, 5, 20, 2.0)


def atom(number: int, size: int) -> bytes:
    """A feed with one entry, of this many bytes."""
    head = (
        '<?xml version="1.0"?><feed xmlns="http://www.w3.org/2005/Atom"><id>urn:f</id><title>f</title>'
        f"<updated>2026-01-01T00:00:00Z</updated><entry><id>urn:e:{number:08}</id><title>e</title><content>"
    )
    tail = "</content></entry></feed>"
    return (head + "." * (size - len(head) - len(tail)) + tail).encode()


class Web:
    """Publisher and subscribers of all ways: `/WAY/NAME` is a topic when read and a callback when posted to."""

    def __init__(self) -> None:
        self.documents: dict[str, bytes] = {}
        self._awaited: dict[tuple[str, bytes], asyncio.Future[float]] = {}
        self._server = Server(self._handle)

    @asynccontextmanager
    async def running(self) -> AsyncIterator["Web"]:
        async with self._server:
            yield self

    def url(self, path: str) -> str:
        return self._server.url(path)

    def expect(self, path: str, body: bytes) -> "asyncio.Future[float]":
        """When this body comes to this callback."""
        return self._awaited.setdefault((path, body), asyncio.get_running_loop().create_future())

    def _handle(self, request: LoopbackRequest, reply: Reply) -> None:
        now = time.perf_counter()
        parts = urlsplit(request.target)
        if request.method == "POST":
            waiting = self._awaited.pop((parts.path, request.body), None)
            if waiting is not None and not waiting.done():
                waiting.set_result(now)
            reply(OK)
        elif "hub.challenge" in parts.query:
            reply(answer(200, parse_qs(parts.query)["hub.challenge"][0].encode()))
        else:
            reply(answer(200, self.documents[parts.path], {"Content-Type": ATOM}))


@dataclass(frozen=True, slots=True)
class CrossingPath:
    """Where to ping and where to subscribe."""

    name: str
    publish_at: str
    subscribe_at: str


class CrossingBench:
    def __init__(self, scale: CrossingScale, tick: Ticker) -> None:
        self._scale = scale
        self._tick = tick
        self._web = Web()
        self._number = 0
        self._clients: dict[tuple[str, int], LoopbackClient] = {}
        self._stack = AsyncExitStack()

    async def run(self) -> BenchOutcome:
        async with self._stack:
            folder = Path(self._stack.enter_context(tempfile.TemporaryDirectory(prefix="psph-bench-")))
            await self._stack.enter_async_context(self._web.running())
            self._sockets = folder / "network"
            ways = await self._ways(folder)
            rows, delays = await self._steady(ways)
            rows += await self._firsts(next(way for way in ways if way.name == _hops(JUDGED)))
            rows += await self._sustained([way for way in ways if way.name in (ALONE, _hops(JUDGED))])
            return BenchOutcome(
                {"rounds": self._scale.rounds, "hops judged": JUDGED, "topics at once": self._scale.topics},
                rows,
                [self._bar(delays)],
                (
                    GATEWAYS_ARE,
                    "delays are in ms; p50 / hub alone is the ratio within this run, size by size",
                    "ProcessD: subscribing at a node until the feed is there",
                    "TotalPushD: hub.mode=subscribe until its callback has the feed, intent check included",
                ),
            )

    async def _ways(self, folder: Path) -> list[CrossingPath]:
        self._sockets.mkdir()
        nodes = max(HOPS) + 1
        network = await EmulatedNetwork.start(
            plan({"generate": {"kind": "line", "nodes": nodes}, "roles": {"rendezvous": ROLES_AT}}, folder),
            self._sockets,
        )
        self._stack.push_async_callback(network.close)
        async with asyncio.timeout(PATIENCE):
            await network.settled()
        alone = await self._process(
            ["hub", "--port", "0", "--data", str(folder / "hub"), "--allow-private", "--no-canary"]
        )
        hubs = {hops: await self._gateway(folder, hops) for hops in (0, *HOPS)}
        return [CrossingPath(ALONE, alone, alone), *(CrossingPath(_hops(hops), hubs[0], hubs[hops]) for hops in HOPS)]

    async def _gateway(self, folder: Path, node: int) -> str:
        file = folder / f"gateway-{node}.toml"
        socket = json.dumps(str(socket_of(self._sockets, f"n{node}")))
        file.write_text(
            f'[store]\npath = "gateway-{node}"\n[network]\nattach = {socket}\n'
            '[hub]\nlisten = "127.0.0.1:0"\nallow_private = true\ncanary = { enabled = false }\n'
        )
        return await self._process(["gateway", "-c", str(file)])

    async def _process(self, command: list[str]) -> str:
        """Start it; says its hub's address."""
        part = Part(command[0], command)
        self._stack.push_async_callback(part.end)
        try:
            await part.start()
            return (await part.ready()).removeprefix("hub at ").strip()
        except ProcessFailedError as error:
            raise BenchError(str(error)) from None

    # One after the other.

    async def _steady(self, ways: list[CrossingPath]) -> tuple[list[Row], dict[tuple[str, int], list[float]]]:
        sizes = (*SIZES, LARGE)
        for way in ways:
            for size in sizes:
                await self._subscribe(way, _path(way, size))
                for _ in range(WARM_UP):
                    await self._publish(way, _path(way, size), size)
        delays: dict[tuple[str, int], list[float]] = {(way.name, size): [] for way in ways for size in sizes}
        for number in range(self._scale.rounds):
            for size in sizes:
                turn = number % len(ways)
                for way in (*ways[turn:], *ways[:turn]):
                    delays[way.name, size].append(await self._publish(way, _path(way, size), size))
            self._tick("one publication at a time")
        rows = []
        for size in sizes:
            usual = statistics.median(delays[ALONE, size])
            for way in ways:
                rows.append(_row("publication to callback", size, way.name, delays[way.name, size], usual))
        return rows, delays

    def _bar(self, delays: dict[tuple[str, int], list[float]]) -> Bar:
        """Over all small payloads, which hardly differ."""
        p50 = {
            name: statistics.median([delay for size in SIZES for delay in delays[name, size]])
            for name in (ALONE, _hops(JUDGED))
        }
        ratio = p50[_hops(JUDGED)] / p50[ALONE]
        return Bar(f"p50 across {JUDGED} hops / p50 of the hub alone, 287 to 1442 bytes", ratio, Sense.AT_MOST, BAR)

    async def _publish(self, way: CrossingPath, path: str, size: int) -> float:
        """A new document, a ping; the seconds until the callback has it."""
        self._number += 1
        body = self._web.documents[path] = atom(self._number, size)
        arrived = self._web.expect(path, body)
        started = time.perf_counter()
        await self._post(way.publish_at, {"hub.mode": "publish", "hub.url": self._web.url(path)})
        try:
            return await asyncio.wait_for(arrived, PATIENCE) - started
        except TimeoutError:
            raise BenchError(f"a publication on the way {way.name!r} did not arrive in {PATIENCE:g} s") from None

    async def _subscribe(self, way: CrossingPath, path: str) -> None:
        """Subscribe, and publish until it is known that the subscription stands."""
        url = self._web.url(path)
        await self._post(way.subscribe_at, {"hub.mode": "subscribe", "hub.topic": url, "hub.callback": url})
        self._number += 1
        body = self._web.documents[path] = atom(self._number, LARGE if path.endswith(str(LARGE)) else SIZES[0])
        arrived = self._web.expect(path, body)
        # A hub alone sends what is published after the subscription is verified: ask again until it is.
        for _ in range(int(PATIENCE / 0.5)):
            await self._post(way.publish_at, {"hub.mode": "publish", "hub.url": url})
            done, _ = await asyncio.wait((arrived,), timeout=0.5)
            if done:
                return
            self._number += 1
            body = self._web.documents[path] = atom(self._number, len(body))
            arrived = self._web.expect(path, body)
        raise BenchError(f"nothing came to a new subscriber on the way {way.name!r} in {PATIENCE:g} s")

    # The first publication for a new subscriber.

    async def _firsts(self, way: CrossingPath) -> list[Row]:
        inside: list[float] = []
        total: list[float] = []
        socket = socket_of(self._sockets, f"n{JUDGED}")
        async with await PsirpClient.attach(socket, application="bench") as client:
            for number in range(self._scale.firsts):
                for kind, samples in (("process", inside), ("total", total)):
                    path = f"/first/{kind}/{number}"
                    self._number += 1
                    body = self._web.documents[path] = atom(self._number, SIZES[0])
                    await self._post(way.publish_at, {"hub.mode": "publish", "hub.url": self._web.url(path)})
                    await self._published(client, path)
                    if kind == "process":
                        samples.append(await self._process_delay(client, path))
                    else:
                        arrived = self._web.expect(path, body)
                        started = time.perf_counter()
                        url = self._web.url(path)
                        form = {"hub.mode": "subscribe", "hub.topic": url, "hub.callback": url}
                        await self._post(way.subscribe_at, form)
                        samples.append(await asyncio.wait_for(arrived, PATIENCE) - started)
                self._tick("first publications")
        return [
            _row("ProcessD", SIZES[0], way.name, inside, None),
            _row("TotalPushD", SIZES[0], way.name, total, None),
        ]

    async def _published(self, client: PsirpClient, path: str) -> None:
        """Wait until the rendezvous knows the item: what is measured begins with a subscription."""
        item = DEFAULT_NAMING.of_topic(Topic.parse(self._web.url(path)))
        async with asyncio.timeout(PATIENCE):
            while not (await client.explain(item.sid, item.rid)).publishers:  # noqa: ASYNC110
                await asyncio.sleep(0.005)

    async def _process_delay(self, client: PsirpClient, path: str) -> float:
        item = DEFAULT_NAMING.of_topic(Topic.parse(self._web.url(path)))
        arrived: asyncio.Future[float] = asyncio.get_running_loop().create_future()

        def taken(publication: ReceivedVersion) -> None:
            if not arrived.done():
                arrived.set_result(time.perf_counter())

        started = time.perf_counter()
        subscription = await client.subscribe(item.sid, item.rid, taken)
        delay = await asyncio.wait_for(arrived, PATIENCE) - started
        await client.unsubscribe(subscription)
        return delay

    # As fast as they can.

    async def _sustained(self, ways: list[CrossingPath]) -> list[Row]:
        rates: dict[str, float] = {}
        for way in ways:
            paths = [f"/fast{_path(way, number)}" for number in range(self._scale.topics)]
            await asyncio.gather(*(self._subscribe(way, path) for path in paths))
            end = time.perf_counter() + self._scale.seconds
            counts = await asyncio.gather(*(self._keep_publishing(way, path, end) for path in paths))
            rates[way.name] = sum(counts) / self._scale.seconds
            self._tick("many topics at once")
        return [
            {
                "measured": "publications a second",
                "bytes": SIZES[0],
                "way": name,
                "p50": rate,
                "p99": None,
                "p50 / hub alone": rate / rates[ALONE],
                "samples": self._scale.topics,
            }
            for name, rate in rates.items()
        ]

    async def _keep_publishing(self, way: CrossingPath, path: str, end: float) -> int:
        count = 0
        while time.perf_counter() < end:
            await self._publish(way, path, SIZES[0])
            count += 1
        return count

    async def _post(self, hub: str, form: dict[str, str]) -> None:
        key = (hub, self._number % CLIENT_ADDRESSES)
        kept = self._clients.pop(key, None)
        client = kept or LoopbackClient(hub, f"127.0.0.{1 + key[1]}")
        try:
            try:
                status, said = await client.post_form("/", urlencode(form))
            except ConnectionError:
                if kept is None:
                    raise
                # The hub has closed a connection that was idle for too long: an ordinary client opens another.
                client.close()
                client = LoopbackClient(hub, f"127.0.0.{1 + key[1]}")
                status, said = await client.post_form("/", urlencode(form))
        except ConnectionError as error:
            raise BenchError(f"{hub}: {error}") from None
        if status not in (202, 204):
            raise BenchError(f"{hub} answered {status}: {said.decode(errors='replace').strip()}")
        if self._clients.setdefault(key, client) is not client:
            client.close()


def _hops(hops: int) -> str:
    return f"{hops} hop" if hops == 1 else f"{hops} hops"


def _path(way: CrossingPath, size: int) -> str:
    return f"/{way.name.replace(' ', '-')}/{size}"


def _row(measured: str, size: int, way: str, seconds: list[float], usual: float | None) -> Row:
    ordered = sorted(seconds)
    return {
        "measured": measured,
        "bytes": size,
        "way": way,
        "p50": percentile(ordered, 0.5) * 1000,
        "p99": percentile(ordered, 0.99) * 1000,
        "p50 / hub alone": None if usual is None else statistics.median(ordered) / usual,
        "samples": len(seconds),
    }


class CrossingBenchmark:
    name = "crossing"
    description = (
        "Delay from a publisher's ping to the subscriber's callback: a hub alone, and two gateways with 1, 3 and 8\n"
        "hops of a PSIRP network between them; the first publication for a new subscriber (ProcessD, TotalPushD); and\n"
        "how many publications a second are sustained."
    )

    def configure(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument("--rounds", type=int, metavar="N", help="publications of each size on each way")

    def run(self, options: argparse.Namespace) -> BenchOutcome:
        scale = QUICK if options.quick else FULL
        if options.rounds is not None:
            if options.rounds < 1:
                raise BenchError(f"--rounds {options.rounds}: expected at least 1")
            scale = CrossingScale(options.rounds, scale.firsts, scale.topics, scale.seconds)
        with progress_bar(self.name, scale.rounds + scale.firsts + 2) as tick:
            return uvloop.run(CrossingBench(scale, tick).run())


BENCHMARK = CrossingBenchmark()
