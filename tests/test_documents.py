"""The documents lead somewhere and tell the truth: links exist, commands are run."""

import re
from pathlib import Path

import pytest

from tests import document_runner
from tests.document_runner import PageRun

ROOT = Path(__file__).parent.parent
DOCUMENTS = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])
LINK = re.compile(r"\]\((?!https?:)([^)#\s]+)")


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_relative_links_lead_somewhere(document: Path) -> None:
    broken = [link for link in LINK.findall(document.read_text()) if not (document.parent / link).exists()]
    assert not broken


def test_the_readme_shows_the_two_commands() -> None:
    text = (ROOT / "README.md").read_text()
    assert "\n    make run" in text
    assert "\n    make test" in text


RUN_PAGES = ("getting-started.md", "tour.md", "operations.md")
"""Pages whose blocks say what they are for, and are run. Other pages have tests of their own beside their parts."""


@pytest.mark.timeout(300)
@pytest.mark.parametrize("name", RUN_PAGES)
def test_the_commands_of_a_page_do_what_it_says(name: str, tmp_path: Path) -> None:
    run = PageRun(ROOT / "docs" / name, tmp_path)
    assert run.run() >= 3
    for block in run.blocks:
        assert block.language, f"{name}: a block without a language is neither run nor covered:\n{block.body}"


def test_a_page_that_lies_is_noticed(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    for text, complaint in (
        ("```sh\nfalse\n```\n", "ended with 1"),
        ("```sh\necho one 1\n```\n```text output\ntwo 2\n```\n", "the page shows"),
        ("```sh covered=tests/test_documents.py::test_nothing\npsph\n```\n", "is no test"),
        ("```sh background=ready\necho never\n```\n", "never"),
    ):
        page.write_text(text)
        with pytest.raises(AssertionError, match=complaint):
            document_runner.PATIENCE = 2.0
            try:
                PageRun(page, tmp_path).run()
            finally:
                document_runner.PATIENCE = 90.0
    page.write_text("```sh\necho it took 5 ms\n```\n```text output\nit took 7 ms\n```\n")
    assert PageRun(page, tmp_path).run() == 1
