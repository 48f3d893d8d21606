"""Just enough HTTP/1.1 for the other side of a hub under test: a server and a client for loopback.

Written by hand because the driver shares two cores with the hub it loads: requests with a length, one after the
other on a connection, nothing else. Not for the outside.
"""

import asyncio
import socket
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Self, cast
from urllib.parse import urlsplit

END = b"\r\n\r\n"
LENGTH = b"\r\ncontent-length:"
HEAD_LIMIT = 64 * 1024
ANSWER_LIMIT = 1 << 20


@dataclass(frozen=True, slots=True)
class LoopbackRequest:
    method: str
    target: str
    head: bytes
    body: bytes

    def header(self, name: str) -> str | None:
        wanted = name.lower().encode()
        for line in self.head.split(b"\r\n")[1:]:
            key, _, value = line.partition(b":")
            if key.lower() == wanted:
                return value.strip().decode("latin-1")
        return None


Reply = Callable[[bytes], None]
"""Sends an answer. May be called later; does nothing when the other side has gone."""
Handler = Callable[[LoopbackRequest, Reply], None]


def answer(status: int, body: bytes = b"", headers: Mapping[str, str] | None = None) -> bytes:
    lines = "".join(f"{name}: {value}\r\n" for name, value in (headers or {}).items())
    return f"HTTP/1.1 {status} -\r\nContent-Length: {len(body)}\r\n{lines}\r\n".encode("latin-1") + body


class Connection(asyncio.Protocol):
    """One connection of somebody who asks."""

    def __init__(self, handler: Handler) -> None:
        self._handler = handler
        self._buffer = b""
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)  # uvloop's is one in all but name

    def data_received(self, data: bytes) -> None:
        buffer = self._buffer + data if self._buffer else data
        while (end := buffer.find(END)) >= 0:
            head = buffer[:end]
            at = head.lower().find(LENGTH)
            length = int(head[at + len(LENGTH) :].split(b"\r\n", 1)[0]) if at >= 0 else 0
            whole = end + len(END) + length
            if len(buffer) < whole:
                break
            method, target, _ = head.split(b"\r\n", 1)[0].decode("latin-1").split(" ", 2)
            self._handler(LoopbackRequest(method, target, head, buffer[end + len(END) : whole]), self._reply)
            buffer = buffer[whole:]
        self._buffer = buffer

    def _reply(self, data: bytes) -> None:
        if self._transport is not None and not self._transport.is_closing():
            self._transport.write(data)


class Server:
    """Listens at one free port on 127.0.0.1 ... 127.0.0.`addresses`: each address is a host of its own to a hub."""

    def __init__(self, handler: Handler, addresses: int = 1) -> None:
        self._handler = handler
        self._addresses = addresses
        self._servers: list[asyncio.Server] = []
        self.port = 0

    def url(self, path: str, address: int = 1) -> str:
        return f"http://127.0.0.{address}:{self.port}{path}"

    async def __aenter__(self) -> Self:
        loop = asyncio.get_running_loop()
        for number in range(1, self._addresses + 1):
            listener = socket.socket()
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind((f"127.0.0.{number}", self.port))
            self.port = listener.getsockname()[1]
            self._servers.append(
                await loop.create_server(lambda: Connection(self._handler), sock=listener, backlog=1024)
            )
        return self

    async def __aexit__(self, *_: object) -> None:
        for server in self._servers:
            server.close()


class LoopbackClient:
    """One kept-alive connection to one server. Raises `ConnectionError` when the other side is gone."""

    def __init__(self, url: str, from_address: str | None = None) -> None:
        parts = urlsplit(url)
        self._host = parts.hostname or ""
        self._port = parts.port or 80
        self._from = (from_address, 0) if from_address else None
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None
        self.head = b""
        """Of the last answer."""

    async def request(
        self, method: str, target: str, body: bytes = b"", headers: Mapping[str, str] | None = None
    ) -> tuple[int, bytes]:
        lines = "".join(f"{name}: {value}\r\n" for name, value in (headers or {}).items())
        head = (
            f"{method} {target} HTTP/1.1\r\nHost: {self._host}:{self._port}\r\nContent-Length: {len(body)}\r\n{lines}"
        )
        try:
            if self._streams is None:
                self._streams = await asyncio.open_connection(self._host, self._port, local_addr=self._from)
            reader, writer = self._streams
            writer.write(head.encode("latin-1") + b"\r\n" + body)
            return await self._answer(reader)
        except (OSError, EOFError, asyncio.LimitOverrunError, ValueError) as error:
            self.close()
            raise ConnectionError(f"no answer: {error or type(error).__name__}") from error
        except asyncio.CancelledError:
            self.close()
            raise

    async def post_form(self, target: str, form: str) -> tuple[int, bytes]:
        return await self.request("POST", target, form.encode(), {"Content-Type": "application/x-www-form-urlencoded"})

    def close(self) -> None:
        if self._streams is not None:
            self._streams[1].close()
            self._streams = None

    async def _answer(self, reader: asyncio.StreamReader) -> tuple[int, bytes]:
        self.head = await reader.readuntil(END)
        head = self.head.lower()
        if len(head) > HEAD_LIMIT:
            raise ValueError("the head of the answer is too long")
        status = int(head.split(b" ", 2)[1])
        at = head.find(LENGTH)
        length = int(head[at + len(LENGTH) :].split(b"\r\n", 1)[0]) if at >= 0 else 0
        if length > ANSWER_LIMIT:
            raise ValueError("the answer is too long")
        return status, await reader.readexactly(length) if length else b""
