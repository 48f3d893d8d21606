"""What survives what: gateways that go away at bad moments, networks that refuse, two gateways of one domain."""

from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack
from pathlib import Path

import pytest
from aiohttp import ClientSession

from exchange.exchange import Exchange, ExchangeConfig
from exchange.model import Draft, LogEntry, Mark, OriginId, Profile, SessionKey
from exchange.sqlite import SqliteLog, SqliteSessions
from gateway.control import Control
from gateway.gateway import DATABASE_NAME, Gateway, gateway_config
from gateway.model import Crossing, ItemSubscription, Listener, NetworkError, RefusedError
from gateway.protocols.psirp.adapter import PsirpAdapter
from gateway.protocols.psirp.exports import ExportStore
from gateway.store import TABLES
from identifiers import DEFAULT_NAMING, Identifier, ItemId
from psirp_stack.emulation.network import EmulatedNetwork, socket_of
from psirp_stack.emulation.plan import plan
from psirp_stack.node.config import TimesFile
from push_hub.canary import CanaryConfig
from push_hub.hub import HubConfig
from storage import Database
from tests.gateway.crossing.test_crossing import Publisher, Subscriber, World, feed
from tests.push_hub.intake.fetcher import WantedElsewhere
from tests.waiting import until


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    network_plan = plan({"generate": {"kind": "line", "nodes": 4}, "roles": {"rendezvous": "n1"}}, tmp_path)
    (tmp_path / "net").mkdir()
    network = await EmulatedNetwork.start(network_plan, tmp_path / "net", TimesFile(hello=0.1, lease=1.0))
    await network.settled()
    async with ClientSession() as http:
        yield World(network, network_plan, tmp_path, http)
    await network.close()


def bodies(subscriber: Subscriber) -> list[bytes]:
    return [body for _, body, _ in subscriber.received]


async def publish(world: World, publisher: Publisher, *gateways: Gateway, title: str) -> None:
    publisher.body = feed(title)
    for gateway in gateways:
        await world.ping(gateway, publisher.topic)
        await until(lambda gateway=gateway: _knows(gateway, publisher.topic, title))


def _knows(gateway: Gateway, topic: str, title: str) -> bool:
    """It has it, or remembers that it was pinged while subscribers were served by another gateway."""
    return _latest(gateway, topic) == feed(title) or topic in gateway.hub.pinged_unwanted("", 10)


def _latest(gateway: Gateway, topic: str) -> bytes | None:
    latest = gateway.hub.delivery.latest(topic)
    return latest[0].content.body if latest else None


async def test_what_was_published_before_a_kill_is_not_published_again_after_newer_versions(world: World) -> None:
    """The cursor lags behind: as after a kill between publishing a page and writing down that it was."""
    async with Publisher() as publisher, Subscriber() as subscriber, world.gateway("n3", "a") as a:
        async with world.gateway("n0", "b") as b:
            await world.subscribe(a, publisher.topic, subscriber.callback)
            for title in ("one", "two", "three"):
                await publish(world, publisher, b, title=title)
                await until(lambda title=title: bodies(subscriber)[-1:] == [feed(title)])
        with Database.open(world.data / "b" / DATABASE_NAME, TABLES) as database:
            log = SqliteLog(database)
            assert await log.mark("websub", "")
            await log.put_marks([Mark("websub", "", 0)])
        async with world.gateway("n0", "b") as b:
            await publish(world, publisher, b, title="four")
            await until(lambda: bodies(subscriber)[-1:] == [feed("four")])
            assert bodies(subscriber) == [feed(title) for title in ("one", "two", "three", "four")]


