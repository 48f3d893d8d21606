"""Small networks on a virtual clock for the tests of nodes."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from identifiers import Identifier, ItemId
from psirp_stack.control.messages import StartPublish, StopPublish
from psirp_stack.emulation.simulation import SimulatedApplication, SimulatedNetwork
from psirp_stack.graph import Graph
from psirp_stack.node.attachment import ServingChanged
from psirp_stack.node.core import Node


def scope(number: int) -> bytes:
    return number.to_bytes(32, "big")


def item(number: int, sid: int = 1) -> ItemId:
    return ItemId(Identifier(scope(sid)), Identifier(scope(number)))


def line(count: int) -> Graph:
    return Graph.from_edges([f"n{n}" for n in range(count)], [(n, n + 1) for n in range(count - 1)])


def ring(count: int) -> Graph:
    return Graph.from_edges([f"n{n}" for n in range(count)], [(n, (n + 1) % count) for n in range(count)])


def star(leaves: int) -> Graph:
    """n0 in the middle."""
    return Graph.from_edges([f"n{n}" for n in range(leaves + 1)], [(0, n) for n in range(1, leaves + 1)])


class Networks:
    """Makes networks and ends them with the test."""

    def __init__(self, data: Path) -> None:
        self._data = data
        self._made: list[SimulatedNetwork] = []

    def __call__(self, graph: Graph, *, settle: float = 5.0, **options: Any) -> SimulatedNetwork:
        data = self._data / str(len(self._made))
        data.mkdir()
        network = SimulatedNetwork(graph, data, **options)
        self._made.append(network)
        network.run(settle)
        return network

    def close(self) -> None:
        for network in self._made:
            network.close()


class Orders:
    """What the topology manager's words did at a node: grants and revocations that took effect."""

    def __init__(self, node: Node) -> None:
        self.starts: list[StartPublish] = []
        self.stops: list[StopPublish] = []
        hear: Callable[..., None] = node._hear

        def listening(message: object, now: float) -> None:
            if isinstance(message, StartPublish):
                self.starts.append(message)
            elif isinstance(message, StopPublish):
                self.stops.append(message)
            hear(message, now)

        node._hear = listening  # type: ignore[method-assign,assignment]


def served(application: SimulatedApplication, wanted: ItemId) -> str | None:
    """Who serves an item, as the application was told last."""
    for told in reversed(application.told):
        if isinstance(told, ServingChanged) and (told.sid, told.rid) == (bytes(wanted.sid), bytes(wanted.rid)):
            return told.publisher
    return None
