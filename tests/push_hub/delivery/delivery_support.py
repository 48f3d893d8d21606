"""Things the delivery tests share: a subscriber source on the real table, and a callback server on loopback."""

import asyncio
import random
import socket
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, TypeVar

from push_hub.delivery import MIGRATIONS as DELIVERY_TABLES
from push_hub.delivery import Delivery, DeliveryConfig, QueueLimits
from push_hub.delivery.breaker import BreakerConfig
from push_hub.delivery.events import DeliveryEvent, FanoutFinished, OutcomesSaved
from push_hub.model import Content, Dialect, HubSubscription, SignatureMethod
from push_hub.schema import HUB_TABLES
from serving.outbound.addresses import AddressPolicy
from serving.outbound.client import ClientConfig, OutboundClient
from storage import Database
from storage.backoff import RetrySchedule
from storage.queues import QueueObserver

TOPIC = "http://publisher.example/feed"
COLUMNS = "id, topic, callback, secret, signature, dialect, lease_until"
Answer = Callable[[str, dict[str, str], bytes], bytes | None]
OPEN_WORK = "SELECT (SELECT count(*) FROM fanouts) + (SELECT count(*) FROM retries)"
OK = b"HTTP/1.1 204 No Content\r\n\r\n"


def status(code: int, *lines: str) -> bytes:
    return "\r\n".join([f"HTTP/1.1 {code} X", "Content-Length: 0", *lines, "", ""]).encode()


