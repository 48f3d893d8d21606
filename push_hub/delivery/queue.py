"""Who is sent to next, and what must be written down: the core of the fan-out. No I/O, no clock.

Rules of this file
    A delivery is reserved when its page is loaded and released when a batch that holds its outcome is saved. No more
    than `chunk` are reserved at a time: that is all a crash can repeat.
    Batches are saved in the order they were taken. A page's position is in a batch no earlier than the rows of its
    failed deliveries, so a saved position never jumps over a delivery that is neither made nor written down.
    A delivery that has no answer `slow_after` after it was sent, or found no lane in that time, is written down as a
    row and leaves its page; the answer, when it comes, settles the row. So a slow callback holds back neither its page
    nor the walk.
    A subscriber with a row on disk (or on its way there) gets later publications behind it, as rows: order is kept.
    A new publication makes the first of them be tried at once, without counting that try, unless the callback itself
    said when to come back.
    How many are under way at a time, and whose, is decided in `lanes`. Where waiting deliveries of one network keep a
    walk from loading anything at all, they become rows.

What comes in, in this order: walks and pages of subscribers (`add_walk`, `wants_page`, `add_page`) and rows that are
due (`add_retry`); then `take` says what to send; `delivered`, `ended`, `failed`, `turned_away` and `tick` say what
became of it; `displaced` says what to cut off; and `take_batch` and `saved` carry what must be on disk.
"""

import heapq
import random
from collections import deque
from collections.abc import Callable, Iterable, Sequence, Set
from dataclasses import dataclass

from push_hub.delivery.batch import CLAIMED, FAR, WAITING_FOR_ROOM, Batch, DeadLetter, Key, Row, Try
from push_hub.delivery.config import DeliveryConfig, QueueLimits
from push_hub.delivery.hosts import PROOFS_OF_SLOW, Recipients
from push_hub.delivery.lanes import DeliveryLanes
from push_hub.delivery.signing import PreparedPublication
from push_hub.delivery.walks import DONE, SENT, WAITING, DeliveryJob, Pace, Turns, Walk, WalkPage
from push_hub.model import HubSubscription
from serving.fairness import KnownPrefixes
from serving.outbound.values import PostOutcome

PARKED_NET = 60.0  # a parked row is due after this, should its place in memory be lost
CLAIM_MARGIN = 5.0
BATCHES_PER_CHUNK = 2
EARLY_KEPT = 65_536  # tries before their time that are remembered; beyond, a row waits for its own
RETRIES_INTO_FULL = 16
QUICK = Pace.QUICK
SLOW = Pace.SLOW


@dataclass(slots=True)
class QueueCounts:
    delivered: int = 0
    failed: int = 0
    dead: int = 0
    detached: int = 0
    parked: int = 0
    cut_slow: int = 0
    turned_away: int = 0
    stepped_aside: int = 0
    early: int = 0
    held_by_breaker: int = 0
    behind: int = 0


