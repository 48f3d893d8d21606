"""Hubs, publishers and subscribers that know nothing of us, on both sides of a crossing."""

import ast
import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from gateway.bootstrapping import BootstrappingConfig
from gateway.gateway import Gateway, gateway_config
from psirp_stack.emulation.network import EmulatedNetwork, socket_of
from psirp_stack.emulation.plan import plan
from psirp_stack.node.config import TimesFile
from push_hub.canary import CanaryConfig
from push_hub.hub import HubConfig
from tests.gateway.crossing.stock_hub import StockHub
from tests.gateway.crossing.stock_subscriber import StockPublisher, StockSubscriber
from tests.waiting import until

NEWS = "news.feedspsirp.com"
RSS = "application/rss+xml; charset=iso-8859-15"
PATIENCE = 30.0


def rss(*titles: str) -> bytes:
    """Not UTF-8, and with spaces where no program would put them: whoever rewrites it is found out."""
    items = "".join(f"<item ><title>{title} \u20ac</title><guid>urn:{title}</guid></item >\r\n" for title in titles)
    text = f'<?xml version="1.0" encoding="iso-8859-15"?>\n<rss version="2.0"><channel>{items}</channel></rss>'
    return text.encode("iso-8859-15")


class Domains:
    """Two gateways at the ends of a line of nodes; everything else is other people's."""

    def __init__(self, data: Path, stack: AsyncExitStack) -> None:
        self._data = data
        self._stack = stack

    async def gateway(self, node: str, zones: tuple[str, ...] = ()) -> Gateway:
        data = self._data / node
        hub = HubConfig(
            data / "hub", allow_private=True, hosts=((NEWS, "127.0.0.1"),), canary=CanaryConfig(enabled=False)
        )
        config = gateway_config(
            data, hub, attach=socket_of(self._data / "net", node), bootstrapping=BootstrappingConfig(zones=zones)
        )
        gateway = Gateway(config)
        self._stack.push_async_callback(gateway.stop)
        await gateway.start()
        return gateway

    async def hub(self) -> StockHub:
        return await self._stack.enter_async_context(StockHub(hosts={NEWS: "127.0.0.1"}))

    async def subscriber(self) -> StockSubscriber:
        return await self._stack.enter_async_context(StockSubscriber())

    async def publisher(self, hub: str, name: str | None = None) -> StockPublisher:
        publisher = await self._stack.enter_async_context(StockPublisher(rss("zero"), RSS))
        publisher.site.name = name
        publisher.hub = hub
        return publisher


@pytest.fixture
async def domains(tmp_path: Path) -> AsyncIterator[Domains]:
    (tmp_path / "net").mkdir()
    network_plan = plan({"generate": {"kind": "line", "nodes": 4}, "roles": {"rendezvous": "n1"}}, tmp_path)
    async with AsyncExitStack() as stack:
        network = await EmulatedNetwork.start(network_plan, tmp_path / "net", TimesFile(hello=0.1))
        stack.push_async_callback(network.close)
        await network.settled()
        yield Domains(tmp_path, stack)


async def got(subscriber: StockSubscriber, number: int) -> list[tuple[str, bytes]]:
    async with asyncio.timeout(PATIENCE):
        await subscriber.arrived(number)
    assert not subscriber.ignored
    return [(taken.content_type, taken.body) for taken in subscriber.taken]


@pytest.mark.parametrize("module", ["stock_hub.py", "stock_subscriber.py"])
def test_they_import_nothing_of_ours(module: str) -> None:
    tree = ast.parse((Path(__file__).parent / module).read_text())
    names = {node.module for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) and node.module}
    names |= {alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names}
    ours = {"gateway", "push_hub", "psirp_stack", "identifiers", "storage", "perf", "serving", "trials"}
    assert not {name.partition(".")[0] for name in names} & ours
    assert {name for name in names if name.startswith("tests")} <= {"tests.gateway.crossing.stock_subscriber"}


async def test_a_stock_hub_in_one_domain_gets_what_a_stock_publisher_in_the_other_pings(domains: Domains) -> None:
    """The feed scenario: publisher, gateway B, network, gateway A, the client's own hub, the client."""
    a, b = await domains.gateway("n3"), await domains.gateway("n0")
    publisher = await domains.publisher(b.hub.url)
    hub, client, near = await domains.hub(), await domains.subscriber(), await domains.subscriber()
    upstream = await hub.follow(a.hub.url, publisher.topic)
    await client.ask(hub.url, publisher.topic)
    assert await near.discover(publisher.topic) == (b.hub.url, publisher.topic)
    await near.ask(b.hub.url, publisher.topic)
    for number, titles in enumerate((("one",), ("two", "one"), ("three", "two", "one")), 1):
        await publisher.publish(rss(*titles))
        # What crossed is what the publisher wrote, and the same as within its own domain.
        assert await got(client, number) == await got(near, number)
        assert client.taken[-1].body == rss(*titles)
        assert client.taken[-1].content_type == RSS
    assert {taken.topic for taken in upstream.taken} == {publisher.topic}
    assert {taken.hub for taken in upstream.taken} == {a.hub.url}
    assert not hub.failed


async def test_a_stock_hub_behind_a_managed_zone_feeds_a_stock_hub_in_another_domain(domains: Domains) -> None:
    """Bootstrapping: the publisher knows its own hub only, and that hub knows gateway B as one more subscriber."""
    a, b = await domains.gateway("n3"), await domains.gateway("n0", ("feedspsirp.com",))
    theirs, ours, client = await domains.hub(), await domains.hub(), await domains.subscriber()
    publisher = await domains.publisher(theirs.url, NEWS)
    upstream = await ours.follow(a.hub.url, publisher.topic)
    assert upstream.denied is None
    await client.ask(ours.url, publisher.topic)
    await until(lambda: theirs.subscribers(publisher.topic) == 1, PATIENCE)
    # The current version, which was there before anybody asked; the client may have come too late for it.
    assert await got(upstream, 1) == [(RSS, rss("zero"))]
    for titles in (("one",), ("two", "one")):
        await publisher.publish(rss(*titles))
        async with asyncio.timeout(PATIENCE):
            while not client.taken or client.taken[-1].body != rss(*titles):
                await client.arrived(len(client.taken) + 1)
    bodies = [taken.body for taken in client.taken]
    assert bodies[-2:] == [rss("one"), rss("two", "one")]
    assert len(bodies) == len(set(bodies)), "nothing came twice"
    assert b.hub.subscriptions.count(publisher.topic) == 0, "nobody subscribed at gateway B itself"
    await upstream.ask(a.hub.url, publisher.topic, "unsubscribe")
    await until(lambda: not theirs.subscribers(publisher.topic), PATIENCE)
    assert not theirs.failed
    assert not ours.failed


async def test_a_stock_subscriber_is_denied_in_words_what_nobody_would_bring(domains: Domains) -> None:
    a = await domains.gateway("n3")
    client = await domains.subscriber()
    await client.ask(a.hub.url, "http://www.nobody-manages-this.com/feed")
    assert client.denied is not None
    assert "nobody-manages-this.com" in client.denied
