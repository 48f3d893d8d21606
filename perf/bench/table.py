"""A benchmark's outcome as a table for people."""

from rich.console import Console
from rich.table import Table

from perf.bench.family import Cell, Outcome


def print_outcome(name: str, outcome: Outcome) -> None:
    console = Console()
    console.print(f"[bold]{name}[/bold]  " + "  ".join(f"{key}={shown(v)}" for key, v in outcome.parameters.items()))
    if outcome.results:
        table = Table(box=None, pad_edge=False)
        for key in outcome.results[0]:
            numeric = any(isinstance(row[key], (int, float)) for row in outcome.results)
            table.add_column(key, justify="right" if numeric else "left")
        for row in outcome.results:
            table.add_row(*map(shown, row.values()))
        console.print(table)
    for remark in outcome.remarks:
        console.print(remark, markup=False)
    for bar in outcome.bars:
        verdict = "[green]holds[/green]" if bar.holds else "[red]does not hold[/red]"
        console.print(f"bar: {bar.label}: {shown(bar.value)}  {verdict}")


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
