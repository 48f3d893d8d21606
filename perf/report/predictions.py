"""The page of predictions: a picture of the chain, predicted and measured side by side, and how far they are apart."""

from base64 import b64encode
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from html import escape
from io import BytesIO
from pathlib import Path
from typing import Final

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from perf.models.prediction import CLOSE
from perf.models.whole_way import PlacedQueue, WayHop, WholeWay
from perf.pipeline.predictions import (
    MS,
    PredictionRow,
    RunPrediction,
    rows_of_predictions,
    what_holds,
)
from perf.report.page import STYLE, shown
from perf.report.plots import DPI, Plot
from perf.report.tables import write_table

PAGE: Final = "predictions.html"
MOST_BARS: Final = 24
FORMULA, SIMULATED, MEASURED = "#1f77b4", "#7fb2d9", "#2a2a2a"
HOLDS, FAILS = "#2a7f3f", "#c2410c"
MORE_STYLE: Final = (
    ".chain{overflow-x:auto}.chain text{font:11px system-ui,sans-serif}.fails{color:#c2410c}.holds{color:#2a7f3f}"
    "td.text{text-align:left;white-space:normal;min-width:16rem}td.left{text-align:left}"
)
METHODS: Final = (
    "Rates, services and connectivity are estimated by Spark from every stay of a queue; spacing, correlation and "
    "concurrency from one uninterrupted stretch of stays. The model is the simplest one that what was seen allows: "
    "M/M/1, M/G/1, M/M/c, ON/OFF, or M/G/inf where nobody waits. Each of its assumptions is tested; where one fails, "
    "that stands before the number. The simulation takes arrivals and connectivity as they were and draws services "
    "independently. What a difference is due to is found by replacing one assumption after the other by what was "
    f"seen. «Close» is within {CLOSE:.0%}. A queue inside of another (a store's writer inside of a visit) is "
    "predicted, and not counted again on the way; what a way takes beyond its queues is taken as measured."
)


@dataclass(frozen=True, slots=True)
class BuiltPredictions:
    page: Path
    says: tuple[str, ...]


def build_predictions(predictions: Sequence[RunPrediction], out: Path) -> BuiltPredictions:
    """`predictions.html`, `plots/prediction-*.png`, `tables/predictions.parquet` and `.csv`."""
    for folder in ("tables", "plots"):
        (out / folder).mkdir(parents=True, exist_ok=True)
    write_table(out / "tables", "predictions", PredictionRow, rows_of_predictions(predictions))
    says = [line for prediction in predictions for line in statements_of(prediction)]
    plots = [(prediction, draw(prediction)) for prediction in predictions]
    for number, (_, drawn) in enumerate(plots):
        for plot in drawn:
            (out / "plots" / f"prediction-{plot.name}-{number}.png").write_bytes(plot.png)
    page = out / PAGE
    page.write_text("\n".join(_parts(says, plots)) + "\n", encoding="utf-8")
    return BuiltPredictions(page, tuple(says))


def statements_of(prediction: RunPrediction) -> Iterator[str]:
    if not prediction.queues:
        yield (
            f"{prediction.run}: its traces say nothing of queues. Trace with a sampling rate of 1, with this version, "
            "and for long enough."
        )
        return
    believed, wrong = len(prediction.believed), prediction.wrong
    yield (
        f"{prediction.run}: in {believed} of {len(prediction.queues)} queues the assumptions of the model hold by "
        f"test; the predicted mean is within {CLOSE:.0%} of the measured one in {believed - len(wrong)} of these."
    )
    for queue in wrong:
        off = _percent(queue.comparison.error)
        yield f"{prediction.run}: {_name(queue)} is predicted {off} off, and no test says why."
    far = [queue for queue in prediction.queues if not queue.comparison.believed and queue.comparison.cause]
    for queue in far:
        yield (
            f"{prediction.run}: {_name(queue)} is not what its model ({queue.comparison.model}) assumes, so its mean "
            f"is {_percent(queue.comparison.error)} off. Mostly due to: {queue.comparison.cause}."
        )
    if prediction.way is not None:
        yield from _says_of_way(prediction.run, prediction.way)
    if prediction.left_out:
        yield f"{prediction.run}: {prediction.left_out} queues that were used seldom, or are too many, are left out."


