"""All link states that a node holds: the newest of every origin, in parts, until they are too old."""

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from functools import lru_cache

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
AGED_BYTES = 1 + 9 + 3
"""What a part costs on its way beside its own bytes."""
MAX_REMEMBERED_PARTS = 16_384
MILLISECONDS = 1000

Version = tuple[int, int]
"""Boot and number."""
Key = tuple[str, int]
"""Origin and part."""
Believe = Callable[[messages.LinkState], Belief]


class Installed(Enum):
    """What a part of a link state was to the database."""

    NEW = "new"
    REFRESHED = "newer, and says the same"
    SAME = "known already"
    OLDER = "older than what is known"
    TOO_OLD = "beyond the age at which states are forgotten"
    NO_ROOM = "from one node more than there is room for"
    CONTRADICTION = "does not fit the parts that are there"


@dataclass(frozen=True, slots=True)
class StatePart:
    """One part of a link state, and what is asked of it again and again. All nodes of a process share it."""

    state: messages.LinkState
    body: bytes
    key: Key
    version: Version
    acknowledgement: tuple[str, int, int, int]
    size: int
    plain: NodeState | None
    """What the node says of itself, if this is all of it and claims no roles."""


@lru_cache(MAX_REMEMBERED_PARTS)
def read_part(body: bytes) -> StatePart:
    """What these bytes say; `messages.MessageError` when they are no link state."""
    state = messages.decode_state(body)
    plain = None
    if state.parts == 1 and not state.roles:
        plain = NodeState(state.boot, 0, dict(state.neighbours))
    return StatePart(
        state,
        body,
        (state.origin, state.part),
        (state.boot, state.number),
        (state.origin, state.boot, state.number, state.part),
        len(body) + AGED_BYTES,
        plain,
    )


@dataclass(slots=True)
class OriginRecord:
    """What is known of one node."""

    version: Version
    have: tuple[StatePart | None, ...]
    """By number; None for those that have not come."""
    said_at: float
    """When its origin said it, on our clock."""
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

    def install(self, part: StatePart, age_ms: int, now: float) -> Installed:
        """Take in one part. Nothing changes unless it is `NEW` or `REFRESHED`."""
        version, state = part.version, part.state
        origin = self.origins.get(state.origin)
        if origin is not None and version < origin.version:
            return Installed.OLDER
        if origin is not None and version == origin.version:
            if state.parts != len(origin.have) or state.part >= state.parts:
                return Installed.CONTRADICTION
            if origin.have[state.part] is not None:
                return Installed.SAME
        said_at = now - age_ms / MILLISECONDS
        if said_at + self._max_age <= now:
            return Installed.TOO_OLD
        if state.part >= state.parts:
            return Installed.CONTRADICTION
        if origin is None:
            if len(self.origins) >= self._max_nodes:
                return Installed.NO_ROOM
            origin = self.origins[state.origin] = OriginRecord(version, (None,) * state.parts, said_at)
        elif version > origin.version:
            origin.version, origin.have, origin.said_at = version, (None,) * state.parts, said_at
        if state.parts == 1:
            origin.have = (part,)
        else:
            origin.have = (*origin.have[: state.part], part, *origin.have[state.part + 1 :])
        return Installed.NEW if self._complete(origin) else Installed.REFRESHED

    def _complete(self, origin: OriginRecord) -> bool:
        """Put together what is whole; whether it says anything new, or nothing yet."""
        first = origin.have[0]
        if first is not None and first.plain is not None:
            state, origin.roles_until_ms = first.plain, FOREVER
        else:
            parts = [part.state for part in origin.have if part is not None]
            if len(parts) < len(origin.have):
                return True
            belief = self._believe(parts[0])
            origin.roles_until_ms = belief.until_ms
            state = NodeState(
                origin.version[0],
                belief.roles,
                dict(pair for part in parts for pair in part.neighbours),
                parts[0].roles & ~belief.roles,
                belief.doubt,
            )
        if state == origin.state:
            return False
        origin.state = state
        self.changed = True
        return True

    def part(self, key: Key) -> tuple[StatePart, float] | None:
        """A part, and when its origin said it on our clock."""
        origin = self.origins.get(key[0])
        part = origin.have[key[1]] if origin is not None and key[1] < len(origin.have) else None
        return None if origin is None or part is None else (part, origin.said_at)

    def all_parts(self) -> list[Key]:
        return [part.key for origin in self.origins.values() for part in origin.have if part is not None]

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
            if origin.roles_until_ms <= now_ms:
                self._complete(origin)


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
