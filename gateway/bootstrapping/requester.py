"""The side whose subscribers want topics of other zones: asks the zones' managers, and judges by what they say.

It is a policy of the hub: a subscription to a topic that nobody would ever bring is denied at once, in words, before
the subscriber is asked to confirm it.
"""

import asyncio
import contextlib
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

from gateway.bootstrapping.background import Background, until_done
from gateway.bootstrapping.config import BootstrappingConfig, Unmanaged
from gateway.bootstrapping.events import BootstrappingEvent, SignallingFailed, SubscriptionRefused, ZoneAsked
from gateway.bootstrapping.messages import (
    RequestAnswer,
    RequestAnswers,
    SignallingMessageError,
    ZoneAnnouncement,
    announcement_item,
    answers_item,
    decode,
    encode,
    requests_item,
)
from gateway.bootstrapping.outbox import KeyedOutbox
from gateway.bootstrapping.requester_table import RequesterTable, TooManyWantedError
from gateway.bootstrapping.standing import ZoneStanding, under_another_naming
from gateway.bootstrapping.store import BootstrappingStore
from gateway.protocols.psirp.exports import ExportStore
from identifiers import ItemId, Naming, NoZoneError, Topic, TopicError, Zone, zone_of
from psirp_stack.node.api import Client, NotAttachedError, PsirpError
from psirp_stack.node.attachment import ReceivedVersion
from psirp_stack.node.listeners import ItemListener
from push_hub.client import ClientError, discover_topic
from push_hub.hub import Hub
from push_hub.model import HubPublication as HubPublication
from storage import StorageError

PAGE = 500
A_WITHDRAWAL = 20.0
"""Seconds; a node goes on for less with what it withdraws."""


@dataclass(slots=True)
class _Talk:
    """What goes on between this gateway and whoever manages a zone."""

    zone: Zone
    announced: ZoneAnnouncement | None = None
    news: asyncio.Event = field(default_factory=asyncio.Event)
    subscriptions: list[ItemListener] = field(default_factory=list)

    def tell(self) -> None:
        self.news.set()
        self.news = asyncio.Event()