def _says_of_way(run: str, way: WholeWay) -> Iterator[str]:
    doubtful = [hop.name for hop in way.hops if not all(queue.comparison.believed for queue in hop.queues)]
    if doubtful:
        where = ", ".join(doubtful)
        yield f"{run}: end to end, assumptions fail at {where}; believe the simulation rather than the sum."
    yield (
        f"{run}: end to end {_ms(way.measured.mean)} were measured, {_ms(way.formula.mean)} are predicted "
        f"({_percent(way.error)}); {_ms(way.in_queues)} of it are spent in {len(way.hops)} queues, "
        f"{_ms(way.between)} between them. "
        f"By simulation: p95 {_ms(way.simulated.p95)} (measured {_ms(way.measured.p95)}), p99 "
        f"{_ms(way.simulated.p99)} (measured {_ms(way.measured.p99)}). Success: predicted {way.success_predicted:.1%}, "
        f"measured {way.success_measured:.1%}."
    )


def _name(queue: PlacedQueue) -> str:
    return f"{queue.node} {queue.resource}"


def _ms(seconds: float | None) -> str:
    if seconds is None:
        return "-"
    return f"{seconds * MS:.3g} ms" if not 0 < abs(seconds) < 1e-5 else f"{seconds * 1e6:.3g} µs"


def _percent(error: float | None) -> str:
    return "past saturation" if error is None else f"{error:+.0%}"


# Plots


def draw(prediction: RunPrediction) -> list[Plot]:
    if not prediction.queues:
        return []
    queues = sorted(prediction.queues, key=lambda queue: -queue.comparison.measured.mean * queue.stays)[:MOST_BARS]  # type: ignore[operator]
    return [_bars(queues), _residuals(queues)]


def _figure(count: int) -> tuple[Figure, Axes]:
    figure = Figure(figsize=(9.0, 1.4 + 0.36 * count), dpi=DPI, layout="constrained")
    return figure, figure.add_subplot()


def _png(figure: Figure) -> bytes:
    memory = BytesIO()
    figure.savefig(memory, format="png", metadata={"Software": None})
    return memory.getvalue()


def _label(queue: PlacedQueue) -> str:
    return _name(queue) + ("" if queue.comparison.believed else " *")


def _bars(queues: Sequence[PlacedQueue]) -> Plot:
    title = "Mean stay: predicted and measured (* assumptions do not hold)"
    figure, axes = _figure(len(queues))
    kinds = (("measured", MEASURED), ("simulated", SIMULATED), ("formula", FORMULA))
    for place, (kind, colour) in enumerate(kinds):
        widths = [(getattr(queue.comparison, kind).mean or 0.0) * MS for queue in queues]
        axes.barh([row + 0.27 * (place - 1) for row in range(len(queues))], widths, 0.25, label=kind, color=colour)
    axes.set_yticks(range(len(queues)), [_label(queue) for queue in queues])
    axes.set(title=title, xlabel="ms", xscale="log")
    axes.invert_yaxis()
    axes.grid(visible=True, axis="x", alpha=0.3)
    handles, labels = axes.get_legend_handles_labels()
    axes.legend(handles[::-1], labels[::-1], fontsize="small")
    return Plot("bars", title, _png(figure))


def _residuals(queues: Sequence[PlacedQueue]) -> Plot:
    title = "Residuals: how far the predicted mean is from the measured one"
    figure, axes = _figure(len(queues))
    axes.axvspan(-100 * CLOSE, 100 * CLOSE, color="#2a7f3f", alpha=0.08)
    axes.axvline(0, color="#222", linewidth=0.8)
    for row, queue in enumerate(queues):
        found = queue.comparison
        colour = HOLDS if found.believed else FAILS
        if found.error is not None:
            axes.plot([0, _shown_error(found.error)], [row, row], color=colour, linewidth=1.5)
            axes.plot(_shown_error(found.error), row, "o", color=colour, markersize=6)
        if found.simulation_error is not None:
            axes.plot(_shown_error(found.simulation_error), row, "x", color="#555", markersize=6)
    axes.set_yticks(range(len(queues)), [_label(queue) for queue in queues])
    axes.set(title=title, xlabel="% (o formula: green where assumptions hold, red where not; x simulation)")
    axes.set_xlim(-110, 210)
    axes.invert_yaxis()
    axes.grid(visible=True, axis="x", alpha=0.3)
    return Plot("residuals", title, _png(figure))


