"""WebSub and PubSubHubbub behind the control function: the hub's subscribers and publications, both ways.

Out: the hub's log is read behind a cursor, so nothing that was acknowledged to a publisher is forgotten, whatever is
killed when. In: what arrives is given to the hub's own intake, which finds out what is new and fans it out.
"""

import asyncio
import contextlib
from collections.abc import Callable, Sequence
from functools import partial

from gateway.control import Control
from gateway.events import GatewayEvent, PublishFailed
from gateway.model import Crossing, NetworkError, RefusedError, Subscription
from gateway.store import ControlStore
from identifiers import ItemId, Naming, Topic, TopicError
from push_hub.hub import Hub
from push_hub.model import Content, Publication
from push_hub.protocol.requests import RequestError

CURSOR = "push"
PAGE = 200
TOPICS_AT_ONCE = 32
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
        self._changes: asyncio.Queue[tuple[str, int]] = asyncio.Queue()
        self._tasks: list[asyncio.Task[None]] = []
        hub.add_listener(self)

    def item_of(self, what: str) -> ItemId:
        try:
            return self._naming.of_topic(Topic.parse(what))
        except TopicError as error:
            raise RefusedError(f"{what[:200]}: {error}") from None

    async def start(self) -> None:
        """Bring the control function up to date with the hub's subscriptions, then follow both."""
        await self._compare()
        self._tasks = [asyncio.create_task(self._export()), asyncio.create_task(self._follow())]

    async def stop(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    # What the hub tells.

    def publication_accepted(self, publication: Publication) -> None:
        self._wake.set()

    def subscription_changed(self, topic: str, live: int) -> None:
        self._changes.put_nowait((topic, live))

    # What the control function brings.

    async def deliver(self, crossing: Crossing, subscriptions: Sequence[Subscription]) -> None:
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
        while True:
            topic, live = await self._changes.get()
            if live:
                await self._subscribe(topic)
            else:
                await self._control.unsubscribe(self, THE_HUB, topic)

    async def _subscribe(self, topic: str) -> None:
        with contextlib.suppress(RefusedError):  # a topic that has no ids cannot cross; the hub serves it as any hub
            await self._control.subscribe(self, THE_HUB, topic)

    # Publications.

    async def _export(self) -> None:
        position = self._store.cursor(CURSOR)
        while True:
            self._wake.clear()
            page = self._hub.delivery.own_after(position, PAGE)
            if not page:
                await self._wake.wait()
                continue
            by_topic: dict[str, list[Publication]] = {}
            for publication in page:
                by_topic.setdefault(publication.topic, []).append(publication)
            gate = asyncio.Semaphore(TOPICS_AT_ONCE)
            await asyncio.gather(*(self._export_topic(some, gate) for some in by_topic.values()))
            position = page[-1].id
            work = partial(ControlStore.move_cursor, CURSOR, position)
            await asyncio.wrap_future(self._store.database.write(work))

    async def _export_topic(self, publications: list[Publication], gate: asyncio.Semaphore) -> None:
        async with gate:
            for publication in publications:
                await self._export_one(publication)

    async def _export_one(self, publication: Publication) -> None:
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