class Requester:
    """`refusal` is the hub's policy, the other public methods are what the hub tells its listeners."""

    def __init__(
        self,
        own: dict[str, Zone],
        naming: Naming,
        hub: Hub,
        client: Client,
        control: ExportStore,
        store: BootstrappingStore,
        is_ours: Callable[[tuple[str, ...]], bool],
        config: BootstrappingConfig,
        clock: Callable[[], float],
        observer: Callable[[BootstrappingEvent], None] | None = None,
    ) -> None:
        self._own = own
        self._naming = naming
        self._hub = hub
        self._client = client
        self._control = control
        self._store = store
        self._is_ours = is_ours
        self._config = config
        self._clock = clock
        self._observer = observer
        requester, last_number = store.identity()
        self.request_table = RequesterTable(
            requester, naming, config.lease, config.max_topics_per_requester, last_number, config.max_zones
        )
        self._talks: dict[str, _Talk] = {}
        self._spellings: dict[str, set[str]] = {}
        """The hub's topics behind each topic's one name, for those with live subscriptions."""
        self._asking: Counter[str] = Counter()
        """Topics about which somebody waits for an answer right now."""
        self._outbox: KeyedOutbox[str] = KeyedOutbox(self._publish, self._failed)
        self._background = Background(lambda why: self._failed("", why))
        self.refused = 0
        """Subscriptions that were denied."""
        self.disbelieved = 0
        """Announcements and answers that are not signed by a manager that is believed."""

    async def start(self) -> None:
        """Take up what the hub's subscribers want; a zone that was asked before and is not wanted now is told so."""
        for domain in self._store.zones_asked():
            with contextlib.suppress(NoZoneError, TooManyWantedError):
                self._talk(zone_of(domain))
        after = ""
        while page := self._hub.subscriptions.topics(after, PAGE):
            after = page[-1].topic
            for change in page:
                self.subscription_changed(change.topic, change.live)
        self._background.run(self._outbox.run())
        self._background.run(self._look_after())

    async def stop(self) -> None:
        await self._background.stop()

    # What the hub tells.

    def publication_accepted(self, publication: HubPublication) -> None:
        pass

    def subscription_changed(self, topic: str, live: int) -> None:
        named = self._named(topic)
        if named is None:
            return
        parsed, zone, item = named
        spellings = self._spellings.setdefault(parsed.url, set())
        if live:
            spellings.add(topic)
            if not self._control.is_export(item):
                self._want(zone, parsed.url)
            return
        spellings.discard(topic)
        if not spellings:
            del self._spellings[parsed.url]
            self._drop(zone, parsed.url)

    # The policy.

    async def refusal(self, topic: str, callback: str) -> str | None:
        """Why nobody would bring this topic; None when somebody does, or nobody can know."""
        named = self._named(topic)
        if named is None:
            return None
        parsed, zone, item = named
        if self._control.is_export(item):
            return None
        reason: str | None
        self._asking[parsed.url] += 1
        try:
            async with asyncio.timeout(self._config.answer_timeout):
                reason = await self._judge(parsed, zone, item)
        except TimeoutError:
            reason = f"whoever manages the zone {zone.domain} did not answer in {self._config.answer_timeout:g} seconds"
        except (PsirpError, NotAttachedError) as error:
            reason = f"the network between the domains cannot be asked now: {error}"
        except TooManyWantedError as error:
            reason = f"this gateway asks for as much as it may: {error}"
        finally:
            self._asking[parsed.url] -= 1
            waiting = self._asking[parsed.url] > 0
            if not waiting:
                del self._asking[parsed.url]
        if reason is not None:
            self.refused += 1
            self._tell(SubscriptionRefused(parsed.url, reason))
            if parsed.url not in self._spellings and not waiting:
                self._drop(zone, parsed.url)
        return reason

    async def _judge(self, topic: Topic, zone: Zone, item: ItemId) -> str | None:
        if (await self._client.explain(item.sid, item.rid)).publishers:
            return None
        channel = announcement_item(self._naming, zone)
        if (await self._client.explain(channel.sid, channel.rid)).publishers:
            # Only now: who asks for topics of zones that nobody manages makes no work for the network.
            self._ask(zone, topic.url)
            return await self._verdict(zone, topic.url)
        elsewhere = await under_another_naming(self._client, self._naming, zone, topic)
        if elsewhere is None and self._config.unmanaged is Unmanaged.ACCEPT:
            return None
        with contextlib.suppress(ClientError):
            if self._is_ours((await discover_topic(self._hub.outbound, topic.url)).hubs):
                return None  # its publisher will ping us, whoever manages the zone
        return elsewhere or ZoneStanding(zone.domain, False, "", None).text

    async def _verdict(self, zone: Zone, url: str) -> str | None:
        while True:
            # The talk may end and begin anew meanwhile, but not while this topic is wanted.
            talk = self._talk(zone)
            announced = talk.announced
            mismatch = None if announced is None else self._naming.mismatch(announced.naming)
            if mismatch is not None and announced is not None:
                return f"{announced.manager} manages {zone.domain}, but {mismatch}"
            answer = self.request_table.answer(zone.domain, url)
            if answer is not None:
                return None if answer.accepted else f"the manager of {zone.domain} says: {answer.reason}"
            await talk.news.wait()

    # Wanting.

    def _named(self, topic: str) -> tuple[Topic, Zone, ItemId] | None:
        """None for what has no ids or no zone, and for zones of our own: nobody is asked about those."""
        try:
            parsed = Topic.parse(topic)
            zone = zone_of(parsed.host)
            item = self._naming.of_topic(parsed)
        except TopicError:
            return None
        return None if zone.domain in self._own else (parsed, zone, item)

    def _want(self, zone: Zone, url: str) -> None:
        try:
            self._ask(zone, url)
        except TooManyWantedError as error:
            self._failed(zone.domain, str(error))

    def _ask(self, zone: Zone, url: str) -> None:
        """Raises `TooManyWantedError`."""
        self._talk(zone)
        if self.request_table.want(zone.domain, url, self._clock()):
            self._outbox.put(zone.domain)

    def _drop(self, zone: Zone, url: str) -> None:
        if self.request_table.drop(zone.domain, url, self._clock()):
            self._outbox.put(zone.domain)

    def _talk(self, zone: Zone) -> _Talk:
        talk = self._talks.get(zone.domain)
        if talk is None:
            self.request_table.enter(zone.domain, self._clock())
            talk = self._talks[zone.domain] = _Talk(zone)
            self._outbox.put(zone.domain)
            self._background.run(self._listen(talk, answers_item(self._naming, zone, self.request_table.requester)))
            self._background.run(self._listen(talk, announcement_item(self._naming, zone)))
        return talk

    async def _publish(self, domain: str) -> None:
        talk = self._talks.get(domain)
        if talk is None:
            return
        message = self.request_table.message(domain)
        # On disk before it is sent: a number must never be used again for something else.
        work = partial(BootstrappingStore.asked, domain, self.request_table.last_number)
        await asyncio.wrap_future(self._store.database.write(work))
        item = requests_item(self._naming, talk.zone, self.request_table.requester)
        await self._client.publish(item.sid, item.rid, encode(message))
        self._tell(ZoneAsked(domain, len(message.requests)))

    # Hearing.

    async def _listen(self, talk: _Talk, item: ItemId) -> None:
        subscription = await until_done(
            lambda: self._client.subscribe(item.sid, item.rid, partial(self._heard, talk, item)),
            partial(self._failed, talk.zone.domain),
            lambda: self._talks.get(talk.zone.domain) is talk,
        )
        if subscription is not None:
            talk.subscriptions.append(subscription)

    async def _heard(self, talk: _Talk, item: ItemId, publication: ReceivedVersion) -> None:
        domain = talk.zone.domain
        believed = self._config.manager_keys
        if believed and (publication.signer is None or publication.signer.hex() not in believed):
            self.disbelieved += 1
            self._failed(domain, "a message that is not signed by a manager that is believed here")
            return
        try:
            message = decode(publication.content)
        except SignallingMessageError as error:
            self._failed(domain, f"something that is no message: {error}")
            return
        if message.zone != domain:
            self._failed(domain, f"a message about {message.zone[:100]!r}")
        elif isinstance(message, ZoneAnnouncement) and item == announcement_item(self._naming, talk.zone):
            talk.announced = message
        elif isinstance(message, RequestAnswers) and item != announcement_item(self._naming, talk.zone):
            for answer in self.request_table.hear(message):
                if not answer.accepted and answer.topic in self._spellings:
                    self._background.run(self._revoke(answer))
        talk.tell()

    async def _revoke(self, answer: RequestAnswer) -> None:
        """The manager no longer brings a topic that subscribers here have: they are told, unless somebody else does."""
        item = self._naming.of_topic(Topic.parse(answer.topic))
        reason = f"the manager of its zone says: {answer.reason}"
        try:
            if await self._has_publisher(item, answer):
                return
            for topic in list(self._spellings.get(answer.topic, ())):
                after = 0
                while page := self._hub.subscriptions.page(topic, after, PAGE, self._clock()):
                    after = page[-1].id
                    for subscription in page:
                        await self._hub.deny(topic, subscription.callback, reason)
        except (PsirpError, NotAttachedError, StorageError) as error:
            self._failed(answer.topic, str(error))

    async def _has_publisher(self, item: ItemId, answer: RequestAnswer) -> bool:
        """The manager's node is named as one until those who want an item have what was published last."""
        until = self._clock() + A_WITHDRAWAL
        while (await self._client.explain(item.sid, item.rid)).publishers:
            known = self.request_table.answer(zone_of(Topic.parse(answer.topic).host).domain, answer.topic)
            if self._clock() >= until or (known is not None and known.accepted):
                return True
            await asyncio.sleep(self._config.tick)
        return False

    # In the background.

    async def _look_after(self) -> None:
        while True:
            await asyncio.sleep(self._config.tick)
            now = self._clock()
            for domain in self.request_table.due(now):
                self._outbox.put(domain)
            for domain in self.request_table.zones:
                for url, since in self.request_table.wanted(domain).items():
                    kept = url in self._spellings or url in self._asking
                    if not kept and now - since > self._config.unconfirmed:
                        self._drop(self._talks[domain].zone, url)
            for domain in self.request_table.left(now):
                await self._end(domain)

    async def _end(self, domain: str) -> None:
        """Nothing is wanted of a zone, and its manager knows."""
        talk = self._talks.pop(domain)
        self.request_table.leave(domain)
        self._outbox.forget(domain)
        item = requests_item(self._naming, talk.zone, self.request_table.requester)
        for subscription in talk.subscriptions:
            with contextlib.suppress(PsirpError, NotAttachedError):
                await self._client.unsubscribe(subscription)
        with contextlib.suppress(PsirpError, NotAttachedError):
            await self._client.unpublish(item.sid, item.rid)
        with contextlib.suppress(StorageError):  # at the next start it is told once more that nothing is wanted
            await asyncio.wrap_future(self._store.database.write(partial(BootstrappingStore.left, domain)))
        if domain in self._talks:  # something is wanted again: what was just taken back is said again
            self._outbox.put(domain)

    def _failed(self, zone: str, reason: str) -> None:
        self._tell(SignallingFailed(zone, reason))

    def _tell(self, event: BootstrappingEvent) -> None:
        if self._observer is not None:
            self._observer(event)
