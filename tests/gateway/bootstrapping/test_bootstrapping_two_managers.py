"""Two gateways manage one zone: what they bring arrives once, and one is enough."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace

from gateway.gateway import Gateway
from tests.gateway.bootstrapping.distant import DistantDomain, Reader, feed
from tests.gateway.bootstrapping.test_bootstrapping import QUICK, ZONE, World, bodies, subscribed, world
from tests.waiting import until

__all__ = ["world"]
MANAGING = replace(QUICK, zones=(ZONE,))


@asynccontextmanager
async def managers(world: World) -> AsyncIterator[tuple[Gateway, Gateway]]:
    async with world.manager() as one, world.gateway("n1", "b2", MANAGING) as other:
        yield one, other


async def test_a_subscription_is_served_once_by_two_managers(world: World) -> None:
    async with (
        DistantDomain() as distant,
        Reader() as reader,
        managers(world),
        world.gateway("n3", "a") as a,
    ):
        await subscribed(reader, a, distant.topic)
        await until(lambda: len(distant.subscribed) == 2)
        assert len({one.secret for one in distant.subscribed.values()}) == 2, "each has a subscription of its own"
        sent = [feed("first")]
        await until(lambda: bodies(reader) == sent)
        for number in range(5):
            sent.append(feed(f"number {number}"))
            assert await distant.push(sent[-1]) == [202, 202]
            await until(lambda: bodies(reader)[-1:] == sent[-1:])
        assert bodies(reader) == sent


async def test_when_one_manager_ends_the_other_serves(world: World) -> None:
    async with DistantDomain() as distant, Reader() as reader, world.gateway("n3", "a") as a:
        sent = [feed("first")]
        async with world.gateway("n1", "b2", MANAGING):
            async with world.manager():
                await subscribed(reader, a, distant.topic)
                await until(lambda: len(distant.subscribed) == 2)
                await until(lambda: bodies(reader) == sent)
                sent.append(feed("both"))
                await distant.push(sent[-1])
                await until(lambda: bodies(reader) == sent)
            for number in range(3):
                sent.append(feed(f"the second alone {number}"))
                await distant.push(sent[-1])
                await until(lambda: bodies(reader)[-1:] == sent[-1:])
            assert not reader.inbox.denied
        async with world.manager():
            sent.append(feed("the first alone"))
            await distant.push(sent[-1])
            await until(lambda: bodies(reader)[-1:] == sent[-1:])
        assert bodies(reader) == sent
        assert not reader.inbox.denied


async def test_a_manager_that_missed_versions_does_not_bring_back_what_is_older(world: World) -> None:
    """The other had brought them, and is gone: who was away has only what came before, and what follows."""
    async with DistantDomain() as distant, Reader() as reader, world.gateway("n3", "a") as a:
        sent = [feed("first")]
        async with world.manager():
            async with world.gateway("n1", "b2", MANAGING):
                await subscribed(reader, a, distant.topic)
                await until(lambda: len(distant.subscribed) == 2)
                await until(lambda: bodies(reader) == sent)
            for number in range(3):
                sent.append(feed(f"only at one {number}"))
                assert sorted(await distant.push(sent[-1])) == [0, 202]
                await until(lambda: bodies(reader) == sent)
        async with world.gateway("n1", "b2", MANAGING):
            sent.append(feed("only at the other"))
            assert sorted(await distant.push(sent[-1])) == [0, 202]
            await until(lambda: bodies(reader)[-1:] == sent[-1:])
            async with world.manager():
                sent.append(feed("at both"))
                assert await distant.push(sent[-1]) == [202, 202]
                await until(lambda: bodies(reader)[-1:] == sent[-1:])
        async with world.manager():
            sent.append(feed("the end"))
            await distant.push(sent[-1])
            await until(lambda: bodies(reader)[-1:] == sent[-1:])
        assert bodies(reader) == sent
        assert not reader.inbox.denied


async def test_what_one_manager_is_denied_the_other_may_bring(world: World) -> None:
    """A hub that ends the subscription of one of two managers leaves the subscriber with the other."""
    async with DistantDomain() as distant, Reader() as reader, managers(world) as (b, _), world.gateway("n3", "a") as a:
        await subscribed(reader, a, distant.topic)
        await until(lambda: len(distant.subscribed) == 2)
        await until(lambda: bodies(reader) == [feed("first")])
        (topic, callback) = next(pair for pair in distant.subscribed if pair[1].startswith(b.hub.url))
        assert await distant.deny(topic, callback, "one is enough") == 200
        await until(lambda: b.bootstrapping.status().topics[0][1].endswith("one is enough"))
        await distant.push(feed("from the other"))
        await until(lambda: bodies(reader)[-1:] == [feed("from the other")])
        assert bodies(reader).count(feed("from the other")) == 1
        assert not reader.inbox.denied
        assert a.hub.subscriptions.count(distant.topic) == 1
