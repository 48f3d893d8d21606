"""Topics for people: the list, the search, and everything that is known of one.

Lists come from tables by index. What has to look through a table (counts, searches) is done in a thread, and no more
often than every few seconds.
"""

import asyncio
import re
import time
from collections import OrderedDict
from collections.abc import Callable

import msgspec

from gateway.admin.access import AdminRole
from gateway.admin.administered import Administered
from gateway.admin.peers import PeerPath, Peers
from gateway.telemetry.plain import without_keys
from gateway.telemetry.recorder import PublicationPath
from gateway.telemetry.telemetry import Telemetry
from identifiers import Identifier, ItemId, TopicError
from identifiers.namespaces import STANDARD, Namespaces, UrlNamespace
from psirp_stack.control.codes import Code
from psirp_stack.node.api import NotAttachedError, PsirpError
from storage import StorageError
from storage.clock import steady

COUNT_EVERY = 5.0
DETAILS_KEPT = 64
DETAIL_SECONDS = 1.0
NETWORK_DEADLINE = 3.0
MAX_SUBSCRIBERS_SHOWN = 100
MAX_FOUND = 50
MAX_BELOW = 500
MAX_DEAD_SHOWN = 20
_HEX = re.compile(r"^(?:::)?([0-9a-fA-F]{6,64})$")


class TopicRow(msgspec.Struct, frozen=True):
    topic: str
    subscribers: int
    sid: str | None
    rid: str | None
    state: str
    publisher: str | None = None
    """The node that serves it here."""
    last: float | None = None
    delivered: int = 0
    failed: int = 0


class SubscriberRow(msgspec.Struct, frozen=True):
    number: int
    callback: str
    dialect: str
    signed: bool
    lease_until: float
    paused: bool
    owed: int
    next_try: float | None
    tries: int
    failure: str | None
    failed_at: float | None


class DeadRow(msgspec.Struct, frozen=True):
    number: int
    callback: str
    publication: int
    reason: str
    at: float


class TopicSource(msgspec.Struct, frozen=True):
    self_url: str
    fetched_at: float | None
    outcome: str | None
    poll_at: float | None


class Reason(msgspec.Struct, frozen=True):
    """What the rendezvous knows of the item."""

    matched: bool
    code: str
    reason: str
    publishers: tuple[str, ...]
    subscribers: tuple[str, ...]
    refusals: tuple[str, ...] = ()
    unserved: dict[str, str] = {}


class Detail(msgspec.Struct, frozen=True):
    row: TopicRow
    source: TopicSource | None
    subscribers: list[SubscriberRow]
    more_subscribers: int
    dead: list[DeadRow]
    why: Reason
    said: list[str]
    """By protocols, of why it arrives or does not."""
    paths: msgspec.Raw
    ways: list[PublicationPath]
    elsewhere: list[PeerPath]


