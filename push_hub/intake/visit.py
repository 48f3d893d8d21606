"""One visit to a topic: fetch it (or take what a publisher brought along), publish what is new, write down the rest.

Why nothing is published twice or lost, whenever the process is killed: a new state and what we remember of it are
written in one transaction. A hub of before wrote them one after the other, and may have been killed in between: a ping
that was left over is answered by a visit that compares what it finds with the topic's newest publication.

What a gateway brought from another network was taken apart there before it was sent. When nobody here wants reduced
documents it is passed on at once, and taken apart afterwards, for those who may want them later.
"""

import asyncio
import random
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

from push_hub.discovery import discover, is_called_feed
from push_hub.intake.config import IntakeConfig
from push_hub.intake.events import (
    DocumentArrived,
    DocumentRefused,
    FetchFailed,
    FetchOvertaken,
    IntakeEvent,
    Observer,
    RetriesBounded,
    TopicFetched,
)
from push_hub.intake.inspection import DocumentInspector, Inspection
from push_hub.intake.own_address import OwnAddresses
from push_hub.intake.ports import FeedReader, Fetch, PublicationSink, reason_of
from push_hub.intake.queue import FetchQueue
from push_hub.intake.schedule import PollPlan, Seen, max_age, plan_poll, retry_after
from push_hub.intake.source import Fetched, FetchFailedError, fetch_document
from push_hub.intake.store import FetchSource, IntakeStore, Update
from push_hub.intake.threads import Threads
from push_hub.intake.trouble import FetchTrouble
from push_hub.intake.turns import TopicTurns
from push_hub.model import Content
from push_hub.ports import OverloadedError
from push_hub.protocol.requests import RequestError
from push_hub.xmlguard import UnsafeXmlError
from serving.outbound.errors import ShareTakenError
from storage import StorageError
from storage.backoff import BackOff
from storage.queues import QueueObserver, StayEnd, watch_queue

DEFAULT_TYPE = "application/octet-stream"
UNPROCESSABLE = 422
SHARE_PAUSES = BackOff(0.5, longest=600.0)
"""Seconds until a network that had its share is tried again, at first."""
REFUSED = frozenset({FetchTrouble.TOO_LARGE, FetchTrouble.UNSAFE, FetchTrouble.NOT_TAKEN})
"""Of these the document is to blame, not the way to it."""
QUICK_REPEATS = 3
"""Fetches that were overtaken are repeated at once this often, then with growing pauses."""


@dataclass(slots=True)
class EarlyPing:
    """A ping that is looked into before it is stored: when all goes well, one transaction holds both."""

    received: float
    covered: bool | None = None
    """True: what its visit left behind is on disk, and the ping with it. False: it must be stored by itself."""
    is_written: bool = False
    """Whether that is on its way to the disk."""
    looked: "asyncio.Future[None] | None" = None
    """Whoever waits to look at it."""

    def look(self) -> None:
        if self.looked is not None and not self.looked.done():
            self.looked.set_result(None)


