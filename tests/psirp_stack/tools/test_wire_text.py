"""Identifiers in summaries."""

import pytest

from psirp_stack.tools.text import short_hex, short_id


@pytest.mark.parametrize(
    ("identifier", "text"),
    [
        (bytes(32), "::"),
        (b"\xaa" + bytes(30) + b"\xbb", "aa::bb"),
        (bytes(12) + bytes(range(1, 21)), "::01020304…11121314"),
        (bytes(24) + b"\x12" * 8, "::" + "12" * 8),
        (b"\x11" * 32, "11111111…11111111"),
    ],
)
def test_short_ids_keep_both_ends(identifier: bytes, text: str) -> None:
    assert short_id(identifier) == text


def test_short_hex_abbreviates_only_what_is_long() -> None:
    assert short_hex("12" * 8) == "12" * 8
    assert short_hex("12" * 8 + "34") == "12121212…12121234"
