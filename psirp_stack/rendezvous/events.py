"""What happened at the rendezvous, for whoever listens."""

from collections.abc import Callable
from dataclasses import dataclass

from psirp_stack.control.codes import Code


@dataclass(frozen=True, slots=True)
class RequestHandled:
    """A request was done or refused, and that is on disk."""

    node: str
    request: str
    code: Code


@dataclass(frozen=True, slots=True)
class WorkFailed:
    """Something could not be written, or there is a fault in this program. Nothing was changed."""

    work: str
    error: Exception


@dataclass(frozen=True, slots=True)
class MatchesSaid:
    count: int


@dataclass(frozen=True, slots=True)
class LeaseEnded:
    """A node said nothing for too long: all it declared is being withdrawn."""

    node: str


@dataclass(frozen=True, slots=True)
class BoundReached:
    """A bound that protects the rendezvous itself was reached; `name` is the setting's."""

    name: str


RendezvousEvent = RequestHandled | WorkFailed | MatchesSaid | LeaseEnded | BoundReached
Observer = Callable[[RendezvousEvent], None]
