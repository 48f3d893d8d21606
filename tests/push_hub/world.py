"""A whole hub, a topic and a callback that already know each other, over real sockets and with the test's clock."""

import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp

from push_hub.canary import CanaryConfig
from push_hub.diagnostics import DiagnosticsConfig
from push_hub.hub import Hub, HubConfig
from push_hub.model import HubSubscription
from push_hub.ports import Validator
from push_hub.server import ServerConfig
from tests.push_hub.harness import Publisher, Received, Subscriber, until

OPERATOR = {"Authorization": "Bearer operator"}


@dataclass
class Clock:
    """The real time, and what a test adds to it."""

    ahead: float = 0.0

    def __call__(self) -> float:
        return time.time() + self.ahead


@asynccontextmanager
async def whole_hub(
    directory: Path,
    clock: Callable[[], float] = time.time,
    validator: Validator | None = None,
    observer: Callable[[object], None] | None = None,
    monotonic: Callable[[], float] = time.monotonic,
    **more: Any,
) -> AsyncIterator[Hub]:
    settings: dict[str, Any] = {
        "allow_private": True,
        "server": ServerConfig(publisher_tokens=("letmein",)),
        "diagnostics": DiagnosticsConfig(operator_token="operator"),
        "canary": CanaryConfig(enabled=False),
    }
    config = HubConfig(directory / "data", **(settings | more))
    hub = Hub(config, clock=clock, validator=validator, observer=observer, monotonic=monotonic)
    await hub.start()
    try:
        yield hub
    finally:
        await hub.stop()


class World:
    def __init__(
        self,
        hub: Hub,
        http: aiohttp.ClientSession,
        publisher: Publisher,
        subscriber: Subscriber,
        clock: Clock | None = None,
    ) -> None:
        self.hub = hub
        self.http = http
        self.publisher = publisher
        self.subscriber = subscriber
        self.topic = publisher.url()
        self.clock = clock or Clock()

    async def ask(self, mode: str, *more: tuple[str, str], path: str = "/cb", expected: int = 202) -> None:
        data = [("hub.mode", mode), ("hub.topic", self.topic), ("hub.callback", self.subscriber.url(path)), *more]
        async with self.http.post(self.hub.url, data=data) as answer:
            assert answer.status == expected
        await self.subscriber.next_check()
        await until(lambda: not self.hub.verifier.waiting)

    async def ping(self, topic: str | None = None) -> None:
        data = [("hub.mode", "publish"), ("hub.url", topic or self.topic)]
        async with self.http.post(self.hub.url, data=data) as answer:
            assert answer.status == 204

    async def publish(self, body: bytes) -> Received:
        self.publisher.body = body
        await self.ping()
        return await self.subscriber.next_received()

    def found(self, path: str = "/cb") -> HubSubscription:
        found = self.hub.subscriptions.find(self.topic, self.subscriber.url(path), self.clock())
        assert found is not None
        return found

    async def get(self, path: str, status: int = 200, headers: dict[str, str] | None = None, **query: str) -> Any:
        """A JSON document of the hub, or with another status the text of its refusal."""
        async with self.http.get(self.hub.url + path, params=query, headers=headers or OPERATOR) as answer:
            assert answer.status == status, await answer.text()
            return await (answer.json() if status == 200 else answer.text())

    async def wait_ahead(self, seconds: float) -> None:
        """Let time pass for the hub; what is due then is looked at now."""
        self.clock.ahead += seconds
        self.hub.delivery.wake()
        await self.hub.verifier.sweep()
