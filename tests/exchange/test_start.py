"""Where a session begins, as people write it."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from exchange.model import CURRENT, OriginId, Start


@given(st.integers(0, 10**18 - 1), st.binary(min_size=16, max_size=16))
def test_numbers_and_origins_come_back_as_they_were_written(number: int, gateway: bytes) -> None:
    assert Start.parse(str(number)) == Start(after=number)
    origin = OriginId(gateway, number)
    assert Start.parse(str(origin)) == Start(after_origin=origin)


def test_words_and_times() -> None:
    assert Start.parse("current") == CURRENT
    assert Start.parse("all") == Start(everything=True)
    for text in ("1970-01-01T00:01:00Z", "1970-01-01T01:01:00+01:00", "1970-01-01T00:01:00", "1970-01-01T00:01"):
        assert Start.parse(text) == Start(since_ms=60_000)
    assert Start.parse("1960-01-01") == Start(since_ms=0)


@given(st.text(max_size=30))
def test_anything_else_is_refused_with_what_was_expected(text: str) -> None:
    try:
        Start.parse(text)
    except ValueError as error:
        assert "expected current, all" in str(error)


@pytest.mark.parametrize("text", ["", "-1", "now", "1" * 19, "12:1", "2026-13-01", "\u0661", "zz" * 16 + ":1"])
def test_these_are_none(text: str) -> None:
    with pytest.raises(ValueError, match="expected"):
        Start.parse(text)
