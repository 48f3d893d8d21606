"""Who has the roles now, as one node sees it, and what that node has to do when it changes.

Several nodes may have a role. The one whose name comes first among those that can be reached has it *now*; the others
wait. Link state tells everybody who can be reached, so all nodes of one connected part of a network agree without
asking each other, and each part of a network that was cut in two has holders of its own, if it has any at all.

Nothing is handed over: what rendezvous and topology manager know is soft. Every node registers again with the new
rendezvous, which says all matches when they have had time to; the new topology manager plans them all anew. What flows
goes on flowing meanwhile, along the filters that are there.
"""

from dataclasses import dataclass

from psirp_stack.control.codes import ServiceRole
from psirp_stack.control.known_graph import KnownGraph

QUIET_BEFORE_MATCHES = 0.25
"""Seconds without a new node in the network after which a rendezvous that began to be one says what it knows,"""
LONGEST_BEFORE_MATCHES = 1.0
"""and the longest time that it waits for nodes to register."""
CONFIRM_AFTER = 30.0
"""Seconds after which what only a former holder said is over."""


@dataclass(frozen=True, slots=True)
class Holder:
    """A node in one of its lives."""

    name: str
    boot: int


@dataclass(frozen=True, slots=True)
class RoleChanges:
    """What is another than before."""

    rendezvous: bool = False
    """Another node is rendezvous, or the same in another life."""
    topology: bool = False
    """Another node is topology manager, or the same in another life."""


class RoleHolders:
    """The holders that one node turns to."""

    def __init__(self, name: str) -> None:
        self.rendezvous: Holder | None = None
        self.topology: Holder | None = None
        self.takeovers = 0
        """Times another node than before was rendezvous or topology manager."""
        self._name = name
        self._last: dict[ServiceRole, Holder] = {}
        self._nodes = 0
        self._began_at: float | None = None
        self._open_at: float | None = None
        self._confirm_at: float | None = None

    @property
    def is_rendezvous(self) -> bool:
        return self.rendezvous is not None and self.rendezvous.name == self._name

    @property
    def is_topology(self) -> bool:
        return self.topology is not None and self.topology.name == self._name

    @property
    def says_matches(self) -> bool:
        """Whether this node is the rendezvous, and nodes had time to register with it."""
        return self.is_rendezvous and self._open_at is None

    def has_now(self, name: str, role: ServiceRole) -> bool:
        holder = self.rendezvous if role is ServiceRole.RENDEZVOUS else self.topology
        return holder is not None and holder.name == name

    def follow(self, known: KnownGraph, now: float) -> RoleChanges:
        """The network is another one."""
        was_rendezvous = self.is_rendezvous
        self.rendezvous, self.topology = (
            _first(known, role) for role in (ServiceRole.RENDEZVOUS, ServiceRole.TOPOLOGY)
        )
        if self.is_rendezvous and not was_rendezvous:
            self._began_at = now
            self._open_at = now + QUIET_BEFORE_MATCHES
        elif self._open_at is not None and self._began_at is not None and len(known.numbers) > self._nodes:
            self._open_at = min(now + QUIET_BEFORE_MATCHES, self._began_at + LONGEST_BEFORE_MATCHES)
        if not self.is_rendezvous:
            self._open_at = None
        self._nodes = len(known.numbers)
        changes = RoleChanges(
            self._is_another(ServiceRole.RENDEZVOUS, self.rendezvous),
            self._is_another(ServiceRole.TOPOLOGY, self.topology),
        )
        if changes.topology:
            self._confirm_at = now + CONFIRM_AFTER
        return changes

    def next_timer(self) -> float | None:
        return min((time for time in (self._open_at, self._confirm_at) if time is not None), default=None)

    def may_say_matches(self, now: float) -> bool:
        """Whether the time has come, just now, to say all matches."""
        if self._open_at is None or self._open_at > now:
            return False
        self._open_at = None
        return True

    def ends_the_unconfirmed(self, now: float) -> bool:
        """Whether the time has come, just now, to let go of what no present manager has said."""
        if self._confirm_at is None or self._confirm_at > now:
            return False
        self._confirm_at = None if self.topology is not None else now + CONFIRM_AFTER
        return self.topology is not None

    def _is_another(self, role: ServiceRole, holder: Holder | None) -> bool:
        """Nobody at all is no other: when it comes back, it still knows what it knew."""
        last = self._last.get(role)
        if holder is None or holder == last:
            return False
        self._last[role] = holder
        if last is not None and last.name != holder.name:
            self.takeovers += 1
        return True


def _first(known: KnownGraph, role: ServiceRole) -> Holder | None:
    name = next(iter(known.with_role(role)), None)
    return None if name is None else Holder(name, known.boots[name])
