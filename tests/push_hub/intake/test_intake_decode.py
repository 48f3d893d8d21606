"""Content encodings are undone within a bound."""

import gzip
import tracemalloc
import zlib
from collections.abc import Callable
from functools import partial

import brotli
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
        (brotli.compress(data), "br"),
        (gzip.compress(brotli.compress(data)), "br, gzip"),
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


COMPRESS: dict[str, Callable[[bytes], bytes]] = {
    "gzip": partial(gzip.compress, compresslevel=1),
    "deflate": zlib.compress,
    "br": partial(brotli.compress, quality=1),
}


@pytest.mark.parametrize("coding", sorted(COMPRESS))
def test_a_bomb_stops_at_the_limit(coding: str) -> None:
    compress = COMPRESS[coding]
    bomb = compress(bytes(64_000_000))
    tracemalloc.start()
    try:
        with pytest.raises(FetchError, match="larger"):
            decode_body(bomb, coding, 1_000_000)
        assert tracemalloc.get_traced_memory()[1] < 16_000_000  # of the 64 it stands for
    finally:
        tracemalloc.stop()
    assert decode_body(compress(bytes(1000)), coding, 1000) == bytes(1000)
    with pytest.raises(FetchError, match="larger"):
        decode_body(compress(bytes(1001)), coding, 1000)


def test_a_bomb_in_a_bomb_stops_at_the_first() -> None:
    with pytest.raises(FetchError, match="larger"):
        decode_body(gzip.compress(gzip.compress(bytes(10_000_000))), "gzip, gzip", 1000)


def test_members_of_a_gzip_stream_are_counted_and_share_the_limit() -> None:
    with pytest.raises(FetchError, match="members"):
        decode_body(gzip.compress(b"") * 300, "gzip", 1000)
    with pytest.raises(FetchError, match="larger"):
        decode_body(gzip.compress(bytes(600)) * 2, "gzip", 1000)
    assert decode_body(gzip.compress(bytes(500)) * 2, "gzip", 1000) == bytes(1000)


@pytest.mark.parametrize("coding", sorted(COMPRESS))
def test_a_cut_body_is_an_error(coding: str) -> None:
    with pytest.raises(FetchError, match="too early"):
        decode_body(COMPRESS[coding](b"hello" * 99)[:-5], coding, 1000)
