"""The plots, with matplotlib and no display. Each is skipped when its run has nothing to show in it.

Every run has a colour of its own in each domain. A percentile is drawn where enough values lie beyond it, with how many
there were; a band is from the first to the third quartile.
"""

import math
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from io import BytesIO
from typing import Final

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from perf.pipeline.analysis import Analysis
from perf.pipeline.resampling import enough_for
from perf.pipeline.tables import LatencyRow
from perf.report.bench_results import MatchingPoint

mpl.use("Agg")

SIZE: Final = (8.0, 4.5)
DPI: Final = 110
PALETTE: Final = {
    "push": ("#1f77b4", "#17becf", "#2ca02c", "#7f7f7f"),
    "psirp": ("#d62728", "#ff7f0e", "#9467bd", "#8c564b"),
}
"""One for each of the runs that are drawn."""
LINES: Final = ("-", "--", ":", "-.")
MARKERS: Final = ("o", "s", "^")
MOST_RUNS: Final = 4

Sample = tuple[str, str]
"""Run and domain."""


@dataclass(frozen=True, slots=True)
class Plot:
    name: str
    title: str
    png: bytes


@dataclass(frozen=True, slots=True)
class Bars:
    """Counts of one sample over bars that run on without a gap: where nobody fell, the count is 0."""

    edges: tuple[float, ...]
    counts: tuple[int, ...]


def draw_all(analysis: Analysis, matching: Sequence[MatchingPoint]) -> list[Plot]:
    return list(_all(analysis, matching))


def bars_of(analysis: Analysis, stage: str, runs: Sequence[str]) -> dict[Sample, Bars]:
    groups: dict[Sample, list[tuple[float, float, int]]] = defaultdict(list)
    for row in analysis.histogram:
        if row.stage == stage and row.run in runs and row.from_ms > 0:
            groups[row.run, row.domain].append((row.from_ms, row.to_ms, row.count))
    return {sample: without_gaps(sorted(bars)) for sample, bars in groups.items()}


def without_gaps(bars: Sequence[tuple[float, float, int]]) -> Bars:
    edges: list[float] = []
    counts: list[int] = []
    for low, high, count in bars:
        if edges and edges[-1] < low:
            edges.append(low)
            counts.append(0)
        elif not edges:
            edges.append(low)
        edges.append(high)
        counts.append(count)
    return Bars(tuple(edges), tuple(counts))


