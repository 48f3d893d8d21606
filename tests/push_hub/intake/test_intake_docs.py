"""The page about the intake names every bound, with the value it has."""

from dataclasses import fields
from pathlib import Path

from push_hub.intake import IntakeConfig

PAGE = Path(__file__).parents[3] / "docs" / "design" / "intake.md"
NO_BOUNDS = {"user_agent", "poll", "aliases"}


def test_every_bound_is_in_the_table() -> None:
    table = PAGE.read_text(encoding="utf-8").partition("## Bounds")[2]
    missing = [field.name for field in fields(IntakeConfig) if f"`{field.name}`" not in table]
    assert set(missing) == NO_BOUNDS


def test_plain_defaults_are_as_the_table_says() -> None:
    rows = [row for row in PAGE.read_text(encoding="utf-8").partition("## Bounds")[2].splitlines() if row[:3] == "| `"]
    for row in rows:
        names = [name for name in row.split("|")[1].replace(",", " ").split() if name.startswith("`")]
        values = row.split("|")[2]
        for name in (name.strip("`") for name in names):
            value = getattr(IntakeConfig(), name, None)
            if isinstance(value, int) and value <= 100_000:
                assert f"{value:,}" in values, name
            elif value in (1024**2 * n for n in (4, 8, 512)):
                assert f"{int(value) // 1024**2} MiB" in values, name
            elif isinstance(value, float) and value < 86_400:
                assert f"{value:g} s" in values, name
