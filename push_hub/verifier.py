"""Works through the intents that wait for their check: durable, a bounded number at once, fair between hosts.

The rows are on disk; memory holds their numbers only, in one line per callback host. A host gets few checks at
a time however many wait for it, so that nobody can aim the hub at a host, and a host that does not answer holds
up nobody else.
"""

import asyncio
import contextlib
import heapq
import secrets
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

from push_hub.events import (
    HubEvent,
    IntentConfirmed,
    IntentFailed,
    IntentRetried,
    LimitReached,
    Observer,
    PartFailed,
)
from push_hub.events import SubscriptionEnded as SubscriptionEndedEvent
from push_hub.ports import GetFailedError, Getter, OverloadedError, Validator
from push_hub.protocol.leases import LeasePolicy
from push_hub.protocol.numbers import CHALLENGE_BYTES, Mode
from push_hub.protocol.urls import host_of
from push_hub.protocol.verification import (
    Answer,
    Confirmed,
    Failed,
    Intent,
    RetrySchedule,
    TryAgain,
    Verdict,
    challenge_from,
    check_url,
    denial_url,
    judge,
    judge_denial,
)
from push_hub.subscriptions import Change, Pending, Subscriptions
from storage import StorageError

LOAD_PAGE = 5_000
NONCE_BYTES = 9
ERROR_PAUSE = 1.0
FAULT_PAUSE = 60.0


@dataclass(frozen=True, slots=True)
class VerifierConfig:
    concurrency: int = 200
    per_host: int = 20
    max_pending: int = 100_000
    max_pending_per_host: int = 20_000
    max_retries_per_host: int = 100
    """Failed checks of one host that are kept for another try; above it a failure is final.

    So a host whose name strangers put into many requests is asked once for each, not again and again for hours.
    """
    timeout: float = 10.0
    max_answer_bytes: int = 4096
    leases: LeasePolicy = field(default_factory=LeasePolicy)
    schedule: RetrySchedule = field(default_factory=RetrySchedule)
    sweep_every: float = 5.0
    sweep_chunk: int = 1_000
    overload_retry_after: float = 5.0