def _shown_error(error: float) -> float:
    return max(-105.0, min(100 * error, 205.0))


# The page


def _parts(says: Sequence[str], plots: Sequence[tuple[RunPrediction, Sequence[Plot]]]) -> Iterator[str]:
    yield '<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>psph predictions</title>'
    yield f'<meta name="viewport" content="width=device-width"><style>{STYLE}{MORE_STYLE}</style></head><body>'
    yield "<h1>What latency should be, and why it is not</h1>"
    yield '<ul class="says">' + "".join(f"<li>{escape(line)}</li>" for line in says) + "</ul>"
    for prediction, drawn in plots:
        yield f"<h2>{escape(prediction.run)}</h2>"
        if prediction.way is not None:
            yield f'<div class="chain">{chain_picture(prediction.way)}</div>'
            yield _way_table(prediction.way)
        for plot in drawn:
            data = b64encode(plot.png).decode("ascii")
            yield f'<p><img alt="{escape(plot.title)}" src="data:image/png;base64,{data}"></p>'
        if prediction.queues:
            yield _queue_table(prediction.queues)
        if prediction.connectivity:
            yield _connectivity_table(prediction)
        if prediction.links:
            yield _link_table(prediction)
    yield f"<h2>How it was computed</h2><p>{escape(METHODS)}</p></body></html>"


BOX_WIDTH, BOX_HEIGHT, GAP, TOP = 132, 84, 26, 26


def chain_picture(way: WholeWay) -> str:
    """Queues in the order in which a publication passes them; boxes are filled as far as the queue is used."""
    width = len(way.hops) * (BOX_WIDTH + GAP) + GAP
    height = TOP + BOX_HEIGHT + 24
    size = f'viewBox="0 0 {width} {height}" width="{width}" height="{height}"'
    parts = [f'<svg role="img" aria-label="the chain of queues" {size} xmlns="http://www.w3.org/2000/svg">']
    node = ""
    for place, hop in enumerate(way.hops):
        x = GAP + place * (BOX_WIDTH + GAP)
        if hop.node != node:
            node = hop.node
            parts.append(f'<text x="{x}" y="14" font-weight="bold">{escape(node)}</text>')
        parts.append(_box(hop, x))
        y = TOP + BOX_HEIGHT / 2
        if place:
            parts.append(f'<path d="M{x - GAP + 2} {y}H{x - 6}" stroke="#666"/>')
            parts.append(f'<path d="M{x - 8} {y - 4}l7 4l-7 4z" fill="#666"/>')
    return "".join([*parts, "</svg>"])


def _box(hop: WayHop, x: int) -> str:
    used = max(queue.comparison.utilisation for queue in hop.queues)
    holds = all(queue.comparison.believed for queue in hop.queues)
    fill = min(used, 1.0) * BOX_HEIGHT
    colour = HOLDS if holds else FAILS
    models = ", ".join(dict.fromkeys(queue.comparison.model for queue in hop.queues))
    lines = (
        (16, "font-weight='bold'", hop.kind[:20]),
        (31, "fill='#555'", f"{models}{'' if holds else ' *'}"[:24]),
        (46, "fill='#555'", f"used {used:.0%}" if used else "nobody waits"),
        (61, "", f"predicted {_ms(hop.mean('formula'))}"),
        (76, "", f"measured {_ms(hop.mean('measured'))}"),
    )
    texts = "".join(f'<text x="{x + 8}" y="{TOP + y}" {style}>{escape(text)}</text>' for y, style, text in lines)
    return (
        f'<rect x="{x}" y="{TOP}" width="{BOX_WIDTH}" height="{BOX_HEIGHT}" rx="6" fill="#fff" stroke="{colour}"/>'
        f'<rect x="{x}" y="{TOP + BOX_HEIGHT - fill:.1f}" width="{BOX_WIDTH}" height="{fill:.1f}" rx="6" '
        f'fill="{colour}" opacity="0.12"/>{texts}'
    )


