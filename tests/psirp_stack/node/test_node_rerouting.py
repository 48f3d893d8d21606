"""Publishers keep their filters true by themselves, also while no topology manager is there."""

from pathlib import Path

from identifiers import Identifier, ItemId
from psirp_stack.control.codes import ServiceRole
from psirp_stack.emulation.simulation import SimulatedNetwork
from psirp_stack.graph import Graph
from psirp_stack.links.impairment import Impairment

BOTH = ServiceRole.RENDEZVOUS | ServiceRole.TOPOLOGY
ITEM = ItemId(Identifier(b"\1" * 32), Identifier(b"\2" * 32))
# The manager hangs at n0; two ways lead from n0 to n3, and n4 hangs at n3.
GRAPH = Graph.from_edges(("n0", "n1", "n2", "n3", "n4", "manager"), [(0, 1), (1, 3), (0, 2), (2, 3), (3, 4), (0, 5)])


def test_nodes_reroute_around_a_dead_link_while_no_manager_is_there(tmp_path: Path) -> None:
    network = SimulatedNetwork(GRAPH, tmp_path, roles={"manager": BOTH})
    try:
        network.run(5.0)
        publisher, near, far = (network.application(name) for name in ("n0", "n3", "n4"))
        for subscriber in (near, far):
            subscriber.subscribe(ITEM)
        publisher.publish(ITEM, b"0")
        assert network.run_until(lambda: far.contents(ITEM) == near.contents(ITEM) == [b"0"], 5.0)
        network.kill("manager")
        network.run(3.0)
        assert network.nodes["n0"].holders.topology is None
        sent = [b"0"]
        for number, edge in enumerate((("n1", "n3"), ("n2", "n3")), start=1):
            # First one way dies; then it works again and the other dies.
            network.cut(*edge)
            sent.append(b"%d" % number)
            publisher.publish(ITEM, sent[-1])
            assert network.run_until(lambda: far.contents(ITEM) == near.contents(ITEM) == sent, 5.0), number
            network.mend(*edge)
            network.run(1.0)
        network.cut("n3", "n4")
        sent.append(b"3")
        publisher.publish(ITEM, b"3")
        network.run(4.0)
        assert near.contents(ITEM) == sent
        network.mend("n3", "n4")  # who was out of reach is served again without being asked for
        assert network.run_until(lambda: far.contents(ITEM) == sent, 10.0)
        assert not far.skipped
    finally:
        network.close()


def ring(size: int) -> Graph:
    return Graph.from_edges([f"n{n}" for n in range(size)], [(n, (n + 1) % size) for n in range(size)])


class Stream:
    """A publisher that never stops, and when what it published arrives."""

    def __init__(self, network: SimulatedNetwork, publisher: str, subscriber: str) -> None:
        self.network = network
        self.publisher, self.subscriber = network.application(publisher), network.application(subscriber)
        self.subscriber.subscribe(ITEM)
        self.sent = [b"0"]
        self.publisher.publish(ITEM, b"0")
        assert network.run_until(lambda: self.subscriber.contents(ITEM) == self.sent, 5.0)

    def longest_silence(self, seconds: float, step: float = 0.005) -> float:
        """Publish every few milliseconds; the longest time without anything new at the subscriber."""
        longest = last = self.network.clock.now()
        longest = 0.0
        seen = len(self.subscriber.contents(ITEM))
        for _ in range(round(seconds / step)):
            self.sent.append(b"%d" % len(self.sent))
            self.publisher.publish(ITEM, self.sent[-1])
            self.network.run(step)
            now = self.network.clock.now()
            if len(self.subscriber.contents(ITEM)) > seen:
                seen, last = len(self.subscriber.contents(ITEM)), now
            longest = max(longest, now - last)
        return longest


def test_a_link_that_goes_down_costs_less_than_a_tenth_of_a_second(tmp_path: Path) -> None:
    slow = Impairment(delay=0.005)
    network = SimulatedNetwork(ring(6), tmp_path, roles={"n5": BOTH}, impairment=slow)
    try:
        network.run(5.0)
        stream = Stream(network, "n0", "n3")
        assert stream.longest_silence(0.5) < 0.05
        used = "n1" if network.carrier("n0", "n1").counters.sent > network.carrier("n0", "n5").counters.sent else "n5"
        beyond = {"n1": "n2", "n5": "n4"}[used]
        network.cut(used, beyond)  # not at the publisher, which has to hear of it first
        assert stream.longest_silence(1.0) < 0.1
        assert network.nodes[used].forwarder.statistics.detoured > 0
        assert network.run_until(lambda: stream.subscriber.contents(ITEM) == stream.sent, 5.0)
    finally:
        network.close()


def test_frames_go_round_a_dead_link_before_its_publisher_knows(tmp_path: Path) -> None:
    """The news takes longer than the frames: all come through, on the way that was worked out before."""
    network = SimulatedNetwork(ring(6), tmp_path, roles={"n5": BOTH})
    try:
        network.run(5.0)
        stream = Stream(network, "n0", "n3")
        path = [("n1", "n2"), ("n5", "n4")]
        used = next(edge for edge in path if network.carrier(*edge).counters.sent_bytes > 0)
        publisher = network.nodes["n0"]
        publisher.rerouting.graph_changed = lambda known: []  # type: ignore[method-assign]
        manager = network.nodes["n5"].topology
        assert manager is not None
        manager.graph_changed = lambda known: None  # type: ignore[method-assign]
        for edge in path:
            network.cut(*edge)
            assert stream.longest_silence(0.5) < 0.1, used
            network.mend(*edge)
            network.run(2.0)
        assert sum(node.forwarder.statistics.detoured for node in network.nodes.values()) > 0
        assert network.run_until(lambda: stream.subscriber.contents(ITEM) == stream.sent, 5.0)
        assert not stream.subscriber.skipped
    finally:
        network.close()


def test_a_way_round_that_leads_nowhere_is_tried_once(tmp_path: Path) -> None:
    """A neighbour that died, and not a link to it: nodes around it send to each other, and do not go on doing so."""
    network = SimulatedNetwork(ring(6), tmp_path, roles={"n5": BOTH})
    try:
        network.run(5.0)
        stream = Stream(network, "n0", "n3")
        for name in ("n3",):
            network.kill(name)
        before = sum(node.forwarder.statistics.received for node in network.nodes.values())
        for number in range(20):
            stream.publisher.publish(ITEM, b"late %d" % number)
        network.run(0.2)
        after = sum(node.forwarder.statistics.received for node in network.nodes.values())
        assert after - before < 2000
    finally:
        network.close()
