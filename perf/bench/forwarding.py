"""How much of a bare Python receive-send loop is left when every frame is forwarded by its filter.

One node between two links. In process the frames wait in a queue; over veth and UDP they wait in the kernel's socket
buffer. Three receivers take them from the same link objects, in the same batches, and send each on one other link: the
forwarder; a bare loop that parses nothing and sends frame by frame, which the bar is about; and, to be read beside
it, a receiver that hands the untouched batch to the link at once, as the forwarder does with what it has rewritten.
In process that last one touches no frame at all. And the forwarder once more, between sealed links over the same kind
of carrier: each frame is opened, forwarded and sealed anew. Frames come in batches, as a neighbour sends them. Rounds
alternate between the four, so that a slower moment of the
machine hits all, and ratios are the medians of the rounds' ratios. Time is the thread's processor time, system calls
included: a node that never waits uses nothing else, and what other programs take from the machine is left out.
"""

import argparse
import importlib
import math
import os
import random
import secrets
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, replace
from typing import Protocol, Self, cast

from perf.bench.family import Bar, BenchOutcome, Row, Sense, progress_bar
from psirp_stack.forwarder import Forwarder
from psirp_stack.forwarding_model import (
    FILTER_BITS,
    FILTER_BYTES,
    TABLES,
    TAG_BITS,
    Decision,
    ForwardingTable,
    LinkNumber,
    Tags,
)
from psirp_stack.links.clock import VirtualClock
from psirp_stack.links.ethernet import EthernetLink
from psirp_stack.links.in_process import pair
from psirp_stack.links.interface import DEFAULT_BATCH, BatchLink, Link, Receiver
from psirp_stack.links.sealed import SealedLink
from psirp_stack.links.udp import UdpAddress, UdpLink, bound_socket
from psirp_stack.sealing.keys import KEY_BYTES, DomainKeys
from psirp_stack.wire.numbers import INITIAL_TTL, PROTOCOL_VERSION, HeaderType

LINK_COUNTS = (4, 16, 64)
FRAME_SIZES = (100, 1400)
TREE_LINKS = 16
"""Links of the whole delivery tree in each filter: about a third of the bits."""
BARE_RATIO = 0.7
REFERENCE_RATIO = 100.0
SEALED_RATIO = 0.5
BURST = 64
"""Frames that wait for the node at a time, one batch: they must fit a socket's receive buffer, or some are lost."""
ARRIVAL, DEPARTURE = 0, 1
PATIENCE = 5.0


class BatchingLink(Link, BatchLink, Protocol):
    """All links here."""


class Drainable(BatchingLink, Protocol):
    def drain(self, limit: int = DEFAULT_BATCH) -> int: ...


@dataclass(frozen=True, slots=True)
class ForwardingBench:
    """One node between two links: where frames are put in, where the node takes them, where it sends them."""

    carrier: str
    source: BatchingLink
    arrival: BatchingLink
    departure: BatchingLink
    sink: BatchingLink
    drains: tuple[Callable[[], int], ...]
    """Takes what arrived at each of them, in this order."""

    @classmethod
    def over(cls, carrier: str, *ends: Drainable) -> Self:
        source, arrival, departure, sink = ends
        return cls(carrier, source, arrival, departure, sink, tuple(end.drain for end in ends))

    @property
    def drain(self) -> Callable[[], int]:
        """Take what arrived at the node, and"""
        return self.drains[1]

    @property
    def drain_sink(self) -> Callable[[], int]:
        """what came out of it."""
        return self.drains[3]


@dataclass(frozen=True, slots=True)
class Measured:
    """Frames a second, and the forwarder's share of each of the two others."""

    forwarding: float
    bare: float
    of_bare: float
    batched: float
    of_batched: float
    sealed: float
    of_unsealed: float


