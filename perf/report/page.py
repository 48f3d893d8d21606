"""The HTML file: everything inside, no script, nothing from elsewhere. Whatever came from traces is escaped."""

from base64 import b64encode
from collections.abc import Iterator, Sequence
from dataclasses import fields
from html import escape
from typing import TYPE_CHECKING, Final

from perf.pipeline.analysis import Analysis
from perf.pipeline.tables import FileRow, LatencyRow
from perf.report.plots import Plot
from perf.report.tables import TABLES, rows_of
from perf.traces.files import FileState
from perf.traces.run import Run

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

MOST_ROWS: Final = 400
HIDDEN: Final = ("histogram", "over_time", "places", "slowest", "queue_depth")
"""Tables for plots and for the page to look around in: in the files, not on this page."""
EXPLAINED: Final = {
    "variation": "How far delays lie from each other, and how much each differs from the one before it in its flow "
    "(IPDV, signed). A small deviation with a large IPDV is noise, a large one with a small IPDV a level that moves.",
    "homogeneity": "Brown-Forsythe asks whether crossed deliveries vary more than local ones, Kruskal-Wallis whether "
    "they are slower. The effect says by how much (1 and 0.5: not at all); p how often chance alone does as much.",
    "stability": "Whether the run was the same from beginning to end: a trend, or seconds at which the level "
    "changed. Figures of a run that was not stable describe no moment of it.",
    "parts": "Of each part of the way its share of the variance, and of what makes the slowest hundredth slow. Who "
    "wants a shorter tail begins with the largest tail share.",
    "receivers": "What each receiver should have got from the first to the last publication that it did get, while "
    "its traces have no hole. Unknown is what was due in a hole.",
    "clocks": "How far the clocks of other machines are ahead, and how surely that is known. What crosses machines is "
    "off by the margin at most.",
}
"""In two sentences, for people who look before they read."""
HEADINGS: Final = {
    "latency": "Latency and jitter",
    "crossing": "Crossed against local deliveries of the same publications",
    "between_runs": "Runs against the first one",
    "correlation": "Delay and payload",
    "endings": "Losses, duplicates, incomplete traces",
    "receivers": "What every receiver missed",
    "coverage": "Holes in what was observed",
    "loads": "Offered and achieved load",
    "saturation": "Saturation",
    "variation": "Variation",
    "homogeneity": "Do local and crossed deliveries vary alike?",
    "stability": "Over the run",
    "parts": "Which part of the way makes it",
    "clocks": "Offsets between clocks",
    "nodes": "Nodes",
    "files": "Files",
    "quality": "What was read and what could not be used",
}
STYLE: Final = """
body{font:15px/1.5 system-ui,sans-serif;max-width:72rem;margin:2rem auto;padding:0 1rem;color:#222}
h1{font-size:1.6rem}h2{font-size:1.2rem;margin-top:2.2rem;border-bottom:1px solid #ddd}
table{border-collapse:collapse;font-size:.82rem;display:block;overflow-x:auto}
td,th{padding:.15rem .6rem;text-align:right;border-bottom:1px solid #eee;white-space:nowrap}
td:first-child,th:first-child{text-align:left}img{max-width:100%}.says li{margin:.3rem 0}
@media (prefers-color-scheme:dark){body{color:#e6e6e6;background:#15181c}h2,td,th{border-color:#333a42}
small{color:#9aa3ad}}
.plots{display:grid;grid-template-columns:repeat(auto-fit,minmax(26rem,1fr));gap:1rem}.plots p{margin:0}
summary{cursor:pointer;margin:.6rem 0}small{color:#666}
"""
METHODS: Final = """
Latencies are differences of monotonic clocks; between two clocks they are corrected by the offset and drift estimated
below, piece by piece where a clock stepped, and are off by the margin at most. Percentiles are exact (nearest rank).
Jitter is the mean absolute difference of the delays of successive publications of one flow (topic, both nodes,
subscriber) and, in a class, of one class. Differences have 95 % intervals from drawing blocks of time again (neighbours
resemble each other), within each load; local and crossed deliveries are compared within the same publications. What is
told as a difference is on one side of zero even if the clocks are off by their margin. Spearman takes latencies that
differ by less than 1/1024 as tied. Only steps with outcome ok count, each the first time it happened. A publication is
lost when a receiver that was observed, and got some before and after it, did not get it.
"""


