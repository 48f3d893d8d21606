"""What happened at a port: small, past tense, for whoever observes."""

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class RequestRefused:
    status: int
    text: str
    client: str = ""
    """Whose request it was, where that is known."""


@dataclass(frozen=True, slots=True)
class RequestBroke:
    """A fault of ours: somebody got a 500."""

    error: str


@dataclass(frozen=True, slots=True)
class LimitReached:
    """A bound bit; `name` is the configuration field."""

    name: str


ServingEvent = RequestRefused | RequestBroke | LimitReached
Observer = Callable[[ServingEvent], None]
