"""Brings rows whose time has come back into the queue, the earliest first."""

from push_hub.delivery.batch import WAITING_FOR_ROOM, Key
from push_hub.delivery.log import PublicationLog
from push_hub.delivery.parcels import Parcels
from push_hub.delivery.queue import DeliveryQueue
from push_hub.model import SubscriberSource

SCAN_LIMIT = 256
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
        for key in self._queue.unparked():
            row = self._log.owed(key)
            if row is not None and key not in self._queue.active and self._queue.is_first_owed(key):
                self._offer(key, row.attempts, now)

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
            self._offer(key, row.attempts, now)
        following = self._log.next_due(now)
        self.due_at = now + SCAN_PAUSE if len(rows) >= limit else (following or NEVER)

    def _offer(self, key: Key, attempts: int, now: float) -> None:
        # Read anew: the subscriber may have left, or changed its secret, since the row was written.
        subscription = self._subscribers.get(key[0], now)
        parcel = self._parcels.get(key[1])
        if subscription is None or parcel is None:
            self._queue.drop_row(key)
        elif not self._queue.add_retry(subscription, parcel, attempts):
            self._queue.put_off(key, attempts, now + 1.0, WAITING_FOR_ROOM)
