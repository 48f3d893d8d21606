"""Server-Sent Events: how one is written, and where a reader that comes back wants to go on."""

import asyncio

from aiohttp import web

MAX_ID_DIGITS = 18
HEADERS = {"Content-Type": "text/event-stream", "Cache-Control": "no-store", "X-Accel-Buffering": "no"}


class LastEventIdError(ValueError):
    """What stands where the id of an event of this stream is expected."""


def encoded(data: bytes, event_id: bytes = b"", kind: bytes = b"") -> bytes:
    """One event; `data` is one line, as JSON is. A reader keeps the id and sends it when it comes back."""
    head = b"id: %b\n" % event_id if event_id else b""
    if kind:
        head += b"event: %b\n" % kind
    return b"%bdata: %b\n\n" % (head, data)


def comment(text: str) -> bytes:
    """What keeps a connection open and tells a reader nothing."""
    return f": {text}\n\n".encode()


STILL_HERE = comment("still here")


def last_event_id(request: web.Request, parameter: str = "since") -> str | None:
    """The header that browsers send by themselves, or a parameter of the query for everybody else."""
    return request.headers.get("Last-Event-ID") or request.query.get(parameter) or None


def number_of(event_id: str) -> int:
    """For streams whose ids are numbers. Raises `LastEventIdError`."""
    if not (event_id.isascii() and event_id.isdigit() and len(event_id) <= MAX_ID_DIGITS):
        raise LastEventIdError("Last-Event-ID must be the id of an event of this stream")
    return int(event_id)


class EventStream:
    """The answer to one reader. What is sent to a reader that takes nothing for too long raises `TimeoutError`."""

    def __init__(self, request: web.Request, write_timeout: float, headers: dict[str, str] | None = None) -> None:
        self._request = request
        self._write_timeout = write_timeout
        self.response = web.StreamResponse(headers=HEADERS | (headers or {}))

    async def begin(self) -> None:
        await self.response.prepare(self._request)

    async def send(self, data: bytes) -> None:
        async with asyncio.timeout(self._write_timeout):
            await self.response.write(data)

    def abort(self) -> None:
        """After the first byte nothing else can be said: the connection ends, and the reader comes back."""
        if self._request.transport is not None:
            self._request.transport.abort()