class Topics:
    def __init__(
        self,
        gateway: Administered,
        telemetry: Telemetry,
        peers: Peers,
        clock: Callable[[], float] = steady,
    ) -> None:
        self._gateway = gateway
        self._telemetry = telemetry
        self._peers = peers
        self._clock = clock
        self._details: OrderedDict[str, tuple[float, asyncio.Task[Detail]]] = OrderedDict()
        self._searching = asyncio.Semaphore(1)
        self._counter: asyncio.Task[None] | None = None
        self._counted_at = 0.0
        self.counts = (0, 0)
        """Subscriptions and topics that have some."""
        self.owed = 0
        self.dead = 0

    # The list.

    def recent(self, limit: int) -> list[TopicRow]:
        """Topics in which something happened last, and then others."""
        self._count_soon()
        names: dict[str, None] = dict.fromkeys(self._telemetry.recorder.recent(limit))
        if len(names) < limit:
            for change in self._gateway.hub.subscriptions.topics("", limit):
                names.setdefault(change.topic)
        canary = self._gateway.hub.canary
        return [self.row(name) for name in names if canary is None or name != canary.topic][:limit]

    def row(self, topic: str) -> TopicRow:
        gateway = self._gateway
        ways = self._telemetry.recorder.ways(topic)
        subscribers = gateway.hub.subscriptions.count(topic)
        last = ways[0].began if ways else None
        delivered, failed = sum(way.delivered for way in ways), sum(way.failed for way in ways)
        item = self._item(topic)
        joined = gateway.joined
        if item is None or joined is None:
            state = "only here" if joined is None else "has no ids"
            return TopicRow(topic, subscribers, None, None, state, None, last, delivered, failed)
        publisher: str | None = None
        if joined.psirp.follows(item):
            serving = joined.network.client.serving(item.sid, item.rid)
            publisher = None if serving is None else serving.publisher
            state = "from the network" if publisher else "waits for a publisher"
        else:
            state = "published here" if joined.store.is_export(item) else "only here"
        if joined.store.is_export(item) and publisher is not None:
            state = "published here"
        sid, rid = str(item.sid), str(item.rid)
        return TopicRow(topic, subscribers, sid, rid, state, publisher, last, delivered, failed)

    # The search.

    async def search(self, text: str) -> list[TopicRow]:
        """By a part of the address, or by a part of an id, by a version or an origin."""
        text = text.strip()[:500]
        if not text:
            return self.recent(MAX_FOUND)
        way = self._telemetry.recorder.of_id(text)
        if way is not None:
            return [self.row(way.topic)]
        found = _HEX.match(text.rpartition("/")[2] if "://" not in text else text)
        joined = self._gateway.joined
        async with self._searching:
            names = self._noted_below(text) if found is None else []
            names += await asyncio.to_thread(self._at_the_hub, text) if found is None else []
            if joined is not None:
                # What was never at the hub, too: topics that are read or published at the web port, and people.
                log = joined.exchange.log
                names += await (log.names_like(text, MAX_FOUND) if found is None else log.names_of(found[1], MAX_FOUND))
        return [self.row(name) for name in dict.fromkeys(names)][:MAX_FOUND]

    def _noted_below(self, place: str) -> list[str]:
        """All below a domain or an address is one range; parts of either are looked for elsewhere."""
        try:
            return self.below(place)[:MAX_FOUND] if "." in place else []
        except TopicError:
            return []

    def _at_the_hub(self, text: str) -> list[str]:
        like = "%" + text.replace("\\", "\\\\").replace("%", "\\%").replace("_", "\\_") + "%"
        rows = self._gateway.hub.database.read(
            "SELECT topic FROM (SELECT topic FROM subscriber_counts UNION SELECT url FROM topics) "
            "WHERE topic LIKE ? ESCAPE '\\' LIMIT ?",
            (like, MAX_FOUND),
        )
        return [str(row[0]) for row in rows]

    # One topic.

    async def detail(self, topic: str, role: AdminRole) -> Detail:
        """Everything about a topic; shared by those who ask in the same second."""
        key = f"{role.name} {topic}"
        kept = self._details.get(key)
        now = time.monotonic()
        if kept is None or (kept[1].done() and now - kept[0] > DETAIL_SECONDS):
            kept = self._details[key] = (now, asyncio.create_task(self._detail(topic, role)))
            self._details.move_to_end(key)
            while len(self._details) > DETAILS_KEPT:
                self._details.popitem(last=False)
        return await asyncio.shield(kept[1])

    async def _detail(self, topic: str, role: AdminRole) -> Detail:
        ways = self._telemetry.recorder.ways(topic)
        item = self._item(topic)
        (why, paths), elsewhere, said = await asyncio.gather(
            self._network(item), self._peers.ways(topic), self._said(topic)
        )
        hub = self._gateway.hub
        rows = hub.database.read("SELECT self_url, fetched_at, outcome, poll_at FROM topics WHERE url = ?", (topic,))
        row = self.row(topic)
        dead = hub.delivery.dead_letters(0, MAX_DEAD_SHOWN, topic)
        return Detail(
            row,
            TopicSource(*rows[0]) if rows else None,
            self._subscribers(topic, role),
            max(0, row.subscribers - MAX_SUBSCRIBERS_SHOWN),
            [
                DeadRow(one.id, without_keys(one.callback), one.publication, one.reason, one.died_at)
                for one in reversed(dead)
            ],
            why,
            said,
            paths,
            ways,
            elsewhere,
        )

    async def _said(self, topic: str) -> list[str]:
        joined = self._gateway.joined
        return [] if joined is None or self._item(topic) is None else await joined.core.explain(topic)

    def _subscribers(self, topic: str, role: AdminRole) -> list[SubscriberRow]:
        hub, now = self._gateway.hub, self._clock()
        rows = []
        for one in hub.subscriptions.page(topic, 0, MAX_SUBSCRIBERS_SHOWN, now):
            owed = hub.delivery.owed(one.id)
            failed_at, failure = self._telemetry.last_failure.get(one.id, (None, None))
            if owed and failure is None:
                failure = owed[0].reason
            rows.append(
                SubscriberRow(
                    one.id,
                    one.callback if role is AdminRole.OPERATOR else without_keys(one.callback),
                    one.dialect.value,
                    one.secret is not None,
                    one.lease_until,
                    hub.delivery.is_paused(one.id),
                    len(owed),
                    owed[0].next_try_at if owed else None,
                    owed[0].attempts if owed else 0,
                    failure,
                    failed_at,
                )
            )
        return rows

    async def _network(self, item: ItemId | None) -> tuple[Reason, msgspec.Raw]:
        nothing = msgspec.Raw(b'{"filters": []}')
        if item is None:
            return Reason(False, "no ids", "the topic has no ids, so it cannot cross", (), ()), nothing
        joined = self._gateway.joined
        if joined is None:
            return Reason(False, "no network", "this hub runs alone", (), ()), nothing
        client = joined.network.client
        try:
            async with asyncio.timeout(NETWORK_DEADLINE):
                why = await client.explain(item.sid, item.rid)
                paths = await client.paths(item.sid, item.rid, why)
        except TimeoutError:
            words = f"no answer within {NETWORK_DEADLINE:g} seconds"
            return Reason(False, "unreachable", words, (), ()), nothing
        except (PsirpError, NotAttachedError) as error:
            return Reason(False, "unreachable", str(error), (), ()), nothing
        unserved = {name: Code(number).name.lower() for name, number in why.unserved}
        matched = why.code == Code.SUCCESS
        code = Code(why.code).name.lower()
        reason = Reason(matched, code, why.reason, why.publishers, why.subscribers, why.refusals, unserved)
        return reason, msgspec.Raw(paths.encode())

    def _item(self, topic: str) -> ItemId | None:
        try:
            return self._namespaces.read(topic).item(self._gateway.config.naming)
        except TopicError:
            return None

    @property
    def _namespaces(self) -> Namespaces:
        joined = self._gateway.joined
        return STANDARD if joined is None else joined.core.host.namespaces

    def shown(self, name: str) -> str | None:
        """A name that is no URL in the one form in which it is written; None when it is none."""
        try:
            read = self._namespaces.read(name)
        except TopicError:
            return None
        return None if read.namespace == UrlNamespace.label else read.shown

    async def of_item(self, sid: str, rid: str) -> str | None:
        """The name of an item that is subscribed to or published here."""
        try:
            item = ItemId(Identifier.parse(sid), Identifier.parse(rid))
        except ValueError:
            return None
        joined = self._gateway.joined
        if joined is None:
            return None
        live = await joined.control.subscriptions(item)
        return live[0].what if live else joined.store.name_of(item) or self._noted(item)

    def _noted(self, item: ItemId) -> str | None:
        joined = self._gateway.joined
        return None if joined is None or joined.core.names is None else joined.core.names.of_item(item)

    async def names(self, item: ItemId) -> list[str]:
        """Every name by which an item is known here."""
        joined = self._gateway.joined
        if joined is None:
            return []
        found = await joined.exchange.log.names_of(bytes(item).hex(), MAX_FOUND)
        noted = self._noted(item)
        return list(dict.fromkeys([*found, noted] if noted is not None else found))

    def below(self, place: str) -> list[str]:
        """Names that this gateway has come across, at or below a domain or an address. Raises `TopicError`."""
        joined = self._gateway.joined
        return [] if joined is None or joined.core.names is None else joined.core.names.below(place, MAX_BELOW)

    # Counting.

    def _count_soon(self) -> None:
        now = time.monotonic()
        if now - self._counted_at >= COUNT_EVERY and (self._counter is None or self._counter.done()):
            self._counted_at = now
            self._counter = asyncio.create_task(self.count())

    async def count(self) -> None:
        try:
            self.counts, self.owed, self.dead = await asyncio.to_thread(self._count)
        except StorageError:
            self._counted_at = 0.0

    def _count(self) -> tuple[tuple[int, int], int, int]:
        read = self._gateway.hub.database.read
        # The hub's own canary is nobody's subscription.
        subscriptions, topics = read(
            "SELECT coalesce(sum(live), 0), count(*) FROM subscriber_counts "
            "WHERE topic NOT IN (SELECT topic FROM canaries)"
        )[0]
        owed = read(
            "SELECT count(*) - (SELECT count(*) FROM retries WHERE subscription IN (SELECT id FROM subscriptions "
            "WHERE topic IN (SELECT topic FROM canaries))) FROM retries"
        )[0][0]
        dead = read("SELECT count(*) FROM dead_letters WHERE topic NOT IN (SELECT topic FROM canaries)")[0][0]
        return (int(subscriptions), int(topics)), int(owed), int(dead)

    async def stop(self) -> None:
        tasks: list[asyncio.Task[None] | asyncio.Task[Detail]] = [task for _, task in self._details.values()]
        if self._counter is not None:
            tasks.append(self._counter)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
