"""Topics that were pinged here and that nobody here wants: the network says when somebody elsewhere does.

Such a topic is advertised, which costs no fetch. With the first subscriber in the network the hub fetches it, and what
it finds crosses like any other publication. What the hub forgets is advertised no longer.

A gateway that is away for a while gets what it missed when it is back. So what the network wanted counts as wanted for
some days after its last subscriber there went, also when this gateway was started again meanwhile.
"""

import asyncio
from collections import OrderedDict
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from functools import partial

from exchange.sqlite.rows import item_from
from gateway.control import Control
from gateway.events import GatewayEvent, GatewayStoreFailed
from gateway.model import Adapter, NetworkError
from identifiers import ItemId, Naming, Topic, TopicError
from push_hub.hub import Hub
from storage import Database, Migration, StorageError, Transaction

PAGE = 500
AT_ONCE = 8
KEPT = 7 * 86_400.0
"""Seconds that an item counts as wanted after its last subscriber in the network went."""
LOOK_EVERY = 3_600.0
MIGRATIONS = [
    Migration(
        "gateway.demand",
        1,
        ["CREATE TABLE wanted_items (item BLOB PRIMARY KEY, until REAL NOT NULL) WITHOUT ROWID"],
        times=["wanted_items.until"],
    )
]
PAUSE = 5.0
"""Seconds until something that network or store did not do is tried again."""


class NetworkDemand:
    """Stands for the network at the hub (`push_hub.ports.Elsewhere`)."""

    def __init__(
        self,
        hub: Hub,
        naming: Naming,
        control: Control,
        adapter: Adapter,
        database: Database,
        clock: Callable[[], float],
        observer: Callable[[GatewayEvent], None] | None = None,
    ) -> None:
        self._hub = hub
        self._naming = naming
        self._control = control
        self._adapter = adapter
        self._database = database
        self._clock = clock
        self._observer = observer
        self._wanted_until: dict[ItemId, float] = {
            item_from(item): until for item, until in database.read("SELECT item, until FROM wanted_items")
        }
        self._pinged: dict[ItemId, set[str]] = {}
        """Advertised items, with the topics that were pinged: http and https are one item."""
        self._todo: OrderedDict[str, bool] = OrderedDict()
        """Topics to advertise, or to withdraw; the latest word counts."""
        self._news = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []
        hub.elsewhere = self
        control.watch_demand(self._demand_changed)

    def start(self) -> None:
        self._tasks = [asyncio.create_task(self._advertise_again()), asyncio.create_task(self._look_after_demand())]
        self._tasks += [asyncio.create_task(self._work()) for _ in range(AT_ONCE)]

    async def stop(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    # What the hub says and asks.

    def wants(self, topic: str) -> bool:
        item = self._item(topic)
        return item is not None and (
            self._control.is_wanted_elsewhere(item) or self._wanted_until.get(item, 0.0) > self._clock()
        )

    def pinged(self, topic: str) -> None:
        self._do(topic, advertise=True)

    def forgotten(self, topics: Sequence[str]) -> None:
        for topic in topics:
            self._do(topic, advertise=False)

    # What the network says.

    def _demand_changed(self, item: ItemId, wanted: bool) -> None:
        self._was_wanted(item)
        if wanted:
            for topic in self._pinged.get(item, ()):
                self._do(topic, advertise=True)

    def _was_wanted(self, item: ItemId) -> None:
        until = self._wanted_until[item] = self._clock() + KEPT
        self._database.write(partial(_keep, item, until)).add_done_callback(self._written)

    def _written(self, done: Future[None]) -> None:
        if not done.cancelled() and (error := done.exception()) is not None:
            self._tell(GatewayStoreFailed(str(error)))

    # In the background.

    async def _look_after_demand(self) -> None:
        """What is wanted all the time stays so, and what nobody wanted for long is forgotten."""
        while True:
            for item, until in list(self._wanted_until.items()):
                if self._control.is_wanted_elsewhere(item):
                    self._was_wanted(item)
                elif until <= self._clock():
                    del self._wanted_until[item]
                    self._database.write(partial(_drop, item)).add_done_callback(self._written)
            await asyncio.sleep(LOOK_EVERY)

    async def _advertise_again(self) -> None:
        """A node forgets with whom it was attached what was advertised; the hub has it on disk."""
        after = ""
        while page := self._hub.pinged_unwanted(after, PAGE):
            after = page[-1]
            for topic in page:
                self.pinged(topic)
            await asyncio.sleep(0)

    def _do(self, topic: str, *, advertise: bool) -> None:
        self._todo[topic] = advertise
        self._news.set()

    async def _work(self) -> None:
        while True:
            while not self._todo:
                self._news.clear()
                await self._news.wait()
            topic, advertise = self._todo.popitem(last=False)
            item = self._item(topic)
            if item is None:
                continue
            try:
                await (self._advertise(topic, item) if advertise else self._forget(topic, item))
            except (NetworkError, StorageError) as error:
                if isinstance(error, StorageError):
                    self._tell(GatewayStoreFailed(str(error)))
                elif error.lasting:
                    continue
                await asyncio.sleep(PAUSE)
                self._todo.setdefault(topic, advertise)

    async def _advertise(self, topic: str, item: ItemId) -> None:
        known = self._pinged.setdefault(item, set())
        if not known:
            await self._control.advertise(item)
        known.add(topic)
        if self._control.is_wanted_elsewhere(item):
            await self._hub.wanted(topic)

    async def _forget(self, topic: str, item: ItemId) -> None:
        known = self._pinged.get(item, set())
        known.discard(topic)
        if not known:
            self._pinged.pop(item, None)
            await self._control.withdraw(self._adapter, item)

    def _item(self, topic: str) -> ItemId | None:
        try:
            return self._naming.of_topic(Topic.parse(topic))
        except TopicError:  # it has no ids and cannot cross; the hub serves it as any hub
            return None

    def _tell(self, event: GatewayEvent) -> None:
        if self._observer is not None:
            self._observer(event)


def _keep(item: ItemId, until: float, tx: Transaction) -> None:
    tx.execute("INSERT OR REPLACE INTO wanted_items VALUES (?, ?)", (bytes(item), until))


def _drop(item: ItemId, tx: Transaction) -> None:
    tx.execute("DELETE FROM wanted_items WHERE item = ?", (bytes(item),))
