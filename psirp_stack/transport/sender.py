"""The publisher's side of a node: all items that it publishes. Sans-I/O.

sender.publish(item, content, attributes, now)       keep a version, and send it to whom it was granted
sender.grant(item, generation, filters, now)         these are the filters from now on
sender.receive(frame, now)                           a SUBSCRIBE_DATA or SUBSCRIBE_METADATA frame arrived
while (frame := sender.next_frame(now)): ...         what to send
sender.next_timer(), sender.handle_timer(now)
sender.next_event()
"""

import random
from collections import deque
from concurrent.futures import Future
from typing import NamedTuple

from identifiers.identifier import ItemId
from psirp_stack.control.messages import FilterGrant
from psirp_stack.forwarding_model import Tags
from psirp_stack.transport.config import MAX_CONTENT_BYTES, VERSION_COST, TransportConfig
from psirp_stack.transport.deadlines import Deadlines
from psirp_stack.transport.events import SenderEvent
from psirp_stack.transport.frames import packed, read_control
from psirp_stack.transport.hooks import PacketSigner, PublicationSigner, RouteTo, WallClock
from psirp_stack.transport.item_sender import ItemSender
from psirp_stack.transport.messages import (
    MAX_ATTRIBUTES_BYTES,
    Announcement,
    Ask,
    Have,
    TransportMessageError,
    Want,
    decode,
)
from psirp_stack.transport.sender_context import SenderContext, SenderCounters
from psirp_stack.transport.versions import Version, Versions, VersionsFor, content_ids
from psirp_stack.wire.codec import MetadataHeader
from psirp_stack.wire.numbers import HeaderType

_SUBSCRIBE_KINDS = frozenset({int(HeaderType.SUBSCRIBE_DATA), int(HeaderType.SUBSCRIBE_METADATA)})


class TransportFull(Exception):  # noqa: N818 - reads as what it says: try again when there is room
    """Too much was published that receivers have not confirmed; wait for `VersionAcknowledged`."""


class ContentTooLarge(ValueError):  # noqa: N818
    """Content or attributes beyond what a version may have."""


class PublishedVersion(NamedTuple):
    """A version that was published."""

    version: Version
    is_new: bool
    """False when the content is that of the current version, which is then given back."""
    stored: "Future[None] | None"
    """Done when the version is on disk, which is when it is sent; None when there is nothing to wait for."""


