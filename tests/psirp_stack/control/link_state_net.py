"""Nodes that run link state over impaired in-process links, on a virtual clock."""

import random
from dataclasses import dataclass, field
from functools import partial

from psirp_stack.control.codes import Function, ServiceRole
from psirp_stack.control.frames import build_control, parse_control
from psirp_stack.control.known_graph import KnownGraph, NodeState
from psirp_stack.control.link_state import LinkStateProtocol
from psirp_stack.control.link_state_events import Event
from psirp_stack.control.link_state_settings import LinkStateConfig
from psirp_stack.control.role_grants import RoleTrust
from psirp_stack.control.tag_source import DerivedTags, TagSource
from psirp_stack.forwarding_model import BROADCAST_FID
from psirp_stack.graph import Graph
from psirp_stack.links.clock import VirtualClock
from psirp_stack.links.impairment import ImpairedLink, Impairment
from psirp_stack.links.in_process import pair

MTU = 1500
CONFIG = LinkStateConfig(hello_interval=0.5, dead_after=5, refresh_interval=30.0, max_age=100.0)
DEAD = Impairment(loss=1.0)


@dataclass(slots=True)
class Member:
    """One node: its links stay when its link state begins a new life."""

    name: str
    links: dict[int, ImpairedLink] = field(default_factory=dict)
    state: LinkStateProtocol | None = None
    boot: int = 0
    timer: float | None = None
    events: list[Event] = field(default_factory=list)


class LinkStateNet:
    """A network of such nodes, and what its graph really is."""

    def __init__(
        self,
        graph: Graph,
        impairment: Impairment,
        seed: int = 0,
        *,
        config: LinkStateConfig = CONFIG,
        tags: TagSource | None = None,
        fixed: Graph | None = None,
        roles: dict[str, int] | None = None,
    ) -> None:
        self.clock = VirtualClock()
        self.tags = tags if tags is not None else DerivedTags(b"test")
        self.config = config
        self.fixed = fixed
        self.roles = roles if roles is not None else {}
        self.impairment = impairment
        self.seed = seed
        self.members = {name: Member(name) for name in graph.names}
        self.edges: dict[frozenset[str], tuple[ImpairedLink, ImpairedLink]] = {}
        self.cut: set[frozenset[str]] = set()
        self.frames = 0
        for tail, head in graph.links[::2]:
            self.join(graph.names[tail], graph.names[head])
        for name in graph.names:
            self.start(name)

    def join(self, one: str, other: str) -> None:
        ends = []
        for end, name in zip(pair(mtu=MTU, scheduler=self.clock), (one, other), strict=True):
            self.seed += 1
            impaired = ImpairedLink(end, self.impairment, self.clock, self.seed)
            number = len(self.members[name].links) + 1
            self.members[name].links[number] = impaired
            impaired.on_receive(partial(self._received, self.members[name], number))
            ends.append(impaired)
        self.edges[frozenset((one, other))] = (ends[0], ends[1])

    def start(self, name: str) -> None:
        member = self.members[name]
        member.boot += 1
        rng = random.Random(f"{self.seed} {name} {member.boot}")
        member.state = LinkStateProtocol(
            name,
            member.boot,
            self.tags,
            rng,
            self.clock.now(),
            config=self.config,
            fixed=self.fixed,
            roles=self.roles.get(name, 0),
            trust=RoleTrust({role: [who for who, has in self.roles.items() if has & role] for role in ServiceRole}),
        )
        for number in member.links:
            member.state.add_link(number, MTU, self.clock.now())
        member.timer = None
        self._pump(member)

    def stop(self, name: str) -> None:
        self.members[name].state = None

    def set_link(self, one: str, other: str, works: bool) -> None:
        edge = frozenset((one, other))
        for end in self.edges[edge]:
            end.impairment = self.impairment if works else DEAD
        (self.cut.discard if works else self.cut.add)(edge)

    def state(self, name: str) -> LinkStateProtocol:
        state = self.members[name].state
        assert state is not None
        return state

    def truth(self, name: str) -> KnownGraph:
        """What a node must come to know."""
        alive = {name for name, member in self.members.items() if member.state is not None}
        edges = [edge for edge in self.edges if edge not in self.cut and edge <= alive]
        states = {
            one: NodeState(
                self.members[one].boot,
                self.roles.get(one, 0),
                {other: MTU for edge in edges if one in edge for other in edge - {one}},
            )
            for one in alive
        }
        return KnownGraph.of(states, name)

    def converged(self) -> bool:
        return all(
            member.state is None or member.state.graph() == self.truth(name) for name, member in self.members.items()
        )

    def run_until_converged(self, within: float, step: float = 0.25) -> float:
        """Let time pass until all know the truth; says how long it took."""
        begun = self.clock.now()
        while not self.converged():
            assert self.clock.now() < begun + within, "not converged in time"
            self.run(step)
        return self.clock.now() - begun

    def run(self, seconds: float) -> None:
        self.clock.run(self.clock.now() + seconds)

    def _received(self, member: Member, number: int, frames: list[bytes]) -> None:
        if member.state is None:
            return
        for frame in frames:
            parsed = parse_control(frame, member.name)
            assert parsed.function is Function.LINK_STATE
            assert parsed.to_all_neighbours
            member.state.receive(number, parsed.payload, self.clock.now())
        self._pump(member)

    def _pump(self, member: Member) -> None:
        state = member.state
        if state is None:
            return
        while (event := state.next_event()) is not None:
            member.events.append(event)
        while (frame := state.next_frame(self.clock.now())) is not None:
            number, payload = frame
            sent = build_control(BROADCAST_FID, Function.LINK_STATE, None, payload)
            assert len(sent) <= MTU
            member.links[number].send(sent)
            self.frames += 1
        timer = state.next_timer()
        if timer is not None and (member.timer is None or timer < member.timer):
            member.timer = timer
            self.clock.call_at(timer, partial(self._timer, member, state, timer))

    def _timer(self, member: Member, state: LinkStateProtocol, when: float) -> None:
        if member.state is state and member.timer == when:
            member.timer = None
            state.handle_timer(self.clock.now())
            self._pump(member)
