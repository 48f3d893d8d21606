"""The asyncio shell of the intake: pings in, fetches, publications out.

Why nothing acknowledged is lost, and nothing is published twice, whenever the process is killed:

- `ping` returns after its rows are committed, and `start` asks again for every row it finds.
- A row is deleted in the transaction that stores what its fetch found (validators, digests, entries), and only
  if the row is not newer than the one read before the fetch began. A ping that came in meanwhile stays.
- A new state is given to the sink first, and our own state is written after it is on disk. Killed in between,
  the fetch is repeated with the old validators and finds the same content «new» again; before it is given to the
  sink it is compared with the topic's newest publication, which is this very content, and only the state is
  written. If the publisher changed the document once more in between, that is a new state and is published:
  its `changes` then hold the entries of both, so that nobody misses one.
"""

import asyncio
import contextlib
import hashlib
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from push_hub.discovery import discover, is_xml, media_type
from push_hub.intake.config import IntakeConfig
from push_hub.intake.events import (
    DocumentRefused,
    FetchFailed,
    IntakeEvent,
    Observer,
    PingsRefused,
    PingsStored,
    TopicFetched,
)
from push_hub.intake.feeds import Entry, Feed, NotAFeedError, PollHints, read_feed, reduce_to, unseen
from push_hub.intake.loose import read_loosely
from push_hub.intake.ports import Fetch, Sink, reason_of
from push_hub.intake.queue import FetchQueue
from push_hub.intake.schedule import Seen, max_age, plan_poll, retry_after, retry_delay
from push_hub.intake.source import Fetched, FetchFailedError, fetch_document
from push_hub.intake.store import IntakeStore, Source, Update
from push_hub.model import Content
from push_hub.ports import OverloadedError as SinkOverloadedError
from push_hub.xmlguard import UnsafeXmlError
from storage import Database, DatabaseBusyError, StorageError

DEFAULT_TYPE = "application/octet-stream"


class OverloadedError(Exception):
    """Too many topics wait; the sender should come back after `retry_after` seconds."""

    def __init__(self, retry_after: float, text: str = "too many topics are waiting to be fetched") -> None:
        super().__init__(text)
        self.retry_after = retry_after
        self.text = text


@dataclass(frozen=True, slots=True)
class _Look:
    """A document compared with what was known of it."""

    content: Content
    changed: bool
    digest: bytes
    frame: bytes | None = None
    entries: Sequence[Entry] = ()
    new_entries: int | None = None
    hints: PollHints = field(default_factory=PollHints)


