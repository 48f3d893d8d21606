"""An open loop of publications against one hub: publisher, pings and callbacks in one process, so one clock sees all.

`/t/N` is a topic when it is read, `/c/N` its only callback. Each document has a number of its own, by which its arrival
is known. Pings are sent when they are due, whatever became of those before; a delay counts from then until the callback
has the document.
"""

import asyncio
import random
import re
import socket
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Self, cast
from urllib.parse import quote, urlencode, urlsplit

from perf.bench.family import percentile
from perf.bench.ingest_stores import NUMBER
from perf.hub_process import PUBLISHER_TOKEN
from perf.loopback import LoopbackRequest, Reply, Server, answer

ADDRESSES = 16
"""Origins, callbacks and senders of pings are on several addresses: hubs share out what they do by network."""
SENDERS = 64
"""Pings come from so many: a hub allows each address so many requests a second."""
ATOM = "application/atom+xml"
OK = answer(204)
LATE = 1.0
"""The 99th percentile of the delays of a rate that is followed."""
GROWTH = 0.1
"""A backlog grows when delays grow by more than this part of the time that passes."""
GRACE = 2.0
MOST_CONNECTIONS = 512
HEAD = (
    b'<?xml version="1.0" encoding="utf-8"?>\n<feed xmlns="http://www.w3.org/2005/Atom"><id>urn:f</id><title>f</title>'
    b"<updated>2026-01-01T00:00:00Z</updated><entry><id>urn:e:%08d</id><title>an entry</title>"
    b"<updated>2026-01-01T00:00:00Z</updated><content>"
)
TAIL = b"</content></entry></feed>\n"


def document(number: int, size: int) -> bytes:
    """A feed with one entry, of about this many bytes and at least what it takes."""
    head = HEAD % number
    return head + b"." * (size - len(head) - len(TAIL)) + TAIL


@dataclass(slots=True)
class OfferedStep:
    """What became of the publications of one rate."""

    rate: float
    seconds: float
    offered: int = 0
    accepted: int = 0
    refused: int = 0
    """With 503 or 429 and a `Retry-After`."""
    failed: int = 0
    """Any other answer, or none."""
    delays: list[tuple[float, float]] = field(default_factory=list)
    """When a publication was due, in seconds from the beginning, and how long it took."""
    lag: float = 0.0
    """The longest that the load generator itself was late."""
    superseded: int = 0
    """Did not arrive, but a later document of the same topic did: one fetch answered several pings."""
    turned_away: set[int] = field(default_factory=set)
    """Numbers of those whose ping was refused or failed; at the end without what arrived or was superseded."""
    left: dict[int, str] = field(default_factory=dict)
    """Nothing of these explains why they did not arrive: numbers, and the topics that were pinged."""
    delivered_in_time: int = 0
    """Arrivals until the last ping was due."""
    cpu: dict[str, float] = field(default_factory=dict)
    """Seconds of each stage."""

    @property
    def lost(self) -> int:
        """Accepted and not arrived: superseded by a later document, or late beyond all patience."""
        return self.accepted - len(self.delays)

    def quantile(self, fraction: float) -> float:
        return percentile(sorted(delay for _, delay in self.delays), fraction)

    @property
    def grows(self) -> bool:
        """Whether delays at the end are longer than in the second quarter by a part of the time between."""
        early = [delay for due, delay in self.delays if self.seconds / 4 <= due < self.seconds / 2]
        late = [delay for due, delay in self.delays if due >= self.seconds * 3 / 4]
        if not early or not late:
            return True
        return sum(late) / len(late) - sum(early) / len(early) > GROWTH * self.seconds / 2

    @property
    def is_followed(self) -> bool:
        return not (self.refused or self.failed or self.lost or self.grows) and self.quantile(0.99) < LATE

    @property
    def cpu_each(self) -> float:
        return sum(self.cpu.values()) / len(self.delays) if self.delays else float("nan")


class PingConnection(asyncio.Protocol):
    """Requests one after the other; `done` hears the status and whether there was a `Retry-After`."""

    def __init__(self, load: "IngestLoad", to: tuple[str, int]) -> None:
        self._load = load
        self.to = to
        self._transport: asyncio.Transport | None = None
        self._buffer = b""
        self.done: Callable[[int, bool], None] | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)

    def send(self, request: bytes, done: Callable[[int, bool], None]) -> None:
        self.done = done
        if self._transport is None or self._transport.is_closing():
            self._finish(0, False)
        else:
            self._transport.write(request)

    def data_received(self, data: bytes) -> None:
        buffer = self._buffer + data if self._buffer else data
        end = buffer.find(b"\r\n\r\n")
        if end < 0:
            self._buffer = buffer
            return
        head = buffer[:end].lower()
        at = head.find(b"\r\ncontent-length:")
        length = int(head[at + 17 :].split(b"\r\n", 1)[0]) if at >= 0 else 0
        if len(buffer) < end + 4 + length:
            self._buffer = buffer
            return
        self._buffer = b""
        self._finish(int(head.split(b" ", 2)[1]), b"\r\nretry-after:" in head)
        if b"\r\nconnection: close" in head and self._transport is not None:
            self._transport.close()
        else:
            self._load.give_back(self)

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        self._load.gone(self)
        self._finish(0, False)

    def _finish(self, status: int, retry_after: bool) -> None:
        done, self.done = self.done, None
        if done is not None:
            done(status, retry_after)

    def close(self) -> None:
        if self._transport is not None:
            self._transport.close()


