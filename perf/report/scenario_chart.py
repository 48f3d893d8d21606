"""Response and success of described chains against the rate: where they bend, and where they are now."""

from collections.abc import Sequence
from io import BytesIO
from typing import Final

import numpy as np
from matplotlib.figure import Figure

from perf.models.scenario import Scenario, at_rates
from perf.report.plots import DPI

POINTS: Final = 12
HIGHEST: Final = 0.95
COLOURS: Final = ("#1f77b4", "#d62728")


def draw_scenarios(cases: Sequence[tuple[str, Scenario]], messages: int, seed: int) -> bytes:
    figure = Figure(figsize=(9.0, 6.5), dpi=DPI, layout="constrained")
    above, below = figure.subplots(2, 1, sharex=True)
    for (name, scenario), colour in zip(cases, COLOURS, strict=False):
        first, most = scenario.first_to_saturate
        rates = [float(rate) for rate in np.linspace(most / POINTS, most * HIGHEST, POINTS)]
        seen = at_rates(scenario, rates, messages, seed)
        above.plot(rates, [one.simulated_mean for one in seen], "o-", color=colour, label=f"{name}: simulated mean")
        above.plot(rates, [one.simulated_p95 for one in seen], ":", color=colour, label=f"{name}: simulated p95")
        if scenario.lifetime is None:
            above.plot(rates, [one.mean for one in seen], "--", color=colour, label=f"{name}: formula")
        below.plot(rates, [one.simulated_success for one in seen], "o-", color=colour, label=f"{name}: simulated")
        below.plot(rates, [one.success for one in seen], "--", color=colour, label=f"{name}: formula")
        for axes in (above, below):
            axes.axvline(scenario.rate, color=colour, alpha=0.35)
        above.axvline(most, color=colour, linestyle="-.", alpha=0.5, label=f"{name}: {first.name} saturates")
    above.set(title="What if: response time and success against the rate", ylabel="seconds", yscale="log")
    below.set(xlabel="messages a second (the line: as described)", ylabel="success", ylim=(0, 1.05))
    for axes in (above, below):
        axes.grid(visible=True, alpha=0.3)
        axes.legend(fontsize="small")
    memory = BytesIO()
    figure.savefig(memory, format="png", metadata={"Software": None})
    return memory.getvalue()
