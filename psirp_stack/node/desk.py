"""The applications of one node: what each has asked for, what it gets, and what is cleaned up when it goes.

The network knows the node only. Here its subscriptions and publications are shared among applications: the first one
that wants an item makes the node want it, the last one that leaves makes the node leave, a version that arrives is
handed to all who want it, and its room is given back when the slowest of them has handled it.

Sans-I/O: requests come in through `request`, everything an application is told goes out through its `tell`.
"""

from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, field
from functools import partial
from typing import TypeVar

from identifiers import Identifier, ItemId
from psirp_stack.control.codes import Code
from psirp_stack.control.messages import (
    Explain,
    Explanation,
    PublishScope,
    RendezvousRequest,
    Reply,
    ScopePublished,
    ScopeUnpublished,
    Served,
    UnpublishScope,
)
from psirp_stack.node import attachment
from psirp_stack.node.attachment import (
    Asked,
    Consumed,
    Done,
    Publication,
    ScopeChanged,
    ServingChanged,
    Skipped,
    Status,
    Told,
    Why,
)
from psirp_stack.node.diagnosis import diagnose
from psirp_stack.node.recent import RecentPublications
from psirp_stack.node.signatures import NodeSignatures
from psirp_stack.node.wishes import Key, Wishes
from psirp_stack.rendezvous.declarations import WHOLE_SCOPE, Role
from psirp_stack.transport.events import VersionArrived, VersionSkipped
from psirp_stack.transport.receiver import Receiver
from psirp_stack.transport.sender import ContentTooLarge, Published, Sender, TransportFull
from psirp_stack.transport.versions import Version

Result = TypeVar("Result")
WhenDone = Callable[[Future[None], Callable[[], None]], None]
"""Calls back, in the node's own turn, when a promise of the store is kept."""


@dataclass(frozen=True, slots=True)
class DeskConfig:
    """Bounds of what applications may hold."""

    max_applications: int = 256
    max_items_per_application: int = 100_000
    max_held_publications: int = 1024
    """Publications of one item that wait for room or for the rendezvous."""
    remote_room: int = 1024 * 1024
    """Bytes of one item from the network that applications of this node may hold without having handled them."""
    local_room: int = 4 * 1024 * 1024
    """The same of what is published on this node."""
    stuck_after: float = 30.0
    """Seconds after which others no longer wait for an application that handles nothing."""
    linger: float = 10.0
    """Seconds for which an item whose last publisher has gone is still delivered to those who lack some of it."""
    linger_unmatched: float = 2.0
    """The same while it is not known yet whether anybody wants the item."""


@dataclass(slots=True, eq=False)
class _Parcel:
    """A version that was handed to applications; `waiting` of them have not handled it."""

    item: ItemId
    cost: int
    since: float
    remote: bool
    """Whether it came from the network, whose flow control wants to know when it was handled."""
    waiting: int = 0


@dataclass(slots=True, eq=False)
class Application:
    """One attached application."""

    name: str
    tell: Callable[[Told], None]
    parcels: dict[ItemId, deque[_Parcel]] = field(default_factory=dict)
    """By subscribed item: what it was handed and has not handled."""
    publishes: set[ItemId] = field(default_factory=set)
    watches: set[bytes] = field(default_factory=set)


