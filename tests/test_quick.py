"""What `make quick` leaves out is there: a name that nothing has any more would leave out nothing."""

from pathlib import Path

import pytest

from tests.conftest import LONG

ROOT = Path(__file__).parent.parent


@pytest.mark.parametrize("name", LONG)
def test_what_takes_long_is_there(name: str) -> None:
    path, _, test = name.partition("::")
    assert (ROOT / path).exists()
    assert test in (ROOT / path).read_text(encoding="utf-8")
