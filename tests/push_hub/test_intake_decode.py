"""Content encodings are undone within a bound."""

import gzip
import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from push_hub.intake.decode import decode_body
from push_hub.intake.ports import FetchError


def bare_deflate(data: bytes) -> bytes:
    stream = zlib.compressobj(wbits=-15)
    return stream.compress(data) + stream.flush()


@given(st.binary(max_size=500))
def test_each_coding_round_trips(data: bytes) -> None:
    for coded, name in [
        (gzip.compress(data), "gzip"),
        (gzip.compress(data[:7]) + gzip.compress(data[7:]), "X-GZIP"),
        (zlib.compress(data), "deflate"),
        (gzip.compress(zlib.compress(data)), "deflate, gzip"),
        (data, "identity"),
        (data, ""),
    ]:
        assert decode_body(coded, name, 1000) == data


def test_a_deflate_body_without_its_zlib_header_is_read() -> None:
    assert decode_body(bare_deflate(b"hello" * 9), "deflate", 1000) == b"hello" * 9


@given(st.binary(max_size=200), st.sampled_from(["gzip", "deflate", "br", "gzip, gzip", "zstd", "gzip,,,"]))
def test_broken_codings_give_a_reason(data: bytes, coding: str) -> None:
    try:
        decode_body(data, coding, 1000)
    except FetchError as error:
        assert error.reason


@pytest.mark.parametrize("coding", ["gzip", "deflate"])
def test_a_bomb_stops_at_the_limit(coding: str) -> None:
    bomb = (gzip.compress if coding == "gzip" else zlib.compress)(bytes(50_000_000))
    with pytest.raises(FetchError, match="larger"):
        decode_body(bomb, coding, 1_000_000)
    with pytest.raises(FetchError, match="larger"):
        decode_body(gzip.compress(bytes(600)) * 2, "gzip", 1000)
    assert decode_body(gzip.compress(bytes(500)) * 2, "gzip", 1000) == bytes(1000)


def test_a_cut_body_is_an_error() -> None:
    with pytest.raises(FetchError, match="too early"):
        decode_body(gzip.compress(b"hello" * 99)[:-9], "gzip", 1000)