class Intake:
    """`start` it on the running loop; `ping` and `offer` may be called from then on, `stop` ends it."""

    def __init__(
        self,
        database: Database,
        fetch: Fetch,
        sink: Sink,
        config: IntakeConfig,
        clock: Callable[[], float],
        observer: Observer | None = None,
    ) -> None:
        self._fetch = fetch
        self._sink = sink
        self._config = config
        self._clock = clock
        self._observer = observer
        self._store = IntakeStore(database, config.max_entries_kept)
        self._queue = FetchQueue(config.max_fetches, config.max_fetches_per_host)
        self._attempts: dict[str, int] = {}
        self._reserved = 0
        self._jitter = random.Random()  # noqa: S311 - spreads retries, guards nothing
        self._parses = asyncio.Semaphore(config.max_parses)
        self._offers: dict[str, asyncio.Lock] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._idle = asyncio.Event()
        self._idle.set()
        self._timer: asyncio.TimerHandle | None = None
        self._poller: asyncio.Task[None] | None = None
        self._running = False

    async def start(self) -> None:
        """Take up what was asked for before the last stop or crash."""
        self._running = True
        for topic in self._store.pings(self._config.max_waiting_topics):
            self._queue.ask(topic)
        if self._config.poll:
            self._poller = asyncio.create_task(self._poll())
        self._pump()

    async def stop(self) -> None:
        """End what runs; the pings it was about are on disk."""
        self._running = False
        if self._timer is not None:
            self._timer.cancel()
        tasks = [*self._tasks, *([self._poller] if self._poller else [])]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def idle(self) -> None:
        """Wait until no fetch runs or can run now (retries that come later do not count)."""
        await self._idle.wait()

    async def ping(self, topics: Sequence[str]) -> None:
        """Returns once the pings are on disk. Raises `OverloadedError`."""
        topics = list(dict.fromkeys(topics))
        new = sum(topic not in self._queue for topic in topics)
        if len(self._queue) + self._reserved + new > self._config.max_waiting_topics:
            self._observe(PingsRefused(len(topics)))
            raise OverloadedError(self._config.busy_retry_after)
        self._reserved += new
        try:
            await asyncio.wrap_future(self._store.add_pings(topics, self._clock()))
        except DatabaseBusyError:
            self._observe(PingsRefused(len(topics)))
            raise OverloadedError(self._config.busy_retry_after, "too many writes are waiting") from None
        finally:
            self._reserved -= new
        self._observe(PingsStored(len(topics)))
        for topic in topics:
            self._attempts.pop(topic, None)
            self._queue.ask(topic)
        self._pump()

    async def offer(self, topic: str, content: Content, self_url: str) -> None:
        """Content an allowed publisher brought along: treated as if it had been fetched. Returns when on disk."""
        lock = self._offers.setdefault(topic, asyncio.Lock())
        try:
            async with lock:
                source = self._store.source(topic)
                try:
                    look = await self._look(topic, content.content_type, content.body, source)
                except UnsafeXmlError as error:
                    self._observe(DocumentRefused(topic, str(error)))
                    raise
                if look.changed and not self._store.was_published(topic, look.content):
                    await self._sink.accept(topic, self_url, look.content)
                # No validators: the next fetch must not be answered «not modified» for content we never fetched.
                update = Update(
                    topic,
                    self_url,
                    "the publisher brought the content along",
                    self._clock(),
                    None,
                    validators=replace(source.validators, etag=None, last_modified=None),
                    body_digest=look.digest,
                    frame=look.frame,
                    entries=look.entries,
                )
                await asyncio.wrap_future(self._store.finish(update))
        finally:
            if not lock.locked():
                self._offers.pop(topic, None)

    def _observe(self, event: IntakeEvent) -> None:
        if self._observer is not None:
            self._observer(event)

    def _pump(self) -> None:
        """Start every fetch that may start now, and set the timer for the next retry."""
        if not self._running:
            return
        now = self._clock()
        while (topic := self._queue.next(now)) is not None:
            task = asyncio.create_task(self._run(topic))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        wake_at = self._queue.wake_at()
        if wake_at is not None:
            self._timer = asyncio.get_running_loop().call_later(max(0.0, wake_at - now), self._pump)
        if self._queue.active:
            self._idle.clear()
        else:
            self._idle.set()

    async def _run(self, topic: str) -> None:
        retry_at: float | None = None
        try:
            retry_at = await self._one_fetch(topic)
        except Exception as error:  # a full disk, a closed sink: the ping's row is still there
            retry_at = self._next_try(topic)
            if retry_at is None and isinstance(error, StorageError | SinkOverloadedError):
                retry_at = self._clock() + self._delay(topic)  # our own trouble is no reason to give up on a ping
            self._observe(FetchFailed(topic, reason_of(error), retry_at))
        finally:
            again = self._queue.finished(topic)
            if retry_at is not None and not again:
                self._queue.ask_later(topic, retry_at)
            self._pump()

    async def _one_fetch(self, topic: str) -> float | None:
        """Fetch, publish, remember. Returns when to try again, or None when this was the end of it."""
        answered = self._store.pinged_until(topic)
        source = self._store.source(topic)
        now = self._clock()
        start = topic
        if source.moved_to and now - source.moved_at < self._config.permanent_redirect_trust:
            start = source.moved_to
        subscribers = await asyncio.to_thread(self._store.subscribers, topic)
        try:
            fetched = await fetch_document(self._fetch, start, source.validators, subscribers, self._config)
            await self._take(topic, source, fetched, answered)
        except (FetchFailedError, UnsafeXmlError) as error:
            return await self._failed(topic, source, error, answered)
        self._attempts.pop(topic, None)
        return None

    async def _take(self, topic: str, source: Source, fetched: Fetched, answered: float | None) -> None:
        content_type = fetched.headers.get("Content-Type") or DEFAULT_TYPE
        update = Update(topic, source.self_url, "", self._clock(), answered)
        look: _Look | None = None
        published = False
        if fetched.body is not None:
            look = await self._look(topic, content_type, fetched.body, source)
            links = discover(fetched.headers, content_type, fetched.body, fetched.url)
            update = replace(
                update,
                self_url=links.self_url or topic,
                validators=fetched.validators,
                body_digest=look.digest,
                frame=look.frame,
                entries=look.entries,
            )
            if look.changed and not self._store.was_published(topic, look.content):
                await self._sink.accept(topic, update.self_url, look.content)
                published = True
        if fetched.moved_to is not None:
            update = replace(update, moved_to=fetched.moved_to, moved_at=self._clock())
        if self._config.poll:
            seen = Seen(
                published,
                look.hints if look else PollHints(),
                max_age(fetched.headers.get("Cache-Control")),
                retry_after(fetched.headers.get("Retry-After"), self._clock()),
            )
            plan = plan_poll(source.poll_every, seen, self._clock(), self._config.poll_min, self._config.poll_max)
            update = replace(update, poll_every=plan.every, poll_at=plan.at)
        update = replace(update, outcome=_in_words(fetched, look, published))
        await asyncio.wrap_future(self._store.finish(update))
        self._observe(TopicFetched(topic, fetched.status, published, look.new_entries if look else None))

    async def _look(self, topic: str, content_type: str, body: bytes, source: Source) -> _Look:
        """Compare with what was seen before. Raises `UnsafeXmlError`."""
        digest = hashlib.sha256(body).digest()
        whole = _Look(Content(content_type, body), digest != source.body_digest, digest)
        if not is_xml(content_type) or media_type(content_type) in ("application/xhtml+xml", "image/svg+xml"):
            return whole
        async with self._parses:
            feed = await self._parse(body, content_type)
            if feed is None:
                return whole
            return await asyncio.to_thread(self._compare, topic, whole, feed, source)

    async def _parse(self, body: bytes, content_type: str) -> Feed | None:
        try:
            return await asyncio.to_thread(read_feed, body, content_type)
        except NotAFeedError as error:
            if not error.malformed or len(body) > self._config.loose_max_bytes:
                return None
        return await read_loosely(body, content_type, self._config.loose_timeout)

    def _compare(self, topic: str, whole: _Look, feed: Feed, source: Source) -> _Look:
        new = unseen(feed, self._store.seen(topic))
        return _Look(
            replace(whole.content, changes=reduce_to(whole.content.body, feed, new)),
            bool(new) or feed.frame != source.frame,
            whole.digest,
            feed.frame,
            feed.entries,
            len(new),
            feed.hints,
        )

    async def _failed(
        self, topic: str, source: Source, error: FetchFailedError | UnsafeXmlError, answered: float | None
    ) -> float | None:
        now = self._clock()
        reason = str(error)
        wait: float | None = None
        if isinstance(error, UnsafeXmlError):
            self._observe(DocumentRefused(topic, reason))
            reason, retry_at = f"the document was refused: {reason}", None
        else:
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
        update = Update(topic, source.self_url, outcome, now, answered if retry_at is None else None)
        if source.moved_to is not None:
            # The new address gives trouble: the next try asks the old one again.
            update = replace(update, moved_at=now)
        if self._config.poll:
            plan = plan_poll(
                source.poll_every, Seen(False, retry_after=wait), now, self._config.poll_min, self._config.poll_max
            )
            update = replace(update, poll_every=plan.every, poll_at=plan.at)
        await asyncio.wrap_future(self._store.finish(update))
        self._observe(FetchFailed(topic, reason, retry_at))
        return retry_at

    def _next_try(self, topic: str) -> float | None:
        attempts = self._attempts[topic] = self._attempts.get(topic, 0) + 1
        if attempts >= self._config.max_attempts:
            return None
        return self._clock() + self._delay(topic)

    def _delay(self, topic: str) -> float:
        attempts = self._attempts[topic]
        return retry_delay(attempts, self._config.retry_base, self._config.retry_cap, self._jitter)

    async def _poll(self) -> None:
        """Ask for the topics whose time has come, as far as there is room for them."""
        while True:
            # A store that cannot be read now may be readable at the next tick.
            with contextlib.suppress(Exception):
                room = min(self._config.poll_batch, self._config.max_waiting_topics - len(self._queue))
                if room > 0:
                    due = await asyncio.to_thread(self._store.due_polls, self._clock(), room)
                    due += await asyncio.to_thread(self._store.unknown_topics, room)
                    for topic in due:
                        if topic not in self._queue:
                            self._queue.ask(topic)
                    self._pump()
            await asyncio.sleep(self._config.poll_tick)


def _in_words(fetched: Fetched, look: _Look | None, published: bool) -> str:
    if look is None:
        return f"not modified ({fetched.status})"
    if not published:
        return "fetched, nothing new"
    if look.new_entries is None:
        return "fetched, the content changed"
    return f"fetched, {look.new_entries} new or changed entries"
