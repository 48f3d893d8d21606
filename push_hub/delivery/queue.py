"""Who is sent to next, and what must be written down: the core of the fan-out. No I/O, no clock.

Rules of this file
    A delivery is reserved when its page is loaded and released when a batch that holds its outcome is saved. No more
    than `chunk` are reserved at a time: that is all a crash can repeat.
    Batches are saved in the order they were taken. A page's position is in a batch no earlier than the rows of its
    failed deliveries, so a saved position never jumps over a delivery that is neither made nor written down.
    A delivery that has no answer after `slow_after` is written down as a row and leaves its page; the answer, when it
    comes, settles the row. So a slow callback holds back neither its page nor the walk.
    A subscriber with a row on disk (or on its way there) gets later publications behind it, as rows: order is kept.

What comes in, in this order: walks and pages of subscribers (`add_walk`, `wants_page`, `add_page`) and rows that are
due (`add_retry`); then `take` says what to send; `delivered`, `ended`, `failed` and `tick` say what became of it; and
`take_batch` and `saved` carry what must be on disk.
"""

import random
from collections import deque
from collections.abc import Iterable, Sequence, Set
from dataclasses import dataclass

from push_hub.delivery.batch import CLAIMED, FAR, WAITING_FOR_ROOM, Batch, DeadLetter, Key, Row, Try
from push_hub.delivery.config import DeliveryConfig, QueueLimits
from push_hub.delivery.hosts import Host, Hosts
from push_hub.delivery.signing import Parcel
from push_hub.delivery.walks import DONE, SENT, WAITING, Job, Page, Turns, Walk
from push_hub.model import Subscription
from serving.outbound.values import PostOutcome

PARKED_NET = 60.0  # a parked row is due after this, should its place in memory be lost
CLAIM_MARGIN = 5.0
BATCHES_PER_CHUNK = 2


@dataclass(slots=True)
class QueueCounts:
    delivered: int = 0
    failed: int = 0
    dead: int = 0
    detached: int = 0
    parked: int = 0
    cut_slow: int = 0
    held_by_breaker: int = 0
    behind: int = 0


