"""The values that the parts of a gateway hand to each other. No behaviour, no I/O.

Times are wall-clock seconds since the epoch; whoever reads the clock passes them in.
"""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from identifiers import Identifier, ItemId

FOREVER = 1e12
"""An end of a subscription that is withdrawn, not waited for."""


class RefusedError(Exception):
    """Something that the gateway will not do; the text is for whoever asked."""


class NotAllowedError(RefusedError):
    """The operator's rules forbid it to whoever asked."""


@dataclass(frozen=True, slots=True)
class Asker:
    """What is known of whoever asks for something at an adapter's door."""

    client: str | None = None
    """The address that the request came from."""
    token: bool = False
    """Whether it came with a publisher's token."""


NOBODY_KNOWN = Asker()


@dataclass(frozen=True, slots=True)
class ItemSubscription:
    """Who wants what, where it is to go, and until when. (adapter, who, what) is its key."""

    adapter: str
    who: str
    what: str
    """The name as the adapter's protocol writes it."""
    where: str
    """Where to deliver: for the adapter to understand."""
    item: ItemId
    until: float


@dataclass(frozen=True, slots=True)
class Crossing:
    """A publication on its way between domains."""

    kind: str
    """The adapter that made it."""
    name: str
    content_type: str
    body: bytes
    self_url: str = ""
    version: Identifier | None = None
    """Set when it comes from the network."""
    published_ms: int = 0
    hops: int | None = None
    """Links of the network that it came by, when it came from there."""


class Adapter(Protocol):
    """A protocol behind the control function."""

    @property
    def name(self) -> str:
        """Short and unique; part of stored subscriptions."""

    def item_of(self, what: str) -> ItemId:
        """The ids of a name of this protocol; `RefusedError` for what is none."""

    async def deliver(self, crossing: Crossing, subscriptions: Sequence[ItemSubscription]) -> None:
        """Hand a publication to these subscribers. What must not be lost is on disk when this returns; raising
        means «bring it again»."""


Listener = Callable[[Crossing], Awaitable[None]]


class InformationNetwork(Protocol):
    """The information-centric network, as far as the control function needs it."""

    async def publish(self, item: ItemId, crossing: Crossing) -> Identifier:
        """A new version of an item; durable when this returns. Raises `NetworkError`."""

    async def advertise(self, item: ItemId) -> None: ...

    async def withdraw(self, item: ItemId) -> None: ...

    async def subscribe(self, item: ItemId, listener: Listener, since: Identifier | None) -> None:
        """Have every version after `since` (or from the current one on) brought, in order, one at a time."""

    async def unsubscribe(self, item: ItemId) -> None: ...

    async def recent(self, item: ItemId, since: Identifier | None) -> list[Crossing]:
        """What is at hand of an item that is subscribed to: the versions after `since`, or else the current one."""


class Advertising(Protocol):
    """What the network says of who wants an item, before there is anything of it."""

    async def advertise(self, item: ItemId) -> None:
        """Be known as a publisher. Raises `NetworkError`."""

    def is_wanted(self, item: ItemId) -> bool:
        """Whether somebody is subscribed to an item that is advertised or published here. From any thread."""

    def watch_demand(self, listener: Callable[[ItemId, bool], None]) -> None:
        """`listener` is told when the first subscriber of such an item came, or the last went."""


class NetworkError(Exception):
    """The network did not do it. `lasting`: it will not do it later either."""

    def __init__(self, reason: str, *, lasting: bool = False) -> None:
        super().__init__(reason)
        self.lasting = lasting
