"""Pages of subscribers that were read before: who is subscribed changes seldom, and is asked for every publication.

A topic's stamp is another after each change of one of its subscriptions, by whomever: triggers see to that. A page is
good as long as the stamp is the one it was read with, none of its leases has ended, and the clock was not set back to
where others that are not in it had not ended either.
"""

from collections import OrderedDict
from collections.abc import Sequence
from typing import NamedTuple

from push_hub.model import HubSubscription

DEFAULT_KEPT = 32_768
"""Subscriptions kept, about 400 bytes each."""


class _Kept(NamedTuple):
    stamp: int
    since: float
    """When it was read."""
    until: float
    """The end of the lease that ends first."""
    page: Sequence[HubSubscription]


class SubscriberCache:
    def __init__(self, most: int = DEFAULT_KEPT) -> None:
        self._most = most
        self._pages: OrderedDict[tuple[str, int, int], _Kept] = OrderedDict()
        self._kept = 0

    def __len__(self) -> int:
        """Subscriptions that are kept."""
        return self._kept

    def find(self, topic: str, after_id: int, limit: int, stamp: int, now: float) -> Sequence[HubSubscription] | None:
        key = (topic, after_id, limit)
        kept = self._pages.get(key)
        if kept is None:
            return None
        if kept.stamp != stamp or not kept.since <= now < kept.until:
            self._drop(key)
            return None
        self._pages.move_to_end(key)
        return kept.page

    def keep(
        self, topic: str, after_id: int, limit: int, stamp: int, now: float, page: Sequence[HubSubscription]
    ) -> None:
        """Not of subscribers who want differences: whether they get them depends on more than their subscription."""
        if not page or len(page) > self._most:
            return
        key = (topic, after_id, limit)
        self._drop(key)
        self._pages[key] = _Kept(stamp, now, min(subscription.lease_until for subscription in page), page)
        self._kept += len(page)
        while self._kept > self._most:
            self._drop(next(iter(self._pages)))

    def _drop(self, key: tuple[str, int, int]) -> None:
        kept = self._pages.pop(key, None)
        if kept is not None:
            self._kept -= len(kept.page)
