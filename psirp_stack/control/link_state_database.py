"""All link states that a node holds: the newest of every origin, in parts, until they are too old."""

from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum

from msgspec.structs import replace

from psirp_stack.control import messages
from psirp_stack.control.known_graph import NodeState
from psirp_stack.control.role_grants import FOREVER, Belief

PART_BYTES = 650
"""Names and numbers in one part of a link state, so that it fits into a frame of every link we use."""
ENTRY_BYTES = 2 + 9
FIXED_BYTES = 100
"""All fields of a part but its neighbours and its proof, the longest name included."""
PROOF_BYTES = 2 * (64 + 2) + (64 + 2) + (32 + 2) + 2 + 9 + 2
"""Two signatures, a name, a key, roles, a time."""
MILLISECONDS = 1000

Version = tuple[int, int]
"""Boot and number."""
Key = tuple[str, int]
"""Origin and part."""
Believe = Callable[[messages.LinkState], Belief]


class Installed(Enum):
    """What a part of a link state was to the database."""

    NEW = "new"
    SAME = "known already"
    OLDER = "older than what is known"
    TOO_OLD = "beyond the age at which states are forgotten"
    NO_ROOM = "from one node more than there is room for"
    CONTRADICTION = "does not fit the parts that are there"


@dataclass(slots=True)
class OriginRecord:
    """What is known of one node."""

    version: Version
    parts: int
    said_at: float
    """When its origin said it, on our clock."""
    have: dict[int, messages.LinkState] = field(default_factory=dict)
    state: NodeState | None = None
    """The newest that is complete: perhaps of an older version than the parts."""
    roles_until_ms: int = FOREVER
    """When what is believed of its roles has to be looked at again."""


class LinkStateDatabase:
    """The newest link state of every node."""

    def __init__(self, max_age: float, max_nodes: int, believe: Believe) -> None:
        """`believe` says which of the roles that a state claims count."""
        self.origins: dict[str, OriginRecord] = {}
        self.changed = True
        """Whether a complete state became another one since somebody last set this to false."""
        self._max_age = max_age
        self._max_nodes = max_nodes
        self._believe = believe

    def install(self, part: messages.LinkState, now: float) -> Installed:
        """Take in one part. Nothing changes unless it is `NEW`."""
        version = (part.boot, part.number)
        origin = self.origins.get(part.origin)
        if origin is not None and version < origin.version:
            return Installed.OLDER
        if origin is not None and version == origin.version:
            if part.parts != origin.parts or part.part >= part.parts:
                return Installed.CONTRADICTION
            if part.part in origin.have:
                return Installed.SAME
        said_at = now - part.age / MILLISECONDS
        if said_at + self._max_age <= now:
            return Installed.TOO_OLD
        if part.part >= part.parts:
            return Installed.CONTRADICTION
        if origin is None:
            if len(self.origins) >= self._max_nodes:
                return Installed.NO_ROOM
            origin = self.origins[part.origin] = OriginRecord(version, part.parts, said_at)
        elif version > origin.version:
            origin.version, origin.parts, origin.said_at = version, part.parts, said_at
            origin.have = {}
        origin.have[part.part] = part
        if len(origin.have) == origin.parts:
            self._complete(origin)
        return Installed.NEW

    def _complete(self, origin: OriginRecord) -> None:
        parts = [origin.have[part] for part in range(origin.parts)]
        belief = self._believe(parts[0])
        state = NodeState(
            origin.version[0],
            belief.roles,
            dict(pair for part in parts for pair in part.neighbours),
            parts[0].roles & ~belief.roles,
            belief.doubt,
        )
        origin.roles_until_ms = belief.until_ms
        if state != origin.state:
            origin.state = state
            self.changed = True

    def part(self, key: Key, now: float) -> messages.LinkState | None:
        """A part as it is to be sent now, older by the time that it was here."""
        origin = self.origins.get(key[0])
        part = origin.have.get(key[1]) if origin is not None else None
        if origin is None or part is None:
            return None
        return replace(part, age=max(0, int((now - origin.said_at) * MILLISECONDS)))

    def all_parts(self) -> list[Key]:
        return [(name, part) for name, origin in self.origins.items() for part in origin.have]

    def states(self) -> dict[str, NodeState]:
        return {name: origin.state for name, origin in self.origins.items() if origin.state is not None}

    def forget_old(self, now: float, keep: str) -> int:
        """Drop states that were not refreshed in time; says how many."""
        old = [name for name, origin in self.origins.items() if name != keep and origin.said_at + self._max_age <= now]
        for name in old:
            del self.origins[name]
        self.changed = self.changed or bool(old)
        return len(old)

    def look_again(self, now_ms: int) -> None:
        """Beliefs whose time is over are formed anew."""
        for origin in self.origins.values():
            if origin.roles_until_ms <= now_ms and len(origin.have) == origin.parts:
                self._complete(origin)


def size_of(part: messages.LinkState) -> int:
    """At most so many bytes are needed to encode a part."""
    proof = 0 if part.proof is None else PROOF_BYTES
    return FIXED_BYTES + proof + sum(len(name) + ENTRY_BYTES for name, _ in part.neighbours)


def own_parts(origin: str, version: Version, roles: int, neighbours: list[tuple[str, int]]) -> list[messages.LinkState]:
    """A node's own link state, cut so that each part fits into a frame."""
    groups: list[list[tuple[str, int]]] = [[]]
    size = 0
    for name, mtu in neighbours:
        cost = len(name) + ENTRY_BYTES
        if size + cost > PART_BYTES:
            groups.append([])
            size = 0
        groups[-1].append((name, mtu))
        size += cost
    # Further neighbours cannot be told; `link_state` accepts no more than fit.
    groups = groups[: messages.MAX_PARTS]
    return [
        messages.LinkState(origin, *version, int(roles), tuple(group), number, len(groups))
        for number, group in enumerate(groups)
    ]
