"""What a network costs while nothing happens in it, and that many nodes come to know each other."""

from collections import Counter
from dataclasses import replace
from pathlib import Path

from psirp_stack.control.frames import is_control
from psirp_stack.control.link_state_settings import LinkStateConfig
from psirp_stack.emulation.simulation import SimulatedNetwork
from psirp_stack.graph import Graph, backbone_graph


def idle_frames(nodes: int, tmp_path: Path, seconds: float) -> dict[str, float]:
    """Control frames a second and link of one node, by what they are, while nobody asks for anything."""
    sent: Counter[str] = Counter()

    def tap(sender: str, receiver: str, frame: bytes) -> None:
        assert is_control(frame)
        sent[sender] += 1

    folder = tmp_path / str(nodes)
    folder.mkdir()
    graph = Graph.from_edges([f"n{n}" for n in range(nodes)], [(n, (n + 1) % nodes) for n in range(nodes)])
    often = LinkStateConfig(refresh_interval=10.0, max_age=33.0)
    network = SimulatedNetwork(graph, folder, tap=tap, settings=lambda given: replace(given, link_state=often))
    try:
        network.run(20.0)
        sent.clear()
        network.run(seconds)
    finally:
        network.close()
    return {name: count / seconds / 2 for name, count in sent.items()}


def test_idle_control_traffic_does_not_grow_with_the_network(tmp_path: Path) -> None:
    hellos = 1.1 / LinkStateConfig().hello_interval
    for nodes in (6, 36):
        # States that only say the same again travel together: a frame a second and one that acknowledges, at most.
        assert max(idle_frames(nodes, tmp_path, 20.0).values()) <= hellos + 2.1


def test_a_hundred_nodes_come_to_know_each_other_at_a_bounded_cost(tmp_path: Path) -> None:
    """Each state crosses about two links for each node that hears it, and each node works its graph out a few times."""
    size = 100
    graph = backbone_graph(size, 2 * size, 1)
    network = SimulatedNetwork(graph, tmp_path)
    try:
        assert network.run_until(
            lambda: all(
                len(node.link_state.graph().graph.links) == len(graph.links) for node in network.nodes.values()
            ),
            5.0,
        )
        frames = sum(network.carrier(graph.names[tail], graph.names[head]).counters.sent for tail, head in graph.links)
        assert frames < 40 * len(graph.links)
    finally:
        network.close()
