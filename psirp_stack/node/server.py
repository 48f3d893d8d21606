"""Where applications attach: a Unix socket at which the node listens.

Who may attach is a matter of the socket's file: it is made for its owner and group only. An application that sends
nonsense, or does not read what it is sent, is cut off; what it had is withdrawn.
"""

import asyncio
import contextlib
import os
import socket
import stat
from pathlib import Path
from typing import Protocol, cast

from psirp_stack.control.codes import Code
from psirp_stack.node.applications import Application
from psirp_stack.node.attachment import (
    PROTOCOL_VERSION,
    Asked,
    Attach,
    AttachmentError,
    Consumed,
    Done,
    Told,
    Unframer,
    framed,
    read_request,
)
from storage.private import FILE_MODE

MAX_UNSENT_BYTES = 64 * 1024 * 1024
"""What may wait for an application that does not read."""
BACKLOG = 64


class SocketInUseError(OSError):
    """Another node listens at this socket."""


class Attachable(Protocol):
    """What the server needs of a node."""

    def attach(self, name: str, tell: "Teller") -> Application | None: ...

    def detach(self, application: Application) -> None: ...

    def ask(self, application: Application, request: Asked | Consumed) -> None: ...


class Teller(Protocol):
    def __call__(self, told: Told, /) -> None: ...


class _Attachment(asyncio.Protocol):
    """One application's connection."""

    def __init__(self, node: Attachable, open_ones: set["_Attachment"]) -> None:
        self._node = node
        self._open_ones = open_ones
        self._unframer = Unframer()
        self._transport: asyncio.Transport | None = None
        self._application: Application | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)  # uvloop's are no subclass
        self._open_ones.add(self)

    def data_received(self, data: bytes) -> None:
        try:
            for body in self._unframer.feed(data):
                request = read_request(body)
                if isinstance(request, Attach):
                    self._introduced(request)
                elif self._application is None:
                    raise AttachmentError("the first message must say who attaches")
                else:
                    self._node.ask(self._application, request)
        except AttachmentError:
            self.cut()

    def connection_lost(self, exc: Exception | None) -> None:
        self._open_ones.discard(self)
        self._transport = None
        if self._application is not None:
            self._node.detach(self._application)
            self._application = None

    def tell(self, told: Told) -> None:
        transport = self._transport
        if transport is None or transport.is_closing():
            return
        transport.write(framed(told))
        if transport.get_write_buffer_size() > MAX_UNSENT_BYTES:
            self.cut()

    def cut(self) -> None:
        if self._transport is not None:
            self._transport.abort()

    def _introduced(self, attach: Attach) -> None:
        if self._application is not None:
            raise AttachmentError("attached already")
        if attach.version != PROTOCOL_VERSION:
            self.tell(Done(0, Code.UNKNOWN_REQUEST, f"this node speaks version {PROTOCOL_VERSION}"))
            raise AttachmentError("another version")
        self._application = self._node.attach(attach.application, self.tell)
        if self._application is None:
            self.tell(Done(0, Code.LIMIT_REACHED, "too many applications are attached"))
            raise AttachmentError("too many applications")


class AttachmentServer:
    """Listens at a path until it is closed."""

    def __init__(self, node: Attachable, path: Path) -> None:
        self.path = path
        self._node = node
        self._server: asyncio.Server | None = None
        self._open_ones: set[_Attachment] = set()

    async def start(self) -> None:
        _remove_stale(self.path)
        self.path.parent.mkdir(parents=True, exist_ok=True)
        loop = asyncio.get_running_loop()
        # Nobody may connect between bind and chmod, so the file is born with these rights.
        before = os.umask(0o777 & ~FILE_MODE)
        try:
            self._server = await loop.create_unix_server(
                lambda: _Attachment(self._node, self._open_ones), path=str(self.path), backlog=BACKLOG
            )
        finally:
            os.umask(before)

    async def close(self) -> None:
        if self._server is not None:
            self._server.close()
            for attachment in list(self._open_ones):
                attachment.cut()
            await self._server.wait_closed()
            self._server = None
            with contextlib.suppress(FileNotFoundError):
                self.path.unlink()


def _remove_stale(path: Path) -> None:
    """Take away the socket of a node that was killed; refuse if somebody answers there, or if it is no socket."""
    if not path.exists():
        return
    if not stat.S_ISSOCK(path.stat().st_mode):
        raise SocketInUseError(f"{path} is there and is not a socket: choose another path, or remove it")
    with socket.socket(socket.AF_UNIX) as probe:
        try:
            probe.connect(str(path))
        except ConnectionRefusedError:
            path.unlink()
            return
    raise SocketInUseError(f"another node listens at {path}: stop it, or give this node another socket")
