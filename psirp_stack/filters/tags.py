"""Link-id tags: which bits stand for which directed link, node or set of links, in each table."""

import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from psirp_stack.forwarding_model import (
    FILTER_BITS,
    FILTER_BYTES,
    TABLES,
    TAG_BITS,
    ForwardingTable,
    Tags,
    VirtualLink,
)
from psirp_stack.graph import DeliveryTree, Graph, Link, Node

LIPSIN_BITS: tuple[int, ...] = (TAG_BITS,) * TABLES


@dataclass(frozen=True, slots=True)
class VirtualTag:
    """One id for a set of directed links, installed at every node where one of them starts."""

    tags: Tags
    links: frozenset[Link]


@dataclass(frozen=True, slots=True)
class TagBook:
    """All ids of one network."""

    links: tuple[Tags, ...]
    """By directed link."""
    internal: tuple[Tags, ...]
    """By node: the id that means «deliver up the stack here»."""
    virtual: tuple[VirtualTag, ...] = ()

    def __post_init__(self) -> None:
        for tags in (*self.links, *self.internal, *(virtual.tags for virtual in self.virtual)):
            # An empty tag is contained in every filter, so its link would be flooded.
            if len(tags) != TABLES or not all(0 < tag < 1 << FILTER_BITS for tag in tags):
                raise ValueError(f"a link needs {TABLES} tags with at least one of {FILTER_BITS} bits set")

    def with_virtual(self, virtual: Iterable[VirtualTag]) -> "TagBook":
        return replace(self, virtual=(*self.virtual, *virtual))

    def named_by(self, tree: DeliveryTree, internal: bool = True) -> list[Tags]:
        """What a filter for the tree must contain. Virtual links inside the tree stand for their links."""
        remaining = set(tree.links)
        named: list[Tags] = []
        whole = remaining.copy()
        for virtual in sorted(self.virtual, key=lambda virtual: -len(virtual.links)):
            # A virtual link that reaches outside the tree would deliver to people who did not ask.
            if virtual.links <= whole and len(virtual.links & remaining) > 1:
                named.append(virtual.tags)
                remaining -= virtual.links
        named += [self.links[link] for link in tree.links if link in remaining]
        if internal:
            named += [self.internal[node] for node in tree.subscribers]
        return named

    def state_bytes(self, graph: Graph, node: Node) -> int:
        """What a forwarder at the node keeps: the tags of its links, of its internal link and of virtual links."""
        starts = set(graph.out_links[node])
        entries = len(starts) + 1 + sum(1 for virtual in self.virtual if starts & virtual.links)
        return entries * TABLES * FILTER_BYTES


def random_tag(rng: random.Random, bits: int = TAG_BITS) -> int:
    return sum(1 << position for position in rng.sample(range(FILTER_BITS), bits))


def random_tags(rng: random.Random, bits: Sequence[int] = LIPSIN_BITS) -> Tags:
    """One link's tags; `bits` says how many are set in each table, since that may differ by table."""
    return tuple(random_tag(rng, count) for count in bits)


def random_book(graph: Graph, rng: random.Random, bits: Sequence[int] = LIPSIN_BITS) -> TagBook:
    """LIPSIN's ids: every link's tags drawn evenly, without a look at the topology."""
    return TagBook(
        links=tuple(random_tags(rng, bits) for _ in graph.links),
        internal=tuple(random_tags(rng, bits) for _ in graph.names),
    )


def forwarding_tables(graph: Graph, book: TagBook) -> list[ForwardingTable]:
    """What each node must know. A node numbers its links as `Graph.link_number` does."""
    tables = []
    for node, out in enumerate(graph.out_links):
        numbers = {link: number for number, link in enumerate(out)}
        virtual = [
            VirtualLink(entry.tags, frozenset(numbers[link] for link in entry.links if link in numbers))
            for entry in book.virtual
        ]
        tables.append(
            ForwardingTable(
                links={number: book.links[link] for link, number in numbers.items()},
                internal=book.internal[node],
                incoming={number: book.links[graph.reverse[link]] for link, number in numbers.items()},
                virtual=tuple(entry for entry in virtual if entry.out),
            )
        )
    return tables
