"""The documents lead somewhere: links exist. That their commands are run is the business of tests/documents."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
DOCUMENTS = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])
LINK = re.compile(r"\]\((?!https?:)([^)#\s]+)")


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_relative_links_lead_somewhere(document: Path) -> None:
    broken = [link for link in LINK.findall(document.read_text()) if not (document.parent / link).exists()]
    assert not broken


def test_the_readme_shows_the_two_commands() -> None:
    text = (ROOT / "README.md").read_text()
    assert "\nmake run" in text
    assert "\nmake test" in text


def test_the_figures_of_the_readme_are_those_of_the_pages_that_measured_them() -> None:
    told = (ROOT / "README.md").read_text().partition("## Measured")[2].partition("\n![")[0]
    measured = "".join((ROOT / "docs" / page).read_text() for page in ("gateway.md", "measurements.md"))
    figures = re.findall(r"\b\d+\.\d+(?= ms| times)|(?<=p = )\d\.\d+|\d+(?= topics)", told)
    assert len(figures) >= 6, figures
    assert [one for one in figures if re.search(rf"(?<![\d.]){re.escape(one)}(?![\d.])", measured) is None] == []
