"""What a hub has stored, as the crash runs look at it."""

from dataclasses import dataclass

Pair = tuple[str, str]
"""Topic and callback."""


@dataclass(frozen=True, slots=True)
class StoredPublication:
    id: int
    topic: str
    body: bytes
    accepted_at: float


@dataclass(frozen=True, slots=True)
class StoreSnapshot:
    integrity: str
    """`ok`, or what SQLite found wrong."""
    subscriptions: dict[Pair, int]
    waiting: dict[Pair, str]
    """The mode of the intent that waits for its check."""
    pings: set[str]
    unwanted: set[str]
    """Topics that were pinged while nobody was subscribed: looked at when somebody is."""
    publications: list[StoredPublication]
    """Those above the id that was asked for."""
    fanouts: dict[int, int]
    owed: set[tuple[int, int]]
    dead_letters: list[Pair]
