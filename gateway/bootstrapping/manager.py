"""The manager of zones: says that it is, hears what other gateways want of them, and answers."""

import asyncio
import contextlib
from collections import OrderedDict
from collections.abc import Callable
from functools import partial

from gateway.bootstrapping.background import Background, until_done
from gateway.bootstrapping.config import BootstrappingConfig
from gateway.bootstrapping.events import (
    BootstrappingEvent,
    RequestsHeard,
    SignallingFailed,
    TopicDecided,
    TopicReleased,
    ZoneAnnounced,
)
from gateway.bootstrapping.manager_table import ManagerLimits, ManagerOutcome, ManagerTable, Requester, RequestVerdict
from gateway.bootstrapping.messages import (
    SignallingMessageError,
    TopicRequests,
    ZoneAnnouncement,
    announcement_item,
    answers_item,
    decode,
    encode,
    requests_item,
    scope_of,
)
from gateway.bootstrapping.outbox import KeyedOutbox
from gateway.bootstrapping.store import BootstrappingStore
from gateway.bootstrapping.upstream import Upstreams
from identifiers import Identifier, ItemId, Naming, Zone
from psirp_stack.node.api import Client, NotAttachedError, PsirpError
from psirp_stack.node.attachment import ReceivedVersion, ScopeChanged
from psirp_stack.node.listeners import ItemListener
from storage import StorageError

MAX_OTHERS = 10_000
"""Items below a signalling scope that are known to be no requester's."""


