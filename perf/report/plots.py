"""The plots, with matplotlib and no display. Each is skipped when its run has nothing to show in it."""

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from io import BytesIO
from typing import Final

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from perf.pipeline.analysis import Analysis
from perf.report.bench_results import MatchingPoint

mpl.use("Agg")

SIZE: Final = (8.0, 4.5)
DPI: Final = 110
COLOURS: Final = {"push": "#1f77b4", "psirp": "#d62728"}
LINES: Final = ("-", "--", ":", "-.")
MARKERS: Final = ("o", "s", "^")
MOST_RUNS: Final = 4


@dataclass(frozen=True, slots=True)
class Plot:
    name: str
    title: str
    png: bytes


def draw_all(analysis: Analysis, matching: Sequence[MatchingPoint]) -> list[Plot]:
    return list(_all(analysis, matching))


def _all(analysis: Analysis, matching: Sequence[MatchingPoint]) -> Iterator[Plot]:
    runs = [run.run for run in analysis.inventory.runs][:MOST_RUNS]
    style = {run: LINES[place] for place, run in enumerate(runs)}

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

    def distribution(axes: Axes) -> bool:
        groups: dict[tuple[str, str], list[tuple[float, float, int]]] = defaultdict(list)
        for row in analysis.histogram:
            if row.stage == "end_to_end" and row.run in style and row.from_ms > 0:
                groups[row.run, row.domain].append((row.from_ms, row.to_ms, row.count))
        for (run, domain), bars in groups.items():
            total = sum(count for _, _, count in bars)
            edges = [low for low, _, _ in bars] + [bars[-1][1]]
            # Buckets that nobody fell into are not in the table: a gap must not be bridged.
            heights = [count / total for _, _, count in bars]
            axes.stairs(heights, edges, label=f"{run} {domain}", color=COLOURS[domain], linestyle=style[run])
        axes.set_xscale("log")
        return bool(groups)

    def by(what: str, stages: Sequence[str], column: str) -> Callable[[Axes], bool]:
        def fill(axes: Axes) -> bool:
            groups: dict[tuple[str, str, str], list[tuple[float, float]]] = defaultdict(list)
            for row in analysis.latency:
                if row.by == what and row.stage in stages and row.run in style:
                    groups[row.run, row.domain, row.stage].append((row.value, getattr(row, column)))
            drawn = {key: points for key, points in groups.items() if len(points) > 1}
            for (run, domain, stage), points in drawn.items():
                xs, ys = zip(*sorted(points), strict=True)
                label = f"{run} {domain}" + (f" {stage}" if len(stages) > 1 else "")
                axes.plot(xs, ys, marker=MARKERS[stages.index(stage)], markersize=4, label=label,
                          color=COLOURS[domain], linestyle=style[run])  # fmt: skip
            top = max((y for points in drawn.values() for _, y in points), default=1.0)
            axes.set_ylim(0, 1.15 * top)  # what does not depend on x should look as if it did not
            return bool(drawn)

        return fill

    def percentiles_by_load(axes: Axes) -> bool:
        drawn = False
        for column, alpha in (("p50_ms", 1.0), ("p99_ms", 0.6), ("p999_ms", 0.3)):
            for run in runs:
                for domain, colour in COLOURS.items():
                    points = sorted(
                        (row.value, getattr(row, column))
                        for row in analysis.latency
                        if row.by == "load" and row.stage == "end_to_end" and (row.run, row.domain) == (run, domain)
                    )
                    if len(points) > 1:
                        drawn = True
                        xs, ys = zip(*points, strict=True)
                        label = f"{run} {domain} {column.removesuffix('_ms')}"
                        axes.plot(xs, ys, "o-", markersize=3, color=colour, alpha=alpha, label=label)
        axes.set_xscale("log")
        axes.set_yscale("log")
        return drawn

    def over_time(axes: Axes) -> bool:
        groups: dict[tuple[str, str], list[tuple[float, float, float]]] = defaultdict(list)
        for row in analysis.over_time:
            if row.run in style:
                groups[row.run, row.domain].append((row.second, row.p50_ms, row.p99_ms))
        for (run, domain), points in groups.items():
            xs, half, most = zip(*points, strict=True)
            axes.plot(xs, half, color=COLOURS[domain], linestyle=style[run], label=f"{run} {domain} p50")
            axes.plot(xs, most, color=COLOURS[domain], linestyle=style[run], alpha=0.4, label=f"{run} {domain} p99")
        axes.set_yscale("log")
        return bool(groups)

    def stages(axes: Axes) -> bool:
        rows = [row for row in analysis.latency if row.by == "all" and row.run in runs[:1]]
        names = [f"{row.stage} ({row.domain})" for row in rows]
        axes.barh(names, [row.p50_ms for row in rows], color=[COLOURS[row.domain] for row in rows])
        axes.barh(names, [row.p99_ms for row in rows], color=[COLOURS[row.domain] for row in rows], alpha=0.3)
        axes.set_xscale("log")
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

    yield from plot("distribution", "End-to-end latency", "ms", "share of deliveries", distribution)
    yield from plot("stages", "Stages of the first run: p50, and p99 paler", "ms", "", stages)
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
