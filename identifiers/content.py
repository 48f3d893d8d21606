"""Ids of content: equal bytes give equal ids, on any node and in any order.

Content is cut into pages of 4096 bytes. A page id is `Page`, zeros, and the page's hash right-aligned; a version id is
`Version`, a zero byte, zeros, and the root of a Merkle tree over the page hashes. The kind stays readable in a dump.

The tree joins two subtrees of equal height as soon as there are two, and at the end what is left over from right to
left: 0 pages give the hash of nothing, 1 page its own hash, 2 give H(h0 h1), 3 give H(H(h0 h1) h2). The ancestor hashed
the second page twice in the three-page case and never the third; here every page counts.
"""

import hashlib
from collections.abc import Iterator
from typing import Final

from identifiers.identifier import IDENTIFIER_BYTES, Identifier
from identifiers.naming import HashName

PAGE_BYTES: Final = 4096
PAGE_PREFIX: Final = b"Page"
VERSION_PREFIX: Final = b"Version\0"
PREFIX_ROOM: Final = 12
"""Bytes left for the kind: longer hashes are cut to what remains."""
_HASH_ROOM: Final = IDENTIFIER_BYTES - PREFIX_ROOM


def pages(content: bytes) -> Iterator[bytes]:
    """The content in pages; the last may be short, and empty content has none."""
    for start in range(0, len(content), PAGE_BYTES):
        yield content[start : start + PAGE_BYTES]


def page_id(page: bytes, hash_name: HashName = HashName.SHA1) -> Identifier:
    if len(page) > PAGE_BYTES:
        raise ValueError(f"a page has at most {PAGE_BYTES} bytes, not {len(page)}")
    return _tagged(PAGE_PREFIX, _hash(page, hash_name))


def version_id(content: bytes, hash_name: HashName = HashName.SHA1) -> Identifier:
    return _tagged(VERSION_PREFIX, merkle_root((_hash(page, hash_name) for page in pages(content)), hash_name))


def merkle_root(leaves: Iterator[bytes], hash_name: HashName = HashName.SHA1) -> bytes:
    """The root over page hashes; keeps one subtree per height, however long the content."""
    subtrees: list[tuple[int, bytes]] = []
    for leaf in leaves:
        subtrees.append((0, leaf))
        while len(subtrees) > 1 and subtrees[-1][0] == subtrees[-2][0]:
            height, right = subtrees.pop()
            _, left = subtrees.pop()
            subtrees.append((height + 1, _hash(left + right, hash_name)))
    if not subtrees:
        return _hash(b"", hash_name)
    _, root = subtrees.pop()
    while subtrees:
        _, left = subtrees.pop()
        root = _hash(left + root, hash_name)
    return root


def is_version_id(identifier: Identifier) -> bool:
    return bytes(identifier).startswith(VERSION_PREFIX)


def is_page_id(identifier: Identifier) -> bool:
    return bytes(identifier).startswith(PAGE_PREFIX.ljust(PREFIX_ROOM, b"\0"))


def _hash(data: bytes, hash_name: HashName) -> bytes:
    return hashlib.new(hash_name, data, usedforsecurity=False).digest()


def _tagged(prefix: bytes, digest: bytes) -> Identifier:
    return Identifier(prefix.ljust(PREFIX_ROOM, b"\0") + digest[:_HASH_ROOM])
