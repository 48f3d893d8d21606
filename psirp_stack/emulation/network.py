"""A whole network in one process, on an event loop: real nodes, in-process links, a socket for each node."""

import asyncio
from dataclasses import replace
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
from psirp_stack.node.settings import NodeObserver, NodeSettings
from psirp_stack.node.shell import RunningNode

PERFECT = Impairment()


def socket_of(data: Path, node: str) -> Path:
    """Where applications attach to a node of an emulated network."""
    return data / f"{node}.sock"


def roles_of(plan: NetworkPlan, node: str) -> tuple[NodeRole, ...]:
    wanted = ((NodeRole.RENDEZVOUS, plan.rendezvous), (NodeRole.TOPOLOGY, plan.topology))
    return tuple(role for role, names in wanted if node in names)


class Watcher(Protocol):
    """Whoever follows publications through a network."""

    def observer_of(self, node: str) -> NodeObserver: ...

    def sent(self, node: str, frame: bytes, peer: str | None = None) -> None: ...


def _sent(watcher: Watcher, node: str, peer: str, sent: bool, frame: bytes) -> None:
    if sent:
        watcher.sent(node, frame, peer)


class EmulatedNetwork:
    """Start it with `await EmulatedNetwork.start(...)`, end it with `close`."""

    def __init__(self, plan: NetworkPlan, data: Path, times: TimesFile | None, watcher: Watcher | None) -> None:
        self.nodes: dict[str, RunningNode] = {}
        self.links: dict[tuple[str, str], Link] = {}
        """The sending end of each directed link."""
        self._plan = plan
        self._data = data
        self._times = times if times is not None else TimesFile()
        self._watcher = watcher
        self._graph_file = plan.write_graph(data)
        self._scheduler = LoopScheduler(asyncio.get_running_loop())
        self._cut: set[frozenset[str]] = set()
        changing = [event.impair or event.cut for event in plan.events if event.impair or event.silently]
        self._quality: dict[frozenset[str], Impairment] = {
            frozenset(ends): plan.impairment(*ends) for ends in changing if ends is not None
        }
        """Of links that are not as the plan says any more, or will not be."""
        numbers = dict.fromkeys(plan.graph.names, 0)
        self._cables: dict[frozenset[str], tuple[int, tuple[str, str], tuple[int, int]]] = {}
        """Place in the plan, ends, and what these call the link, by the names of the ends."""
        for place, (one, other) in enumerate(plan.cables()):
            numbers[one] += 1
            numbers[other] += 1
            self._cables[frozenset((one, other))] = (place, (one, other), (numbers[one], numbers[other]))

    @classmethod
    async def start(
        cls, plan: NetworkPlan, data: Path, times: TimesFile | None = None, watcher: Watcher | None = None
    ) -> "EmulatedNetwork":
        """`watcher` is told what happens to publications at each node, and of every frame that a node sends."""
        network = cls(plan, data, times, watcher)
        try:
            for name in plan.graph.names:
                await network._start_node(name)
            for ends in network._cables:
                network._plug(ends)
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

    # What may happen to a network.

    def cut(self, a: str, b: str) -> None:
        """Cut a link: its carriers notice."""
        ends = self._ends(a, b)
        self._cut.add(ends)
        self._unplug(ends)

    def mend(self, a: str, b: str) -> None:
        ends = self._ends(a, b)
        self._cut.discard(ends)
        self._unplug(ends)
        self._plug(ends)

    def impair(self, a: str, b: str, quality: Impairment) -> None:
        """Make a link as bad, or as good, as this from now on."""
        ends = self._ends(a, b)
        self._quality[ends] = quality
        for name, other in ((a, b), (b, a)):
            link = self.links.get((name, other))
            if link is not None and (stage := _impaired(link)) is not None:
                stage.impairment = quality
            elif link is not None:
                self._unplug(ends)
                self._plug(ends)
                return

    def frames_lost(self) -> int:
        """What bad links that are there have lost, or had no room for."""
        stages = [stage for link in self.links.values() if (stage := _impaired(link)) is not None]
        return sum(stage.impaired.lost + stage.impaired.queue_full for stage in stages)

    async def kill(self, name: str) -> None:
        """End a node; its neighbours' carriers notice. What it has on disk stays."""
        node = self.nodes.pop(name)
        for ends in self._cables:
            if name in ends:
                self._unplug(ends)
        await node.close()

    async def revive(self, name: str) -> None:
        """Begin another life of a node that was ended."""
        await self._start_node(name)
        for ends in self._cables:
            if name in ends:
                self._plug(ends)

    async def close(self) -> None:
        for node in self.nodes.values():
            await node.close()

    def _ends(self, a: str, b: str) -> frozenset[str]:
        ends = frozenset((a, b))
        if ends not in self._cables:
            raise ValueError(f"no link joins {a!r} and {b!r}")
        return ends

    async def _start_node(self, name: str) -> None:
        plan, roles = self._plan, roles_of(self._plan, name)
        file = NodeFile(
            name=name,
            roles=roles,
            data=name if roles else None,
            socket=socket_of(Path(), name).name,
            domain=DomainFile(
                seed=plan.seed, graph_file=self._graph_file, rendezvous=plan.rendezvous, topology=plan.topology
            ),
            times=self._times,
            cache=plan.cache_of(name),
        )
        observer = None if self._watcher is None else self._watcher.observer_of(name)
        self.nodes[name] = await RunningNode.start(file, self._data, observer, self._changed)

    def _changed(self, settings: NodeSettings) -> NodeSettings:
        """As the plan's plug-ins want it."""
        plan = self._plan
        if plan.placement is not None:
            settings = replace(settings, tags=plan.placement(plan.graph, plan.seed.encode()))
        return settings if plan.change is None else plan.change(settings)

    def _plug(self, cable: frozenset[str]) -> None:
        place, ends, numbers = self._cables[cable]
        if cable in self._cut or not all(name in self.nodes for name in ends):
            return
        quality = self._quality.get(cable, self._plan.impairment(*ends))
        carriers = pair(scheduler=self._scheduler)
        for side, (name, other) in enumerate((ends, ends[::-1])):
            link: Link = carriers[side]
            if quality != PERFECT or cable in self._quality:
                link = ImpairedLink(link, quality, self._scheduler, 2 * place + side)
            if self._watcher is not None:
                link = TappedLink(link, partial(_sent, self._watcher, name, other))
            self.links[name, other] = link
            self.nodes[name].add_link(numbers[side], link)

    def _unplug(self, cable: frozenset[str]) -> None:
        _, ends, numbers = self._cables[cable]
        for side, (name, other) in enumerate((ends, ends[::-1])):
            link = self.links.pop((name, other), None)
            if link is not None and name in self.nodes:
                self.nodes[name].remove_link(numbers[side])
            elif link is not None:
                link.close()


def _impaired(link: Link) -> ImpairedLink | None:
    inner = link.link if isinstance(link, TappedLink) else link
    return inner if isinstance(inner, ImpairedLink) else None
