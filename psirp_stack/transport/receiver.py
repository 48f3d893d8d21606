"""The subscriber's side of a node: all items that it subscribes to. Sans-I/O.

receiver.subscribe(item, now, since=..., future_only=...)
receiver.served(item, publisher, policy, now)        this is who publishes it to us
receiver.receive(frame, now)                         a PUBLISH_DATA or PUBLISH_METADATA frame arrived
while (frame := receiver.next_frame(now)): ...       what to send
receiver.next_timer(), receiver.handle_timer(now)
receiver.next_event()                                `VersionArrived`, `VersionSkipped`, `Dropped`
"""

import random
from collections import deque
from collections.abc import Hashable

from identifiers.identifier import ItemId
from psirp_stack.control.messages import ScopePolicy
from psirp_stack.forwarding_model import TABLES, Tags
from psirp_stack.transport.accounts import Accounts
from psirp_stack.transport.config import TransportConfig
from psirp_stack.transport.deadlines import Deadlines
from psirp_stack.transport.events import Dropped, ReceiverEvent
from psirp_stack.transport.frames import (
    TransportFrame,
    control_frame,
    first_way,
    is_marked,
    is_segment,
    leads_somewhere,
    links_travelled,
    read_control,
    read_segment,
)
from psirp_stack.transport.hooks import PacketVerifier, PublicationVerifier, RouteTo, WallClock
from psirp_stack.transport.item_receiver import ItemReceiver
from psirp_stack.transport.messages import (
    Announcement,
    Ask,
    Have,
    Retained,
    TransportMessageError,
    Want,
    decode,
    encode,
)
from psirp_stack.transport.receiver_context import ReceiverContext, ReceiverCounters, Since
from psirp_stack.transport.source import PublisherSequence
from psirp_stack.transport.versions import Version
from psirp_stack.wire.codec import ZERO_ID, parse
from psirp_stack.wire.numbers import HeaderType

SUBSCRIPTIONS_PER_BOOT = 1 << 24
MAX_OUT = 4096
"""Requests and acknowledgements that wait to be sent."""

_PUBLISH_DATA = int(HeaderType.PUBLISH_DATA)
_PUBLISH_METADATA = int(HeaderType.PUBLISH_METADATA)


