"""What a node does while it is rendezvous or topology manager: their answers go out, what became of them comes back.

The rendezvous speaks when what it says is on disk; the topology manager exists only while this node has that role. What
either has to say waits here until whom it is for has room.
"""

from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from typing import TYPE_CHECKING

from psirp_stack.control.codes import Function
from psirp_stack.control.courier import CourierArrival, SendFailed, Sent
from psirp_stack.control.known_graph import KnownGraph
from psirp_stack.control.messages import (
    Explanation,
    ItemList,
    Match,
    MatchServed,
    Message,
    RendezvousRequest,
    Reply,
    TopologyStarted,
)
from psirp_stack.node.role_holders import RoleChanges, RoleHolders
from psirp_stack.node.settings import NodeSettings, Watch
from psirp_stack.rendezvous.outcome import RequestOutcome
from psirp_stack.topology.manager import Output, TopologyManager
from psirp_stack.transport.hooks import WallClock

if TYPE_CHECKING:
    from psirp_stack.rendezvous import Rendezvous

ANSWERS = (Reply, Explanation, ItemList)
"""What a node that has a role may say also while another has it now: answers to what it was asked."""

SendMessage = Callable[[str, Function, Message, float], int | None]
"""Gives a message to the courier; its ticket, or None when there was no room."""


@dataclass(slots=True)
class _Said:
    """What the rendezvous told nodes at once, and how many of them have not taken it or been given up."""

    outcome: RequestOutcome
    left: int


@dataclass(frozen=True, slots=True)
class RoleHooks:
    """What the roles need of their node."""

    send: SendMessage
    room: Callable[[str], int]
    """How many messages the courier takes for a node."""
    acknowledge: Callable[[CourierArrival], None]
    """A message was handled."""
    when_done: Watch
    wall_ms: WallClock
    now: Callable[[], float]
    turn: Callable[[], None]
    """Let every part of the node say what it has to say."""


