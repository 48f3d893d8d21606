"""Everybody who looks at the dashboard gets the same snapshot, once a second.

It is encoded once, as one chunk of an event stream, and the same bytes are put into every connection. A viewer that
has not taken the last snapshot yet is passed over: the next one says everything that this one says.
"""

import asyncio
import contextlib

from aiohttp import web

from gateway.admin.snapshot import Snapshots
from serving import sse
from serving.answers import HttpError

MAX_UNTAKEN = 0


class Viewers:
    def __init__(self, snapshots: Snapshots, most: int, every: float) -> None:
        self._snapshots = snapshots
        self._most = most
        self._every = every
        self._transports: set[asyncio.Transport] = set()
        self._task: asyncio.Task[None] | None = None
        self._closing = asyncio.Event()
        self.passed_over = 0
        self.turned_away = 0
        snapshots.viewers = lambda: len(self)

    def __len__(self) -> int:
        return len(self._transports)

    async def serve(self, request: web.Request) -> web.StreamResponse:
        closing = self._closing  # of those who were let in until now
        transport = request.transport
        if request.version < (1, 1) or transport is None:
            raise HttpError(400, "the stream needs HTTP/1.1")
        if len(self) >= self._most:
            self.turned_away += 1
            raise HttpError(503, f"{self._most} are looking already", 5.0)
        response = web.StreamResponse(headers=sse.HEADERS)
        response.enable_chunked_encoding()
        await response.prepare(request)
        await response.write(_event(await self._snapshots.latest()))
        self._transports.add(transport)
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._send())
        try:
            await closing.wait()
        finally:
            self._transports.discard(transport)
        return response

    async def _send(self) -> None:
        while self._transports:
            await asyncio.sleep(self._every)
            event = _event(await self._snapshots.latest())
            chunk = b"%x\r\n%b\r\n" % (len(event), event)
            for transport in list(self._transports):
                if transport.is_closing():
                    self._transports.discard(transport)
                elif transport.get_write_buffer_size() > MAX_UNTAKEN:
                    self.passed_over += 1
                else:
                    # Past aiohttp's writer, which has sent the headers: it would make a coroutine and copies for each.
                    transport.write(chunk)

    def close(self) -> None:
        self._closing.set()

    def turn_out(self) -> None:
        """End all streams; who may still look comes back by itself."""
        self._closing.set()
        self._closing = asyncio.Event()

    async def stop(self) -> None:
        self.close()
        if self._task is not None:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task


def _event(snapshot: bytes) -> bytes:
    return sse.encoded(snapshot)
