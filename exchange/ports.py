"""What the exchange needs of a store and of those who read. Every engine passes `tests/exchange/engine_suite.py`.

All of a store's methods are asynchronous, also those that read: an engine may be at the other end of a network. What is
written is durable when a call returns, unless the method says otherwise.
"""

from collections.abc import Awaitable, Sequence
from dataclasses import dataclass
from typing import Protocol

from exchange.model import (
    Appended,
    Draft,
    Interest,
    LogEntry,
    Mark,
    OriginId,
    RetentionBounds,
    SessionInfo,
    SessionKey,
    SessionState,
)
from identifiers import ItemId


@dataclass(frozen=True, slots=True)
class Wanted:
    """Which entries of an item a session is to be given."""

    item: ItemId
    entered_here: bool = False
    """Only what got its origin here."""
    not_via: str = ""
    """Nothing that this reader brought."""


class Log(Protocol):
    """Append-only and numbered."""

    @property
    def gateway(self) -> bytes:
        """Who we are in the origins that we give."""

    async def append(self, draft: Draft, via: str, now_ms: int, marks: Sequence[Mark] = ()) -> Appended:
        """Judge and keep a draft, and write the marks, in one commit."""

    async def get(self, position: int) -> LogEntry | None: ...

    async def after(self, wanted: Wanted, position: int, limit: int, max_bytes: int) -> list[LogEntry]:
        """Entries of an item behind a position, in order; at least one if there is one, whatever its size."""

    async def waiting(self, wanted: Wanted, position: int) -> int:
        """How many entries of an item are behind a position."""

    async def position_back(self, item: ItemId, count: int, max_bytes: int) -> int:
        """Behind this stand at most so many of the newest entries of an item, with at most so many bytes; 0 when that
        is all of them."""

    async def latest(self, wanted: Wanted, limit: int, max_bytes: int, upto: int | None = None) -> list[LogEntry]:
        """The newest entries of an item, up to a position, in order; at least one if there is one."""

    async def newest(self, wanted: Wanted) -> LogEntry | None: ...

    async def last_position(self) -> int: ...

    async def position_of(self, item: ItemId, origin: OriginId) -> int | None:
        """Where the state stands that a gateway's publication left here."""

    async def position_before(self, item: ItemId, at_ms: int) -> int:
        """The last position of an item whose entry was published before a time; 0 when there is none."""

    async def unread(self, position: int, *, entered_here: bool, limit: int) -> list[tuple[ItemId, int]]:
        """Items with entries behind a position, with the first of those positions, in the order of positions."""

    async def highest(self, item: ItemId, gateway: bytes) -> int:
        """The highest number of a gateway that is known on an item; -1 when there is none."""

    async def known_pairs(self, after: tuple[bytes, bytes], limit: int) -> list[tuple[bytes, bytes]]:
        """Items and gateways of which a number is known, in order behind a pair."""

    async def put_marks(self, marks: Sequence[Mark]) -> None: ...

    def put_marks_soon(self, marks: Sequence[Mark]) -> Awaitable[None]:
        """Nobody waits for them: they share a commit with what comes next, or are written in a moment."""

    async def mark(self, source: str, key: str) -> int | bytes | None: ...

    async def names_like(self, part: str, limit: int) -> list[str]:
        """Names, of what is in the log and of what sessions want, that hold a text in any case."""

    async def names_of(self, digits: str, limit: int) -> list[str]:
        """The same of items whose ids, in hexadecimal, hold these digits."""

    async def trim_item(self, item: ItemId, floor: int, bounds: RetentionBounds) -> tuple[int, int, int]:
        """Let go of what is above an item's count and bytes, but of nothing behind `floor`; says how many went, and how
        many entries and bytes are left."""

    async def trim_all(self, bounds: RetentionBounds, now_ms: int, keep: Sequence[tuple[ItemId, int]]) -> int:
        """Let go of some of what is too old, and of the oldest when all is too much: of the items in `keep` nothing
        behind their position. Says how many."""

    async def total_bytes(self) -> int:
        """Of all bodies that are kept."""

    async def forget(self, item: ItemId) -> int:
        """Let go of all entries of an item."""


class Sessions(Protocol):
    """Who reads, what each wants, and how far it is: the cursors of sessions that outlive the process."""

    async def put(self, key: SessionKey, state: SessionState, now: float) -> None: ...

    async def drop(self, key: SessionKey) -> list[Interest]:
        """Forget a session; says what it wanted."""

    async def add_interest(self, key: SessionKey, interest: Interest, cursor: int | None, now: float) -> None:
        """Want something, or want it differently, in a session that is made if it is not there. `cursor`: where to
        begin, when the session has no cursor for the item yet."""

    async def drop_interest(self, key: SessionKey, name: str) -> Interest | None: ...

    async def interests(self, key: SessionKey) -> list[Interest]: ...

    async def of_item(self, item: ItemId, now: float) -> list[tuple[SessionKey, Interest]]: ...

    async def of_session(self, key: SessionKey, item: ItemId, now: float) -> list[Interest]: ...

    async def of_everything(self) -> list[tuple[SessionKey, Interest]]:
        """Those that want all that entered here."""

    async def items_after(self, item: bytes, limit: int, now: float) -> list[bytes]:
        """Items that are wanted, in order, behind one that is known."""

    async def ended(self, now: float, limit: int) -> list[tuple[SessionKey, Interest]]: ...

    async def get(self, key: SessionKey) -> SessionInfo | None: ...

    async def listing(self, after: SessionKey, limit: int) -> list[SessionInfo]: ...

    async def count(self, key: SessionKey) -> int: ...

    async def has(self, key: SessionKey, name: str) -> bool: ...

    async def cursor(self, key: SessionKey, item: ItemId) -> int | None:
        """None: the session has not begun with this item."""

    def move(self, key: SessionKey, item: ItemId, position: int) -> Awaitable[None]:
        """Write a cursor, soon. Who needs to know that it is durable awaits what it gives, and says `hurry`."""

    def hurry(self) -> None:
        """Somebody waits for a cursor that is being written."""

    async def base(self, key: SessionKey) -> int:
        """Up to here a session that wants everything has all of it, whatever its cursors say."""

    def move_base(self, key: SessionKey, position: int) -> Awaitable[None]: ...

    async def unread(self, limit: int, after: tuple[SessionKey, bytes]) -> list[tuple[SessionKey, ItemId]]:
        """Sessions and their items, in order behind one, whose newest entry is behind the cursor."""


class SessionReader(Protocol):
    """A protocol as the exchange sees it. Its sessions are handed entries, an item at a time in order."""

    @property
    def name(self) -> str: ...

    @property
    def hears_own(self) -> bool:
        """Whether what it brought itself is handed to its own sessions."""

    async def deliver(self, key: SessionKey, entry: LogEntry, interests: Sequence[Interest]) -> None:
        """Hand an entry to a session. `PassOverError`: never; any other exception: again, later."""


class PassOverError(Exception):
    """A session will never take this entry."""