class RoleWork:
    """The roles of one node."""

    def __init__(self, settings: NodeSettings, rendezvous: "Rendezvous | None", hooks: RoleHooks) -> None:
        self.holders = RoleHolders(settings.name)
        self.rendezvous = rendezvous
        self.topology: TopologyManager | None = None
        """There is one while this node is the topology manager."""
        self._settings = settings
        self._hooks = hooks
        self._plans_from = 0
        self._busy = False
        """The rendezvous does background work."""
        self._planned: dict[int, Output] = {}
        """What topology told a node, by the courier's ticket."""
        self._to_say: deque[tuple[str, Function, Message, _Said | None]] = deque()
        self._saying: dict[int, _Said] = {}
        """Which outcome of the rendezvous a message belongs to, by the courier's ticket."""

    # The network changes.

    def graph_changed(self, known: KnownGraph, now: float) -> RoleChanges:
        """See who has the roles now, and begin or end to be topology manager."""
        if self.topology is not None:
            self.topology.graph_changed(known)
        holders = self.holders
        moved = holders.follow(known, now)
        if moved.topology:
            # Generations of another manager begin anew.
            self.say_all_matches(now)
        begins = holders.is_topology and self.topology is None
        if begins:
            self.topology = TopologyManager(known, self._settings.tags, self._plans_from)
        elif self.topology is not None and not holders.is_topology:
            self._plans_from = self.topology.highest_generation
            self.topology = None
            self._planned.clear()
        rendezvous = holders.rendezvous
        if self.topology is not None and rendezvous is not None and (moved.rendezvous or begins):
            # What was said while they did not hear each other is lost: it must say all matches.
            self.topology.rendezvous_is(rendezvous.name, now)
            self._hooks.send(rendezvous.name, Function.RENDEZVOUS, TopologyStarted(self._settings.boot), now)
        return moved

    def say_all_matches(self, now: float) -> None:
        """As rendezvous: begin anew with a topology manager that may have missed some."""
        if self.rendezvous is not None and self.holders.says_matches:
            promise = self.rendezvous.handle_topology(TopologyStarted(self._settings.boot), now)
            self._hooks.when_done(promise, lambda: self._said_later(promise))

    def _said_later(self, promise: Future[RequestOutcome]) -> None:
        self.say(promise.result())
        self._hooks.turn()

    # Time.

    def next_timer(self) -> float | None:
        times = (
            None if self.topology is None else self.topology.next_timer(),
            self.holders.next_timer(),
            None if self.rendezvous is None or self._busy else self.rendezvous.next_timer(),
        )
        return min((time for time in times if time is not None), default=None)

    def handle_timer(self, now: float) -> None:
        if self.topology is not None and (due := self.topology.next_timer()) is not None and due <= now:
            self.topology.handle_timer(now)
        if self.holders.may_say_matches(now):
            self.say_all_matches(now)
        if self.rendezvous is None or self._busy:
            return
        due = self.rendezvous.next_timer()
        if due is not None and due <= now:
            promise = self.rendezvous.handle_timer(now)
            if promise is not None:
                self._busy = True
                self._hooks.when_done(promise, lambda: self._swept(promise))

    def _swept(self, promise: Future[RequestOutcome]) -> None:
        self._busy = False
        self._said_later(promise)

    # What arrives.

    def ask_rendezvous(self, arrival: CourierArrival, message: Message, now: float) -> bool:
        """Give a message to the rendezvous, which acknowledges it when it is on disk; False when it is not for it."""
        rendezvous = self.rendezvous
        if rendezvous is None:
            return False
        if isinstance(message, (MatchServed, TopologyStarted)):
            promise = rendezvous.handle_topology(message, now)
        elif isinstance(message, RendezvousRequest):
            promise = rendezvous.handle(arrival.source, arrival.source_boot, message, now, self._hooks.wall_ms(now))
        else:
            return False
        self._hooks.when_done(promise, lambda: self._answered(arrival, promise))
        return True

    def _answered(self, arrival: CourierArrival, promise: Future[RequestOutcome]) -> None:
        self.say(promise.result())
        self._hooks.acknowledge(arrival)
        self._hooks.turn()

    def hear_match(self, message: Message, source: str) -> bool:
        """As topology manager: False when this node is none, or it is no match."""
        if self.topology is None or not isinstance(message, Match):
            return False
        self.topology.receive(message, source)
        return True

    # What goes out.

    def say(self, outcome: RequestOutcome) -> None:
        """Send what the rendezvous has on disk. It forgets scope events only when they have arrived."""
        speaks = self.holders.is_rendezvous
        told = [(node, answer) for node, answer in outcome.to_nodes if speaks or isinstance(answer, ANSWERS)]
        said = _Said(outcome, len(told))
        if not told and self.rendezvous is not None:
            self.rendezvous.settled(outcome)
        for node, answer in told:
            self._to_say.append((node, Function.NODE, answer, said))
        topology = self.holders.topology
        if topology is not None and self.holders.says_matches:
            # Without a topology manager nobody needs to know: all matches are said when there is one.
            for match in outcome.matches:
                self._to_say.append((topology.name, Function.TOPOLOGY, match, None))

    def move(self, now: float) -> bool:
        """Hand to the courier what it has room for; whether there was anything."""
        moved = self._say_what_fits(now)
        while self.topology is not None and (said := self.topology.next_message(self._can_take)) is not None:
            moved = True
            to, planned = said
            function = Function.RENDEZVOUS if isinstance(planned, MatchServed) else Function.NODE
            ticket = self._hooks.send(to, function, planned, now)
            if ticket is not None:
                self._planned[ticket] = planned
        return moved

    def _can_take(self, name: str) -> bool:
        return self._hooks.room(name) > 0

    def _say_what_fits(self, now: float) -> bool:
        moved = False
        for _ in range(len(self._to_say)):
            to, function, message, said = self._to_say[0]
            if not self._can_take(to):
                self._to_say.rotate(-1)
                continue
            self._to_say.popleft()
            ticket = self._hooks.send(to, function, message, now)
            if ticket is not None and said is not None:
                self._saying[ticket] = said
            moved = True
        return moved

    def settled(self, outcome: Sent | SendFailed, now: float) -> None:
        """What became of a message that the courier was given."""
        said = self._saying.pop(outcome.ticket, None)
        if said is not None:
            said.left -= 1
            if said.left == 0 and self.rendezvous is not None:
                self.rendezvous.settled(said.outcome)
        planned = self._planned.pop(outcome.ticket, None)
        if planned is not None and isinstance(outcome, SendFailed) and self.topology is not None:
            self.topology.delivery_failed(outcome.to, planned, now)
