"""Where the topics of a managed zone come from: each one's own hub, found and subscribed to by WebSub.

What that hub pushes here, signed, is given to our own hub as a publication of the topic, and so crosses into the
network like everything that is published here. A topic whose hub is ours needs no more than a first look at it.
"""

import asyncio
import contextlib
import math
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import replace
from functools import partial

from aiohttp import web

from gateway.bootstrapping.background import Background, until_done
from gateway.bootstrapping.config import BootstrappingConfig
from gateway.bootstrapping.events import (
    BootstrappingEvent,
    SignallingFailed,
    UpstreamDelivered,
    UpstreamDropped,
)
from gateway.bootstrapping.manager_table import RequestVerdict
from gateway.bootstrapping.store import BootstrappingStore, ContentSource, Upstream
from push_hub.client import (
    ClientError,
    ClientSubscription,
    ClientSubscriptionStore,
    NoHubError,
    ReceivedDelivery,
    Subscriber,
    SubscriberConfig,
    SubscriptionState,
    callback_app,
    discover_topic,
)
from push_hub.hub import Hub
from push_hub.model import Content
from push_hub.ports import OverloadedError
from push_hub.protocol.requests import RequestError
from push_hub.protocol.urls import UrlError, normalised
from storage import StorageError

CALLBACK_PATH = "/upstream/"
MAX_HUBS = 4
"""Hubs of one topic that are asked, one after the other."""
RETRY_AFTER = "5"
LOOK_AGAIN = 1.0
"""After a confirmation: by then the hub has taken it in, and pushes what follows."""
LOOK_INSTEAD = 3.0
"""Seconds after a confirmation, or a start, in which a push may be older than what a look found."""
PAUSE = 1.0
"""Nothing pushed for so long: then no look is under way either, and the next push is the newest there is."""


