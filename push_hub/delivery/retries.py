"""Brings rows back into the queue: whose time has come, for whom there is room again, and to be tried early."""

from push_hub.delivery.batch import FAR
from push_hub.delivery.log import DueRow, PublicationLog
from push_hub.delivery.parcels import Parcels
from push_hub.delivery.queue import DeliveryQueue
from push_hub.model import SubscriberSource

SCAN_LIMIT = 256
EARLY_AT_ONCE = 64
SCAN_PAUSE = 0.05
NEVER = float("inf")


class RetryScan:
    """`due_at` is when to look next; every look reads at most a bounded number of rows."""

    def __init__(
        self, log: PublicationLog, queue: DeliveryQueue, subscribers: SubscriberSource, parcels: Parcels
    ) -> None:
        self._log = log
        self._queue = queue
        self._subscribers = subscribers
        self._parcels = parcels
        self._looked_at = 0.0
        self.due_at = 0.0

    def soon(self) -> None:
        """Rows were written, or settled so that others are due: look again."""
        self.due_at = 0.0

    def run(self, now: float) -> None:
        if now >= self.due_at and now - self._looked_at >= SCAN_PAUSE:
            self._look(now)
        queue = self._queue
        for key in queue.unparked():
            row = self._log.owed(key)
            if row is not None and key not in queue.active and queue.is_first_owed(key):
                self._offer(row, now)
        for key in queue.early(min(EARLY_AT_ONCE, queue.room_for_retries())):
            row = self._log.owed(key)
            if row is None:
                queue.early_later(key)
            elif queue.is_first_owed(key):
                self._offer_early(row, now)

    def _look(self, now: float) -> None:
        queue = self._queue
        room = min(queue.room_for_retries(), SCAN_LIMIT)
        self._looked_at = now
        if not room:
            self.due_at = now + SCAN_PAUSE
            return
        limit = room + len(queue.active)
        rows = self._log.due(now, limit)
        for row in rows:
            key = (row.subscription, row.publication)
            if key in queue.active or not queue.is_first_owed(key):
                continue
            if room <= 0:
                break
            room -= 1
            self._offer(row, now)
        following = self._log.next_due(now)
        self.due_at = now + SCAN_PAUSE if len(rows) >= limit else (following or NEVER)

    def _offer(self, row: DueRow, now: float) -> None:
        key = (row.subscription, row.publication)
        # Read anew: the subscriber may have left, or changed its secret, since the row was written.
        subscription = self._subscribers.get(row.subscription, now)
        parcel = self._parcels.get(row.publication)
        if subscription is None or parcel is None:
            self._queue.drop_row(key)
        elif not self._queue.add_retry(subscription, parcel, row.attempts):
            self._queue.park_row(key, subscription.callback, row.attempts, now)

    def _offer_early(self, row: DueRow, now: float) -> None:
        """Not when nobody knows when its time is, when the callback said that it wants to be left alone, or when its
        host cannot be reached."""
        if row.next_try_at >= FAR or now < row.asked_until:
            return
        subscription = self._subscribers.get(row.subscription, now)
        parcel = self._parcels.get(row.publication)
        if subscription is None or parcel is None or not self._queue.can_be_reached(subscription.callback, now):
            return
        if self._queue.add_retry(subscription, parcel, row.attempts, row.next_try_at):
            self._queue.counts.early += 1
