"""`psph bench viewers`: do people who look at the dashboard slow deliveries down?

One gateway with its admin port, as an operator runs it, delivers publications to many callbacks; rounds without
anybody looking and rounds with many open dashboards take turns. Callbacks are a process of their own; publisher,
network and viewers are in this one. A round is long enough for several snapshots.
"""

import argparse
import asyncio
import json
import os
import statistics
import tempfile
import time
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from urllib.parse import urlencode, urlsplit

import uvloop

from perf.bench.crossing import ATOM, SIZES, atom
from perf.bench.family import (
    GATEWAYS_ARE,
    Bar,
    BenchError,
    BenchOutcome,
    Row,
    Sense,
    Ticker,
    median_interval,
    progress_bar,
)
from perf.bench.fanout import SinkProcess
from perf.bench.hub_seed import seed_store
from perf.loopback import LoopbackClient, LoopbackRequest, Reply, Server, answer
from perf.processes import Part, ProcessFailedError
from psirp_stack.emulation.network import EmulatedNetwork, socket_of
from psirp_stack.emulation.plan import plan
from serving.outbound.addresses import AddressPolicy
from serving.outbound.client import ClientConfig, OutboundClient
from storage.private import make_private_folder

BAR = 0.95
PATIENCE = 60.0
READ_BYTES = 1 << 16
CONNECTING_AT_ONCE = 50


@dataclass(frozen=True, slots=True)
class ViewersScale:
    viewers: int
    callbacks: int
    updates: int
    """Publications in a round."""
    rounds: int


FULL = ViewersScale(200, 4000, 10, 12)
QUICK = ViewersScale(200, 4000, 8, 5)


@dataclass(frozen=True, slots=True)
class Round:
    """Deliveries a second from the first ping to the last arrival, and what they cost the gateway."""

    rate: float
    wall: float
    cpu: float


def processor_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


