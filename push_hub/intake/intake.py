"""The asyncio shell of the intake: pings in, visits to their topics, publications out.

Why no acknowledged ping is lost or waits for ever, whenever the process is killed or the store fails:

- `ping` returns after its rows are committed, or, when its topic was fetched at once and that went quickly, after what
  was found is. A row is deleted in the transaction that stores what its visit found,
  and only if the row is not newer than the one read before the request was sent. A ping that came in meanwhile stays.
- A visit that fails on our own side (full disk, busy sink) is repeated until it works.
- The sweep goes round the rows on disk and asks for every topic that nobody is busy with: at the start, as fast as the
  queue takes them, and later at leisure, for rows that were left over for whatever reason.
"""

import asyncio
from collections.abc import Callable, Sequence

from push_hub.intake.config import IntakeConfig
from push_hub.intake.events import IntakeEvent, Observer, PingsRefused, PingsStored, PingsUnwanted, SweepFailed
from push_hub.intake.parsers import ParserPool
from push_hub.intake.ports import FeedReader, Fetch, PublicationSink, reason_of
from push_hub.intake.queue import FetchQueue
from push_hub.intake.store import PING_STEP, Added, IntakeStore
from push_hub.intake.threads import Threads
from push_hub.intake.visit import EarlyPing, Visits
from push_hub.model import Content
from push_hub.ports import Elsewhere, Nowhere, OverloadedError
from serving.fairness import KnownPrefixes
from storage import Database, DatabaseBusyError
from storage.queues import OpenStay, QueueObserver, watch_queue

EARLY_PATIENCE = 0.01
"""Seconds that a ping waits for its fetch before it is stored by itself."""