NEEDED: Final = {
    "load": "Percentiles against load are drawn when a run offered at least two loads.",
    "prototype-payload": "The prototype's first figure (payload) is drawn when a run had at least two sizes.",
    "prototype-topics": "The second and third figure of the prototype (topics, keys) are drawn from the file that "
    "`psph bench matching --out FILE` writes and `psph report --matching FILE` reads.",
}
FOLDED: Final = {"latency": "rows by payload, hop and load", "files": "files in good order"}


def in_the_open(row: object) -> bool:
    """What a reader wants to see first: whole distributions, and files that something is wrong with."""
    match row:
        case LatencyRow():
            return row.by == "all"
        case FileRow():
            return row.state != FileState.GOOD
        case _:
            return True


def render(analysis: Analysis, says: Sequence[str], plots: Sequence[Plot]) -> str:
    return "\n".join(_parts(analysis, says, plots)) + "\n"


def _parts(analysis: Analysis, says: Sequence[str], plots: Sequence[Plot]) -> Iterator[str]:
    yield '<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>psph report</title>'
    yield f'<meta name="viewport" content="width=device-width"><style>{STYLE}</style></head><body>'
    yield "<h1>What crossing costs</h1>"
    yield '<ul class="says">' + "".join(f"<li>{escape(line)}</li>" for line in says) + "</ul>"
    yield "<h2>Runs</h2>"
    for run in analysis.inventory.runs:
        yield _run(run)
    if plots:
        yield '<h2>Plots</h2><div class="plots">'
        for plot in plots:
            data = b64encode(plot.png).decode("ascii")
            yield f'<p><img alt="{escape(plot.title)}" src="data:image/png;base64,{data}"></p>'
        yield "</div>"
    missing = [note for name, note in NEEDED.items() if name not in {plot.name for plot in plots}]
    if missing:
        yield f"<p><small>{escape(' '.join(missing))}</small></p>"
    for name, kind in TABLES.items():
        rows = rows_of(analysis, name)
        if rows and name not in HIDDEN:
            yield f"<h2>{escape(HEADINGS[name])}</h2>"
            if name in EXPLAINED:
                yield f"<p>{escape(EXPLAINED[name])}</p>"
            columns = [field.name for field in fields(kind)]
            if len(analysis.inventory.runs) == 1 and columns[0] == "run":
                del columns[0]  # it is named above
            open_rows = [row for row in rows if in_the_open(row)]
            folded = [row for row in rows if not in_the_open(row)]
            if open_rows:
                yield _table(columns, open_rows)
            if folded:
                yield f"<details><summary>{len(folded):,} {FOLDED[name]}</summary>{_table(columns, folded)}</details>"
    yield f"<h2>How it was computed</h2><p>{METHODS}</p></body></html>"


def _run(run: Run) -> str:
    machine = run.machine
    facts = {
        "kind": run.kind,
        "version": run.version,
        "seed": run.seed,
        "sampling": run.sampling,
        "machine": f"{machine.processor}, {machine.cores} cores, {machine.memory_bytes / 2**30:.1f} GiB, "
        f"{machine.system} {machine.release} {machine.architecture}, Python {machine.python}",
        **run.parameters,
    }
    text = "; ".join(f"{escape(str(name))}: {escape(str(value))}" for name, value in facts.items())
    return f"<p><b>{escape(run.run)}</b><br><small>{text}</small></p>"


def _table(columns: Sequence[str], rows: "Sequence[DataclassInstance]") -> str:
    head = "".join(f"<th>{escape(name.replace('_', ' '))}</th>" for name in columns)
    body = "".join(
        "<tr>" + "".join(f"<td>{escape(shown(getattr(row, name)))}</td>" for name in columns) + "</tr>"
        for row in rows[:MOST_ROWS]
    )
    more = f"<p><small>{len(rows) - MOST_ROWS:,} more rows in the files.</small></p>" if len(rows) > MOST_ROWS else ""
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>{more}"


def shown(value: object) -> str:
    match value:
        case None:
            return "-"
        case bool():
            return "yes" if value else "no"
        case int():
            return f"{value:,}"
        case float():
            return f"{value:.4g}"
        case _:
            return str(value)
