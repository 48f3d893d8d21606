"""The pages of the documentation whose commands start Spark are run here: only one Java runs at a time."""

from pathlib import Path

import pytest

from tests.documents.pages import ROOT, pages_with_commands
from tests.documents.runner import PageRun
from tests.documents.stand_ins import STAND_INS


@pytest.mark.timeout(600)
@pytest.mark.parametrize("page", pages_with_commands(spark=True), ids=lambda page: str(page.relative_to(ROOT)))
def test_the_commands_of_a_page_do_what_it_says(page: Path, tmp_path: Path) -> None:
    run = PageRun(page, tmp_path, STAND_INS)
    run.run()
    if run.left_out:
        pytest.skip("; ".join(run.left_out))
