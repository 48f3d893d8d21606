"""Plain readers and writers behind the control function: one subscription for each open stream, gone with it.

No HTTP here: `gateway.web.stream_routes` writes to connections what a `ReaderStream` has for them.
"""

import asyncio
import contextlib
import secrets
from collections import OrderedDict, deque
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace

from gateway.access.rules import Act
from gateway.control import Control
from gateway.model import NOBODY_KNOWN, Asker, Crossing, ItemSubscription, NetworkError, NotAllowedError, RefusedError
from gateway.store import ControlStore
from identifiers import Identifier, IdentifierSyntaxError, ItemId, Naming, Topic, TopicError

TOPIC_DOCUMENT = "push"
"""What is published here is a document of a topic, as the hubs' are: theirs and ours are one version if they are equal,
and subscribers of any protocol get either."""
ITEM_PREFIX = "item:"
"""Marks a name that is a pair of ids; no topic begins like this."""
REMEMBERED = 256
"""Versions that a stream knows it has sent."""
NOTE_BYTES = 512
"""What an event costs beside its body."""


class FullError(Exception):
    """There is no room for another stream; `yours` says whose fault that is."""

    def __init__(self, text: str, *, yours: bool) -> None:
        super().__init__(text)
        self.yours = yours


@dataclass(frozen=True, slots=True)
class StreamConfig:
    """The bounds of the plain facade."""

    max_streams: int = 2_000
    max_streams_per_client: int = 50
    max_waiting_bytes: int = 16 * 1024 * 1024
    """What may wait for one slow reader; who is further behind is cut off and may come back with its last id."""
    max_body: int = 4 * 1024 * 1024
    body_timeout: float = 30.0
    write_timeout: float = 30.0
    heartbeat: float = 20.0
    lease: float = 120.0
    """How long the subscription of a stream outlives a gateway that was killed."""
    publish_timeout: float = 30.0
    tokens: tuple[str, ...] = ()
    """Who publishes must show one of these."""
    anyone_may_publish: bool = True
    """Without tokens: whether everybody may publish, or nobody."""
    publish_below: tuple[str, ...] = ()
    """Only topics that begin like one of these may be published; none: all."""
    hidden_kinds: frozenset[str] = frozenset({"chat"})
    """Publications of these adapters are for their own readers: who asks for the item here is not shown them."""
    cors_origins: tuple[str, ...] = ()
    """Sites whose scripts may use the facade; `*` for all."""


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
        self._waiting: deque[Crossing] = deque()
        self._held: deque[Crossing] | None = deque()
        self._sent: OrderedDict[tuple[Identifier | None, int], None] = OrderedDict()
        self._wake = asyncio.Event()

    def offer(self, crossing: Crossing) -> None:
        """Put behind what is waiting; a reader that is too far behind is marked for cutting off."""
        cost = len(crossing.body) + NOTE_BYTES
        # A single document passes however large it is: the network has its own bound.
        if self.overrun or (self._bytes and self._bytes + cost > self._max_bytes):
            if not self.overrun:
                self.overrun = True
                self._wake.set()
                if self.on_overrun is not None:
                    self.on_overrun()
            return
        self._bytes += cost
        if self._held is not None:
            self._held.append(crossing)
        else:
            self._append(crossing)

    def begin(self, earlier: Sequence[Crossing]) -> None:
        """Start with what was there before; what came meanwhile follows, as far as it is later."""
        held, self._held = self._held or deque(), None
        for crossing in earlier:
            self._bytes += len(crossing.body) + NOTE_BYTES
            self._append(crossing)
        newest = max((crossing.published_ms for crossing in earlier), default=-1)
        for crossing in held:
            if crossing.published_ms >= newest:
                self._append(crossing)
            else:
                self._bytes -= len(crossing.body) + NOTE_BYTES

    def _append(self, crossing: Crossing) -> None:
        key = (crossing.version, crossing.published_ms)
        if key in self._sent:
            self._bytes -= len(crossing.body) + NOTE_BYTES
            return
        self._sent[key] = None
        if len(self._sent) > REMEMBERED:
            self._sent.popitem(last=False)
        self._waiting.append(crossing)
        self._wake.set()

    async def next(self, seconds: float) -> Crossing | None:
        """The next version, or None when there is none within so long (or none will come: see `overrun`)."""
        if not self._waiting and not self.overrun:
            self._wake.clear()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(seconds):
                    await self._wake.wait()
        if self.overrun or self.forbidden or not self._waiting:
            return None
        crossing = self._waiting.popleft()
        self._bytes -= len(crossing.body) + NOTE_BYTES
        return crossing

    def wake(self) -> None:
        self._wake.set()


