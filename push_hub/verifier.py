"""Works through the intents that wait for their check: durable, a bounded number at once, fair between hosts.

The rows are on disk; memory holds their numbers only. Whose turn it is, is decided in `checks`.
"""

import asyncio
import contextlib
import secrets
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial

from push_hub.bounds import BoundReachedError
from push_hub.checks import CheckQueue
from push_hub.events import HubEvent, IntentConfirmed, IntentFailed, IntentRetried, Observer, PartFailed
from push_hub.events import SubscriptionEnded as SubscriptionEndedEvent
from push_hub.ports import GetFailedError, Getter, OverloadedError, Validator
from push_hub.protocol.leases import LeasePolicy
from push_hub.protocol.numbers import CHALLENGE_BYTES, Mode
from push_hub.protocol.verification import (
    CallbackAnswer,
    CheckFailed,
    CheckSchedule,
    Confirmed,
    Intent,
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
from serving.fairness import KnownPrefixes, name_in
from serving.gate import TooManyError
from serving.outbound.errors import ShareTakenError
from storage import StorageError
from storage.clock import steady

LOAD_PAGE = 5_000
NONCE_BYTES = 9
ERROR_PAUSE = 1.0
Counted = Callable[[str], bool]
"""Asked with the prefix of an address before a check connects to it."""
FAULT_PAUSE = 60.0


@dataclass(frozen=True, slots=True)
class IntentVerifierConfig:
    concurrency: int = 200
    per_prefix: int = 20
    """Checks of the network that callbacks are in, whatever names it has: a /24 of IPv4, a /64 of IPv6."""
    max_pending: int = 100_000
    max_pending_per_prefix: int = 20_000
    max_retries_per_prefix: int = 100
    """Failed checks of one network that are kept for another try; above it a failure is final.

    So a server whose names strangers put into many requests is asked once for each, not again and again for hours.
    """
    timeout: float = 10.0
    max_answer_bytes: int = 4096
    leases: LeasePolicy = field(default_factory=LeasePolicy)
    schedule: CheckSchedule = field(default_factory=CheckSchedule)
    sweep_every: float = 5.0
    sweep_chunk: int = 1_000
    overload_retry_after: float = 5.0


class _Place:
    """The place of a check that is not a row's."""

    def __init__(self, queue: CheckQueue, prefix: str) -> None:
        self._queue = queue
        self.prefix = prefix

    def moved(self, prefix: str) -> bool:
        if not self._queue.move(self.prefix, prefix):
            return False
        self.prefix = prefix
        return True


class IntentVerifier:
    def __init__(
        self,
        subscriptions: Subscriptions,
        getter: Getter,
        config: IntentVerifierConfig,
        *,
        changed: Callable[[Change], None],
        validator: Validator | None = None,
        observer: Observer | None = None,
        clock: Callable[[], float] = steady,
        prefixes: KnownPrefixes | None = None,
    ) -> None:
        """`prefixes`: where the names of callbacks are, as `getter` learns it."""
        self._subscriptions = subscriptions
        self._getter = getter
        self._config = config
        self._changed = changed
        self._validator = validator
        self._observer = observer
        self._clock = clock
        self._queue = CheckQueue(
            config.concurrency, config.per_prefix, KnownPrefixes() if prefixes is None else prefixes
        )
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

    def is_known(self, topic: str, callback: str) -> bool:
        """Whether that subscription is there: renewing and ending it is never refused for want of room."""
        return self._subscriptions.is_there(topic, callback, self._clock())

    def new_nonce(self) -> str:
        return secrets.token_urlsafe(NONCE_BYTES)

    async def submit(self, intent: Intent) -> None:
        """Take an intent over: it is on disk when this returns. Raises `OverloadedError` and `TooManyError`."""
        if not self.is_known(intent.topic, intent.callback):
            self._admit(intent.callback)
        try:
            row = await self._subscriptions.enqueue(intent, self._clock())
        except BoundReachedError as error:
            raise self._refused(error) from None
        self._check_soon(row, intent.callback)

    async def deny(self, intent: Intent) -> None:
        row, change = await self._subscriptions.deny(intent, self._clock())
        self._changed(change)
        self._check_soon(row, intent.callback)

    async def check_now(self, intent: Intent) -> str | None:
        """0.3's synchronous mode: one check, one answer. None when confirmed, otherwise why not."""
        if self._stopping.is_set():
            raise OverloadedError(self._config.overload_retry_after, "the hub is stopping")
        try:
            self._subscriptions.check(intent, self._clock())
        except BoundReachedError as error:
            raise self._refused(error) from None
        prefix = self._queue.enter(name_in(intent.callback))
        if prefix is None:
            raise self._no_share()
        place = _Place(self._queue, prefix)
        task = asyncio.create_task(self._settle_now(intent, place.moved))
        self._checks_now.add(task)
        try:
            return await task
        except ShareTakenError:
            raise self._no_share() from None
        except asyncio.CancelledError:
            if not self._stopping.is_set() or not task.cancelled():
                raise
            raise OverloadedError(self._config.overload_retry_after, "the hub is stopping") from None
        finally:
            task.cancel()
            self._checks_now.discard(task)
            self._queue.leave(place.prefix)
            self._wake.set()

    async def start(self) -> None:
        after = 0
        while rows := self._subscriptions.all_pending(after, LOAD_PAGE):
            for row, callback, at in rows:
                self._queue.wait(row, name_in(callback), at)
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
        if self._queue.pending_on(name_in(callback)) >= self._config.max_pending_per_prefix:
            self._tell(LimitReached("verifier.max_pending_per_prefix"))
            raise OverloadedError(
                self._config.overload_retry_after,
                "too many subscription checks are waiting for the network of this callback",
            )

    def _check_soon(self, row: int, callback: str) -> None:
        self._queue.queue(row, name_in(callback))
        self._wake.set()

    # -- loops

    async def _dispatch(self) -> None:
        while True:
            self._wake.clear()
            self._queue.ripen(self._clock())
            while (row := self._queue.next()) is not None:
                task = asyncio.create_task(self._run(row))
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

    async def _run(self, row: int) -> None:
        again: float | None = None
        try:
            pending = self._subscriptions.pending(row)
            if pending is not None:
                again = await self._settle(pending)
        except ShareTakenError:
            # Nothing was asked: it waits in line again, under the network that its name turned out to be in.
            again = self._clock()
        except StorageError:
            # The row is still there as it was; the disk may be better in a moment.
            self._tell(LimitReached("storage"))
            again = self._clock() + ERROR_PAUSE
        except Exception as error:  # the policy is not ours; what was acknowledged is looked at again all the same
            self._tell(PartFailed("verifier", f"{type(error).__name__}: {error}"))
            again = self._clock() + FAULT_PAUSE
        finally:
            self._queue.finished(row, again, self._clock())
            self._wake.set()

    async def _settle(self, pending: Pending) -> float | None:
        """Check once and write down what it means. Returns when to look at the row again, if ever."""
        intent = pending.intent
        if intent.mode is Mode.SUBSCRIBE and not intent.refresh and pending.attempts == 0:
            refusal = await self._refusal(intent)
            if refusal is not None:
                return self._clock()
        attempts = pending.attempts + 1
        counted = partial(self._queue.moved, pending.row)
        sent_at = self._clock()
        granted = self._config.leases.grant(intent.lease_asked)
        if intent.mode is Mode.DENIED:
            answer = await self._ask(denial_url(intent), counted)
            verdict = judge_denial(intent, answer, attempts=attempts, now=self._clock(), schedule=self._config.schedule)
        else:
            verdict = await self._check(intent, granted, attempts, counted, synchronous=False)
        if (
            isinstance(verdict, TryAgain)
            and not intent.refresh
            and self._queue.retries_on(name_in(intent.callback)) >= self._config.max_retries_per_prefix
        ):
            self._tell(LimitReached("verifier.max_retries_per_prefix"))
            verdict = CheckFailed(f"{verdict.reason}; not repeated, because too many checks of its network fail")
        if isinstance(verdict, TryAgain):
            kept = await self._subscriptions.postpone(
                pending.row, intent, attempts, verdict.at, verdict.reason, self._clock()
            )
            self._tell(IntentRetried(intent.topic, intent.callback, verdict.reason, verdict.at))
            return verdict.at if kept else self._clock()
        applied = await self._apply(pending.row, intent, verdict, sent_at, granted)
        # Not applied means that a newer request took the row while this one was out: look at it at once.
        return None if applied else self._clock()

    async def _settle_now(self, intent: Intent, counted: Counted) -> str | None:
        refusal = await self._refusal(intent)
        if refusal is not None:
            return refusal
        sent_at = self._clock()
        granted = self._config.leases.grant(intent.lease_asked)
        verdict = await self._check(intent, granted, 1, counted, synchronous=True)
        await self._apply(None, intent, verdict, sent_at, granted)
        return verdict.reason if isinstance(verdict, CheckFailed) else None

    async def _check(
        self, intent: Intent, granted: int, attempts: int, counted: Counted, *, synchronous: bool
    ) -> Verdict:
        challenge = challenge_from(secrets.token_bytes(CHALLENGE_BYTES))
        answer = await self._ask(check_url(intent, challenge, granted), counted)
        return judge(
            intent,
            answer,
            challenge,
            attempts=attempts,
            synchronous=synchronous,
            now=self._clock(),
            schedule=self._config.schedule,
        )

    async def _ask(self, url: str, counted: Counted) -> CallbackAnswer:
        try:
            response = await self._getter.get(
                url, timeout=self._config.timeout, max_bytes=self._config.max_answer_bytes, counted=counted
            )
        except GetFailedError as error:
            return CallbackAnswer(None, reason=error.reason, lasting=error.lasting)
        return CallbackAnswer(response.status, response.body)

    async def _apply(
        self, row: int | None, intent: Intent, verdict: Verdict, sent_at: float, granted: int
    ) -> Change | None:
        now = self._clock()
        if isinstance(verdict, Confirmed):
            try:
                change = await self._subscriptions.confirm(row, intent, sent_at, granted, now)
            except BoundReachedError as error:
                refused = self._refused(error)
                await self.deny(self._denial(intent, error.text))
                if row is None:
                    raise refused from None
                return None
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
        await self.deny(self._denial(intent, reason))
        return reason

    def _denial(self, intent: Intent, reason: str) -> Intent:
        return replace(
            Intent(Mode.DENIED, intent.topic, intent.callback, intent.dialect, self._clock(), self.new_nonce()),
            reason=reason,
            address=intent.address,
            network=intent.network,
        )

    def _refused(self, error: BoundReachedError) -> TooManyError | OverloadedError:
        self._tell(LimitReached(error.name))
        kind = TooManyError if error.own else OverloadedError
        return kind(self._config.overload_retry_after, error.text)

    def _no_share(self) -> OverloadedError:
        self._tell(LimitReached("verifier.per_prefix"))
        return OverloadedError(
            self._config.overload_retry_after, "too many checks for the network of this callback are running"
        )

    def _tell(self, event: HubEvent) -> None:
        if self._observer is not None:
            self._observer(event)
