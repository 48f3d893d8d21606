"""Works through the intents that wait for their check: durable, a bounded number at once, fair between hosts.

The rows are on disk; memory holds their numbers only. Whose turn it is, is decided in `checks`.
"""

import asyncio
import contextlib
import secrets
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from push_hub.checks import CheckQueue
from push_hub.events import HubEvent, IntentConfirmed, IntentFailed, IntentRetried, Observer, PartFailed
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
from serving.events import LimitReached
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
        self._queue = CheckQueue(config.concurrency, config.per_host)
        self._wake = asyncio.Event()
        self._tasks: set[asyncio.Task[None]] = set()
        self._loops: list[asyncio.Task[None]] = []
        self._checks_now: set[asyncio.Task[str | None]] = set()
        self._stopping = asyncio.Event()

    # -- for the server and the hub

    @property
    def waiting(self) -> int:
        """Intents that are not settled, those under way among them."""
        return len(self._queue)

    @property
    def running(self) -> int:
        """Checks under way."""
        return self._queue.running

    def new_nonce(self) -> str:
        return secrets.token_urlsafe(NONCE_BYTES)

    async def submit(self, intent: Intent) -> None:
        """Take an intent over: it is on disk when this returns. Raises `OverloadedError`."""
        self._admit(intent.callback)
        row = await self._subscriptions.enqueue(intent, self._clock())
        self._check_soon(row, intent.callback)

    async def deny(self, intent: Intent) -> None:
        row, change = await self._subscriptions.deny(intent, self._clock())
        self._changed(change)
        self._check_soon(row, intent.callback)

    async def check_now(self, intent: Intent) -> str | None:
        """0.3's synchronous mode: one check, one answer. None when confirmed, otherwise why not."""
        if self._stopping.is_set():
            raise OverloadedError(self._config.overload_retry_after, "the hub is stopping")
        host = host_of(intent.callback)
        if not self._queue.enter(host):
            self._tell(LimitReached("verifier.per_host"))
            raise OverloadedError(
                self._config.overload_retry_after, "too many checks for this callback's host are running"
            )
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
            self._queue.leave(host)
            self._wake.set()

    async def start(self) -> None:
        after = 0
        while rows := self._subscriptions.all_pending(after, LOAD_PAGE):
            for row, callback, at in rows:
                self._queue.wait(row, host_of(callback), at)
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
                self._check_soon(row, callback)
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
        if self._queue.pending_on(host_of(callback)) >= self._config.max_pending_per_host:
            self._tell(LimitReached("verifier.max_pending_per_host"))
            raise OverloadedError(
                self._config.overload_retry_after, "too many subscription checks are waiting for this callback's host"
            )

    def _check_soon(self, row: int, callback: str) -> None:
        self._queue.queue(row, host_of(callback))
        self._wake.set()

    # -- loops

    async def _dispatch(self) -> None:
        while True:
            self._wake.clear()
            self._queue.ripen(self._clock())
            while (found := self._queue.next()) is not None:
                task = asyncio.create_task(self._run(*found))
                self._tasks.add(task)
                task.add_done_callback(self._tasks.discard)
            at = self._queue.next_time
            delay = None if at is None else max(0.0, at - self._clock())
            # Not `wait_for`: in Python 3.11 it loses a cancellation that comes together with what it waits for.
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(delay):
                    await self._wake.wait()

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
            self._queue.finished(row, host, again, self._clock())
            self._wake.set()

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
            and self._queue.retries_on(host_of(intent.callback)) >= self._config.max_retries_per_host
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