class Sender:
    """Publishes for one node. `wall_ms` gives the time of publications, `internal` are the node's own internal tags."""

    def __init__(
        self,
        name: str,
        internal: Tags,
        versions_for: VersionsFor,
        *,
        route_to: RouteTo,
        wall_ms: WallClock,
        rng: random.Random,
        config: TransportConfig | None = None,
        sign_answer: PacketSigner | None = None,
        tell_sending: bool = False,
    ) -> None:
        config = config or TransportConfig()
        self._context = SenderContext(name, config, internal, route_to, wall_ms, rng, sign_answer, tell_sending)
        self._versions_for = versions_for
        self._items: dict[bytes, ItemSender] = {}
        self._ready: deque[ItemSender] = deque()
        self._deadlines: Deadlines[bytes] = Deadlines()

    @property
    def counters(self) -> SenderCounters:
        return self._context.counters

    @property
    def filters(self) -> int:
        """Filters that items are sent along now."""
        return sum(len(state.streams) for state in self._items.values())

    def granted(self, item: ItemId) -> tuple[FilterGrant, ...]:
        """The filters that an item is sent along now."""
        state = self._items.get(bytes(item))
        if state is None:
            return ()
        return tuple(FilterGrant(stream.fid, tuple(sorted(stream.members)), stream.mtu) for stream in state.streams)

    def set_internal(self, internal: Tags) -> None:
        """The node's internal tags, when they changed."""
        self._context.internal = internal

    # The application.

    def publish(
        self,
        item: ItemId,
        content: bytes,
        attributes: bytes,
        now: float,
        signer: PublicationSigner | None = None,
    ) -> PublishedVersion:
        """A new version, unless the content is that of the current one. `TransportFull` when there is no room."""
        if len(content) > MAX_CONTENT_BYTES:
            raise ContentTooLarge(f"a version has at most {MAX_CONTENT_BYTES} bytes, not {len(content)}")
        if len(attributes) > MAX_ATTRIBUTES_BYTES:
            raise ContentTooLarge(f"attributes have at most {MAX_ATTRIBUTES_BYTES} bytes, not {len(attributes)}")
        state = self._item(item)
        state.positions.sync()
        version_id, sha256 = content_ids(content)
        last = state.versions.last
        if last is not None and last.sha256 == sha256 and last.version_id == version_id:
            self.counters.equal_content += 1
            return PublishedVersion(last, False, state.positions.stored(last.number))
        cost = len(content) + len(attributes) + VERSION_COST
        config = self._context.config
        pending, versions = state.pending()
        if pending + cost > config.max_pending_bytes // 2 or versions >= config.max_pending_versions // 2:
            state.make_room(now)
            pending, versions = state.pending()
        if pending and (pending + cost > config.max_pending_bytes or versions >= config.max_pending_versions):
            self.counters.refused_full += 1
            raise TransportFull(f"{pending} bytes in {versions} versions of {item} wait for their receivers")
        now_ms = self._context.wall_ms(now)
        epoch, number = state.versions.epoch, state.versions.next_number
        authentication = b""
        if signer is not None:
            header = MetadataHeader(bytes(item.sid), bytes(item.rid), version_id, length=len(content))
            announcement = Announcement(
                self._context.name, epoch, number, now_ms, attributes, 0, sha256, segment_size=0
            )
            authentication = packed(signer(item, header, announcement, now_ms))
        version = Version(epoch, number, version_id, sha256, now_ms, attributes, content, authentication)
        stored = state.add(version, now)
        self.counters.published += 1
        state.trim(now)
        self._wake(state)
        return PublishedVersion(version, True, stored)

    def room(self, item: ItemId) -> int:
        """Bytes that `publish` would take now; 0 when it would refuse."""
        state = self._items.get(bytes(item))
        config = self._context.config
        if state is None:
            return config.max_pending_bytes
        pending, versions = state.pending()
        return 0 if versions >= config.max_pending_versions else max(0, config.max_pending_bytes - pending)

    def stored(self, item: ItemId, now: float) -> None:
        """A promise that `publish` gave is done: what was stored may be sent now."""
        state = self._items.get(bytes(item))
        if state is not None:
            state.positions.sync()
            self._wake(state)

    def current(self, item: ItemId) -> Version | None:
        """The version that a subscriber would get first, if this node has any."""
        state = self._item(item)
        state.positions.sync()
        return state.versions.get(state.positions.newest)

    def since(self, item: ItemId, version_id: bytes | None) -> list[Version]:
        """What follows a version; the current one when that is not retained, or when none is named."""
        state = self._item(item)
        state.positions.sync()
        versions = state.versions
        after = [] if version_id is None else versions.numbers_of(version_id)
        first = after[0] + 1 if after else state.positions.newest
        found = (versions.get(number) for number in range(max(first, versions.oldest), state.positions.newest + 1))
        return [version for version in found if version is not None]

    def is_settled(self, item: ItemId) -> bool | None:
        """Whether all who were granted the item have all of it; None when it was never granted to anybody."""
        state = self._items.get(bytes(item))
        if state is None or state.generation < 0:
            return None
        return state.pending()[1] == 0

    def set_packet_signer(self, item: ItemId, signer: PacketSigner | None) -> None:
        """Sign every segment of an item, as its scope's policy demands. Takes effect with the next grant."""
        self._item(item).set_packet_signer(signer)

    def set_cacheable(self, item: ItemId, cacheable: bool) -> None:
        """Whether nodes on the way may keep versions of an item."""
        self._item(item).frames.cacheable = cacheable

    def versions_of(self, item: bytes) -> Versions | None:
        """What is retained of an item (Sid and Rid) that this node publishes; None when it does not."""
        state = self._items.get(item)
        return None if state is None else state.versions

    def forget(self, item: ItemId) -> None:
        """Publish the item no more. What a store holds of it stays there."""
        state = self._items.pop(bytes(item), None)
        if state is not None:
            state.revoke()
            self._deadlines.set(state.key, None)

    # The topology manager.

    def grant(self, item: ItemId, generation: int, filters: tuple[FilterGrant, ...], now: float) -> bool:
        """Send the item along these filters; False when a later word was heard before."""
        state = self._item(item)
        if generation <= state.generation:
            return False
        state.generation = generation
        state.positions.sync()
        state.grant(filters, now)
        self._wake(state)
        return True

    def reroute(self, item: ItemId, filters: tuple[FilterGrant, ...], now: float) -> None:
        """The ways of the last grant have changed; whom they lead to has not."""
        state = self._items.get(bytes(item))
        if state is not None:
            state.positions.sync()
            state.grant(filters, now)
            self._wake(state)

    def revoke(self, item: ItemId, generation: int, now: float) -> bool:
        """Nobody is served any more; False when a later word was heard before."""
        state = self._items.get(bytes(item))
        if state is None or generation <= state.generation:
            return False
        state.generation = generation
        state.revoke()
        state.trim(now)
        self._deadlines.set(state.key, None)
        return True

    def new_manager(self) -> set[ItemId]:
        """Another topology manager speaks now, whose generations begin anew; gives the items that are granted."""
        granted = [state for state in self._items.values() if state.generation > 0]
        for state in granted:
            state.generation = 0
        return {state.item for state in granted if state.peers}

    # The network.

    def receive(self, frame: bytes, now: float) -> bool:
        """Take in a frame from a receiver; False when it was not used, which a counter explains."""
        counters = self.counters
        control = read_control(frame)
        if control is None or control.kind not in _SUBSCRIBE_KINDS or control.collected is None:
            counters.malformed += 1
            return False
        try:
            message = decode(control.payload)
        except TransportMessageError:
            counters.malformed += 1
            return False
        if not isinstance(message, (Want, Have, Ask)):
            counters.malformed += 1
            return False
        state = self._items.get(control.item)
        if state is None or message.publisher != self._context.name:
            counters.not_ours += 1
            return False
        state.positions.sync()
        state.receive(message, control.collected, now)
        self._wake(state)
        return True

    def next_frame(self, now: float) -> bytes | None:
        """The next frame to send; None when there is none until something arrives or the timer is due."""
        ready = self._ready
        while ready:
            state = ready[0]
            frame = state.next_frame(now)
            if frame is not None:
                if len(ready) > 1:
                    ready.rotate(-1)
                return frame
            state.ready = False
            ready.popleft()
            if state.peers:
                self._deadlines.set(state.key, state.arm(now))
        return None

    def next_timer(self) -> float | None:
        return self._deadlines.next()

    def handle_timer(self, now: float) -> None:
        for key in self._deadlines.pop_due(now):
            state = self._items.get(key)
            if state is not None:
                state.positions.sync()
                state.handle_timer(now)
                self._wake(state)

    def next_event(self) -> SenderEvent | None:
        events = self._context.events
        return events.popleft() if events else None

    def _item(self, item: ItemId) -> ItemSender:
        key = bytes(item)
        state = self._items.get(key)
        if state is None:
            state = self._items[key] = ItemSender(self._context, item, self._versions_for(item))
        return state

    def _wake(self, state: ItemSender) -> None:
        """Ask the item for frames at the next opportunity; its timer is set when it has no more."""
        if not state.ready:
            state.ready = True
            self._ready.append(state)
