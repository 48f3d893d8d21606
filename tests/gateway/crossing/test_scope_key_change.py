"""The key of a sealed scope is changed while two gateways exchange publications, and no node between reads them."""

import dataclasses
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from gateway.gateway import Gateway
from gateway.operations.reload import apply_reload
from gateway.protocols.psirp.protocol import PSIRP
from gateway.protocols.psirp.scope_keys import MARK, KeyStep, ScopeKeys, change
from identifiers import DEFAULT_NAMING, Topic
from psirp_stack.emulation.network import socket_of
from psirp_stack.node.api import Client
from psirp_stack.node.attachment import ReceivedVersion
from tests.gateway.crossing.test_crossing import Publisher, Subscriber, World, feed
from tests.gateway.crossing.test_crossing import world as line_of_nodes
from tests.waiting import until

PREFIX = "http://127.0.0.1"

world = line_of_nodes


def give(gateway: Gateway, keys: ScopeKeys) -> tuple[str, ...]:
    """What SIGHUP does with a configuration whose file of keys is another one now."""
    before = gateway.config
    network = dataclasses.replace(before.network, scope_keys=keys)
    after = dataclasses.replace(before, protocols={**before.protocols, PSIRP.label: network})
    done = apply_reload(gateway, before, after)
    gateway.config = after
    return done.changed


@pytest.fixture
async def listening(world: World, sealed_topic: str) -> AsyncIterator[list[ReceivedVersion]]:
    """A member of the network between both gateways, subscribed to the item."""
    heard: list[ReceivedVersion] = []

    async def take(version: ReceivedVersion) -> None:
        heard.append(version)

    item = DEFAULT_NAMING.of_topic(Topic.parse(sealed_topic))
    async with await Client.attach(socket_of(world.data / "net", "n1"), application="member") as client:
        await client.subscribe(item.sid, item.rid, take)
        yield heard


@pytest.fixture
async def publisher() -> AsyncIterator[Publisher]:
    async with Publisher() as publisher:
        yield publisher


@pytest.fixture
def sealed_topic(publisher: Publisher) -> str:
    return publisher.topic


async def test_every_step_of_a_change_crosses_whoever_takes_it_first(
    world: World, publisher: Publisher, listening: list[ReceivedVersion], tmp_path: Path
) -> None:
    path = tmp_path / "sealed.toml"
    change(path, PREFIX, None)
    async with (
        Subscriber() as subscriber,
        world.gateway("n3", "a") as a,
        world.gateway("n0", "b") as b,
    ):
        for gateway in (a, b):
            assert give(gateway, ScopeKeys.load(path)) == ("network.scope_keys",)
        await world.subscribe(a, publisher.topic, subscriber.callback)
        number = 0

        async def crosses() -> None:
            nonlocal number
            number += 1
            publisher.body = feed(f"secret {number}")
            await world.ping(b, publisher.topic)
            await until(lambda: [body for _, body, _ in subscriber.received][-1:] == [publisher.body])
            assert len(subscriber.received) == number

        await crosses()
        first = subscriber.received[0][1]
        # The reader is late with one step, and early with the next.
        for step, order in ((KeyStep.NEXT, (a, b)), (KeyStep.SWITCH, (b, a)), (KeyStep.DROP, (a, b))):
            change(path, PREFIX, step)
            for gateway in order:
                give(gateway, ScopeKeys.load(path))
                await crosses()
        await until(lambda: len(listening) == number)
        assert first == feed("secret 1")
    assert all(version.content.startswith(MARK) for version in listening)
    assert not [v for v in listening if b"secret" in v.content or b"/feed" in v.content or b"127.0.0.1" in v.content]
    # Two keys were in use.
    assert len({version.content[len(MARK) : len(MARK) + 8] for version in listening}) == 2


async def test_what_is_sealed_does_not_become_open_without_a_restart(
    world: World, publisher: Publisher, tmp_path: Path
) -> None:
    path = tmp_path / "sealed.toml"
    change(path, PREFIX, None)
    async with world.gateway("n0", "b") as b:
        give(b, ScopeKeys.load(path))
        assert give(b, ScopeKeys()) == ()
        assert b.core.protocols[PSIRP.label].network.scope_keys == ScopeKeys.load(path)  # type: ignore[attr-defined]
