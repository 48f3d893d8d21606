"""The callbacks of the fan-out benchmark: a process of its own that takes posts and notes when each arrived.

    python -m perf.bench.fanout_sink ADDRESSES

It listens on 127.0.0.1 ... 127.0.0.ADDRESSES at one free port and prints that port. A path that begins with `/slow`
is answered after `SLOW_SECONDS`, or when `GET /release` says that nobody needs to wait any longer. `GET /report`
answers with the arrival times (monotonic clock, as doubles) of all other posts since the last report, and forgets them.
"""

import asyncio
import os
import socket
import sys
import time
from array import array
from typing import cast

import uvloop

SLOW_SECONDS = 5.0
ANSWER = b"HTTP/1.1 204 No Content\r\n\r\n"
LENGTH = b"Content-Length: "


class Notes:
    """What all connections share: when posts arrived, and whose answer is held back."""

    def __init__(self) -> None:
        self.arrivals = array("d")
        self.held_back: dict[SinkProtocol, asyncio.TimerHandle] = {}


class SinkProtocol(asyncio.Protocol):
    """As little HTTP as a benchmark needs: requests with a length, one after the other."""

    def __init__(self, notes: Notes) -> None:
        self._notes = notes
        self._arrivals = notes.arrivals
        self._buffer = b""
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)  # uvloop's is one in all but name

    def data_received(self, data: bytes) -> None:
        buffer = self._buffer + data if self._buffer else data
        while (end := buffer.find(b"\r\n\r\n")) >= 0:
            at = buffer.find(LENGTH, 0, end)
            length = int(buffer[at + len(LENGTH) : buffer.find(b"\r\n", at)]) if at >= 0 else 0
            whole = end + 4 + length
            if len(buffer) < whole:
                break
            self._answer(buffer)
            buffer = buffer[whole:]
        self._buffer = buffer

    def _answer(self, request: bytes) -> None:
        if self._transport is None:
            return
        if request.startswith(b"POST /slow"):
            self._notes.held_back[self] = asyncio.get_running_loop().call_later(SLOW_SECONDS, self._late_answer)
        elif request.startswith(b"POST"):
            self._arrivals.append(time.monotonic())
            self._transport.write(ANSWER)
        else:
            body = b""
            if request.startswith(b"GET /release"):
                for sink in list(self._notes.held_back):
                    sink._late_answer()
            else:
                body = self._arrivals.tobytes()
                del self._arrivals[:]
            self._transport.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(body) + body)

    def _late_answer(self) -> None:
        self._notes.held_back.pop(self).cancel()
        if self._transport is not None and not self._transport.is_closing():
            self._transport.write(ANSWER)


async def serve(addresses: int) -> None:
    loop = asyncio.get_running_loop()
    notes = Notes()
    port = 0
    for number in range(1, addresses + 1):
        listener = socket.socket()
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((f"127.0.0.{number}", port))
        port = listener.getsockname()[1]
        await loop.create_server(lambda: SinkProtocol(notes), sock=listener, backlog=4096)
    os.write(sys.stdout.fileno(), f"{port}\n".encode())
    # The parent's end of this pipe closes when it ends, however it ends.
    await loop.run_in_executor(None, sys.stdin.read)


if __name__ == "__main__":
    uvloop.run(serve(int(sys.argv[1])))
