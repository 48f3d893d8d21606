"""What the applications of a node publish: versions that wait for room, and items that outlive their publisher.

The node becomes a publisher of an item with the first application that publishes it. When the last one goes, the item
is still delivered to those who lack some of it, for a bounded time, and then withdrawn.
"""

from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from functools import partial

from identifiers import ItemId
from psirp_stack.control.codes import Code
from psirp_stack.node import attachment
from psirp_stack.node.applications import Application, RequestTableConfig, item_of, publication_of
from psirp_stack.node.attachment import Done, ReceivedVersion
from psirp_stack.node.demand import ItemDemand
from psirp_stack.node.intents import SubscriptionIntents
from psirp_stack.node.signatures import NodeSignatures
from psirp_stack.rendezvous.declarations import DeclaredRole
from psirp_stack.transport.sender import ContentTooLarge, PublishedVersion, Sender, TransportFull
from psirp_stack.transport.versions import Version

WhenDone = Callable[[Future[None], Callable[[], None]], None]
"""Calls back, in the node's own turn, when a promise of the store is kept."""

NEVER = float("-inf")


class PublishRequests:
    """The publishers of a node. `hand_out` and `has_room` are those of its subscribers."""

    def __init__(
        self,
        config: RequestTableConfig,
        intents: SubscriptionIntents,
        sender: Sender,
        signatures: NodeSignatures,
        when_done: WhenDone,
    ) -> None:
        self.hand_out: Callable[[ItemId, ReceivedVersion, int, float], None] = _to_nobody
        """Told of every new version, for subscribers on this node."""
        self.has_room: Callable[[ItemId], bool] = _always
        """Whether the subscribers on this node have room for one more."""
        self.published: Callable[[ItemId, Version], None] | None = None
        """Told of every new version, before it is sent."""
        self._config = config
        self._intents = intents
        self._sender = sender
        self._sign = signatures.sign_publication if signatures.signs else None
        self._when_done = when_done
        self.demand = ItemDemand(lambda item: bool(sender.granted(item)))
        self._publishers: dict[ItemId, list[Application]] = {}
        self._held: dict[ItemId, deque[tuple[Application, attachment.Publish]]] = {}
        self._lingering: dict[ItemId, float] = {}
        """When their last publisher went, by item: what it published is still being delivered."""
        self._published_at: dict[ItemId, float] = {}
        """When the latest version was published, by item."""

    def __len__(self) -> int:
        return len(self._publishers)

    def __contains__(self, item: ItemId) -> bool:
        """Whether this node publishes the item, or still delivers it."""
        return item in self._publishers or item in self._lingering

    def since(self, item: ItemId, version: bytes | None) -> list[ReceivedVersion]:
        """What this node published after a version; only the current one when none is named, or it is not kept."""
        return [publication_of(item, kept) for kept in self._sender.since(item, version)]

    # Requests.

    def publish(self, application: Application, request: attachment.Publish, now: float) -> None:
        item = item_of(request.sid, request.rid)
        held = self._held.setdefault(item, deque())
        if len(held) >= self._config.max_held_publications:
            application.done(request, Code.LIMIT_REACHED, f"{len(held)} publications of this item wait already")
            return
        held.append((application, request))
        self._become_publisher(application, item, partial(self._may_publish, item), now)

    def advertise(self, application: Application, request: attachment.Advertise, now: float) -> None:
        item = item_of(request.sid, request.rid)

        def answer(code: Code, reason: str) -> None:
            if code is not Code.SUCCESS:
                self.forget(item, code, reason)
            application.done(request, code, reason)

        self._become_publisher(application, item, answer, now)

    def demand_may_have_changed(self, item: ItemId) -> None:
        """Subscribers on this node, or filters into the network, came or went."""
        self.demand.may_have_changed(item, self._publishers.get(item, ()))

    def leave(self, application: Application, item: ItemId, now: float) -> bool:
        """An application publishes the item no longer. False when it did not."""
        holders = self._publishers.get(item, [])
        if application not in holders:
            return False
        holders.remove(application)
        application.publishes.discard(item)
        held = self._held.get(item)
        if held is not None:
            self._held[item] = deque(entry for entry in held if entry[0] is not application)
        if not holders:
            del self._publishers[item]
            self.demand.forget(item)
            self._held.pop(item, None)
            self._lingering[item] = now
            self._end_linger(item, now)
        return True

    def forget(self, item: ItemId, code: Code, reason: str) -> None:
        """The rendezvous does not let this node publish the item, or not any more."""
        for application, request in self._held.pop(item, None) or ():
            application.done(request, code, reason)
        for application in self._publishers.pop(item, ()):
            application.publishes.discard(item)
        self._lingering.pop(item, None)
        self.demand.forget(item)
        self._published_at.pop(item, None)
        self._sender.forget(item)

    def _become_publisher(
        self, application: Application, item: ItemId, answer: Callable[[Code, str], None], now: float
    ) -> None:
        self._lingering.pop(item, None)
        holders = self._publishers.setdefault(item, [])
        if application not in holders:
            holders.append(application)
            application.publishes.add(item)
            self.demand.joined(item, application)
        self._intents.want(DeclaredRole.PUBLISHES, bytes(item.sid), bytes(item.rid), answer, now)

    # Publishing what waits.

    def _may_publish(self, item: ItemId, code: Code, reason: str) -> None:
        if code is Code.SUCCESS:
            self.publish_held(item, self._intents.now)
        else:
            self.forget(item, code, reason)

    def publish_held(self, item: ItemId, now: float) -> None:
        """There may be room for publications that wait."""
        held = self._held.get(item)
        if not held or not self._intents.granted((DeclaredRole.PUBLISHES, bytes(item.sid), bytes(item.rid))):
            return
        while held and self.has_room(item):
            application, request = held[0]
            try:
                published = self._sender.publish(item, request.content, request.attributes, now, self._sign)
            except TransportFull:
                return
            except ContentTooLarge as error:
                held.popleft()
                application.done(request, Code.TOO_LARGE, str(error))
                continue
            held.popleft()
            finish = partial(self._published, item, application, request, published, now)
            if published.stored is None:
                finish()
            else:
                self._when_done(published.stored, finish)
        if not held and self._held.get(item) is held:
            del self._held[item]

    def _published(
        self,
        item: ItemId,
        application: Application,
        request: attachment.Publish,
        published: PublishedVersion,
        now: float,
    ) -> None:
        if published.stored is not None:
            error = published.stored.exception()
            if error is not None:
                application.done(request, Code.LIMIT_REACHED, f"the node could not store it: {error}")
                return
            self._sender.stored(item, now)
        version = published.version
        self._published_at[item] = now
        if published.is_new and self.published is not None:
            self.published(item, version)
        application.tell(Done(request.number, Code.SUCCESS, "", version.version_id))
        if published.is_new:
            self.hand_out(item, publication_of(item, version), version.cost, now)

    # Lingering.

    def acknowledged(self, item: ItemId, now: float) -> None:
        """Receivers have confirmed something."""
        self.publish_held(item, now)
        self._end_linger(item, now)

    def next_timer(self) -> float | None:
        return min(map(self._linger_until, self._lingering), default=None)

    def handle_timer(self, now: float) -> None:
        for item in list(self._lingering):
            self._end_linger(item, now)

    def _linger_until(self, item: ItemId) -> float:
        settled = self._sender.is_settled(item)
        if settled:
            # Whoever subscribed before the latest version was published is among those who have it by then.
            return self._published_at.get(item, NEVER) + self._config.linger_unmatched
        return self._lingering[item] + (self._config.linger_unmatched if settled is None else self._config.linger)

    def _end_linger(self, item: ItemId, now: float) -> None:
        """Withdraw an item that nobody here publishes any more, once those who want it have what was published."""
        if item in self._lingering and self._linger_until(item) <= now:
            del self._lingering[item]
            self._published_at.pop(item, None)
            self._intents.leave(DeclaredRole.PUBLISHES, bytes(item.sid), bytes(item.rid), now)
            self._sender.forget(item)


def _to_nobody(item: ItemId, publication: ReceivedVersion, cost: int, now: float) -> None:
    """For a desk that has no subscribers."""


def _always(item: ItemId) -> bool:
    return True