class Visits:
    def __init__(
        self,
        store: IntakeStore,
        fetch: Fetch,
        sink: PublicationSink,
        reader: FeedReader,
        threads: Threads,
        config: IntakeConfig,
        clock: Callable[[], float],
        observer: Observer | None,
        lanes: FetchQueue,
        queues: QueueObserver | None = None,
    ) -> None:
        self._brought = watch_queue("offer", queues)
        self._store = store
        self._fetch = fetch
        self._sink = sink
        self._inspector = DocumentInspector(store, reader, threads)
        self._own_addresses = OwnAddresses(fetch, config, threads, clock)
        self._threads = threads
        self._config = config
        self._clock = clock
        self._observer = observer
        self._lanes = lanes
        self._turns = TopicTurns()
        self._offers = 0
        self._put_off: dict[str, int] = {}
        """Tries that ended before a connection was made, because its network had its share."""
        self._attempts: dict[str, int] = {}
        """Tries of topics whose server gives trouble. After `max_attempts` the intake waits for the next ping."""
        self._stalls: dict[str, int] = {}
        """Tries that failed on our own side (store, overload). These have no end: the ping was acknowledged."""
        self._overtakes: dict[str, int] = {}
        self.early: dict[str, EarlyPing] = {}
        """Of topics that are being fetched."""
        self._behind: dict[str, Inspection] = {}
        """The newest document of each topic that was passed on and is still to be taken apart."""
        self._catching_up: set[asyncio.Task[None]] = set()
        self._began = clock()
        self._jitter = random.Random()  # noqa: S311 - spreads retries, guards nothing

    def fresh_start(self, topic: str) -> None:
        """A new ping: the topic gets all its tries again."""
        self._attempts.pop(topic, None)

    async def visit(self, topic: str) -> float | None:
        """Fetch, publish, remember. Returns when to try again, or None when this was the end of it."""
        try:
            retry_at = await self._visit(topic)
        except ShareTakenError as error:
            return self._wait_for_share(topic, error)
        except Exception as error:  # a full disk, a busy sink: the ping's row is still there
            stalls = self._stalls[topic] = self._stalls.get(topic, 0) + 1
            wait = self._config.retries.wait(stalls, self._jitter)
            if isinstance(error, OverloadedError):
                wait = max(wait, min(error.retry_after, self._config.retry_cap))
            retry_at = self._clock() + wait
            self._observe(FetchFailed(topic, reason_of(error), retry_at))
            return retry_at
        self._stalls.pop(topic, None)
        self._put_off.pop(topic, None)
        return retry_at

    def _wait_for_share(self, topic: str, error: ShareTakenError) -> float:
        """Not a try: nothing was asked. At its own network it waits in line; one that it was sent to has no line."""
        times = self._put_off[topic] = self._put_off.get(topic, 0) + 1
        if times == 1 and self._lanes.is_known_at(topic, error.prefix):
            return self._clock()
        return self._clock() + SHARE_PAUSES.wait(times, self._jitter)

    async def offer(self, topic: str, content: Content, self_url: str) -> None:
        """Content an allowed publisher brought along: treated as if it had been fetched. Returns when on disk.

        Raises `OverloadedError`, or `RequestError` for content that is refused; both change nothing.
        """
        if self._offers >= self._config.max_offers:
            raise OverloadedError(self._config.busy_retry_after, "too much content is waiting to be looked at")
        self._offers += 1
        self._turns.arrived(topic)
        stay = None if self._brought is None else self._brought.came(topic)
        end: StayEnd = "failed"
        try:
            async with self._turns.turn(topic):
                if stay is not None:
                    stay.begins()
                await self._take_offer(topic, content, self_url)
            end = "ok"
        except UnsafeXmlError as error:
            self._observe(DocumentRefused(topic, str(error)))
            raise RequestError(f"the content is refused as unsafe XML: {error}", UNPROCESSABLE) from error
        finally:
            self._offers -= 1
            if stay is not None:
                stay.ends(end)

    async def _take_offer(self, topic: str, content: Content, self_url: str) -> None:
        source = self._store.source(topic)
        look = await self._inspector.inspect_bytes(content, source)
        passed_on = False
        if look.changed:
            apart = self._inspector.take_apart_plain(topic, look, source)
            passed_on = apart is None and self._may_pass_on(topic, content)
            if apart is not None:
                look = apart
            elif not passed_on:
                look = await self._inspector.take_apart(topic, look, source)
        update = Update(
            topic,
            self_url,
            "the publisher brought the content along",
            self._clock(),
            None,
            # No validators: the next fetch must not be answered «not modified» for content we never fetched.
            validators=replace(source.validators, etag=None, last_modified=None),
            body_digest=look.digest,
            frame=look.frame,
            entries=look.entries,
            known_entries=look.known_entries,
            hints=look.hints,
            trouble=None if passed_on else _trouble_with(look, source),
        )
        if self._config.poll:
            plan = self._plan(source, Seen(look.changed, look.hints or source.hints), pinged=True)
            update = replace(update, poll_every=plan.every, poll_at=plan.at)
        if look.changed:
            await self._publish(look.content, update)
        else:
            await self._store.finish(update)
        if passed_on:
            self._catch_up_soon(topic, look)

    def _may_pass_on(self, topic: str, content: Content) -> bool:
        """Whether it need not be taken apart before it is published."""
        return content.brought and len(self._behind) < self._config.max_offers and not self._store.wants_changes(topic)

    def _catch_up_soon(self, topic: str, look: Inspection) -> None:
        """Take a document apart that was passed on already; of several, only the newest."""
        is_busy = topic in self._behind
        self._behind[topic] = look
        if not is_busy:
            task = asyncio.create_task(self._catch_up(topic))
            self._catching_up.add(task)
            task.add_done_callback(self._catching_up.discard)

    async def _catch_up(self, topic: str) -> None:
        look: Inspection | None = None
        try:
            while (newest := self._behind[topic]) is not look:
                look = newest
                apart = await self._inspector.take_apart(topic, look, self._store.source(topic))
                await self._store.caught_up(topic, look.digest, apart.frame, apart.entries, apart.hints, self._clock())
        except Exception as error:  # it was published: this costs the next update its reduced form, nothing else
            self._observe(DocumentRefused(topic, f"published, but not taken apart: {reason_of(error)}"))
        finally:
            del self._behind[topic]

    async def stop(self) -> None:
        """What is still to be taken apart stays so."""
        for task in self._catching_up:
            task.cancel()
        await asyncio.gather(*self._catching_up, return_exceptions=True)

    def _observe(self, event: IntakeEvent) -> None:
        if self._observer is not None:
            self._observer(event)

    async def _visit(self, topic: str) -> float | None:
        async with self._turns.fetching(topic):
            source = self._store.source(topic)
            answered = self._answered(topic, source)
            try:
                fetched = await self._fetched(topic, source)
                self._observe(DocumentArrived(topic, fetched.status, len(fetched.body or b"")))
                async with self._turns.turn(topic):
                    if self._turns.overtaken(topic):
                        return self._again(topic, answered)
                    await self._take(topic, source, fetched, answered)
            except (StorageError, OverloadedError, ShareTakenError):
                raise
            except (FetchFailedError, UnsafeXmlError) as error:
                return await self._failed(topic, error, answered)
            except Exception as error:  # the sink's refusal, or a mistake of ours: it must end some time
                lasting = isinstance(error, RequestError)
                refused = FetchFailedError(reason_of(error), lasting, trouble=FetchTrouble.NOT_TAKEN)
                return await self._failed(topic, refused, answered)
        self._attempts.pop(topic, None)
        self._overtakes.pop(topic, None)
        return None

    def _answered(self, topic: str, source: FetchSource) -> float | None:
        """Up to when pings are answered by a fetch that begins now."""
        early = self.early.get(topic)
        if early is None:
            return source.pinged_until
        return max(early.received, source.pinged_until or early.received)

    async def _fetched(self, topic: str, source: FetchSource) -> Fetched:
        start = topic
        if source.moved_to and self._clock() - source.moved_at < self._config.permanent_redirect_trust:
            start = source.moved_to
        counted = partial(self._lanes.moved, topic)
        return await fetch_document(
            self._fetch, start, source.validators, source.subscribers, self._config, self._threads, counted
        )

    def _again(self, topic: str, answered: float | None) -> float | None:
        """The answer was overtaken by content brought along. A ping still wants its own look; a poll does not."""
        self._observe(FetchOvertaken(topic))
        if answered is None:
            return None
        overtakes = self._overtakes[topic] = self._overtakes.get(topic, 0) + 1
        if overtakes < QUICK_REPEATS:
            return self._clock()
        return self._clock() + self._config.retries.wait(overtakes - QUICK_REPEATS + 1, self._jitter)

    async def _take(self, topic: str, source: FetchSource, fetched: Fetched, answered: float | None) -> None:
        content_type = fetched.headers.get("Content-Type") or DEFAULT_TYPE
        early = self.early.get(topic)
        look: Inspection | None = None
        is_news = False
        self_url = source.self_url
        if fetched.body is not None:
            look = await self._inspector.look(topic, Content(content_type, fetched.body), source)
            links = await self._threads.run_on(
                fetched.body, discover, fetched.headers, content_type, fetched.body, fetched.url
            )
            is_news = look.changed
            if is_news and (early is None or source.pinged_until is not None):
                is_news = not await self._was_published(topic, look.content, source)
            if is_news:
                counted = partial(self._lanes.moved, topic)
                self_url = await self._own_addresses.believed(topic, links.self_url, fetched, counted)
        plan: PollPlan | None = None
        if self._config.poll:
            seen = Seen(
                is_news,
                (look.hints if look else None) or source.hints,
                max_age(fetched.headers.get("Cache-Control")),
                retry_after(fetched.headers.get("Retry-After"), self._clock()),
            )
            plan = self._plan(source, seen, pinged=answered is not None)
        update = Update(
            topic,
            self_url,
            _in_words(fetched, look, is_news),
            self._clock(),
            answered,
            validators=fetched.validators if look else None,
            body_digest=look.digest if look else None,
            frame=look.frame if look else None,
            entries=look.entries if look else (),
            known_entries=look.known_entries if look else None,
            moved_to=fetched.moved_to,
            moved_at=None if fetched.moved_to is None else self._clock(),
            poll_every=plan.every if plan else None,
            poll_at=plan.at if plan else None,
            hints=look.hints if look else None,
            trouble=_trouble_with(look, source),
        )
        if early is not None:
            early.is_written = True
        if look is not None and is_news:
            await self._publish(look.content, update)
        else:
            await self._store.finish(update)
        self._observe(TopicFetched(topic, fetched.status, is_news, look.new_entries if look else None))

    async def _publish(self, content: Content, update: Update) -> None:
        await self._sink.accept(update.topic, update.self_url, content, lambda tx: self._store.write_down(tx, update))

    async def _was_published(self, topic: str, content: Content, source: FetchSource) -> bool:
        """A hub of before this process may have published it, and ended before it could write that down.

        Not asked for a ping that came to this process, when there is no older one.
        """
        if source.pinged_until is not None and source.pinged_until > self._began:
            return False
        return await self._threads.run_on(content.body, self._store.was_published, topic, content)

    async def _failed(
        self, topic: str, error: FetchFailedError | UnsafeXmlError, answered: float | None
    ) -> float | None:
        now = self._clock()
        reason = str(error)
        retry_at: float | None = None
        wait: float | None = None
        trouble = FetchTrouble.UNSAFE if isinstance(error, UnsafeXmlError) else error.trouble
        if trouble in REFUSED:
            self._observe(DocumentRefused(topic, reason, trouble))
            reason = f"the document was refused: {reason}"
        if isinstance(error, FetchFailedError):
            retry_at = None if error.lasting else self._next_try(topic)
            wait = retry_after(error.headers.get("Retry-After"), now) if error.headers is not None else None
            if retry_at is not None and wait is not None:
                retry_at = max(retry_at, now + wait)
        tries = self._attempts.get(topic, 1)
        if retry_at is None:
            self._attempts.pop(topic, None)
            outcome = f"{reason}; gave up after {tries} tr{'y' if tries == 1 else 'ies'}, waiting for the next ping"
        else:
            outcome = f"{reason}; try {tries} of {self._config.max_attempts}"
        async with self._turns.turn(topic):
            source = self._store.source(topic)
            update = Update(
                topic, source.self_url, outcome, now, answered if retry_at is None else None, trouble=trouble
            )
            if source.moved_to is not None:
                # The new address gives trouble: the next try asks the old one again.
                update = replace(update, moved_at=now)
            if self._config.poll:
                plan = self._plan(source, Seen(False, source.hints, retry_after=wait), pinged=False)
                update = replace(update, poll_every=plan.every, poll_at=plan.at)
            await self._store.finish(update)
        self._observe(FetchFailed(topic, reason, retry_at))
        return retry_at

    def _plan(self, source: FetchSource, seen: Seen, pinged: bool) -> PollPlan:
        """A topic whose publisher pings is only looked at now and then, in case it stops."""
        shortest, longest = self._config.poll_min, self._config.poll_max
        plan = plan_poll(source.poll_every, seen, self._clock(), shortest, longest)
        if not pinged:
            return plan
        return replace(plan_poll(longest, seen, self._clock(), longest, longest), every=plan.every)

    def _next_try(self, topic: str) -> float | None:
        attempts = self._attempts[topic] = self._attempts.get(topic, 0) + 1
        if attempts >= self._config.max_attempts:
            return None
        if self._lanes.retries_near(topic) >= self._config.max_retries_per_prefix:
            self._observe(RetriesBounded(topic))
            return None
        return self._clock() + self._config.retries.wait(attempts, self._jitter)


def _trouble_with(look: Inspection | None, source: FetchSource) -> FetchTrouble | None:
    """Of what is called a feed: could its last document that was new be taken apart?"""
    if look is None or not look.changed:
        return FetchTrouble.WHOLE if source.trouble is FetchTrouble.WHOLE else None
    is_whole = look.new_entries is None and is_called_feed(look.content.content_type)
    return FetchTrouble.WHOLE if is_whole else None


def _in_words(fetched: Fetched, look: Inspection | None, published: bool) -> str:
    if look is None:
        return f"not modified ({fetched.status})"
    if not published:
        return "fetched, nothing new"
    if look.new_entries is None:
        return "fetched, the content changed"
    return f"fetched, {look.new_entries} new or changed entries"