class ForwardingBenchmark:
    name = "forwarding"
    description = (
        "Packet-hops a second through one node: in process, over AF_PACKET on a veth pair (needs root) and over UDP,\n"
        "beside a bare receive-send loop on the same links and, in process, the scapy reference. Forwarder, tables\n"
        "and links are those of `psph node`, sealed and not sealed.\n\n"
        f"bars: at least {BARE_RATIO:g} of the bare loop over AF_PACKET and UDP, {REFERENCE_RATIO:g} times the\n"
        f"      reference, {SEALED_RATIO:g} of unsealed links when they are sealed\n\n"
        "examples:\n  psph bench forwarding --quick\n  psph bench forwarding --flows 4096 --json"
    )

    def configure(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument("--flows", type=positive, default=256, help="distinct filters in the traffic (default 256)")
        parser.add_argument("--rounds", type=positive, help="rounds of each measurement (default 15, quick 7)")
        parser.add_argument("--frames", type=positive, help="frames of each round (default 20000, quick 6000)")
        parser.add_argument("--seed", type=int, default=1, help="seed of tags and filters (default 1)")

    def run(self, options: argparse.Namespace) -> BenchOutcome:
        rounds = options.rounds or (7 if options.quick else 15)
        # A round in which not every flow occurs would measure fewer flows than it says.
        frames = max(options.frames or (6000 if options.quick else 20_000), options.flows)
        rows: list[Row] = []
        remarks: list[str] = []
        cells = [(carrier, links, size) for carrier in CARRIERS for links in LINK_COUNTS for size in FRAME_SIZES]
        with progress_bar("forwarding", len(cells)) as tick:
            for carrier, links, size in cells:
                tick(f"{carrier}, {links} links, {size} B", 0)
                reason = missing(carrier)
                if reason is None:
                    rows.append(measure_cell(carrier, links, size, options, rounds, frames))
                else:
                    rows.append(empty_row(carrier, links, size))
                    if reason not in remarks:
                        remarks.append(reason)
                tick(f"{carrier}, {links} links, {size} B")
        if all(row["scapy hops/s"] is None for row in rows):
            remarks.append("scapy reference not measured: psirp_stack.tools.reference or scapy is not installed")
        remarks.append(
            f"Each frame leaves on one link; {options.flows} distinct filters of {TREE_LINKS} links; "
            f"ratios are medians of {rounds} alternating rounds of {frames} frames."
        )
        parameters: Row = {"flows": options.flows, "rounds": rounds, "frames": frames, "batch": DEFAULT_BATCH}
        return BenchOutcome(parameters, rows, bars_of(rows), remarks)


BENCHMARK = ForwardingBenchmark()


def positive(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"{number}: expected at least 1")
    return number


def bars_of(rows: Sequence[Row]) -> list[Bar]:
    bars = []
    for carrier in CARRIERS:
        ratios = [row["of bare"] for row in rows if row["link"] == carrier]
        measured = [ratio for ratio in ratios if isinstance(ratio, float)]
        if measured:
            bars.append(Bar(f"{carrier}: worst share of a bare loop", min(measured), Sense.AT_LEAST, BARE_RATIO))
    sealed = [ratio for row in rows if row["link"] == VETH and isinstance(ratio := row["of unsealed"], float)]
    if sealed:
        bars.append(Bar("veth: worst share that is left when sealed", min(sealed), Sense.AT_LEAST, SEALED_RATIO))
    times = [ratio for row in rows if isinstance(ratio := row["times scapy"], float)]
    worst = min(times) if times else math.nan
    bars.append(Bar("in process: times the scapy reference", worst, Sense.AT_LEAST, REFERENCE_RATIO))
    return bars


def empty_row(carrier: str, links: int, size: int) -> Row:
    return {
        "link": carrier,
        "links": links,
        "bytes": size,
        "hops/s": None,
        "bare/s": None,
        "of bare": None,
        "batched/s": None,
        "of batched": None,
        "sealed/s": None,
        "of unsealed": None,
        "scapy hops/s": None,
        "times scapy": None,
    }


def measure_cell(carrier: str, links: int, size: int, options: argparse.Namespace, rounds: int, frames: int) -> Row:
    source = random.Random(options.seed)  # noqa: S311 - reproducible traffic, not a secret
    table = draw_table(source, links)
    traffic = draw_traffic(source, table, options.flows, size)
    row = empty_row(carrier, links, size)
    with CARRIERS[carrier]() as bench, CARRIERS[carrier]() as other:
        measured = compare(bench, sealed_over(other), table, traffic, rounds, frames)
    row |= {
        "hops/s": round(measured.forwarding),
        "bare/s": round(measured.bare),
        "of bare": measured.of_bare,
        "batched/s": round(measured.batched),
        "of batched": measured.of_batched,
        "sealed/s": round(measured.sealed),
        "of unsealed": measured.of_unsealed,
    }
    if carrier == IN_PROCESS:
        reference = reference_rate(table, traffic)
        if reference is not None:
            row |= {"scapy hops/s": round(reference), "times scapy": measured.forwarding / reference}
    return row


def sealed_over(bench: ForwardingBench) -> ForwardingBench:
    """The same with both links sealed, and their neighbours proved."""
    domain, still = DomainKeys.of(os.urandom(KEY_BYTES)), VirtualClock()
    source, arrival, departure, sink = (
        SealedLink(end, domain, still, os.urandom) for end in (bench.source, bench.arrival, bench.departure, bench.sink)
    )
    end = time.monotonic() + PATIENCE
    while not (source.proved and arrival.proved and departure.proved and sink.proved):
        for drain in bench.drains:
            drain()
        if time.monotonic() > end:
            raise RuntimeError(f"{bench.carrier}: the neighbours did not prove themselves in {PATIENCE} seconds")
    return replace(bench, source=source, arrival=arrival, departure=departure, sink=sink)


def forwarding_over(bench: ForwardingBench, table: ForwardingTable) -> Receiver:
    forwarder = Forwarder(table)
    forwarder.attach(DEPARTURE, bench.departure.send, bench.departure.send_many)
    clock = time.monotonic

    def forward(batch: Sequence[bytes]) -> None:
        forwarder.forward(batch, ARRIVAL, clock())

    return forward


def compare(
    bench: ForwardingBench,
    sealed: ForwardingBench,
    table: ForwardingTable,
    traffic: Sequence[bytes],
    rounds: int,
    frames: int,
) -> Measured:
    send = bench.departure.send

    def bare(batch: Sequence[bytes]) -> None:
        for frame in batch:
            send(frame)

    ways: list[tuple[ForwardingBench, Receiver]] = [
        (bench, forwarding_over(bench, table)),
        (bench, bare),
        (bench, bench.departure.send_many),
        (sealed, forwarding_over(sealed, table)),
    ]
    for where, receiver in ways:
        one_round(where, receiver, traffic, min(frames, 2 * len(traffic)))
    times: list[list[float]] = [[] for _ in ways]
    for number in range(rounds):
        for turn in range(len(ways)):
            chosen = (number + turn) % len(ways)
            where, receiver = ways[chosen]
            times[chosen].append(one_round(where, receiver, traffic, frames))
    forwarding, bares, batches, sealings = times
    return Measured(
        frames / statistics.median(forwarding),
        frames / statistics.median(bares),
        median_ratio(bares, forwarding),
        frames / statistics.median(batches),
        median_ratio(batches, forwarding),
        frames / statistics.median(sealings),
        median_ratio(forwarding, sealings),
    )


def median_ratio(numerators: Sequence[float], denominators: Sequence[float]) -> float:
    return statistics.median(one / other for one, other in zip(numerators, denominators, strict=True))


def one_round(bench: ForwardingBench, receiver: Receiver, traffic: Sequence[bytes], frames: int) -> float:
    """Seconds that the node needs for so many frames; putting them in and taking them out is not timed."""
    bench.arrival.on_receive(receiver)
    clock = time.thread_time
    spent = 0.0
    before = bench.sink.counters.received
    done = 0
    while done < frames:
        burst = min(BURST, frames - done)
        bench.source.send_many([traffic[number % len(traffic)] for number in range(done, done + burst)])
        left = burst
        start = clock()
        while left > 0:
            read = bench.drain()
            left -= read
            if not read:
                break
        spent += clock() - start
        if left:
            raise RuntimeError(f"{bench.carrier}: {left} of {burst} frames did not reach the node")
        while bench.drain_sink():
            pass
        done += burst
    if bench.sink.counters.received - before != frames:
        raise RuntimeError(f"{bench.carrier}: {bench.sink.counters.received - before} of {frames} frames came out")
    return spent


def reference_rate(table: ForwardingTable, traffic: Sequence[bytes], seconds: float = 0.3) -> float | None:
    """Frames a second that the scapy reference decides on; None when it is not installed."""
    try:
        decide = importlib.import_module("psirp_stack.tools.reference").reference_decision
    except ImportError:
        return None
    reference_decision = cast("Callable[[bytes, LinkNumber | None, ForwardingTable], Decision]", decide)
    reference_decision(traffic[0], ARRIVAL, table)
    done = 0
    start = now = time.thread_time()
    while now - start < seconds:
        if reference_decision(traffic[done % len(traffic)], ARRIVAL, table).out != (DEPARTURE,):
            raise RuntimeError("the reference decides otherwise than the benchmark's traffic was made for")
        done += 1
        now = time.thread_time()
    return done / (now - start)


def draw_tag(source: random.Random) -> int:
    return sum(1 << bit for bit in source.sample(range(FILTER_BITS), TAG_BITS))


def draw_tags(source: random.Random) -> Tags:
    return tuple(draw_tag(source) for _ in range(TABLES))


def draw_table(source: random.Random, links: int) -> ForwardingTable:
    return ForwardingTable(
        {number: draw_tags(source) for number in range(links)},
        draw_tags(source),
        {number: draw_tags(source) for number in range(links)},
    )


def draw_traffic(source: random.Random, table: ForwardingTable, flows: int, size: int) -> list[bytes]:
    """One frame a flow: filters of whole trees that leave this node by one link, with no false positive here."""
    traffic: list[bytes] = []
    while len(traffic) < flows:
        index = source.randrange(TABLES)
        bits = table.links[DEPARTURE][index] | table.incoming[ARRIVAL][index]
        for _ in range(TREE_LINKS - 2):
            bits |= draw_tag(source)
        others = [tags[index] for number, tags in table.links.items() if number not in (ARRIVAL, DEPARTURE)]
        others += [tags[index] for number, tags in table.incoming.items() if number != ARRIVAL]
        others.append(table.internal[index])
        if any(bits & tag == tag for tag in others):
            continue
        traffic.append(draw_frame(source, bits.to_bytes(FILTER_BYTES, "big") + bytes((index,)), size))
    return traffic


def draw_frame(source: random.Random, fid: bytes, size: int) -> bytes:
    header = bytes((HeaderType.FORWARDING, HeaderType.PAYLOAD, INITIAL_TTL, 0, PROTOCOL_VERSION)) + bytes(5) + fid
    return header + source.randbytes(size - len(header))


IN_PROCESS, VETH, UDP = "in process", "veth", "udp"


@contextmanager
def in_process() -> Iterator[ForwardingBench]:
    source, arrival = pair()
    departure, sink = pair()
    yield ForwardingBench.over(IN_PROCESS, source, arrival, departure, sink)


@contextmanager
def over_udp() -> Iterator[ForwardingBench]:
    sockets = [bound_socket(UdpAddress("127.0.0.1", 0)) for _ in range(4)]
    addresses = [UdpAddress(*sock.getsockname()[:2]) for sock in sockets]
    with ExitStack() as stack:
        links = [UdpLink(sockets[end], addresses[end ^ 1]) for end in range(4)]
        for link in links:
            stack.callback(link.close)
        yield ForwardingBench.over(UDP, *links)


@contextmanager
def over_veth() -> Iterator[ForwardingBench]:
    unique = secrets.token_hex(3)
    names = [f"psb{unique}{end}" for end in range(4)]
    with ExitStack() as stack:
        for one, other in (names[:2], names[2:]):
            ip("link", "add", one, "type", "veth", "peer", "name", other)
            stack.callback(ip, "link", "del", one)
            ip("link", "set", one, "up")
            ip("link", "set", other, "up")
        for name in names:
            wait_until_up(name)
        links = [EthernetLink(name) for name in names]
        for link in links:
            stack.callback(link.close)
        yield ForwardingBench.over(VETH, *links)


CARRIERS: dict[str, Callable[[], AbstractContextManager[ForwardingBench]]] = {
    IN_PROCESS: in_process,
    VETH: over_veth,
    UDP: over_udp,
}


def missing(carrier: str) -> str | None:
    """Why a carrier cannot be measured here, None when it can."""
    if carrier != VETH:
        return None
    if not sys.platform.startswith("linux") or os.geteuid() != 0:
        return "veth not measured: needs root on Linux"
    if shutil.which("ip") is None:
        return "veth not measured: needs the `ip` command (iproute2)"
    return None


def wait_until_up(interface: str, patience: float = PATIENCE) -> None:
    """The kernel brings an interface up a little later than it says; frames sent before that vanish."""
    end = time.monotonic() + patience
    while "state UP" not in ip("link", "show", interface):
        if time.monotonic() > end:
            raise RuntimeError(f"{interface} did not come up within {patience} seconds")


def ip(*arguments: str) -> str:
    done = subprocess.run(["ip", *arguments], check=True, capture_output=True, text=True, timeout=20)  # noqa: S603, S607
    return done.stdout
