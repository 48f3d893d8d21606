"""`psph bench selectors`: which of many selectors a publication fulfils, beside asking each of them.

The mix of selectors is that of published experiments on content-based publish/subscribe: a stock's symbol is named and
one of its figures bounded, one in twenty bounds the volume of any. Publications are quotations.
"""

import argparse
import gc
import random
import sys
import time
from collections.abc import Sequence
from typing import Final

from exchange.selection import Attributes, Operator, Predicate, Selector, SelectorIndex
from perf.bench.family import Bar, BenchOutcome, Row, Sense, percentile, progress_bar

SIZES: Final = (100, 1_000, 10_000, 100_000)
BOUNDS: Final = {10_000: 300.0, 100_000: 500.0}
"""How many times as fast as asking each."""
PUBLICATIONS: Final = 2_000
ASKED_EACH: Final = {100: 500, 1_000: 100, 10_000: 20, 100_000: 4}
"""Publications for which all selectors are asked."""
LETTERS: Final = "abcdefghijklmnopqrstuvwxyz"
HIGHEST_PRICE: Final = 500.0
MOST_VOLUME: Final = 310_000_000
CHANGES: Final = 500


def symbol(rng: random.Random) -> str:
    return "".join(rng.choice(LETTERS) for _ in range(3))


def selector(rng: random.Random) -> Selector:
    kind = rng.random()
    named = Predicate("symbol", Operator.EQUAL, (symbol(rng),))
    price = round(rng.uniform(0, HIGHEST_PRICE), 2)
    volume = Predicate("volume", Operator.AT_LEAST, (float(rng.randrange(MOST_VOLUME)),))
    if kind < 0.20:
        top = round(rng.uniform(price, HIGHEST_PRICE), 2)
        between = Predicate("close", Operator.AT_LEAST, (price,)), Predicate("close", Operator.AT_MOST, (top,))
        return Selector((named, *between))
    if kind < 0.55:
        return Selector((named, Predicate("low", Operator.AT_MOST, (price,))))
    if kind < 0.90:
        return Selector((named, Predicate("high", Operator.AT_LEAST, (price,))))
    return Selector((named, volume) if kind < 0.95 else (volume,))


def quotation(rng: random.Random) -> Attributes:
    low, close, high = sorted(rng.uniform(0, HIGHEST_PRICE) for _ in range(3))
    return {
        "symbol": (symbol(rng),),
        "date": (f"{rng.randrange(1, 29)}/Jan/98",),
        "low": (f"{low:.2f}",),
        "close": (f"{close:.2f}",),
        "high": (f"{high:.2f}",),
        "volume": (str(rng.randrange(MOST_VOLUME)),),
    }


class SelectorsBenchmark:
    name = "selectors"
    description = "which of many selectors a publication fulfils, beside asking each"

    def configure(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument("--seed", type=int, default=1, help="of selectors and publications (default: %(default)s)")

    def run(self, options: argparse.Namespace) -> BenchOutcome:
        sizes = SIZES[:-1] if options.quick else SIZES
        rows: list[Row] = []
        bars: list[Bar] = []
        with progress_bar(self.name, 2 * len(sizes)) as tick:
            for size in sizes:
                tick(f"{size:,} selectors")
                row, ratio = _measured(size, options.seed)
                tick(f"{size:,} selectors")
                rows.append(row)
                if size in BOUNDS:
                    bars.append(Bar(f"times as fast as asking each of {size:,}", ratio, Sense.AT_LEAST, BOUNDS[size]))
        return BenchOutcome(
            {"seed": options.seed, "publications": PUBLICATIONS},
            rows,
            bars,
            ("medians; both say the same of every publication that all were asked for, or the run ends",),
        )


def _measured(size: int, seed: int) -> tuple[Row, float]:
    rng = random.Random(seed)  # noqa: S311 - a workload
    selectors = [selector(rng) for _ in range(size)]
    publications = [quotation(rng) for _ in range(PUBLICATIONS)]
    index = SelectorIndex()
    begun = time.perf_counter_ns()
    for number, one in enumerate(selectors):
        index.add(number, one)
    built = (time.perf_counter_ns() - begun) / size
    each: list[float] = []
    found: list[float] = []
    few = publications[: ASKED_EACH[size]]
    gc.collect()
    for publication in publications:
        begun = time.perf_counter_ns()
        numbers = index.match(publication)
        found.append(time.perf_counter_ns() - begun)
        if len(found) <= len(few):
            begun = time.perf_counter_ns()
            asked = [number for number, one in enumerate(selectors) if one.matches(publication)]
            each.append(time.perf_counter_ns() - begun)
            if asked != list(numbers):
                sys.exit(f"the index is wrong about {publication}")
    ratio = percentile(sorted(each), 0.5) / percentile(sorted(found), 0.5)
    row: Row = {
        "selectors": size,
        "index us": percentile(sorted(found), 0.5) / 1e3,
        "index p99 us": percentile(sorted(found), 0.99) / 1e3,
        "asking each us": percentile(sorted(each), 0.5) / 1e3,
        "ratio": ratio,
        "found": sum(len(index.match(one)) for one in few) / len(few),
        "adding us": built / 1e3,
        "changing, then asking us": _changing(index, selectors, publications, rng),
    }
    return row, ratio


def _changing(
    index: SelectorIndex, selectors: Sequence[Selector], publications: Sequence[Attributes], rng: random.Random
) -> float:
    """A selector goes and comes, then a publication: what was kept of before is of no use."""
    times: list[float] = []
    for publication in publications[:CHANGES]:
        number = rng.randrange(len(selectors))
        begun = time.perf_counter_ns()
        index.remove(number)
        index.add(number, selectors[number])
        index.match(publication)
        times.append(time.perf_counter_ns() - begun)
    return percentile(sorted(times), 0.5) / 1e3


BENCHMARK = SelectorsBenchmark()
