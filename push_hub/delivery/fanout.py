"""`Delivery`: takes publications, and sends each to everyone who is subscribed. The asyncio shell around the queue.

    delivery = Delivery(database, subscribers, client, DeliveryConfig(hub_url), time.time)
    await delivery.start()                                  # takes up what a crash or a stop left unfinished
    publication = await delivery.accept(topic, self_url, content)      # on disk when this returns; sent afterwards
    await delivery.stop()

All decisions are in `queue`; here pages are read, requests sent, batches written, and timers armed. One batch is
written at a time: whatever happens while the disk is busy goes into the next one.
"""

import asyncio
import random
from collections import OrderedDict, deque
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from push_hub.delivery.config import DeliveryConfig
from push_hub.delivery.errors import ContentRefusedError, OverloadedError
from push_hub.delivery.events import (
    Delivered,
    DeliveryEvent,
    DeliveryFailed,
    FanoutFinished,
    Observer,
    PublicationAccepted,
    PublicationRefused,
    StoreFailed,
    SubscriptionGone,
)
from push_hub.delivery.log import REMOVED_AT_ONCE, OwedDelivery, PublicationLog, StoredDeadLetter
from push_hub.delivery.queue import WAITING_FOR_ROOM, Batch, DeliveryQueue, Job, Key, QueueCounts, Walk
from push_hub.delivery.signing import Parcel
from push_hub.model import Content, Publication, SubscriberSource, Subscription
from push_hub.outbound.client import OutboundClient
from push_hub.outbound.errors import OutboundError, UrlRefusedError
from storage import Database, StorageError

STATUS_GONE = 410
STATUS_TOO_MANY = 429
FIRST_SERVER_ERROR = 500
ANSWER_LIMIT = 64 * 1024
PARCEL_CACHE_BYTES = 64 << 20
PARCEL_CACHE_ENTRIES = 1024
SCAN_LIMIT = 256
SCAN_PAUSE = 0.05
SAVE_RETRY = 1.0
TRIM_EVERY = 60.0
STOP_GRACE = 2.0
STOP_POLL = 0.01
LONGEST_SLEEP = 60.0

Clock = Callable[[], float]


@dataclass(frozen=True, slots=True)
class HistoryEntry:
    """One try. `reason` is None when it was delivered."""

    publication: int
    at: float
    status: int
    reason: str | None


