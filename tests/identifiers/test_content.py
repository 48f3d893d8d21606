import hashlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from identifiers import HashName, page_id, version_id
from identifiers.content import PAGE_BYTES, is_page_id, is_version_id, pages


def sha1(data: bytes) -> bytes:
    return hashlib.sha1(data).digest()


def leaf(number: int) -> bytes:
    return bytes([number]) * PAGE_BYTES


def root(content: bytes) -> bytes:
    return bytes(version_id(content))[12:]


def test_the_tree_for_up_to_five_pages() -> None:
    h = [sha1(leaf(number)) for number in range(5)]
    content = [b"".join(leaf(number) for number in range(count)) for count in range(6)]
    assert root(content[0]) == sha1(b"")
    assert root(content[1]) == h[0]
    assert root(content[2]) == sha1(h[0] + h[1])
    assert root(content[3]) == sha1(sha1(h[0] + h[1]) + h[2])
    assert root(content[4]) == sha1(sha1(h[0] + h[1]) + sha1(h[2] + h[3]))
    assert root(content[5]) == sha1(sha1(sha1(h[0] + h[1]) + sha1(h[2] + h[3])) + h[4])


def test_the_third_page_counts() -> None:
    """In the ancestor two items of three pages that differed only in the third had one version id."""
    assert version_id(leaf(1) + leaf(2) + leaf(3)) != version_id(leaf(1) + leaf(2) + leaf(4))


@given(st.binary(max_size=64), st.integers(0, 40), st.data())
def test_every_byte_of_every_page_counts(filler: bytes, count: int, data: st.DataObject) -> None:
    content = b"".join(leaf(number) for number in range(count)) + filler
    assert version_id(content) == version_id(bytes(bytearray(content)))
    if content:
        place = data.draw(st.integers(0, len(content) - 1))
        changed = content[:place] + bytes([content[place] ^ 1]) + content[place + 1 :]
        assert version_id(changed) != version_id(content)


@pytest.mark.parametrize("hash_name", [*HashName])
def test_kinds_are_readable_and_room_is_kept_for_them(hash_name: HashName) -> None:
    page, version = page_id(b"abc", hash_name), version_id(b"abc", hash_name)
    digest = hashlib.new(hash_name, b"abc").digest()
    assert bytes(page) == b"Page" + bytes(8) + digest[:20]
    assert bytes(version) == b"Version\0" + bytes(4) + digest[:20]
    assert is_page_id(page)
    assert is_version_id(version)
    assert not is_page_id(version)
    assert not is_version_id(page)


@given(st.binary(max_size=3 * PAGE_BYTES))
def test_pages_join_to_the_content(content: bytes) -> None:
    cut = list(pages(content))
    assert b"".join(cut) == content
    assert all(len(page) == PAGE_BYTES for page in cut[:-1])


def test_an_overlong_page_is_refused() -> None:
    with pytest.raises(ValueError, match="at most 4096"):
        page_id(bytes(PAGE_BYTES + 1))