async def test_what_the_hub_accepted_before_a_kill_is_published_after_it(world: World) -> None:
    """The hub has it, the network does not: as after a kill between the two. Nobody pings again."""
    async with Publisher() as publisher, Subscriber() as subscriber, world.gateway("n3", "a") as a:
        await world.subscribe(a, publisher.topic, subscriber.callback)
        (world.data / "b").mkdir(mode=0o700)
        hub = HubConfig(world.data / "b" / "hub", allow_private=True, canary=CanaryConfig(enabled=False))
        alone = Gateway(gateway_config(world.data / "b", hub, attach=socket_of(world.data / "net", "n0")))
        alone.hub.elsewhere = WantedElsewhere()
        await alone.hub.start()  # only the hub of it
        publisher.body = feed("accepted")
        async with world.http.post(alone.hub.url, data={"hub.mode": "publish", "hub.url": publisher.topic}):
            await until(lambda: alone.hub.delivery.latest(publisher.topic))
        await alone.hub.stop()
        assert not subscriber.received
        async with world.gateway("n0", "b"):
            await until(lambda: subscriber.received)
            assert bodies(subscriber) == [feed("accepted")]


async def test_two_gateways_of_one_domain_publish_the_same_feed_and_it_arrives_once(world: World) -> None:
    async with Publisher() as publisher, Subscriber() as subscriber, AsyncExitStack() as stack:
        a = await stack.enter_async_context(world.gateway("n3", "a"))
        b2 = await stack.enter_async_context(world.gateway("n2", "b2"))
        await world.subscribe(a, publisher.topic, subscriber.callback)
        async with world.gateway("n0", "b1") as b1:
            for title in ("one", "two"):
                await publish(world, publisher, b1, b2, title=title)
                await until(lambda title=title: bodies(subscriber)[-1:] == [feed(title)])
        # One of them is gone; the other goes on.
        await publish(world, publisher, b2, title="three")
        await until(lambda: bodies(subscriber)[-1:] == [feed("three")])
        async with world.gateway("n0", "b1") as b1:
            await publish(world, publisher, b1, b2, title="four")
            await until(lambda: bodies(subscriber)[-1:] == [feed("four")])
        assert bodies(subscriber) == [feed(title) for title in ("one", "two", "three", "four")]


async def test_two_gateways_of_one_domain_each_deliver_to_their_own_subscribers_once(world: World) -> None:
    async with (
        Publisher() as publisher,
        Subscriber() as first,
        Subscriber() as second,
        world.gateway("n0", "b") as b,
        world.gateway("n2", "a1") as a1,
        world.gateway("n3", "a2") as a2,
    ):
        await world.subscribe(a1, publisher.topic, first.callback)
        await world.subscribe(a2, publisher.topic, second.callback)
        for title in ("one", "two", "three"):
            await publish(world, publisher, b, title=title)
            await until(lambda title=title: bodies(first)[-1:] == bodies(second)[-1:] == [feed(title)])
        assert bodies(first) == bodies(second) == [feed(title) for title in ("one", "two", "three")]


async def test_both_gateways_of_one_node_share_it(world: World) -> None:
    """Publisher and subscriber attached to the same node: nothing needs the network between nodes."""
    async with (
        Publisher() as publisher,
        Subscriber() as subscriber,
        world.gateway("n0", "b") as b,
        world.gateway("n0", "a") as a,
    ):
        await world.subscribe(a, publisher.topic, subscriber.callback)
        for title in ("one", "two"):
            await publish(world, publisher, b, title=title)
            await until(lambda title=title: bodies(subscriber)[-1:] == [feed(title)])
        assert bodies(subscriber) == [feed("one"), feed("two")]


# The control function alone, with a network that does as it is told.


class FakeNetwork:
    """Refuses, hangs and brings what a test wants."""

    def __init__(self) -> None:
        self.listeners: dict[ItemId, Listener] = {}
        self.since: dict[ItemId, Identifier | None] = {}
        self.published: list[Draft] = []
        self.refusing = False
        self.asked = 0

    async def publish(self, draft: Draft) -> Identifier:
        if self.refusing:
            raise NetworkError("not here")
        self.published.append(draft)
        return version_of(draft.body)

    async def advertise(self, item: ItemId) -> None:
        pass

    async def withdraw(self, item: ItemId) -> None:
        pass

    async def subscribe(self, item: ItemId, listener: Listener, since: Identifier | None) -> None:
        self.asked += 1
        if self.refusing:
            raise NetworkError("not now")
        self.listeners[item] = listener
        self.since[item] = since

    def is_wanted(self, item: ItemId) -> bool:
        return item in self.listeners

    def watch_demand(self, listener: Callable[[ItemId, bool], None]) -> None:
        pass

    async def unsubscribe(self, item: ItemId) -> None:
        self.listeners.pop(item, None)


