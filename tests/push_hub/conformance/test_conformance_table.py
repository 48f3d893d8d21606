"""The table in docs/websub-conformance.md is complete, its names exist, nothing asked for is untested."""

import ast
import re
from pathlib import Path

import pytest

HERE = Path(__file__).parent
TABLE = HERE.parents[2] / "docs" / "websub-conformance.md"
ROW = re.compile(r"^\| ([HPS]\d+) \| ([^|]+) \| ([^|]+) \| ([^|]*) \|$", re.MULTILINE)
NAME = re.compile(r"`(test_\w+\.py)::(test_\w+)`")
LINES = {"H": 61, "P": 7, "S": 14}
# The checklist's levels, by line: a MUST cannot become a MAY here without somebody changing both places.
MUST = re.findall(
    r"\S+",
    "H1 H2 H3 H4 H5 H7 H8 H9 H10 H11 H13 H16 H17 H18 H19 H22 H23 H24 H25 H27 H28 H30 H32 H33 H34 H35 H36 H37 H38 H39 "
    "H41 H42 H45 H46 H47 H48 H50 H51 H52 H55 H57 H59 P1 P2 P3 P4 S1 S2 S5 S6 S7 S9 S10 S11 S12 S13",
)
SHOULD = re.findall(r"\S+", "H19 H21 H26 H27 H35 H38 H41 H48 H51 H54 H56 P1 P3 S3 S4 S6 S8")


def table() -> dict[str, tuple[str, list[tuple[str, str]]]]:
    """Line -> its level and its tests."""
    rows = ROW.findall(TABLE.read_text(encoding="utf-8"))
    assert len({line for line, *_ in rows}) == len(rows), "a line stands there twice"
    return {line: (level, NAME.findall(shown)) for line, level, _, shown in rows}


def place(module: str) -> Path:
    return next(HERE.parent.rglob(module), HERE / module)


def names_in(module: Path) -> set[str]:
    tree = ast.parse(module.read_text(encoding="utf-8"))
    return {node.name for node in tree.body if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)}


def test_every_line_of_the_checklist_is_there() -> None:
    expected = [f"{letter}{number}" for letter, count in LINES.items() for number in range(1, count + 1)]
    assert list(table()) == expected


@pytest.mark.parametrize(("word", "lines"), [("MUST", MUST), ("SHOULD", SHOULD)])
def test_levels_are_the_checklist_s(word: str, lines: list[str]) -> None:
    assert [line for line, (level, _) in table().items() if word in level] == lines


@pytest.mark.parametrize("line", sorted({*MUST, *SHOULD}))
def test_what_is_asked_for_has_a_test(line: str) -> None:
    assert table()[line][1], f"{line} has no test"


def test_every_named_test_exists() -> None:
    named = {pair for _, pairs in table().values() for pair in pairs}
    assert {(module, name) for module, name in named if name not in names_in(place(module))} == set()


def test_every_test_named_after_a_line_stands_in_it() -> None:
    rows = table()
    missing = []
    for module in sorted(HERE.glob("test_conformance_*.py")):
        for name in names_in(module):
            match = re.match(r"test_((?:[hps]\d+_)+)", name)
            for part in match[1].strip("_").split("_") if match else ():
                line = f"{part[0].upper()}{int(part[1:])}"
                if (module.name, name) not in rows[line][1]:
                    missing.append(f"{line}: {module.name}::{name}")
    assert missing == []
