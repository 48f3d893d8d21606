"""What goes into the client and what comes out of it: settings, counts, answers."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from serving.outbound.addresses import AddressPolicy
from serving.outbound.errors import OutboundError

USER_AGENT = "psph-hub/1"


class Headers:
    """A response's header fields: names in any case, several values a name, in the order they came."""

    __slots__ = ("_fields",)

    def __init__(self, fields: Sequence[tuple[str, str]] = ()) -> None:
        self._fields = tuple(fields)

    def get(self, name: str, default: str | None = None) -> str | None:
        """The first value of a name."""
        wanted = name.lower()
        return next((value for key, value in self._fields if key.lower() == wanted), default)

    def get_all(self, name: str) -> tuple[str, ...]:
        wanted = name.lower()
        return tuple(value for key, value in self._fields if key.lower() == wanted)

    def __contains__(self, name: str) -> bool:
        return bool(self.get_all(name))

    def __iter__(self) -> Iterator[tuple[str, str]]:
        return iter(self._fields)

    def __len__(self) -> int:
        return len(self._fields)

    def __repr__(self) -> str:
        return f"Headers({list(self._fields)!r})"


@dataclass(frozen=True, slots=True)
class OutboundResponse:
    status: int
    headers: Headers
    body: bytes


@dataclass(frozen=True, slots=True)
class ClientConfig:
    """Bounds and policy of the client. `ca_file` replaces the system's certificate authorities."""

    policy: AddressPolicy = field(default_factory=AddressPolicy)
    max_under_way: int = 4096
    kept_connections: int = 1024
    ca_file: str | None = None
    user_agent: str = USER_AGENT
    hosts: tuple[tuple[str, str], ...] = ()
    """(name, address) pairs that go before the name service; the address policy judges them like any other."""


@dataclass(slots=True)
class ClientCounts:
    """What the client's bounds and guard did since it was made."""

    connections: int = 0
    refused_addresses: int = 0
    refused_urls: int = 0
    refused_busy: int = 0
    refused_shares: int = 0
    too_large: int = 0


# How one post ended: its tag, the status (0 when there was no answer), the seconds of `Retry-After` (0 when none),
# and the failure. A tuple, because there is one for every delivery.
PostOutcome = tuple[Any, int, int, OutboundError | None]
PostsDone = Callable[[list[PostOutcome]], None]
PostCounted = Callable[[Any, str], bool]
"""Asked with a post's tag before a connection is made for it: has this prefix room for it?"""
