"""What a node received lately, for applications that subscribe to an item which the node has already."""

from collections import OrderedDict, deque

from identifiers import ItemId
from psirp_stack.node.attachment import ReceivedVersion

MAX_BYTES = 64 * 1024 * 1024
MAX_PER_ITEM = 64
OVERHEAD = 512
"""What a publication costs beside its content."""


class RecentPublications:
    """The latest versions of each item, the items used least recently let go first when there is too much."""

    def __init__(self, max_bytes: int = MAX_BYTES, max_per_item: int = MAX_PER_ITEM) -> None:
        self._max_bytes = max_bytes
        self._max_per_item = max_per_item
        self._items: OrderedDict[ItemId, deque[ReceivedVersion]] = OrderedDict()
        self._bytes = 0

    @property
    def bytes_kept(self) -> int:
        return self._bytes

    def add(self, item: ItemId, publication: ReceivedVersion) -> None:
        kept = self._items.setdefault(item, deque())
        self._items.move_to_end(item)
        kept.append(publication)
        self._bytes += _cost(publication)
        while len(kept) > self._max_per_item:
            self._bytes -= _cost(kept.popleft())
        while self._bytes > self._max_bytes and len(self._items) > 1:
            self.forget(next(iter(self._items)))
        while self._bytes > self._max_bytes and len(kept) > 1:
            self._bytes -= _cost(kept.popleft())

    def since(self, item: ItemId, version: bytes | None) -> list[ReceivedVersion]:
        """What came after a version; only the latest when that version is not kept, or none was named."""
        kept = self._items.get(item)
        if not kept:
            return []
        if version is not None:
            for place in range(len(kept) - 1, -1, -1):
                if kept[place].version == version:
                    return list(kept)[place + 1 :]
        return [kept[-1]]

    def forget(self, item: ItemId) -> None:
        for publication in self._items.pop(item, ()):
            self._bytes -= _cost(publication)


def _cost(publication: ReceivedVersion) -> int:
    return len(publication.content) + len(publication.attributes) + OVERHEAD