class DeliveryQueue:
    def __init__(
        self,
        config: DeliveryConfig,
        rng: random.Random,
        prefix_of_name: Callable[[str], str] | None = None,
    ) -> None:
        self._config = config
        self._limits: QueueLimits = config.limits
        self._rng = rng
        self.counts = QueueCounts()
        self.batch = Batch()
        self.reserved = 0
        self.pending: dict[int, set[int]] = {}
        self.active: set[Key] = set()
        self._turns = Turns()
        self._recipients = Recipients(config.limits, config.breaker, prefix_of_name or KnownPrefixes().of)
        self.lanes = DeliveryLanes(config.limits, self._recipients)
        self._ready: deque[DeliveryJob] = deque()
        self._retries: deque[DeliveryJob] = deque()
        self._aging: list[tuple[float, int, WalkPage]] = []
        self._looked_for_crowds = 0.0
        self._pages = 0
        self._early: dict[Key, None] = {}

    # Filling

    @property
    def walks(self) -> int:
        return self._turns.unfinished

    @property
    def ready(self) -> int:
        """Loaded, but not sent."""
        return len(self._ready)

    @property
    def in_flight(self) -> int:
        """Under way, or with a lane of their own at least."""
        return self.lanes.in_flight

    @property
    def is_sending(self) -> bool:
        return bool(self.lanes.in_flight or self.lanes.slow)

    def restore_pending(self, rows: Iterable[Key]) -> None:
        """The rows that are on disk at the start."""
        for subscription, publication in rows:
            self.pending.setdefault(subscription, set()).add(publication)

    def add_walk(self, publication: int, topic: str, position: int, has_rows: Set[int] = frozenset()) -> None:
        """In the order of publication ids."""
        self._turns.add(Walk(publication, topic, position, has_rows))

    def wants_page(self, now: float) -> Walk | None:
        """Whose turn it is to load a page, if there is room. Follow up with `add_page`, `drop_walk` or `give_back`."""
        if self.reserved + self._limits.page > self._limits.chunk:
            if self._turns.is_somebody_left_out:
                self._make_room(now)
            return None
        return self._turns.next()

    def give_back(self, walk: Walk) -> None:
        """Its page could not be read now."""
        self._turns.again(walk)

    def drop_walk(self, walk: Walk) -> None:
        """Its publication is not there any more."""
        walk.exhausted = True
        self._close_pages(walk)

    def add_page(self, walk: Walk, subscriptions: Sequence[HubSubscription], now: float) -> Sequence[DeliveryJob]:
        """What was found after the walk's position; shorter than a page: there are no more. Says what is to be sent."""
        parcel = walk.parcel
        if parcel is None:
            raise ValueError("a walk is given its parcel before its first page")
        if len(subscriptions) < self._limits.page:
            walk.exhausted = True
        else:
            self._turns.again(walk)
        if not subscriptions:
            self._close_pages(walk)
            return ()
        has_rows = walk.has_rows
        page = WalkPage(walk, subscriptions[-1].id)
        walk.position = page.last_id
        jobs, pending, recipients = page.jobs, self.pending, self._recipients
        known = recipients.by_callback.get
        for subscription in subscriptions:
            if has_rows and subscription.id in has_rows:
                continue
            if pending and subscription.id in pending:
                self._queue_behind(subscription.id, parcel.id)
                continue
            callback = subscription[2]  # by place: its name takes longer, and this is every delivery
            jobs.append(DeliveryJob(subscription, parcel, known(callback) or recipients.of(callback), page, 0))
        page.open = len(jobs)
        self.reserved += len(jobs)
        walk.pages.append(page)
        self._ready.extend(jobs)
        if jobs:
            self._look_at(page, now + self._limits.slow_after)
        else:
            self._close_pages(walk)
        return jobs

    def room_for_retries(self) -> int:
        # A few also when the window is full: who has less there than others takes a place of theirs.
        room = max(self._limits.slow_in_flight - self.lanes.slow, RETRIES_INTO_FULL)
        return max(0, min(room, self._limits.chunk - self.reserved))

    def add_retry(
        self, subscription: HubSubscription, parcel: PreparedPublication, attempts: int, planned: float = 0.0
    ) -> bool:
        """A row that is due, or that is tried before its time, which was `planned`. False: it has no room now."""
        key = (subscription.id, parcel.id)
        if key in self.active:
            return False
        job = DeliveryJob(subscription, parcel, self._recipients.of(subscription.callback), None, attempts)
        if not self.lanes.start_again(job):
            return False
        job.planned = planned
        self.active.add(key)
        self.reserved += 1
        self._retries.append(job)
        return True

    def unparked(self) -> list[Key]:
        """Rows whose network has room again; the caller reads them and offers them with `add_retry`."""
        return self.lanes.unparked(self.room_for_retries(), self.active)

    def park_row(self, key: Key, callback: str, attempts: int, now: float) -> None:
        """A due row that finds no room waits for it."""
        self.active.add(key)
        self.batch.idle.append(key)
        self.lanes.park(self._recipients.locate(self._recipients.of(callback).host), key)
        self.batch.rows.append(Row(*key, attempts, now + self._parked_for(), WAITING_FOR_ROOM))

    def early(self, most: int) -> list[Key]:
        """Rows to try before their time, because something new came for the same subscriber."""
        found: list[Key] = []
        while self._early and len(found) < most:
            key = next(iter(self._early))
            del self._early[key]
            if key[1] in self.pending.get(key[0], ()) and key not in self.active:
                found.append(key)
        return found

    def early_later(self, key: Key) -> None:
        """Its row is not on disk yet."""
        if len(self._early) < EARLY_KEPT:
            self._early[key] = None

    def can_be_reached(self, callback: str, now: float) -> bool:
        """Whether a try before its time has a chance."""
        breaker = self._recipients.of(callback).host.breaker
        return breaker.is_closed or now >= breaker.reopens_at

    def is_first_owed(self, key: Key) -> bool:
        """Whether nothing earlier is owed to the same subscription."""
        return all(publication >= key[1] for publication in self.pending.get(key[0], ()))

    def drop_row(self, key: Key) -> None:
        """The subscription behind a row is gone: nothing is owed any more."""
        self.active.add(key)
        self.batch.settled.append(key)
        self.batch.idle.append(key)

    # Sending

    def take(self, now: float) -> list[DeliveryJob]:
        """The deliveries to send now; they count as sent from here on."""
        jobs: list[DeliveryJob] = []
        lanes = self.lanes
        for job in lanes.start_quick():
            self._send(job, now, jobs)
        while self._retries:
            job = self._retries.popleft()
            if job in job.network.window:
                self._send(job, now, jobs)
        ready, quick = self._ready, lanes.quick.shares
        acquire, total = quick.acquire, quick.total
        # `_send` written out: this is every first try.
        while ready and quick.held < total:
            job = ready.popleft()
            recipient = job.recipient
            host = recipient.host
            network = host.network
            if recipient.proofs_owed or network.queued or not acquire(network.prefix):
                if not lanes.wait(job, now):
                    self._park(job, now)
                continue
            job.network = network
            if host.breaker.failures and not host.breaker.admits(now):
                self._hold(job, now)
                continue
            job.state = SENT
            job.since = now
            jobs.append(job)
        for job, admitted in lanes.start_unproved():
            if admitted:
                self._send(job, now, jobs)
            else:
                self._park(job, now)
        for job in lanes.start_quick():  # those that found others of their network waiting, for unproved lanes perhaps
            self._send(job, now, jobs)
        return jobs

    def _send(self, job: DeliveryJob, now: float, jobs: list[DeliveryJob]) -> None:
        """What has got its lane or its place in the window."""
        breaker = job.recipient.host.breaker
        if breaker.failures and not breaker.admits(now):
            self._hold(job, now)
            return
        job.state = SENT
        job.since = now
        jobs.append(job)

    def connected(self, job: DeliveryJob, prefix: str) -> bool:
        """Where a delivery is about to be connected to. False: not now, there is no room for it."""
        return self.lanes.connected(job, prefix)

    # Outcomes

    def delivered_at_once(self, outcomes: Sequence[PostOutcome]) -> list[PostOutcome]:
        """Take the plain successes: first tries of quick callbacks whose host is well. Returns the few others."""
        rest: list[PostOutcome] = []
        release = self.lanes.quick.release
        for outcome in outcomes:
            job, status, _, _ = outcome
            page = job.page
            if not 200 <= status < 300 or page is None or job.pace is not QUICK or job.recipient.host.breaker.failures:
                rest.append(outcome)
                continue
            job.status = status
            job.state = DONE
            release(job.network.prefix)
            page.open -= 1
            if not page.open:
                self._close_pages(page.walk)
        self.counts.delivered += len(outcomes) - len(rest)
        return rest

    def delivered(self, job: DeliveryJob, status: int, now: float) -> None:
        self.counts.delivered += 1
        self._reached(job, now)
        if job.page is None:
            self.batch.tries.append(Try(job.subscription.id, job.parcel.id, now, status, None))
        else:
            job.status = status
        self.lanes.leave(job)
        self._settle(job)

    def ended(self, job: DeliveryJob, reason: str, now: float, *, status: int = 0) -> None:
        """Nothing is owed any more: the subscription is gone or its lease is over. Not a word about the host."""
        self.batch.tries.append(Try(job.subscription.id, job.parcel.id, now, status, reason))
        job.recipient.host.breaker.released()
        self.lanes.leave(job)
        self._settle(job)

    def failed(
        self,
        job: DeliveryJob,
        reason: str,
        now: float,
        *,
        retry_after: float,
        reached: bool | None,
        final: bool,
        status: int = 0,
    ) -> bool:
        """`reached`: whether the host took the request; None: that is not known. Returns whether it was given up."""
        self.counts.failed += 1
        self.batch.tries.append(Try(job.subscription.id, job.parcel.id, now, status, reason))
        if reached:
            self._reached(job, now)
        elif reached is None:
            job.recipient.host.breaker.released()
        else:
            job.recipient.host.breaker.failed(now)
        self.lanes.leave(job)
        return self._owe(job, job.attempts + 1, reason, now, retry_after, final)

    def turned_away(self, job: DeliveryJob, now: float) -> None:
        """It was not connected, because there was no room for it where its host turned out to be. No try."""
        self.counts.turned_away += 1
        job.recipient.host.breaker.released()
        self.lanes.leave(job)
        job.network = job.recipient.host.network
        self._park(job, now)

    def set_aside(self, job: DeliveryJob, reason: str) -> None:
        """It is not sent, and owed until somebody says otherwise. Not a word about the host, and no try counted."""
        job.recipient.host.breaker.released()
        self.lanes.leave(job)
        self._write_down(job, job.attempts, FAR, reason)

    def probe_soon(self, callback: str) -> None:
        """A host that is left alone for its failures may be asked once at once."""
        self._recipients.of(callback).host.breaker.reopens_at = 0.0

    def next_tick(self) -> float | None:
        at = self._aging[0][0] if self._aging else None
        if at is not None and self.lanes.waiting:
            return min(at, self._looked_for_crowds + self._limits.crowded_after / 2)
        return at

    def tick(self, now: float) -> None:
        """Detach what is slow, and have those step aside whose lanes others wait for."""
        limits, aging = self._limits, self._aging
        while aging and aging[0][0] <= now:
            due, _, page = heapq.heappop(aging)
            if not page.open:
                continue
            if now - due > limits.slow_after / 2 and not page.late:
                page.late = True  # we were kept from looking; answers may be there that were not looked at either
                self._look_at(page, now + limits.slow_after / 4)
                continue
            page.late = False
            following = now + limits.slow_after
            for job in page.jobs:
                if job.page is None or (job.state is not SENT and job.state is not WAITING):
                    continue
                if job.since + limits.slow_after <= now:
                    self._detach(job, page, now)
                else:
                    following = min(following, job.since + limits.slow_after)
            if page.open:
                self._look_at(page, following)
        if self.lanes.waiting and now >= self._looked_for_crowds + limits.crowded_after / 2:
            self._looked_for_crowds = now
            self._let_others_pass(now)

    def displaced(self) -> list[DeliveryJob]:
        """Deliveries to cut off, because others have a better right to their place; report each as failed."""
        jobs = self.lanes.displaced()
        self.counts.cut_slow += len(jobs)
        return jobs

    # Writing

    @property
    def is_pressing(self) -> bool:
        """Whether the batch should go to disk at once: somebody's next try, or room for more, depends on it."""
        return self.batch.is_pressing or self.batch.released >= self._limits.chunk // BATCHES_PER_CHUNK

    @property
    def wants_saving(self) -> bool:
        """Whether the batch should go to disk soon, rather than grow."""
        return bool(self.batch) and (self.is_pressing or not self.in_flight)

    def take_batch(self) -> Batch:
        batch, self.batch = self.batch, Batch()
        return batch

    def saved(self, batch: Batch) -> None:
        """The batch is on disk."""
        self.reserved -= batch.released
        for subscription, publication in batch.settled:
            rows = self.pending.get(subscription)
            if rows is not None:
                rows.discard(publication)
                if not rows:
                    del self.pending[subscription]
        self.active.difference_update(batch.idle)

    # Inside

    def _queue_behind(self, subscription: int, publication: int) -> None:
        rows = self.pending[subscription]
        if publication in rows:
            return
        self.early_later((subscription, min(rows)))
        rows.add(publication)
        self.counts.behind += 1
        self.batch.behind.append((subscription, publication))

    def _look_at(self, page: WalkPage, when: float) -> None:
        self._pages += 1
        heapq.heappush(self._aging, (when, self._pages, page))

    def _reached(self, job: DeliveryJob, now: float) -> None:
        """The host was reached, and the callback said something."""
        recipient = job.recipient
        if recipient.host.breaker.failures:
            recipient.host.breaker.succeeded()
        if recipient.proofs_owed and now - job.since <= self._limits.slow_after:
            recipient.proofs_owed -= 1

    def _settle(self, job: DeliveryJob) -> None:
        page = job.page
        if page is not None:
            self._leave_page(page)
            return
        self.batch.settled.append(job.key)
        self.batch.idle.append(job.key)
        self.batch.released += 1

    def _owe(self, job: DeliveryJob, attempts: int, reason: str, now: float, retry_after: float, final: bool) -> bool:
        subscription, parcel, schedule = job.subscription, job.parcel, self._config.schedule
        when = None
        if not final:
            when = schedule.next_try(attempts, parcel.accepted_at, now, retry_after, self._rng)
        if when is not None and job.planned:
            # It was tried before its time, so this try does not count, and its time is what it was.
            when, attempts = max(job.planned, schedule.after(now, 0.0, retry_after, self._rng)), job.attempts
        if when is None:
            self.counts.dead += 1
            self.batch.dead.append(DeadLetter(subscription, parcel.id, attempts, reason, now))
            self._settle(job)
            return True
        self._write_down(job, attempts, when, reason, asked_until=when if retry_after > 0 else 0.0)
        return False

    def _hold(self, job: DeliveryJob, now: float) -> None:
        """The host is left alone for now: write the delivery down without counting a try."""
        self.counts.held_by_breaker += 1
        self.lanes.leave(job)
        if now - job.parcel.accepted_at >= self._config.schedule.max_age:
            self._owe(job, job.attempts, "its host failed until the delivery was too old", now, 0.0, True)
            return
        breaker = job.recipient.host.breaker
        when = max(breaker.reopens_at, now + 1.0) + self._rng.random() * 5.0
        self._write_down(job, job.attempts, when, f"its host failed {breaker.failures} times in a row: waiting")

    def _write_down(
        self, job: DeliveryJob, attempts: int, when: float, reason: str, *, asked_until: float = 0.0
    ) -> None:
        subscription = job.subscription.id
        self.batch.rows.append(Row(subscription, job.parcel.id, attempts, when, reason, asked_until))
        page = job.page
        if page is None:
            self.batch.idle.append(job.key)
            self.batch.released += 1
            return
        self.pending.setdefault(subscription, set()).add(job.parcel.id)
        self._leave_page(page)

    def _detach(self, job: DeliveryJob, page: WalkPage, now: float) -> None:
        self.counts.detached += 1
        if job.state is WAITING:
            self._park(job, now)
            return
        page.detached += 1
        claim = now + self._limits.timeout + CLAIM_MARGIN
        self._write_down(job, job.attempts, claim, CLAIMED)
        job.page = None
        self.active.add(job.key)
        job.recipient.proofs_owed = PROOFS_OF_SLOW
        self.lanes.set_aside(job)

    def _let_others_pass(self, now: float) -> None:
        """Lanes that somebody waits for, and whose holders take longer than what is quick mostly takes."""
        since = now - self._limits.crowded_after
        for _, _, page in self._aging:
            for job in page.jobs:
                if job.state is SENT and job.pace is not SLOW and job.since <= since and self.lanes.step_aside(job):
                    self.counts.stepped_aside += 1

    def _make_room(self, now: float) -> None:
        """A walk cannot load anything: those who have much waiting wait as rows instead."""
        kept = dict.fromkeys(self.lanes.crowds(), 2 * self._limits.per_host)
        if not kept:
            return
        for page in [page for _, _, page in self._aging]:
            for job in page.jobs:
                if job.state is not WAITING or job.network not in kept:
                    continue
                if kept[job.network]:
                    kept[job.network] -= 1
                else:
                    self._park(job, now)

    def _park(self, job: DeliveryJob, now: float) -> None:
        """It waits for room in its network; as a row it does not hold up its page."""
        if job.state is WAITING:
            self.lanes.give_up(job)
        job.state = DONE
        self.active.add(job.key)
        self.batch.idle.append(job.key)
        if self.lanes.park(job.network, job.key):
            self.counts.parked += 1
        self._write_down(job, job.attempts, now + self._parked_for(), WAITING_FOR_ROOM)

    def _parked_for(self) -> float:
        return PARKED_NET * (0.5 + 0.5 * self._rng.random())

    def _leave_page(self, page: WalkPage) -> None:
        page.open -= 1
        if not page.open:
            self._close_pages(page.walk)

    def _close_pages(self, walk: Walk) -> None:
        pages, batch = walk.pages, self.batch
        while pages and not pages[0].open:
            page = pages.popleft()
            batch.positions[walk.publication] = page.last_id
            batch.released += len(page.jobs) - page.detached
            done = page.close()
            if done.subscriptions:
                batch.pages.append(done)
        if not pages and walk.exhausted:
            batch.positions.pop(walk.publication, None)
            batch.finished.append(walk.publication)
            self._turns.finished(walk)
