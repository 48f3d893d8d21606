"""Sessions on their walk through the log: each item of each at its own pace.

A session's walk through one item is one key of its reader's `KeyedWork`: it reads behind its cursor, hands over, moves
the cursor. Readers share nothing but the log, so one that is slow, refuses or fails holds up itself. The next entry of
an item is handed to a session only when the cursor behind the one before is on disk: after a kill at most one of them
comes again.
"""

import asyncio
import contextlib
from collections import Counter, OrderedDict
from collections.abc import AsyncIterator, Callable, Sequence
from functools import partial

from exchange.keyed_work import KeyedWork
from exchange.model import (
    EntryRefused,
    EntryTaken,
    ExchangeCounters,
    ExchangeEvent,
    Interest,
    LogEntry,
    SessionFellBehind,
    SessionKey,
    WorkStumbled,
)
from exchange.newest import NewestEntries
from exchange.ports import Log, PassOverError, SessionReader, Sessions, Wanted
from exchange.router import Router
from exchange.selection import Attributes
from exchange.selection.attributes import attributes_of
from exchange.session_queues import SessionQueues
from identifiers import ItemId
from storage.queues import OpenStay, StayEnd

PAGE = 32
PAGE_BYTES = 4 * 1024 * 1024
LISTED_AT_ONCE = 500
CURSORS_KEPT = 100_000
ATTRIBUTES_KEPT = 256
MS = 1000

WalkKey = tuple[SessionKey, ItemId]


