"""Latency against rate, as one picture: a line for each system and size, hollow where a rate was not followed."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from perf.bench.family import BenchError
from perf.bench.ingest_load import OfferedStep

SIZE = (9.0, 5.5)


def draw(file: Path, lines: Mapping[str, Sequence[OfferedStep]]) -> None:
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError:
        raise BenchError("--chart needs matplotlib: pip install 'psph[analytics]'") from None
    figure = Figure(figsize=SIZE, layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    for number, (name, steps) in enumerate(lines.items()):
        ordered = sorted((step for step in steps if step.delays), key=lambda step: step.rate)
        colour = f"C{number % 10}"
        rates = [step.rate for step in ordered]
        axes.plot(rates, [step.quantile(0.5) * 1000 for step in ordered], color=colour, label=f"{name}: p50")
        axes.plot(rates, [step.quantile(0.99) * 1000 for step in ordered], color=colour, linestyle="--")
        for step in ordered:
            fill = colour if step.is_followed else "none"
            axes.plot([step.rate], [step.quantile(0.99) * 1000], "o", color=colour, markerfacecolor=fill)
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_xlabel("publications a second, offered")
    axes.set_ylabel("ms from ping to callback (dashed: 99th percentile)")
    axes.grid(visible=True, which="both", alpha=0.3)
    axes.legend(fontsize="small")
    figure.savefig(file)
