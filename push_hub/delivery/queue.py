"""Who is sent to next, and what must be written down: the core of the fan-out. No I/O, no clock.

Rules of this file
    A walk is the fan-out of one publication: pages of subscribers in id order. Walks of one topic go one after the
    other; walks of different topics take turns, a page each.
    A delivery is reserved when its page is loaded and released when a batch that holds its outcome is saved. No more
    than `chunk` are reserved at a time: that is all a crash can repeat.
    Batches are saved in the order they were taken. A page's position is in a batch no earlier than the rows of its
    failed deliveries, so a saved position never jumps over a delivery that is neither made nor written down.
    A delivery that has no answer after `slow_after` is written down as a row and leaves its page; the answer, when it
    comes, settles the row. So a slow callback holds back neither its page nor the walk.
    A subscriber with a row on disk (or on its way there) gets later publications behind it, as rows: order is kept.
"""

import random
from collections import deque
from collections.abc import Iterable, Sequence, Set
from dataclasses import dataclass, field
from enum import Enum

from push_hub.delivery.breaker import Breaker
from push_hub.delivery.config import DeliveryConfig, QueueLimits
from push_hub.delivery.signing import Parcel
from push_hub.model import Subscription

Key = tuple[int, int]
FAR = 1e15  # behind an earlier publication: not due until that one is settled
PARKED_NET = 60.0
CLAIM_MARGIN = 5.0
# Reasons of rows that this process works on itself; after a restart nobody does.
CLAIMED = "no answer yet"
WAITING_FOR_ROOM = "waiting for room at its host"


class JobState(Enum):
    READY = 0
    WAITING = 1
    SENT = 2
    DONE = 3


@dataclass(frozen=True, slots=True)
class Row:
    """A delivery that is still owed: what becomes a row of `retries`."""

    subscription: int
    publication: int
    attempts: int
    next_try_at: float
    reason: str


@dataclass(frozen=True, slots=True)
class DeadLetter:
    subscription: Subscription
    publication: int
    attempts: int
    reason: str
    died_at: float


@dataclass(slots=True)
class Batch:
    """Changes that are written in one transaction, in the order of the fields."""

    rows: list[Row] = field(default_factory=list)
    settled: list[Key] = field(default_factory=list)
    behind: list[Key] = field(default_factory=list)
    dead: list[DeadLetter] = field(default_factory=list)
    positions: dict[int, int] = field(default_factory=dict)
    finished: list[int] = field(default_factory=list)
    released: int = 0
    idle: list[Key] = field(default_factory=list)  # rows nobody works on any more once this is saved

    def __bool__(self) -> bool:
        return bool(self.rows or self.settled or self.behind or self.dead or self.positions or self.finished)


class Host:
    """One server that callbacks live on. Its limits and its breaker are shared by all of them."""

    __slots__ = ("breaker", "in_flight", "name", "parked", "waiting")

    def __init__(self, name: str, breaker: Breaker) -> None:
        self.name = name
        self.in_flight = 0
        self.waiting: deque[Job] = deque()
        self.parked: deque[Key] = deque()
        self.breaker = breaker

    @property
    def is_used(self) -> bool:
        return bool(self.in_flight or self.waiting or self.parked or self.breaker.failures)


class Page:
    __slots__ = ("detached", "jobs", "last_id", "loaded_at", "open", "unsent", "walk")

    def __init__(self, walk: "Walk", last_id: int, loaded_at: float) -> None:
        self.walk = walk
        self.last_id = last_id
        self.loaded_at = loaded_at
        self.jobs: list[Job] = []
        self.open = 0
        self.unsent = 0
        self.detached = 0


class Job:
    """One delivery. `stored`: a row on disk stands for it; then it belongs to no page."""

    __slots__ = ("attempts", "host", "page", "parcel", "slow", "state", "stored", "subscription", "token")

    def __init__(
        self, subscription: Subscription, parcel: Parcel, host: Host, page: Page | None, attempts: int, stored: bool
    ) -> None:
        self.subscription = subscription
        self.parcel = parcel
        self.host = host
        self.page = page
        self.attempts = attempts
        self.stored = stored
        self.slow = False
        self.state = _READY
        self.token: object = None

    @property
    def key(self) -> Key:
        return (self.subscription.id, self.parcel.id)


_READY, _WAITING, _SENT, _DONE = JobState.READY, JobState.WAITING, JobState.SENT, JobState.DONE


