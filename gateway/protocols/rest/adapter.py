"""Plain readers and writers behind the control function: one session for each open stream, gone with it.

No HTTP here: `gateway.protocols.rest.routes` writes to connections what a `ReaderStream` has for them.
"""

import asyncio
import contextlib
import secrets
from collections import deque
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace

from exchange.model import CURRENT, SELF, Draft, Interest, LogEntry, OriginId, Profile, SessionKey, Start
from exchange.ports import Wanted
from exchange.selection import ANYTHING, Selector
from gateway.access.rules import Act
from gateway.control import Control
from gateway.converters.converters import AS_IT_IS, FeedForm
from gateway.converters.readable import TITLE
from gateway.model import NOBODY_KNOWN, Asker, NotAllowedError, RefusedError
from identifiers import ItemId, Naming, Topic, TopicError
from identifiers.namespaces import STANDARD, Namespaces

FEEDS = "feeds"
"""The session that follows what feeds are asked of."""
NOTE_BYTES = 512
"""What an event costs beside its body."""


class FullError(Exception):
    """There is no room for another stream; `yours` says whose fault that is."""

    def __init__(self, text: str, *, yours: bool) -> None:
        super().__init__(text)
        self.yours = yours


@dataclass(frozen=True, slots=True)
class RestConfig:
    """The bounds of the plain facade."""

    max_streams: int = 2_000
    max_streams_per_client: int = 50
    max_waiting_bytes: int = 16 * 1024 * 1024
    """What may wait for one slow reader; who is further behind is cut off and may come back with its last id."""
    max_body: int = 4 * 1024 * 1024
    body_timeout: float = 30.0
    write_timeout: float = 30.0
    heartbeat: float = 20.0
    tokens: tuple[str, ...] = ()
    """Who publishes must show one of these."""
    anyone_may_publish: bool = True
    """Without tokens: whether everybody may publish, or nobody."""
    publish_below: tuple[str, ...] = ()
    """Only topics that begin like one of these may be published; none: all."""
    feeds: int = 10_000
    """Names whose feeds were asked for lately: they are followed, so that readers miss nothing between two looks."""
    feed_lease: float = 86_400.0
    """Seconds that one is followed after it was asked for."""
    feed_wait: float = 3.0
    """Seconds that the first who asks waits for what the network has."""


@dataclass(frozen=True, slots=True)
class ConvertedEntry:
    """One of the publications that a converter made of an entry."""

    entry: LogEntry
    draft: Draft
    is_last: bool

    @property
    def size(self) -> int:
        return len(self.draft.body)


class ReaderStream:
    """What one reader is to be sent, in order."""

    def __init__(self, who: str, what: str, max_bytes: int) -> None:
        self.who = who
        self.what = what
        self.overrun = False
        self.forbidden = False
        """The rules have changed, and nobody may follow this any more."""
        self.on_overrun: Callable[[], None] | None = None
        """Called once when the reader is too far behind: whoever writes to it may be waiting just for it."""
        self._max_bytes = max_bytes
        self._bytes = 0
        self._waiting: deque[LogEntry | ConvertedEntry] = deque()
        self._wake = asyncio.Event()

    def offer(self, entry: LogEntry | ConvertedEntry) -> None:
        """Put behind what is waiting; a reader that is too far behind is marked for cutting off."""
        cost = entry.size + NOTE_BYTES
        # A single document passes however large it is: the network has its own bound.
        if self.overrun or (self._bytes and self._bytes + cost > self._max_bytes):
            if not self.overrun:
                self.overrun = True
                self._wake.set()
                if self.on_overrun is not None:
                    self.on_overrun()
            return
        self._bytes += cost
        self._waiting.append(entry)
        self._wake.set()

    async def next(self, seconds: float) -> LogEntry | ConvertedEntry | None:
        """The next publication, or None when there is none within so long (or none will come: see `overrun`)."""
        if not self._waiting and not self.overrun:
            self._wake.clear()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(seconds):
                    await self._wake.wait()
        if self.overrun or self.forbidden or not self._waiting:
            return None
        entry = self._waiting.popleft()
        self._bytes -= entry.size + NOTE_BYTES
        return entry

    def wake(self) -> None:
        self._wake.set()


