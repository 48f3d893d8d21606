"""The values of the exchange. No behaviour beyond their own text and byte forms, no I/O.

Times are milliseconds of wall clock since the epoch in what is published, seconds where somebody waits.
"""

import struct
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum
from typing import Final, Self

from exchange.selection.selector import ANYTHING, Selector
from identifiers import ItemId

GATEWAY_BYTES: Final = 16
MAX_KNOWN: Final = 16
"""Other gateways' publications that one says it knew of."""
MAX_DIGITS: Final = 18
SELF: Final = "self"
"""The attribute for the address that a publication says it has."""
_KNOWN = struct.Struct(f"!{GATEWAY_BYTES}sQ")


class ExchangeError(Exception):
    """The exchange will not do it; the text is for whoever asked."""


class ItemFullError(ExchangeError):
    """So much of an item waits for somebody that no more is taken: come back later."""


class Profile(StrEnum):
    """What kind of thing a publication is, whatever protocol it came by."""

    DOCUMENT = "document"
    """A state: the newest counts."""
    MESSAGE = "message"
    """Each counts."""
    EVENT = "event"
    """Attributes, and a payload."""


@dataclass(frozen=True, slots=True, order=True)
class OriginId:
    """Where a publication entered, and the number it got there: given once, equal everywhere."""

    gateway: bytes
    number: int

    def __post_init__(self) -> None:
        if len(self.gateway) != GATEWAY_BYTES or self.number < 0:
            raise ValueError(f"an origin is {GATEWAY_BYTES} bytes and a number from 0 on")

    def __str__(self) -> str:
        return f"{self.gateway.hex()}:{self.number}"

    @classmethod
    def parse(cls, text: str) -> Self:
        """Raises `ValueError`."""
        gateway, separator, number = text.partition(":")
        if not separator or not number.isdigit() or len(number) > MAX_DIGITS or not number.isascii():
            raise ValueError(f"{text[:80]!r} is no origin: expected GATEWAY:NUMBER")
        return cls(bytes.fromhex(gateway), int(number))


def pack_origins(origins: tuple[OriginId, ...]) -> bytes:
    return b"".join(_KNOWN.pack(one.gateway, one.number) for one in origins)


def unpack_origins(packed: bytes) -> tuple[OriginId, ...]:
    """Raises `ValueError` for other bytes."""
    if len(packed) % _KNOWN.size or len(packed) > MAX_KNOWN * _KNOWN.size:
        raise ValueError(f"{len(packed)} bytes are no list of origins")
    return tuple(OriginId(gateway, number) for gateway, number in _KNOWN.iter_unpack(packed))


@dataclass(frozen=True, slots=True)
class Draft:
    """A publication as it is handed in. Without an origin it enters here and gets one."""

    item: ItemId
    name: str
    """As the namespace it is of shows it."""
    profile: Profile
    content_type: str
    body: bytes
    attributes: tuple[tuple[str, str], ...] = ()
    published_ms: int = 0
    """0: now."""
    deadline_ms: int = 0
    """After this nobody wants it any more; 0: never."""
    origin: OriginId | None = None
    known: tuple[OriginId, ...] = ()
    """The newest of other gateways on this item that its own gateway knew of. Only with an origin."""

    def attribute(self, name: str) -> str:
        return next((value for key, value in self.attributes if key == name), "")


@dataclass(frozen=True, slots=True)
class LogEntry:
    """A publication in the log."""

    position: int
    origin: OriginId
    via: str
    """Which reader of this exchange brought it."""
    draft: Draft
    appended_ms: int

    @property
    def item(self) -> ItemId:
        return self.draft.item

    @property
    def size(self) -> int:
        return len(self.draft.body)


@dataclass(frozen=True, slots=True)
class Mark:
    """How far a source has been taken in: written in one commit with what was taken."""

    source: str
    key: str
    value: int | bytes


@dataclass(frozen=True, slots=True)
class Appended:
    """What became of a draft. `position` is where it stands, or where its equal does."""

    origin: OriginId
    position: int
    is_news: bool
    count: int = 0
    """Entries of the item that are in the log now, and their bytes."""
    bytes: int = 0
    entry: LogEntry | None = None
    """What was put into the log, if the engine says so: whoever is handed it need not read it."""
    previous: int = 0
    """Where the entry of the item before it stands; 0: there is none."""


class SessionState(StrEnum):
    LIVE = "live"
    AWAY = "away"
    ELSEWHERE = "elsewhere"


@dataclass(frozen=True, slots=True, order=True)
class SessionKey:
    """A subscriber: of which reader, and who."""

    reader: str
    who: str