class ViewersBench:
    def __init__(self, scale: ViewersScale, tick: Ticker) -> None:
        self._scale = scale
        self._tick = tick
        self._number = 1
        self._body = b""
        self._stack = AsyncExitStack()
        self._viewers: list[asyncio.Task[None]] = []
        self._seen = 0

    async def run(self) -> BenchOutcome:
        async with self._stack:
            folder = Path(self._stack.enter_context(tempfile.TemporaryDirectory(prefix="psph-bench-")))
            server = await self._stack.enter_async_context(Server(self._publisher))
            self._topic = server.url("/feed")
            self._sink = SinkProcess()
            self._stack.callback(self._sink.close)
            self._asking = OutboundClient(ClientConfig(policy=AddressPolicy(allow_private=True)))
            self._stack.push_async_callback(self._asking.close)
            hub, dashboard = await self._gateway(folder)
            self._hub = LoopbackClient(hub)
            self._stack.callback(self._hub.close)
            without: list[Round] = []
            looking: list[Round] = []
            await self._round()  # warm-up
            for number in range(self._scale.rounds):
                # Neighbours in time are compared; who goes first alternates.
                for watched in (False, True) if number % 2 else (True, False):
                    if watched:
                        await self._open(dashboard)
                    (looking if watched else without).append(await self._round())
                    if watched:
                        await self._close()
                    self._tick("rounds")
        ratios = [a.rate / b.rate for a, b in zip(looking, without, strict=True)]
        ratio = statistics.median(ratios)
        # What the same deliveries cost more, as a share of the time they took: says more on a machine that is busy.
        share = (sum(one.cpu for one in looking) - sum(one.cpu for one in without)) / sum(one.wall for one in looking)
        rows = [_row(0, without), _row(self._scale.viewers, looking)]
        what = f"deliveries a second with {self._scale.viewers} dashboards / with none"
        bar = Bar(what, ratio, Sense.AT_LEAST, BAR, median_interval(ratios))
        remarks = (
            f"{self._seen:,} snapshots were sent to viewers; they took {share:.1%} of one processor",
            "the ratio is the median over neighbouring rounds",
            f"{GATEWAYS_ARE}; requests per client of the admin port are raised to 10,000",
        )
        parameters: Row = {
            "callbacks": self._scale.callbacks,
            "updates": self._scale.updates,
            "rounds": self._scale.rounds,
        }
        return BenchOutcome(parameters, rows, [bar], remarks)

    async def _gateway(self, folder: Path) -> tuple[str, str]:
        sockets = folder / "network"
        sockets.mkdir()
        network = await EmulatedNetwork.start(plan({"generate": {"kind": "line", "nodes": 2}}, folder), sockets)
        self._stack.push_async_callback(network.close)
        async with asyncio.timeout(PATIENCE):
            await network.settled()
        urls = self._sink.urls(self._scale.callbacks)
        make_private_folder(folder / "gateway")
        seed_store(
            folder / "gateway" / "hub", 1, len(urls), lambda _: self._topic, lambda _, one: urls[one], lambda _: None
        )
        file = folder / "gateway.toml"
        file.write_text(
            f'[store]\npath = "gateway"\n[network]\nattach = {json.dumps(str(socket_of(sockets, "n0")))}\n'
            '[hub]\nlisten = "127.0.0.1:0"\nallow_private = true\ncanary = { enabled = false }\n'
            '[admin]\nlisten = "127.0.0.1:0"\nrequests_per_client = 10000\n'
        )
        part = Part("gateway", ["gateway", "-c", str(file)])
        self._stack.push_async_callback(part.end)
        try:
            await part.start()
            self._pid = part.pid
            hub = (await part.ready()).removeprefix("hub at ").strip()
            while not (line := await part.ready()).startswith("dashboard at "):
                pass
        except ProcessFailedError as error:
            raise BenchError(str(error)) from None
        return hub, line.removeprefix("dashboard at ").strip()

    def _publisher(self, _request: LoopbackRequest, reply: Reply) -> None:
        reply(answer(200, self._body, {"Content-Type": ATOM}))

    async def _round(self) -> Round:
        expected = self._scale.callbacks
        started, cpu = time.monotonic(), processor_seconds(self._pid)
        last = started
        for _ in range(self._scale.updates):
            self._number += 1
            self._body = atom(self._number, SIZES[0])
            form = urlencode({"hub.mode": "publish", "hub.url": self._topic})
            status, said = await self._hub.post_form("/", form)
            if status not in (202, 204):
                raise BenchError(f"the hub answered {status}: {said.decode(errors='replace').strip()}")
            try:
                async with asyncio.timeout(PATIENCE):
                    last = max(await self._sink.arrivals(self._asking, expected))
            except TimeoutError:
                raise BenchError(f"a publication did not reach all callbacks in {PATIENCE:g} s") from None
        wall = last - started
        return Round(self._scale.updates * expected / wall, wall, processor_seconds(self._pid) - cpu)

    # Viewers.

    async def _open(self, dashboard: str) -> None:
        parts = urlsplit(dashboard)
        gate = asyncio.Semaphore(CONNECTING_AT_ONCE)
        opened = []
        for _ in range(self._scale.viewers):
            first: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            opened.append(first)
            self._viewers.append(asyncio.create_task(self._look(parts.hostname or "", parts.port or 0, gate, first)))
        async with asyncio.timeout(PATIENCE):
            await asyncio.gather(*opened)

    async def _look(self, host: str, port: int, gate: asyncio.Semaphore, first: "asyncio.Future[None]") -> None:
        async with gate:
            reader, writer = await asyncio.open_connection(host, port)
            writer.write(f"GET /api/stream HTTP/1.1\r\nHost: {host}:{port}\r\n\r\n".encode())
            head = await reader.readuntil(b"\r\n\r\n")
        try:
            if b" 200 " not in head.partition(b"\r\n")[0]:
                first.set_exception(BenchError(f"a viewer was refused: {head[:80]!r}"))
                return
            while data := await reader.read(READ_BYTES):
                self._seen += data.count(b"data: ")
                if not first.done():
                    first.set_result(None)
        finally:
            writer.close()

    async def _close(self) -> None:
        for task in self._viewers:
            task.cancel()
        await asyncio.gather(*self._viewers, return_exceptions=True)
        self._viewers.clear()


def _row(dashboards: int, rounds: list[Round]) -> Row:
    rates = [one.rate for one in rounds]
    return {"dashboards": dashboards, "deliveries a second": statistics.median(rates), "least": min(rates)}


class ViewersBenchmark:
    name = "viewers"
    description = (
        "Deliveries a second of a gateway while nobody looks at its dashboard, and while many do; rounds of both take\n"
        "turns. The bar: many viewers cost at most a twentieth."
    )

    def configure(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument("--viewers", type=int, metavar="N", help="open dashboards (200)")
        parser.add_argument("--rounds", type=int, metavar="N", help="pairs of rounds")

    def run(self, options: argparse.Namespace) -> BenchOutcome:
        scale = QUICK if options.quick else FULL
        for name in ("viewers", "rounds"):
            value = getattr(options, name)
            if value is not None:
                if value < 1:
                    raise BenchError(f"--{name} {value}: expected at least 1")
                scale = replace(scale, **{name: value})
        with progress_bar(self.name, 2 * scale.rounds) as tick:
            return uvloop.run(ViewersBench(scale, tick).run())


BENCHMARK = ViewersBenchmark()
