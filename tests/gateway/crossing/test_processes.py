"""The feed scenario between separate processes: gateways and nodes as an operator runs them, joined by UDP."""

import asyncio
from collections.abc import AsyncIterator
from itertools import groupby
from pathlib import Path

import pytest

from tests.gateway.crossing.stock_subscriber import StockPublisher, StockSubscriber
from trials.crash.gateway_process import GatewayProcesses

ATOM = "application/atom+xml; charset=utf-8"
PATIENCE = 60.0


def feed(*titles: str) -> bytes:
    entries = "".join(f"<entry><id>urn:{title}</id><title>{title}</title></entry>" for title in titles)
    return f'<feed xmlns="http://www.w3.org/2005/Atom"><id>urn:feed</id>{entries}</feed>'.encode()


@pytest.fixture
async def parts(tmp_path: Path) -> AsyncIterator[GatewayProcesses]:
    """Two gateways, a rendezvous, two forwarders: five processes."""
    parts = GatewayProcesses(tmp_path)
    try:
        await parts.start()
        yield parts
        await parts.stop()
        assert not [complaint for part in parts.all.values() for complaint in part.complaints]
    finally:
        await parts.end()


async def taken(subscriber: StockSubscriber, number: int) -> list[bytes]:
    """A hub that is killed before it has written down that something was delivered sends it again, at once."""
    async with asyncio.timeout(PATIENCE):
        while len(bodies := [body for body, _ in groupby(one.body for one in subscriber.taken)]) < number:
            await subscriber.arrived(len(subscriber.taken) + 1)
    assert not subscriber.ignored
    return bodies


async def test_a_feed_crosses_between_processes_and_survives_the_kill_of_each(parts: GatewayProcesses) -> None:
    async with StockPublisher(feed("one"), ATOM) as publisher, StockSubscriber() as first, StockSubscriber() as late:
        publisher.hub = parts.hubs["gate-b"]
        await first.ask(parts.hubs["gate-a"], publisher.topic)
        await publisher.publish(feed("one"))
        assert await taken(first, 1) == [feed("one")]
        assert (first.taken[0].content_type, first.taken[0].topic) == (ATOM, publisher.topic)
        assert first.taken[0].hub == parts.hubs["gate-a"]
        # Who subscribes now has the current version from the network's past.
        await late.ask(parts.hubs["gate-a"], publisher.topic)
        expected = [feed("one")]
        for name in ("gate-a", "core", "f1", "gate-b"):
            part = parts.all[name]
            await part.kill()
            expected.append(feed(f"while {name} was away"))
            if name != "gate-b":
                await publisher.publish(expected[-1])
            await part.start()
            await part.ready()
            if name == "gate-b":
                await publisher.publish(expected[-1])
            assert await taken(first, len(expected)) == expected
        assert (await taken(late, len(expected) - 1))[-len(expected) + 1 :] == expected[1:]


async def test_both_directions_at_once(parts: GatewayProcesses) -> None:
    async with (
        StockPublisher(feed("a"), ATOM) as at_a,
        StockPublisher(feed("b"), ATOM) as at_b,
        StockSubscriber() as reader_a,
        StockSubscriber() as reader_b,
    ):
        at_a.hub, at_b.hub = parts.hubs["gate-a"], parts.hubs["gate-b"]
        await reader_a.ask(at_a.hub, at_b.topic)
        await reader_b.ask(at_b.hub, at_a.topic)
        for number in range(1, 6):
            body = feed(f"number {number}", "x" * 5000)
            await asyncio.gather(at_a.publish(body), at_b.publish(body))
            assert (await taken(reader_a, number))[-1] == (await taken(reader_b, number))[-1] == body
