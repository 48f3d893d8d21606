"""Gateways cross a network that is nothing but scapy, unchanged; the fast forwarders would have decided the same."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from aiohttp import ClientSession

from psirp_stack.emulation.network import EmulatedNetwork
from psirp_stack.emulation.plan import plan
from psirp_stack.node.config import TimesFile
from psirp_stack.tools.reference_network import Comparison, with_reference
from tests.gateway.crossing.test_crossing import Publisher, Subscriber, World, feed
from tests.waiting import until


@pytest.fixture
async def scapy_world(tmp_path: Path) -> AsyncIterator[tuple[World, Comparison]]:
    comparison = Comparison()
    network_plan = with_reference(plan({"generate": {"kind": "line", "nodes": 4}}, tmp_path), None, comparison)
    (tmp_path / "net").mkdir()
    network = await EmulatedNetwork.start(network_plan, tmp_path / "net", TimesFile(hello=0.2))
    await network.settled()
    async with ClientSession() as http:
        yield World(network, network_plan, tmp_path, http), comparison
    await network.close()


async def test_a_feed_crosses_scapy(scapy_world: tuple[World, Comparison]) -> None:
    world, comparison = scapy_world
    async with (
        Publisher() as publisher,
        Subscriber() as subscriber,
        world.gateway("n3", "a") as a,
        world.gateway("n0", "b") as b,
    ):
        await world.subscribe(a, publisher.topic, subscriber.callback)
        await world.ping(b, publisher.topic)
        await until(lambda: subscriber.received)
        assert subscriber.received[0][1] == publisher.body
        publisher.body = feed("second", "first")
        await world.ping(b, publisher.topic)
        await until(lambda: len(subscriber.received) == 2)
    assert comparison.compared > 100
    assert comparison.differences == []
