"""A hub of its own for each test, with callbacks and topics on loopback."""

from collections.abc import AsyncIterator
from pathlib import Path

import aiohttp
import pytest

from tests.push_hub.client.client_support import Client, run_client
from tests.push_hub.harness import Publisher, Subscriber
from tests.push_hub.running import RunningHub, run_hub
from tests.push_hub.world import Clock, World, whole_hub


@pytest.fixture
async def hub(tmp_path: Path) -> AsyncIterator[RunningHub]:
    async with run_hub(tmp_path) as running:
        yield running


@pytest.fixture
async def http() -> AsyncIterator[aiohttp.ClientSession]:
    async with aiohttp.ClientSession() as session:
        yield session


@pytest.fixture
async def subscriber() -> AsyncIterator[Subscriber]:
    one = await Subscriber().start()
    yield one
    await one.close()


@pytest.fixture
async def publisher() -> AsyncIterator[Publisher]:
    one = await Publisher().start()
    yield one
    await one.close()


@pytest.fixture
async def client(tmp_path: Path) -> AsyncIterator[Client]:
    async with run_client(tmp_path) as one:
        yield one


@pytest.fixture
async def world(
    tmp_path: Path, http: aiohttp.ClientSession, publisher: Publisher, subscriber: Subscriber
) -> AsyncIterator[World]:
    clock = Clock()
    async with whole_hub(tmp_path, clock) as hub:
        yield World(hub, http, publisher, subscriber, clock)
