"""WebSub and PubSubHubbub behind the control function: the hub's subscribers and publications, both ways.

Out of the hub: its log is read behind a mark that is written in one commit with what was read, so nothing that was
acknowledged to a publisher is forgotten, whatever is killed when. Into the hub: what other adapters and the network
brought is given to its own intake, which finds out what is new and fans it out.
"""

import asyncio
import contextlib
from collections import OrderedDict
from collections.abc import Callable, Sequence

from exchange.model import SELF, Draft, Interest, LogEntry, Mark, Profile, SessionKey
from exchange.ports import Wanted
from gateway.control import Control
from gateway.events import GatewayEvent, GatewayStoreFailed, PublishFailed
from gateway.model import NetworkError, RefusedError
from identifiers import ItemId, Naming, Topic, TopicError
from identifiers.namespaces import STANDARD, Namespaces
from push_hub.hub import Hub
from push_hub.model import Content, HubPublication
from push_hub.protocol.requests import RequestError
from storage import StorageError
from storage.backoff import BackOff, Waits

PAGE = 200
TOPICS_AT_ONCE = 32
CHANGES_AT_ONCE = 16
LONGEST_WAIT = 10.0
UNTIL_THERE_IS_ROOM = BackOff(0.2, longest=LONGEST_WAIT)
THE_HUB = "hub"
"""Who subscribes: the hub stands for all its callbacks, whose leases it keeps itself."""


class WebsubAdapter:
    """The hub as one subscriber for each of its topics, and as the publisher of what it accepts."""

    name = "websub"
    hears_own = False
    """Its own subscribers were served before it published anything here."""
    keeps_rules = True

    def __init__(
        self,
        hub: Hub,
        naming: Naming,
        control: Control,
        observer: Callable[[GatewayEvent], None] | None = None,
        namespaces: Namespaces = STANDARD,
    ) -> None:
        self._hub = hub
        self._naming = naming
        self._namespaces = namespaces
        self._control = control
        self._feeds = control.converters.addresses
        self._observer = observer
        self._wake = asyncio.Event()
        self._changed: OrderedDict[str, bool] = OrderedDict()
        """Topics whose subscribers came or went, and whether there are any now; looked at in this order."""
        self._news = asyncio.Event()
        self._busy: set[str] = set()
        self._sure_from: int | None = None
        """No publication of the hub behind this one can be in the log already; None: any may be."""
        self._tasks: list[asyncio.Task[None]] = []
        hub.add_listener(self)

    def item_of(self, what: str) -> ItemId:
        """Of a topic; of what a feed is of, if this is the address of one."""
        name = self._feeds.name_in(what)
        try:
            if name is not None:
                return self._namespaces.read(name).item(self._naming)
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

    async def deliver(self, key: SessionKey, entry: LogEntry, interests: Sequence[Interest]) -> None:
        """Documents as they are; what is said in messages and events, as a feed of the last ones."""
        draft, converters = entry.draft, self._control.converters
        if not converters.is_for_everybody(draft):
            raise RefusedError("this message is not for everybody who knows the name")
        is_document = draft.profile is Profile.DOCUMENT
        secure = draft.name.startswith("https:")
        for interest in interests:
            name = interest.name
            # What was fetched without protection is never given to who asked for the protected spelling.
            if is_document and not secure and name.startswith("https:") and self._feeds.name_in(name) is None:
                continue
            found = draft if is_document else await converters.feed(entry.item, draft.name, name, upto=entry.position)
            self_url = (draft.attribute(SELF) if is_document else "") or name
            try:
                await self._hub.bring(name, self_url, Content(found.content_type, found.body))
            except RequestError as error:
                raise RefusedError(str(error)) from error

    # Subscriptions.

    async def _compare(self) -> None:
        """Subscriptions may have come or gone between the hub's last word and a kill."""
        known = {subscription.what for subscription in await self._control.held(self.name)}
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
            held = await self._control.subscribe(self, THE_HUB, topic, limited=False)
            key, exchange = SessionKey(self.name, THE_HUB), self._control.exchange
            if len(await exchange.router.interests_of(key, held.item)) > 1:
                # The hub has the item by another name, and what is current is new by this one.
                newest = await exchange.log.newest(Wanted(held.item))
                if newest is not None:
                    await exchange.rewind(key, held.item, newest.position - 1)

    # Publications.

    async def _export(self) -> None:
        log = self._control.exchange.log
        position = _number(await log.mark(self.name, ""))
        while True:
            self._wake.clear()
            try:
                page = self._hub.delivery.own_after(position, PAGE)
                if not page:
                    self._sure_from = position
                    await self._wake.wait()
                    continue
                await self._export_page(page)
                position = page[-1].id
                # Until it is written, positions of topics say what is in the log already.
                marked = asyncio.ensure_future(log.put_marks_soon([Mark(self.name, "", position)]))
                marked.add_done_callback(self._marked)
            except StorageError as error:
                self._sure_from = None  # some of the page are there, and it is read again
                self._tell(GatewayStoreFailed(str(error)))
                await asyncio.sleep(LONGEST_WAIT)

    def _marked(self, done: "asyncio.Future[None]") -> None:
        if not done.cancelled() and (error := done.exception()) is not None:
            self._tell(GatewayStoreFailed(str(error)))

    async def _export_page(self, page: Sequence[HubPublication]) -> None:
        by_topic: dict[str, list[HubPublication]] = {}
        for publication in page:
            by_topic.setdefault(publication.topic, []).append(publication)
        gate = asyncio.Semaphore(TOPICS_AT_ONCE)
        # All of them to their end, or those that go on would meet the second try.
        ended = await asyncio.gather(
            *(self._export_topic(some, gate) for some in by_topic.values()), return_exceptions=True
        )
        for error in ended:
            if error is not None:
                raise error

    async def _export_topic(self, publications: list[HubPublication], gate: asyncio.Semaphore) -> None:
        async with gate:
            reached = 0
            if self._sure_from is None or publications[0].id <= self._sure_from:
                reached = _number(await self._control.exchange.log.mark(self.name, publications[0].topic))
            for publication in publications:
                if publication.id > reached:
                    await self._export_one(publication)

    async def _export_one(self, publication: HubPublication) -> None:
        """Put it into the log, in one commit with how far its topic is: it never stands there twice."""
        if self._hub.canary is not None and publication.topic == self._hub.canary.topic:
            return
        if self._feeds.name_in(publication.topic) is not None:
            return  # whoever wants it elsewhere wants what it is made of
        content = publication.content
        try:
            # One spelling, so that two gateways which heard of it by different ones publish the same version.
            topic = Topic.parse(publication.topic)
            item = self._naming.of_topic(topic)
        except TopicError as error:
            self._tell(PublishFailed(publication.topic, str(error), True))
            return
        attributes = ((SELF, publication.self_url),) if publication.self_url else ()
        draft = Draft(item, topic.url, Profile.DOCUMENT, content.content_type, content.body, attributes)
        waits = Waits(UNTIL_THERE_IS_ROOM)
        while True:
            try:
                await self._control.publish(self, draft, marks=[Mark(self.name, publication.topic, publication.id)])
            except RefusedError as error:
                self._tell(PublishFailed(publication.topic, str(error), True))
                return
            except NetworkError as error:
                self._tell(PublishFailed(publication.topic, str(error), False))
                await asyncio.sleep(waits.next())
            else:
                return

    def _tell(self, event: GatewayEvent) -> None:
        if self._observer is not None:
            self._observer(event)


def _number(mark: int | bytes | None) -> int:
    return mark if isinstance(mark, int) else 0
