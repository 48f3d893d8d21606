"""`docs/traces.md` says what the code does: columns, steps, outcomes, stages, version."""

import re
from pathlib import Path

from perf.pipeline.reading import LONGEST_NAME
from perf.traces.formats import SCHEMA_KEY
from perf.traces.schema import COLUMNS, SCHEMA_VERSION, STAGES, StepOutcome, TraceStep

TEXT = (Path(__file__).parents[3] / "docs" / "traces.md").read_text()


def table(heading: str) -> list[list[str]]:
    section = TEXT.split(f"\n## {heading}\n")[1].split("\n## ")[0]
    rows = [line for line in section.splitlines() if line.startswith("| ")]
    return [[cell.strip() for cell in row.strip("|").split("|")] for row in rows[1:]]


def test_columns() -> None:
    assert [row[:4] for row in table("Columns")] == [
        [f"`{column.name}`", column.kind.value, "yes" if column.required else "no", str(column.since)]
        for column in COLUMNS
    ]


def test_steps_and_outcomes() -> None:
    assert [row[0] for row in table("Steps")] == [f"`{step}`" for step in TraceStep]
    assert [row[0] for row in table("Outcomes")] == [f"`{outcome}`" for outcome in StepOutcome]


def test_stages() -> None:
    assert table("Stages") == [
        [
            f"`{stage.name}`",
            ", ".join(f"`{step}`" for step in stage.starts),
            f"`{stage.end}`",
            "yes" if stage.same_node else "no",
        ]
        for stage in STAGES
    ]


def test_version_and_bounds() -> None:
    assert re.search(r"Schema version: \*\*(\d+)\*\*", TEXT).group(1) == str(SCHEMA_VERSION)  # type: ignore[union-attr]
    assert f"`{SCHEMA_KEY.decode()}`" in TEXT
    assert f"{LONGEST_NAME:,} characters" in TEXT
