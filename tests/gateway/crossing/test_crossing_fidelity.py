"""What crosses is what the publisher's own domain gets, nothing crosses twice, and nothing crosses for nobody."""

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path

import pytest
from aiohttp import ClientSession

from exchange.exchange import Exchange
from exchange.model import Draft, Interest, LogEntry, OriginId, Profile, SessionKey
from exchange.sqlite import EXCHANGE_TABLES, SqliteLog, SqliteSessions
from gateway.control import Control
from gateway.gateway import Gateway
from gateway.protocols.websub.adapter import WebsubAdapter
from identifiers import DEFAULT_NAMING, Topic
from psirp_stack.emulation.network import EmulatedNetwork
from psirp_stack.emulation.plan import plan
from psirp_stack.node.config import TimesFile
from push_hub.canary import CanaryConfig
from push_hub.hub import Hub, HubConfig
from push_hub.intake.events import TopicFetched
from push_hub.model import Content
from storage import Database
from storage.clock import steady
from tests.gateway.crossing.stock_subscriber import StockPublisher, StockSubscriber
from tests.gateway.crossing.test_crossing import World, feed
from tests.waiting import until

ATOM = "application/atom+xml"
MANY_BYTES = bytes(range(256)) * 1000


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    network_plan = plan({"generate": {"kind": "line", "nodes": 4}, "roles": {"rendezvous": "n1"}}, tmp_path)
    (tmp_path / "net").mkdir()
    network = await EmulatedNetwork.start(network_plan, tmp_path / "net", TimesFile(hello=0.1, lease=1.0))
    await network.settled()
    async with ClientSession() as http:
        yield World(network, network_plan, tmp_path, http)
    await network.close()


@dataclass
class Crossing:
    """A publisher at gateway B, with a subscriber there and one at gateway A."""

    publisher: StockPublisher
    near: StockSubscriber
    far: StockSubscriber
    a: Gateway
    b: Gateway
    fetched: list[TopicFetched]

    async def publish(self, body: bytes, content_type: str) -> None:
        """Returns when both domains have it."""
        self.publisher.content_type = content_type
        await self.publisher.publish(body)
        await until(lambda: self.near.taken and self.near.taken[-1].body == body)
        await until(lambda: self.far.taken and self.far.taken[-1].body == body)


@pytest.fixture
async def crossing(world: World) -> AsyncIterator[Crossing]:
    fetched: list[TopicFetched] = []

    def observe(event: object) -> None:
        if isinstance(event, TopicFetched):
            fetched.append(event)

    async with (
        StockPublisher(b"nothing", "text/plain") as publisher,
        StockSubscriber() as near,
        StockSubscriber() as far,
        world.gateway("n3", "a") as a,
        world.gateway("n0", "b", observe) as b,
    ):
        publisher.hub = b.hub.url
        await near.ask(b.hub.url, publisher.topic)
        await far.ask(a.hub.url, publisher.topic)
        yield Crossing(publisher, near, far, a, b, fetched)


@pytest.mark.parametrize(
    ("content_type", "body"),
    [
        ("text/plain; charset=iso-8859-1", "caf\xe9\r\n".encode("latin-1")),
        ('text/html;charset="utf-8"', "<!doctype html><p>\u20ac".encode()),
        ("application/json", b'{"a" : 1}\n\n'),
        ("application/octet-stream", MANY_BYTES),
        ("application/vnd.example+unheard-of; v=2", b"\x00"),
        (ATOM, b'\xef\xbb\xbf<?xml version="1.0"?>\n' + feed("with a mark")),
    ],
)
async def test_body_content_type_and_links_arrive_as_the_hub_would_have_sent_them(
    crossing: Crossing, content_type: str, body: bytes
) -> None:
    await crossing.publish(body, content_type)
    near, far = crossing.near.taken[0], crossing.far.taken[0]
    assert far.body == near.body == body
    assert far.content_type == near.content_type
    assert far.content_type.replace(" ", "") == content_type.replace(" ", "")
    assert far.topic == near.topic == crossing.publisher.topic
    # Each names the hub that the subscriber knows.
    assert (near.hub, far.hub) == (crossing.b.hub.url, crossing.a.hub.url)
    assert not crossing.far.ignored


