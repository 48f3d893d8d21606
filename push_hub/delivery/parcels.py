"""The publications that are being sent, ready for sending: a bounded cache in front of the log."""

from collections import OrderedDict

from push_hub.delivery.log import PublicationLog
from push_hub.delivery.signing import PreparedPublication
from push_hub.model import Dialect, HubPublication

CACHE_ENTRIES = 1024


class Parcels:
    def __init__(self, log: PublicationLog, hub_url: str, changes_for: frozenset[Dialect], most_bytes: int) -> None:
        self._log = log
        self._hub_url = hub_url
        self._changes_for = changes_for
        self._kept: OrderedDict[int, PreparedPublication] = OrderedDict()
        self._most_bytes = most_bytes
        self._bytes = 0

    def make(self, publication: HubPublication) -> PreparedPublication:
        """Raises `ValueError` when a header cannot carry what it should."""
        return PreparedPublication(publication, self._hub_url, self._changes_for)

    def get(self, publication: int) -> PreparedPublication | None:
        """None when the log does not have it any more."""
        parcel = self._kept.get(publication)
        if parcel is None:
            stored = self._log.get(publication)
            if stored is None:
                return None
            parcel = self.make(stored)
            self.remember(parcel)
        return parcel

    def remember(self, parcel: PreparedPublication) -> None:
        self._kept[parcel.id] = parcel
        self._bytes += parcel.size
        while len(self._kept) > 1 and (self._bytes > self._most_bytes or len(self._kept) > CACHE_ENTRIES):
            _, oldest = self._kept.popitem(last=False)
            self._bytes -= oldest.size
