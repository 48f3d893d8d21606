"""Link-id tags: which bits stand for which directed link or node, in each table."""

import random
from collections.abc import Sequence
from dataclasses import dataclass

from psirp_stack.forwarding_model import (
    FILTER_BITS,
    FILTER_BYTES,
    TABLES,
    TAG_BITS,
    ForwardingTable,
    Tags,
)
from psirp_stack.graph import DeliveryTree, Graph, Node

LIPSIN_BITS: tuple[int, ...] = (TAG_BITS,) * TABLES


@dataclass(frozen=True, slots=True)
class TagBook:
    """All ids of one network."""

    links: tuple[Tags, ...]
    """By directed link."""
    internal: tuple[Tags, ...]
    """By node: the id that means «deliver up the stack here»."""

    def __post_init__(self) -> None:
        for tags in (*self.links, *self.internal):
            # An empty tag is contained in every filter, so its link would be flooded.
            if len(tags) != TABLES or not all(0 < tag < 1 << FILTER_BITS for tag in tags):
                raise ValueError(f"a link needs {TABLES} tags with at least one of {FILTER_BITS} bits set")

    def named_by(self, tree: DeliveryTree, internal: bool = True) -> list[Tags]:
        """What a filter for the tree must contain."""
        named = [self.links[link] for link in tree.links]
        if internal:
            named += [self.internal[node] for node in tree.subscribers]
        return named

    def state_bytes(self, graph: Graph, node: Node) -> int:
        """What a forwarder at the node keeps: the tags of its links and of its internal link."""
        return (len(graph.out_links[node]) + 1) * TABLES * FILTER_BYTES


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
        tables.append(
            ForwardingTable(
                links={number: book.links[link] for link, number in numbers.items()},
                internal=book.internal[node],
                incoming={number: book.links[graph.reverse[link]] for link, number in numbers.items()},
            )
        )
    return tables