class IngestLoad:
    """Use it with `async with`; then `subscribe` and `offer`."""

    def __init__(self, topics: int, seed: int) -> None:
        self.topics = topics
        self._rng = random.Random(seed)  # noqa: S311 - reproducible times
        self._server = Server(self._handle, ADDRESSES)
        self._documents: dict[str, bytes] = {}
        self._number = 0
        self._awaited: dict[int, Callable[[], None]] = {}
        self._place_of: dict[int, int] = {}
        self._newest: dict[int, int] = {}
        """The newest document that arrived, by the place of its topic."""
        self._confirmed: set[str] = set()
        self._free: dict[tuple[str, int], deque[PingConnection]] = {}
        self._open: set[PingConnection] = set()
        self._opened: dict[tuple[str, int], int] = {}
        """How many connections each hub was ever asked on."""

    async def __aenter__(self) -> Self:
        await self._server.__aenter__()
        return self

    async def __aexit__(self, *_: object) -> None:
        self.close_connections()
        await self._server.__aexit__()

    def close_connections(self) -> None:
        """Before another hub is asked."""
        for connection in list(self._open):
            connection.close()
        self._free.clear()

    def topic(self, world: str, number: int) -> str:
        return self._server.url(f"/t/{world}/{number}", 1 + number % ADDRESSES)

    def callback(self, world: str, number: int) -> str:
        return self._server.url(f"/c/{world}/{number}", 1 + number % ADDRESSES)

    def _handle(self, request: LoopbackRequest, reply: Reply) -> None:
        target = request.target
        if request.method == "POST":
            reply(OK)
            found = NUMBER.search(request.body, 0, 400)
            arrived = self._awaited.pop(int(found[1]), None) if found is not None else None
            if found is not None and arrived is not None:
                number = int(found[1])
                place = self._place_of.pop(number)
                self._newest[place] = max(number, self._newest.get(place, 0))
                arrived()
            return
        path, _, query = target.partition("?")
        if "hub.challenge=" in query:
            self._confirmed.add(path)
            reply(answer(200, query.partition("hub.challenge=")[2].partition("&")[0].encode()))
        else:
            body = self._documents.get(path) or document(0, 0)
            reply(answer(200, body, {"Content-Type": ATOM}))

    # Subscribing

    async def subscribe(self, hub: str, world: str, patience: float) -> None:
        """One subscriber for each topic. Raises `TimeoutError`."""
        started = time.monotonic()
        waiting = {f"/c/{world}/{number}": number for number in range(self.topics)}
        while waiting:
            if time.monotonic() - started > patience:
                raise TimeoutError(f"{len(waiting)} of {self.topics} callbacks were not asked to confirm")
            for number in list(waiting.values()):
                form = {
                    "hub.mode": "subscribe",
                    "hub.topic": self.topic(world, number),
                    "hub.callback": self.callback(world, number),
                }
                await self._send(hub, "/", urlencode(form).encode())
            for _ in range(60):
                await asyncio.sleep(0.05)
                waiting = {path: number for path, number in waiting.items() if path not in self._confirmed}
                if not waiting:
                    break

    async def arrives(self, hub: str, world: str, number: int, size: int, patience: float) -> float:
        """Publish once; seconds until it is there. Raises `TimeoutError`."""
        arrived: asyncio.Future[float] = asyncio.get_running_loop().create_future()
        began = time.perf_counter()

        def note() -> None:
            if not arrived.done():
                arrived.set_result(time.perf_counter() - began)

        self._publish(hub, world, number, size, False, note, lambda *_: None)
        async with asyncio.timeout(patience):
            return await arrived

    async def _send(self, hub: str, target: str, form: bytes) -> int:
        answered: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self._post(
            hub, target, form, "application/x-www-form-urlencoded", lambda status, _: answered.set_result(status)
        )
        return await answered

    # Offering

    async def offer(
        self,
        hub: str,
        world: str,
        rate: float,
        seconds: float,
        size: int,
        *,
        fat: bool = False,
        cpu: Callable[[], dict[str, float]] = dict,
    ) -> OfferedStep:
        """Ping topics in turn, at random times, so many a second; then wait for what is under way."""
        step = OfferedStep(rate, seconds)
        before = cpu()
        start = time.perf_counter() + 0.01
        now = start
        due = start
        place = self._rng.randrange(self.topics)
        while (due := due + self._rng.expovariate(rate)) < start + seconds:
            while (now := time.perf_counter()) < due:  # noqa: ASYNC110 - it waits for a time
                await asyncio.sleep(due - now)
            step.lag = max(step.lag, now - due)
            place = (place + 1) % self.topics
            self._publish_due(step, hub, world, place, size, fat, now, start)
        step.delivered_in_time = len(step.delays)
        await self._settle(step)
        after = cpu()
        step.cpu = {stage: after[stage] - before.get(stage, 0.0) for stage in after}
        waiting = {number for number in self._awaited if number >= self._newest.get(self._place_of[number], 0)}
        step.superseded = len(self._awaited) - len(waiting)
        step.turned_away &= waiting
        step.left = {number: self.topic(world, self._place_of[number]) for number in waiting - step.turned_away}
        self._awaited.clear()
        self._place_of.clear()
        return step

    def _publish_due(
        self, step: OfferedStep, hub: str, world: str, place: int, size: int, fat: bool, now: float, start: float
    ) -> None:
        step.offered += 1
        number = self._number + 1

        def arrived() -> None:
            step.delays.append((now - start, time.perf_counter() - now))

        def answered(status: int, retry_after: bool) -> None:
            if status in (202, 204):
                step.accepted += 1
                return
            step.turned_away.add(number)
            if status in (503, 429) and retry_after:
                step.refused += 1
            else:
                step.failed += 1

        self._publish(hub, world, place, size, fat, arrived, answered)

    async def _settle(self, step: OfferedStep) -> None:
        """Until all is there, or nothing has come for a while."""
        seen, quiet = -1, 0.0
        while quiet < GRACE:
            answered = step.accepted + step.refused + step.failed
            if answered == step.offered and len(step.delays) >= step.accepted:
                return
            quiet = quiet + 0.02 if len(step.delays) == seen else 0.0
            seen = len(step.delays)
            await asyncio.sleep(0.02)

    def _publish(
        self,
        hub: str,
        world: str,
        place: int,
        size: int,
        fat: bool,
        arrived: Callable[[], None],
        answered: Callable[[int, bool], None],
    ) -> None:
        self._number += 1
        body = document(self._number, size)
        self._awaited[self._number] = arrived
        self._place_of[self._number] = place
        topic = self.topic(world, place)
        if fat:
            self._post(
                hub, f"/?hub.mode=publish&hub.url={quote(topic, safe='')}", body, ATOM, answered, PUBLISHER_TOKEN
            )
            return
        self._documents[f"/t/{world}/{place}"] = body
        form = f"hub.mode=publish&hub.url={quote(topic, safe='')}".encode()
        self._post(hub, "/", form, "application/x-www-form-urlencoded", answered)

    def _post(
        self,
        hub: str,
        target: str,
        body: bytes,
        content_type: str,
        done: Callable[[int, bool], None],
        token: str | None = None,
    ) -> None:
        parts = urlsplit(hub)
        to = (parts.hostname or "", parts.port or 80)
        said = f"Authorization: Bearer {token}\r\n" if token else ""
        head = (
            f"POST {target} HTTP/1.1\r\nHost: {to[0]}:{to[1]}\r\nContent-Type: {content_type}\r\n{said}"
            f"Content-Length: {len(body)}\r\n\r\n"
        )
        request = head.encode() + body
        free = self._free.setdefault(to, deque())
        opened = self._opened.get(to, 0)
        if free and opened >= SENDERS:
            free.popleft().send(request, done)
        elif len(self._open) >= MOST_CONNECTIONS:
            done(0, False)
        else:
            connection = PingConnection(self, to)
            self._open.add(connection)
            self._opened[to] = opened + 1
            task = asyncio.ensure_future(self._connect(connection, f"127.0.1.{1 + opened % SENDERS}", request, done))
            task.add_done_callback(lambda task: task.exception())

    async def _connect(
        self, connection: PingConnection, sender: str, request: bytes, done: Callable[[int, bool], None]
    ) -> None:
        client = socket.socket()
        client.setblocking(False)
        client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        client.bind((sender, 0))
        loop = asyncio.get_running_loop()
        try:
            await loop.sock_connect(client, connection.to)
            await loop.create_connection(lambda: connection, sock=client)
        except OSError:
            self._open.discard(connection)
            client.close()
            done(0, False)
            return
        connection.send(request, done)

    def give_back(self, connection: PingConnection) -> None:
        self._free.setdefault(connection.to, deque()).append(connection)

    def gone(self, connection: PingConnection) -> None:
        self._open.discard(connection)
        free = self._free.get(connection.to)
        if free is not None and connection in free:
            free.remove(connection)


def worlds(names: Sequence[str]) -> dict[str, str]:
    """Each system's topics have a path of their own."""
    return {name: re.sub(r"[^a-z0-9]", "-", name) for name in names}
