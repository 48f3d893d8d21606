"""What link state tells its node: small values, named in the past tense."""

from dataclasses import dataclass

from psirp_stack.forwarding_model import LinkNumber


@dataclass(frozen=True, slots=True)
class NeighbourUp:
    """A neighbour and we hear each other on a link."""

    name: str
    link: LinkNumber


@dataclass(frozen=True, slots=True)
class NeighbourDown:
    name: str
    link: LinkNumber


@dataclass(frozen=True, slots=True)
class TableChanged:
    """`table()` is another one."""


@dataclass(frozen=True, slots=True)
class GraphChanged:
    """`graph()` is another one: links, MTUs, roles or lives of nodes."""


@dataclass(frozen=True, slots=True)
class NameConflict:
    """Somebody floods link states in our name that are newer than ours: another node has the same name."""


Event = NeighbourUp | NeighbourDown | TableChanged | GraphChanged | NameConflict