def version_of(body: bytes) -> Identifier:
    return Identifier(body.rjust(32, b"\0"))


class FakeAdapter:
    hears_own = True
    keeps_rules = False

    def __init__(self, name: str = "fake") -> None:
        self.name = name
        self.taken: list[bytes] = []
        self.broken = False

    def item_of(self, what: str) -> ItemId:
        return DEFAULT_NAMING.of_user(f"{what}@example.com")

    async def deliver(self, key: SessionKey, entry: LogEntry, interests: object) -> None:
        if self.broken:
            raise OSError("no room")
        self.taken.append(entry.draft.body)


class Kept:
    """A control function on a store that outlives it."""

    def __init__(self, folder: Path, *others: FakeAdapter) -> None:
        self.network = FakeNetwork()
        self.adapter = FakeAdapter()
        self.database = Database.open(folder / "control.sqlite", TABLES)
        self.now = 1000.0
        config = ExchangeConfig(sweep_every=0.01, first_wait=0.001, longest_wait=0.01, max_interests=2)
        log, sessions = SqliteLog(self.database), SqliteSessions(self.database)
        self.exchange = Exchange(log, sessions, lambda: self.now, config)
        self.control = Control(self.exchange, lambda: self.now)
        self.psirp = PsirpAdapter(self.exchange, self.network, ExportStore(self.database), 0.01)
        self.control.add_source(self.psirp)
        self.adapters = [self.adapter, *others]

    async def __aenter__(self) -> "Kept":
        await self.exchange.start()
        for adapter in self.adapters:
            self.control.add(adapter)
        await self.psirp.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.psirp.stop()
        await self.exchange.stop()
        self.database.close()

    async def bring(self, what: str, body: bytes, origin: OriginId | None = None) -> None:
        item = self.adapter.item_of(what)
        draft = Draft(item, what, Profile.DOCUMENT, "text/plain", body, origin=origin)
        await self.network.listeners[item](Crossing(draft, version_of(body)))


FAR = b"far".ljust(16)


async def test_what_arrived_and_could_not_be_delivered_is_delivered_after_a_restart(tmp_path: Path) -> None:
    async with Kept(tmp_path) as first:
        await first.control.subscribe(first.adapter, "me", "alice")
        first.adapter.broken = True
        await first.bring("alice", b"news")
    async with Kept(tmp_path) as second:
        await until(lambda: second.adapter.taken)
        assert second.adapter.taken == [b"news"]
        await until(lambda: second.network.since)
        assert second.network.since[second.adapter.item_of("alice")] == version_of(b"news")


@pytest.mark.parametrize("origin", [None, OriginId(FAR, 1)])
async def test_what_is_brought_again_after_a_kill_is_no_news(tmp_path: Path, origin: OriginId | None) -> None:
    """Also from a gateway of the version before, which gives no origins."""
    async with Kept(tmp_path) as first:
        await first.control.subscribe(first.adapter, "me", "alice")
        await first.bring("alice", b"news", origin)
        await until(lambda: first.adapter.taken)
    async with Kept(tmp_path) as second:
        await until(lambda: second.network.listeners)
        await second.bring("alice", b"news", origin)
        await second.bring("alice", b"more", origin and OriginId(FAR, 2))
        await until(lambda: second.adapter.taken)
        assert second.adapter.taken == [b"more"]


async def test_an_adapter_that_takes_nothing_holds_up_no_other_and_nothing_that_arrives(tmp_path: Path) -> None:
    other = FakeAdapter("other")
    async with Kept(tmp_path, other) as kept:
        for adapter in kept.adapters:
            await kept.control.subscribe(adapter, "me", "alice")
        kept.adapter.broken = True
        for number in range(20):
            await kept.bring("alice", b"%d" % number, OriginId(FAR, number))
        await until(lambda: len(other.taken) == 20)
        assert not kept.adapter.taken
        kept.adapter.broken = False
        await until(lambda: kept.adapter.taken == other.taken)


