"""Who holds how much of a node's memory: bytes and slots are charged before anything is allocated.

Accounts form a tree: all of the node, each link that things came by, each publisher of an item. What is charged to one
is charged to those above it, and refused when one of them has no more. Bookkeeping is charged like content: otherwise
many small pieces would cost far more than they weigh.
"""

from collections import Counter
from collections.abc import Hashable
from enum import StrEnum

BODY_COST = 512
"""What a version that is being put together costs beside its segments."""
SEGMENT_COST = 160
"""What a segment costs beside its bytes."""
SLOT_COST = 512
"""What a version that is known of costs, in bookkeeping, until it is handed up."""


class ByteHolder(StrEnum):
    """Whose share was used up."""

    ALL = "all of the node"
    LINK = "a link"
    SOURCE = "a publisher"


class ByteAccount:
    """Bytes that somebody holds."""

    __slots__ = ("_above", "_holder", "_limit", "_refused", "used")

    def __init__(
        self, holder: ByteHolder, limit: int, above: "ByteAccount | None", refused: Counter[ByteHolder]
    ) -> None:
        self.used = 0
        self._holder = holder
        self._limit = limit
        self._above = above
        self._refused = refused

    def charge(self, size: int) -> bool:
        """Take so many bytes, here and above; False, and nothing is taken, when there is no room."""
        if self.used + size > self._limit:
            self._refused[self._holder] += 1
            return False
        if self._above is not None and not self._above.charge(size):
            return False
        self.used += size
        return True

    def force(self, size: int) -> None:
        """Take so many bytes that are there already, whatever the limits say."""
        self.used += size
        if self._above is not None:
            self._above.force(size)

    def release(self, size: int) -> None:
        self.used -= size
        if self._above is not None:
            self._above.release(size)


class Accounts:
    """The accounts of one node."""

    def __init__(self, most: int, most_of_a_link: int, most_of_a_source: int) -> None:
        self.refused: Counter[ByteHolder] = Counter()
        self._most_of_a_link = most_of_a_link
        self._most_of_a_source = most_of_a_source
        self._all = ByteAccount(ByteHolder.ALL, most, None, self.refused)
        self._links: dict[Hashable, ByteAccount] = {}

    @property
    def used(self) -> int:
        return self._all.used

    def link(self, link: Hashable) -> ByteAccount:
        """The account of a link; links are few, and known to the node."""
        account = self._links.get(link)
        if account is None:
            account = self._links[link] = ByteAccount(ByteHolder.LINK, self._most_of_a_link, self._all, self.refused)
        return account

    def source(self, link: Hashable) -> ByteAccount:
        """A new account of a publisher that was first heard by this link."""
        return ByteAccount(ByteHolder.SOURCE, self._most_of_a_source, self.link(link), self.refused)