class Desk:
    """Where the applications of a node are served."""

    def __init__(
        self,
        name: str,
        wishes: Wishes,
        sender: Sender,
        receiver: Receiver,
        *,
        when_done: WhenDone,
        status: Callable[[], str],
        signatures: NodeSignatures,
        config: DeskConfig | None = None,
    ) -> None:
        self.config = config if config is not None else DeskConfig()
        self.applications: list[Application] = []
        self.handed_out = 0
        self.stuck = 0
        """Times an application was no longer waited for."""
        self._name = name
        self._wishes = wishes
        self._sender = sender
        self._receiver = receiver
        self._when_done = when_done
        self._status = status
        self._signatures = signatures
        self._sign = signatures.sign_publication if signatures.signs else None
        self._subscribers: dict[ItemId, list[Application]] = {}
        self._publishers: dict[ItemId, list[Application]] = {}
        self._watchers: dict[bytes, list[Application]] = {}
        self._held: dict[ItemId, deque[tuple[Application, attachment.Publish]]] = {}
        self._handing: dict[ItemId, int] = {}
        """Bytes of locally published versions that applications hold."""
        self._recent = RecentPublications()
        self._parcels: deque[_Parcel] = deque()
        self._lingering: dict[ItemId, float] = {}
        """When their last publisher went, by item: what it published is still being delivered."""
        wishes.on_withdrawn = self._withdrawn

    @property
    def published_items(self) -> int:
        return len(self._publishers)

    @property
    def subscribed_items(self) -> int:
        return len(self._subscribers)

    # Applications come and go.

    def attach(self, name: str, tell: Callable[[Told], None]) -> Application | None:
        """A new application; None when there are too many."""
        if len(self.applications) >= self.config.max_applications:
            return None
        application = Application(name, tell)
        self.applications.append(application)
        return application

    def detach(self, application: Application, now: float) -> None:
        """Withdraw everything that an application had, as if it had said so itself."""
        if application not in self.applications:
            return
        self.applications.remove(application)
        application.tell = _nobody
        for item in list(application.parcels):
            self._leave_item(application, item, now)
        for item in list(application.publishes):
            self._stop_publishing(application, item, now)
        for scope in list(application.watches):
            self._stop_watching(application, scope, now)

    def request(self, application: Application, request: Asked | Consumed, now: float) -> None:
        if isinstance(request, Consumed):
            self._consumed(application, _item(request.sid, request.rid), now)
            return
        if isinstance(request, (attachment.Publish, attachment.Advertise, attachment.Subscribe)):
            held = len(application.parcels) + len(application.publishes)
            if held >= self.config.max_items_per_application:
                self._done(application, request, Code.LIMIT_REACHED, f"an application has at most {held} items")
                return
        match request:
            case attachment.Publish():
                self._publish(application, request, now)
            case attachment.Advertise():
                self._advertise(application, request, now)
            case attachment.Withdraw():
                self._stop_publishing(application, _item(request.sid, request.rid), now)
                self._done(application, request, Code.SUCCESS, "")
            case attachment.Subscribe():
                self._subscribe(application, request, now)
            case attachment.Unsubscribe():
                self._leave_item(application, _item(request.sid, request.rid), now)
                self._done(application, request, Code.SUCCESS, "")
            case attachment.PublishScope():
                self._ask(application, request, partial(_publish_scope, request), now)
            case attachment.UnpublishScope():
                self._ask(application, request, partial(_unpublish_scope, request), now)
            case attachment.SubscribeScope():
                self._watch(application, request, now)
            case attachment.UnsubscribeScope():
                self._stop_watching(application, request.sid, now)
                self._done(application, request, Code.SUCCESS, "")
            case attachment.Explain():
                make = partial(_explain, request)
                self._wishes.explain(make, partial(self._explained, application, request), now)
            case attachment.AskStatus():
                application.tell(Status(request.number, self._status()))

    # What the network brings.

    def arrived(self, event: VersionArrived, now: float) -> None:
        publication = Publication(
            bytes(event.item.sid),
            bytes(event.item.rid),
            event.version_id,
            event.epoch,
            event.number,
            event.published_ms,
            event.attributes,
            event.content,
            event.signer if self._signatures.verifies else None,
        )
        self._hand_out(event.item, publication, event.cost, now, remote=True)

    def skipped(self, event: VersionSkipped) -> None:
        told = Skipped(bytes(event.item.sid), bytes(event.item.rid), event.last - event.first + 1, event.reason[:300])
        for application in self._subscribers.get(event.item, ()):
            application.tell(told)

    def acknowledged(self, item: ItemId, now: float) -> None:
        """Receivers have confirmed something: there may be room for publications that wait."""
        self._publish_held(item, now)
        self._end_linger(item, now)

    def served(self, message: Served) -> None:
        told = ServingChanged(message.sid, message.rid, message.publisher, message.code)
        for application in self._subscribers.get(_item(message.sid, message.rid), ()):
            application.tell(told)

    def scope_changed(self, message: ScopePublished | ScopeUnpublished) -> None:
        published = isinstance(message, ScopePublished)
        told = ScopeChanged(message.parent, message.child, message.is_scope, published)
        for application in self._watchers.get(message.parent, ()):
            application.tell(told)

    # Time.

    def next_timer(self) -> float | None:
        self._drop_handled()
        times = [self._linger_until(item) for item in self._lingering]
        if self._parcels:
            times.append(self._parcels[0].since + self.config.stuck_after)
        return min(times, default=None)

    def handle_timer(self, now: float) -> None:
        """No longer wait for applications that handle nothing: one must not stop the others, or the publisher."""
        for item in list(self._lingering):
            self._end_linger(item, now)
        self._drop_handled()
        while self._parcels and self._parcels[0].since + self.config.stuck_after <= now:
            parcel = self._parcels.popleft()
            for application in self._subscribers.get(parcel.item, ()):
                waiting = application.parcels.get(parcel.item)
                if waiting and parcel in waiting:
                    waiting.remove(parcel)
                    self.stuck += 1
                    reason = f"not handled within {self.config.stuck_after:g} seconds"
                    told = Skipped(bytes(parcel.item.sid), bytes(parcel.item.rid), 0, reason)
                    application.tell(told)
            self._handled(parcel, now)
            self._drop_handled()

    def _drop_handled(self) -> None:
        while self._parcels and self._parcels[0].waiting <= 0:
            self._parcels.popleft()

    # Publishing.

    def _publish(self, application: Application, request: attachment.Publish, now: float) -> None:
        item = _item(request.sid, request.rid)
        held = self._held.setdefault(item, deque())
        if len(held) >= self.config.max_held_publications:
            self._done(application, request, Code.LIMIT_REACHED, f"{len(held)} publications of this item wait already")
            return
        held.append((application, request))
        self._become_publisher(application, item, partial(self._may_publish, item, now), now)

    def _advertise(self, application: Application, request: attachment.Advertise, now: float) -> None:
        item = _item(request.sid, request.rid)

        def answer(code: Code, reason: str) -> None:
            if code is not Code.SUCCESS:
                self._forget_publisher(item)
            self._done(application, request, code, reason)

        self._become_publisher(application, item, answer, now)

    def _become_publisher(
        self, application: Application, item: ItemId, answer: Callable[[Code, str], None], now: float
    ) -> None:
        self._lingering.pop(item, None)
        holders = self._publishers.setdefault(item, [])
        if application not in holders:
            holders.append(application)
            application.publishes.add(item)
        self._wishes.want(Role.PUBLISHES, bytes(item.sid), bytes(item.rid), answer, now)

    def _may_publish(self, item: ItemId, now: float, code: Code, reason: str) -> None:
        if code is Code.SUCCESS:
            self._publish_held(item, now)
            return
        held = self._held.pop(item, None) or ()
        self._forget_publisher(item)
        for application, request in held:
            self._done(application, request, code, reason)

    def _publish_held(self, item: ItemId, now: float) -> None:
        held = self._held.get(item)
        if not held or not self._wishes.granted((Role.PUBLISHES, bytes(item.sid), bytes(item.rid))):
            return
        while held and self._handing.get(item, 0) < self.config.local_room:
            application, request = held[0]
            try:
                published = self._sender.publish(item, request.content, request.attributes, now, self._sign)
            except TransportFull:
                return
            except ContentTooLarge as error:
                held.popleft()
                self._done(application, request, Code.TOO_LARGE, str(error))
                continue
            held.popleft()
            finish = partial(self._published, item, application, request, published, now)
            if published.stored is None:
                finish()
            else:
                self._when_done(published.stored, finish)
        if not held:
            self._held.pop(item, None)

    def _published(
        self, item: ItemId, application: Application, request: attachment.Publish, published: Published, now: float
    ) -> None:
        if published.stored is not None:
            error = published.stored.exception()
            if error is not None:
                self._done(application, request, Code.LIMIT_REACHED, f"the node could not store it: {error}"[:300])
                return
            self._sender.stored(item, now)
        version = published.version
        application.tell(Done(request.number, Code.SUCCESS, "", version.version_id))
        if published.is_new and self._subscribers.get(item):
            self._hand_out(item, _publication(item, version), version.cost, now, remote=False)

    def _stop_publishing(self, application: Application, item: ItemId, now: float) -> None:
        holders = self._publishers.get(item, [])
        if application not in holders:
            return
        holders.remove(application)
        application.publishes.discard(item)
        held = self._held.get(item)
        if held is not None:
            for waiting in [entry for entry in held if entry[0] is application]:
                held.remove(waiting)
        if not holders:
            del self._publishers[item]
            self._held.pop(item, None)
            self._lingering[item] = now
            self._end_linger(item, now)

    def _linger_until(self, item: ItemId) -> float:
        unmatched = self._sender.is_settled(item) is None
        return self._lingering[item] + (self.config.linger_unmatched if unmatched else self.config.linger)

    def _end_linger(self, item: ItemId, now: float) -> None:
        """Withdraw an item that nobody here publishes any more, once those who want it have what was published."""
        if item in self._lingering and (self._sender.is_settled(item) or self._linger_until(item) <= now):
            del self._lingering[item]
            self._wishes.leave(Role.PUBLISHES, bytes(item.sid), bytes(item.rid), now)
            self._sender.forget(item)

    def _forget_publisher(self, item: ItemId) -> None:
        for application in self._publishers.pop(item, ()):
            application.publishes.discard(item)

    # Subscribing.

    def _subscribe(self, application: Application, request: attachment.Subscribe, now: float) -> None:
        item = _item(request.sid, request.rid)
        holders = self._subscribers.setdefault(item, [])
        if not holders:
            self._signatures.subscribed(item)
            self._receiver.subscribe(item, now, since=request.since, future_only=request.future_only)
            self._receiver.set_room(item, self.config.remote_room, now)
        shared = bool(holders)
        if application not in holders:
            holders.append(application)
            application.parcels[item] = deque()

        def answer(code: Code, reason: str) -> None:
            if code is not Code.SUCCESS:
                self._forget_subscriber(application, item, now)
            self._done(application, request, code, reason)
            if code is Code.SUCCESS:
                self._catch_up(application, item, request, shared, now)

        self._wishes.want(Role.SUBSCRIBES, request.sid, request.rid, answer, now)

    def _catch_up(
        self, application: Application, item: ItemId, request: attachment.Subscribe, shared: bool, now: float
    ) -> None:
        """Give one who comes late what this node has already; the network sends it only to nodes that are new."""
        if request.future_only and request.since is None:
            return
        if item in self._publishers:
            kept = [_publication(item, version) for version in self._sender.since(item, request.since)]
        elif shared:
            kept = self._recent.since(item, request.since)
        else:
            return
        for publication in kept:
            self._hand_to(application, item, publication, now)

    def _leave_item(self, application: Application, item: ItemId, now: float) -> None:
        if self._forget_subscriber(application, item, now):
            self._wishes.leave(Role.SUBSCRIBES, bytes(item.sid), bytes(item.rid), now)

    def _forget_subscriber(self, application: Application, item: ItemId, now: float) -> bool:
        """Whether that was the last subscriber of the item."""
        holders = self._subscribers.get(item, [])
        if application not in holders:
            return False
        holders.remove(application)
        for parcel in application.parcels.pop(item, ()):
            self._handled_by_one(parcel, now)
        if holders:
            return False
        del self._subscribers[item]
        self._recent.forget(item)
        self._signatures.unsubscribed(item)
        self._receiver.unsubscribe(item)
        return True

    def _hand_out(self, item: ItemId, publication: Publication, cost: int, now: float, *, remote: bool) -> None:
        holders = self._subscribers.get(item, ())
        parcel = _Parcel(item, cost, now, remote, len(holders))
        if not remote:
            self._handing[item] = self._handing.get(item, 0) + cost
        if not holders:
            self._handled(parcel, now)
            return
        self._recent.add(item, publication)
        self._parcels.append(parcel)
        for application in holders:
            application.parcels[item].append(parcel)
            application.tell(publication)
            self.handed_out += 1

    def _hand_to(self, application: Application, item: ItemId, publication: Publication, now: float) -> None:
        """Hand a version that is here anyway to one application; it takes no room of the network's."""
        waiting = application.parcels.get(item)
        if waiting is None:
            return
        parcel = _Parcel(item, len(publication.content), now, False, 1)
        self._handing[item] = self._handing.get(item, 0) + parcel.cost
        self._parcels.append(parcel)
        waiting.append(parcel)
        application.tell(publication)
        self.handed_out += 1

    def _consumed(self, application: Application, item: ItemId, now: float) -> None:
        waiting = application.parcels.get(item)
        if waiting:
            self._handled_by_one(waiting.popleft(), now)

    def _handled_by_one(self, parcel: _Parcel, now: float) -> None:
        parcel.waiting -= 1
        if parcel.waiting == 0:
            self._handled(parcel, now)

    def _handled(self, parcel: _Parcel, now: float) -> None:
        parcel.waiting = 0
        item = parcel.item
        if parcel.remote:
            self._receiver.consumed(item, parcel.cost, now)
            return
        left = self._handing.get(item, 0) - parcel.cost
        if left > 0:
            self._handing[item] = left
        else:
            self._handing.pop(item, None)
        self._publish_held(item, now)

    # Scopes and questions.

    def _ask(
        self, application: Application, request: Asked, make: Callable[[int], RendezvousRequest], now: float
    ) -> None:
        self._wishes.ask(make, partial(self._done, application, request), now)

    def _watch(self, application: Application, request: attachment.SubscribeScope, now: float) -> None:
        watchers = self._watchers.setdefault(request.sid, [])
        if application not in watchers:
            watchers.append(application)
            application.watches.add(request.sid)

        def answer(code: Code, reason: str) -> None:
            if code is not Code.SUCCESS:
                application.watches.discard(request.sid)
                self._watchers.pop(request.sid, None)
            self._done(application, request, code, reason)

        self._wishes.want(Role.WATCHES, request.sid, WHOLE_SCOPE, answer, now)

    def _stop_watching(self, application: Application, sid: bytes, now: float) -> None:
        watchers = self._watchers.get(sid, [])
        if application not in watchers:
            return
        watchers.remove(application)
        application.watches.discard(sid)
        if not watchers:
            del self._watchers[sid]
            self._wishes.leave(Role.WATCHES, sid, WHOLE_SCOPE, now)

    def _explained(self, application: Application, request: attachment.Explain, answer: Explanation | Reply) -> None:
        if isinstance(answer, Reply):
            self._done(application, request, Code(answer.code), answer.reason)
            return
        code, reason = diagnose(answer)
        application.tell(
            Why(
                request.number,
                code,
                reason,
                answer.scope_exists,
                answer.item_exists,
                answer.publishers,
                answer.subscribers,
                answer.refusals,
                answer.unserved,
            )
        )

    def _withdrawn(self, key: Key, code: Code, reason: str) -> None:
        """The rendezvous took a wish back, for instance because a scope's policy changed."""
        role, sid, rid = key
        if role is Role.SUBSCRIBES:
            for application in self._subscribers.get(_item(sid, rid), ()):
                application.tell(ServingChanged(sid, rid, None, code))
        elif role is Role.PUBLISHES:
            self._forget_publisher(_item(sid, rid))

    def _done(self, application: Application, request: Asked, code: Code, reason: str) -> None:
        application.tell(Done(request.number, code, reason[:300]))


def _nobody(told: Told) -> None:
    """An application that has gone hears nothing more."""


def _item(sid: bytes, rid: bytes) -> ItemId:
    return ItemId(Identifier(sid), Identifier(rid))


def _publication(item: ItemId, version: Version) -> Publication:
    return Publication(
        bytes(item.sid),
        bytes(item.rid),
        version.version_id,
        version.epoch,
        version.number,
        version.published_ms,
        version.attributes,
        version.content,
    )


def _publish_scope(request: attachment.PublishScope, number: int) -> PublishScope:
    return PublishScope(number, request.sid, request.parent, request.policy)


def _unpublish_scope(request: attachment.UnpublishScope, number: int) -> UnpublishScope:
    return UnpublishScope(number, request.sid, request.parent)


def _explain(request: attachment.Explain, number: int) -> Explain:
    return Explain(number, request.sid, request.rid)
