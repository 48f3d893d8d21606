"""The control function: who wants what, whatever protocol they speak, and what the network must bring for them.

An adapter subscribes and publishes here by name; the network is asked once for each item, however many want it, and let
go with the last. A publication that arrives is handed to every adapter that has somebody for it, and only when all have
taken it is it remembered as taken: a gateway that was killed or away asks for everything after that.
"""

import asyncio
import contextlib
from collections import OrderedDict
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from functools import partial

from gateway.events import CrossingDelivered, CrossingPublished, DeliveryRefused, GatewayEvent, ItemSubscribed
from gateway.model import FOREVER, Adapter, Crossing, Network, NetworkError, RefusedError, Subscription
from gateway.store import ControlStore, item_from
from identifiers import Identifier, ItemId

PAGE = 500
OWN_VERSIONS = 8192
"""Versions of our own that are recognised when the network brings them back."""
START_CONCURRENCY = 32


@dataclass(frozen=True, slots=True)
class ControlConfig:
    """Limits on what anybody may hold here."""

    max_per_subscriber: int = 10_000
    max_lease: float = 10 * 24 * 3600.0
    sweep_every: float = 5.0
    retry_base: float = 0.2
    retry_cap: float = 30.0


class Control:
    """Knows adapters and the network only by what `gateway.model` says of them."""

    def __init__(
        self,
        store: ControlStore,
        network: Network,
        clock: Callable[[], float],
        config: ControlConfig | None = None,
        observer: Callable[[GatewayEvent], None] | None = None,
    ) -> None:
        self.config = config if config is not None else ControlConfig()
        self._store = store
        self._network = network
        self._clock = clock
        self._observer = observer
        self._adapters: dict[str, Adapter] = {}
        self._hear_own: set[str] = set()
        self._wanted: set[ItemId] = set()
        self._locks: dict[ItemId, asyncio.Lock] = {}
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
        self._background(self._sweep())
        self._background(self._resume())

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
    ) -> Subscription:
        """Want a name, until the lease ends (None: until it is withdrawn). It is on disk when this returns.

        `since` counts for who is the first to want the item; others look with `recent` for what they missed.
        """
        item = adapter.item_of(what)
        if self._store.count(adapter.name, who) >= self.config.max_per_subscriber:
            raise RefusedError(f"{who!r} has {self.config.max_per_subscriber} subscriptions, which is the limit")
        until = FOREVER if lease is None else self._clock() + min(max(lease, 0.0), self.config.max_lease)
        subscription = Subscription(adapter.name, who, what, where, item, until)
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

    async def publish(self, adapter: Adapter, crossing: Crossing) -> Identifier:
        """Give a publication to the network; it is durable there when this returns. Raises `NetworkError`."""
        item = adapter.item_of(crossing.name)
        if item not in self._exported:
            work = partial(ControlStore.export, item, adapter.name, crossing.name)
            await asyncio.wrap_future(self._store.database.write(work))
            self._exported.add(item)
        version = await self._network.publish(item, crossing)
        self._own[version] = adapter.name
        self._own.move_to_end(version)
        if len(self._own) > OWN_VERSIONS:
            self._own.popitem(last=False)
        self._tell(CrossingPublished(crossing.kind, crossing.name, item, version, len(crossing.body)))
        return version

    def subscriptions(self, item: ItemId) -> list[Subscription]:
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
        lock = self._locks.setdefault(item, asyncio.Lock())
        async with lock:
            wanted = bool(self._store.live(item, self._clock()))
            if wanted and item not in self._wanted:
                self._wanted.add(item)
                try:
                    since = self._store.taken(item) or since
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
        if not lock.locked():
            self._locks.pop(item, None)

    async def _arrived(self, item: ItemId, crossing: Crossing) -> None:
        """Hand a version to everybody; tries again until all have taken it or it is refused for good."""
        origin = None if crossing.version is None else self._own.get(crossing.version)
        by_adapter: dict[str, list[Subscription]] = {}
        for subscription in self._store.live(item, self._clock()):
            by_adapter.setdefault(subscription.adapter, []).append(subscription)
        for name, subscriptions in by_adapter.items():
            adapter = self._adapters.get(name)
            if adapter is not None and (name != origin or name in self._hear_own):
                await self._deliver(adapter, crossing, subscriptions)
        if crossing.version is not None:
            work = partial(ControlStore.took, item, crossing.version)
            await asyncio.wrap_future(self._store.database.write(work))

    async def _deliver(self, adapter: Adapter, crossing: Crossing, subscriptions: list[Subscription]) -> None:
        wait = self.config.retry_base
        while True:
            try:
                await adapter.deliver(crossing, subscriptions)
            except RefusedError as error:
                self._tell(DeliveryRefused(adapter.name, crossing.name, str(error)))
                return
            except Exception as error:
                self._tell(DeliveryRefused(adapter.name, crossing.name, f"{error}; trying again"))
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
            for subscription in self._store.ended(self._clock(), PAGE):
                adapter = self._adapters.get(subscription.adapter)
                if adapter is not None:
                    await self.unsubscribe(adapter, subscription.who, subscription.what)
            await self._follow_all()

    async def _resume(self) -> None:
        await self._follow_all()
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

    async def _follow_all(self) -> None:
        after = b""
        while page := self._store.wanted_items(after, PAGE, self._clock()):
            after = page[-1]
            missing = [item for item in map(item_from, page) if item not in self._wanted]
            await asyncio.gather(*map(self._follow, missing))

    def _background(self, work: Coroutine[None, None, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _tell(self, event: GatewayEvent) -> None:
        if self._observer is not None:
            self._observer(event)
