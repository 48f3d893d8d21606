"""`psph bench matching`: how long it takes to find a topic among many.

The original prototype compared a list scan with a Bloom filter made for 10,000,000 topics at 0.00001 % false positives,
and keyed by topic with keyed by subscriber. The same four questions here, beside our registry and a plain dict.
"""

import argparse
import gc
import random
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Protocol

from pybloom_live import BloomFilter

from identifiers import DEFAULT_NAMING, ItemId, Topic
from identifiers.registry import Registry
from perf.bench.family import Bar, BenchOutcome, Cell, Row, Sense, Ticker, percentile, progress_bar

SIZES: Final = (10, 50, 1_000, 100_000, 1_000_000)
FULL_SIZE: Final = 10_000_000
QUICK_SIZES: Final = (10, 50, 1_000, 100_000)
CROSSING_SIZES: Final = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1_000)
BLOOM_CAPACITY: Final = 10_000_000
BLOOM_ERROR_RATE: Final = 1e-7
SUBSCRIBERS: Final = 16
LOOK_UPS: Final = 2_000
LOOK_UP_BUDGET_NS: Final = 2_000_000_000
GROWTH_BOUND: Final = 3.0
PROTOTYPE_CROSSING: Final = 50


class Structure(Protocol):
    """Something that knows which id pairs are in it."""

    def knows(self, item: ItemId) -> bool: ...

    def megabytes(self) -> float: ...


class ListScan:
    def __init__(self, topics: Sequence[Topic]) -> None:
        self._items = [DEFAULT_NAMING.of_topic(topic) for topic in topics]

    def knows(self, item: ItemId) -> bool:
        return item in self._items

    def megabytes(self) -> float:
        return (sys.getsizeof(self._items) + len(self._items) * _bytes_of_item()) / 1e6


class PlainDict:
    def __init__(self, topics: Sequence[Topic]) -> None:
        self._topics = {DEFAULT_NAMING.of_topic(topic): topic for topic in topics}

    def knows(self, item: ItemId) -> bool:
        return item in self._topics

    def megabytes(self) -> float:
        return (sys.getsizeof(self._topics) + len(self._topics) * _bytes_of_item()) / 1e6


class Bloom:
    """Made for so many topics: as many as the prototype's, however few there are, or as many as there are."""

    def __init__(self, topics: Sequence[Topic], capacity: int) -> None:
        self._filter = BloomFilter(max(capacity, len(topics)), BLOOM_ERROR_RATE)
        for topic in topics:
            self._filter.add(bytes(DEFAULT_NAMING.of_topic(topic)), skip_check=True)

    def knows(self, item: ItemId) -> bool:
        return bytes(item) in self._filter

    def megabytes(self) -> float:
        return float(self._filter.num_bits) / 8e6


class OurRegistry:
    """The real one: a SQLite file with the guard in front. Its memory is the guard; the rest is on disk."""

    def __init__(self, topics: Sequence[Topic], directory: Path) -> None:
        self.registry = Registry.open(directory / f"registry-{len(topics)}.db")
        self.registry.add_many(topics)
        self.registry.wait_for_guard()

    def knows(self, item: ItemId) -> bool:
        return self.registry.by_item(item) is not None

    def megabytes(self) -> float:
        return self.registry.guard_bytes / 1e6


@dataclass(frozen=True, slots=True)
class Keying:
    """What the keys of a structure are, and what has to be asked when a publication of a topic arrives."""

    name: str
    stored: Callable[[int], Topic]
    asked: Callable[[int], list[Topic]]


def topic_key(number: int) -> Topic:
    return Topic("http", f"h{number % 997}.example.org", None, f"/feeds/{number}", None)


def subscriber_key(number: int, subscriber: int) -> Topic:
    return Topic("http", f"s{subscriber}.example.net", None, f"/h{number % 997}.example.org/feeds/{number}", None)


KEYINGS: Final = (
    Keying("topic", topic_key, lambda number: [topic_key(number)]),
    # Keyed by subscriber, a publication has to be looked for under every subscriber in turn.
    Keying(
        "subscriber",
        lambda number: subscriber_key(number, number % SUBSCRIBERS),
        lambda number: [subscriber_key(number, subscriber) for subscriber in range(SUBSCRIBERS)],
    ),
)


