"""How fast a PSIRP network is for its applications, and how it takes growth and failure.

Publications go from one application to another over a line of nodes and come back as another item's publication: that
is a round trip. For the rate a window of publications is under way at a time. Both go through the API, so that Unix
sockets, segmentation and acknowledgements are all in the figures. In process all nodes share one
event loop and one core; over veth each is a process in a network namespace of its own (root only).

Sizes and distances take turns round by round, so that a busy moment of the machine does not fall on one of them.
"""

import argparse
import asyncio
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TypeVar

import uvloop

from identifiers import Identifier
from perf.bench import psirp_rate, psirp_rendezvous
from perf.bench.family import Bar, Benchmark, BenchOutcome, Row, Sense, Ticker, percentile, progress_bar
from perf.bench.psirp_rate import RateFound
from psirp_stack.emulation.namespaces import NamespaceError, NamespaceNetwork
from psirp_stack.emulation.network import EmulatedNetwork, socket_of
from psirp_stack.emulation.plan import NetworkPlan, plan
from psirp_stack.emulation.ring import run_ring
from psirp_stack.node.api import Client
from psirp_stack.node.attachment import ReceivedVersion
from psirp_stack.node.config import TimesFile

SIZES = (100, 1_000, 100_000)
HOPS = (1, 3, 8)
WINDOW = 32
WINDOW_BYTES = 4_000_000
"""Content published for one figure of the rate, at most."""
MATCHED_ITEMS = 300
RING_PUBLICATIONS = 10_000
SETTLE_SECONDS = 60.0
IN_PROCESS = "in process"
VETH = "veth"
UDP = "UDP, CPU time"
RATE_ROUNDS = {True: (3, 400), False: (9, 1600)}
"""Rounds and publications, with --quick and without."""
NDN_BAR, BARE_BAR = 2.0, 0.25
RENDEZVOUS_TURNS = (20, 300)
"""Matches in a round, one by one and together."""

Found = TypeVar("Found")

_SID = Identifier(b"\x42" * 32)


