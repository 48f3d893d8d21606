"""`Delivery`: takes publications, and sends each to everyone who is subscribed. The asyncio shell around the queue.

    delivery = Delivery(database, subscribers, client, DeliveryConfig(hub_url), steady)
    await delivery.start()                                  # takes up what a crash or a stop left unfinished
    publication = await delivery.accept(topic, self_url, content)      # on disk when this returns; sent afterwards
    await delivery.stop()

All decisions are in `queue`. Here `_pump` goes round: rows that are due come back into the queue, what may be sent is
sent, pages are read, and what must be on disk goes there. It runs when something was accepted, answered or saved, and
when the next thing is due.
"""

import asyncio
import random
import time
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress

from push_hub.delivery.batch import Batch
from push_hub.delivery.config import DeliveryConfig
from push_hub.delivery.errors import ContentRefusedError, DeliveryOverloadedError
from push_hub.delivery.events import (
    BacklogRefused,
    Delivered,
    DeliveryEvent,
    DeliveryFailed,
    DeliveryStoreFailed,
    FanoutFinished,
    Observer,
    OutcomesSaved,
    PublicationAccepted,
    SubscriptionGone,
)
from push_hub.delivery.history import HistoryEntry, read_history
from push_hub.delivery.log import OwedDelivery, PublicationLog, StoredDeadLetter
from push_hub.delivery.parcels import Parcels
from push_hub.delivery.pausing import PAUSED, Pauses, make_due
from push_hub.delivery.queue import DeliveryQueue, QueueCounts
from push_hub.delivery.retention import Trimmed
from push_hub.delivery.retries import NEVER, RetryScan
from push_hub.delivery.saver import Clock, Saver, call_on
from push_hub.delivery.signing import PreparedPublication
from push_hub.delivery.walks import DeliveryJob, Walk
from push_hub.model import Content, HubPublication, HubSubscription, SubscriberSource
from serving.outbound.client import OutboundClient, PostOutcome
from serving.outbound.errors import OutboundError, ShareTakenError, UrlRefusedError
from storage import Database, StorageError, Transaction
from storage.queues import ConnectionChange, QueueObserver