class DeliveryQueue:
    def __init__(self, config: DeliveryConfig, rng: random.Random) -> None:
        self._config = config
        self._limits: QueueLimits = config.limits
        self._rng = rng
        self.counts = QueueCounts()
        self.batch = Batch()
        self.reserved = 0
        self.in_flight = 0
        self.slow = 0
        self.pending: dict[int, set[int]] = {}
        self.active: set[Key] = set()
        self._turns = Turns()
        self._hosts = Hosts(config.limits, config.breaker)
        self._ready: deque[Job] = deque()
        self._retries: deque[Job] = deque()
        self._freed: deque[Host] = deque()
        self._aging: deque[Page] = deque()

    # Filling

    @property
    def walks(self) -> int:
        return self._turns.unfinished

    @property
    def ready(self) -> int:
        """Loaded, but not sent."""
        return len(self._ready)

    def restore_pending(self, rows: Iterable[Key]) -> None:
        """The rows that are on disk at the start."""
        for subscription, publication in rows:
            self.pending.setdefault(subscription, set()).add(publication)

    def add_walk(self, publication: int, topic: str, position: int, has_rows: Set[int] = frozenset()) -> None:
        """In the order of publication ids."""
        self._turns.add(Walk(publication, topic, position, has_rows))

    def wants_page(self) -> Walk | None:
        """Whose turn it is to load a page, if there is room. Follow up with `add_page`, `drop_walk` or `give_back`."""
        if self.reserved + self._limits.page > self._limits.chunk:
            return None
        return self._turns.next()

    def give_back(self, walk: Walk) -> None:
        """Its page could not be read now."""
        self._turns.again(walk)

    def drop_walk(self, walk: Walk) -> None:
        """Its publication is not there any more."""
        walk.exhausted = True
        self._close_pages(walk)

    def add_page(self, walk: Walk, subscriptions: Sequence[Subscription], now: float) -> None:
        """What was found after the walk's position; shorter than a page: there are no more."""
        parcel = walk.parcel
        if parcel is None:
            raise ValueError("a walk is given its parcel before its first page")
        if len(subscriptions) < self._limits.page:
            walk.exhausted = True
        else:
            self._turns.again(walk)
        if not subscriptions:
            self._close_pages(walk)
            return
        has_rows = walk.has_rows
        page = Page(walk, subscriptions[-1].id, now)
        walk.position = page.last_id
        jobs, pending, hosts = page.jobs, self.pending, self._hosts
        known_host = hosts.by_callback.get
        for subscription in subscriptions:
            if has_rows and subscription.id in has_rows:
                continue
            if pending and subscription.id in pending:
                self._queue_behind(subscription.id, parcel.id)
                continue
            callback = subscription[2]  # by place: its name takes longer, and this is every delivery
            jobs.append(Job(subscription, parcel, known_host(callback) or hosts.of(callback), page, 0, False))
        page.open = page.unsent = len(jobs)
        self.reserved += len(jobs)
        walk.pages.append(page)
        self._ready.extend(jobs)
        if jobs:
            self._aging.append(page)
        else:
            self._close_pages(walk)

    def room_for_retries(self) -> int:
        room = min(self._limits.slow_in_flight - self.slow, self._limits.chunk - self.reserved) - len(self._retries)
        return max(0, room)

    def add_retry(self, subscription: Subscription, parcel: Parcel, attempts: int) -> bool:
        """A row that is due. False: its host has no room now."""
        key = (subscription.id, parcel.id)
        if key in self.active:
            return False
        host = self._hosts.of(subscription.callback)
        if host.in_flight + len(host.waiting) >= self._limits.per_host:
            return False
        self.active.add(key)
        self.reserved += 1
        self._retries.append(Job(subscription, parcel, host, None, attempts, True))
        return True

    def unparked(self) -> list[Key]:
        """Rows whose host has room again; the caller reads them and offers them with `add_retry`."""
        return self._hosts.unparked(self.room_for_retries(), self.active)

    def put_off(self, key: Key, attempts: int, when: float, reason: str) -> None:
        """A due row that cannot go now."""
        self.active.add(key)
        self.batch.rows.append(Row(key[0], key[1], attempts, when, reason))
        self.batch.idle.append(key)

    def is_first_owed(self, key: Key) -> bool:
        """Whether nothing earlier is owed to the same subscription."""
        return all(publication >= key[1] for publication in self.pending.get(key[0], ()))

    def drop_row(self, key: Key) -> None:
        """The subscription behind a row is gone: nothing is owed any more."""
        self.active.add(key)
        self.batch.settled.append(key)
        self.batch.idle.append(key)

    # Sending

    def take(self, now: float) -> list[Job]:
        """The deliveries to send now; they count as sent from here on."""
        jobs: list[Job] = []
        if self._freed:
            self._take_waiting(now, jobs)
        while self._retries:
            self._admit(self._retries.popleft(), now, jobs)
        ready, per_host = self._ready, self._limits.per_host
        room = self._limits.in_flight - self.in_flight
        # `_admit` written out: this is every first try.
        while ready and room > 0:
            job = ready.popleft()
            job.page.unsent -= 1  # type: ignore[union-attr]  # jobs of `_ready` have a page
            host = job.host
            if host.in_flight >= per_host:
                job.state = WAITING
                host.waiting.append(job)
            elif host.breaker.failures and not host.breaker.admits(now):
                self._hold(job, now)
            else:
                job.state = SENT
                host.in_flight += 1
                room -= 1
                jobs.append(job)
        self.in_flight = self._limits.in_flight - room
        return jobs

    def _take_waiting(self, now: float, jobs: list[Job]) -> None:
        limits, freed = self._limits, self._freed
        while freed:
            host = freed[0]
            while host.waiting and host.waiting[0].state is not WAITING:
                host.waiting.popleft()
            if not host.waiting or host.in_flight >= limits.per_host:
                freed.popleft()
            elif self.in_flight >= limits.in_flight:
                return
            else:
                self._admit(host.waiting.popleft(), now, jobs)

    def _admit(self, job: Job, now: float, jobs: list[Job]) -> None:
        host = job.host
        if host.in_flight >= self._limits.per_host:
            job.state = WAITING
            host.waiting.append(job)
            return
        if host.breaker.failures and not host.breaker.admits(now):
            self._hold(job, now)
            return
        job.state = SENT
        host.in_flight += 1
        if job.stored:
            job.slow = True
            self.slow += 1
        else:
            self.in_flight += 1
        jobs.append(job)

    # Outcomes

    def delivered_at_once(self, outcomes: Sequence[PostOutcome]) -> list[PostOutcome]:
        """Take the plain successes: first tries, neither slow nor at a host in trouble. Returns the few others."""
        rest: list[PostOutcome] = []
        freed = self._freed
        for outcome in outcomes:
            job, status, _, _ = outcome
            host, page = job.host, job.page
            if not 200 <= status < 300 or page is None or job.slow or host.breaker.failures:
                rest.append(outcome)
                continue
            job.status = status
            job.state = DONE
            host.in_flight -= 1
            if host.waiting:
                freed.append(host)
            page.open -= 1
            if not page.open:
                self._close_pages(page.walk)
        taken = len(outcomes) - len(rest)
        self.in_flight -= taken
        self.counts.delivered += taken
        return rest

    def delivered(self, job: Job, status: int, now: float) -> None:
        self.counts.delivered += 1
        host = job.host
        if host.breaker.failures:
            host.breaker.succeeded()
        if job.page is None or job.slow:
            self.batch.tries.append(Try(job.subscription.id, job.parcel.id, now, status, None))
        else:
            job.status = status
        self._left(job)
        self._settle(job)

    def ended(self, job: Job, reason: str, now: float, *, status: int = 0) -> None:
        """Nothing is owed any more: the subscription is gone or its lease is over. Not a word about the host."""
        self.batch.tries.append(Try(job.subscription.id, job.parcel.id, now, status, reason))
        job.host.breaker.released()
        self._left(job)
        self._settle(job)

    def failed(
        self,
        job: Job,
        reason: str,
        now: float,
        *,
        retry_after: float,
        host_failed: bool,
        final: bool,
        status: int = 0,
    ) -> bool:
        """Returns whether the delivery was given up."""
        self.counts.failed += 1
        self.batch.tries.append(Try(job.subscription.id, job.parcel.id, now, status, reason))
        if host_failed:
            job.host.breaker.failed(now)
        else:
            job.host.breaker.succeeded()
        self._left(job)
        return self._owe(job, job.attempts + 1, reason, now, retry_after, final)

    def set_aside(self, job: Job, reason: str) -> None:
        """It is not sent, and owed until somebody says otherwise. Not a word about the host, and no try counted."""
        job.host.breaker.released()
        self._left(job)
        self._write_down(job, job.attempts, FAR, reason)

    def probe_soon(self, callback: str) -> None:
        """A host that is left alone for its failures may be asked once at once."""
        self._hosts.of(callback).breaker.reopens_at = 0.0

    def next_tick(self) -> float | None:
        return self._aging[0].loaded_at + self._limits.slow_after if self._aging else None

    def tick(self, now: float) -> list[Job]:
        """Detach what is slow. Returns deliveries to cut off because too many are slow; report each as failed."""
        cut: list[Job] = []
        aging = self._aging
        for _ in range(len(aging)):
            if aging[0].loaded_at + self._limits.slow_after > now:
                break
            page = aging.popleft()
            if page.unsent:
                page.loaded_at = now  # its turn has not come: that is our load, not slow callbacks
                aging.append(page)
            elif page.open:
                self._detach(page, now, cut)
        return cut

    # Writing

    @property
    def wants_saving(self) -> bool:
        """Whether the batch should go to disk now, rather than grow."""
        batch = self.batch
        if batch.is_pressing:
            return True
        enough = self._limits.chunk // BATCHES_PER_CHUNK
        return bool(batch) and (not self.in_flight or batch.released >= enough)

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
        if publication not in rows:
            rows.add(publication)
            self.counts.behind += 1
            self.batch.behind.append((subscription, publication))

    def _left(self, job: Job) -> None:
        """The job is not under way any more: its places are free."""
        host = job.host
        host.in_flight -= 1
        if job.slow:
            self.slow -= 1
        else:
            self.in_flight -= 1
        job.state = DONE
        if host.waiting:
            self._freed.append(host)

    def _settle(self, job: Job) -> None:
        page = job.page
        if page is not None:
            self._leave_page(page)
            return
        self.batch.settled.append(job.key)
        self.batch.idle.append(job.key)
        self.batch.released += 1

    def _owe(self, job: Job, attempts: int, reason: str, now: float, retry_after: float, final: bool) -> bool:
        subscription, parcel = job.subscription, job.parcel
        when = None
        if not final:
            when = self._config.schedule.next_try(attempts, parcel.accepted_at, now, retry_after, self._rng)
        if when is None:
            self.counts.dead += 1
            self.batch.dead.append(DeadLetter(subscription, parcel.id, attempts, reason, now))
            self._settle(job)
            return True
        self._write_down(job, attempts, when, reason)
        return False

    def _hold(self, job: Job, now: float) -> None:
        """The host is left alone for now: write the delivery down without counting a try."""
        self.counts.held_by_breaker += 1
        job.state = DONE
        if now - job.parcel.accepted_at >= self._config.schedule.max_age:
            self._owe(job, job.attempts, "its host failed until the delivery was too old", now, 0.0, True)
            return
        breaker = job.host.breaker
        when = max(breaker.reopens_at, now + 1.0) + self._rng.random() * 5.0
        self._write_down(job, job.attempts, when, f"its host failed {breaker.failures} times in a row: waiting")

    def _write_down(self, job: Job, attempts: int, when: float, reason: str) -> None:
        subscription = job.subscription.id
        self.batch.rows.append(Row(subscription, job.parcel.id, attempts, when, reason))
        page = job.page
        if page is None:
            self.batch.idle.append(job.key)
            self.batch.released += 1
            return
        self.pending.setdefault(subscription, set()).add(job.parcel.id)
        self._leave_page(page)

    def _detach(self, page: Page, now: float, cut: list[Job]) -> None:
        for job in page.jobs:
            if job.state is DONE or job.page is None:
                continue
            self.counts.detached += 1
            if job.state is WAITING:
                self._park(job, now)
                continue
            page.detached += 1
            claim = now + self._limits.timeout + CLAIM_MARGIN
            self._write_down(job, job.attempts, claim, CLAIMED)
            job.page = None
            job.stored = True
            self.active.add(job.key)
            self.in_flight -= 1
            self.slow += 1
            job.slow = True
            if self.slow > self._limits.slow_in_flight:
                self.counts.cut_slow += 1
                cut.append(job)

    def _park(self, job: Job, now: float) -> None:
        """It waits for a place at its host; as a row it does not hold up its page."""
        job.state = DONE
        self.active.add(job.key)
        self.batch.idle.append(job.key)
        if self._hosts.park(job.host, job.key):
            self.counts.parked += 1
        self._write_down(job, job.attempts, now + PARKED_NET, WAITING_FOR_ROOM)

    def _leave_page(self, page: Page) -> None:
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
