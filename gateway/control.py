"""The control function: who wants what, whatever protocol they speak, and what the network must bring for them.

An adapter subscribes and publishes here by name; the network is asked once for each item, however many want it, and
let go with the last. A publication that arrives is handed to every adapter that has somebody for it, and when all have
taken it, that is written down; the next one is taken then. What an adapter cannot take at once is kept here until it
can. A gateway that was killed or away first hands out what it kept, then asks for all that followed.
"""

import asyncio
import contextlib
from collections import OrderedDict
from collections.abc import AsyncIterator, Callable, Coroutine
from dataclasses import dataclass
from functools import partial

from gateway.access.rules import Act
from gateway.events import (
    CrossingArrived,
    CrossingDelivered,
    CrossingOffered,
    CrossingPublished,
    DeliveryRefused,
    GatewayEvent,
    GatewayStoreFailed,
    ItemAsked,
    ItemSubscribed,
)
from gateway.model import (
    FOREVER,
    NOBODY_KNOWN,
    Adapter,
    Asker,
    Crossing,
    InformationNetwork,
    ItemSubscription,
    NetworkError,
    NotAllowedError,
    RefusedError,
)
from gateway.store import ControlStore, item_from
from identifiers import Identifier, ItemId
from storage import StorageError

PAGE = 500
OWN_VERSIONS = 8192
"""Versions of our own that are recognised when the network brings them back."""
START_CONCURRENCY = 32
KEEP_RULES = frozenset({"push", "chat"})
"""Adapters that ask the rules at doors of their own, where more is known of who asks than when it is done later."""


@dataclass(frozen=True, slots=True)
class ControlConfig:
    """Limits on what anybody may hold here."""

    max_per_subscriber: int = 10_000
    max_lease: float = 10 * 24 * 3600.0
    sweep_every: float = 5.0
    retry_base: float = 0.2
    retry_cap: float = 30.0


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