STATUS_GONE = 410
ANSWER_LIMIT = 64 * 1024
TRIM_EVERY = 60.0
STOP_GRACE = 2.0
READ_RETRY = 1.0
LONGEST_SLEEP = 60.0


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
        gone: Callable[[HubSubscription], None] | None = None,
        rng: random.Random | None = None,
        queues: QueueObserver | None = None,
    ) -> None:
        """`queues`: whoever follows how long deliveries wait, and which callbacks are left alone."""
        self._queues = queues
        self._database = database
        self._subscribers = subscribers
        self._config = config
        self._clock = clock
        self._observer = observer
        self._gone = gone
        self._log = PublicationLog(database)
        jitter = rng or random.Random()  # noqa: S311 - not a secret
        self._queue = DeliveryQueue(config, jitter, client.prefixes.of)
        self._parcels = Parcels(self._log, config.hub_url, config.changes_for, config.kept_bytes)
        self._scan = RetryScan(self._log, self._queue, subscribers, self._parcels)
        self._saver = Saver(self._log, self._queue, clock, self._saved, self._save_failed, config.company)
        self._channel = client.channel(config.limits.timeout, ANSWER_LIMIT, self._answered, self._connected)
        self._pauses = Pauses(database)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._running = False
        self._quiet = asyncio.Event()
        self._pump_soon = False
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = 0.0
        self._trim_timer: asyncio.TimerHandle | None = None
        self.observer_errors = 0

    # Publications

    async def accept(
        self, topic: str, self_url: str, content: Content, along: Callable[[Transaction], None] | None = None
    ) -> HubPublication:
        """Returns when the publication is on disk, and with it what `along` writes.

        Raises `DeliveryOverloadedError` when too much waits already.
        """
        now = self._clock()
        if self._queue.walks >= self._config.max_backlog or len(self._queue.pending) >= self._config.max_retries_stored:
            self._tell(BacklogRefused(topic, now))
            raise DeliveryOverloadedError(self._config.overload_retry_after)
        draft = HubPublication(0, topic, self_url, content, now)
        parcel = self._prepared(draft)
        try:
            stored = self._log.append(topic, self_url, content, now, along)
        except StorageError as error:
            self._tell(BacklogRefused(topic, now))
            raise DeliveryOverloadedError(self._config.overload_retry_after) from error
        self._saver.flush(everything=True)  # in the same commit
        # Not after the await: a caller that goes away must not leave a stored publication lying.
        stored.add_done_callback(lambda done: self._accepted(done, draft, parcel))
        publication = await asyncio.shield(stored)
        return HubPublication(publication, topic, self_url, content, now)

    def since(self, topic: str, after_id: int, limit: int = 100) -> list[HubPublication]:
        """A topic's publications after one the reader knows, oldest first."""
        return self._log.since(topic, after_id, limit)

    def own_after(self, after_id: int, limit: int = 100) -> list[HubPublication]:
        """What was accepted here after a publication that the reader knows, of all topics, oldest first."""
        return self._log.own_after(after_id, limit)

    def latest(self, topic: str, limit: int = 1) -> list[HubPublication]:
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

    @property
    def is_idle(self) -> bool:
        """Nothing is being sent or written. Rows may wait for their next try."""
        return not (self._queue.walks or self._queue.is_sending) and self._saver.is_idle

    def history(self, subscription: int) -> list[HistoryEntry]:
        """The last tries for a live subscription, oldest first, also those before a restart."""
        found = self._subscribers.get(subscription, self._clock())
        return read_history(self._database, subscription, found.topic if found else "", self._config.history)

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
        self._scan.soon()
        self._schedule()
        return True

    async def retry_now(self, subscription: HubSubscription) -> bool:
        """Try what is owed to a subscription without waiting longer; False when nothing is, or while it is paused."""
        if subscription.id in self._pauses.paused:
            return False
        await self._saver.settled()  # what is written later would put it off again
        now = self._clock()
        due = await asyncio.wrap_future(self._database.write(lambda tx: make_due(tx, subscription.id, now)))
        self._queue.probe_soon(subscription.callback)
        self._scan.soon()
        self._schedule()
        return due

    async def pause(self, subscription: int) -> None:
        """Send nothing to a subscription until `resume`; it is owed. Raises `TooManyPausedError`."""
        await asyncio.wrap_future(self._pauses.pause(subscription))

    async def resume(self, subscription: int) -> bool:
        """Send again, beginning with what is owed; False when it was not paused."""
        await self._saver.settled()
        was = await asyncio.wrap_future(self._pauses.resume(subscription, self._clock()))
        self._scan.soon()
        self._schedule()
        return was

    def is_paused(self, subscription: int) -> bool:
        return subscription in self._pauses.paused

    # Life

    async def start(self) -> None:
        """Take up every unfinished fan-out at its saved position, and everything that is owed."""
        self._loop = asyncio.get_running_loop()
        with suppress(StorageError):  # a full disk must not keep the hub down; the rows come due by themselves
            await asyncio.wrap_future(self._log.release_claims(self._clock()))
        self._pauses.load()
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

    def wake(self) -> None:
        """Look now for what is due: for whoever set the clock forward."""
        self._schedule()

    async def stop(self) -> None:
        """Send nothing new, give what is under way a moment, and write down what is known."""
        self._running = False
        for timer in (self._timer, self._trim_timer):
            if timer is not None:
                timer.cancel()
        self._settle_down()
        with suppress(TimeoutError):
            async with asyncio.timeout(STOP_GRACE):
                await self._quiet.wait()

    def _settle_down(self) -> None:
        self._saver.flush(everything=True)
        if not self._queue.in_flight and self._saver.is_idle:
            self._quiet.set()

    # Going round

    def _schedule(self) -> None:
        if not self._pump_soon and self._loop is not None:
            self._pump_soon = True
            self._loop.call_soon(self._pump)

    def _pump(self) -> None:
        self._pump_soon = False
        if not self._running:
            self._settle_down()
            return
        now = self._clock()
        try:
            self._go_round(now)
        except StorageError as error:
            # What is in the queue stays there; the store may be able to read again in a moment.
            self._save_failed(str(error))
            if self._loop is not None:
                self._loop.call_later(READ_RETRY, self._schedule)
        self._arm(now)

    def _go_round(self, now: float) -> None:
        queue = self._queue
        due = queue.next_tick()
        if due is not None and due <= now:
            queue.tick(now)
        self._scan.run(now)
        self._send(queue.take(now), now)
        while queue.ready < self._config.limits.in_flight and (walk := queue.wants_page(now)) is not None:
            self._load_page(walk, now)
            self._send(queue.take(now), now)
        self._cut(queue.displaced(), now)
        self._saver.flush()

    def _arm(self, now: float) -> None:
        if self._loop is None:
            return
        tick = self._queue.next_tick()
        wanted = min(self._scan.due_at, NEVER if tick is None else tick)
        delay = min(max(wanted - now, 0.001), LONGEST_SLEEP)
        at = self._loop.time() + delay
        if self._timer is not None:
            if self._loop.time() < self._timer_at <= at:
                return
            self._timer.cancel()
        self._timer_at = at
        self._timer = self._loop.call_at(at, self._on_timer)

    def _on_timer(self) -> None:
        # Forgotten at once: a loop that fires a little early must not make it look as if it were still to come.
        self._timer = None
        self._schedule()

    def _load_page(self, walk: Walk, now: float) -> None:
        try:
            if walk.parcel is None:
                walk.parcel = self._parcels.get(walk.publication)
                if walk.parcel is None:
                    self._queue.drop_walk(walk)
                    return
            page = self._subscribers.page(walk.topic, walk.position, self._config.limits.page, now)
        except StorageError:
            self._queue.give_back(walk)
            raise
        if self._queues is None:
            self._queue.add_page(walk, page, now)
            return
        came_ns, found = time.monotonic_ns(), self._queue.ready + self._queue.in_flight
        for place, job in enumerate(self._queue.add_page(walk, page, now), found):
            job.stay = [came_ns, 0, place]

    # Sending

    def _send(self, jobs: list[DeliveryJob], now: float) -> None:
        post, paused = self._channel.post, self._pauses.paused
        for job in jobs:
            subscription = job.subscription
            if paused and subscription.id in paused:
                self._queue.set_aside(job, PAUSED)
                continue
            _, _, callback, _, _, _, lease_until, _ = subscription
            if lease_until <= now:
                self._queue.ended(job, "its lease ended before its turn came", now)
                continue
            headers, body = job.parcel.for_subscriber(subscription)
            try:
                if job.stay is not None:
                    job.stay[1] = time.monotonic_ns()
                job.token = post(callback, headers, body, job)
            except OutboundError as error:
                self._fail(job, 0, error.reason, now, reached=None, final=isinstance(error, UrlRefusedError))

    def _connected(self, job: DeliveryJob, prefix: str) -> bool:
        return self._queue.connected(job, prefix)

    def _answered(self, outcomes: list[PostOutcome]) -> None:
        now = self._clock()
        if self._observer is not None:
            for job, status, _, _ in outcomes:
                if 200 <= status < 300:
                    self._tell(Delivered(job.parcel.id, job.subscription, status, job.attempts + 1, now, job.stay))
        for job, status, retry_after, error in self._queue.delivered_at_once(outcomes):
            if 200 <= status < 300:
                was_well = job.recipient.host.breaker.is_closed
                self._queue.delivered(job, status, now)
                self._follow_breaker(job, was_well)
            elif status == STATUS_GONE:
                self._end(job, now)
            elif isinstance(error, ShareTakenError):
                self._queue.turned_away(job, now)
            elif error is not None:
                self._fail(job, 0, error.reason, now, reached=error.reached)
            else:
                reason = f"the callback answered {status}"
                self._fail(job, status, reason, now, retry_after=retry_after, reached=True)
        self._schedule()

    def _end(self, job: DeliveryJob, now: float) -> None:
        self._queue.ended(job, "the callback answered 410: it is gone", now, status=STATUS_GONE)
        if self._gone is not None:
            try:
                self._gone(job.subscription)
            except Exception:
                self.observer_errors += 1
        self._tell(SubscriptionGone(job.subscription, now))

    def _fail(
        self,
        job: DeliveryJob,
        status: int,
        reason: str,
        now: float,
        *,
        reached: bool | None,
        retry_after: float = 0.0,
        final: bool = False,
    ) -> None:
        was_well = job.recipient.host.breaker.is_closed
        given_up = self._queue.failed(
            job, reason, now, retry_after=retry_after, reached=reached, final=final, status=status
        )
        self._follow_breaker(job, was_well)
        self._tell(DeliveryFailed(job.parcel.id, job.subscription, reason, job.attempts + 1, given_up, now))

    def _follow_breaker(self, job: DeliveryJob, was_well: bool) -> None:
        """Whether a callback's host is left alone now, or sent to again."""
        is_well = job.recipient.host.breaker.is_closed
        if self._queues is not None and is_well != was_well:
            # By number: a callback's address may be a secret.
            self._queues(ConnectionChange(f"subscriber/{job.subscription.id}", is_well, time.monotonic_ns()))

    def _cut(self, jobs: list[DeliveryJob], now: float) -> None:
        for job in jobs:
            if job.token is None:
                self._queue.turned_away(job, now)  # it was not even sent
                continue
            self._channel.cut(job.token)  # type: ignore[arg-type]  # the token is what `post` returned
            self._fail(job, 0, "no answer while too many others of its network are slow", now, reached=None)

    # The log

    def _prepared(self, draft: HubPublication) -> PreparedPublication:
        if any(character in draft.self_url for character in '<>"\r\n'):
            raise ContentRefusedError("the topic's own URL has a character that a Link header cannot carry")
        try:
            return self._parcels.make(draft)
        except ValueError as error:
            raise ContentRefusedError(str(error)) from error

    def _accepted(self, stored: "asyncio.Future[int]", draft: HubPublication, parcel: PreparedPublication) -> None:
        if stored.cancelled() or stored.exception() is not None:
            return
        publication = HubPublication(stored.result(), draft.topic, draft.self_url, draft.content, draft.accepted_at)
        parcel.id = publication.id
        self._parcels.remember(parcel)
        if self._running:  # otherwise `start` finds it on disk
            self._queue.add_walk(publication.id, publication.topic, 0)
            self._schedule()
        size = len(publication.content.body)
        content, at = publication.content, publication.accepted_at
        self._tell(PublicationAccepted(publication.id, publication.topic, size, at, content))

    def _saved(self, batch: Batch) -> None:
        if batch.is_pressing:
            self._scan.soon()
        if self._observer is not None:
            now = self._clock()
            for publication in batch.finished:
                self._tell(FanoutFinished(publication, now))
            self._tell(OutcomesSaved(batch.released, now))
        self._schedule()

    def _save_failed(self, reason: str) -> None:
        self._tell(DeliveryStoreFailed(reason, self._clock()))

    def _trim(self) -> None:
        if self._loop is None or not self._running:
            return
        loop = self._loop
        try:
            trimmed = self._log.trim(self._config.retention, self._clock())
        except StorageError:
            self._trim_timer = loop.call_later(TRIM_EVERY, self._trim)
            return
        trimmed.add_done_callback(lambda done: call_on(loop, self._trimmed, done))

    def _trimmed(self, done: "Future[Trimmed]") -> None:
        if self._loop is None or not self._running:
            return
        more = done.exception() is None and done.result().more
        self._trim_timer = self._loop.call_later(0 if more else TRIM_EVERY, self._trim)

    def _tell(self, event: DeliveryEvent) -> None:
        if self._observer is not None:
            try:
                self._observer(event)
            except Exception:
                self.observer_errors += 1  # an observer's fault must not stop deliveries
