"""Tests do not sleep: they wait for events, or look by the one helper, which says what it waited for."""

import ast
from pathlib import Path

import pytest

from tests.waiting import until

HERE = Path(__file__).parent
ALLOWED = {"waiting.py"}


def sleeps(source: str) -> list[int]:
    """Lines with a call of a `sleep` that is not `sleep(0)`."""
    return [
        node.lineno
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute | ast.Name)
        and (node.func.attr if isinstance(node.func, ast.Attribute) else node.func.id) == "sleep"
        and not (node.args and isinstance(node.args[0], ast.Constant) and node.args[0].value == 0)
    ]


def test_no_test_sleeps() -> None:
    found = [
        f"{file.relative_to(HERE)}:{line}"
        for file in sorted(HERE.rglob("*.py"))
        if file.name not in ALLOWED
        for line in sleeps(file.read_text(encoding="utf-8"))
    ]
    assert found == []


def test_the_check_can_fail() -> None:
    assert sleeps("import asyncio\nasync def test():\n    await asyncio.sleep(0.1)\n") == [3]
    assert sleeps("from time import sleep\nsleep(1)\n") == [2]
    assert sleeps("import asyncio\nasync def test():\n    await asyncio.sleep(0)\n") == []


async def test_what_is_or_becomes_so_ends_the_wait() -> None:
    looks = iter((0, "", None, "at last"))
    await until(lambda: next(looks))

    async def later() -> bool:
        return next(answers)

    answers = iter((False, True))
    await until(later)


async def test_a_wait_in_vain_says_what_for() -> None:
    with pytest.raises(
        AssertionError, match=r"0 seconds in vain for: .*test_waiting\.py:\d+: await until\(lambda: None"
    ):
        await until(lambda: None, 0)
    with pytest.raises(AssertionError, match="in vain for: the end of days"):
        await until(lambda: False, 0, "the end of days")
