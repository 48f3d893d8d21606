"""The values that the parts of a gateway hand to each other. No behaviour, no I/O.

Times are wall-clock seconds since the epoch; whoever reads the clock passes them in.
"""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Protocol

from exchange.model import Draft, SessionKey
from exchange.ports import PassOverError, SessionReader
from identifiers import Identifier, ItemId

FOREVER = 1e12
"""An end of a subscription that is withdrawn, not waited for."""


class RefusedError(PassOverError):
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
    """A publication that the network brought."""

    draft: Draft
    version: Identifier
    hops: int | None = None
    """Links of the network that it came by; None: published on this very node."""


class Adapter(SessionReader, Protocol):
    """A protocol behind the control function. `RefusedError` from `deliver` is the end of it."""

    @property
    def keeps_rules(self) -> bool:
        """Whether it asks the operator's rules at doors of its own, where more is known of who asks."""

    def item_of(self, what: str) -> ItemId:
        """The ids of a name of this protocol; `RefusedError` for what is none."""


class Advertising(Protocol):
    """Says who elsewhere wants an item, before there is anything of it."""

    async def advertise(self, item: ItemId) -> None:
        """Be known as a publisher. Raises `NetworkError`."""

    def is_wanted(self, item: ItemId) -> bool:
        """Whether somebody is subscribed to an item that is advertised or published here. From any thread."""

    def watch_demand(self, listener: Callable[[ItemId, bool], None]) -> None:
        """`listener` is told when the first subscriber of such an item came, or the last went."""


class Source(Advertising, Protocol):
    """Brings what is wanted here and is not published here, and takes there what is."""

    @property
    def name(self) -> str:
        """What it brings stands in the log as brought by this."""

    def is_current(self, item: ItemId) -> bool:
        """Whether the newest that it brought of an item is the newest there is, as far as anybody here can know."""

    async def follow(self, item: ItemId, *, since_last: bool, key: SessionKey | None = None) -> None:
        """Bring an item exactly as long as somebody wants it. `since_last`: with all that was missed since it was
        followed last; otherwise from its current state on. If that is here already, session `key` begins with it."""

    async def withdraw_from(self, label: str, item: ItemId) -> None:
        """Be a publisher of an item no longer, unless others than this protocol publish it. Raises `NetworkError`."""


Listener = Callable[[Crossing], Awaitable[None]]


class InformationNetwork(Advertising, Protocol):
    """The information-centric network, as far as the gateway needs it."""

    async def publish(self, draft: Draft) -> Identifier:
        """A new version of an item; durable when this returns. Raises `NetworkError`."""

    async def withdraw(self, item: ItemId) -> None: ...

    async def subscribe(self, item: ItemId, listener: Listener, since: Identifier | None) -> None:
        """Have every version after `since` (or from the current one on) brought, in order, one at a time."""

    async def unsubscribe(self, item: ItemId) -> None: ...


class NetworkError(Exception):
    """The network did not do it. `lasting`: it will not do it later either."""

    def __init__(self, reason: str, *, lasting: bool = False) -> None:
        super().__init__(reason)
        self.lasting = lasting
