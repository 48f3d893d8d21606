"""Where tags come from: every node computes the same ones, without asking anybody.

Tags belong to names, not to numbers of links, so a link that goes and returns has the tags it had, and filters that
were made before are right again.
"""

import random
from collections.abc import Sequence
from functools import lru_cache
from hashlib import blake2b
from typing import Protocol

from psirp_stack.filters.placement import PlacementCost, place_tags
from psirp_stack.filters.tags import TagBook
from psirp_stack.forwarding_model import FILTER_BITS, TABLES, TAG_BITS, Tags
from psirp_stack.graph import Graph, Routing

MAX_REMEMBERED_TAGS = 65_536
_DRAW_BYTES = 64
_PERSON = b"psph link tags"


class TagSource(Protocol):
    """Tags of a domain by the names of its nodes."""

    def link_tags(self, tail: str, head: str) -> Tags:
        """Tags of the directed link from one node to its neighbour."""

    def internal_tags(self, name: str) -> Tags:
        """Tags that mean «deliver up the stack here»."""


class DerivedTags:
    """Tags that follow from the domain's seed and the names: five bits out of 248 for each table."""

    def __init__(self, seed: bytes) -> None:
        self._base = blake2b(key=blake2b(seed, person=_PERSON).digest(), person=_PERSON, digest_size=_DRAW_BYTES)
        self._remembered = lru_cache(maxsize=MAX_REMEMBERED_TAGS)(self._derive)

    def link_tags(self, tail: str, head: str) -> Tags:
        return self._remembered((tail, head))

    def internal_tags(self, name: str) -> Tags:
        return self._remembered((name,))

    def _derive(self, names: Sequence[str]) -> Tags:
        return tuple(self._tag(names, table) for table in range(TABLES))

    def _tag(self, names: Sequence[str], table: int) -> int:
        state = self._base.copy()
        # Names are told apart by their lengths: ("ab", "c") is not ("a", "bc").
        state.update(bytes((table, len(names))))
        for name in names:
            encoded = name.encode()
            state.update(len(encoded).to_bytes(4, "big") + encoded)
        bits = 0
        turn = 0
        while True:
            draw = state.copy()
            draw.update(bytes((turn,)))
            for byte in draw.digest():
                # A byte has 256 values and there are 248 bits: larger ones are left out, to keep all equally likely.
                if byte < FILTER_BITS:
                    bits |= 1 << byte
                    if bits.bit_count() == TAG_BITS:
                        return bits
            turn += 1


class PlacedTags:
    """Tags chosen over a known graph (`filters/placement.py`); links that the graph does not have get derived ones."""

    def __init__(self, graph: Graph, seed: bytes) -> None:
        self._fallback = DerivedTags(seed)
        book, self.cost = _placed(graph, seed)
        names = graph.names
        self._links = {(names[tail], names[head]): book.links[link] for link, (tail, head) in enumerate(graph.links)}
        self._internal = dict(zip(names, book.internal, strict=True))

    def link_tags(self, tail: str, head: str) -> Tags:
        return self._links.get((tail, head)) or self._fallback.link_tags(tail, head)

    def internal_tags(self, name: str) -> Tags:
        return self._internal.get(name) or self._fallback.internal_tags(name)


@lru_cache(maxsize=4)
def _placed(graph: Graph, seed: bytes) -> tuple[TagBook, PlacementCost]:
    """Takes seconds for hundreds of nodes, and the nodes of an emulated network all ask for the same."""
    # Every node of the domain must get the same: one routing, and chance from the seed alone.
    chance = random.Random(blake2b(seed, person=_PERSON).digest())  # noqa: S311  (the same everywhere, no secret)
    return place_tags([Routing(graph)], chance)