class Receiver:
    """Subscribes for one node, in its `boot`-th life. `internal` are the node's own internal tags."""

    def __init__(
        self,
        name: str,
        boot: int,
        internal: Tags,
        *,
        route_to: RouteTo,
        wall_ms: WallClock,
        rng: random.Random,
        config: TransportConfig | None = None,
        verify: PublicationVerifier | None = None,
        verify_packet: PacketVerifier | None = None,
        verify_answer: PacketVerifier | None = None,
    ) -> None:
        config = config or TransportConfig()
        accounts = Accounts(
            config.reassembly_bytes, config.reassembly_bytes_per_link, config.reassembly_bytes_per_source
        )
        self._context = ReceiverContext(
            name, config, wall_ms, verify, verify_packet, verify_answer, rng, self._say, accounts
        )
        self._internal = internal
        self._route_to = route_to
        self._items: dict[bytes, ItemReceiver] = {}
        self._next_life = boot * SUBSCRIPTIONS_PER_BOOT
        self._out: deque[bytes] = deque()
        self._deadlines: Deadlines[bytes] = Deadlines()

    @property
    def counters(self) -> ReceiverCounters:
        return self._context.counters

    @property
    def held_bytes(self) -> int:
        """What arrived and was not handed up, and what keeping book of it takes."""
        return self._context.accounts.used

    def set_internal(self, internal: Tags) -> None:
        """The node's internal tags, when they changed."""
        self._internal = internal

    # The application.

    def subscribe(self, item: ItemId, now: float, *, since: Since | None = None, future_only: bool = False) -> None:
        """Want the item: from its current version on; or all after the version `since`; or only what is yet to come.

        Subscribing again begins anew.
        """
        self.unsubscribe(item)
        self._next_life += 1
        self._items[bytes(item)] = ItemReceiver(self._context, item, self._next_life, since, future_only, now)

    def unsubscribe(self, item: ItemId) -> None:
        state = self._items.pop(bytes(item), None)
        if state is not None:
            state.close()
            self._deadlines.set(state.key, None)

    def set_room(self, item: ItemId, room: int, now: float) -> None:
        """The item's reader takes so many bytes; each `VersionArrived` uses up its `cost` until `consumed`."""
        state = self._items.get(bytes(item))
        if state is not None:
            state.set_room(room, now)
            self._deadlines.sooner(state.key, now)

    def consumed(self, item: ItemId, cost: int, now: float) -> None:
        """The reader is done with versions of this cost."""
        state = self._items.get(bytes(item))
        if state is not None:
            state.consumed(cost, now)
            self._deadlines.sooner(state.key, now)

    def has_version(self, item: ItemId, publisher: str, version: Version, now: float) -> None:
        """The item's reader got this version from elsewhere: its publisher goes on after it."""
        state = self._items.get(bytes(item))
        if state is not None:
            state.has_version(publisher, version, now)

    # The topology manager.

    def served(self, item: ItemId, publisher: str | None, policy: ScopePolicy, now: float) -> None:
        """This publisher sends us the item, under this policy; None: nobody does."""
        state = self._items.get(bytes(item))
        if state is not None:
            state.served(publisher, policy, now)
            self._deadlines.sooner(state.key, now)

    # The network.

    def receive(self, frame: bytes, now: float, link: Hashable = None) -> bool:
        """Take in a frame that came by a link; False when it was not used, which a counter explains."""
        if is_segment(frame):
            key, version_id, number, payload = read_segment(frame)
            state = self._items.get(key)
            if state is None:
                self.counters.not_ours += 1
                return False
            if state.policy.every_packet_signed:
                return self._refuse(state, "a segment is not signed, and every packet must be")
            if state.segment(version_id, number, payload, link, now, marked=is_marked(frame)):
                self._deadlines.sooner(state.key, now)
        else:
            control = read_control(frame)
            if control is None or control.kind not in (_PUBLISH_DATA, _PUBLISH_METADATA):
                self.counters.malformed += 1
                return False
            state = self._items.get(control.item)
            if state is None:
                self.counters.not_ours += 1
                return False
            if not self._receive_control(state, control, frame, link, now):
                return False
        # The timer finds out what is due; until then it is enough to look again soon.
        self._deadlines.sooner(state.key, now + self._context.config.reorder_delay)
        return True

    def _refuse(self, state: ItemReceiver, reason: str) -> bool:
        self.counters.refused += 1
        self._context.tell(Dropped(state.item, reason))
        return False

    def _receive_control(
        self, state: ItemReceiver, control: TransportFrame, frame: bytes, link: Hashable, now: float
    ) -> bool:
        if control.kind == _PUBLISH_DATA:
            verify = self._context.verify_packet
            if verify is not None and state.policy.every_packet_signed:
                reason = verify(state.item, parse(frame), self._context.wall_ms(now))
                if reason is not None:
                    return self._refuse(state, f"segment {control.seqnum}: {reason}")
            state.segment(control.vrid, control.seqnum, control.payload, link, now, marked=is_marked(frame))
            return True
        try:
            message = decode(control.payload)
        except TransportMessageError:
            self.counters.malformed += 1
            return False
        way = control.collected
        if way is None:
            self.counters.malformed += 1
            return False
        if isinstance(message, Announcement):
            state.announcement(control, way, message, now, links_travelled(frame), link, marked=is_marked(frame))
        elif isinstance(message, Retained):
            if message.subscriber != self._context.name:
                self.counters.not_ours += 1
                return False
            check = self._context.verify_answer
            reason = None if check is None else check(state.item, parse(frame), self._context.wall_ms(now))
            if reason is not None:
                return self._refuse(state, f"what {message.publisher!r} retains: {reason}")
            state.retained(message, way, now)
        else:
            self.counters.malformed += 1
            return False
        return True

    def next_frame(self, now: float) -> bytes | None:
        """The next frame to send; None when there is none until something arrives or the timer is due."""
        urgent = self._context.urgent
        while urgent and not self._out:
            source = next(iter(urgent))
            state = urgent.pop(source)
            have = state.have(source, now)
            if have is not None:
                self._say(state, source, have)
        return self._out.popleft() if self._out else None

    def next_timer(self) -> float | None:
        return self._deadlines.next()

    def handle_timer(self, now: float) -> None:
        for key in self._deadlines.pop_due(now):
            state = self._items.get(key)
            if state is not None:
                self._deadlines.set(key, state.handle_timer(now))

    def next_event(self) -> ReceiverEvent | None:
        events = self._context.events
        return events.popleft() if events else None

    def _say(self, state: ItemReceiver, source: PublisherSequence, message: Want | Have | Ask) -> None:
        fid = self._way_to(source, isinstance(message, Ask) and message.token > 0)
        if fid is None or len(self._out) >= MAX_OUT:
            self.counters.no_way += 1
            return
        if isinstance(message, Want):
            kind, number = HeaderType.SUBSCRIBE_DATA, message.number
            slot = source.slots.get(message.number)
            version_id = slot.version_id if slot is not None else ZERO_ID
        else:
            kind, version_id = HeaderType.SUBSCRIBE_METADATA, ZERO_ID
            number = message.number if isinstance(message, Have) else 0
        way = first_way(self._internal, (fid[-1] + source.unanswered) % TABLES)
        self._out.append(control_frame(kind, fid, state.key, version_id, number, way, encode(message)))

    def _way_to(self, source: PublisherSequence, certain: bool) -> bytes | None:
        """A filter to a publisher: the way back that its last message collected, and when that brings no answer, in
        turn with the one that the topology knows. That comes first when nobody else may answer (`certain`)."""
        ways = [source.way] if source.way is not None else []
        if certain or not ways or source.unanswered > 1:
            route = self._route_to(source.name)
            if route is not None and leads_somewhere(route[0]):
                ways.insert(0 if certain else len(ways), route[0])
        return ways[source.unanswered // 2 % len(ways)] if ways else None