@dataclass(frozen=True, slots=True)
class Interest:
    """What a session wants: an item by one of its names, or everything that entered here."""

    name: str
    item: ItemId | None
    """None: everything that entered here."""
    where: str = ""
    """Where to deliver: for the reader to understand."""
    until: float = 1e12
    convert: str = ""
    """The converter it is read through; empty: as it is."""
    selector: Selector = ANYTHING
    """Which of the publications, or of what a converter makes of them."""

    @property
    def entry_selector(self) -> Selector:
        """Which entries of the log it may be for."""
        return ANYTHING if self.convert else self.selector


@dataclass(frozen=True, slots=True)
class SessionInfo:
    """A session as people see it."""

    key: SessionKey
    state: SessionState
    durable: bool
    interests: int
    changed: float
    """When it last came or went, in seconds."""


@dataclass(frozen=True, slots=True)
class InterestStanding:
    """How far a session is on one of its interests."""

    interest: Interest
    cursor: int
    waiting: int
    """Entries that it has not taken."""


@dataclass(frozen=True, slots=True)
class RetentionBounds:
    """What is kept of each item, and of all. The newest of each item is, and what somebody still has to take."""

    count: int = 1_000
    bytes: int = 32 * 1024 * 1024
    age: float = 7 * 24 * 3600.0
    """Seconds."""
    total_bytes: int = 1 << 30
    held_count: int = 20_000
    held_bytes: int = 256 * 1024 * 1024
    """Of one item, also if somebody has not taken it: then no more is accepted."""
    behind_count: int = 10_000
    behind_bytes: int = 128 * 1024 * 1024
    """Of one item for one session, unless publishers wait for its reader: what is older it does not get."""

    def __post_init__(self) -> None:
        if self.count < 1 or self.bytes < 0 or self.age < 0 or self.held_count < self.count:
            raise ValueError("retention: expected a count from 1 on, and bytes and age from 0 on")
        if self.behind_count < 1 or self.behind_bytes < 1:
            raise ValueError("retention: expected that a session can be behind by something")


@dataclass(frozen=True, slots=True)
class Start:
    """Where a session that is new to an item begins: the one of these that is set decides; none: with the next."""

    current: bool = False
    after: int | None = None
    since_ms: int | None = None
    everything: bool = False
    after_origin: OriginId | None = None

    @classmethod
    def parse(cls, text: str) -> Self:
        """As people write it. Raises `ValueError`."""
        if text == "current":
            return cls(current=True)
        if text == "all":
            return cls(everything=True)
        if text.isascii() and text.isdigit() and len(text) <= MAX_DIGITS:
            return cls(after=int(text))
        try:
            if "T" in text or "-" in text:
                at = datetime.fromisoformat(text)
                at = at if at.tzinfo is not None else at.replace(tzinfo=UTC)
                return cls(since_ms=max(0, round(at.timestamp() * 1000)))
            return cls(after_origin=OriginId.parse(text))
        except (ValueError, OverflowError):
            raise ValueError(
                f"{text[:80]!r} says no place to begin: expected current, all, the number or the origin of "
                "a publication, or a time (2026-01-31T12:00:00Z)"
            ) from None


FROM_NOW = Start()
CURRENT = Start(current=True)


@dataclass(frozen=True, slots=True)
class ExchangeEvent:
    """What the exchange tells its observer: the base of all."""


@dataclass(frozen=True, slots=True)
class EntryTaken(ExchangeEvent):
    """A session has an entry now."""

    key: SessionKey
    entry: LogEntry


@dataclass(frozen=True, slots=True)
class EntryRefused(ExchangeEvent):
    """A reader did not take an entry; without `again` it never will be asked to."""

    key: SessionKey
    entry: LogEntry
    reason: str
    again: bool


@dataclass(frozen=True, slots=True)
class SessionFellBehind(ExchangeEvent):
    """A session was too far behind on an item: it does not get the oldest of what it had not taken."""

    key: SessionKey
    item: ItemId


@dataclass(frozen=True, slots=True)
class WorkStumbled(ExchangeEvent):
    """Something failed on our own side and is tried again."""

    reason: str


@dataclass(frozen=True, slots=True)
class EntriesTrimmed(ExchangeEvent):
    """Retention let go of entries."""

    count: int


@dataclass(slots=True)
class ExchangeCounters:
    appended: int = 0
    repeated: int = 0
    """Arrived again, known by their origin."""
    same_state: int = 0
    """Another gateway's publication of a state that is in the log already."""
    item_full: int = 0
    taken: int = 0
    refused: int = 0
    retried: int = 0
    trimmed: int = 0
    fell_behind: int = 0
    not_selected: int = 0
    """Entries that a session passed over because of its selectors."""
