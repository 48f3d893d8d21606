"""A gateway in the DNS: it keeps its own record, and names other domains' gateways. Against a real name server."""

import asyncio
import json
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from gateway.config import check
from gateway.discovery import DiscoveryConfig, RegisterConfig, ResolverConfig
from gateway.discovery.events import RecordRemoved, RecordWritten, RegistrationFailed
from gateway.gateway import Gateway, gateway_config
from psirp_stack.emulation.network import EmulatedNetwork, socket_of
from psirp_stack.emulation.plan import plan
from psirp_stack.node.config import TimesFile
from push_hub.canary import CanaryConfig
from push_hub.hub import HubConfig
from tests.gateway.crossing.stock_subscriber import StockSubscriber
from tests.gateway.discovery.name_server import ZONE, NameServer, why_not

pytestmark = pytest.mark.skipif(why_not() is not None, reason=str(why_not()))

PATIENCE = 30.0
OTHERS = "20 5 4000 three.feeds.test."


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NameServer]:
    server = NameServer.prepare(tmp_path_factory.mktemp("named"))
    server.start()
    server.administrate(("add", f"_psirp._tcp.{ZONE}.", "60", "SRV", OTHERS))
    yield server
    server.stop()


class Events:
    def __init__(self) -> None:
        self._seen: list[object] = []
        self._news = asyncio.Event()

    def __call__(self, event: object) -> None:
        self._seen.append(event)
        self._news.set()

    async def next(self, *kinds: type) -> object:
        async with asyncio.timeout(PATIENCE):
            while True:
                for event in self._seen:
                    if isinstance(event, kinds):
                        self._seen.clear()
                        return event
                self._news.clear()
                await self._news.wait()


class Nodes:
    def __init__(self, folder: Path, stack: AsyncExitStack) -> None:
        self._folder = folder
        self._stack = stack

    async def gateway(self, node: str, discovery: DiscoveryConfig) -> tuple[Gateway, Events]:
        data = self._folder / node
        hub = HubConfig(data / "hub", allow_private=True, canary=CanaryConfig(enabled=False))
        events = Events()
        config = gateway_config(data, hub, attach=socket_of(self._folder / "net", node), discovery=discovery)
        gateway = Gateway(config, observer=events)
        self._stack.push_async_callback(gateway.stop)
        await gateway.start()
        return gateway, events


@pytest.fixture
async def nodes(tmp_path: Path) -> AsyncIterator[Nodes]:
    (tmp_path / "net").mkdir()
    async with AsyncExitStack() as stack:
        two = plan({"generate": {"kind": "line", "nodes": 2}}, tmp_path)
        network = await EmulatedNetwork.start(two, tmp_path / "net", TimesFile(hello=0.1))
        stack.push_async_callback(network.close)
        await network.settled()
        yield Nodes(tmp_path, stack)


def registered(server: NameServer, target: str, key: str = "gateway-key", weight: int = 10) -> DiscoveryConfig:
    register = RegisterConfig(
        ZONE, "127.0.0.1", server.key_file(key), target, priority=1, weight=weight, server_port=server.port
    )
    resolver = ResolverConfig(nameservers=("127.0.0.1",), port=server.port)
    return DiscoveryConfig(register, resolver=resolver)


def port_of(gateway: Gateway) -> int | None:
    return urlsplit(gateway.hub.local_url).port


async def test_gateways_of_a_domain_register_while_they_run_and_find_each_other(
    server: NameServer, nodes: Nodes
) -> None:
    one, one_says = await nodes.gateway("n0", registered(server, "one.feeds.test", weight=30))
    two, two_says = await nodes.gateway("n1", registered(server, "two.feeds.test"))
    for events in (one_says, two_says):
        assert isinstance(await events.next(RecordWritten, RegistrationFailed), RecordWritten)
    records = {f"1 30 {port_of(one)} one.feeds.test.", f"1 10 {port_of(two)} two.feeds.test."}
    assert server.services() == {*records, OTHERS}
    found = await one.discovery.locator.candidates(ZONE)
    assert {gateway.port for gateway in found[:2]} == {port_of(one), port_of(two)}
    assert found[2].target == "three.feeds.test"
    # One that does not answer stands back: the other is first from now on.
    broken = next(gateway for gateway in found if gateway.target == "one.feeds.test")
    one.discovery.locator.mark_failed(broken)
    assert (await one.discovery.locator.candidates(ZONE))[0].target == "two.feeds.test"
    await two.stop()
    assert isinstance(await two_says.next(RecordRemoved, RegistrationFailed), RecordRemoved)
    assert server.services() == {f"1 30 {port_of(one)} one.feeds.test.", OTHERS}
    await one.stop()
    assert server.services() == {OTHERS}


async def test_a_gateway_whose_registration_is_refused_runs_all_the_same(server: NameServer, nodes: Nodes) -> None:
    gateway, events = await nodes.gateway("n0", registered(server, "one.feeds.test", "stranger-key"))
    failed = await events.next(RecordWritten, RegistrationFailed)
    assert isinstance(failed, RegistrationFailed)
    assert failed.retry_in is not None
    assert gateway.discovery.registrar is not None
    assert gateway.discovery.registrar.problem == failed.reason
    async with StockSubscriber() as subscriber:
        await subscriber.ask(gateway.hub.url, "http://127.0.0.1:9/feed")
        assert subscriber.denied is None
    assert server.services() == {OTHERS}


async def test_who_is_denied_is_told_which_gateways_the_domain_names(server: NameServer, nodes: Nodes) -> None:
    resolver = ResolverConfig(nameservers=("127.0.0.1",), port=server.port)
    gateway, _ = await nodes.gateway("n0", DiscoveryConfig(say_where=True, resolver=resolver))
    async with StockSubscriber() as subscriber:
        await subscriber.ask(gateway.hub.url, f"http://www.{ZONE}/feed")
        assert subscriber.denied is not None
        assert subscriber.denied.endswith(f"({ZONE} names as its gateways: three.feeds.test:4000)")
        # A domain that names none, and one whose name servers do not know it: the reason alone.
        await subscriber.ask(gateway.hub.url, "http://www.another.test/feed")
        assert subscriber.denied is not None
        assert "gateways" not in subscriber.denied


async def test_the_section_of_a_configuration_does_the_same(server: NameServer, nodes: Nodes, tmp_path: Path) -> None:
    document = {
        "network": {"attach": str(socket_of(tmp_path / "net", "n1"))},
        "hub": {"listen": "127.0.0.1:0", "allow_private": True},
        "discovery": {
            "register": {
                "server": "127.0.0.1",
                "server_port": server.port,
                "key_file": str(server.key_file()),
                "domain": ZONE,
                "target": "two.feeds.test",
                "port": 4321,
                "priority": 7,
                "weight": 3,
            }
        },
    }
    events = Events()
    gateway = Gateway(check(json.loads(json.dumps(document)), tmp_path), observer=events)
    await gateway.start()
    try:
        assert isinstance(await events.next(RecordWritten, RegistrationFailed), RecordWritten)
        assert server.services() == {"7 3 4321 two.feeds.test.", OTHERS}
    finally:
        await gateway.stop()
    assert server.services() == {OTHERS}
