"""Publishers keep their filters true by themselves, also while no topology manager is there."""

from pathlib import Path

from identifiers import Identifier, ItemId
from psirp_stack.control.codes import Role
from psirp_stack.emulation.simulation import SimulatedNetwork
from psirp_stack.graph import Graph

BOTH = Role.RENDEZVOUS | Role.TOPOLOGY
ITEM = ItemId(Identifier(b"\1" * 32), Identifier(b"\2" * 32))
# The manager hangs at n0; two ways lead from n0 to n3, and n4 hangs at n3.
GRAPH = Graph.from_edges(
    ("n0", "n1", "n2", "n3", "n4", "manager"), [(0, 1), (1, 3), (0, 2), (2, 3), (3, 4), (0, 5)]
)


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
