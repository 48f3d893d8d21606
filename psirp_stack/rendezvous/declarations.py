"""What a node can declare, and the digest by which node and rendezvous see whether they mean the same."""

import hashlib
from collections.abc import Iterable
from enum import IntEnum

from psirp_stack.control.messages import ROOT_SCOPE

HASH_MASK = (1 << 63) - 1


class DeclaredRole(IntEnum):
    """What a node is to an item or scope. The numbers of `Declaration.role`."""

    PUBLISHES = 0
    SUBSCRIBES = 1
    WATCHES = 2
    """Subscribes to the scope; the Rid is zero."""


WHOLE_SCOPE = ROOT_SCOPE
"""The Rid of a declaration about a scope."""


def declaration_hash(role: DeclaredRole, sid: bytes, rid: bytes = WHOLE_SCOPE) -> int:
    """63 bits that stand for one declaration."""
    digest = hashlib.blake2b(bytes((role,)) + sid + rid, digest_size=8).digest()
    return int.from_bytes(digest, "big") & HASH_MASK


def declarations_digest(declared: Iterable[tuple[DeclaredRole, bytes, bytes]]) -> int:
    """The digest that `KeepAlive` carries: the XOR of all, so that it follows every change at the cost of one hash."""
    digest = 0
    for role, sid, rid in declared:
        digest ^= declaration_hash(role, sid, rid)
    return digest
