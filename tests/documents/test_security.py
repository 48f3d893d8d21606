"""docs/security.md promises nothing without a test: each row names some, and they exist; attacks too."""

import ast
import re
from pathlib import Path

import pytest

from trials.attack.corpus import all_attacks
from trials.attack.stranger import MEBIBYTE, Attack

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "security.md"
NAME = re.compile(r"`([\w/]+\.py)::(test_\w+)`")
TABLE = "| promise | held by |"
WHO = ("stranger on the web", "stranger on the wire", "bad member", "bad publisher", "bad subscriber", "stolen disk")


def sections() -> dict[str, str]:
    parts = re.split(r"(?m)^## (.+)$", PAGE.read_text(encoding="utf-8"))
    return dict(zip(parts[1::2], parts[2::2], strict=True))


def promises(section: str) -> list[tuple[str, list[tuple[str, str]]]]:
    """What a section's table promises, and the tests that it names."""
    _, head, rest = section.partition(TABLE)
    assert head, "a section without promises"
    rows = [line for line in rest.splitlines() if line.startswith("| ")]
    return [(said, NAME.findall(shown)) for said, shown in (row.strip("| ").split(" | ") for row in rows)]


def functions(file: Path) -> set[str]:
    tree = ast.parse(file.read_text(encoding="utf-8"))
    return {one.name for one in tree.body if isinstance(one, ast.FunctionDef | ast.AsyncFunctionDef)}


@pytest.mark.parametrize("who", WHO)
def test_every_promise_names_tests_that_exist(who: str) -> None:
    (section,) = (text for title, text in sections().items() if who in title)
    made = promises(section)
    assert len(made) >= 5
    for promise, tests in made:
        assert tests, f"no test holds: {promise}"
        for file, name in tests:
            assert name in functions(ROOT / "tests" / file), f"{promise}: {file} has no {name}"


def test_the_threat_model_leads_to_each_section_and_says_what_does_not_protect_and_how_to_report() -> None:
    found = sections()
    rows = [row for row in found["Whom we think of"].splitlines() if row.startswith("| ")][1:]
    assert len(rows) == len(WHO)
    for who, row in zip(WHO, rows, strict=True):
        link = re.search(r"\(#([a-z-]+)\)", row)
        assert who in row
        assert link is not None
        assert link[1] in {title.lower().replace(" ", "-") for title in found}
    assert len(re.findall(r"(?m)^- \*\*", found["What does not protect"])) >= 5
    assert found["How to report"].strip()


def test_the_bars_are_those_of_the_attacks() -> None:
    text = PAGE.read_text(encoding="utf-8")
    usual = Attack("", "", all_attacks()[0].run)
    assert f"at most {usual.memory // MEBIBYTE} MiB and disk by {usual.disk // MEBIBYTE} MiB" in text
    named = re.findall(r"psph attack [^\n`]*--only ([a-z-]+)", text)
    assert named
    assert set(named) <= {attack.name for attack in all_attacks()}


def test_a_row_without_a_test_is_seen() -> None:
    assert promises(f"{TABLE}\n|---|---|\n| nobody gets in | we hope |\n") == [("nobody gets in", [])]