class Intake:
    """`start` it on the running loop; `ping` and `offer` may be called from then on, `stop` ends it."""

    def __init__(
        self,
        database: Database,
        fetch: Fetch,
        sink: PublicationSink,
        config: IntakeConfig,
        clock: Callable[[], float],
        observer: Observer | None = None,
        reader: FeedReader | None = None,
        prefixes: KnownPrefixes | None = None,
        elsewhere: Elsewhere | None = None,
        queues: QueueObserver | None = None,
    ) -> None:
        """`prefixes`: where the names of origins are, as `fetch` learns it."""
        self._topics = watch_queue("intake", queues)
        self._stays: dict[str, OpenStay] = {}
        """Of topics that wait for their fetch, when somebody follows them."""
        self._elsewhere = Nowhere() if elsewhere is None else elsewhere
        prefixes = KnownPrefixes() if prefixes is None else prefixes
        self._config = config
        self._clock = clock
        self._observer = observer
        self._store = IntakeStore(database, config)
        self._queue = FetchQueue(config.max_fetches, config.max_fetches_per_prefix, prefixes)
        self._threads = Threads(config.max_threads)
        self._reader = reader or ParserPool(config, self._threads, observer, prefixes, queues=queues)
        self._visits = Visits(
            self._store, fetch, sink, self._reader, self._threads, config, clock, observer, self._queue, queues
        )
        self._reserved = 0
        self._tasks: set[asyncio.Task[None]] = set()
        self._idle = asyncio.Event()
        self._idle.set()
        self._timer: asyncio.TimerHandle | None = None
        self._keepers: list[asyncio.Task[None]] = []
        self._swept_to: str | None = None
        """How far the sweep came on its round; None when a round is finished."""
        self._looked_to = ""
        """How far the search for subscribed topics that polling does not know yet came on its round."""
        self._forgot_to = ""
        """How far the round over what is kept of topics came."""
        self._room = asyncio.Event()
        self._running = False

    async def start(self) -> None:
        """Take up what was asked for before the last stop or crash."""
        self._running = True
        self._swept_to = ""
        self._idle.clear()
        # The first page before anybody pings: a topic that is on it would otherwise be fetched twice.
        await self._sweep_or_say_why()
        self._keepers.append(asyncio.create_task(self._keep_sweeping()))
        if self._config.poll:
            await self._poll_or_say_why()
            self._keepers.append(asyncio.create_task(self._keep_polling()))

    async def stop(self) -> None:
        """End what runs; the pings it was about are on disk."""
        self._running = False
        if self._timer is not None:
            self._timer.cancel()
        tasks = [*self._tasks, *self._keepers]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._keepers.clear()
        await self._visits.stop()
        await self._reader.close()
        self._threads.close()

    @property
    def waiting(self) -> int:
        """Topics that wait for their fetch."""
        return len(self._queue)

    async def idle(self) -> None:
        """Wait until no visit runs or can run now (retries that come later do not count)."""
        await self._idle.wait()

    async def ping(self, topics: Sequence[str], client: str = "") -> None:
        """Returns once the pings, or what they led to, are on disk. Raises `OverloadedError`.

        What nobody wants is not fetched: that it was pinged is remembered for a while, charged to `client`.
        """
        topics = list(dict.fromkeys(topics))
        now = self._clock()
        has_begun = len(topics) == 1 and self._begun(topics[0], now)
        if has_begun and await self._is_covered(topics[0]):
            self._observe(PingsStored(1))
            return
        await self._store_pings(topics, client, now, has_begun)

    def _begun(self, topic: str, now: float) -> bool:
        """Fetch at once what may be fetched at once."""
        if not self._running or topic in self._queue or len(self._queue) >= self._config.max_waiting_topics:
            return False
        if not (self._store.is_wanted(topic) or self._elsewhere.wants(topic)):
            return False
        self._visits.early[topic] = EarlyPing(now)
        self._ask([topic])
        if self._queue.is_active(topic):
            return True
        del self._visits.early[topic]
        return False

    async def _is_covered(self, topic: str) -> bool:
        """Give the fetch a moment: quick ones need one commit for ping and publication together, not two."""
        early = self._visits.early[topic]
        loop = asyncio.get_running_loop()
        early.looked = loop.create_future()
        timer = loop.call_later(EARLY_PATIENCE, early.look)
        try:
            await early.looked
        finally:
            timer.cancel()
        if early.covered is None and early.is_written:
            early.looked = loop.create_future()
            await early.looked
        return early.covered is True

    async def _store_pings(self, topics: Sequence[str], client: str, now: float, has_begun: bool) -> None:
        """`has_begun`: their fetch is under way, and will see what they are about."""
        early = [self._visits.early[topic].received for topic in topics if topic in self._visits.early]
        if early and not has_begun:  # a fetch that answers those before must not answer these
            now = max(now, max(early) + PING_STEP)
        new = sum(topic not in self._queue for topic in topics)
        if len(self._queue) + self._reserved + new > self._config.max_waiting_topics:
            self._observe(PingsRefused(len(topics)))
            raise OverloadedError(self._config.busy_retry_after, "too many topics are waiting to be fetched")
        try:
            stored = self._store.add_pings(topics, client, now, self._elsewhere.wants)
        except DatabaseBusyError:
            self._observe(PingsRefused(len(topics)))
            raise OverloadedError(self._config.busy_retry_after, "too many writes are waiting") from None
        self._reserved += new
        # Not after the await: a sender that goes away must not leave a stored ping lying.
        stored.add_done_callback(lambda done: self._stored(topics, new, done, has_begun))
        await asyncio.shield(stored)

    async def offer(self, topic: str, content: Content, self_url: str) -> None:
        """Content an allowed publisher brought along; on disk at return. Raises `OverloadedError`, `RequestError`."""
        task = asyncio.create_task(self._visits.offer(topic, content, self_url))
        self._tasks.add(task)
        task.add_done_callback(self._forget)
        # A sender that goes away must not cut it short: whoever has the next turn would not see what is half stored.
        await asyncio.shield(task)

    async def sweep(self) -> None:
        """Ask for the topics of one page of rows, as far as there is room, and remember how far that was."""
        room = min(self._config.sweep_page, self._free())
        if room <= 0:
            return
        after = self._swept_to or ""
        page = await self._threads.run(self._store.pings_after, after, room)
        for topic in page:
            if topic not in self._queue:
                self._queue.ask(topic)
        self._swept_to = page[-1] if len(page) == room else None
        self._pump()

    async def poll(self) -> None:
        """Ask for the topics whose time has come, as far as there is room for them."""
        room = min(self._config.poll_batch, self._free())
        if room <= 0:
            return
        due = await self._threads.run(self._store.due_polls, self._clock(), room)
        page = await self._threads.run(self._store.unknown_topics, self._looked_to, room)
        self._looked_to = page.until
        for topic in [*due, *page.topics]:
            if topic not in self._queue:
                self._queue.ask(topic)
        self._pump()

    async def wanted(self, topic: str) -> None:
        """Somebody wants the topic now, here or elsewhere: if it was pinged meanwhile, it is fetched."""
        if self._store.unwanted.has(topic) and await asyncio.wrap_future(
            self._store.unwanted.want(topic, self._clock())
        ):
            self._ask([topic])

    def unwanted_after(self, topic: str, limit: int) -> Sequence[str]:
        """Topics that were pinged and that nobody wanted, in the order of their names, after this one."""
        return self._store.unwanted.after(topic, limit)

    def _stored(self, topics: Sequence[str], reserved: int, done: "asyncio.Future[Added]", has_begun: bool) -> None:
        self._reserved -= reserved
        if not done.cancelled() and done.exception() is None:
            self._observe(PingsStored(len(topics)))
            added = done.result()
            if added.unwanted:
                self._observe(PingsUnwanted(added.unwanted))
            for topic in added.unwanted:
                self._elsewhere.pinged(topic)
            if added.gone:
                self._elsewhere.forgotten(added.gone)
            self._ask([topic for topic in added.wanted if not has_begun or topic not in self._queue])
        else:
            self._pump()

    def _ask(self, topics: Sequence[str]) -> None:
        for topic in topics:
            self._visits.fresh_start(topic)
            self._queue.ask(topic)
            if self._topics is not None and topic not in self._stays:
                self._stays[topic] = self._topics.came(topic)
        self._pump()

    def _free(self) -> int:
        return self._config.max_waiting_topics - len(self._queue) - self._reserved

    def _roomy(self) -> bool:
        """Half of the places are free: worth another page of rows."""
        return 0 < self._free() >= self._config.max_waiting_topics / 2

    def _forget(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled():
            task.exception()  # looked at, so that asyncio does not complain when nobody waits for an offer any more

    def _observe(self, event: IntakeEvent) -> None:
        if self._observer is not None:
            self._observer(event)

    def _pump(self) -> None:
        """Start every visit that may start now, and set the timer for the next retry."""
        if not self._running:
            return
        now = self._clock()
        while (topic := self._queue.next(now)) is not None:
            stay = self._stays.pop(topic, None)
            if stay is not None:
                stay.begins()
            task = asyncio.create_task(self._run(topic, stay))
            self._tasks.add(task)
            task.add_done_callback(self._forget)
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        wake_at = self._queue.wake_at()
        if wake_at is not None:
            self._timer = asyncio.get_running_loop().call_later(max(0.0, wake_at - now), self._pump)
        if self._roomy():
            self._room.set()
        if self._queue.active or self._swept_to is not None:
            self._idle.clear()
        else:
            self._idle.set()

    async def _run(self, topic: str, stay: OpenStay | None) -> None:
        retry_at: float | None = None
        is_done = False
        try:
            retry_at = await self._visits.visit(topic)
            is_done = retry_at is None
        finally:
            if stay is not None:
                stay.ends("ok" if is_done else "failed")
            early = self._visits.early.pop(topic, None)
            if early is not None:
                early.covered = is_done
                early.look()
            again = self._queue.finished(topic)
            if retry_at is not None and not again:
                self._queue.ask_later(topic, retry_at)
            self._pump()

    async def _keep_sweeping(self) -> None:
        """Page after page while a round is under way and there is room; then a new round every `sweep_every`."""
        while True:
            while self._swept_to is not None:
                self._room.clear()
                if not self._roomy():
                    await self._room.wait()
                await self._sweep_or_say_why()
            await self._forget_or_say_why()
            await asyncio.sleep(self._config.sweep_every)
            self._swept_to = ""

    async def _sweep_or_say_why(self) -> None:
        try:
            await self.sweep()
        except Exception as error:  # a store that cannot be read now may be readable on the next round
            self._swept_to = None
            self._observe(SweepFailed(reason_of(error)))
            self._pump()

    async def forget(self) -> None:
        """Let go of what nobody wants any more: old pings, and one part of the round over what is known of topics."""
        now, page = self._clock(), self._config.sweep_page
        for topic in self._store.unwanted.overlooked(page):
            await self.wanted(topic)
        gone = await asyncio.wrap_future(self._store.unwanted.expire(now, page))
        let = await asyncio.wrap_future(self._store.unwanted.forget(self._forgot_to, page, now, self._elsewhere.wants))
        self._forgot_to = let.until
        if gone or let.topics:
            self._elsewhere.forgotten([*gone, *let.topics])

    async def _forget_or_say_why(self) -> None:
        try:
            await self.forget()
        except Exception as error:
            self._observe(SweepFailed(reason_of(error)))

    async def _keep_polling(self) -> None:
        while True:
            await asyncio.sleep(self._config.poll_tick)
            await self._poll_or_say_why()

    async def _poll_or_say_why(self) -> None:
        try:
            await self.poll()
        except Exception as error:
            self._observe(SweepFailed(reason_of(error)))