class Upstreams:
    def __init__(
        self,
        hub: Hub,
        store: BootstrappingStore,
        config: BootstrappingConfig,
        clock: Callable[[], float],
        wanted: Callable[[str], bool],
        decided: Callable[[str, RequestVerdict], None],
        withdraw: Callable[[str], Awaitable[None]],
        observer: Callable[[BootstrappingEvent], None] | None = None,
    ) -> None:
        """`wanted`: whether somebody elsewhere wants a topic. `withdraw`: publish a topic no longer."""
        self._hub = hub
        self._store = store
        self._config = config
        self._clock = clock
        self._wanted = wanted
        self._decided = decided
        self._withdraw = withdraw
        self._observer = observer
        self._wishes = ClientSubscriptionStore(store.database)
        self._subscriber: Subscriber | None = None
        self._news: dict[tuple[str, str], asyncio.Event] = {}
        self._locks: dict[str, asyncio.Lock] = {}
        self._look_until: dict[str, float] = {}
        """Until when topics are looked at rather than taken as they are pushed, by the loop's time."""
        self._settled_at = math.inf
        """The same for all topics: looks from before a restart may still be under way."""
        self._gate = asyncio.Semaphore(config.upstream_at_once)
        self._background = Background(lambda why: self._tell(SignallingFailed("", why)))
        app = callback_app(
            self._wishes, self._receive, clock, self._changed, self._badly_signed, self._look_when_confirmed
        )
        hub.mount(CALLBACK_PATH, app)
        self.badly_signed = 0
        """Deliveries without the signature of the subscription that they claim to be for."""
        self.refused = 0
        """Deliveries that are no publication: too long, or not what the topic may be."""

    async def start(self) -> None:
        self._subscriber = Subscriber(
            self._wishes,
            self._hub.outbound,
            SubscriberConfig(
                self._hub.url.rstrip("/") + CALLBACK_PATH,
                lease=self._config.upstream_lease,
                tick=self._config.tick,
                secret_over_http=self._config.secret_over_http,
            ),
            self._clock,
        )
        await self._subscriber.start()
        self._settled_at = asyncio.get_running_loop().time() + LOOK_INSTEAD
        if self._config.poll:
            self._background.run(self._poll())

    async def stop(self) -> None:
        await self._background.stop()
        if self._subscriber is not None:
            await self._subscriber.stop()

    def verdicts(self) -> dict[str, RequestVerdict]:
        """What was decided before, for those that need no second look after a restart."""
        return {one.topic: RequestVerdict(one.accepted, one.reason) for one in self._store.upstreams() if one.accepted}

    def followed(self) -> set[str]:
        """Topics that something was done about before a restart, whatever became of it."""
        return {one.topic for one in self._store.upstreams()} | set(self._wishes.pages())

    def consider(self, topic: str) -> None:
        """Find out where the topic comes from, and see to it that it comes. The verdict goes to `decided`."""
        self._background.run(self._consider(topic))

    def end(self, topic: str) -> None:
        self._background.run(self._end(topic))

    # Deciding.

    async def _consider(self, topic: str) -> None:
        async with self._gate, self._turn(topic):
            if not self._wanted(topic):
                return
            try:
                upstream = await self._find(topic)
                await self._keep(upstream)
                late = self._denied_since(upstream)
                if late is not None:
                    upstream = _denied(topic, late)
                    await self._keep(upstream)
            except StorageError as error:
                upstream = _denied(topic, f"it could not be written down: {error}")
        self._decided(topic, RequestVerdict(upstream.accepted, upstream.reason))

    def _denied_since(self, upstream: Upstream) -> str | None:
        """A hub's denial that came while what it took was being written down."""
        if upstream.kind is not ContentSource.HUB:
            return None
        wishes = self._wishes.of_topic(upstream.upstream)
        if any(wish.state in (SubscriptionState.ASKED, SubscriptionState.ACTIVE) for wish in wishes):
            return None
        return next((f"{wish.hub} {wish.reason}" for wish in wishes if wish.state is SubscriptionState.DENIED), None)

    async def _find(self, topic: str) -> Upstream:
        try:
            found = await discover_topic(self._hub.outbound, topic)
        except NoHubError as error:
            if not self._config.poll:
                return _denied(topic, str(error))
            await self._first_look(topic)
            return Upstream(
                topic, ContentSource.POLLED, topic, True, "it names no hub and is looked at from time to time"
            )
        except ClientError as error:
            return _denied(topic, str(error))
        if self.is_ours(found.hubs):
            await self._first_look(topic)
            return Upstream(topic, ContentSource.OWN, topic, True, "its hub is ours")
        failures: list[str] = []
        for hub in found.hubs[:MAX_HUBS]:
            failure = await self._subscribe(hub, found.topic, topic)
            if failure is None:
                await self._first_look(topic)
                return Upstream(topic, ContentSource.HUB, found.topic, True, f"subscribed at {hub}")
            failures.append(failure)
        return _denied(topic, "; ".join(failures))

    def is_ours(self, hubs: tuple[str, ...]) -> bool:
        """Whether one of these addresses is our own hub's."""
        try:
            own = normalised(self._hub.url).rstrip("/")
        except UrlError:
            own = self._hub.url.rstrip("/")
        return any(hub.rstrip("/") == own for hub in hubs)

    async def _subscribe(self, hub: str, upstream: str, topic: str) -> str | None:
        """None when the hub took it, otherwise why not. A hub that is slow to confirm counts as one that took it."""
        if self._subscriber is None:
            return "the gateway is stopping"
        news = self._news[upstream, hub] = asyncio.Event()
        try:
            wish = await self._subscriber.subscribe_at(hub, upstream, topic)
            if wish.state is SubscriptionState.ASKED:
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(self._config.upstream_confirm):
                        await news.wait()
            now = self._wishes.by_topic(upstream, hub)
            return f"{hub} {now.reason}" if now is not None and now.state is SubscriptionState.DENIED else None
        except ClientError as error:
            failed = self._wishes.by_topic(upstream, hub)
            if failed is not None and failed.lease_until <= self._clock():
                gone = replace(failed, state=SubscriptionState.GONE, reason=str(error)[:200])
                await asyncio.wrap_future(self._wishes.save(gone))
            return str(error)
        finally:
            if self._news.get((upstream, hub)) is news:
                del self._news[upstream, hub]

    async def _first_look(self, topic: str) -> None:
        """So that there is a current version for whoever subscribes now."""
        # The hub counts and tells by itself what it refuses.
        await until_done(lambda: self._hub.ping([topic]), lambda _: None, errors=(OverloadedError, StorageError))

    async def _end(self, topic: str) -> None:
        async with self._turn(topic):
            if self._wanted(topic):
                return
            for wish in self._wishes.by_page(topic):
                heirs = [fed for fed in self._store.fed_by(wish.topic) if fed.topic != topic]
                if self._subscriber is None:
                    return
                # What the hub does not hear now it is told again, until its lease ends.
                with contextlib.suppress(ClientError):
                    if heirs:
                        await self._subscriber.subscribe_at(wish.hub, wish.topic, heirs[0].topic)
                    else:
                        await self._subscriber.unsubscribe(wish)
            self._look_until.pop(topic, None)
            # Last: whoever is killed before this finds the topic again at the next start, and ends it then.
            work = partial(BootstrappingStore.drop_upstream, topic)
            await asyncio.wrap_future(self._store.database.write(work))

    async def _keep(self, upstream: Upstream) -> None:
        work = partial(BootstrappingStore.put_upstream, upstream)
        await asyncio.wrap_future(self._store.database.write(work))

    @contextlib.asynccontextmanager
    async def _turn(self, topic: str) -> AsyncIterator[None]:
        lock = self._locks.setdefault(topic, asyncio.Lock())
        async with lock:
            yield
        if not lock.locked():
            self._locks.pop(topic, None)

    # What upstream hubs say.

    def _changed(self, wish: ClientSubscription) -> None:
        news = self._news.get((wish.topic, wish.hub))
        if news is not None:
            news.set()
        elif wish.state is SubscriptionState.DENIED:
            for fed in self._store.fed_by(wish.topic):
                self._background.run(self._revoke(fed, f"{wish.hub} {wish.reason}"))

    async def _look_when_confirmed(self, wish: ClientSubscription) -> None:
        """What the hub could not push while no lease ran, or owes to the callback of the lease before, never comes: the
        topic itself is looked at. First on disk and then confirmed, or a kill in between would leave it undone."""
        topics = sorted(self._fed_by(wish.topic, wish.page))
        if not topics:
            return
        self._look_until.update(dict.fromkeys(topics, asyncio.get_running_loop().time() + LOOK_INSTEAD))
        try:
            await self._hub.ping(topics)
        except (OverloadedError, StorageError) as error:
            raise _not_now(error) from None
        self._background.run(self._look_again(topics))

    async def _look_again(self, topics: list[str]) -> None:
        await asyncio.sleep(LOOK_AGAIN)
        for topic in topics:
            await self._first_look(topic)

    def _looks_instead(self, topic: str) -> bool:
        """Whether a push may be older than what a look found or is about to find. Each such push means another look."""
        now = asyncio.get_running_loop().time()
        until = max(self._look_until.get(topic, 0.0), self._settled_at)
        if now >= until:
            self._look_until.pop(topic, None)
            return False
        self._look_until[topic] = max(self._look_until.get(topic, 0.0), now + PAUSE)
        return True

    async def _revoke(self, fed: Upstream, reason: str) -> None:
        async with self._turn(fed.topic):
            await self._keep(_denied(fed.topic, reason))
            # Or it would look to everybody as if the topic still came from here.
            await self._withdraw(fed.topic)
        self._decided(fed.topic, RequestVerdict(False, reason))

    async def _receive(self, delivery: ReceivedDelivery) -> None:
        for topic in sorted(self._fed_by(delivery.topic, delivery.page)):
            try:
                if self._looks_instead(topic):
                    # It may have been on its way while a look found something newer: the topic itself knows.
                    await self._hub.ping([topic])
                else:
                    await self._hub.offer(topic, topic, Content(delivery.content_type, delivery.body))
            except RequestError as error:  # it would be no better the next time
                self.refused += 1
                self._tell(UpstreamDropped(topic, "", str(error)))
            except (OverloadedError, StorageError) as error:
                raise _not_now(error) from None
            else:
                self._tell(UpstreamDelivered(topic, len(delivery.body)))

    def _fed_by(self, upstream: str, page: str) -> set[str]:
        """Our topics that a hub's topic is for; also one that is still being decided."""
        topics = {fed.topic for fed in self._store.fed_by(upstream)}
        if page and self._wanted(page):
            topics.add(page)
        return topics

    def _badly_signed(self, wish: ClientSubscription) -> None:
        self.badly_signed += 1
        self._tell(UpstreamDropped(wish.topic, wish.hub, "it is not signed with the secret of the subscription"))

    async def _poll(self) -> None:
        while True:
            await asyncio.sleep(self._config.poll_every)
            topics = self._store.polled()
            if topics:
                with contextlib.suppress(OverloadedError, StorageError):  # they are looked at the next time
                    await self._hub.ping(topics)

    def _tell(self, event: BootstrappingEvent) -> None:
        if self._observer is not None:
            self._observer(event)


def _denied(topic: str, reason: str) -> Upstream:
    return Upstream(topic, ContentSource.NONE, topic, False, reason)


def _not_now(error: Exception) -> web.HTTPServiceUnavailable:
    return web.HTTPServiceUnavailable(text=f"not now: {error}\n", headers={"Retry-After": RETRY_AFTER})
