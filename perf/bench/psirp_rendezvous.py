"""How the rendezvous takes a growing number of items: match time, matches a second, memory, size of its store.

A store with N items (each with a publisher) is filled; then a subscriber comes to random items, which makes a match
each time. Match time is from the call to the committed outcome that holds the `Match`, one at a time; the rate is with
many requests under way, so that they share commits. Each size runs in a process of its own, because memory is part of
the answer, and they take turns match by match, so that a busy moment of the machine does not fall on one of them.

`measure` is what a larger benchmark calls; `BENCHMARK` makes a member of the family of it.
"""

import argparse
import multiprocessing
import random
import shutil
import tempfile
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from statistics import median

from perf.bench.family import Bar, Benchmark, BenchOutcome, Row, Sense, Ticker, percentile, progress_bar
from psirp_stack.control.messages import Declaration, Declare, SubscribeItem, UnsubscribeItem
from psirp_stack.rendezvous import DeclaredRole, Rendezvous, RendezvousConfig
from psirp_stack.rendezvous import RequestOutcome as RendezvousOutcome

FULL_SIZES = (1_000, 100_000, 1_000_000)
QUICK_SIZES = (1_000, 100_000)
ENTRIES = 1000
IN_FLIGHT = 8
"""Parts of the declaration that fill the store, under way at once."""
SCOPES = 100
FULL_ROUNDS = 24
QUICK_ROUNDS = 8
ONE_BY_ONE = 20
TOGETHER = 300
"""Matches in a round: each alone, and then all at once."""
SUBSCRIBER = "subscriber"
PUBLISHER = "publisher"


@dataclass(frozen=True, slots=True)
class Together:
    """What came of many requests under way at once."""

    rate: float
    memory: int
    peak: int
    file_bytes: int


def item(number: int) -> tuple[bytes, bytes]:
    """Ids as hashes give them: evenly spread, so that neighbours in time are none in the tables."""
    rng = random.Random(number)  # noqa: S311 - not a secret
    return (number % SCOPES + 1).to_bytes(32, "big"), rng.randbytes(32)


def _status(field: str) -> int:
    """A line of /proc/self/status, in bytes."""
    for line in Path("/proc/self/status").read_text(encoding="ascii").splitlines():
        if line.startswith(field):
            return int(line.split()[1]) * 1024
    return 0


