"""The exchange on an event loop: publications go into the log, and every session walks through it by itself."""

import asyncio
from collections import Counter
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass, field
from functools import partial

from exchange.keyed_work import AT_ONCE, FIRST_WAIT, LONGEST_WAIT
from exchange.model import (
    CURRENT,
    Appended,
    Draft,
    EntriesTrimmed,
    ExchangeCounters,
    ExchangeError,
    ExchangeEvent,
    Interest,
    InterestStanding,
    ItemFullError,
    Mark,
    RetentionBounds,
    SessionInfo,
    SessionKey,
    SessionState,
    Start,
    WorkStumbled,
)
from exchange.newest import MOST_BYTES, NewestEntries
from exchange.ports import Log, SessionReader, Sessions, Wanted
from exchange.router import Router
from exchange.session_queues import SessionQueues
from exchange.walks import LISTED_AT_ONCE, MS, Walks
from identifiers import Identifier, ItemId
from storage.queues import QueueObserver

MUCH_MORE = 2
"""Times what retention wants to keep of all items: then the oldest goes, also if a session has not taken it."""


@dataclass(frozen=True, slots=True)
class ExchangeConfig:
    retention: RetentionBounds = field(default_factory=RetentionBounds)
    max_interests: int = 10_000
    """Of one session."""
    max_lease: float = 10 * 24 * 3600.0
    sweep_every: float = 5.0
    trim_every: float = 60.0
    first_wait: float = FIRST_WAIT
    """Before an entry that was not taken is offered again; longer each time."""
    longest_wait: float = LONGEST_WAIT
    newest_bytes: int = MOST_BYTES
    """Of entries that are handed on without being read again."""


class TooManyInterestsError(ExchangeError):
    """A session wants as much as it may."""


