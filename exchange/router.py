"""Who wants an entry, and what is certainly new: a Bloom guard in front of each exact answer, which is in the store.

Most of what is published is wanted by nobody here, and most of what arrives was never here. The guards say so without a
look at the store; what they do not know for certain is looked up. They are filled in the background after a start, and
until then say «perhaps» to everything. A Bloom filter forgets nothing: once a third of what it was told is gone, it is
made anew.
"""

import hashlib
from collections import OrderedDict
from collections.abc import AsyncIterator, Awaitable, Callable

from exchange.interests import ItemInterests, Matching
from exchange.model import Interest, SessionKey
from exchange.ports import Log, Sessions
from exchange.selection import Attributes
from identifiers import ItemId
from identifiers.guard import Guard

PAGE = 1_000
INTERESTS_KEPT = 100_000


class GuardedSet:
    """What is certainly not in a set that is kept elsewhere. Sans-I/O."""

    def __init__(self) -> None:
        self._guard = Guard(0)
        self._gone = 0
        self.asked = 0
        self.spared = 0
        """Questions that needed no look at the store."""

    @property
    def is_stale(self) -> bool:
        return self._gone * 3 > self._guard.added

    def add(self, key: bytes) -> None:
        self._guard.add((_fingerprint(key),))

    def removed(self) -> None:
        self._gone += 1

    def may_have(self, key: bytes) -> bool:
        self.asked += 1
        if self._guard.may_know(_fingerprint(key)):
            return True
        self.spared += 1
        return False

    async def fill(self, keys: AsyncIterator[bytes]) -> None:
        """Begin anew with these; what is added meanwhile is not missed."""
        self._guard, self._gone = Guard(0), 0
        guard = self._guard
        async for key in keys:
            guard.add((_fingerprint(key),))
        guard.complete = True


class Router:
    """Durable interests are in the store, fleeting ones here."""

    def __init__(self, log: Log, sessions: Sessions, clock: Callable[[], float]) -> None:
        self._log = log
        self._sessions = sessions
        self._clock = clock
        self._fleeting: dict[ItemId, ItemInterests] = {}
        self._durable: OrderedDict[ItemId, ItemInterests] = OrderedDict()
        """Of items that something was published on lately: as the store has them."""
        self._kept = 0
        self._changes = 0
        self.everything: dict[SessionKey, Interest] = {}
        """Sessions that want all that entered here."""
        self.wanted = GuardedSet()
        self.arrived = GuardedSet()

    async def fill(self) -> None:
        await self.wanted.fill(self._wanted_items())
        await self.arrived.fill(self._arrived_pairs())

    async def _wanted_items(self) -> AsyncIterator[bytes]:
        after = b""
        while page := await self._sessions.items_after(after, PAGE, self._clock()):
            after = page[-1]
            for item in page:
                yield item

    async def _arrived_pairs(self) -> AsyncIterator[bytes]:
        after = (b"", b"")
        while page := await self._log.known_pairs(after, PAGE):
            after = page[-1]
            for item, gateway in page:
                yield item + gateway

    # Duplicates.

    async def is_repeated(self, item: ItemId, gateway: bytes, number: int) -> bool:
        """Whether a publication of this origin, or a later one, has been here."""
        if not self.arrived.may_have(bytes(item) + gateway):
            return False
        return number <= await self._log.highest(item, gateway)

    # Matching.

    async def matching(
        self, item: ItemId, attributes: Callable[[], Awaitable[Attributes]] | None = None
    ) -> tuple[Matching, Matching]:
        """Sessions that want an item by name, with what they said: those that nobody's selectors stand beside, or all
        without `attributes`, and those that have selected a publication with these attributes."""
        groups = [group for group in (self._fleeting.get(item), await self._durable_of(item)) if group is not None]
        now = self._clock()
        everybody: Matching = {}
        selected: Matching = {}
        for group in groups:
            if group.selects and attributes is not None:
                selected |= group.selected(await attributes(), now)
            else:
                everybody |= group.everyone(now)
        return everybody, selected

    async def _durable_of(self, item: ItemId) -> ItemInterests | None:
        if not self.wanted.may_have(bytes(item)):
            return None
        known = self._durable.get(item)
        if known is not None:
            self._durable.move_to_end(item)
            return known
        changes = self._changes
        known = ItemInterests(await self._sessions.of_item(item, self._clock()))
        if changes == self._changes:
            self._durable[item] = known
            self._kept += len(known) + 1
            while self._kept > INTERESTS_KEPT and len(self._durable) > 1:
                self._kept -= len(self._durable.popitem(last=False)[1]) + 1
        return known

    def changed(self, item: ItemId) -> None:
        """What the store has of an item is not what it was."""
        self._changes += 1
        known = self._durable.pop(item, None)
        if known is not None:
            self._kept -= len(known) + 1

    async def is_wanted(self, item: ItemId) -> bool:
        if item in self._fleeting:
            return True
        return self.wanted.may_have(bytes(item)) and bool(await self._sessions.of_item(item, self._clock()))

    def may_want(self, item: ItemId) -> bool:
        """No is for certain."""
        return item in self._fleeting or self.wanted.may_have(bytes(item))

    async def interests_of(self, key: SessionKey, item: ItemId) -> list[Interest]:
        """What a session wants of an item."""
        if key in self.everything:
            return [self.everything[key]]
        fleeting = self._fleeting.get(item)
        found = [] if fleeting is None else fleeting.of(key)
        return found or await self._sessions.of_session(key, item, self._clock())

    def add_fleeting(self, key: SessionKey, item: ItemId, interest: Interest) -> None:
        self._fleeting.setdefault(item, ItemInterests()).put(key, interest)

    def drop_fleeting(self, key: SessionKey, item: ItemId, name: str) -> bool:
        known = self._fleeting.get(item)
        if known is None or not known.drop(key, name):
            return False
        if not len(known):
            del self._fleeting[item]
        return True


def _fingerprint(key: bytes) -> int:
    return int.from_bytes(hashlib.blake2b(key, digest_size=8).digest())
