"""What must be written down: the changes that one transaction of the log takes."""

from dataclasses import dataclass, field

from push_hub.model import HubSubscription

Key = tuple[int, int]  # subscription, publication
FAR = 1e15  # behind an earlier publication: not due until that one is settled
# Reasons of rows that this process works on itself; after a restart nobody does.
CLAIMED = "no answer yet"
WAITING_FOR_ROOM = "waiting for room at its host"


@dataclass(frozen=True, slots=True)
class Row:
    """A delivery that is still owed: what becomes a row of `retries`.

    `asked_until`: the callback itself said that it wants nothing before then.
    """

    subscription: int
    publication: int
    attempts: int
    next_try_at: float
    reason: str
    asked_until: float = 0.0


@dataclass(frozen=True, slots=True)
class DeadLetter:
    subscription: HubSubscription
    publication: int
    attempts: int
    reason: str
    died_at: float


@dataclass(frozen=True, slots=True)
class DeliveredPage:
    """Who of a page got the publication at the first try: packed numbers, because this is the common case."""

    publication: int
    last_id: int
    subscriptions: bytes
    statuses: bytes


@dataclass(frozen=True, slots=True)
class Try:
    """One try worth a line of its own: it failed, or it was not the first. `reason` is None when it was delivered."""

    subscription: int
    publication: int
    at: float
    status: int
    reason: str | None


@dataclass(slots=True)
class Batch:
    """Changes that are written in one transaction, in the order of the fields."""

    rows: list[Row] = field(default_factory=list)
    settled: list[Key] = field(default_factory=list)
    behind: list[Key] = field(default_factory=list)
    dead: list[DeadLetter] = field(default_factory=list)
    positions: dict[int, int] = field(default_factory=dict)
    finished: list[int] = field(default_factory=list)
    pages: list[DeliveredPage] = field(default_factory=list)
    tries: list[Try] = field(default_factory=list)
    released: int = 0
    idle: list[Key] = field(default_factory=list)  # rows nobody works on any more once this is saved

    def __bool__(self) -> bool:
        return bool(self.is_pressing or self.positions or self.finished)

    @property
    def changes(self) -> int:
        """About how many statements it takes."""
        rows = len(self.rows) + len(self.settled) + len(self.behind) + len(self.dead)
        return rows + len(self.positions) + len(self.finished) + len(self.pages) + len(self.tries)

    @property
    def is_pressing(self) -> bool:
        """Whether somebody's next try depends on it. Positions alone may wait for company."""
        return bool(self.rows or self.settled or self.behind or self.dead)
