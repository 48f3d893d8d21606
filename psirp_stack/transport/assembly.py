"""The versions of one item that are being put together, by version id: which have a place, and which no room."""

from collections.abc import Iterable

from psirp_stack.transport.accounts import BODY_COST
from psirp_stack.transport.early_segments import EarlySegments
from psirp_stack.transport.reader_room import ReaderRoom
from psirp_stack.transport.reassembly import Body
from psirp_stack.transport.source import PublisherSequence, Slot


class Assembly:
    """Two versions with the same content, of one publisher or of several, share one place."""

    def __init__(self, room: ReaderRoom, early: EarlySegments) -> None:
        self._room = room
        self._early = early
        self._bodies: dict[bytes, Body] = {}
        self._unopened: set[bytes] = set()

    def body(self, version_id: bytes) -> Body | None:
        return self._bodies.get(version_id)

    def has_no_room_for(self, version_id: bytes) -> bool:
        return version_id in self._unopened

    def open(self, source: PublisherSequence, slot: Slot, now: float) -> Body | None:
        """Make a place for a version's content, with what is there of it already; None without room for it."""
        announced = slot.announcement
        if announced is None or slot.body is not None or slot.complete:
            return None
        size = slot.length + announced.attributes_in_body
        body = self._bodies.get(slot.version_id)
        if body is None:
            room = self._room.bytes
            open_bytes = sum(body.size for body in self._bodies.values()) if self._bodies else 0
            no_room = slot.number != source.expected and open_bytes + size > max(room, self._room.offered)
            if room <= 0 or no_room or not source.account.charge(BODY_COST):
                self._unopened.add(slot.version_id)
                self._early.take(slot.version_id)
                return None
            self._unopened.discard(slot.version_id)
            body = self._bodies[slot.version_id] = Body(
                slot.version_id, slot.number, size, announced.segment_size, now, source
            )
        elif body.size != size:
            return None  # the same content with attributes of another length: its turn comes after the other's
        slot.body = body
        early = self._early.take(slot.version_id)
        if early is not None:
            for number, payload in early.parts.items():
                if body.lacks(number, payload):
                    body.add(number, payload, now)
        return body

    def finish(self, body: Body) -> bytes:
        """All of a version, which gives up its place."""
        content = body.join()
        self._drop(body)
        return content

    def close(self, source: PublisherSequence, slot: Slot, sources: Iterable[PublisherSequence]) -> None:
        """Let go of a version's content, unless another version of these sources has the same."""
        body, slot.body = slot.body, None
        if slot.complete:
            source.account.release(len(slot.content))
        self._unopened.discard(slot.version_id)
        if body is not None and not any(other.body is body for each in sources for other in each.slots.values()):
            self._drop(body)

    def _drop(self, body: Body) -> None:
        if self._bodies.pop(body.version_id, None) is not None:
            body.clear()
            body.source.account.release(BODY_COST)