def _fill(rendezvous: Rendezvous, items: int, told: Callable[[int], None]) -> None:
    parts = -(-items // ENTRIES)
    under_way: list[Future[RendezvousOutcome]] = []
    for part in range(parts):
        numbers = range(part * ENTRIES, min(items, (part + 1) * ENTRIES))
        entries = tuple(Declaration(DeclaredRole.PUBLISHES, *item(number)) for number in numbers)
        under_way.append(rendezvous.handle(PUBLISHER, 1, Declare(part + 1, 1, part, parts, entries), 0.0, 0))
        if len(under_way) >= IN_FLIGHT:
            _check(under_way.pop(0))
            told(part)
    for future in under_way:
        _check(future)


def _check(future: Future[RendezvousOutcome]) -> RendezvousOutcome:
    outcome = future.result()
    for reply in outcome.replies:
        if reply.code:
            raise RuntimeError(f"code {reply.code}: {reply.reason}")
    return outcome


def _one(rendezvous: Rendezvous, number: int) -> float:
    """The seconds that one match takes."""
    request = SubscribeItem(number + 1, *item(number))
    begin = time.perf_counter()
    outcome = _check(rendezvous.handle(SUBSCRIBER, 1, request, 0.0, 0))
    seconds = time.perf_counter() - begin
    if len(outcome.matches) != 1:
        raise RuntimeError(f"{len(outcome.matches)} matches in place of one")
    return seconds


def _many(rendezvous: Rendezvous, numbers: Sequence[int], path: Path) -> Together:
    requests = [SubscribeItem(number + 1, *item(number)) for number in numbers]
    begin = time.perf_counter()
    futures = [rendezvous.handle(SUBSCRIBER, 1, request, 0.0, 0) for request in requests]
    matches = sum(len(_check(future).matches) for future in futures)
    rate = matches / (time.perf_counter() - begin)
    if matches != len(numbers):
        raise RuntimeError(f"{matches} matches in place of {len(numbers)}")
    size = sum(file.stat().st_size for file in path.parent.iterdir())
    return Together(rate, _status("VmRSS"), _status("VmHWM"), size)


def _leave(rendezvous: Rendezvous, numbers: Sequence[int]) -> None:
    """Take the subscriptions back, so that the next round finds what this one found."""
    requests = [UnsubscribeItem(number + 1, *item(number)) for number in numbers]
    for future in [rendezvous.handle(SUBSCRIBER, 1, request, 0.0, 0) for request in requests]:
        _check(future)


def _shuffled(position: int, items: int) -> int:
    """A permutation of the items without a list of them: multiply by a number that has no factor in common."""
    return position * 7919 % items


def _serve(items: int, folder: str, pipe: Connection) -> None:
    """A process with a rendezvous of one size: fills it, then makes as many matches as it is told to."""
    path = Path(folder) / "rendezvous.db"
    before = _status("VmRSS")
    rendezvous = Rendezvous.open(path, RendezvousConfig(max_items_per_node=10_000_000), now=0.0)
    _fill(rendezvous, items, pipe.send)
    pipe.send(before)
    position = 0
    taken: list[int] = []
    while count := pipe.recv():
        numbers = [_shuffled(position + step, items) for step in range(count)]
        position += count
        taken += numbers
        if count == 1:
            pipe.send(_one(rendezvous, numbers[0]))
        else:
            pipe.send(_many(rendezvous, numbers, path))
            _leave(rendezvous, taken)
            taken.clear()
    rendezvous.close()


class _Worker:
    def __init__(self, items: int, folder: Path, tick: Ticker) -> None:
        context = multiprocessing.get_context("spawn")
        self.items = items
        self.latencies: list[float] = []
        self.together: list[Together] = []
        self._pipe, other = context.Pipe()
        place = folder / str(items)
        place.mkdir()
        self._process = context.Process(target=_serve, args=(items, str(place), other), daemon=True)
        begin = time.perf_counter()
        self._process.start()
        other.close()
        for _ in range(-(-items // ENTRIES) - IN_FLIGHT + 1):
            self._pipe.recv()
            tick(f"filling {items} items")
        self.memory_before: int = self._pipe.recv()
        self.fill_seconds = time.perf_counter() - begin

    def one(self) -> None:
        self._pipe.send(1)
        self.latencies.append(self._pipe.recv())

    def many(self, count: int) -> None:
        self._pipe.send(count)
        self.together.append(self._pipe.recv())

    def stop(self) -> None:
        self._pipe.send(0)
        self._process.join(30)
        if self._process.is_alive():
            self._process.terminate()

    def row(self) -> Row:
        latencies = sorted(self.latencies)
        last = self.together[-1]
        return {
            "items": self.items,
            "match p50 ms": percentile(latencies, 0.5) * 1e3,
            "match p99 ms": percentile(latencies, 0.99) * 1e3,
            "matches/s": median(many.rate for many in self.together),
            "memory MiB": last.memory / 2**20,
            "of it at start MiB": self.memory_before / 2**20,
            "peak MiB": last.peak / 2**20,
            "store MiB": last.file_bytes / 2**20,
            "items/s filling": self.items / self.fill_seconds,
        }


def measure(sizes: Sequence[int], one_by_one: int, together: int, rounds: int, folder: Path | None = None) -> list[Row]:
    """A row for each size. All stores exist at once: a million items take a few hundred megabytes of disk."""
    if one_by_one + together > min(sizes):
        raise ValueError(f"{min(sizes)} items are too few for turns of {one_by_one + together}")
    place = Path(tempfile.mkdtemp(prefix="psph-rendezvous-", dir=folder))
    workers: list[_Worker] = []
    try:
        with progress_bar("rendezvous", sum(-(-size // ENTRIES) for size in sizes) + rounds * len(sizes)) as tick:
            for size in sizes:
                workers.append(_Worker(size, place, tick))
            for round_ in range(rounds):
                # Every other round backwards, so that no size always follows the same neighbour.
                order = workers if round_ % 2 else workers[::-1]
                for _ in range(one_by_one):
                    for worker in order:
                        worker.one()
                for worker in order:
                    worker.many(together)
                    tick(f"matching in {worker.items} items")
        return [worker.row() for worker in workers]
    finally:
        for worker in workers:
            worker.stop()
        shutil.rmtree(place, ignore_errors=True)


class RendezvousBenchmark:
    name = "psirp_rendezvous"
    description = "The rendezvous with 1 k, 100 k and 1 M items: match time, matches a second, memory."

    def configure(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument("--folder", type=Path, help="where the stores go (default: the system's temporary folder)")

    def run(self, options: argparse.Namespace) -> BenchOutcome:
        sizes = QUICK_SIZES if options.quick else FULL_SIZES
        rounds = QUICK_ROUNDS if options.quick else FULL_ROUNDS
        rows = measure(sizes, ONE_BY_ONE, TOGETHER, rounds, options.folder)
        p50 = [float(row["match p50 ms"] or 0) for row in rows]
        bar = Bar(f"match p50 at {sizes[-1]} items / at {sizes[0]}", p50[-1] / p50[0], Sense.AT_MOST, 3)
        return BenchOutcome(
            {"sizes": " ".join(map(str, sizes)), "rounds": rounds, "one by one": ONE_BY_ONE, "together": TOGETHER},
            rows,
            [bar],
        )


BENCHMARK: Benchmark = RendezvousBenchmark()
