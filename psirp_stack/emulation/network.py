"""A whole network in one process, on an event loop: real nodes, in-process links, a socket for each node."""

import asyncio
from functools import partial
from pathlib import Path
from typing import Protocol

from psirp_stack.emulation.plan import NetworkPlan
from psirp_stack.forwarding_node import LoopScheduler
from psirp_stack.links.impairment import ImpairedLink, Impairment
from psirp_stack.links.in_process import pair
from psirp_stack.links.interface import Link
from psirp_stack.links.tap import TappedLink
from psirp_stack.node.config import DomainFile, NodeFile, NodeRole, TimesFile
from psirp_stack.node.core import NodeObserver
from psirp_stack.node.shell import RunningNode

PERFECT = Impairment()


def socket_of(data: Path, node: str) -> Path:
    """Where applications attach to a node of an emulated network."""
    return data / f"{node}.sock"


def roles_of(plan: NetworkPlan, node: str) -> tuple[NodeRole, ...]:
    wanted = ((NodeRole.RENDEZVOUS, plan.rendezvous), (NodeRole.TOPOLOGY, plan.topology))
    return tuple(role for role, name in wanted if name == node)


class Watcher(Protocol):
    """Whoever follows publications through a network."""

    def observer_of(self, node: str) -> NodeObserver: ...

    def sent(self, node: str, frame: bytes) -> None: ...


def _sent(watcher: Watcher, node: str, sent: bool, frame: bytes) -> None:
    if sent:
        watcher.sent(node, frame)


class EmulatedNetwork:
    """Start it with `await EmulatedNetwork.start(...)`, end it with `close`."""

    def __init__(self) -> None:
        self.nodes: dict[str, RunningNode] = {}
        self.links: dict[tuple[str, str], Link] = {}
        """The sending end of each directed link."""

    @classmethod
    async def start(
        cls, plan: NetworkPlan, data: Path, times: TimesFile | None = None, watcher: Watcher | None = None
    ) -> "EmulatedNetwork":
        """`watcher` is told what happens to publications at each node, and of every frame that a node sends."""
        network = cls()
        try:
            graph_file = plan.write_graph(data)
            for name in plan.graph.names:
                file = NodeFile(
                    name=name,
                    roles=roles_of(plan, name),
                    data=name if roles_of(plan, name) else None,
                    socket=socket_of(Path(), name).name,
                    domain=DomainFile(
                        seed=plan.seed,
                        graph_file=graph_file,
                        rendezvous=(plan.rendezvous,),
                        topology=(plan.topology,),
                    ),
                    times=times if times is not None else TimesFile(),
                )
                network.nodes[name] = await RunningNode.start(
                    file, data, None if watcher is None else watcher.observer_of(name)
                )
            scheduler = LoopScheduler(asyncio.get_running_loop())
            numbers = dict.fromkeys(plan.graph.names, 0)
            for place, ends in enumerate(plan.cables()):
                carriers = pair(scheduler=scheduler)
                for side, (name, other) in enumerate((ends, ends[::-1])):
                    numbers[name] += 1
                    link: Link = carriers[side]
                    if (bad := plan.impairment(*ends)) != PERFECT:
                        link = ImpairedLink(link, bad, scheduler, 2 * place + side)
                    if watcher is not None:
                        link = TappedLink(link, partial(_sent, watcher, name))
                    network.links[name, other] = link
                    network.nodes[name].add_link(numbers[name], link)
        except BaseException:
            await network.close()
            raise
        return network

    async def settled(self) -> None:
        """Wait until every node sees the whole network."""
        while any(  # noqa: ASYNC110  (nodes tell nobody when they have heard of all others)
            len(node.node.link_state.graph().graph.names) < len(self.nodes) for node in self.nodes.values()
        ):
            await asyncio.sleep(0.01)

    async def close(self) -> None:
        for node in self.nodes.values():
            await node.close()
