"""Every command of the documentation is run: the blocks of each page, in their order, in a folder of its own.

Pages are found, not listed: a block that is added is run from then on. What a page leaves to another test
(`covered=`) that test takes from the page. A command in the text must be one that some block shows. What cannot be run
inside a test (make, docker, systemctl and a few more) has a stand-in with a check of its own: see `stand_ins.py`.
"""

import ast
from pathlib import Path

import pytest

from tests.documents import runner
from tests.documents.pages import (
    PAGES,
    ROOT,
    blocks,
    command,
    covered_by,
    faults,
    pages_with_commands,
    shown_commands,
    told_commands,
)
from tests.documents.runner import PageRun
from tests.documents.stand_ins import IN_THE_TEXT, STAND_INS
from tests.waiting import until_so


def name(page: Path) -> str:
    return str(page.relative_to(ROOT))


@pytest.mark.timeout(600)
@pytest.mark.parametrize("page", pages_with_commands(), ids=name)
def test_the_commands_of_a_page_do_what_it_says(page: Path, tmp_path: Path) -> None:
    run = PageRun(page, tmp_path, STAND_INS)
    run.run()
    if run.left_out:
        pytest.skip("; ".join(run.left_out))


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_no_command_hides(page: Path) -> None:
    assert faults(page) == []
    for block in blocks(page):
        covered_by(block, page)


@pytest.mark.parametrize("page", [page for page in PAGES if told_commands(page)], ids=name)
def test_a_command_in_the_text_is_one_that_is_run(page: Path) -> None:
    """The same words and options stand in a block that is run, on this page or another."""
    shown = shown_commands()
    for told in told_commands(page):
        found = command(told)
        assert found is not None
        if found.words[0] in IN_THE_TEXT:
            IN_THE_TEXT[found.words[0]](told)
        else:
            assert any(found.is_part_of(one) for one in shown), f"nobody runs: {told}"


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("```sh\nfalse\n```\n", "ended with 1"),
        ("```sh\necho one 1\n```\n```text output\ntwo 2\n```\n", "the page shows"),
        ("```sh background=ready\necho never\n```\n", "never"),
        ("```sh\nfalse &\n```\n", "ended with 1"),
        ("```sh\npsph gateway -c nowhere.toml &\n```\n", "ended with 2"),
        ("```sh covered=tests/documents/test_pages.py::test_nothing\npsph\n```\n", "is no test"),
        ("```sh covered=tests/documents/test_pages.py::test_no_command_hides\npsph\n```\n", "does not take"),
        ("```sh\nmake nothing-of-this-name\n```\n", "No rule to make target"),
        ("```sh\ndocker compose --profile spark run --rm gateway-a\n```\n", "profiles"),
        ("```sh\nsystemctl reload psph-gateway\n```\n", "runs no psph gateway"),
    ],
)  # fmt: skip
def test_a_page_that_lies_is_noticed(
    text: str, complaint: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    page = tmp_path / "page.md"
    page.write_text(text)
    monkeypatch.setattr(runner, "PATIENCE", 5.0)
    with pytest.raises((AssertionError, KeyError), match=complaint):
        PageRun(page, tmp_path, STAND_INS).run()


def test_figures_may_differ_and_variables_stay(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("```sh\nA=5\n```\n```sh\necho it took $A ms\n```\n```text output\nit took 7 ms\n```\n")
    assert PageRun(page, tmp_path).run() == 2


@pytest.mark.parametrize(
    "text",
    [
        "```\npsph hub\n```\n",
        "    psph hub --port 8080\n",
        "```text\n$ psph hub --port 8080\n```\n",
        "```console\n$ psph hub --port 8080\n```\n",
        "```toml\nmake run\n```\n",
        "- so:\n  ```sh\n  psph hub\n  ```\n",
        "~~~sh\npsph hub\n~~~\n",
        "```sh\npsph report run\n```\n",
        "```sh\npsph gateway -c a.toml &   # goes on\n```\n",
    ],
)
def test_a_block_that_nobody_would_run_is_a_fault(text: str, tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(text)
    assert faults(page)


def test_what_a_command_is() -> None:
    told = command("psph crash hub --kills 200")
    assert told is not None
    assert [told.is_part_of(one) for one in (command("psph crash hub --seed 3 --kills 2"), command("psph crash hub"))
            if one is not None] == [True, False]  # fmt: skip
    assert command("PSPH_SOCKET=x psph sub T") == command(".venv/bin/psph sub http://a.example/")
    assert command("psph:to") is None


@pytest.mark.parametrize("page", [one for one in PAGES if any(b.language == "python" for b in blocks(one))], ids=name)
def test_what_python_of_a_page_imports_is_there(page: Path) -> None:
    for block in blocks(page):
        if block.language == "python":
            taken = [node for node in ast.parse(block.body).body if isinstance(node, ast.Import | ast.ImportFrom)]
            exec(compile(ast.Module(taken, []), str(page), "exec"), {})  # noqa: S102 - imports of our own pages


def test_nothing_of_a_page_is_left_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also what went to a session of its own and never said that it is ready."""
    page = tmp_path / "page.md"
    page.write_text("```sh\nsetsid sleep 300 & echo $! > pid\nsleep 300\n```\n")
    monkeypatch.setattr(runner, "PATIENCE", 1.0)
    run = PageRun(page, tmp_path)
    with pytest.raises(AssertionError, match="did not end"):
        run.run()
    pid = int((run.folder / "pid").read_text())
    until_so(lambda: not Path(f"/proc/{pid}").exists())
