"""The newest entry of items, kept from when it was put into the log until everybody here has had it. Sans-I/O.

Nearly every walk is about the one entry that was appended a moment ago. What is here spares it the way to the store
and back: for reading the entry, and for finding that there is no other behind it. Whoever needs more reads the log.
"""

from collections import OrderedDict
from collections.abc import Sequence

from exchange.model import LogEntry
from exchange.ports import Wanted
from identifiers import ItemId

MOST = 1_024
MOST_BYTES = 8 * 1024 * 1024


class NewestEntries:
    def __init__(self, gateway: bytes, most: int = MOST, most_bytes: int = MOST_BYTES) -> None:
        """`gateway`: whose publications entered here."""
        self._gateway = gateway
        self._most = most
        self._most_bytes = most_bytes
        self._kept: OrderedDict[ItemId, tuple[int, LogEntry]] = OrderedDict()
        self._bytes = 0
        self._forgotten = 0
        """The highest position of what there was no more room for."""

    def put(self, entry: LogEntry, previous: int) -> None:
        """`previous`: where the entry of its item before it stands; 0: there is none."""
        known = self._kept.get(entry.item)
        newest = self._forgotten if known is None else known[1].position
        if newest > entry.position:  # told of late: there is a newer one
            return
        if known is not None:
            self._drop(entry.item)
        self._kept[entry.item] = (previous, entry)
        self._bytes += entry.size
        while self._kept and (len(self._kept) > self._most or self._bytes > self._most_bytes):
            item, (_, oldest) = next(iter(self._kept.items()))
            self._forgotten = max(self._forgotten, oldest.position)
            self._drop(item)

    def behind(self, wanted: Wanted, position: int) -> Sequence[LogEntry] | None:
        """What a session at this position is to be given of an item. None: not known here."""
        known = self._kept.get(wanted.item)
        if known is None:
            return None
        previous, entry = known
        if position >= entry.position:
            return ()
        if position < previous:
            return None
        is_left_out = entry.via == wanted.not_via or (wanted.entered_here and entry.origin.gateway != self._gateway)
        return () if is_left_out else (entry,)

    def _drop(self, item: ItemId) -> None:
        _, entry = self._kept.pop(item)
        self._bytes -= entry.size