def _all(analysis: Analysis, matching: Sequence[MatchingPoint]) -> Iterator[Plot]:
    runs = [run.run for run in analysis.inventory.runs][:MOST_RUNS]
    place = {run: number for number, run in enumerate(runs)}

    def colour(sample: Sample) -> str:
        return PALETTE[sample[1]][place[sample[0]]]

    def line(sample: Sample) -> str:
        return LINES[place[sample[0]]]

    def plot(name: str, title: str, x: str, y: str, fill: Callable[[Axes], bool]) -> Iterator[Plot]:
        figure = Figure(figsize=SIZE, dpi=DPI, layout="constrained")
        axes = figure.add_subplot()
        axes.set(title=title, xlabel=x, ylabel=y)
        axes.grid(visible=True, alpha=0.3)
        if fill(axes):
            if axes.get_legend_handles_labels()[0]:
                axes.legend(fontsize="small")
            memory = BytesIO()
            figure.savefig(memory, format="png", metadata={"Software": None})
            yield Plot(name, title, memory.getvalue())

    samples = bars_of(analysis, "end_to_end", runs)

    def label(sample: Sample, count: int) -> str:
        return f"{sample[0]} {sample[1]} (n = {count:,})"

    def distribution(axes: Axes) -> bool:
        for sample, bars in samples.items():
            total = sum(bars.counts)
            # By doublings, not by milliseconds: on this axis areas then are shares, whatever the width of a bar.
            heights = [
                count / total / math.log2(high / low)
                for count, low, high in zip(bars.counts, bars.edges[:-1], bars.edges[1:], strict=True)
            ]
            axes.stairs(heights, bars.edges, label=label(sample, total), color=colour(sample), linestyle=line(sample))
        axes.set_xscale("log")
        return bool(samples)

    def cumulated(axes: Axes, *, above: bool) -> bool:
        for sample, bars in samples.items():
            total = sum(bars.counts)
            upto, shares = 0, [0.0]
            for count in bars.counts:
                upto += count
                shares.append(upto / total)
            values = [1 - share for share in shares] if above else shares
            drawn = [(edge, value) for edge, value in zip(bars.edges, values, strict=True) if value > 0 or not above]
            xs, ys = zip(*drawn, strict=True)
            axes.plot(xs, ys, label=label(sample, total), color=colour(sample), linestyle=line(sample))
        axes.set_xscale("log")
        if above:
            axes.set_yscale("log")
        return bool(samples)

    def by(what: str, stages: Sequence[str], column: str) -> Callable[[Axes], bool]:
        def fill(axes: Axes) -> bool:
            groups: dict[tuple[str, str, str], list[LatencyRow]] = defaultdict(list)
            for row in analysis.latency:
                if row.by == what and row.stage in stages and row.run in place:
                    groups[row.run, row.domain, row.stage].append(row)
            drawn = {key: sorted(rows, key=lambda row: row.value) for key, rows in groups.items() if len(rows) > 1}
            for (run, domain, stage), rows in drawn.items():
                sample = (run, domain)
                name = label(sample, sum(row.count for row in rows)) + (f" {stage}" if len(stages) > 1 else "")
                xs = [row.value for row in rows]
                axes.plot(xs, [getattr(row, column) for row in rows], marker=MARKERS[stages.index(stage)], markersize=4,
                          label=name, color=colour(sample), linestyle=line(sample))  # fmt: skip
                if all(row.count > 1 for row in rows):
                    axes.fill_between(
                        xs, [row.p25_ms for row in rows], [row.p25_ms + row.iqr_ms for row in rows],
                        color=colour(sample), alpha=0.12, linewidth=0,
                    )  # fmt: skip
            top = max((row.p25_ms + row.iqr_ms for rows in drawn.values() for row in rows), default=1.0)
            top = max(top, *(getattr(row, column) for rows in drawn.values() for row in rows)) if drawn else 1.0
            axes.set_ylim(0, 1.15 * top)  # what does not depend on x should look as if it did not
            return bool(drawn)

        return fill

    def percentiles_by_load(axes: Axes) -> bool:
        drawn = False
        for column, quantile, alpha in (("p50_ms", 0.5, 1.0), ("p99_ms", 0.99, 0.6), ("p999_ms", 0.999, 0.3)):
            for run in runs:
                for domain in PALETTE:
                    rows = sorted(
                        (
                            row
                            for row in analysis.latency
                            if row.by == "load" and row.stage == "end_to_end" and (row.run, row.domain) == (run, domain)
                            and enough_for(quantile, row.count)
                        ),
                        key=lambda row: row.value,
                    )  # fmt: skip
                    if len(rows) > 1:
                        drawn = True
                        sample = (run, domain)
                        name = f"{column.removesuffix('_ms')} {label(sample, sum(row.count for row in rows))}"
                        xs, ys = [row.value for row in rows], [getattr(row, column) for row in rows]
                        axes.plot(xs, ys, marker="o", markersize=3, color=colour(sample), linestyle=line(sample),
                                  alpha=alpha, label=name)  # fmt: skip
        axes.set_xscale("log")
        axes.set_yscale("log")
        return drawn

    def over_time(axes: Axes) -> bool:
        groups: dict[Sample, list[tuple[float, int, float, float]]] = defaultdict(list)
        for row in analysis.over_time:
            if row.run in place:
                groups[row.run, row.domain].append((row.second, row.count, row.p50_ms, row.p99_ms))
        for sample, points in groups.items():
            xs, counts, half, most = zip(*points, strict=True)
            name = label(sample, sum(counts))
            axes.plot(xs, half, color=colour(sample), linestyle=line(sample), label=f"p50 {name}")
            if all(enough_for(0.99, count) for count in counts):
                axes.fill_between(xs, half, most, color=colour(sample), alpha=0.15, linewidth=0, label="up to p99")
        axes.set_yscale("log")
        return bool(groups)

    def stages(axes: Axes) -> bool:
        rows = [row for row in analysis.latency if row.by == "all" and row.run in runs[:1]]
        names = [f"{row.stage} ({row.domain}, n = {row.count:,})" for row in rows]
        colours = [PALETTE[row.domain][0] for row in rows]
        axes.barh(names, [row.p50_ms for row in rows], color=colours)
        tails = [row.p99_ms if enough_for(0.99, row.count) else 0.0 for row in rows]
        axes.barh(names, tails, color=colours, alpha=0.3)
        axes.set_xscale("log")
        return bool(rows)

    def parts(axes: Axes) -> bool:
        """Of the variance, and of how slow the slowest hundredth is."""
        rows = [row for row in analysis.parts if row.run in runs[:1]]
        names = [f"{row.part} ({row.domain})" for row in rows]
        colours = [PALETTE[row.domain][0] for row in rows]
        variance = [100 * (row.variance_share or 0.0) for row in rows]
        tail = [100 * (row.tail_share or 0.0) for row in rows]
        axes.barh(names, variance, color=colours, height=0.4, align="edge", label="of the variance")
        axes.barh(names, tail, color=colours, alpha=0.4, height=-0.4, align="edge", label="of the slowest hundredth")
        return bool(rows)

    def match(keyed: bool) -> Callable[[Axes], bool]:
        def fill(axes: Axes) -> bool:
            groups: dict[str, list[tuple[float, float]]] = defaultdict(list)
            for point in matching:
                if keyed or point.keyed_by == "topic":
                    name = f"{point.structure}, by {point.keyed_by}" if keyed else point.structure
                    groups[name].append((point.topics, point.microseconds))
            for name, points in groups.items():
                xs, ys = zip(*sorted(points), strict=True)
                axes.plot(xs, ys, "o-", markersize=3, label=name)
            axes.set_xscale("log")
            axes.set_yscale("log")
            return bool(groups)

        return fill

    yield from plot(
        "distribution", "End-to-end latency: where deliveries lie", "ms", "share, for each doubling of latency",
        distribution,
    )  # fmt: skip
    yield from plot(
        "ecdf", "End-to-end latency: how many are faster (ECDF)", "ms", "share of deliveries",
        lambda axes: cumulated(axes, above=False),
    )  # fmt: skip
    yield from plot(
        "ccdf", "End-to-end latency: how many are slower (CCDF)", "ms", "share of deliveries",
        lambda axes: cumulated(axes, above=True),
    )  # fmt: skip
    yield from plot("stages", "Stages of the first run: p50, and p99 paler", "ms", "", stages)
    yield from plot("parts", "Which part makes latency vary: variance, and tail paler", "%", "", parts)
    yield from plot("load", "Percentiles against offered load", "publications/s", "ms", percentiles_by_load)
    yield from plot("hops", "p50 of carrying by hops", "hops", "ms", by("hop", ("carry",), "p50_ms"))
    yield from plot("time", "Variation over time", "seconds", "ms", over_time)
    yield from plot(
        "prototype-payload", "Prototype figure 1: payload against delay (mean)", "bytes", "ms",
        by("payload", ("process_d", "total_push_d", "carry"), "mean_ms"),
    )  # fmt: skip
    yield from plot(
        "prototype-topics", "Prototype figure 2: topics against matching", "topics", "µs", match(keyed=False)
    )
    yield from plot("prototype-keys", "Prototype figure 3: what keys the filter", "topics", "µs", match(keyed=True))
