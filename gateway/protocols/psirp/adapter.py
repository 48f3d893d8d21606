"""The information-centric network as one adapter among others: a session that wants everything that entered here, and
a source of what is wanted here.

Out: the exchange hands it each publication, an item's in order, and again until the network has it. In: the network is
asked once for each item, however many want it, and let go with the last. What arrives is put into the log with its
origin, which says whether it is news; then the network may bring the next.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from functools import partial

from exchange.exchange import Exchange
from exchange.model import Appended, Draft, Interest, LogEntry, Mark, SessionKey, Start
from exchange.ports import PassOverError, Wanted
from gateway.events import (
    CrossingArrived,
    CrossingOffered,
    CrossingPublished,
    GatewayEvent,
    GatewayStoreFailed,
    ItemAsked,
    ItemSubscribed,
    PublishFailed,
)
from gateway.model import Crossing, InformationNetwork, NetworkError
from gateway.protocols.psirp.exports import ExportStore
from identifiers import Identifier, ItemId
from storage import StorageError
from storage.backoff import BackOff, Waits

NETWORK = "psirp"
EVERYTHING = "*"
PAGE = 500
AT_ONCE = 64
START_CONCURRENCY = 32
UNTIL_THERE_IS_ROOM = BackOff(0.2, longest=10.0)


class _Turns:
    """Who follows an item takes turns; when nobody does, nothing is left of it."""

    __slots__ = ("_lock", "waiting")

    def __init__(self) -> None:
        self._lock = asyncio.Lock()
        self.waiting = 0

    @contextlib.asynccontextmanager
    async def taken(self) -> AsyncIterator[None]:
        self.waiting += 1
        try:
            async with self._lock:
                yield
        finally:
            self.waiting -= 1


class PsirpAdapter:
    """Knows the network only by what `gateway.model` says of it."""

    name = NETWORK
    hears_own = False

    def __init__(
        self,
        exchange: Exchange,
        network: InformationNetwork,
        store: ExportStore,
        sweep_every: float,
        observer: Callable[[GatewayEvent], None] | None = None,
    ) -> None:
        self._exchange = exchange
        self._network = network
        self._store = store
        self._sweep_every = sweep_every
        self._observer = observer
        self._session = SessionKey(NETWORK, "")
        self._followed: set[ItemId] = set()
        self._unsure: dict[ItemId, set[SessionKey]] = {}
        """Followed items whose current state is still to come, with sessions that wait for it."""
        self._refused: set[ItemId] = set()
        """Wanted items for which the network is to be asked again."""
        self._turns: dict[ItemId, _Turns] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    async def start(self) -> None:
        """Ask the network for everything that somebody wants, and be a publisher again of what was published."""
        self._exchange.watch(self._wanted_changed)
        await self._exchange.subscribe(self._session, Interest(EVERYTHING, None), Start(everything=True))
        self._exchange.add(self, AT_ONCE, waited_for=True)
        self._background(self._sweep())
        self._background(self._advertise_all())

    async def stop(self) -> None:
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    # Out.

    async def deliver(self, key: SessionKey, entry: LogEntry, interests: Sequence[Interest]) -> None:
        item, draft = entry.item, entry.draft
        if not self._store.is_export(item):
            await self._store.export(item, entry.via, draft.name)
        self._tell(CrossingOffered(item, draft.name, entry.via, draft.body))
        try:
            version = await self._network.publish(draft)
        except NetworkError as error:
            self._tell(PublishFailed(draft.name, str(error), error.lasting))
            if error.lasting:
                raise PassOverError(str(error)) from error
            raise
        self._tell(CrossingPublished(draft.profile, draft.name, item, version, entry.size, entry.origin))

    async def advertise(self, item: ItemId) -> None:
        await self._network.advertise(item)

    def is_wanted(self, item: ItemId) -> bool:
        return self._network.is_wanted(item)

    def watch_demand(self, listener: Callable[[ItemId, bool], None]) -> None:
        self._network.watch_demand(listener)

    async def withdraw(self, item: ItemId) -> None:
        """Be a publisher of an item no longer, here and after restarts. Raises `NetworkError`."""
        await self._store.unexport(item)
        await self._network.withdraw(item)

    async def withdraw_from(self, label: str, item: ItemId) -> None:
        if self._store.exporter(item) in (None, label):
            await self.withdraw(item)

    async def _advertise_all(self) -> None:
        after = b""
        gate = asyncio.Semaphore(START_CONCURRENCY)

        async def advertise(item: ItemId) -> None:
            async with gate:
                with contextlib.suppress(NetworkError):
                    await self._network.advertise(item)

        while page := self._store.exports(after, PAGE):
            after = bytes(page[-1])
            await asyncio.gather(*map(advertise, page))

    # In.

    def follows(self, item: ItemId) -> bool:
        """Whether the network is bringing an item."""
        return item in self._followed

    def is_current(self, item: ItemId) -> bool:
        return item in self._followed and item not in self._unsure

    async def follow(self, item: ItemId, *, since_last: bool, key: SessionKey | None = None) -> None:
        """Be subscribed in the network exactly when somebody here wants the item."""
        if key is not None:
            self._unsure.setdefault(item, set()).add(key)
        turns = self._turns.setdefault(item, _Turns())
        async with turns.taken(), contextlib.AsyncExitStack() as stack:
            stack.callback(self._end_turn, item, turns)
            wanted = await self._exchange.is_wanted(item)
            if wanted and item not in self._followed:
                self._followed.add(item)
                self._refused.discard(item)
                since = await self._exchange.log.mark(NETWORK, _key(item)) if since_last else None
                self._tell(ItemAsked(item))
                try:
                    last = Identifier(since) if isinstance(since, bytes) else None
                    await self._network.subscribe(item, partial(self._arrived, item), last)
                except NetworkError:
                    # The subscription stands; the sweep asks the network again.
                    self._followed.discard(item)
                    self._refused.add(item)
                    return
                self._tell(ItemSubscribed(item, True))
            elif not wanted:
                self._refused.discard(item)
                self._unsure.pop(item, None)
                if item in self._followed:
                    self._followed.discard(item)
                    with contextlib.suppress(NetworkError):
                        await self._network.unsubscribe(item)
                    self._tell(ItemSubscribed(item, False))

    def _end_turn(self, item: ItemId, turns: _Turns) -> None:
        if turns.waiting == 1:
            self._turns.pop(item, None)

    async def _arrived(self, item: ItemId, crossing: Crossing) -> None:
        draft, version = crossing.draft, crossing.version
        is_own = draft.origin is not None and draft.origin.gateway == self._exchange.gateway
        size = len(draft.body)
        self._tell(CrossingArrived(draft.name, item, version, draft.published_ms, size, is_own, crossing))
        waits = Waits(UNTIL_THERE_IS_ROOM)
        while True:
            # Nobody here may be so far behind that the log grows without bound: the network waits instead.
            if is_own or self._exchange.has_room(item):
                try:
                    await self._take(item, draft, version, is_own)
                except StorageError as error:
                    self._tell(GatewayStoreFailed(str(error)))
                else:
                    return
            await asyncio.sleep(waits.next())

    async def _take(self, item: ItemId, draft: Draft, version: Identifier, is_own: bool) -> None:
        """How far the network has brought an item is written in one commit with what it brought."""
        key, log = _key(item), self._exchange.log
        if draft.origin is None and await log.mark(NETWORK, key) == bytes(version):
            # Of a gateway that gives no origins, brought again.
            newest = await log.newest(Wanted(item))
            appended = None if newest is None else Appended(newest.origin, newest.position, False)
        else:
            marks = () if is_own else [Mark(NETWORK, key, bytes(version))]
            appended = await self._exchange.publish(draft, NETWORK, marks)
        for waiting in self._unsure.pop(item, ()):
            if appended is not None and not appended.is_news:
                await self._exchange.rewind(waiting, item, appended.position - 1)

    # In the background.

    def _wanted_changed(self, item: ItemId) -> None:
        if item not in self._turns:
            self._background(self.follow(item, since_last=True))

    async def _sweep(self) -> None:
        """Take up what was wanted before, then ask again for what the network did not give."""
        after: bytes | None = b""
        while True:
            try:
                while after is not None:
                    page = await self._exchange.wanted_items(after, PAGE)
                    after = bytes(page[-1]) if page else None
                    for item in page:
                        self._wanted_changed(item)
            except StorageError as error:  # what cannot be read now may be on the next round
                self._tell(GatewayStoreFailed(str(error)))
            await asyncio.sleep(self._sweep_every)
            for item in list(self._refused):
                self._wanted_changed(item)

    def _background(self, work: Coroutine[None, None, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._ended)

    def _ended(self, task: "asyncio.Task[None]") -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self._tell(GatewayStoreFailed(str(error)))

    def _tell(self, event: GatewayEvent) -> None:
        if self._observer is not None:
            self._observer(event)


def _key(item: ItemId) -> str:
    return bytes(item).hex()