class Control:
    """Knows adapters and the network only by what `gateway.model` says of them."""

    def __init__(
        self,
        store: ControlStore,
        network: InformationNetwork,
        clock: Callable[[], float],
        config: ControlConfig | None = None,
        observer: Callable[[GatewayEvent], None] | None = None,
        refusal: Callable[[Act, str, Asker], str | None] | None = None,
    ) -> None:
        """`refusal` says why somebody behind an adapter that keeps no rules itself may not do something."""
        self._refusal = refusal
        self.config = config if config is not None else ControlConfig()
        self._store = store
        self._network = network
        self._clock = clock
        self._observer = observer
        self._adapters: dict[str, Adapter] = {}
        self._hear_own: set[str] = set()
        self._wanted: set[ItemId] = set()
        self._turns: dict[ItemId, _Turns] = {}
        self._own: OrderedDict[Identifier, str] = OrderedDict()
        self._exported: set[ItemId] = set()
        self._tasks: set[asyncio.Task[None]] = set()

    def add(self, adapter: Adapter, *, hears_own: bool = False) -> None:
        """With `hears_own`, publications of the adapter itself come back to its subscribers here; others, like the
        hub, have served them already."""
        if adapter.name in self._adapters:
            raise ValueError(f"there is an adapter {adapter.name!r} already")
        self._adapters[adapter.name] = adapter
        if hears_own:
            self._hear_own.add(adapter.name)

    async def start(self) -> None:
        """Ask the network for everything that somebody wants, and be a publisher again of what was published."""
        self._follow_all()
        self._background(self._sweep())
        self._background(self._advertise_all())

    async def stop(self) -> None:
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    # For adapters.

    async def subscribe(
        self,
        adapter: Adapter,
        who: str,
        what: str,
        where: str = "",
        lease: float | None = None,
        since: Identifier | None = None,
        *,
        limited: bool = True,
    ) -> ItemSubscription:
        """Want a name, until the lease ends (None: until it is withdrawn). It is on disk when this returns.

        `since` counts for who is the first to want the item; others look with `recent` for what they missed.
        Not `limited`: an adapter that stands for many and counts what each of them holds by itself.
        """
        item = adapter.item_of(what)
        if adapter.name not in KEEP_RULES:
            self.check(Act.SUBSCRIBE, what)
        if (
            limited
            and self._store.count(adapter.name, who) >= self.config.max_per_subscriber
            and not self._store.has(adapter.name, who, what)
        ):
            raise RefusedError(f"{who!r} has {self.config.max_per_subscriber} subscriptions, which is the limit")
        until = FOREVER if lease is None else self._clock() + min(max(lease, 0.0), self.config.max_lease)
        subscription = ItemSubscription(adapter.name, who, what, where, item, until)
        await asyncio.wrap_future(self._store.database.write(partial(ControlStore.put, subscription)))
        await self._follow(item, since)
        return subscription

    async def unsubscribe(self, adapter: Adapter, who: str, what: str) -> bool:
        """No longer want a name; False when it was not wanted."""
        packed = await asyncio.wrap_future(
            self._store.database.write(lambda tx: ControlStore.drop(adapter.name, who, what, tx))
        )
        if packed is None:
            return False
        await self._follow(item_from(packed))
        return True

    async def publish(self, adapter: Adapter, crossing: Crossing, asker: Asker = NOBODY_KNOWN) -> Identifier:
        """Give a publication to the network; it is durable there when this returns. Raises `NetworkError`."""
        item = adapter.item_of(crossing.name)
        if adapter.name not in KEEP_RULES:
            self.check(Act.PUBLISH, crossing.name, asker)
        if item not in self._exported:
            work = partial(ControlStore.export, item, adapter.name, crossing.name)
            await asyncio.wrap_future(self._store.database.write(work))
            self._exported.add(item)
        self._tell(CrossingOffered(item, crossing))
        version = await self._network.publish(item, crossing)
        self._own[version] = adapter.name
        self._own.move_to_end(version)
        if len(self._own) > OWN_VERSIONS:
            self._own.popitem(last=False)
        self._tell(CrossingPublished(crossing.kind, crossing.name, item, version, len(crossing.body)))
        return version

    async def withdraw(self, item: ItemId) -> None:
        """Be a publisher of an item no longer, here and after restarts. Raises `NetworkError`."""
        await asyncio.wrap_future(self._store.database.write(partial(ControlStore.unexport, item)))
        self._exported.discard(item)
        await self._network.withdraw(item)

    async def withdraw_from(self, adapter: str, item: ItemId) -> None:
        """As `withdraw`, unless another adapter publishes the item."""
        if self._store.exporter(item) in (None, adapter):
            await self.withdraw(item)

    def check(self, act: Act, name: str, asker: Asker = NOBODY_KNOWN) -> None:
        """Raises `NotAllowedError` when the operator's rules forbid it."""
        reason = None if self._refusal is None else self._refusal(act, name, asker)
        if reason is not None:
            raise NotAllowedError(reason)

    def subscriptions(self, item: ItemId) -> list[ItemSubscription]:
        return self._store.live(item, self._clock())

    def follows(self, item: ItemId) -> bool:
        """Whether somebody here has the item from the network already."""
        return item in self._wanted

    async def recent(self, item: ItemId, since: Identifier | None) -> list[Crossing]:
        """Versions of a followed item that are at hand: those after `since`, or the current one."""
        return await self._network.recent(item, since)

    # Following what is wanted.

    async def _follow(self, item: ItemId, since: Identifier | None = None) -> None:
        """Be subscribed in the network exactly when somebody here wants the item."""
        turns = self._turns.setdefault(item, _Turns())
        async with turns.taken(), contextlib.AsyncExitStack() as stack:
            stack.callback(self._end_turn, item, turns)
            wanted = bool(self._store.live(item, self._clock()))
            if wanted and item not in self._wanted:
                self._wanted.add(item)
                left = self._store.waiting(item)
                if left is not None and left.version is not None:
                    await self._hand_out(item, left)
                    work = partial(ControlStore.took, item, left.version)
                    await asyncio.wrap_future(self._store.database.write(work))
                try:
                    since = self._store.taken(item) or since
                    self._tell(ItemAsked(item))
                    await self._network.subscribe(item, partial(self._arrived, item), since)
                except NetworkError:
                    # The subscription stands; the sweep asks the network again.
                    self._wanted.discard(item)
                    return
                self._tell(ItemSubscribed(item, True))
            elif not wanted:
                if item in self._wanted:
                    self._wanted.discard(item)
                    with contextlib.suppress(NetworkError):
                        await self._network.unsubscribe(item)
                    self._tell(ItemSubscribed(item, False))
                await asyncio.wrap_future(self._store.database.write(partial(ControlStore.forget_taken, item)))

    def _end_turn(self, item: ItemId, turns: "_Turns") -> None:
        if turns.waiting == 1:
            self._turns.pop(item, None)

    async def _arrived(self, item: ItemId, crossing: Crossing) -> None:
        if crossing.version is None:
            raise ValueError("what the network brings has a version")
        if self._observer is not None:
            version, size = crossing.version, len(crossing.body)
            is_own = version in self._own
            self._tell(CrossingArrived(crossing.name, item, version, crossing.published_ms, size, is_own, crossing))
        await self._hand_out(item, crossing)
        # Killed before this is written, the network brings the version again, and who has it already recognises it.
        # The next version waits for it.
        await asyncio.wrap_future(self._store.database.write(partial(ControlStore.took, item, crossing.version)))

    async def _hand_out(self, item: ItemId, crossing: Crossing) -> None:
        """Hand a version to everybody; tries again until all have taken it or it is refused for good."""
        origin = None if crossing.version is None else self._own.get(crossing.version)
        by_adapter: dict[str, list[ItemSubscription]] = {}
        for subscription in self._store.live(item, self._clock()):
            by_adapter.setdefault(subscription.adapter, []).append(subscription)
        for name, subscriptions in by_adapter.items():
            adapter = self._adapters.get(name)
            if adapter is not None and (name != origin or name in self._hear_own):
                await self._deliver(adapter, item, crossing, subscriptions)

    async def _deliver(
        self, adapter: Adapter, item: ItemId, crossing: Crossing, subscriptions: list[ItemSubscription]
    ) -> None:
        wait = self.config.retry_base
        is_kept = False
        while True:
            try:
                await adapter.deliver(crossing, subscriptions)
            except RefusedError as error:
                self._tell(DeliveryRefused(adapter.name, crossing.name, str(error)))
                return
            except Exception as error:
                self._tell(DeliveryRefused(adapter.name, crossing.name, f"{error}; trying again"))
                if not is_kept and crossing.version is not None:
                    # This may take long, and the network keeps a version for a time only.
                    work = partial(ControlStore.receive, item, crossing.version, crossing)
                    try:
                        await asyncio.wrap_future(self._store.database.write(work))
                        is_kept = True
                    except StorageError as failure:  # on the next round, perhaps
                        self._tell(GatewayStoreFailed(str(failure)))
                await asyncio.sleep(wait)
                wait = min(2 * wait, self.config.retry_cap)
                continue
            self._tell(CrossingDelivered(adapter.name, crossing.name, crossing.version, len(crossing.body)))
            return

    # In the background.

    async def _sweep(self) -> None:
        """End leases, and ask again for what the network did not give."""
        while True:
            await asyncio.sleep(self.config.sweep_every)
            try:
                for subscription in self._store.ended(self._clock(), PAGE):
                    adapter = self._adapters.get(subscription.adapter)
                    if adapter is not None:
                        await self.unsubscribe(adapter, subscription.who, subscription.what)
                self._follow_all()
            except StorageError as error:  # what cannot be read or written now may be on the next round
                self._tell(GatewayStoreFailed(str(error)))

    async def _advertise_all(self) -> None:
        after = b""
        gate = asyncio.Semaphore(START_CONCURRENCY)

        async def advertise(item: ItemId) -> None:
            async with gate:
                with contextlib.suppress(NetworkError):
                    await self._network.advertise(item)

        while page := self._store.exports(after, PAGE):
            after = page[-1][0]
            items = [item_from(packed) for packed, _, _ in page]
            self._exported.update(items)
            await asyncio.gather(*map(advertise, items))

    def _follow_all(self) -> None:
        """Each item by itself: one that cannot be delivered or asked for now holds up no other."""
        after = b""
        while page := self._store.wanted_items(after, PAGE, self._clock()):
            after = page[-1]
            for item in map(item_from, page):
                if item not in self._wanted and item not in self._turns:
                    self._background(self._follow(item))

    def _background(self, work: Coroutine[None, None, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self._tell(GatewayStoreFailed(str(error)))

    def _tell(self, event: GatewayEvent) -> None:
        if self._observer is not None:
            self._observer(event)
