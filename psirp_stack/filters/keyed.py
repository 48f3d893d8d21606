"""Keyed tags (z-formation): a filter that works for one flow, one arrival port at each hop and one key period.

A tag is computed when it is needed, from the node's secret of the period, the ports a packet enters and leaves by, the
flow and the table. Whoever harvests a filter can use it for nothing else, and not for long. Nodes keep one secret
instead of a table of tags; they pay with a keyed hash per link for every flow that is not in their cache.

A packet does not say its period. At a change of period packets are under way that were sent before it, and publishers
have not all received their new filters. So for a short grace the previous period's tags are accepted beside the current
ones. Both are tested and either opens a link: stopping at the first period that matches would let a chance match of one
period hide the true match of the other.
"""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

from psirp_stack.filters.zfilter import ZFilter
from psirp_stack.forwarding_model import FILTER_BITS, TABLES, TAG_BITS, LinkNumber
from psirp_stack.graph import DeliveryTree, Graph, Node

SECRET_BYTES = 32
MAX_FLOW_BYTES = 64
LOCAL_PORT = 0xFFFF
"""The node's own stack, as the place a packet comes from or goes to."""
MAX_PORT = LOCAL_PORT - 1
MAX_CACHED_TAGS = 65_536
NO_FLOW = b""
"""For tags that are bound to ports and period only: what forwarders test, which do not look beyond their own header."""


@dataclass(frozen=True, slots=True)
class KeyPeriods:
    """How long a secret lives. Times are seconds on any clock that all nodes share to within the grace."""

    length: float = 300.0
    grace: float = 15.0

    def __post_init__(self) -> None:
        if not 0 <= self.grace < self.length:
            raise ValueError(f"the grace is {self.grace} s; expected less than the period of {self.length} s")

    def current(self, now: float) -> int:
        return int(now // self.length)

    def accepted(self, now: float) -> tuple[int, ...]:
        """The periods whose tags count now, the current one first."""
        current = self.current(now)
        in_grace = now - current * self.length < self.grace
        return (current, current - 1) if in_grace and current > 0 else (current,)


def node_secret(domain_secret: bytes, node_name: str) -> bytes:
    """What one node is given; it tells nothing about another node's secret."""
    if len(domain_secret) != SECRET_BYTES:
        raise ValueError(f"the domain secret has {len(domain_secret)} bytes; expected {SECRET_BYTES}")
    name = hashlib.blake2b(node_name.encode(), digest_size=32).digest()
    return hashlib.blake2b(name, key=domain_secret, digest_size=SECRET_BYTES, person=b"psph node").digest()


def period_secret(secret: bytes, period: int) -> bytes:
    label = period.to_bytes(8, "big")
    return hashlib.blake2b(label, key=secret, digest_size=SECRET_BYTES, person=b"psph period").digest()


@lru_cache(maxsize=MAX_CACHED_TAGS)
def keyed_tag(secret: bytes, arrival: LinkNumber, exit_port: LinkNumber, flow: bytes, table: int) -> int:
    """The tag under one period's secret: `TAG_BITS` different positions."""
    if len(flow) > MAX_FLOW_BYTES:
        raise ValueError(f"a flow id has {len(flow)} bytes; at most {MAX_FLOW_BYTES} are allowed")
    message = arrival.to_bytes(2, "big") + exit_port.to_bytes(2, "big") + bytes((table,)) + flow
    tag = 0
    block = 0
    while True:
        stream = hashlib.blake2b(block.to_bytes(4, "big") + message, key=secret, person=b"psph tag").digest()
        for position in stream:
            # Bytes beyond the filter are skipped, not folded back, so that all positions are equally likely.
            if position < FILTER_BITS:
                tag |= 1 << position
                if tag.bit_count() == TAG_BITS:
                    return tag
        block += 1


@dataclass(frozen=True, slots=True)
class KeyedMatch:
    """Where a keyed filter leads from one node."""

    out: tuple[LinkNumber, ...]
    deliver: bool


@dataclass(frozen=True, slots=True)
class KeyedNode:
    """A forwarder's side: holds its own secret and nothing else."""

    secret: bytes
    links: tuple[LinkNumber, ...]
    periods: KeyPeriods = KeyPeriods()

    def match(self, zfilter: ZFilter, flow: bytes, arrival: LinkNumber, now: float) -> KeyedMatch:
        """Which links the filter names for a packet of this flow that came in by `arrival`."""
        return self.match_in(self.periods.accepted(now), zfilter, flow, arrival)

    def match_in(self, periods: tuple[int, ...], zfilter: ZFilter, flow: bytes, arrival: LinkNumber) -> KeyedMatch:
        """The same under the keys of given periods."""
        # A flow id comes from the packet: a bad one matches nothing instead of raising.
        if zfilter.overfull or len(flow) > MAX_FLOW_BYTES:
            return KeyedMatch((), False)
        secrets = [period_secret(self.secret, period) for period in periods]

        def named(exit_port: LinkNumber) -> bool:
            return any(self._named(zfilter, secret, arrival, exit_port, flow) for secret in secrets)

        out = tuple(link for link in self.links if link != arrival and named(link))
        return KeyedMatch(out, arrival != LOCAL_PORT and named(LOCAL_PORT))

    @staticmethod
    def _named(zfilter: ZFilter, secret: bytes, arrival: LinkNumber, exit_port: LinkNumber, flow: bytes) -> bool:
        tag = keyed_tag(secret, arrival, exit_port, flow, zfilter.table)
        return zfilter.bits & tag == tag


class KeyedDomain:
    """The topology manager's side: knows every node's secret and makes filters."""

    def __init__(self, graph: Graph, domain_secret: bytes, periods: KeyPeriods | None = None) -> None:
        if any(len(out) > MAX_PORT for out in graph.out_links):
            raise ValueError(f"a node has more than {MAX_PORT} links")
        self.graph = graph
        self.periods = periods or KeyPeriods()
        self._secrets = [node_secret(domain_secret, name) for name in graph.names]

    def node(self, node: Node) -> KeyedNode:
        return KeyedNode(self._secrets[node], tuple(range(len(self.graph.out_links[node]))), self.periods)

    def candidates(self, tree: DeliveryTree, flow: bytes, period: int) -> list[ZFilter]:
        """One filter per table, for links and for delivery at the subscribers; overfull ones included."""
        graph = self.graph
        arrivals = {tree.source: LOCAL_PORT}
        for node, link in tree.parents.items():
            arrivals[node] = graph.link_number(graph.reverse[link])
        secrets = {node: period_secret(self._secrets[node], period) for node in arrivals}
        hops: list[tuple[Node, LinkNumber]] = [(graph.links[link][0], graph.link_number(link)) for link in tree.links]
        hops += [(node, LOCAL_PORT) for node in tree.subscribers]
        found = []
        for table in range(TABLES):
            bits = 0
            for node, exit_port in hops:
                bits |= keyed_tag(secrets[node], arrivals[node], exit_port, flow, table)
            found.append(ZFilter(bits, table))
        return found

    def filter(self, tree: DeliveryTree, flow: bytes, period: int) -> ZFilter:
        """The emptiest candidate; all tags have the same number of bits, so that is the lowest predicted rate."""
        return _emptiest(self.candidates(tree, flow, period)).checked()


def _emptiest(found: Sequence[ZFilter]) -> ZFilter:
    return min(found, key=lambda candidate: candidate.bits_set)
