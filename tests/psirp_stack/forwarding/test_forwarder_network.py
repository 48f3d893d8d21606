"""Whole networks of forwarders on in-process links and a virtual clock: trees, false positives, loops, ways back."""

import random
from collections import defaultdict, deque
from dataclasses import dataclass, field

from hypothesis import given, settings
from hypothesis import strategies as st

from psirp_stack.forwarder import Forwarder
from psirp_stack.forwarding_model import MAX_FILTER_FILL, TABLES, Drop, ForwardingTable, Tags
from psirp_stack.links.clock import VirtualClock
from psirp_stack.links.in_process import pair
from psirp_stack.wire.numbers import FORWARDING_BYTES, RENDEZVOUS_BYTES, HeaderType
from tests.psirp_stack.frames import collected_fid, draw_tags, fid, frame

Node = int
DirectedLink = tuple[Node, Node]


@dataclass
class Network:
    """Forwarders joined as a graph says; a link's number at a node is its neighbour."""

    clock: VirtualClock = field(default_factory=VirtualClock)
    nodes: dict[Node, Forwarder] = field(default_factory=dict)
    tags: dict[DirectedLink, Tags] = field(default_factory=dict)
    internal: dict[Node, Tags] = field(default_factory=dict)
    neighbours: dict[Node, list[Node]] = field(default_factory=lambda: defaultdict(list))
    crossed: list[DirectedLink] = field(default_factory=list)
    delivered: dict[Node, list[bytes]] = field(default_factory=lambda: defaultdict(list))

    def originate(self, node: Node, sent: bytes) -> None:
        self.nodes[node].forward([sent], None, self.clock.now())
        self.clock.run(most=20_000)

    def tree(self, root: Node, leaves: set[Node]) -> set[DirectedLink]:
        parents: dict[Node, Node] = {root: root}
        queue = deque([root])
        while queue:
            node = queue.popleft()
            for neighbour in self.neighbours[node]:
                if neighbour not in parents:
                    parents[neighbour] = node
                    queue.append(neighbour)
        links = set()
        for leaf in leaves:
            node = leaf
            while node != root:
                links.add((parents[node], node))
                node = parents[node]
        return links

    def filter_for(self, links: set[DirectedLink], leaves: set[Node], index: int) -> bytes:
        tags = [self.tags[link][index] for link in links] + [self.internal[leaf][index] for leaf in leaves]
        return fid(*tags, index=index)


def network(edges: list[tuple[Node, Node]], seed: int) -> Network:
    source = random.Random(seed)
    net = Network()
    for one, other in edges:
        net.neighbours[one].append(other)
        net.neighbours[other].append(one)
        net.tags[one, other], net.tags[other, one] = draw_tags(source), draw_tags(source)
    for node, neighbours in sorted(net.neighbours.items()):
        net.internal[node] = draw_tags(source)
        net.nodes[node] = Forwarder(
            ForwardingTable(
                {to: net.tags[node, to] for to in neighbours},
                net.internal[node],
                {to: net.tags[to, node] for to in neighbours},
            )
        )
        net.nodes[node].deliver_to(net.delivered[node].append)
    for one, other in edges:
        for (node, to), end in zip(((one, other), (other, one)), pair(scheduler=net.clock), strict=True):

            def send(sent: bytes, crossing: DirectedLink = (node, to), link: object = end) -> None:
                net.crossed.append(crossing)
                link.send(sent)  # type: ignore[attr-defined]

            net.nodes[node].attach(to, send)
            end.on_receive(lambda batch, node=node, to=to: net.nodes[node].forward(batch, to, net.clock.now()))
    return net


@st.composite
def graphs(draw: st.DrawFn) -> list[tuple[Node, Node]]:
    """Connected graphs: a random tree and a few more edges."""
    size = draw(st.integers(3, 14))
    edges = {(draw(st.integers(0, node - 1)), node) for node in range(1, size)}
    more = draw(st.lists(st.tuples(st.integers(0, size - 1), st.integers(0, size - 1)), max_size=6))
    return sorted(edges | {(min(pair_), max(pair_)) for pair_ in more if pair_[0] != pair_[1]})


