"""A benchmark's outcome as a table for people."""

from collections.abc import Sequence

from rich.console import Console
from rich.table import Table

from perf.bench.family import BenchOutcome, Cell, Row

COLUMN_GAP = 1


def print_outcome(name: str, outcome: BenchOutcome) -> None:
    console = Console()
    parameters = "  ".join(f"{key}={shown(value)}" for key, value in outcome.parameters.items())
    console.print(f"[bold]{name}[/bold]  {parameters}")
    if outcome.results:
        _print_rows(console, outcome.results)
    for remark in outcome.remarks:
        console.print(remark, markup=False)
    for bar in outcome.bars:
        verdict = "[green]holds[/green]" if bar.holds else "[red]does not hold[/red]"
        within = "" if bar.interval is None else f" ({shown(bar.interval[0])} to {shown(bar.interval[1])})"
        console.print(f"bar: {bar.label}: {shown(bar.value)}{within}  {verdict}")


def _print_rows(console: Console, rows: Sequence[Row]) -> None:
    """A narrow terminal breaks headings at their words; figures are never cut, even if lines then run over."""
    table = Table(box=None, pad_edge=False, padding=(0, COLUMN_GAP, 0, 0))
    needed = 0
    for key in rows[0]:
        numeric = any(isinstance(row[key], (int, float)) for row in rows)
        heading = key.replace("_", " ")
        width = max(len(word) for word in (*heading.split(), *(shown(row[key]) for row in rows)))
        needed += width + COLUMN_GAP
        table.add_column(heading, justify="right" if numeric else "left", width=width)
    for row in rows:
        table.add_row(*map(shown, row.values()))
    Console(width=max(console.width, needed)).print(table)


def shown(cell: Cell) -> str:
    match cell:
        case None:
            return "-"
        case bool():
            return "yes" if cell else "no"
        case float():
            return f"{cell:.4g}" if abs(cell) < 10_000 else f"{cell:,.0f}"
        case int():
            return f"{cell:,}"
        case str():
            return cell