class Manager:
    def __init__(
        self,
        name: str,
        zones: dict[str, Zone],
        naming: Naming,
        client: Client,
        store: BootstrappingStore,
        upstreams: Upstreams,
        config: BootstrappingConfig,
        clock: Callable[[], float],
        observer: Callable[[BootstrappingEvent], None] | None = None,
    ) -> None:
        self._name = name
        self._zones = zones
        self._naming = naming
        self._client = client
        self._store = store
        self._upstreams = upstreams
        self._config = config
        self._clock = clock
        self._observer = observer
        limits = ManagerLimits(
            config.max_lease,
            config.max_requesters,
            config.max_topics_per_requester,
            config.max_topics,
            frozenset(config.requester_keys),
        )
        self.request_table = ManagerTable(name, naming, zones, limits)
        self._scopes = {scope_of(naming, zone) for zone in zones.values()}
        self._announcements = {announcement_item(naming, zone) for zone in zones.values()}
        self._channels: dict[ItemId, ItemListener | None] = {}
        self._requesters: dict[ItemId, Requester] = {}
        self._gone: set[ItemId] = set()
        self._answered: set[ItemId] = set()
        self._others: OrderedDict[ItemId, None] = OrderedDict()
        self._outbox: KeyedOutbox[Requester] = KeyedOutbox(self._answer, lambda key, why: self._failed(key[0], why))
        self._background = Background(lambda why: self._failed("", why))

    async def start(self) -> None:
        if not self._zones:
            return
        # Before anything is heard: our own answers must not look like somebody's requests.
        held = self._store.held()
        for one in held:
            if one.zone in self._zones:
                self._answered.add(answers_item(self._naming, self._zones[one.zone], one.requester))
        followed = self._upstreams.followed()
        await self._apply(
            self.request_table.restore(held, self._store.known(), self._upstreams.verdicts(), followed, self._clock())
        )
        self._background.run(self._outbox.run())
        self._background.run(self._end_leases())
        for zone in self._zones.values():
            self._background.run(self._announce(zone))
        for scope in self._scopes:
            self._background.run(self._listen(scope))

    async def stop(self) -> None:
        await self._background.stop()

    def decided(self, topic: str, verdict: RequestVerdict) -> None:
        self._tell(TopicDecided(topic, verdict.accepted, verdict.reason))
        for key in self.request_table.decide(topic, verdict):
            self._outbox.put(key)

    # Being known.

    async def _announce(self, zone: Zone) -> None:
        item = announcement_item(self._naming, zone)
        content = encode(ZoneAnnouncement(zone.domain, self._name, self._naming.announcement))
        await until_done(lambda: self._client.publish(item.sid, item.rid, content), partial(self._failed, zone.domain))
        self._tell(ZoneAnnounced(zone.domain))

    async def _listen(self, scope: Identifier) -> None:
        await until_done(lambda: self._client.subscribe_scope(scope, self._below), partial(self._failed, str(scope)))

    # Hearing.

    def _below(self, change: ScopeChanged) -> None:
        """Something is published below a zone's scope, or no longer."""
        item = ItemId(Identifier(change.parent), Identifier(change.child))
        if change.is_scope or item in self._announcements or item in self._answered:
            return
        if not change.published:
            self._others.pop(item, None)
            self._gone.add(item)
            self._let_go(item)
            return
        self._gone.discard(item)
        if item in self._channels or item in self._others:
            return
        if len(self._channels) >= 2 * self._config.max_requesters:
            self._failed(str(change.parent), "more is published below the scope than there may be requesters")
            return
        self._channels[item] = None
        self._background.run(self._follow(item))

    async def _follow(self, item: ItemId) -> None:
        subscription = await until_done(
            lambda: self._client.subscribe(item.sid, item.rid, partial(self._heard, item)),
            partial(self._failed, str(item.sid)),
            lambda: item in self._channels,
        )
        if subscription is None:
            return
        if self._channels.get(item, subscription) is None:
            self._channels[item] = subscription
        else:  # it was let go meanwhile, perhaps to be followed anew
            await self._unfollow(subscription)

    async def _heard(self, item: ItemId, publication: ReceivedVersion) -> None:
        try:
            message = decode(publication.content)
        except SignallingMessageError as error:
            self._strange(item, f"something that is no message: {error}")
            return
        zone = self._zones.get(message.zone)
        if (
            not isinstance(message, TopicRequests)
            or zone is None
            or requests_item(self._naming, zone, message.requester) != item
        ):
            # Another manager's answers, a zone of the same label, somebody who says to be somebody else.
            self._strange(item, None)
            return
        self._requesters[item] = (message.zone, message.requester)
        self._answered.add(answers_item(self._naming, zone, message.requester))
        signer = "" if publication.signer is None else publication.signer.hex()
        outcome = self.request_table.hear(message, self._clock(), signer)
        if outcome.refused is not None:
            self._failed(message.zone, outcome.refused)
            return
        self._tell(RequestsHeard(message.zone, message.requester, len(message.requests)))
        await self._apply(outcome)

    def _strange(self, item: ItemId, complaint: str | None) -> None:
        """What is no requester's list. An item that was a requester's stays one, whoever writes rubbish to it."""
        if complaint is not None or item in self._requesters:
            self._failed(str(item.sid), complaint or "something that is no list, where a requester's lists are")
        if item in self._requesters:
            return
        self._others[item] = None
        if len(self._others) > MAX_OTHERS:
            self._others.popitem(last=False)
        self._background.run(self._unfollow(self._channels.pop(item, None)))

    async def _unfollow(self, subscription: ItemListener | None) -> None:
        if subscription is not None:
            with contextlib.suppress(PsirpError, NotAttachedError):
                await self._client.unsubscribe(subscription)

    def _let_go(self, item: ItemId) -> None:
        """Forget a requester whose channel is gone, once nothing is held for it."""
        key = self._requesters.get(item)
        if key is not None and not self.request_table.gone(*key):
            return
        # All at once: when it comes back the next moment, it is somebody new.
        self._gone.discard(item)
        self._requesters.pop(item, None)
        subscription = self._channels.pop(item, None)
        self._background.run(self._unfollow(subscription) if key is None else self._forget(item, key, subscription))

    async def _forget(self, item: ItemId, key: Requester, subscription: ItemListener | None) -> None:
        await self._unfollow(subscription)
        answers = answers_item(self._naming, self._zones[key[0]], key[1])
        self._outbox.forget(key)
        with contextlib.suppress(PsirpError, NotAttachedError):
            await self._client.unpublish(answers.sid, answers.rid)
        if item in self._requesters:  # it came back meanwhile
            self._outbox.put(key)
        else:
            self._answered.discard(answers)

    # Acting and answering.

    async def _apply(self, outcome: ManagerOutcome) -> None:
        if outcome.put or outcome.dropped or outcome.known is not None:
            work = partial(BootstrappingStore.change, outcome)
            try:
                await asyncio.wrap_future(self._store.database.write(work))
            except StorageError as error:  # acted on all the same; the next renewal writes it
                self._failed("", str(error))
        for topic in outcome.consider:
            self._upstreams.consider(topic)
        for topic in outcome.ended:
            self._tell(TopicReleased(topic))
            self._upstreams.end(topic)
        for key in outcome.answer:
            self._outbox.put(key)

    async def _answer(self, key: Requester) -> None:
        item = answers_item(self._naming, self._zones[key[0]], key[1])
        self._answered.add(item)
        await self._client.publish(item.sid, item.rid, encode(self.request_table.answers(key)))

    async def _end_leases(self) -> None:
        while True:
            await asyncio.sleep(self._config.tick)
            outcome = self.request_table.expire(self._clock())
            if outcome.dropped:
                for zone, requester in outcome.answer:
                    item = requests_item(self._naming, self._zones[zone], requester)
                    if item not in self._channels:  # it was never seen again after a restart
                        self._requesters[item] = (zone, requester)
                        self._gone.add(item)
                await self._apply(outcome)
                for item in list(self._gone):
                    self._let_go(item)

    def _failed(self, zone: str, reason: str) -> None:
        self._tell(SignallingFailed(zone, reason))

    def _tell(self, event: BootstrappingEvent) -> None:
        if self._observer is not None:
            self._observer(event)