class RestAdapter:
    """Every open stream is a subscriber by itself."""

    name = "rest"
    hears_own = True
    keeps_rules = False

    def __init__(self, config: RestConfig, naming: Naming, control: Control, namespaces: Namespaces = STANDARD) -> None:
        self.config = config
        self._naming = naming
        self._namespaces = namespaces
        self._control = control
        self._first_looks: dict[ItemId, asyncio.Event] = {}
        """Set when something of an item arrives whose feed somebody waits for."""
        self._open: dict[str, ReaderStream] = {}
        self._per_client: dict[str, int] = {}
        self.closing = False
        self.cut = 0
        """Readers that were too slow."""
        self.refused = 0
        """Streams for which there was no room."""

    @property
    def open_streams(self) -> int:
        return len(self._open)

    def item_of(self, what: str) -> ItemId:
        try:
            return self._namespaces.read(what).item(self._naming)
        except TopicError as error:
            raise RefusedError(str(error)) from None

    def close(self) -> None:
        """End all streams; their readers come back to whoever listens then."""
        self.closing = True
        for stream in self._open.values():
            stream.wake()

    async def deliver(self, key: SessionKey, entry: LogEntry, interests: Sequence[Interest]) -> None:
        if key.who == FEEDS:
            looked_for = self._first_looks.get(entry.item)
            if looked_for is not None:
                looked_for.set()
            return
        converters = self._control.converters
        if not converters.is_for_everybody(entry.draft):
            raise RefusedError("this message is not for everybody who knows the name")
        stream = self._open.get(key.who)
        if stream is None:
            return
        if not interests or interests[0].convert == AS_IT_IS:
            stream.offer(entry)
            return
        made = await converters.convert(entry, interests[0].convert, interests[0].selector)
        for number, draft in enumerate(made, 1):
            stream.offer(ConvertedEntry(entry, draft, number == len(made)))

    @asynccontextmanager
    async def stream(
        self,
        what: str,
        client: str,
        start: Start = CURRENT,
        convert: str = AS_IT_IS,
        selector: Selector = ANYTHING,
    ) -> AsyncGenerator[ReaderStream, None]:
        """Follow a name while this is open: what there is from `start` on, and all that follows.
        Raises `RefusedError`, `FullError`."""
        self._room(client)
        stream = ReaderStream(secrets.token_hex(8), what, self.config.max_waiting_bytes)
        self._open[stream.who] = stream
        self._per_client[client] = self._per_client.get(client, 0) + 1
        try:
            subscribing = asyncio.ensure_future(
                self._control.subscribe(
                    self, stream.who, what, start=start, durable=False, convert=convert, selector=selector
                )
            )
            try:
                await asyncio.shield(subscribing)
            except asyncio.CancelledError:
                # A reader that goes away at once must not leave the control function half-way.
                await asyncio.wait([subscribing])
                raise
            yield stream
        finally:
            del self._open[stream.who]
            left = self._per_client[client] - 1
            if left:
                self._per_client[client] = left
            else:
                del self._per_client[client]
            # Also when the connection's task was cancelled.
            await asyncio.shield(self._control.unsubscribe(self, stream.who, what))

    def followers(self, item: ItemId) -> int:
        """How many streams follow an item, by whatever name."""
        return sum(self.item_of(stream.what) == item for stream in self._open.values())

    def end(self, who: str) -> bool:
        """End a stream; its reader may come back."""
        stream = self._open.get(who)
        if stream is None or stream.forbidden:
            return False
        stream.forbidden = True
        stream.wake()
        return True

    def take_up_tokens(self, tokens: tuple[str, ...]) -> None:
        """Who has one of these may publish from now on, and nobody else."""
        self.config = replace(self.config, tokens=tokens)

    def keep_to_rules(self) -> int:
        """End the streams of what nobody may follow any more; says how many."""
        ended = 0
        for stream in list(self._open.values()):
            try:
                self._control.check(Act.SUBSCRIBE, stream.what)
            except NotAllowedError:
                ended += not stream.forbidden
                stream.forbidden = True
                stream.wake()
        return ended

    async def feed(self, what: str, form: FeedForm) -> Draft | None:
        """What was published by a name, as a document; None when nothing is known. The name is followed from now on.
        Raises `RefusedError`."""
        control, item = self._control, self.item_of(what)
        await control.subscribe(self, FEEDS, what, lease=self.config.feed_lease)
        newest = await control.exchange.log.newest(Wanted(item))
        if newest is None:
            # It may be somewhere in the network.
            looked_for = self._first_looks.setdefault(item, asyncio.Event())
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self.config.feed_wait):
                    await looked_for.wait()
            self._first_looks.pop(item, None)
            newest = await control.exchange.log.newest(Wanted(item))
        if newest is None:
            return None
        if newest.draft.profile is Profile.DOCUMENT and form is FeedForm.ATOM:
            return newest.draft
        return await control.converters.feed(item, newest.draft.name, control.converters.addresses.of(what), form)

    async def publish(
        self,
        topic: str,
        content_type: str,
        body: bytes,
        asker: Asker = NOBODY_KNOWN,
        profile: Profile = Profile.DOCUMENT,
        title: str = "",
    ) -> tuple[ItemId, OriginId]:
        """A new state of a topic, or a message in it; on disk when this returns, and on its way to everybody. Raises
        `RefusedError`, and `NetworkError` when there is no room for more."""
        try:
            name = Topic.parse(topic).url
        except TopicError as error:
            raise RefusedError(str(error)) from None
        below = self.config.publish_below
        if below and not name.startswith(below):
            raise RefusedError("this topic may not be published here")
        item = self.item_of(name)
        attributes = ((SELF, name), (TITLE, title)) if title else ((SELF, name),)
        draft = Draft(item, name, profile, content_type, body, attributes)
        appended = await self._control.publish(self, draft, asker)
        return item, appended.origin

    def _room(self, client: str) -> None:
        if self.closing or len(self._open) >= self.config.max_streams:
            self.refused += 1
            raise FullError("too many streams are open here", yours=False)
        if self._per_client.get(client, 0) >= self.config.max_streams_per_client:
            self.refused += 1
            raise FullError("you have too many streams open", yours=True)
