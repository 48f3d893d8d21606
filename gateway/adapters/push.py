"""WebSub and PubSubHubbub behind the control function: the hub's subscribers and publications, both ways.

Out: the hub's log is read behind a cursor, so nothing that was acknowledged to a publisher is forgotten, whatever is
killed when. In: what arrives is given to the hub's own intake, which finds out what is new and fans it out.
"""

import asyncio
import contextlib
from collections import OrderedDict
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from functools import partial

from gateway.control import Control
from gateway.events import GatewayEvent, GatewayStoreFailed, PublishFailed
from gateway.model import Crossing, ItemSubscription, NetworkError, RefusedError
from gateway.store import ControlStore
from identifiers import ItemId, Naming, Topic, TopicError
from push_hub.hub import Hub
from push_hub.model import Content, HubPublication
from push_hub.protocol.requests import RequestError
from storage import StorageError

CURSOR = "push"
PAGE = 200
TOPICS_AT_ONCE = 32
CHANGES_AT_ONCE = 16
FIRST_WAIT = 0.2
LONGEST_WAIT = 10.0
THE_HUB = "hub"
"""Who subscribes: the hub stands for all its callbacks, whose leases it keeps itself."""


class PushAdapter:
    """The hub as one subscriber for each of its topics, and as the publisher of what it accepts."""

    name = "push"

    def __init__(
        self,
        hub: Hub,
        naming: Naming,
        control: Control,
        store: ControlStore,
        observer: Callable[[GatewayEvent], None] | None = None,
    ) -> None:
        self._hub = hub
        self._naming = naming
        self._control = control
        self._store = store
        self._observer = observer
        self._wake = asyncio.Event()
        self._changed: OrderedDict[str, bool] = OrderedDict()
        """Topics whose subscribers came or went, and whether there are any now; looked at in this order."""
        self._news = asyncio.Event()
        self._busy: set[str] = set()
        self._tasks: list[asyncio.Task[None]] = []
        self._written: dict[str, Future[None]] = {}
        """Positions that are on their way to the disk."""
        hub.add_listener(self)

    def item_of(self, what: str) -> ItemId:
        try:
            return self._naming.of_topic(Topic.parse(what))
        except TopicError as error:
            raise RefusedError(f"{what[:200]}: {error}") from None

    async def start(self) -> None:
        """Bring the control function up to date with the hub's subscriptions, then follow both."""
        await self._compare()
        self._tasks = [
            asyncio.create_task(self._export()),
            *(asyncio.create_task(self._follow()) for _ in range(CHANGES_AT_ONCE)),
        ]

    async def stop(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    # What the hub tells.

    def publication_accepted(self, publication: HubPublication) -> None:
        self._wake.set()

    def subscription_changed(self, topic: str, live: int) -> None:
        self._changed[topic] = bool(live)
        self._news.set()

    # What the control function brings.

    async def deliver(self, crossing: Crossing, subscriptions: Sequence[ItemSubscription]) -> None:
        if crossing.kind != self.name:
            raise RefusedError(f"a publication of {crossing.kind!r} is no document of a topic")
        secure = crossing.name.startswith("https:")
        content = Content(crossing.content_type, crossing.body)
        for subscription in subscriptions:
            # What was fetched without protection is never given to who asked for the protected spelling.
            if secure or not subscription.what.startswith("https:"):
                try:
                    await self._hub.bring(subscription.what, crossing.self_url or subscription.what, content)
                except RequestError as error:
                    raise RefusedError(str(error)) from error

    # Subscriptions.

    async def _compare(self) -> None:
        """Subscriptions may have come or gone between the hub's last word and a kill."""
        known = {subscription.what for subscription in self._store.of_adapter(self.name)}
        wanted: set[str] = set()
        after = ""
        while page := self._hub.subscriptions.topics(after, PAGE):
            after = page[-1].topic
            wanted.update(change.topic for change in page if change.live)
        for topic in wanted - known:
            await self._subscribe(topic)
        for topic in known - wanted:
            await self._control.unsubscribe(self, THE_HUB, topic)

    async def _follow(self) -> None:
        """Take up changes; several at once, since each may wait for the network, but one at a time for a topic."""
        while True:
            topic = next((topic for topic in self._changed if topic not in self._busy), None)
            if topic is None:
                self._news.clear()
                await self._news.wait()
                continue
            wanted = self._changed.pop(topic)
            self._busy.add(topic)
            try:
                if wanted:
                    await self._subscribe(topic)
                else:
                    await self._control.unsubscribe(self, THE_HUB, topic)
            except StorageError as error:
                self._tell(GatewayStoreFailed(str(error)))
                self._changed.setdefault(topic, wanted)
                await asyncio.sleep(LONGEST_WAIT)
            finally:
                self._busy.discard(topic)
                self._news.set()

    async def _subscribe(self, topic: str) -> None:
        with contextlib.suppress(RefusedError):  # a topic that has no ids cannot cross; the hub serves it as any hub
            await self._control.subscribe(self, THE_HUB, topic, limited=False)

    # Publications.

    async def _export(self) -> None:
        position = self._store.cursor(CURSOR)
        while True:
            self._wake.clear()
            try:
                page = self._hub.delivery.own_after(position, PAGE)
                if not page:
                    await self._wake.wait()
                    continue
                await self._export_page(page)
                position = page[-1].id
                # Not waited for: until it is written, positions say what was published. Writes keep their order.
                self._store.database.write(partial(ControlStore.move_cursor, CURSOR, position))
            except StorageError as error:
                self._tell(GatewayStoreFailed(str(error)))
                await asyncio.sleep(LONGEST_WAIT)

    async def _export_page(self, page: Sequence[HubPublication]) -> None:
        by_topic: dict[str, list[HubPublication]] = {}
        for publication in page:
            by_topic.setdefault(publication.topic, []).append(publication)
        gate = asyncio.Semaphore(TOPICS_AT_ONCE)
        # All of them to their end, or those that go on would meet the second try.
        ended = await asyncio.gather(
            *(self._export_topic(some, gate) for some in by_topic.values()), return_exceptions=True
        )
        self._written = {topic: written for topic, written in self._written.items() if not written.done()}
        for error in ended:
            if error is not None:
                raise error

    async def _export_topic(self, publications: list[HubPublication], gate: asyncio.Semaphore) -> None:
        async with gate:
            for publication in publications:
                if publication.id <= self._store.exported(publication.topic):
                    continue  # before a kill
                # The next one may be published only when it is certain that this one never is again.
                before = self._written.pop(publication.topic, None)
                if before is not None:
                    await asyncio.wrap_future(before)
                await self._export_one(publication)
                work = partial(ControlStore.exported_to, publication.topic, publication.id)
                self._written[publication.topic] = self._store.database.write(work)

    async def _export_one(self, publication: HubPublication) -> None:
        if self._hub.canary is not None and publication.topic == self._hub.canary.topic:
            return
        content = publication.content
        try:
            # One spelling, so that two gateways which heard of it by different ones publish the same version.
            name = Topic.parse(publication.topic).url
        except TopicError as error:
            self._tell(PublishFailed(publication.topic, str(error), True))
            return
        crossing = Crossing(self.name, name, content.content_type, content.body, publication.self_url)
        wait = FIRST_WAIT
        while True:
            try:
                await self._control.publish(self, crossing)
            except RefusedError as error:
                self._tell(PublishFailed(publication.topic, str(error), True))
                return
            except NetworkError as error:
                self._tell(PublishFailed(publication.topic, str(error), error.lasting))
                if error.lasting:
                    return
                await asyncio.sleep(wait)
                wait = min(2 * wait, LONGEST_WAIT)
                continue
            return

    def _tell(self, event: GatewayEvent) -> None:
        if self._observer is not None:
            self._observer(event)