@dataclass(slots=True)
class _Pair:
    """One application at the line's beginning and one `hops` further on, with an item for each direction."""

    size: int
    hops: int
    near: Client
    far: Client
    ping: Identifier
    pong: Identifier
    counter: int = 0
    received: int = 0
    answered: asyncio.Event = field(default_factory=asyncio.Event)
    all_there: asyncio.Event = field(default_factory=asyncio.Event)
    awaited: int = 0
    answers: bool = True
    trips: list[float] = field(default_factory=list)
    rates: list[float] = field(default_factory=list)

    async def start(self) -> None:
        await self.far.subscribe(_SID, self.ping, self._on_ping)
        await self.near.subscribe(_SID, self.pong, self._on_pong)
        async with asyncio.timeout(SETTLE_SECONDS):
            await self.round_trip()
        self.trips.clear()

    async def _on_ping(self, publication: ReceivedVersion) -> None:
        self.received += 1
        if self.answers:
            await self.far.publish(_SID, self.pong, publication.content)
        elif self.received >= self.awaited:
            self.all_there.set()

    def _on_pong(self, publication: ReceivedVersion) -> None:
        if publication.content == self._content():
            self.answered.set()

    def _content(self) -> bytes:
        return self.counter.to_bytes(8, "big").ljust(self.size, b"x")

    async def round_trip(self) -> None:
        self.counter += 1
        self.answered.clear()
        begin = time.perf_counter()
        await self.near.publish(_SID, self.ping, self._content())
        await self.answered.wait()
        self.trips.append(time.perf_counter() - begin)

    async def windowed(self, count: int) -> None:
        self.answers = False
        self.received, self.awaited = 0, count
        self.all_there.clear()
        room = asyncio.Semaphore(WINDOW)

        async def one(content: bytes) -> None:
            async with room:
                await self.near.publish(_SID, self.ping, content)

        begin = time.perf_counter()
        async with asyncio.TaskGroup() as group:
            for _ in range(count):
                self.counter += 1
                group.create_task(one(self._content()))
        async with asyncio.timeout(SETTLE_SECONDS):
            await self.all_there.wait()
        self.rates.append(count / (time.perf_counter() - begin))
        self.answers = True

    def row(self, carrier: str) -> Row:
        trips = sorted(self.trips)
        rate = sorted(self.rates)[len(self.rates) // 2]
        return _row(
            "publications",
            carrier,
            bytes=self.size,
            hops=self.hops,
            p50=percentile(trips, 0.5) * 1e3,
            p99=percentile(trips, 0.99) * 1e3,
            rate=rate,
            megabytes=rate * self.size / 1e6,
        )


def _row(
    what: str,
    carrier: str,
    *,
    bytes: int | None = None,  # noqa: A002  (a column's name)
    hops: int | None = None,
    p50: float | None = None,
    p99: float | None = None,
    rate: float | None = None,
    megabytes: float | None = None,
    memory: float | None = None,
    cpu: float | None = None,
    of_bare: float | None = None,
) -> Row:
    return {
        "measured": what,
        "carrier": carrier,
        "bytes": bytes,
        "hops": hops,
        "p50 ms": p50,
        "p99 ms": p99,
        "a second": rate,
        "MB/s": megabytes,
        "CPU ms": cpu,
        "of bare": of_bare,
        "memory MiB": memory,
    }


def _line() -> NetworkPlan:
    """The last node has the roles, and so a disk to wait for: publications go between the others."""
    nodes = max(HOPS) + 2
    return plan({"generate": {"kind": "line", "nodes": nodes}, "roles": {"rendezvous": f"n{nodes - 1}"}}, Path())


async def _publications(data: Path, carrier: str, rounds: int, tick: Ticker) -> list[Row]:
    """Round trips and rates between applications of nodes whose sockets are in a folder."""
    near = await _attached(socket_of(data, "n0"))
    far = {hops: await _attached(socket_of(data, f"n{hops}")) for hops in HOPS}
    pairs = []
    for place, (size, hops) in enumerate((size, hops) for size in SIZES for hops in HOPS):
        ping, pong = (Identifier(bytes([place + 1, way]) * 16) for way in (1, 2))
        pairs.append(_Pair(size, hops, near, far[hops], ping, pong))
    try:
        for pair in pairs:
            await pair.start()
        for _ in range(rounds):
            for pair in pairs:
                async with asyncio.timeout(SETTLE_SECONDS):
                    await pair.round_trip()
            tick(f"round trips {carrier}")
        for _ in range(max(1, rounds // 40)):
            for pair in pairs:
                await pair.windowed(min(400, max(40, WINDOW_BYTES // pair.size)))
            tick(f"rate {carrier}")
        return [pair.row(carrier) for pair in pairs]
    finally:
        for client in (near, *far.values()):
            await client.close()


async def _attached(path: Path) -> Client:
    """Attach as soon as the node is there."""
    async with asyncio.timeout(SETTLE_SECONDS):
        while True:
            try:
                return await Client.attach(path, application="bench")
            except ConnectionError:
                await asyncio.sleep(0.05)


async def _in_process(data: Path, rounds: int, tick: Ticker) -> list[Row]:
    network = await EmulatedNetwork.start(_line(), data, TimesFile(hello=0.25))
    try:
        async with asyncio.timeout(SETTLE_SECONDS):
            await network.settled()
        rows = await _publications(data, IN_PROCESS, rounds, tick)
        rows.append(await _matches(data))
        tick("matches")
        return rows
    finally:
        await network.close()


async def _matches(data: Path) -> Row:
    """Items that are published at one end and subscribed to at the other: from the request to the first version."""
    count = MATCHED_ITEMS
    async with await _attached(socket_of(data, "n0")) as near, await _attached(socket_of(data, "n3")) as far:
        rids = [Identifier(b"\x77" * 28 + number.to_bytes(4, "big")) for number in range(1, count + 1)]
        await asyncio.gather(*(near.publish(_SID, rid, b"matched") for rid in rids))
        arrived: list[float] = []
        done = asyncio.Event()
        begin = time.perf_counter()

        def on_publication(_: ReceivedVersion) -> None:
            arrived.append(time.perf_counter() - begin)
            if len(arrived) == count:
                done.set()

        await asyncio.gather(*(far.subscribe(_SID, rid, on_publication) for rid in rids))
        async with asyncio.timeout(SETTLE_SECONDS):
            await done.wait()
        return _row("matches, all asked at once", IN_PROCESS, hops=3, rate=count / arrived[-1])


async def _recovery(data: Path, hello: float) -> float:
    """Seconds from a link's death to the first delivery of something that was published after it."""
    network = await EmulatedNetwork.start(
        plan({"generate": {"kind": "ring", "nodes": 6}}, Path()), data, TimesFile(hello=hello)
    )
    try:
        async with asyncio.timeout(SETTLE_SECONDS):
            await network.settled()
        async with await _attached(socket_of(data, "n1")) as publisher, await _attached(socket_of(data, "n3")) as other:
            latest = -1
            cut_at, first_after = 0.0, 0
            recovered: asyncio.Future[float] = asyncio.get_running_loop().create_future()

            def on_publication(publication: ReceivedVersion) -> None:
                nonlocal latest
                latest = int(publication.content)
                if cut_at and latest >= first_after and not recovered.done():
                    recovered.set_result(time.perf_counter() - cut_at)

            await other.subscribe(_SID, _SID, on_publication)
            number = 0
            async with asyncio.timeout(SETTLE_SECONDS):
                while not recovered.done():
                    await publisher.publish(_SID, _SID, b"%d" % number)
                    number += 1
                    await asyncio.sleep(0.005)
                    if not cut_at and latest > 50:
                        for ends in (("n2", "n3"), ("n3", "n2")):
                            network.links[ends].close()
                        cut_at, first_after = time.perf_counter(), number
            return await recovered
    finally:
        await network.close()


def _over_veth(data: Path, rounds: int, tick: Ticker) -> list[Row]:
    network = NamespaceNetwork(_line(), data)
    network.up()
    try:
        return asyncio.run(_publications(data, VETH, rounds, tick))
    finally:
        network.down()


def _why_no_veth() -> str | None:
    if os.geteuid() != 0:
        return "not measured over veth: that needs root"
    if shutil.which("ip") is None:
        return "not measured over veth: the command `ip` is missing (Debian package iproute2)"
    return None


class PsirpBenchmark:
    name = "psirp"
    description = (
        "Publications over 1, 3 and 8 hops, in process and over veth: round trip and rate. Publications for a\n"
        "second of CPU, from one to one and to sixteen over UDP, beside a bare loop of the same links. Matches a\n"
        "second, time from a link's death to the first delivery on the new path, the rendezvous with up to a million\n"
        "items.\n"
        "--ring adds 10,000 publications over a lossy ring of 20 nodes with a forwarder that dies and returns."
    )

    def configure(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument("--ring", action="store_true", help="also the lossy ring (about a minute)")
        parser.add_argument("--no-veth", action="store_true", help="leave out what needs root")

    def run(self, options: argparse.Namespace) -> BenchOutcome:
        rounds = 25 if options.quick else 200
        remarks: list[str] = []
        rows: list[Row] = []
        with progress_bar("psirp", 3 * rounds + 14) as tick:
            rows += _in_folder(lambda data: asyncio.run(_in_process(data, rounds, tick)))
            why_not = "not measured over veth: --no-veth" if options.no_veth else _why_no_veth()
            if why_not is None:
                try:
                    rows += _in_folder(lambda data: _over_veth(data, rounds // 2, tick))
                except NamespaceError as error:
                    why_not = f"not measured over veth: {error}"
            if why_not is not None:
                remarks.append(why_not)
            rates = _in_folder(lambda data: uvloop.run(psirp_rate.measure(data, *RATE_ROUNDS[options.quick], tick)))
            rows += [row for found in rates for row in _rate_rows(found)]
            rows += _recoveries((0.1,) if options.quick else (0.1, 0.1, 0.1, 1.0), tick)
            if options.ring:
                rows.append(_in_folder(lambda data: _ring(data, remarks)))
        bars = [*_rate_bars(rates), self._rendezvous(rows, options.quick)]
        remarks.append(
            "UDP: a second of processor time, of all nodes and applications; python-ndn with NFD publishes "
            f"{psirp_rate.NDN_SEQUENTIAL:,.0f} a second one by one and {psirp_rate.NDN_WINDOWED:,.0f} windowed; "
            "of bare: frames, of those that a bare loop moves over the same links"
        )
        parameters: Row = {"rounds": rounds, "window": WINDOW, "processors": os.cpu_count()}
        return BenchOutcome(parameters, rows, bars, remarks)

    def _rendezvous(self, rows: list[Row], quick: bool) -> Bar:
        sizes = psirp_rendezvous.QUICK_SIZES if quick else psirp_rendezvous.FULL_SIZES
        turns = psirp_rendezvous.QUICK_ROUNDS if quick else psirp_rendezvous.FULL_ROUNDS
        p50: list[float] = []
        for size, found in zip(sizes, psirp_rendezvous.measure(sizes, *RENDEZVOUS_TURNS, turns), strict=True):
            p50.append(_number(found, "match p50 ms"))
            rows.append(
                _row(
                    f"match, {size:,} items",
                    "rendezvous",
                    p50=p50[-1],
                    p99=_number(found, "match p99 ms"),
                    rate=_number(found, "matches/s"),
                    memory=_number(found, "memory MiB"),
                )
            )
        return Bar(f"match p50 at {sizes[-1]:,} items / at {sizes[0]:,}", p50[-1] / p50[0], Sense.AT_MOST, 3)


def _recover(hello: float, data: Path) -> float:
    return asyncio.run(_recovery(data, hello))


def _recoveries(hellos: Sequence[float], tick: Ticker) -> list[Row]:
    found: dict[float, list[float]] = {}
    for hello in hellos:
        seconds = _in_folder(partial(_recover, hello))
        found.setdefault(hello, []).append(seconds)
        tick("a link dies")
    return [
        _row(
            f"new path, hellos every {hello:g} s",
            IN_PROCESS,
            hops=4,
            p50=percentile(sorted(times), 0.5) * 1e3,
            p99=max(times) * 1e3,
        )
        for hello, times in found.items()
    ]


def _rate_rows(found: RateFound) -> list[Row]:
    what = f"1 to {found.receivers}"
    return [
        _row(
            f"{what}, windowed", UDP, bytes=psirp_rate.SIZE, hops=found.hops, rate=found.rate, cpu=1e3 / found.rate,
            megabytes=found.rate * psirp_rate.SIZE / 1e6, of_bare=found.part_of_bare,
        ),
        _row(
            f"{what}, one by one", UDP, bytes=psirp_rate.SIZE, hops=found.hops, rate=found.rate_alone,
            cpu=1e3 / found.rate_alone,
        ),
    ]  # fmt: skip


def _rate_bars(rates: Sequence[RateFound]) -> list[Bar]:
    bars = [
        Bar(
            f"1 to 1, {one.hops} hop{'s' if one.hops > 1 else ''}, one by one / python-ndn's",
            one.rate_alone / psirp_rate.NDN_SEQUENTIAL,
            Sense.AT_LEAST,
            NDN_BAR,
        )
        for one in rates
        if one.receivers == 1
    ]
    return bars + [
        Bar(
            f"1 to {one.receivers}, {one.hops} hop{'s' if one.hops > 1 else ''}, windowed: frames / bare link loop's",
            one.part_of_bare,
            Sense.AT_LEAST,
            BARE_BAR,
        )
        for one in rates
    ]


def _ring(data: Path, remarks: list[str]) -> Row:
    begin = time.perf_counter()
    report = run_ring(data, RING_PUBLICATIONS)
    seconds = time.perf_counter() - begin
    verdict = "each once and in order" if report.passed else f"WRONG at {len(report.wrong)}, {report.skipped} skipped"
    remarks.append(
        f"ring of 20, 10 % loss, 5 % reordering, a forwarder killed and returned: {report.published:,} publications, "
        f"{report.delivered:,} deliveries to {report.subscribers} subscribers: {verdict}; {report.frames_lost:,} of "
        f"{report.frames + report.frames_lost:,} frames lost; {report.virtual_seconds:.0f} s of the network's time"
    )
    return _row("lossy ring, deliveries", "virtual clock", rate=report.delivered / seconds)


def _number(row: Row, key: str) -> float:
    value = row[key]
    return float(value) if isinstance(value, (int, float)) else float("nan")


def _in_folder(work: Callable[[Path], Found]) -> Found:
    with tempfile.TemporaryDirectory(prefix="psph-bench-") as folder:
        return work(Path(folder))


BENCHMARK: Benchmark = PsirpBenchmark()