class Verifier:
    def __init__(
        self,
        subscriptions: Subscriptions,
        getter: Getter,
        config: VerifierConfig,
        *,
        changed: Callable[[Change], None],
        validator: Validator | None = None,
        observer: Observer | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._subscriptions = subscriptions
        self._getter = getter
        self._config = config
        self._changed = changed
        self._validator = validator
        self._observer = observer
        self._clock = clock
        # Every row in one of three states: in its host's line, running, or waiting for its time.
        self._lines: dict[str, deque[int]] = {}
        self._turn: deque[str] = deque()
        self._in_turn: set[str] = set()
        self._queued: dict[int, str] = {}
        self._running: set[int] = set()
        self._asked_again: set[int] = set()
        self._synchronous = 0
        self._running_on: dict[str, int] = {}
        self._waiting: dict[int, tuple[float, str]] = {}
        self._timers: list[tuple[float, int]] = []
        self._per_host_pending: dict[str, int] = {}
        self._retries_on: dict[str, int] = {}
        self._wake = asyncio.Event()
        self._tasks: set[asyncio.Task[None]] = set()
        self._loops: list[asyncio.Task[None]] = []
        self._checks_now: set[asyncio.Task[str | None]] = set()
        self._stopping = asyncio.Event()

    # -- for the server and the hub

    @property
    def waiting(self) -> int:
        return len(self._queued) + len(self._running) + len(self._waiting)

    def new_nonce(self) -> str:
        return secrets.token_urlsafe(NONCE_BYTES)

    async def submit(self, intent: Intent) -> None:
        """Take an intent over: it is on disk when this returns. Raises `OverloadedError`."""
        self._admit(intent.callback)
        row = await self._subscriptions.enqueue(intent, self._clock())
        self._queue(row, host_of(intent.callback))

    async def deny(self, intent: Intent) -> None:
        row, change = await self._subscriptions.deny(intent, self._clock())
        self._changed(change)
        self._queue(row, host_of(intent.callback))

    async def check_now(self, intent: Intent) -> str | None:
        """0.3's synchronous mode: one check, one answer. None when confirmed, otherwise why not."""
        if self._stopping.is_set():
            raise OverloadedError(self._config.overload_retry_after, "the hub is stopping")
        host = host_of(intent.callback)
        if self._running_on.get(host, 0) >= self._config.per_host or self._total_running() >= self._config.concurrency:
            self._tell(LimitReached("verifier.per_host"))
            raise OverloadedError(
                self._config.overload_retry_after, "too many checks for this callback's host are running"
            )
        self._running_on[host] = self._running_on.get(host, 0) + 1
        self._synchronous += 1
        task = asyncio.create_task(self._settle_now(intent))
        self._checks_now.add(task)
        try:
            return await task
        except asyncio.CancelledError:
            if not self._stopping.is_set() or not task.cancelled():
                raise
            raise OverloadedError(self._config.overload_retry_after, "the hub is stopping") from None
        finally:
            task.cancel()
            self._checks_now.discard(task)
            self._synchronous -= 1
            self._leave_host(host)

    async def start(self) -> None:
        after = 0
        while rows := self._subscriptions.all_pending(after, LOAD_PAGE):
            for row, callback, at in rows:
                self._wait(row, host_of(callback), at)
            after = rows[-1][0]
            await asyncio.sleep(0)
        self._loops = [asyncio.create_task(self._dispatch()), asyncio.create_task(self._look_after_leases())]

    async def stop(self) -> None:
        """Stop at once: what is not settled is on disk and goes on at the next start.

        Who waits for a synchronous check is told to come back.
        """
        self._stopping.set()
        tasks: list[asyncio.Task[None] | asyncio.Task[str | None]] = [*self._loops, *self._tasks, *self._checks_now]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._loops = []

    async def sweep(self) -> None:
        """End what is over and start rechecks of what nears its end; also called by a timer."""
        now = self._clock()
        self._wake.set()  # a clock that was put forward makes waiting checks due, and nothing else would notice
        chunk = self._config.sweep_chunk
        while True:
            queued = await self._subscriptions.start_refreshes(now, chunk, self.new_nonce)
            for row, callback in queued:
                self._queue(row, host_of(callback))
            if len(queued) < chunk:
                break
        while True:
            ended, changes = await self._subscriptions.sweep(now, chunk)
            for change in changes:
                self._changed(change)
            for one in ended:
                self._tell(SubscriptionEndedEvent(one.topic, one.callback, "its lease ran out"))
            if len(ended) < chunk:
                return

    # -- queueing

    def _admit(self, callback: str) -> None:
        if self.waiting >= self._config.max_pending:
            self._tell(LimitReached("verifier.max_pending"))
            raise OverloadedError(self._config.overload_retry_after, "too many subscription checks are waiting")
        if self._per_host_pending.get(host_of(callback), 0) >= self._config.max_pending_per_host:
            self._tell(LimitReached("verifier.max_pending_per_host"))
            raise OverloadedError(
                self._config.overload_retry_after, "too many subscription checks are waiting for this callback's host"
            )

    def _known(self, row: int) -> bool:
        return row in self._queued or row in self._running or row in self._waiting

    def _queue(self, row: int, host: str) -> None:
        if row in self._running:
            self._asked_again.add(row)  # its number may be a new request's by now: look at it when this run is over
            return
        if row in self._queued:
            return
        if not self._unwait(row):
            self._per_host_pending[host] = self._per_host_pending.get(host, 0) + 1
        self._queued[row] = host
        self._lines.setdefault(host, deque()).append(row)
        self._give_turn(host)
        self._wake.set()

    def _wait(self, row: int, host: str, at: float) -> None:
        if not self._known(row):
            self._per_host_pending[host] = self._per_host_pending.get(host, 0) + 1
        self._put_off(row, host, at)
        self._wake.set()

    def _put_off(self, row: int, host: str, at: float) -> None:
        if row not in self._waiting:
            self._retries_on[host] = self._retries_on.get(host, 0) + 1
        self._waiting[row] = (at, host)
        heapq.heappush(self._timers, (at, row))

    def _unwait(self, row: int) -> bool:
        found = self._waiting.pop(row, None)
        if found is None:
            return False
        left = self._retries_on[found[1]] - 1
        if left:
            self._retries_on[found[1]] = left
        else:
            del self._retries_on[found[1]]
        return True

    def _give_turn(self, host: str) -> None:
        free = self._running_on.get(host, 0) < self._config.per_host
        if free and self._lines.get(host) and host not in self._in_turn:
            self._turn.append(host)
            self._in_turn.add(host)

    def _forget(self, host: str) -> None:
        left = self._per_host_pending.get(host, 0) - 1
        if left > 0:
            self._per_host_pending[host] = left
        else:
            self._per_host_pending.pop(host, None)

    def _leave_host(self, host: str) -> None:
        left = self._running_on.get(host, 0) - 1
        if left > 0:
            self._running_on[host] = left
        else:
            self._running_on.pop(host, None)
        self._give_turn(host)
        self._wake.set()

    def _total_running(self) -> int:
        return len(self._running) + self._synchronous

    # -- loops

    async def _dispatch(self) -> None:
        while True:
            self._wake.clear()
            self._ripen()
            while self._turn and self._total_running() < self._config.concurrency:
                self._launch(self._turn.popleft())
            delay = max(0.0, self._timers[0][0] - self._clock()) if self._timers else None
            # Not `wait_for`: in Python 3.11 it loses a cancellation that comes together with what it waits for.
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(delay):
                    await self._wake.wait()

    def _ripen(self) -> None:
        now = self._clock()
        while self._timers and self._timers[0][0] <= now:
            at, row = heapq.heappop(self._timers)
            waiting = self._waiting.get(row)
            if waiting is not None and waiting[0] == at:  # otherwise it was queued meanwhile by a newer request
                self._queue(row, waiting[1])

    def _launch(self, host: str) -> None:
        self._in_turn.discard(host)
        line = self._lines.get(host)
        if not line:
            return
        row = line.popleft()
        if not line:
            del self._lines[host]
        del self._queued[row]
        self._running.add(row)
        self._running_on[host] = self._running_on.get(host, 0) + 1
        self._give_turn(host)
        task = asyncio.create_task(self._run(row, host))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _look_after_leases(self) -> None:
        while True:
            try:
                await self.sweep()
            except StorageError:
                self._tell(LimitReached("storage"))
            await asyncio.sleep(self._config.sweep_every)

    # -- one check

    async def _run(self, row: int, host: str) -> None:
        again: float | None = None
        try:
            pending = self._subscriptions.pending(row)
            if pending is not None:
                again = await self._settle(pending)
        except StorageError:
            # The row is still there as it was; the disk may be better in a moment.
            self._tell(LimitReached("storage"))
            again = self._clock() + ERROR_PAUSE
        except Exception as error:  # the policy is not ours; what was acknowledged is looked at again all the same
            self._tell(PartFailed("verifier", f"{type(error).__name__}: {error}"))
            again = self._clock() + FAULT_PAUSE
        finally:
            self._running.discard(row)
            if row in self._asked_again:
                self._asked_again.discard(row)
                again = self._clock()
            if again is None:
                self._forget(host)
            else:
                self._put_off(row, host, again)
            self._leave_host(host)

    async def _settle(self, pending: Pending) -> float | None:
        """Check once and write down what it means. Returns when to look at the row again, if ever."""
        intent = pending.intent
        if intent.mode is Mode.SUBSCRIBE and not intent.refresh and pending.attempts == 0:
            refusal = await self._refusal(intent)
            if refusal is not None:
                return self._clock()
        attempts = pending.attempts + 1
        sent_at = self._clock()
        granted = self._config.leases.grant(intent.lease_asked)
        if intent.mode is Mode.DENIED:
            answer = await self._ask(denial_url(intent))
            verdict = judge_denial(intent, answer, attempts=attempts, now=self._clock(), schedule=self._config.schedule)
        else:
            verdict = await self._check(intent, granted, attempts, synchronous=False)
        if (
            isinstance(verdict, TryAgain)
            and not intent.refresh
            and self._retries_on.get(host_of(intent.callback), 0) >= self._config.max_retries_per_host
        ):
            self._tell(LimitReached("verifier.max_retries_per_host"))
            verdict = Failed(f"{verdict.reason}; not repeated, because too many checks of this host fail")
        if isinstance(verdict, TryAgain):
            kept = await self._subscriptions.postpone(
                pending.row, intent, attempts, verdict.at, verdict.reason, self._clock()
            )
            self._tell(IntentRetried(intent.topic, intent.callback, verdict.reason, verdict.at))
            return verdict.at if kept else self._clock()
        applied = await self._apply(pending.row, intent, verdict, sent_at, granted)
        # Not applied means that a newer request took the row while this one was out: look at it at once.
        return None if applied else self._clock()

    async def _settle_now(self, intent: Intent) -> str | None:
        refusal = await self._refusal(intent)
        if refusal is not None:
            return refusal
        sent_at = self._clock()
        granted = self._config.leases.grant(intent.lease_asked)
        verdict = await self._check(intent, granted, 1, synchronous=True)
        await self._apply(None, intent, verdict, sent_at, granted)
        return verdict.reason if isinstance(verdict, Failed) else None

    async def _check(self, intent: Intent, granted: int, attempts: int, *, synchronous: bool) -> Verdict:
        challenge = challenge_from(secrets.token_bytes(CHALLENGE_BYTES))
        answer = await self._ask(check_url(intent, challenge, granted))
        return judge(
            intent,
            answer,
            challenge,
            attempts=attempts,
            synchronous=synchronous,
            now=self._clock(),
            schedule=self._config.schedule,
        )

    async def _ask(self, url: str) -> Answer:
        try:
            response = await self._getter.get(
                url, timeout=self._config.timeout, max_bytes=self._config.max_answer_bytes
            )
        except GetFailedError as error:
            return Answer(None, reason=error.reason)
        return Answer(response.status, response.body)

    async def _apply(
        self, row: int | None, intent: Intent, verdict: Verdict, sent_at: float, granted: int
    ) -> Change | None:
        now = self._clock()
        if isinstance(verdict, Confirmed):
            change = await self._subscriptions.confirm(row, intent, sent_at, granted, now)
            self._tell(IntentConfirmed(intent.mode, intent.topic, intent.callback))
        else:
            change = await self._subscriptions.fail(row, intent, verdict.reason, now)
            self._tell(IntentFailed(intent.mode, intent.topic, intent.callback, verdict.reason))
        if change is not None:
            self._changed(change)
        return change

    async def _refusal(self, intent: Intent) -> str | None:
        """Ask the operator's policy; a refused subscription becomes a denial the callback will be told of."""
        if self._validator is None or intent.mode is not Mode.SUBSCRIBE:
            return None
        reason = await self._validator.refusal(intent.topic, intent.callback)
        if reason is None:
            return None
        denial = Intent(
            Mode.DENIED,
            intent.topic,
            intent.callback,
            intent.dialect,
            self._clock(),
            self.new_nonce(),
            reason=reason,
        )
        await self.deny(denial)
        return reason

    def _tell(self, event: HubEvent) -> None:
        if self._observer is not None:
            self._observer(event)