class Walks:
    def __init__(
        self,
        log: Log,
        sessions: Sessions,
        router: Router,
        clock: Callable[[], float],
        counters: ExchangeCounters,
        observer: Callable[[ExchangeEvent], None] | None,
        waits: tuple[float, float],
        queues: SessionQueues | None = None,
        newest: NewestEntries | None = None,
    ) -> None:
        self.last = 0
        """The newest position in the log."""
        self.fleeting: dict[SessionKey, dict[ItemId, int]] = {}
        """Cursors of sessions that end with the process."""
        self.away: set[SessionKey] = set()
        self.newest = NewestEntries(log.gateway) if newest is None else newest
        self._log = log
        self._sessions = sessions
        self._router = router
        self._clock = clock
        self._counters = counters
        self._observer = observer
        self._waits = waits
        self._queues = queues
        self._readers: dict[str, SessionReader] = {}
        self._waited_for: set[str] = set()
        self._work: dict[str, KeyedWork[WalkKey]] = {}
        self._caught_up: set[str] = set()
        self._cursors: OrderedDict[WalkKey, int] = OrderedDict()
        self._settling: dict[WalkKey, asyncio.Future[None]] = {}
        self._attributes: OrderedDict[int, Attributes] = OrderedDict()
        """Of entries that were published lately, by their position."""
        self._unread: dict[ItemId, set[SessionKey]] = {}
        """Who is behind on an item: retention leaves them what they have not taken."""
        self._heads: dict[SessionKey, dict[ItemId, int]] = {}
        """Of sessions that want everything: the first entry of each item that they have not taken."""

    def add(self, reader: SessionReader, at_once: int, *, waited_for: bool = False) -> None:
        if reader.name in self._readers:
            raise ValueError(f"there is a reader {reader.name!r} already")
        self._readers[reader.name] = reader
        if waited_for:
            self._waited_for.add(reader.name)
        self._work[reader.name] = KeyedWork(partial(self._walk, reader), self._stumbled, at_once, *self._waits)

    async def stop(self) -> None:
        await asyncio.gather(*(work.stop() for work in self._work.values()))
        await self.move_bases()

    def hears(self, name: str, via: str) -> bool:
        """Whether sessions of a reader are handed what came by another, or by itself."""
        reader = self._readers.get(name)
        return reader is not None and (name != via or reader.hears_own)

    def wanted(self, key: SessionKey, item: ItemId) -> Wanted:
        """Which entries of an item a session is given."""
        reader = self._readers.get(key.reader)
        return Wanted(item, key in self._router.everything, key.reader if reader and not reader.hears_own else "")

    def wake(self, key: SessionKey, item: ItemId, position: int | None = None) -> None:
        """`position`: of an entry that is new."""
        if self._queues is not None and position is not None:
            self._queues.came(key, item, position)
        work = self._work.get(key.reader)
        if work is None or key in self.away:
            return
        if key not in self.fleeting:
            self._unread.setdefault(item, set()).add(key)
        work.wake((key, item))

    def wake_selected(self, key: SessionKey, item: ItemId, position: int) -> None:
        """A new entry is for a session that has selected it. What stands before it, and was not given to a session that
        has nothing to do, is not for it: it need not be read again."""
        walk = (key, item)
        known = self.fleeting[key].get(item) if key in self.fleeting else self._cursors.get(walk)
        is_up_to_date = key in self.fleeting or key.reader in self._caught_up
        if known is not None and known < position - 1 and is_up_to_date and not self._is_at_work(walk):
            self._move(walk, position - 1)
        self.wake(key, item, position)

    def _is_at_work(self, walk: WalkKey) -> bool:
        key, item = walk
        work = self._work.get(key.reader)
        return work is None or work.is_at_work(walk) or key in self.away or key in self._unread.get(item, ())

    async def waiting(self, key: SessionKey, item: ItemId, position: int) -> int:
        """How many entries a session has before it, that it may select from."""
        if key not in self.away and not self._is_at_work((key, item)):
            return 0
        return await self._log.waiting(self.wanted(key, item), position)

    async def attributes_at(self, position: int) -> Attributes:
        known = self._attributes.get(position)
        if known is None:
            entry = await self._log.get(position)
            known = {} if entry is None else self._attributes_of(entry)
        return known

    def _attributes_of(self, entry: LogEntry) -> Attributes:
        """Found once, however many select by them."""
        known = self._attributes.get(entry.position)
        if known is None:
            known = self._attributes[entry.position] = attributes_of(entry.draft)
            if len(self._attributes) > ATTRIBUTES_KEPT:
                self._attributes.popitem(last=False)
        return known

    def _selecting(self, entry: LogEntry, interests: Sequence[Interest]) -> Sequence[Interest]:
        """Those of a session's interests that an entry is for."""
        if not any(one.entry_selector.predicates for one in interests):
            return interests
        attributes = self._attributes_of(entry)
        return [one for one in interests if one.entry_selector.matches(attributes)]

    def wake_for_all(self, key: SessionKey, item: ItemId, position: int) -> None:
        """An entry for a session that wants everything."""
        self._heads.setdefault(key, {}).setdefault(item, position)
        self.wake(key, item, position)

    async def halt(self, key: SessionKey, item: ItemId) -> None:
        work = self._work.get(key.reader)
        if work is not None:
            await work.end((key, item))
        self._has_all(key, item)

    def forget(self, key: SessionKey, item: ItemId) -> None:
        if self._queues is not None:
            self._queues.forget(key, item)
        self._cursors.pop((key, item), None)
        self.fleeting.get(key, {}).pop(item, None)

    def forget_session(self, key: SessionKey) -> None:
        self._heads.pop(key, None)
        self.away.discard(key)

    async def floor(self, item: ItemId, *, of_waited_for: bool = False) -> int:
        """Behind this, somebody has not taken all of an item; or somebody whom publishers wait for."""
        behind = self._unread.get(item, ())
        cursors = [
            await self.cursor(key, item) for key in list(behind) if not of_waited_for or key.reader in self._waited_for
        ]
        return min(cursors, default=self.last)

    async def leave_behind(self, item: ItemId, position: int) -> bool:
        """Sessions that no publisher waits for get nothing up to a position any more. Whether there were any."""
        left = False
        for key in list(self._unread.get(item, ())):
            if key.reader not in self._waited_for and await self.cursor(key, item) < position:
                self._move((key, item), position)
                self._counters.fell_behind += 1
                self._tell(SessionFellBehind(key, item))
                left = True
        return left

    def unread_items(self) -> list[ItemId]:
        return list(self._unread)

    def behind(self) -> Counter[SessionKey]:
        """Of how many items each session has not taken all."""
        return Counter(key for keys in self._unread.values() for key in keys)

    # One walk.

    async def _walk(self, reader: SessionReader, walk: WalkKey) -> bool:
        """Hand over what is behind a session's cursor. Whether nothing is left."""
        key, item = walk
        wanted = self.wanted(key, item)
        while True:
            position = await self.cursor(key, item)
            entries = self.newest.behind(wanted, position)
            if entries is not None and not entries:
                break
            interests = await self._router.interests_of(key, item)
            if entries is None and interests:
                entries = await self._log.after(wanted, position, PAGE, PAGE_BYTES)
            if not entries or not interests:
                break
            for entry in entries:
                if not await self._hand_over(reader, key, entry, interests):
                    return False
        if not self._work[reader.name].is_woken(walk):
            self._has_all(key, item)
        return True

    async def _hand_over(
        self, reader: SessionReader, key: SessionKey, entry: LogEntry, interests: Sequence[Interest]
    ) -> bool:
        walk = (key, entry.item)
        before = self._settling.get(walk)
        if before is not None:
            self._sessions.hurry()
            await asyncio.shield(before)
        stay = None if self._queues is None else self._queues.begins(key, entry.item, entry.position)
        selecting = self._selecting(entry, interests)
        if not selecting:
            _end(stay, "refused")
            self._counters.not_selected += 1
        elif 0 < entry.draft.deadline_ms < self._clock() * MS:
            _end(stay, "refused")
        else:
            try:
                await reader.deliver(key, entry, selecting)
            except PassOverError as error:
                _end(stay, "refused")
                self._counters.refused += 1
                self._tell(EntryRefused(key, entry, str(error), False))
            except Exception as error:  # whatever a protocol does, it is its own sessions that wait
                _end(stay, "failed")
                self._counters.retried += 1
                self._tell(EntryRefused(key, entry, str(error) or type(error).__name__, True))
                return False
            else:
                _end(stay, "ok")
                self._counters.taken += 1
                self._tell(EntryTaken(key, entry))
        self._move(walk, entry.position)
        return True

    # Cursors.

    async def cursor(self, key: SessionKey, item: ItemId) -> int:
        if key in self.fleeting:
            return self.fleeting[key].get(item, self.last)
        walk = (key, item)
        known = self._cursors.get(walk)
        if known is None:
            settling = self._settling.get(walk)
            if settling is not None:
                await asyncio.shield(settling)
            stored = await self._sessions.cursor(key, item)
            base = await self._sessions.base(key) if key in self._router.everything else 0
            known = base if stored is None else max(stored, base)
            self._keep(walk, known)
        return known

    async def restart(self, key: SessionKey, item: ItemId, position: int) -> None:
        """Go on with an item from another place; on disk when this returns."""
        await self.halt(key, item)
        self._move((key, item), position)
        settling = self._settling.get((key, item))
        if settling is not None:
            self._sessions.hurry()
            await asyncio.shield(settling)
        self.wake(key, item)

    async def rewind(self, key: SessionKey, item: ItemId, position: int) -> bool:
        """Whether the session has the item, and was further."""
        is_known = item in self.fleeting[key] if key in self.fleeting else bool(await self._sessions.cursor(key, item))
        if not is_known or await self.cursor(key, item) <= position:
            return False
        self._move((key, item), position)
        return True

    def _move(self, walk: WalkKey, position: int) -> None:
        key, item = walk
        cursors = self.fleeting.get(key)
        if cursors is not None:
            cursors[item] = position
            return
        self._keep(walk, position)
        heads = self._heads.get(key)
        if heads is not None and item in heads:
            heads[item] = position + 1
        settling = asyncio.ensure_future(self._sessions.move(key, item, position))
        self._settling[walk] = settling
        settling.add_done_callback(partial(self._settled, walk))

    def _keep(self, walk: WalkKey, position: int) -> None:
        self._cursors[walk] = position
        self._cursors.move_to_end(walk)
        if len(self._cursors) > CURSORS_KEPT:
            self._cursors.popitem(last=False)

    def _settled(self, walk: WalkKey, done: "asyncio.Future[None]") -> None:
        if self._settling.get(walk) is done:
            del self._settling[walk]
        if not done.cancelled() and (error := done.exception()) is not None:
            self._stumbled(str(error))

    def _has_all(self, key: SessionKey, item: ItemId) -> None:
        behind = self._unread.get(item)
        if behind is not None:
            behind.discard(key)
            if not behind:
                del self._unread[item]
        self._heads.get(key, {}).pop(item, None)

    # Starts.

    async def catch_up(self, name: str) -> None:
        """Wake what a reader's durable sessions had not taken when the process ended."""
        for key in [key for key, _ in await self._sessions.of_everything() if key.reader == name]:
            position = await self._sessions.base(key)
            while page := await self._log.unread(position, entered_here=True, limit=LISTED_AT_ONCE):
                for item, first in page:
                    self.wake_for_all(key, item, first)
                position = page[-1][1]
        after = (SessionKey(name, ""), b"")
        for key, item in [found async for found in self._behind(name, after)]:
            self.wake(key, item)
        self._caught_up.add(name)

    async def _behind(self, name: str, after: tuple[SessionKey, bytes]) -> AsyncIterator[WalkKey]:
        while page := await self._sessions.unread(LISTED_AT_ONCE, after):
            after = (page[-1][0], bytes(page[-1][1]))
            for key, item in page:
                if key.reader != name:
                    return
                yield key, item

    async def move_bases(self) -> None:
        """Write down how far those are that want everything: only a shortcut for the next start."""
        for key in list(self._router.everything):
            if key.reader in self._caught_up:
                heads = self._heads.get(key)
                base = min(heads.values()) - 1 if heads else self.last
                with contextlib.suppress(Exception):
                    if base > await self._sessions.base(key):
                        await self._sessions.move_base(key, base)

    def _stumbled(self, reason: str) -> None:
        self._tell(WorkStumbled(reason))

    def _tell(self, event: ExchangeEvent) -> None:
        if self._observer is not None:
            self._observer(event)


def _end(stay: OpenStay | None, end: StayEnd) -> None:
    if stay is not None:
        stay.ends(end)
