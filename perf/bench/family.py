"""What every benchmark has in common: its shape, its bars and its outcome.

A benchmark is a module with an object `BENCHMARK` of the shape below. It prints nothing on stdout (progress
goes to stderr through `progress_bar`), asserts nothing and returns an `BenchOutcome`; the command line prints that
as a table or as JSON.
"""

import argparse
import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import Enum
from typing import Protocol

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

Cell = str | int | float | bool | None


class Sense(Enum):
    """Which side of its bound a value should be on."""

    AT_MOST = "at most"
    AT_LEAST = "at least"


@dataclass(frozen=True, slots=True)
class Bar:
    """A bound that a measured ratio should keep, stated before it is measured."""

    name: str
    value: float
    sense: Sense
    bound: float
    interval: tuple[float, float] | None = None
    """Where the value lies with 95 %, for one that is the median of rounds."""

    @property
    def holds(self) -> bool:
        if math.isnan(self.value):
            return False
        return self.value <= self.bound if self.sense is Sense.AT_MOST else self.value >= self.bound

    @property
    def label(self) -> str:
        return f"{self.name} ({self.sense.value} {self.bound:g})"


Row = dict[str, Cell]


class BenchError(Exception):
    """A benchmark was asked for something it cannot do: the text says what to change. Shown as one line."""


@dataclass(frozen=True, slots=True)
class BenchOutcome:
    """What one run of a benchmark found. All rows of `results` have the same keys, in the order to print."""

    parameters: Row
    results: Sequence[Row]
    bars: Sequence[Bar]
    remarks: Sequence[str] = field(default=())


class Benchmark(Protocol):
    """One member of the family."""

    name: str
    description: str

    def configure(self, parser: argparse.ArgumentParser) -> None:
        """Add options of its own; --quick, --json, --strict and --out are there already."""

    def run(self, options: argparse.Namespace) -> BenchOutcome: ...


class Ticker(Protocol):
    """Advances a progress bar."""

    def __call__(self, label: str, steps: float = 1) -> None: ...


@contextmanager
def progress_bar(title: str, total: float) -> Iterator[Ticker]:
    """A progress bar on stderr; silent when stderr is not a terminal."""
    console = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress:
        task = progress.add_task(title, total=total)

        def tick(label: str, steps: float = 1) -> None:
            progress.update(task, advance=steps, description=f"{title}: {label}")

        yield tick


def percentile(sorted_values: Sequence[float], fraction: float) -> float:
    """The nearest-rank percentile of values that are sorted already."""
    if not sorted_values:
        return math.nan
    return sorted_values[min(len(sorted_values), max(1, math.ceil(fraction * len(sorted_values)))) - 1]


def median_interval(values: Sequence[float]) -> tuple[float, float] | None:
    """Where the median lies with at least 95 %: two of the values, whatever their distribution. None when too few."""
    ordered, count = sorted(values), len(values)
    below, chance = 0, 0.0
    while (chance := chance + math.comb(count, below) / 2**count) <= 0.025:
        below += 1
    return (ordered[below - 1], ordered[count - below]) if below else None


UNITS = {
    "us": "µs",
    "ms": "ms",
    "s": "s",
    "seconds": "s",
    "mb": "MB",
    "mib": "MiB",
    "kb": "kB",
    "bytes": "bytes",
    "µs": "µs",
}


def unit_of(column: str) -> str | None:
    """What a column's name says: `p50_us`, `p50 ms`, `deliveries/s`."""
    if column.endswith("/s"):
        return "1/s"
    return UNITS.get(column.replace("_", " ").split(" ")[-1].lower())


GATEWAYS_ARE = (
    "gateways and hubs have their defaults, but for what a measurement on one machine needs: private addresses are "
    "allowed, the canary is off"
)
"""Said beside figures: what is switched off or raised is no default."""