class Matching:
    name = "matching"
    description = f"""Find a topic among many: list scan, pybloom-live at {BLOOM_ERROR_RATE:%} false positives (for \
{BLOOM_CAPACITY:,} topics as in the
prototype, and for as many as there are), our registry (SQLite behind a Bloom guard) and a plain dict; keyed by topic
and by subscriber.

Times are microseconds for one publication: one look-up when keyed by topic, one for each of {SUBSCRIBERS} subscribers
when keyed by subscriber. Known: the topic is there. Unknown: it is not. Hashing the name is left out.

bar: the registry's p50 at the largest size is at most {GROWTH_BOUND:g} times its p50 at 1,000 topics
     (the largest is 1,000,000; 100,000 with --quick; {FULL_SIZE:,} with --full)"""

    def configure(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument("--full", action="store_true", help=f"also {FULL_SIZE:,} topics (takes many minutes)")
        parser.add_argument("--seed", type=int, default=1, help="of the choice of look-ups")
        parser.epilog = "example:\n  psph bench matching --quick"

    def run(self, options: argparse.Namespace) -> BenchOutcome:
        sizes = QUICK_SIZES if options.quick else SIZES
        if options.full:
            sizes = (*sizes, FULL_SIZE)
        rng = random.Random(options.seed)  # noqa: S311
        rows: list[Row] = []
        with progress_bar("matching", total=len(sizes) * len(KEYINGS) * 5 + len(CROSSING_SIZES)) as tick:
            for keying in KEYINGS:
                for size in sizes:
                    rows += _measure_size(keying, size, rng, tick)
            crossings = _crossings(rng, tick)
        small, large = (_registry_p50(rows, size) for size in (1_000, max(sizes)))
        bars = [Bar(f"registry p50 at {max(sizes):,} topics / at 1,000", large / small, Sense.AT_MOST, GROWTH_BOUND)]
        return BenchOutcome(_parameters(options, sizes), rows, bars, _remarks(crossings, rows, max(sizes)))


BENCHMARK = Matching()


def _parameters(options: argparse.Namespace, sizes: Sequence[int]) -> Row:
    return {
        "seed": options.seed,
        "quick": options.quick,
        "full": options.full,
        "largest": max(sizes),
        "subscribers": SUBSCRIBERS,
        "bloom_capacity": BLOOM_CAPACITY,
        "bloom_error_rate": BLOOM_ERROR_RATE,
    }


def _measure_size(keying: Keying, size: int, rng: random.Random, tick: Ticker) -> list[Row]:
    topics = [keying.stored(number) for number in range(size)]
    known = [rng.randrange(size) for _ in range(LOOK_UPS)]
    unknown = [size + rng.randrange(size) for _ in range(LOOK_UPS)]
    rows: list[Row] = []
    with tempfile.TemporaryDirectory(prefix="psph-bench-") as directory:
        makers: dict[str, Callable[[], Structure]] = {
            "list": lambda: ListScan(topics),
            "bloom": lambda: Bloom(topics, BLOOM_CAPACITY),
            "bloom, sized": lambda: Bloom(topics, len(topics)),
            "registry": lambda: OurRegistry(topics, Path(directory)),
            "dict": lambda: PlainDict(topics),
        }
        for name, make in makers.items():
            started = time.perf_counter()
            with _closing(make()) as structure:
                built = time.perf_counter() - started
                hits = _look_up_times(structure, keying, known)
                misses = _look_up_times(structure, keying, unknown)
                rows.append(_row(name, keying.name, size, built, structure.megabytes(), hits, misses))
            tick(f"{name}, {size:,} topics by {keying.name}")
    return rows


@contextmanager
def _closing(structure: Structure) -> Iterator[Structure]:
    try:
        yield structure
    finally:
        if isinstance(structure, OurRegistry):
            structure.registry.close()


def _row(
    name: str, keyed_by: str, size: int, built: float, megabytes: float, hits: list[float], misses: list[float]
) -> Row:
    cells: dict[str, Cell] = {
        "structure": name,
        "keyed_by": keyed_by,
        "topics": size,
        "build_s": round(built, 3),
        "memory_mb": round(megabytes, 3),
        "known_p50_us": percentile(hits, 0.5),
        "known_p99_us": percentile(hits, 0.99),
        "unknown_p50_us": percentile(misses, 0.5),
        "unknown_p99_us": percentile(misses, 0.99),
        "look_ups": len(hits) + len(misses),
    }
    return cells


def _look_up_times(structure: Structure, keying: Keying, numbers: Sequence[int]) -> list[float]:
    """Sorted microseconds per publication; stops early where a look-up is so slow that all would take too long."""
    clock = time.perf_counter_ns
    times: list[float] = []
    asked = [[DEFAULT_NAMING.of_topic(topic) for topic in keying.asked(number)] for number in numbers]
    gc.disable()
    try:
        deadline = clock() + LOOK_UP_BUDGET_NS
        for items in asked:
            started = clock()
            for item in items:
                if structure.knows(item):
                    break
            ended = clock()
            times.append((ended - started) / 1_000)
            if ended > deadline:
                break
    finally:
        gc.enable()
    return sorted(times)


def _crossings(rng: random.Random, tick: Ticker) -> dict[str, float | None]:
    """From how many topics on the list is slower than each Bloom filter, half of the look-ups known."""
    away: dict[str, list[tuple[int, float]]] = {"bloom": [], "bloom, sized": []}
    for size in CROSSING_SIZES:
        topics = [topic_key(number) for number in range(size)]
        numbers = [rng.randrange(2 * size) for _ in range(LOOK_UPS)]
        scan = _mean(_look_up_times(ListScan(topics), KEYINGS[0], numbers))
        for name, capacity in (("bloom", BLOOM_CAPACITY), ("bloom, sized", size)):
            away[name].append((size, scan - _mean(_look_up_times(Bloom(topics, capacity), KEYINGS[0], numbers))))
        tick(f"crossing, {size:,} topics")
    return {name: crossing_of(points) for name, points in away.items()}


def crossing_of(points: Sequence[tuple[int, float]]) -> float | None:
    """The size from which on a difference is above zero, interpolated; None when it never is."""
    previous: tuple[int, float] | None = None
    for size, difference in points:
        if difference > 0:
            if previous is None:
                return float(size)
            below, under = previous
            return below + (size - below) * under / (under + difference)
        previous = (size, -difference)
    return None


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


def _registry_p50(rows: Sequence[Row], size: int) -> float:
    for row in rows:
        if (row["structure"], row["keyed_by"], row["topics"]) == ("registry", "topic", size):
            value = row["known_p50_us"]
            assert isinstance(value, float)  # noqa: S101
            return value
    return float("nan")


def _remarks(crossings: Mapping[str, float | None], rows: Sequence[Row], largest: int) -> list[str]:
    made_for = {"bloom": f"made for {BLOOM_CAPACITY:,} topics, as the prototype's", "bloom, sized": "made for as many"}
    remarks = []
    for name, crossing in crossings.items():
        where = "beyond 1,000 topics" if crossing is None else f"at about {crossing:.0f} topics"
        remarks.append(
            f"list and a Bloom filter {made_for[name]} cross {where} (mean of known and unknown look-ups; the "
            f"prototype saw {PROTOTYPE_CROSSING})"
        )
    for name in ("list", "bloom", "bloom, sized", "registry", "dict"):
        times = {
            row["keyed_by"]: row["unknown_p50_us"]
            for row in rows
            if row["structure"] == name and row["topics"] == largest
        }
        by_topic, by_subscriber = times["topic"], times["subscriber"]
        if isinstance(by_topic, float) and isinstance(by_subscriber, float) and by_topic:
            remarks.append(f"{name}: keyed by subscriber costs {by_subscriber / by_topic:.1f} times keyed by topic")
    return remarks


def _bytes_of_item() -> int:
    item = DEFAULT_NAMING.of_topic(topic_key(0))
    return sys.getsizeof(item) + sum(sys.getsizeof(part) + sys.getsizeof(bytes(part)) for part in (item.sid, item.rid))
