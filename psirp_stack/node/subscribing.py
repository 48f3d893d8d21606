"""What the applications of a node subscribe to: shared among them, with room for what each has not handled.

The first application that wants an item makes the node want it, the last one that leaves makes the node leave. A
version is handed to all who want it, and its room is given back when the slowest of them has handled it.
"""

from collections import deque
from collections.abc import Callable
from functools import partial

from identifiers import ItemId
from psirp_stack.control.codes import Code
from psirp_stack.control.messages import Served
from psirp_stack.node import attachment
from psirp_stack.node.applications import MAX_REASON, Application, HandedVersion, RequestTableConfig, item_of
from psirp_stack.node.attachment import ReceivedVersion, ServingChanged, Skipped
from psirp_stack.node.getting import received
from psirp_stack.node.intents import SubscriptionIntents
from psirp_stack.node.publishing import PublishRequests
from psirp_stack.node.recent import RecentPublications
from psirp_stack.node.signatures import NodeSignatures
from psirp_stack.pull.service import PullService
from psirp_stack.pull.task import PulledVersion
from psirp_stack.rendezvous.declarations import DeclaredRole
from psirp_stack.transport.events import VersionArrived, VersionSkipped
from psirp_stack.transport.receiver import Receiver


class SubscribeRequests:
    """The subscribers of a node."""

    def __init__(
        self,
        config: RequestTableConfig,
        intents: SubscriptionIntents,
        receiver: Receiver,
        signatures: NodeSignatures,
        publishing: PublishRequests,
        pulls: PullService,
    ) -> None:
        self.handed_out = 0
        self.stuck = 0
        """Times an application was no longer waited for."""
        self._config = config
        self._intents = intents
        self._receiver = receiver
        self._signatures = signatures
        self._publishing = publishing
        self._pulls = pulls
        self._lacks_current: set[ItemId] = set()
        """Subscribed items whose current version is wanted, and of which nothing came yet."""
        self._subscribers: dict[ItemId, list[Application]] = {}
        self._handing: dict[ItemId, int] = {}
        """Bytes of locally published versions that applications hold."""
        self._recent = RecentPublications()
        self._parcels: deque[HandedVersion] = deque()
        publishing.has_room = self._has_room
        publishing.hand_out = self._hand_out_local
        publishing.demand.is_subscribed_here = self._subscribers.__contains__

    def __len__(self) -> int:
        return len(self._subscribers)

    # Requests.

    def subscribe(self, application: Application, request: attachment.Subscribe, now: float) -> None:
        item = item_of(request.sid, request.rid)
        holders = self._subscribers.setdefault(item, [])
        if application in holders:
            self._intents.want(
                DeclaredRole.SUBSCRIBES, request.sid, request.rid, self._answer(application, request), now
            )
            return
        if holders or item in self._publishing:
            application.joining.add(item)
        if not holders:
            self._signatures.subscribed(item)
            if request.since is None and not request.future_only:
                self._lacks_current.add(item)
            self._receiver.subscribe(item, now, since=request.since, future_only=request.future_only)
            self._receiver.set_room(item, self._config.remote_room, now)
        holders.append(application)
        application.parcels[item] = deque()
        self._publishing.demand_may_have_changed(item)
        self._intents.want(DeclaredRole.SUBSCRIBES, request.sid, request.rid, self._answer(application, request), now)

    def _answer(self, application: Application, request: attachment.Subscribe) -> Callable[[Code, str], None]:
        item = item_of(request.sid, request.rid)

        def answer(code: Code, reason: str) -> None:
            now = self._intents.now
            if code is not Code.SUCCESS:
                self._forget(application, item, now)
            application.done(request, code, reason)
            if code is Code.SUCCESS:
                self._catch_up(application, item, request, now)
                self._get_from_memory(item, now)

        return answer

    def _catch_up(self, application: Application, item: ItemId, request: attachment.Subscribe, now: float) -> None:
        """Give one who comes late what this node has already; the network sends it only to nodes that are new."""
        if item not in application.joining:
            return
        application.joining.discard(item)
        if request.future_only and request.since is None:
            return
        here = item in self._publishing
        kept = self._publishing.since(item, request.since) if here else self._recent.since(item, request.since)
        for publication in kept:
            self._hand_to(application, item, publication, now)

    def leave(self, application: Application, item: ItemId, now: float) -> None:
        if self._forget(application, item, now):
            self._intents.leave(DeclaredRole.SUBSCRIBES, bytes(item.sid), bytes(item.rid), now)

    def _forget(self, application: Application, item: ItemId, now: float) -> bool:
        """Whether that was the last subscriber of the item."""
        holders = self._subscribers.get(item, [])
        if application not in holders:
            return False
        holders.remove(application)
        application.joining.discard(item)
        for parcel in application.parcels.pop(item, ()):
            self._handled_by_one(parcel, now)
        if holders:
            return False
        del self._subscribers[item]
        self._lacks_current.discard(item)
        self._recent.forget(item)
        self._signatures.unsubscribed(item)
        self._receiver.unsubscribe(item)
        self._publishing.demand_may_have_changed(item)
        return True

    def consumed(self, application: Application, item: ItemId, now: float) -> None:
        """An application has handled the oldest of what it holds of an item."""
        waiting = application.parcels.get(item)
        if waiting:
            self._handled_by_one(waiting.popleft(), now)

    # What the network brings.

    def arrived(self, event: VersionArrived, now: float) -> None:
        publication = ReceivedVersion(
            bytes(event.item.sid),
            bytes(event.item.rid),
            event.version_id,
            event.epoch,
            event.number,
            event.published_ms,
            event.attributes,
            event.content,
            event.signer if self._signatures.verifies else None,
            event.hops,
        )
        self._hand_out(event.item, publication, event.cost, now, remote=True)

    def skipped(self, event: VersionSkipped) -> None:
        count, reason = event.last - event.first + 1, event.reason[:MAX_REASON]
        told = Skipped(bytes(event.item.sid), bytes(event.item.rid), count, reason)
        for application in self._subscribers.get(event.item, ()):
            application.tell(told)

    def served(self, message: Served, now: float) -> None:
        if message.publisher is None:
            self._get_from_memory(item_of(message.sid, message.rid), now)
        self._tell_serving(message.sid, message.rid, message.publisher, message.code)

    def _get_from_memory(self, item: ItemId, now: float) -> None:
        """Where nodes keep versions, somebody may have the current one although nobody publishes it any more."""
        if item in self._lacks_current and self._pulls.keeps:
            self._pulls.start(item, -1, -1, partial(self._pulled, item), _whatever, now, if_unpublished=True)

    def _pulled(self, item: ItemId, pulled: PulledVersion) -> None:
        """Nobody publishes the item any more, and somebody had its last version."""
        if item not in self._lacks_current:
            return
        now = self._intents.now
        self._receiver.has_version(item, pulled.publisher, pulled.version, now)
        publication = received(bytes(item.sid), bytes(item.rid), pulled, self._signatures)
        self._hand_out(item, publication, pulled.version.cost, now, remote=False)

    def withdrawn(self, sid: bytes, rid: bytes, code: Code) -> None:
        """The rendezvous took the node's subscription back."""
        self._tell_serving(sid, rid, None, code)

    def _tell_serving(self, sid: bytes, rid: bytes, publisher: str | None, code: int) -> None:
        told = ServingChanged(sid, rid, publisher, code)
        for application in self._subscribers.get(item_of(sid, rid), ()):
            application.tell(told)

    # Handing out.

    def _has_room(self, item: ItemId) -> bool:
        return self._handing.get(item, 0) < self._config.local_room

    def _hand_out_local(self, item: ItemId, publication: ReceivedVersion, cost: int, now: float) -> None:
        if item in self._subscribers:
            self._hand_out(item, publication, cost, now, remote=False)

    def _hand_out(self, item: ItemId, publication: ReceivedVersion, cost: int, now: float, *, remote: bool) -> None:
        holders = self._subscribers.get(item, [])
        self._lacks_current.discard(item)
        if holders:
            self._recent.add(item, publication)
        takers = [application for application in holders if item not in application.joining]
        parcel = HandedVersion(item, cost, now, remote, len(takers))
        if not remote:
            self._handing[item] = self._handing.get(item, 0) + cost
        if not takers:
            self._handled(parcel, now)
            return
        self._parcels.append(parcel)
        for application in takers:
            application.parcels[item].append(parcel)
            application.tell(publication)
            self.handed_out += 1

    def _hand_to(self, application: Application, item: ItemId, publication: ReceivedVersion, now: float) -> None:
        """Hand a version that is here anyway to one application; it takes no room of the network's."""
        waiting = application.parcels.get(item)
        if waiting is None:
            return
        parcel = HandedVersion(item, len(publication.content), now, False, 1)
        self._handing[item] = self._handing.get(item, 0) + parcel.cost
        self._parcels.append(parcel)
        waiting.append(parcel)
        application.tell(publication)
        self.handed_out += 1

    def _handled_by_one(self, parcel: HandedVersion, now: float) -> None:
        parcel.waiting -= 1
        if parcel.waiting == 0:
            self._handled(parcel, now)

    def _handled(self, parcel: HandedVersion, now: float) -> None:
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
        self._publishing.publish_held(item, now)

    # Time.

    def next_timer(self) -> float | None:
        self._drop_handled()
        return self._parcels[0].since + self._config.stuck_after if self._parcels else None

    def handle_timer(self, now: float) -> None:
        """No longer wait for applications that handle nothing: one must not stop the others, or the publisher."""
        self._drop_handled()
        while self._parcels and self._parcels[0].since + self._config.stuck_after <= now:
            parcel = self._parcels.popleft()
            for application in self._subscribers.get(parcel.item, ()):
                waiting = application.parcels.get(parcel.item)
                if waiting and parcel in waiting:
                    waiting.remove(parcel)
                    self.stuck += 1
                    reason = f"not handled within {self._config.stuck_after:g} seconds"
                    application.tell(Skipped(bytes(parcel.item.sid), bytes(parcel.item.rid), 0, reason))
            self._handled(parcel, now)
            self._drop_handled()

    def _drop_handled(self) -> None:
        while self._parcels and self._parcels[0].waiting <= 0:
            self._parcels.popleft()


def _whatever(code: Code, reason: str) -> None:
    """Whoever publishes it next will be heard all the same."""
