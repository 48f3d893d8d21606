"""Identifiers as text: `::` for zeros."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from psirp_stack.tools.text import id_text, parse_id, short_id


@pytest.mark.parametrize(
    ("identifier", "text"),
    [
        (bytes(32), "::"),
        (b"\xaa" + bytes(30) + b"\xbb", "aa::bb"),
        (bytes(31) + b"\x01", "::01"),
        (b"\x01" + bytes(31), "01::"),
        (b"\x11" * 32, "11" * 32),
        (b"\x01\x00\x02" + bytes(29), "010002::"),
    ],
)
def test_forms(identifier: bytes, text: str) -> None:
    assert id_text(identifier) == text
    assert parse_id(text, 32) == identifier


@given(st.lists(st.sampled_from([0, 0, 0, 1, 255]), min_size=32, max_size=32).map(bytes))
def test_round_trip(identifier: bytes) -> None:
    assert parse_id(id_text(identifier), 32) == identifier


def test_short_ids_keep_both_ends() -> None:
    assert short_id(bytes(12) + bytes(range(1, 21))) == "::01020304…11121314"
    assert short_id(bytes(24) + b"\x12" * 8) == "::" + "12" * 8


@pytest.mark.parametrize("text", ["", "aa", "zz::", "a::", "::" + "11" * 33, "aa::bb::cc", "11" * 33])
def test_bad_text_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"bytes|hex digits"):
        parse_id(text, 32)