class TableSubscribers:
    """Subscribers read from the hub's table."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def page(self, topic: str, after_id: int, limit: int, now: float) -> Sequence[HubSubscription]:
        return [
            _subscription(row)
            for row in self._database.read(
                f"SELECT {COLUMNS} FROM subscriptions WHERE topic = ? AND id > ? AND lease_until > ? "  # noqa: S608
                "ORDER BY id LIMIT ?",
                (topic, after_id, now, limit),
            )
        ]

    def get(self, subscription_id: int, now: float) -> HubSubscription | None:
        rows = self._database.read(
            f"SELECT {COLUMNS} FROM subscriptions WHERE id = ? AND lease_until > ?",  # noqa: S608
            (subscription_id, now),
        )
        return _subscription(rows[0]) if rows else None


def _subscription(row: tuple[Any, ...]) -> HubSubscription:
    return HubSubscription(row[0], row[1], row[2], row[3], SignatureMethod(row[4]), Dialect(row[5]), row[6])


def open_database(path: Path) -> Database:
    return Database.open(path / "hub.db", [*HUB_TABLES, *DELIVERY_TABLES])


def subscribe(
    database: Database,
    callbacks: Sequence[str],
    *,
    topic: str = TOPIC,
    secret: bytes | None = None,
    dialect: Dialect = Dialect.WEBSUB,
    lease_until: float = 1e12,
) -> None:
    database.write(
        lambda tx: tx.execute_many(
            "INSERT INTO subscriptions (topic, callback, secret, signature, dialect, lease_until, created_at) "
            "VALUES (?, ?, ?, 'sha256', ?, ?, 0)",
            [(topic, callback, secret, dialect.value, lease_until) for callback in callbacks],
        )
    ).result()


def loopback_client(**settings: Any) -> OutboundClient:
    return OutboundClient(ClientConfig(policy=AddressPolicy(allow_private=True), **settings))


def quick_config(**limits: Any) -> DeliveryConfig:
    return DeliveryConfig(
        "http://hub.example/",
        QueueLimits(**limits),
        RetrySchedule(first=0.02, factor=1.5, longest=0.2, attempts=4),
        BreakerConfig(failures=1000),
        company=0.0,
    )


class CallbackServer:
    """A small HTTP/1.1 server that records every request and answers as it is told; None: no answer at all, nothing:
    it hangs up. `listening`: a bound socket to use."""

    def __init__(self, answer: Answer | None = None, *, listening: socket.socket | None = None) -> None:
        self._socket = listening
        self.answer = answer or (lambda _path, _headers, _body: OK)
        self.requests: list[tuple[str, dict[str, str], bytes]] = []
        self.lines: list[list[str]] = []
        self._arrived = asyncio.Event()
        self._writers: list[asyncio.StreamWriter] = []

    async def __aenter__(self) -> "CallbackServer":
        if self._socket is None:
            self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        else:
            self._server = await asyncio.start_server(self._serve, sock=self._socket)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *_: object) -> None:
        self._server.close()
        for writer in self._writers:
            writer.close()
        await self._server.wait_closed()

    def url(self, path: str = "/") -> str:
        return f"http://127.0.0.1:{self.port}{path}"

    async def received(self, count: int) -> None:
        async with asyncio.timeout(20):
            while len(self.requests) < count:
                self._arrived.clear()
                await self._arrived.wait()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writers.append(writer)
        try:
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
                headers = {k.lower(): v.strip() for k, _, v in (line.partition(":") for line in head[1:] if line)}
                body = await reader.readexactly(int(headers.get("content-length", "0")))
                path = head[0].split(" ")[1]
                self.requests.append((path, headers, body))
                self.lines.append(head)
                answer = self.answer(path, headers, body)
                self._arrived.set()
                if answer == b"":
                    break
                if answer is not None:
                    writer.write(answer)
        except (asyncio.IncompleteReadError, ConnectionError, asyncio.CancelledError):
            pass
        finally:
            writer.close()


E = TypeVar("E", bound=DeliveryEvent)


class Seen:
    """An observer that can be waited for."""

    def __init__(self) -> None:
        self.events: list[DeliveryEvent] = []
        self._more = asyncio.Event()

    def __call__(self, event: DeliveryEvent) -> None:
        self.events.append(event)
        self._more.set()

    def of(self, kind: type[E]) -> list[E]:
        return [event for event in self.events if isinstance(event, kind)]

    async def until(self, condition: Callable[[], bool]) -> None:
        """Until something happened after which the condition holds."""
        async with asyncio.timeout(20):
            while not condition():
                self._more.clear()
                await self._more.wait()

    async def count(self, kind: type[E], number: int) -> list[E]:
        await self.until(lambda: len(self.of(kind)) >= number)
        return self.of(kind)


class Clock:
    """The wall clock, and it can be set forward."""

    def __init__(self) -> None:
        self.ahead = 0.0

    def __call__(self) -> float:
        return time.time() + self.ahead


class Rig:
    """A delivery on a real file that tells what it does, with a clock that can be set forward."""

    def __init__(
        self, database: Database, config: DeliveryConfig, client: OutboundClient, queues: QueueObserver | None = None
    ) -> None:
        self.database = database
        self.seen = Seen()
        self.clock = Clock()
        self.gone: list[HubSubscription] = []
        self.client = client
        self.delivery = Delivery(
            database,
            TableSubscribers(database),
            self.client,
            config,
            self.clock,
            self.seen,
            gone=self.gone.append,
            rng=random.Random(7),
            queues=queues,
        )

    async def publish(self, body: bytes, topic: str = TOPIC) -> int:
        return (await self.delivery.accept(topic, topic, Content("text/plain", body))).id

    async def pass_time(self, seconds: float) -> None:
        """Set the clock forward, and wait until what was due then is on disk."""
        self.clock.ahead += seconds
        saved = len(self.seen.of(OutcomesSaved))
        self.delivery.wake()
        await self.seen.count(OutcomesSaved, saved + 1)

    async def finished(self, publication: int) -> None:
        await self.seen.until(lambda: any(one.publication == publication for one in self.seen.of(FanoutFinished)))

    async def nothing_owed(self) -> None:
        await self.seen.until(lambda: self.delivery.is_idle and self.database.read(OPEN_WORK) == [(0,)])

    def rows(self, table: str) -> int:
        return int(self.database.read(f"SELECT count(*) FROM {table}")[0][0])  # noqa: S608


@asynccontextmanager
async def rig(
    folder: Path,
    config: DeliveryConfig | None = None,
    client: OutboundClient | None = None,
    queues: QueueObserver | None = None,
) -> AsyncIterator[Rig]:
    with open_database(folder) as database:
        made = Rig(database, config or quick_config(), client or loopback_client(), queues)
        try:
            yield made
        finally:
            await made.delivery.stop()
            await made.client.close()