async def test_what_counts_as_news_is_the_same_in_both_domains(crossing: Crossing) -> None:
    """New, changed and removed entries, and a document that only looks different."""

    def entry(name: str, text: str) -> str:
        return f"<entry><id>urn:{name}</id><title>{name}</title><content>{text}</content></entry>"

    def whole(*entries: str, space: str = "") -> bytes:
        return f'<feed xmlns="http://www.w3.org/2005/Atom"><id>urn:f</id>{space}{"".join(entries)}</feed>'.encode()

    steps = [
        whole(entry("a", "1")),
        whole(entry("b", "1"), entry("a", "1")),
        whole(entry("b", "1"), entry("a", "2")),
        whole(entry("b", "1"), entry("a", "2")),
        whole(entry("b", "1")),
        whole(entry("b", "1"), space="\n  "),
        whole(entry("c", "1"), entry("b", "1")),
    ]
    crossing.publisher.content_type = ATOM
    for number, body in enumerate(steps[:-1], 1):
        await crossing.publisher.publish(body)
        await until(lambda number=number: len(crossing.fetched) == number)
    await crossing.publish(steps[-1], ATOM)
    assert [taken.body for taken in crossing.far.taken] == [taken.body for taken in crossing.near.taken]
    assert len(crossing.near.taken) < len(steps), "what is no news is not delivered"


async def test_the_same_version_never_arrives_twice_with_two_gateways_in_each_domain_and_restarts(world: World) -> None:
    ends = {"a1": "n3", "a2": "n2", "b1": "n0", "b2": "n1"}
    async with AsyncExitStack() as outer:
        publisher = await outer.enter_async_context(StockPublisher(b"", "text/plain"))
        readers = {name: await outer.enter_async_context(StockSubscriber()) for name in ("a1", "a2")}
        expected: list[bytes] = []
        for life in range(3):
            async with AsyncExitStack() as stack:
                up = {name: await stack.enter_async_context(world.gateway(node, name)) for name, node in ends.items()}
                if life == 0:
                    for name, reader in readers.items():
                        await reader.ask(up[name].hub.url, publisher.topic)
                for number in range(3):
                    body = f"version {number} of life {life}".encode()
                    expected.append(body)
                    for name in ("b1", "b2"):  # both hear of it, in either order
                        publisher.hub = up[name].hub.url
                        await publisher.publish(body)
                    for reader in readers.values():
                        await until(lambda reader=reader: len(reader.taken) >= len(expected))
        for reader in readers.values():
            assert [taken.body for taken in reader.taken] == expected


async def test_after_the_last_subscriber_beyond_left_nothing_is_sent_any_more(world: World, crossing: Crossing) -> None:
    node = world.network.nodes["n0"].node
    await crossing.publish(b"for both", "text/plain")
    assert node.sender.counters.fresh_frames > 0
    await crossing.far.ask(crossing.a.hub.url, crossing.publisher.topic, "unsubscribe")
    await until(lambda: world.network.nodes["n3"].node.request_table.subscribed_items == 0)
    item = DEFAULT_NAMING.of_topic(Topic.parse(crossing.publisher.topic))

    while (await crossing.b.network.explain(item)).subscribers:  # the rendezvous hears of it
        pass
    sent = node.sender.counters.fresh_frames
    await crossing.publisher.publish(b"for those here only")
    await until(lambda: crossing.near.taken[-1].body == b"for those here only")
    await until(
        lambda: crossing.b.hub.delivery.latest(crossing.publisher.topic)[0].content.body == b"for those here only"
    )
    # It is in the network's store at this node, and went nowhere.
    await until(lambda: node.request_table.published_items == 1)
    assert node.sender.counters.fresh_frames == sent
    assert len(crossing.far.taken) == 1


@pytest.mark.parametrize(
    ("crossed", "brought"),
    [
        ("http://feeds.example/a", ["http://feeds.example/a"]),
        ("https://feeds.example/a", ["http://feeds.example/a", "https://feeds.example/a"]),
    ],
)
async def test_what_was_fetched_over_http_is_never_given_to_who_asked_for_https(
    tmp_path: Path, crossed: str, brought: list[str]
) -> None:
    """One item, two spellings."""
    hub = Hub(HubConfig(tmp_path / "hub", canary=CanaryConfig(enabled=False)))
    given: list[str] = []

    async def bring(topic: str, self_url: str, content: Content) -> None:
        given.append(topic)

    hub.bring = bring  # type: ignore[method-assign]
    with Database.open(tmp_path / "gateway.sqlite", EXCHANGE_TABLES) as database:
        exchange = Exchange(SqliteLog(database), SqliteSessions(database), steady)
        adapter = WebsubAdapter(hub, DEFAULT_NAMING, Control(exchange, steady))
        await _check_spellings(adapter, given, crossed, brought)


async def _check_spellings(adapter: WebsubAdapter, given: list[str], crossed: str, brought: list[str]) -> None:
    spellings = ("http://feeds.example/a", "https://feeds.example/a")
    item = adapter.item_of(spellings[0])
    assert item == adapter.item_of(spellings[1])
    draft = Draft(item, crossed, Profile.DOCUMENT, "text/plain", b"x")
    entry = LogEntry(1, OriginId(bytes(16), 1), "psirp", draft, 0)
    await adapter.deliver(SessionKey("push", "hub"), entry, [Interest(url, item) for url in spellings])
    assert given == brought
