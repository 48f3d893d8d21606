"""Fixtures for the tests of nodes."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.psirp_stack.simulated import Networks


@pytest.fixture
def networks(tmp_path: Path) -> Iterator[Networks]:
    made = Networks(tmp_path)
    yield made
    made.close()