class StreamAdapter:
    """Every open stream is a subscriber by itself."""

    name = "stream"

    def __init__(self, config: StreamConfig, naming: Naming, control: Control, store: ControlStore) -> None:
        self.config = config
        self._naming = naming
        self._control = control
        self._store = store
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
            if what.startswith(ITEM_PREFIX):
                return ItemId.parse(what.removeprefix(ITEM_PREFIX))
            return self._naming.of_topic(Topic.parse(what))
        except (TopicError, IdentifierSyntaxError) as error:
            raise RefusedError(str(error)) from None

    async def start(self) -> None:
        """Streams of a gateway that was killed are not there any more."""
        for subscription in self._store.of_adapter(self.name):
            await self._control.unsubscribe(self, subscription.who, subscription.what)

    def close(self) -> None:
        """End all streams; their readers come back to whoever listens then."""
        self.closing = True
        for stream in self._open.values():
            stream.wake()

    async def deliver(self, crossing: Crossing, subscriptions: Sequence[ItemSubscription]) -> None:
        if crossing.kind in self.config.hidden_kinds:
            raise RefusedError(f"a publication of {crossing.kind!r} is not shown to everybody")
        for subscription in subscriptions:
            stream = self._open.get(subscription.who)
            if stream is not None:
                stream.offer(crossing)

    @asynccontextmanager
    async def stream(self, what: str, client: str, since: Identifier | None) -> AsyncGenerator[ReaderStream, None]:
        """Follow a name while this is open. Raises `RefusedError`, `FullError`, `NetworkError`."""
        item = self.item_of(what)
        self._room(client)
        stream = ReaderStream(secrets.token_hex(8), what, self.config.max_waiting_bytes)
        self._open[stream.who] = stream
        self._per_client[client] = self._per_client.get(client, 0) + 1
        try:
            shared = self._control.follows(item)
            subscribing = asyncio.ensure_future(
                self._control.subscribe(self, stream.who, what, lease=self.config.lease, since=since)
            )
            try:
                await asyncio.shield(subscribing)
            except asyncio.CancelledError:
                # A reader that goes away at once must not leave the control function half-way.
                await asyncio.wait([subscribing])
                raise
            earlier = await self._control.recent(item, since) if shared else ()
            stream.begin([crossing for crossing in earlier if crossing.kind not in self.config.hidden_kinds])
            yield stream
        finally:
            del self._open[stream.who]
            left = self._per_client[client] - 1
            if left:
                self._per_client[client] = left
            else:
                del self._per_client[client]
            # Also when the connection's task was cancelled: the lease is only for gateways that are killed.
            await asyncio.shield(self._control.unsubscribe(self, stream.who, what))

    async def renew(self, stream: ReaderStream) -> None:
        try:
            await self._control.subscribe(self, stream.who, stream.what, lease=self.config.lease)
        except NotAllowedError:
            stream.forbidden = True

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

    async def publish(
        self, topic: str, content_type: str, body: bytes, asker: Asker = NOBODY_KNOWN
    ) -> tuple[ItemId, Identifier]:
        """A new version of a topic; durable in the network when this returns. `RefusedError`, `NetworkError`."""
        try:
            name = Topic.parse(topic).url
        except TopicError as error:
            raise RefusedError(str(error)) from None
        below = self.config.publish_below
        if below and not name.startswith(below):
            raise RefusedError("this topic may not be published here")
        item = self.item_of(name)
        crossing = Crossing(TOPIC_DOCUMENT, name, content_type, body, name)
        try:
            async with asyncio.timeout(self.config.publish_timeout):
                version = await self._control.publish(self, crossing, asker)
        except TimeoutError:
            raise NetworkError("the network did not take it in time") from None
        return item, version

    def _room(self, client: str) -> None:
        if self.closing or len(self._open) >= self.config.max_streams:
            self.refused += 1
            raise FullError("too many streams are open here", yours=False)
        if self._per_client.get(client, 0) >= self.config.max_streams_per_client:
            self.refused += 1
            raise FullError("you have too many streams open", yours=True)