@settings(max_examples=60, deadline=None)
@given(graphs(), st.integers(0, 2**32), st.data())
def test_a_frame_reaches_every_leaf_of_its_tree_over_every_link_of_it(
    edges: list[tuple[Node, Node]], seed: int, data: st.DataObject
) -> None:
    net = network(edges, seed)
    root = data.draw(st.sampled_from(sorted(net.nodes)))
    others = sorted(set(net.nodes) - {root})
    leaves = set(data.draw(st.lists(st.sampled_from(others), min_size=1, max_size=5)))
    index = data.draw(st.integers(0, TABLES - 1))
    tree = net.tree(root, leaves)
    named = net.filter_for(tree, leaves, index)
    bits = int.from_bytes(named[:-1], "big")
    if bits.bit_count() > MAX_FILTER_FILL:
        return
    net.originate(root, frame(named))
    falsely = {link for link, tags in net.tags.items() if bits & tags[index] == tags[index]} - tree
    looped = any(node.statistics.drops[Drop.LOOP] for node in net.nodes.values())
    # A false positive may bring a copy to a node before the tree does; the tree's own copy is then the repeat.
    assert looped or tree <= set(net.crossed), "a link of the tree was left out"
    assert set(net.crossed) <= tree | falsely, "a link was used that the filter does not name"
    assert all(net.delivered[leaf] for leaf in leaves)
    if not falsely:
        assert sorted(net.crossed) == sorted(tree)
        assert all(len(net.delivered[leaf]) == 1 for leaf in leaves)


@settings(max_examples=40, deadline=None)
@given(graphs(), st.integers(0, 2**32), st.data())
def test_the_way_back_that_was_collected_leads_back_to_the_origin(
    edges: list[tuple[Node, Node]], seed: int, data: st.DataObject
) -> None:
    net = network(edges, seed)
    origin, target = data.draw(st.permutations(sorted(net.nodes)))[:2]
    index = data.draw(st.integers(0, TABLES - 1))
    path = net.tree(origin, {target})
    metadata_at = FORWARDING_BYTES + RENDEZVOUS_BYTES
    asked = frame(
        net.filter_for(path, {target}, index), HeaderType.SUBSCRIBE_METADATA, HeaderType.METADATA, payload=None
    )
    start = metadata_at + 98
    asked = asked[:start] + fid(*net.internal[origin][index : index + 1], index=index) + asked[start + 32 :]
    net.originate(origin, asked)
    way_back = collected_fid(net.delivered[target][0], metadata_at)
    collected = int.from_bytes(way_back[:-1], "big")
    assert all(collected & net.tags[b, a][index] == net.tags[b, a][index] for a, b in path)
    net.originate(target, frame(way_back, payload=b"answer"))
    assert any(got.endswith(b"answer") for got in net.delivered[origin])


RING = [(0, 1), (1, 2), (2, 3), (0, 3)]


def test_a_filter_that_names_a_ring_goes_round_once_and_is_dropped_as_a_loop() -> None:
    net = network(RING, seed=1)
    ring = {(0, 1), (1, 2), (2, 3), (3, 0)}
    net.originate(0, frame(net.filter_for(ring, {2}, 0)))
    assert net.crossed == [(0, 1), (1, 2), (2, 3), (3, 0)]
    assert len(net.delivered[2]) == 1
    assert net.nodes[0].statistics.drops[Drop.LOOP] == 1


def test_a_loop_entered_from_outside_is_cut_where_it_closes() -> None:
    net = network([*RING, (4, 0)], seed=1)
    net.originate(4, frame(net.filter_for({(4, 0), (0, 1), (1, 2), (2, 3), (3, 0)}, set(), 0)))
    assert len(net.crossed) == 5
    assert net.nodes[0].statistics.drops[Drop.LOOP] == 1


def test_without_the_memory_for_loops_the_ttl_ends_it() -> None:
    net = network(RING, seed=1)
    for node in net.nodes.values():
        node.replace_table(ForwardingTable(node.table.links, node.table.internal))
    net.originate(0, frame(net.filter_for({(0, 1), (1, 2), (2, 3), (3, 0)}, set(), 0), ttl=20))
    assert len(net.crossed) == 19
    assert sum(node.statistics.drops[Drop.TTL_EXPIRED] for node in net.nodes.values()) == 1
