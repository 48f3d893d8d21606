"""How an application reaches its node: over the node's socket, or directly, when both are in one process."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Protocol

from psirp_stack.node.applications import Application
from psirp_stack.node.attachment import Attach, Request, Told, Unframer, framed, read_told
from psirp_stack.node.server import Attachable

READ_BYTES = 1 << 18


class NotAttachedError(ConnectionError):
    """The client was closed, or there is no node at its socket."""


class NodeConnection(Protocol):
    """One attachment, until it is closed or the node goes."""

    def send(self, request: Request) -> None:
        """The first must say who attaches."""

    async def drain(self) -> None:
        """Wait until what was sent has room."""

    def told(self) -> AsyncIterator[Told]:
        """All that the node says; ends with the attachment. Raises `OSError` and `AttachmentError`."""

    def close(self) -> None: ...


Connect = Callable[[], Awaitable[NodeConnection]]
"""Makes a new attachment; raises `OSError`."""


class SocketConnection:
    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    @classmethod
    async def open(cls, path: Path) -> "SocketConnection":
        return cls(*await asyncio.open_unix_connection(str(path)))

    def send(self, request: Request) -> None:
        self._writer.write(framed(request))

    async def drain(self) -> None:
        with contextlib.suppress(ConnectionError):
            await self._writer.drain()

    async def told(self) -> AsyncIterator[Told]:
        unframer = Unframer()
        while data := await self._reader.read(READ_BYTES):
            for body in unframer.feed(data):
                yield read_told(body)

    def close(self) -> None:
        self._writer.close()


class DirectConnection:
    """To a node of this process. What it says is handed on in a turn of its own, never while the node is at work."""

    def __init__(self, node: Attachable) -> None:
        self._node = node
        self._application: Application | None = None
        self._said: asyncio.Queue[Told] = asyncio.Queue()

    def send(self, request: Request) -> None:
        if isinstance(request, Attach):
            self._application = self._node.attach(request.application, self._said.put_nowait)
            if self._application is None:
                raise NotAttachedError("too many applications are attached")
        elif self._application is not None:
            self._node.ask(self._application, request)

    async def drain(self) -> None:
        """The node says itself when it has room."""

    async def told(self) -> AsyncIterator[Told]:
        while True:
            yield await self._said.get()

    def close(self) -> None:
        application, self._application = self._application, None
        if application is not None:
            self._node.detach(application)