def _way_table(way: WholeWay) -> str:
    rows = [
        (hop.name, _ms(hop.mean("formula")), _ms(hop.mean("simulated")), _ms(hop.mean("measured"))) for hop in way.hops
    ]
    rows.append(("between the queues (as measured)", _ms(way.between), _ms(way.between), _ms(way.between)))
    rows.append(("end to end", _ms(way.formula.mean), _ms(way.simulated.mean), _ms(way.measured.mean)))
    rows.append(("end to end, p95", "-", _ms(way.simulated.p95), _ms(way.measured.p95)))
    rows.append(("end to end, p99", "-", _ms(way.simulated.p99), _ms(way.measured.p99)))
    rows.append(("success", f"{way.success_predicted:.2%}", "-", f"{way.success_measured:.2%}"))
    head = "<tr><th>on the way of a publication</th><th>formula</th><th>simulation</th><th>measured</th></tr>"
    return f"<table>{head}{''.join(_tr(row) for row in rows)}</table>"


def _tr(row: Sequence[str]) -> str:
    return "<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in row) + "</tr>"


def _queue_table(queues: Sequence[PlacedQueue]) -> str:
    head = "".join(
        f"<th>{name}</th>"
        for name in (
            "queue", "assumptions", "model", "stays", "rate /s", "service ms", "used", "saturates /s", "formula ms",
            "simulation ms", "measured ms", "error", "p95: formula", "simulation", "measured", "p99: formula",
            "simulation", "measured", "ok", "difference due to",
        )
    )  # fmt: skip
    body = []
    for queue in queues:
        found, holds = queue.comparison, what_holds(queue)
        cells = [f"<td>{escape(_name(queue))}</td>"]
        cells.append(f'<td class="text {"holds" if holds == "hold" else "fails"}">{escape(holds)}</td>')
        cells.append(f'<td class="left">{escape(found.model)}</td>')
        plain: list[object] = [
            queue.stays,
            found.rate,
            found.service * MS,
            f"{found.utilisation:.1%}",
            found.saturation,
        ]
        for times in (found.formula, found.simulated, found.measured):
            plain.append(None if times.mean is None else times.mean * MS)
        plain.append(_percent(found.error))
        for share in ("p95", "p99"):
            for times in (found.formula, found.simulated, found.measured):
                value = getattr(times, share)
                plain.append(None if value is None else value * MS)
        plain.append(f"{1 - queue.not_ok / queue.stays:.2%}")
        cells += [f"<td>{escape(shown(value))}</td>" for value in plain]
        cells.append(f'<td class="text">{escape(found.cause)}</td>')
        body.append(f"<tr>{''.join(cells)}</tr>")
    return f"<table><thead><tr>{head}</tr></thead><tbody>{''.join(body)}</tbody></table>"


def _link_table(prediction: RunPrediction) -> str:
    head = "<tr><th>from node to node</th><th>publications</th><th>mean ms</th><th>p50 ms</th><th>p95 ms</th></tr>"
    rows = [
        (f"{row.sender} to {row.receiver}", shown(row.crossings), shown(row.mean_ms), shown(row.p50_ms),
         shown(row.p95_ms))
        for row in prediction.links
    ]  # fmt: skip
    return f"<table>{head}{''.join(_tr(row) for row in rows)}</table>"


def _connectivity_table(prediction: RunPrediction) -> str:
    head = (
        "<tr><th>connection</th><th>times down</th><th>connected s</th><th>disconnected s</th><th>E[OFF²] s²</th></tr>"
    )
    rows = [
        (
            f"{row.node} {row.resource}", shown(row.disconnections), shown(row.on_s), shown(row.off_s),
            shown(row.off_second_moment_s2),
        )
        for row in prediction.connectivity
    ]  # fmt: skip
    return f"<table>{head}{''.join(_tr(row) for row in rows)}</table>"