class Exchange:
    def __init__(
        self,
        log: Log,
        sessions: Sessions,
        clock: Callable[[], float],
        config: ExchangeConfig | None = None,
        observer: Callable[[ExchangeEvent], None] | None = None,
        queues: QueueObserver | None = None,
    ) -> None:
        """`queues` is told how long entries wait for sessions, and which sessions come and go."""
        self._queues = None if queues is None else SessionQueues(queues)
        self.config = config if config is not None else ExchangeConfig()
        self.log = log
        self.sessions = sessions
        self.counters = ExchangeCounters()
        self.router = Router(log, sessions, clock)
        waits = (self.config.first_wait, self.config.longest_wait)
        newest = NewestEntries(log.gateway, most_bytes=self.config.newest_bytes)
        self._walks = Walks(log, sessions, self.router, clock, self.counters, observer, waits, self._queues, newest)
        self._clock = clock
        self._observer = observer
        self._full: dict[ItemId, tuple[int, int]] = {}
        """Entries and bytes of items that have more than retention wants to keep."""
        self._watchers: list[Callable[[ItemId], None]] = []
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def gateway(self) -> bytes:
        """Who we are in origins."""
        return self.log.gateway

    # Life.

    def add(self, reader: SessionReader, at_once: int = AT_ONCE, *, waited_for: bool = False) -> None:
        """A protocol's sessions; `at_once` bounds how many items of its sessions are handed over side by side.

        `waited_for`: it stands for many, so publishers wait rather than that one of its sessions misses anything. A
        session of others that is too far behind does not get the oldest.
        """
        self._walks.add(reader, at_once, waited_for=waited_for)
        self._background(self._walks.catch_up(reader.name))

    def watch(self, wanted_changed: Callable[[ItemId], None]) -> None:
        """Be told of items that somebody began to want, or perhaps wants no more: ask `is_wanted`."""
        self._watchers.append(wanted_changed)

    async def start(self) -> None:
        self._walks.last = await self.log.last_position()
        for key, interest in await self.sessions.of_everything():
            self.router.everything[key] = interest
        after = SessionKey("", "")
        while page := await self.sessions.listing(after, LISTED_AT_ONCE):
            after = page[-1].key
            self._walks.away.update(one.key for one in page if one.state is not SessionState.LIVE)
        self._background(self.router.fill())
        self._background(self._sweep())
        self._background(self._trim())

    async def stop(self) -> None:
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._walks.stop()

    # Publishing.

    async def publish(self, draft: Draft, via: str, marks: Sequence[Mark] = ()) -> Appended:
        """Keep a publication, unless it was here; durable when this returns. Raises `ItemFullError`."""
        origin = draft.origin
        if origin is None:
            self._check_room(draft)
        elif await self.router.is_repeated(draft.item, origin.gateway, origin.number):
            if marks:
                await self.log.put_marks(marks)
            self.counters.repeated += 1
            return Appended(origin, await self.log.position_of(draft.item, origin) or 0, False)
        appended = await self.log.append(draft, via, int(self._clock() * MS), marks)
        await self.note(draft.item, appended, via)
        return appended

    async def note(self, item: ItemId, appended: Appended, via: str) -> None:
        """Something was put into the log, here or by whoever keeps it in a commit of their own: wake who wants it."""
        self.router.arrived.add(bytes(item) + appended.origin.gateway)
        if not appended.is_news:
            self.counters.same_state += 1
            return
        self.counters.appended += 1
        walks = self._walks
        walks.last = max(walks.last, appended.position)
        if appended.entry is not None:
            walks.newest.put(appended.entry, appended.previous)
        bounds = self.config.retention
        if appended.count > bounds.count or appended.bytes > bounds.bytes:
            self._full[item] = (appended.count, appended.bytes)
            self._background(self._trim_item(item))
        if appended.origin.gateway == self.gateway:
            for key in self.router.everything:
                if walks.hears(key.reader, via):
                    walks.wake_for_all(key, item, appended.position)
        everybody, selected = await self.router.matching(item, partial(walks.attributes_at, appended.position))
        for key in everybody:
            if walks.hears(key.reader, via):
                walks.wake(key, item, appended.position)
        for key in selected:
            if walks.hears(key.reader, via):
                walks.wake_selected(key, item, appended.position)

    async def note_many(self, entered: Sequence[tuple[ItemId, Appended]], via: str) -> None:
        """`note` for drafts that entered here in one commit, in their order."""
        asked: dict[ItemId, bool] = {}
        self._walks.last = max([self._walks.last, *(appended.position for _, appended in entered)])
        for item, appended in entered:
            # Of what nobody asks for by name, the first wakes those who want everything.
            if item in asked and not asked[item]:
                self.counters.appended += 1
                continue
            asked[item] = self.router.may_want(item)
            await self.note(item, appended, via)

    def may_want(self, item: ItemId, via: str) -> bool:
        """Whether sessions of other readers may want what enters here on an item. Without a look at the store."""
        return any(key.reader != via for key in self.router.everything) or self.router.may_want(item)

    def has_room(self, item: ItemId) -> bool:
        """Whether nobody is so far behind on an item that no more of it is to be taken."""
        count, size = self._full.get(item, (0, 0))
        return count < self.config.retention.held_count and size < self.config.retention.held_bytes

    def _check_room(self, draft: Draft) -> None:
        if not self.has_room(draft.item):
            self.counters.item_full += 1
            count = self._full[draft.item][0]
            raise ItemFullError(f"{count} publications of {draft.name[:200]} wait for somebody here: try again later")

    # Sessions.

    async def subscribe(
        self,
        key: SessionKey,
        interest: Interest,
        start: Start = CURRENT,
        *,
        durable: bool = True,
        limited: bool = True,
    ) -> None:
        """Want something, from `start` on if the session is new to the item. Durable when this returns, or as lasting
        as the process. Raises `TooManyInterestsError`."""
        if limited and not await self._has_room(key, interest.name):
            bound = self.config.max_interests
            raise TooManyInterestsError(f"{key.who!r} has {bound} subscriptions, which is the limit")
        item = interest.item
        if item is None:
            await self._subscribe_to_everything(key, interest, start)
            return
        if durable:
            begins = None if await self.sessions.cursor(key, item) is not None else await self._place(item, start)
            await self.sessions.add_interest(key, interest, begins, self._clock())
            self.router.changed(item)
            self.router.wanted.add(bytes(item))  # after it is in the store: a guard that is being filled has seen it
        else:
            cursors = self._walks.fleeting.setdefault(key, {})
            if item not in cursors:
                cursors[item] = await self._place(item, start)
            self.router.add_fleeting(key, item, interest)
        self._changed(item)
        self._walks.wake(key, item)

    async def _subscribe_to_everything(self, key: SessionKey, interest: Interest, start: Start) -> None:
        is_new = not await self.sessions.has(key, interest.name)
        begins = await self._place(None, start)
        await self.sessions.add_interest(key, interest, None, self._clock())
        if is_new:
            await self.sessions.move_base(key, begins)
        self.router.everything[key] = interest
        await self._walks.catch_up(key.reader)

    async def unsubscribe(self, key: SessionKey, name: str) -> bool:
        """Want something no longer; False when it was not wanted. The last interest ends the session."""
        if key in self._walks.fleeting:
            return await self._unsubscribe_fleeting(key, name)
        interest = await self.sessions.drop_interest(key, name)
        if interest is None:
            return False
        if interest.item is None:
            self.router.everything.pop(key, None)
            self._walks.forget_session(key)
            return True
        self.router.wanted.removed()
        self.router.changed(interest.item)
        if not await self.router.interests_of(key, interest.item):
            await self._let_go(key, interest.item)
        self._changed(interest.item)
        return True

    async def _unsubscribe_fleeting(self, key: SessionKey, name: str) -> bool:
        items = self._walks.fleeting[key]
        dropped = [item for item in items if self.router.drop_fleeting(key, item, name)]
        for item in dropped:
            if not await self.router.interests_of(key, item):
                await self._let_go(key, item)
            self._changed(item)
        if not items:
            self._walks.fleeting.pop(key, None)
        return bool(dropped)

    async def end(self, key: SessionKey) -> bool:
        """Forget a session and all it wants; False when there is none."""
        names = [one.name for one in await self.interests(key)]
        for name in names:
            await self.unsubscribe(key, name)
        await self.sessions.drop(key)
        self._walks.forget_session(key)
        return bool(names)

    async def come(self, key: SessionKey) -> None:
        """A durable session is there: what it missed is handed to it."""
        self._follow(key, True)
        self._walks.away.discard(key)
        await self.sessions.put(key, SessionState.LIVE, self._clock())
        for interest in await self.sessions.interests(key):
            if interest.item is not None:
                self._walks.wake(key, interest.item)

    async def leave(self, key: SessionKey, state: SessionState = SessionState.AWAY) -> None:
        """A durable session is not there: its cursors stay where they are."""
        self._follow(key, False)
        self._walks.away.add(key)
        for interest in await self.sessions.interests(key):
            if interest.item is not None:
                await self._walks.halt(key, interest.item)
        await self.sessions.put(key, state, self._clock())

    def _follow(self, key: SessionKey, is_up: bool) -> None:
        if self._queues is not None and is_up == (key in self._walks.away):
            self._queues.changed(key, is_up)

    async def begin_again(self, key: SessionKey, name: str, start: Start) -> bool:
        """Let a session go on with one of its interests from another place; False when it wants nothing by the name."""
        interest = next((one for one in await self.interests(key) if one.name == name), None)
        if interest is None or interest.item is None:
            return False
        await self._walks.restart(key, interest.item, await self._place(interest.item, start))
        return True

    def behind(self) -> Counter[SessionKey]:
        """Of how many items each session has not taken all."""
        return self._walks.behind()

    async def standing(self, key: SessionKey, limit: int) -> list[InterestStanding]:
        """How far a session is on what it wants."""
        return [
            InterestStanding(interest, at, await self._walks.waiting(key, interest.item, at))
            for interest in (await self.interests(key))[:limit]
            if interest.item is not None
            for at in [await self.cursor(key, interest.item)]
        ]

    async def interests(self, key: SessionKey) -> list[Interest]:
        if key not in self._walks.fleeting:
            return await self.sessions.interests(key)
        return [one for item in self._walks.fleeting[key] for one in await self.router.interests_of(key, item)]

    async def listing(self, after: SessionKey, limit: int) -> list[SessionInfo]:
        """Sessions in the order of their keys: durable ones and those that end with the process."""
        durable = await self.sessions.listing(after, limit)
        fleeting = [
            SessionInfo(key, SessionState.LIVE, False, len(items), self._clock())
            for key, items in self._walks.fleeting.items()
            if key > after
        ]
        return sorted([*durable, *fleeting], key=lambda one: one.key)[:limit]

    async def session(self, key: SessionKey) -> SessionInfo | None:
        if key in self._walks.fleeting:
            return SessionInfo(key, SessionState.LIVE, False, len(self._walks.fleeting[key]), self._clock())
        return await self.sessions.get(key)

    async def cursor(self, key: SessionKey, item: ItemId) -> int:
        """How far a session is on an item."""
        return await self._walks.cursor(key, item)

    async def rewind(self, key: SessionKey, item: ItemId, position: int) -> None:
        """Let a session that is further have what is behind a position again."""
        if await self._walks.rewind(key, item, position):
            self._walks.wake(key, item)

    async def is_wanted(self, item: ItemId) -> bool:
        return await self.router.is_wanted(item)

    async def wanted_items(self, after: bytes, limit: int) -> list[ItemId]:
        """Items that durable sessions want, a page at a time."""
        return [_item(packed) for packed in await self.sessions.items_after(after, limit, self._clock()) if packed]

    async def _has_room(self, key: SessionKey, name: str) -> bool:
        if key in self._walks.fleeting:
            return len(self._walks.fleeting[key]) < self.config.max_interests
        return await self.sessions.count(key) < self.config.max_interests or await self.sessions.has(key, name)

    async def _place(self, item: ItemId | None, start: Start) -> int:
        if start.everything:
            return 0
        if start.after is not None:
            return start.after
        if item is not None and start.since_ms is not None:
            return await self.log.position_before(item, start.since_ms)
        if item is not None and start.after_origin is not None:
            known = await self.log.position_of(item, start.after_origin)
            if known is not None:
                return known
        if item is not None and (start.current or start.after_origin is not None):
            newest = await self.log.newest(Wanted(item))
            if newest is not None:
                return newest.position - 1
        return await self.log.last_position()

    async def _let_go(self, key: SessionKey, item: ItemId) -> None:
        await self._walks.halt(key, item)
        self._walks.forget(key, item)

    def _changed(self, item: ItemId) -> None:
        for watcher in self._watchers:
            watcher(item)

    # In the background.

    async def _sweep(self) -> None:
        """End leases, write down how far those are that want everything, and make stale guards anew."""
        while True:
            await asyncio.sleep(self.config.sweep_every)
            try:
                for key, interest in await self.sessions.ended(self._clock(), LISTED_AT_ONCE):
                    await self.unsubscribe(key, interest.name)
                await self._walks.move_bases()
                if self.router.wanted.is_stale:
                    await self.router.fill()
            except Exception as error:  # what cannot be read or written now may be on the next round
                self._stumbled(str(error))

    async def _trim_item(self, item: ItemId) -> None:
        bounds = self.config.retention
        trimmed, count, size = await self.log.trim_item(item, await self._walks.floor(item), bounds)
        if count > bounds.behind_count or size > bounds.behind_bytes:
            # A tenth at once: to find the place costs as much as there are entries.
            back = await self.log.position_back(item, bounds.behind_count * 9 // 10, bounds.behind_bytes * 9 // 10)
            await self._walks.leave_behind(item, back)
        if count <= self.config.retention.count and size <= self.config.retention.bytes:
            self._full.pop(item, None)
        else:
            self._full[item] = (count, size)
        self._trimmed(trimmed)

    async def _trim(self) -> None:
        while True:
            await asyncio.sleep(self.config.trim_every)
            try:
                for item in list(self._full):
                    await self._trim_item(item)
                is_much = await self.log.total_bytes() > MUCH_MORE * self.config.retention.total_bytes
                keep = [
                    (item, await self._walks.floor(item, of_waited_for=is_much)) for item in self._walks.unread_items()
                ]
                while trimmed := await self.log.trim_all(self.config.retention, int(self._clock() * MS), keep):
                    self._trimmed(trimmed)
            except Exception as error:  # on the next round, perhaps
                self._stumbled(str(error))

    def _trimmed(self, count: int) -> None:
        if count:
            self.counters.trimmed += count
            self._tell(EntriesTrimmed(count))

    def _background(self, work: Coroutine[None, None, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._ended)

    def _ended(self, task: "asyncio.Task[None]") -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self._stumbled(f"{type(error).__name__}: {error}")

    def _stumbled(self, reason: str) -> None:
        self._tell(WorkStumbled(reason))

    def _tell(self, event: ExchangeEvent) -> None:
        if self._observer is not None:
            self._observer(event)


def _item(packed: bytes) -> ItemId:
    half = len(packed) // 2
    return ItemId(Identifier(packed[:half]), Identifier(packed[half:]))