async def test_who_goes_back_to_a_state_of_ours_is_heard(tmp_path: Path) -> None:
    """We publish A; another gateway brings B and then A."""
    async with Kept(tmp_path) as kept:
        await kept.control.subscribe(kept.adapter, "me", "alice")
        item = kept.adapter.item_of("alice")
        ours = await kept.control.publish(kept.adapter, Draft(item, "alice", Profile.DOCUMENT, "text/plain", b"A"))
        await until(lambda: kept.network.published)
        assert kept.network.published[0].origin == ours.origin
        await kept.bring("alice", b"A", ours.origin)
        await kept.bring("alice", b"B", OriginId(FAR, 1))
        await kept.bring("alice", b"A", OriginId(FAR, 2))
        await until(lambda: kept.adapter.taken == [b"A", b"B", b"A"])
        assert len(kept.network.published) == 1, "what the network brought does not go back to it"


async def test_what_the_network_does_not_take_now_it_gets_later_in_order(tmp_path: Path) -> None:
    async with Kept(tmp_path) as first:
        first.network.refusing = True
        item = first.adapter.item_of("alice")
        for body in (b"1", b"2", b"3"):
            await first.control.publish(first.adapter, Draft(item, "alice", Profile.MESSAGE, "text/plain", body))
    async with Kept(tmp_path) as second:
        await until(lambda: [draft.body for draft in second.network.published] == [b"1", b"2", b"3"])


async def test_who_comes_to_what_nobody_followed_for_long_begins_with_its_current_state(tmp_path: Path) -> None:
    """What was brought when somebody followed it last is out of date, or is the current state still."""
    async with Kept(tmp_path) as kept:
        for number, (body, origin, taken) in enumerate(
            [
                (b"old", OriginId(FAR, 1), [b"old"]),
                (b"new", OriginId(FAR, 2), [b"old", b"new"]),
                (b"new", OriginId(FAR, 2), [b"old", b"new", b"new"]),
                (b"unlabelled", None, [b"old", b"new", b"new", b"unlabelled"]),
                (b"unlabelled", None, [b"old", b"new", b"new", b"unlabelled", b"unlabelled"]),
            ]
        ):
            durable = number % 2 == 0
            await kept.control.subscribe(kept.adapter, "me", "alice", durable=durable)
            await kept.bring("alice", body, origin)
            await until(lambda taken=taken: kept.adapter.taken == taken)  # type: ignore[misc]
            assert await kept.control.unsubscribe(kept.adapter, "me", "alice")


async def test_a_subscription_that_the_network_refuses_stands_and_is_asked_for_again(tmp_path: Path) -> None:
    async with Kept(tmp_path) as kept:
        kept.network.refusing = True
        await kept.control.subscribe(kept.adapter, "me", "alice")
        await until(lambda: kept.network.asked >= 3)
        assert not kept.network.listeners
        kept.network.refusing = False
        await until(lambda: kept.network.listeners)


async def test_a_lease_that_ends_lets_the_network_go(tmp_path: Path) -> None:
    async with Kept(tmp_path) as kept:
        await kept.control.subscribe(kept.adapter, "me", "alice", lease=10)
        await kept.control.subscribe(kept.adapter, "me", "bob", lease=100)
        kept.now += 50
        await until(lambda: set(kept.network.listeners) == {kept.adapter.item_of("bob")})


async def test_the_limit_of_a_subscriber_counts_new_names_only(tmp_path: Path) -> None:
    async with Kept(tmp_path) as kept:
        for what in ("a", "b"):
            await kept.control.subscribe(kept.adapter, "me", what)
        with pytest.raises(RefusedError, match="limit"):
            await kept.control.subscribe(kept.adapter, "me", "c")
        renewed = await kept.control.subscribe(kept.adapter, "me", "a", lease=5)
        assert isinstance(renewed, ItemSubscription)
        assert renewed.until == kept.now + 5
        await kept.control.subscribe(kept.adapter, "me", "c", limited=False)