class Walk:
    __slots__ = ("exhausted", "has_rows", "pages", "parcel", "position", "publication", "topic")

    def __init__(self, publication: int, topic: str, position: int, has_rows: Set[int]) -> None:
        self.publication = publication
        self.topic = topic
        self.position = position
        # Subscriptions that had a row for this publication at the start: they get it by that row, maybe have already.
        self.has_rows = has_rows
        self.parcel: Parcel | None = None
        self.pages: deque[Page] = deque()
        self.exhausted = False


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
        self._topics: dict[str, deque[Walk]] = {}
        self._turns: deque[Walk] = deque()
        self._ready: deque[Job] = deque()
        self._retries: deque[Job] = deque()
        self._freed: deque[Host] = deque()
        self._aging: deque[Page] = deque()
        self._hosts: dict[str, Host] = {}
        self._parked_at: dict[str, Host] = {}
        self.walks = 0

    # Filling

    def restore_pending(self, rows: Iterable[Key]) -> None:
        """The rows that are on disk at the start."""
        for subscription, publication in rows:
            self.pending.setdefault(subscription, set()).add(publication)

    def add_walk(self, publication: int, topic: str, position: int, has_rows: Set[int] = frozenset()) -> None:
        """In the order of publication ids."""
        walk = Walk(publication, topic, position, has_rows)
        self.walks += 1
        queue = self._topics.get(topic)
        if queue is None:
            self._topics[topic] = deque((walk,))
            self._turns.append(walk)
        else:
            queue.append(walk)

    def wants_page(self) -> Walk | None:
        """Whose turn it is to load a page, if there is room for one. Follow up with `add_page` or `drop_walk`."""
        if not self._turns or self.reserved + self._limits.page > self._limits.chunk:
            return None
        return self._turns.popleft()

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
            self._turns.append(walk)
        if not subscriptions:
            self._close_pages(walk)
            return
        page = Page(walk, subscriptions[-1].id, now)
        walk.position = page.last_id
        jobs, pending, hosts, has_rows = page.jobs, self.pending, self._hosts, walk.has_rows
        for subscription in subscriptions:
            if has_rows and subscription.id in has_rows:
                continue
            if pending and subscription.id in pending:
                self._queue_behind(subscription.id, parcel.id)
                continue
            name = host_name(subscription.callback)
            host = hosts.get(name) or self._host(name)
            jobs.append(Job(subscription, parcel, host, page, 0, False))
        page.open = page.unsent = len(jobs)
        self.reserved += len(jobs)
        walk.pages.append(page)
        self._ready.extend(jobs)
        if jobs:
            self._aging.append(page)
        else:
            self._close_pages(walk)

    @property
    def ready(self) -> int:
        """Loaded, but not sent."""
        return len(self._ready)

    def room_for_retries(self) -> int:
        room = min(self._limits.slow_in_flight - self.slow, self._limits.chunk - self.reserved) - len(self._retries)
        return max(0, room)

    def add_retry(self, subscription: Subscription, parcel: Parcel, attempts: int) -> bool:
        """A row that is due. False: its host has no room now, and the row was put off."""
        key = (subscription.id, parcel.id)
        if key in self.active:
            return False
        host = self._host(host_name(subscription.callback))
        if host.in_flight + len(host.waiting) >= self._limits.per_host:
            return False
        self.active.add(key)
        self.reserved += 1
        self._retries.append(Job(subscription, parcel, host, None, attempts, True))
        return True

    def park(self, key: Key, callback: str) -> bool:
        """Remember a due row for the moment its host has room."""
        host = self._host(host_name(callback))
        if len(host.parked) >= self._limits.parked_per_host:
            return False
        host.parked.append(key)
        self._parked_at[host.name] = host
        self.counts.parked += 1
        return True

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

    def take(self, now: float) -> Job | None:
        """The next delivery to send; it counts as sent from here on."""
        limits = self._limits
        while True:
            if self._freed:
                host = self._freed[0]
                while host.waiting and host.waiting[0].state is not _WAITING:
                    host.waiting.popleft()
                if not host.waiting or host.in_flight >= limits.per_host:
                    self._freed.popleft()
                    continue
                if self.in_flight >= limits.in_flight:
                    return None
                job = host.waiting.popleft()
            elif self._retries:
                job = self._retries.popleft()
            elif self._ready and self.in_flight < limits.in_flight:
                job = self._ready.popleft()
                job.page.unsent -= 1  # type: ignore[union-attr]  # jobs of `_ready` have a page
            else:
                return None
            host = job.host
            if host.in_flight >= limits.per_host:
                job.state = _WAITING
                host.waiting.append(job)
                continue
            if host.breaker.failures and not host.breaker.admits(now):
                self._hold(job, now)
                continue
            job.state = _SENT
            host.in_flight += 1
            if job.stored:
                job.slow = True
                self.slow += 1
            else:
                self.in_flight += 1
            return job

    def unparked(self) -> list[Key]:
        """Rows whose host has room again; the caller reads them and offers them with `add_retry`."""
        keys: list[Key] = []
        room = self.room_for_retries()
        if not room:
            return keys
        for host in list(self._parked_at.values()):
            free = self._limits.per_host - host.in_flight - len(host.waiting)
            # A key that is active has a row that is not on disk yet: its time comes with the next batch.
            while host.parked and free > 0 and len(keys) < room and host.parked[0] not in self.active:
                keys.append(host.parked.popleft())
                free -= 1
            if not host.parked:
                del self._parked_at[host.name]
        return keys

    # Outcomes

    def delivered(self, job: Job) -> None:
        self.counts.delivered += 1
        if job.host.breaker.failures:
            job.host.breaker.succeeded()
        self._left(job)
        self._settle(job)

    def ended(self, job: Job) -> None:
        """Nothing is owed any more: the subscription is gone or its lease is over. Not a word about the host."""
        job.host.breaker.released()
        self._left(job)
        self._settle(job)

    def failed(self, job: Job, reason: str, now: float, *, retry_after: float, host_failed: bool, final: bool) -> bool:
        """Returns whether the delivery was given up."""
        self.counts.failed += 1
        if host_failed:
            job.host.breaker.failed(now)
        else:
            job.host.breaker.succeeded()
        self._left(job)
        return self._owe(job, job.attempts + 1, reason, now, retry_after, final)

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
                continue
            if page.open:
                self._detach(page, now, cut)
        return cut

    def next_tick(self) -> float | None:
        return self._aging[0].loaded_at + self._limits.slow_after if self._aging else None

    # Writing

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

    def _host(self, name: str) -> Host:
        host = self._hosts.get(name)
        if host is None:
            if len(self._hosts) >= self._limits.hosts:
                self._forget_idle_hosts()
            host = self._hosts[name] = Host(name, Breaker(self._config.breaker))
        return host

    def _forget_idle_hosts(self) -> None:
        # Hosts with jobs in `_ready` look idle too; such a job keeps its own Host object, so only sharing is lost.
        self._hosts = {name: host for name, host in self._hosts.items() if host.is_used}

    def _left(self, job: Job) -> None:
        """The job is not under way any more: its places are free."""
        host = job.host
        host.in_flight -= 1
        if job.slow:
            self.slow -= 1
        else:
            self.in_flight -= 1
        job.state = _DONE
        if host.waiting:
            self._freed.append(host)

    def _settle(self, job: Job) -> None:
        page = job.page
        if page is not None:
            page.open -= 1
            if not page.open:
                self._close_pages(page.walk)
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
        job.state = _DONE
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
        page.open -= 1
        if not page.open:
            self._close_pages(page.walk)

    def _detach(self, page: Page, now: float, cut: list[Job]) -> None:
        for job in page.jobs:
            if job.state is _DONE or job.page is None:
                continue
            self.counts.detached += 1
            if job.state is _WAITING:
                job.state = _DONE
                self.active.add(job.key)
                self.batch.idle.append(job.key)
                self.park(job.key, job.subscription.callback)
                self._write_down(job, job.attempts, now + PARKED_NET, WAITING_FOR_ROOM)
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

    def _close_pages(self, walk: Walk) -> None:
        pages = walk.pages
        while pages and not pages[0].open:
            page = pages.popleft()
            self.batch.positions[walk.publication] = page.last_id
            self.batch.released += len(page.jobs) - page.detached
        if not pages and walk.exhausted:
            self.batch.positions.pop(walk.publication, None)
            self.batch.finished.append(walk.publication)
            self._next_of_topic(walk)

    def _next_of_topic(self, walk: Walk) -> None:
        self.walks -= 1
        queue = self._topics[walk.topic]
        queue.popleft()
        if queue:
            self._turns.append(queue[0])
        else:
            del self._topics[walk.topic]


def host_name(callback: str) -> str:
    """Host and port as written: a cheap key, because every delivery asks for it."""
    try:
        return callback.split("/", 3)[2]
    except IndexError:
        return callback
