"""A topic's publications as Server-Sent Events, for readers without a public address.

The event id is the publication's place in the log, so a reader that comes back with `Last-Event-ID` misses
nothing the log still holds. A slow reader holds nothing in memory: it is simply behind in the log.
"""

import asyncio
import base64
import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from aiohttp import hdrs, web

from push_hub.model import HubPublication
from push_hub.ports import OverloadedError
from push_hub.protocol.requests import RequestError
from push_hub.protocol.urls import UrlError, normalised
from serving import sse
from serving.gate import Gate, TooManyError
from serving.sse import EventStream, LastEventIdError

HEADERS = sse.HEADERS | {"Access-Control-Allow-Origin": "*"}


@dataclass(frozen=True, slots=True)
class HubStreamConfig:
    max_streams: int = 2_000
    max_streams_per_client: int = 50
    heartbeat: float = 20.0
    page: int = 20
    busy_retry_after: float = 30.0
    write_timeout: float = 30.0
    """A reader that takes nothing for so long is cut off; it may come back with `Last-Event-ID`."""


class StreamSource(Protocol):
    def since(self, topic: str, after_id: int, limit: int = 100) -> Sequence[HubPublication]: ...

    def latest(self, topic: str, limit: int = 1) -> Sequence[HubPublication]: ...


class Streams:
    def __init__(self, config: HubStreamConfig, source: StreamSource, gate: Gate) -> None:
        self._config = config
        self._source = source
        self._gate = gate
        self._readers: dict[str, set[asyncio.Event]] = {}
        self._per_client: dict[str, int] = {}
        self._open = 0
        self._closing = False

    def add_routes(self, app: web.Application) -> None:
        app.router.add_get("/stream", self.stream)

    def published(self, topic: str) -> None:
        for reader in self._readers.get(topic, ()):
            reader.set()

    def close(self) -> None:
        self._closing = True
        for readers in self._readers.values():
            for reader in readers:
                reader.set()

    async def stream(self, request: web.Request) -> web.StreamResponse:
        topic = _topic(request)
        after = _last_event_id(request)
        client = self._gate.client_key(request)
        self._gate.client(request)
        if request.method == hdrs.METH_HEAD:
            return web.Response(headers=HEADERS)
        if self._open >= self._config.max_streams:
            raise OverloadedError(self._config.busy_retry_after, "too many streams are open")
        if self._per_client.get(client, 0) >= self._config.max_streams_per_client:
            raise TooManyError(self._config.busy_retry_after, "you have too many streams open")
        if after is None:
            newest = self._source.latest(topic)
            after = newest[0].id if newest else 0
        wake = asyncio.Event()
        self._open += 1
        self._per_client[client] = self._per_client.get(client, 0) + 1
        self._readers.setdefault(topic, set()).add(wake)
        try:
            return await self._write(request, topic, after, wake)
        finally:
            self._leave(topic, client, wake)

    async def _write(self, request: web.Request, topic: str, after: int, wake: asyncio.Event) -> web.StreamResponse:
        stream = EventStream(request, self._config.write_timeout, HEADERS)
        await stream.begin()
        try:
            await stream.send(sse.comment(f"following {topic}"))
            await self._follow(stream, topic, after, wake)
        except TimeoutError:
            stream.abort()
        return stream.response

    async def _follow(self, stream: EventStream, topic: str, after: int, wake: asyncio.Event) -> None:
        while not self._closing:
            wake.clear()
            page = self._source.since(topic, after, self._config.page)
            for publication in page:
                await stream.send(event_of(publication))
                after = publication.id
            if page:
                continue
            try:
                async with asyncio.timeout(self._config.heartbeat):
                    await wake.wait()
            except TimeoutError:
                await stream.send(sse.STILL_HERE)

    def _leave(self, topic: str, client: str, wake: asyncio.Event) -> None:
        self._open -= 1
        left = self._per_client[client] - 1
        if left:
            self._per_client[client] = left
        else:
            del self._per_client[client]
        readers = self._readers[topic]
        readers.discard(wake)
        if not readers:
            del self._readers[topic]


def event_of(publication: HubPublication) -> bytes:
    """One event: a JSON object on one line, the body as text where it is text and base64 where it is not."""
    document: dict[str, str | float] = {
        "topic": publication.topic,
        "self": publication.self_url,
        "type": publication.content.content_type,
        "at": publication.accepted_at,
    }
    try:
        document["text"] = publication.content.body.decode("utf-8")
    except UnicodeDecodeError:
        document["base64"] = base64.b64encode(publication.content.body).decode("ascii")
    return sse.encoded(json.dumps(document).encode(), b"%d" % publication.id, b"publication")


def _topic(request: web.Request) -> str:
    given = request.query.getall("topic", [])
    if len(given) != 1:
        raise RequestError("name one topic: /stream?topic=URL")
    try:
        return normalised(given[0])
    except UrlError as error:
        raise RequestError(f"topic {error}") from None


def _last_event_id(request: web.Request) -> int | None:
    given = sse.last_event_id(request, "last_event_id")
    try:
        return None if given is None else sse.number_of(given)
    except LastEventIdError as error:
        raise RequestError(str(error)) from None