class Delivery:
    def __init__(
        self,
        database: Database,
        subscribers: SubscriberSource,
        client: OutboundClient,
        config: DeliveryConfig,
        clock: Clock,
        observer: Observer | None = None,
        *,
        gone: Callable[[Subscription], None] | None = None,
        rng: random.Random | None = None,
    ) -> None:
        self._log = PublicationLog(database)
        self._subscribers = subscribers
        self._client = client
        self._config = config
        self._clock = clock
        self._observer = observer
        self._gone = gone
        self._queue = DeliveryQueue(config, rng or random.Random())  # noqa: S311 - jitter, not a secret
        self._timeout_ms = round(config.limits.timeout * 1000)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._running = False
        self._pump_soon = False
        self._saving = False
        self._unsaved: Batch | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = 0.0
        self._trim_timer: asyncio.TimerHandle | None = None
        self._scan_at = 0.0
        self._scanned_at = 0.0
        self._parcels: OrderedDict[int, Parcel] = OrderedDict()
        self._parcel_bytes = 0
        self._history: dict[int, deque[tuple[int, float, int, str | None]]] = {}
        self.observer_errors = 0

    # Publications

    async def accept(self, topic: str, self_url: str, content: Content) -> Publication:
        """Returns when the publication is on disk. Raises `OverloadedError` when too much waits already."""
        now = self._clock()
        if self._queue.walks >= self._config.max_backlog or len(self._queue.pending) >= self._config.max_retries_stored:
            self._tell(PublicationRefused(topic, now))
            raise OverloadedError(self._config.overload_retry_after)
        draft = Publication(0, topic, self_url, content, now)
        self._check(draft)
        try:
            stored = self._log.append(topic, self_url, content, now)
        except StorageError as error:
            self._tell(PublicationRefused(topic, now))
            raise OverloadedError(self._config.overload_retry_after) from error
        loop = asyncio.get_running_loop()
        # Not after the await: a caller that goes away must not leave a stored publication lying.
        stored.add_done_callback(lambda done: loop.call_soon_threadsafe(self._accepted, done, draft))
        publication = await asyncio.wrap_future(stored)
        return Publication(publication, topic, self_url, content, now)

    def since(self, topic: str, after_id: int, limit: int = 100) -> list[Publication]:
        """A topic's publications after one the reader knows, oldest first."""
        return self._log.since(topic, after_id, limit)

    def latest(self, topic: str, limit: int = 1) -> list[Publication]:
        """A topic's newest publications, newest first."""
        return self._log.latest(topic, limit)

    # For people

    @property
    def counts(self) -> QueueCounts:
        return self._queue.counts

    @property
    def backlog(self) -> int:
        """Fan-outs that are not finished."""
        return self._queue.walks

    def history(self, subscription: int) -> list[HistoryEntry]:
        """The last tries for a subscription since the start of this process, oldest first."""
        return [HistoryEntry(*entry) for entry in self._history.get(subscription, ())]

    def owed(self, subscription: int, limit: int = 100) -> list[OwedDelivery]:
        """What a subscription has not been given yet, with the reason and the time of the next try."""
        return self._log.owed_to(subscription, limit)

    def dead_letters(self, after_id: int = 0, limit: int = 100, topic: str | None = None) -> list[StoredDeadLetter]:
        return self._log.dead_letters(after_id, limit, topic)

    async def replay(self, dead_letter: int) -> bool:
        """Try a dead letter again; False when it, or its publication, is not kept any more."""
        key = await asyncio.wrap_future(self._log.revive(dead_letter, self._clock()))
        if key is None:
            return False
        self._queue.restore_pending([key])
        self._scan_at = 0.0
        self._schedule()
        return True

    # Life

    async def start(self) -> None:
        """Take up every unfinished fan-out at its saved position, and everything that is owed."""
        self._loop = asyncio.get_running_loop()
        with suppress(StorageError):  # a full disk must not keep the hub down; the rows come due by themselves
            await asyncio.wrap_future(self._log.release_claims(self._clock()))
        owed, unfinished = self._log.owed_keys(), self._log.unfinished()
        self._queue.restore_pending(owed)
        has_rows: dict[int, set[int]] = {fanout.publication: set() for fanout in unfinished}
        for subscription, publication in owed:
            if publication in has_rows:
                has_rows[publication].add(subscription)
        for fanout in unfinished:
            self._queue.add_walk(fanout.publication, fanout.topic, fanout.position, has_rows[fanout.publication])
        self._running = True
        self._schedule()
        self._trim_timer = self._loop.call_later(TRIM_EVERY, self._trim)

    async def stop(self) -> None:
        """Send nothing new, give what is under way a moment, and write down what is known."""
        self._running = False
        for timer in (self._timer, self._trim_timer):
            if timer is not None:
                timer.cancel()
        grace = STOP_GRACE
        while grace > 0 and (self._queue.in_flight or self._saving or self._queue.batch):
            if not self._saving:
                self._flush()
            await asyncio.sleep(STOP_POLL)
            grace -= STOP_POLL

    # Inside

    def _check(self, draft: Publication) -> None:
        if any(character in draft.self_url for character in '<>"\r\n'):
            raise ContentRefusedError("the topic's own URL has a character that a Link header cannot carry")
        try:
            Parcel(draft, self._config.hub_url, self._config.changes_for)
        except ValueError as error:
            raise ContentRefusedError(str(error)) from error

    def _accepted(self, stored: "Future[int]", draft: Publication) -> None:
        if stored.cancelled() or stored.exception() is not None:
            return
        publication = Publication(stored.result(), draft.topic, draft.self_url, draft.content, draft.accepted_at)
        self._remember(Parcel(publication, self._config.hub_url, self._config.changes_for))
        if self._running:  # otherwise `start` finds it on disk
            self._queue.add_walk(publication.id, publication.topic, 0)
            self._schedule()
        size = len(publication.content.body)
        self._tell(PublicationAccepted(publication.id, publication.topic, size, publication.accepted_at))

    def _schedule(self) -> None:
        if not self._pump_soon and self._loop is not None:
            self._pump_soon = True
            self._loop.call_soon(self._pump)

    def _pump(self) -> None:
        """Send what may be sent, write what must be written, and arm the timer for the next thing due."""
        self._pump_soon = False
        if not self._running:
            return
        queue = self._queue
        now = self._clock()
        due = queue.next_tick()
        if due is not None and due <= now:
            self._cut_slow(queue.tick(now))
        if now >= self._scan_at and now - self._scanned_at >= SCAN_PAUSE:
            self._scan(now)
        for key in queue.unparked():
            self._offer(key, now)
        self._send_ready(now)
        while queue.ready < self._config.limits.in_flight and (walk := queue.wants_page()) is not None:
            self._load_page(walk, now)
            self._send_ready(now)
        self._flush()
        self._arm(now)

    def _send_ready(self, now: float) -> None:
        take, send = self._queue.take, self._send
        while (job := take(now)) is not None:
            send(job, now)

    def _load_page(self, walk: Walk, now: float) -> None:
        if walk.parcel is None:
            walk.parcel = self._parcel(walk.publication)
            if walk.parcel is None:
                self._queue.drop_walk(walk)
                return
        page = self._subscribers.page(walk.topic, walk.position, self._config.limits.page, now)
        self._queue.add_page(walk, page, now)

    def _send(self, job: Job, now: float) -> None:
        subscription = job.subscription
        if subscription.lease_until <= now:
            self._queue.ended(job)
            return
        headers, body = job.parcel.for_subscriber(subscription)
        try:
            job.token = self._client.post(
                subscription.callback, headers, body, self._timeout_ms, ANSWER_LIMIT, job, self._done
            )
        except OutboundError as error:
            self._fail(job, 0, error.reason, 0.0, host_failed=False, final=isinstance(error, UrlRefusedError))

    def _done(self, job: Any, status: int, retry_after: int, error: OutboundError | None) -> None:
        if 200 <= status < 300:
            self._queue.delivered(job)
            now = self._clock()
            self._note(job.subscription.id, (job.parcel.id, now, status, None))
            if self._observer is not None:
                self._tell(Delivered(job.parcel.id, job.subscription, status, job.attempts + 1, now))
        elif status == STATUS_GONE:
            self._end(job)
        else:
            reason = error.reason if error is not None else f"the callback answered {status}"
            host_failed = status == 0 or status == STATUS_TOO_MANY or status >= FIRST_SERVER_ERROR
            self._fail(job, status, reason, float(retry_after), host_failed=host_failed, final=False)
        self._schedule()

    def _end(self, job: Job) -> None:
        now = self._clock()
        self._queue.ended(job)
        self._note(job.subscription.id, (job.parcel.id, now, STATUS_GONE, "the callback answered 410: it is gone"))
        if self._gone is not None:
            try:
                self._gone(job.subscription)
            except Exception:
                self.observer_errors += 1
        self._tell(SubscriptionGone(job.subscription, now))

    def _fail(self, job: Job, status: int, reason: str, retry_after: float, *, host_failed: bool, final: bool) -> None:
        now = self._clock()
        self._note(job.subscription.id, (job.parcel.id, now, status, reason))
        given_up = self._queue.failed(job, reason, now, retry_after=retry_after, host_failed=host_failed, final=final)
        self._tell(DeliveryFailed(job.parcel.id, job.subscription, reason, job.attempts + 1, given_up, now))

    def _cut_slow(self, jobs: list[Job]) -> None:
        for job in jobs:
            if job.token is not None:
                self._client.cut(job.token)  # type: ignore[arg-type]  # the token is what `post` returned
            reason = f"no answer within {self._config.limits.slow_after:g} seconds while too many others are slow"
            self._fail(job, 0, reason, 0.0, host_failed=True, final=False)

    # What is owed

    def _scan(self, now: float) -> None:
        room = min(self._queue.room_for_retries(), SCAN_LIMIT)
        self._scanned_at = now
        if not room:
            self._scan_at = now + SCAN_PAUSE
            return
        limit = room + len(self._queue.active)
        rows = self._log.due(now, limit)
        for row in rows:
            key = (row.subscription, row.publication)
            if key in self._queue.active or not self._queue.is_first_owed(key):
                continue
            if room <= 0:
                break
            room -= 1
            self._offer_row(key, row.attempts, now)
        following = self._log.next_due(now)
        self._scan_at = now + SCAN_PAUSE if len(rows) >= limit else (following or float("inf"))

    def _offer(self, key: Key, now: float) -> None:
        row = self._log.owed(key)
        if row is not None and key not in self._queue.active and self._queue.is_first_owed(key):
            self._offer_row(key, row.attempts, now)

    def _offer_row(self, key: Key, attempts: int, now: float) -> None:
        subscription = self._subscribers.get(key[0], now)
        parcel = self._parcel(key[1])
        if subscription is None or parcel is None:
            self._queue.drop_row(key)
        elif not self._queue.add_retry(subscription, parcel, attempts):
            self._queue.put_off(key, attempts, now + 1.0, WAITING_FOR_ROOM)

    def _parcel(self, publication: int) -> Parcel | None:
        parcel = self._parcels.get(publication)
        if parcel is None:
            stored = self._log.get(publication)
            if stored is None:
                return None
            parcel = Parcel(stored, self._config.hub_url, self._config.changes_for)
            self._remember(parcel)
        return parcel

    def _remember(self, parcel: Parcel) -> None:
        self._parcels[parcel.id] = parcel
        self._parcel_bytes += parcel.size
        while len(self._parcels) > 1 and (
            self._parcel_bytes > PARCEL_CACHE_BYTES or len(self._parcels) > PARCEL_CACHE_ENTRIES
        ):
            _, oldest = self._parcels.popitem(last=False)
            self._parcel_bytes -= oldest.size

    # Disk and timers

    def _flush(self) -> None:
        if self._saving or (self._unsaved is None and not self._queue.batch):
            return
        batch = self._unsaved or self._queue.take_batch()
        self._unsaved = batch
        self._saving = True
        loop = asyncio.get_running_loop()
        try:
            saved = self._log.save(batch, self._clock())
        except StorageError as error:
            self._save_failed(error)
            return
        saved.add_done_callback(lambda done: _call_on(loop, self._saved, batch, done))

    def _saved(self, batch: Batch, done: "Future[None]") -> None:
        error = done.exception()
        if error is not None:
            self._save_failed(error)
            return
        self._saving = False
        self._unsaved = None
        self._queue.saved(batch)
        if batch.rows or batch.settled or batch.behind:
            self._scan_at = 0.0
        if self._observer is not None:
            for publication in batch.finished:
                self._tell(FanoutFinished(publication, self._clock()))
        self._schedule()

    def _save_failed(self, error: BaseException) -> None:
        """The batch is kept and tried again; meanwhile deliveries stop when the window is full."""
        self._tell(StoreFailed(str(error), self._clock()))
        if self._loop is not None and self._running:
            self._loop.call_later(SAVE_RETRY, self._save_again)

    def _save_again(self) -> None:
        self._saving = False
        self._schedule()

    def _arm(self, now: float) -> None:
        if self._loop is None:
            return
        wanted = min(self._scan_at, self._queue.next_tick() or float("inf"))
        delay = min(max(wanted - now, 0.001), LONGEST_SLEEP)
        at = self._loop.time() + delay
        if self._timer is not None:
            if self._loop.time() < self._timer_at <= at:
                return
            self._timer.cancel()
        self._timer_at = at
        self._timer = self._loop.call_at(at, self._wake_up)

    def _wake_up(self) -> None:
        # Forgotten first: uvloop fires up to a millisecond early, and then `_arm` would take it for still set.
        self._timer = None
        self._schedule()

    def _trim(self) -> None:
        if self._loop is None or not self._running:
            return
        loop = self._loop
        with suppress(StorageError):
            removed = self._log.trim(self._config.retention, self._clock())
            removed.add_done_callback(lambda done: _call_on(loop, self._trimmed, done))

    def _trimmed(self, done: "Future[int]") -> None:
        if self._loop is None or not self._running:
            return
        more = done.exception() is None and done.result() >= REMOVED_AT_ONCE
        self._trim_timer = self._loop.call_later(0 if more else TRIM_EVERY, self._trim)

    def _note(self, subscription: int, entry: tuple[int, float, int, str | None]) -> None:
        entries = self._history.get(subscription)
        if entries is None:
            if len(self._history) >= self._config.history_subscriptions:
                del self._history[next(iter(self._history))]
            entries = self._history[subscription] = deque(maxlen=self._config.history)
        entries.append(entry)

    def _tell(self, event: DeliveryEvent) -> None:
        if self._observer is not None:
            try:
                self._observer(event)
            except Exception:
                self.observer_errors += 1  # an observer's fault must not stop deliveries


def _call_on(loop: asyncio.AbstractEventLoop, function: Callable[..., None], *arguments: object) -> None:
    """From the writer's thread to the loop; the loop may be closed by then."""
    with suppress(RuntimeError):
        loop.call_soon_threadsafe(function, *arguments)
