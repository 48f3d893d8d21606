"""How long entries wait for sessions, for whoever follows it: from when an entry is in the log until it was taken."""

import time
import zlib
from typing import Final

from exchange.model import SessionKey
from identifiers import ItemId
from storage.queues import ConnectionChange, OpenStay, QueueObserver, QueueWatch

FOLLOWED: Final = 10_000
"""Entries that wait and are followed; others are looked at only from their hand-over on."""
RESOURCES: Final = 1_000

Waiting = dict[int, OpenStay]


def session_resource(key: SessionKey) -> str:
    """A protocol's only session has its name; of several, each a number made of who it is, which may be a secret."""
    return f"session/{key.reader}" + (f"/{zlib.crc32(key.who.encode()):08x}" if key.who else "")


class SessionQueues:
    def __init__(self, tell: QueueObserver) -> None:
        self._tell = tell
        self._watches: dict[str, QueueWatch] = {}
        self._waiting: dict[tuple[SessionKey, ItemId], Waiting] = {}
        self._count = 0

    def changed(self, key: SessionKey, is_up: bool) -> None:
        self._tell(ConnectionChange(session_resource(key), is_up, time.monotonic_ns()))

    def came(self, key: SessionKey, item: ItemId, position: int) -> None:
        """An entry is there for a session, which may be away."""
        if self._count < FOLLOWED:
            self._waiting.setdefault((key, item), {}).setdefault(position, self._watch(key).came())
            self._count += 1

    def begins(self, key: SessionKey, item: ItemId, position: int) -> OpenStay:
        """An entry is handed over now. Those before it were passed over."""
        waiting = self._waiting.get((key, item))
        stay = None
        for passed in [one for one in waiting or () if one <= position]:
            assert waiting is not None  # noqa: S101 - something is in it
            one = waiting.pop(passed)
            self._count -= 1
            if passed == position:
                stay = one
            else:
                one.leaves()
        if waiting is not None and not waiting:
            del self._waiting[key, item]
        if stay is None:
            stay = self._watch(key).came()
        stay.begins()
        return stay

    def forget(self, key: SessionKey, item: ItemId) -> None:
        for stay in self._waiting.pop((key, item), {}).values():
            self._count -= 1
            stay.leaves()

    def _watch(self, key: SessionKey) -> QueueWatch:
        resource = session_resource(key)
        watch = self._watches.get(resource)
        if watch is None:
            if len(self._watches) >= RESOURCES:
                del self._watches[next(iter(self._watches))]
            watch = self._watches[resource] = QueueWatch(resource, self._tell)
        return watch
