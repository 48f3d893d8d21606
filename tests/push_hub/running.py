"""The hub's protocol, verifier and server on a real socket, with a recorder in the place of intake."""

import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import aiohttp

from push_hub.bounds import SubscriptionBounds
from push_hub.events import HubEvent
from push_hub.health import Check, HealthReport
from push_hub.model import Content
from push_hub.ports import GetFailedError, GetResponse, OverloadedError, Validator
from push_hub.protocol.verification import CheckSchedule
from push_hub.schema import HUB_TABLES, SUBSCRIPTION_TABLES
from push_hub.server import HubServer, ServerConfig
from push_hub.subscriptions import Change, Subscriptions
from push_hub.verifier import IntentVerifier, IntentVerifierConfig
from serving.port import Port, PortConfig
from storage import Database

FAST = CheckSchedule(first=0.01, factor=1.5, max_age=0.2, longest=0.2)


class PlainGetter:
    """GETs without a guard: only the tests' own loopback servers are asked."""

    def __init__(self, session: aiohttp.ClientSession) -> None:
        self._session = session

    async def get(
        self,
        url: str,
        *,
        timeout: float,  # noqa: ASYNC109 - a bound of the port
        max_bytes: int,
        counted: Callable[[str], bool] | None = None,
    ) -> GetResponse:
        try:
            async with self._session.get(
                url, allow_redirects=False, timeout=aiohttp.ClientTimeout(total=timeout)
            ) as answer:
                body = await answer.content.read(max_bytes + 1)
        except (aiohttp.ClientError, TimeoutError) as error:
            raise GetFailedError(type(error).__name__) from error
        if len(body) > max_bytes:
            raise GetFailedError("the answer is too long")
        return GetResponse(answer.status, body)


@dataclass
class PingRecorder:
    pings: list[str] = field(default_factory=list)
    offers: list[tuple[str, Content]] = field(default_factory=list)
    busy: bool = False

    async def ping(self, topics: Sequence[str], client: str = "") -> None:
        if self.busy:
            raise OverloadedError(7.2, "too many topics are waiting")
        self.pings.extend(topics)

    async def offer(self, topic: str, content: Content, self_url: str) -> None:
        self.offers.append((topic, content))


@dataclass
class RunningHub:
    url: str
    subscriptions: Subscriptions
    verifier: IntentVerifier
    pings: PingRecorder
    changes: list[Change]
    events: list[HubEvent]
    port: Port
    health: list[str]


@asynccontextmanager
async def run_hub(
    directory: Path,
    server_config: ServerConfig | None = None,
    verifier_config: IntentVerifierConfig | None = None,
    validator: Validator | None = None,
    clock: Callable[[], float] = time.time,
    monotonic: Callable[[], float] = time.monotonic,
    bounds: SubscriptionBounds | None = None,
) -> AsyncIterator[RunningHub]:
    server_config = server_config or ServerConfig()
    database = Database.open(directory / "hub.sqlite", [*HUB_TABLES, *SUBSCRIPTION_TABLES])
    async with aiohttp.ClientSession() as session:
        subscriptions = Subscriptions(database, bounds=bounds)
        changes: list[Change] = []
        events: list[HubEvent] = []
        health: list[str] = []
        verifier = IntentVerifier(
            subscriptions,
            PlainGetter(session),
            verifier_config or IntentVerifierConfig(schedule=FAST),
            changed=changes.append,
            validator=validator,
            observer=events.append,
            clock=clock,
        )
        pings = PingRecorder()

        async def report() -> HealthReport:
            return HealthReport((Check("test", not health, health[0] if health else "fine"),))

        server = HubServer(
            server_config,
            verifier,
            pings,
            health=report,
            observer=events.append,
            clock=clock,
            monotonic=monotonic,
        )
        app = server.application()
        port = Port(
            PortConfig(
                header_timeout=server_config.header_timeout,
                max_connections=server_config.max_connections,
                stop_grace=2.0,
                linger=server_config.linger,
            ),
            events.append,
        )
        await port.serve(app)
        await verifier.start()
        url = port.url
        try:
            yield RunningHub(url, subscriptions, verifier, pings, changes, events, port, health)
        finally:
            await verifier.stop()
            await port.stop()
            database.close()
