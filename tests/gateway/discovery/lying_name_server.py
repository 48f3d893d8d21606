"""A name server on loopback that says what the test wants, over UDP and TCP: for what no honest one would say."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

Answerer = Callable[[bytes], bytes | None]
"""From the bytes of a question to the bytes of an answer. Empty over TCP: the connection is closed; None: silence."""


class _Datagrams(asyncio.DatagramProtocol):
    def __init__(self, answer: Answerer) -> None:
        self._answer = answer
        self._transport: asyncio.DatagramTransport | None = None

    def connection_made(self, transport: asyncio.DatagramTransport) -> None:  # type: ignore[override]
        self._transport = transport

    def datagram_received(self, data: bytes, addr: tuple[str, int]) -> None:
        reply = self._answer(data)
        if reply is not None and self._transport is not None:
            self._transport.sendto(reply, addr)


@asynccontextmanager
async def answering(datagram: Answerer, stream: Answerer | None = None) -> AsyncIterator[int]:
    """Yields the port. Every connection is served to its end before the block is left."""
    serving: set[asyncio.Task[None]] = set()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        length = int.from_bytes(await reader.readexactly(2), "big")
        reply = (stream or datagram)(await reader.readexactly(length))
        if reply is None:
            await reader.read()  # until the other side gives up
        elif reply:
            writer.write(len(reply).to_bytes(2, "big") + reply)
            await writer.drain()
        writer.close()
        await writer.wait_closed()

    def on_connection(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        serving.add(asyncio.get_running_loop().create_task(serve(reader, writer)))

    streams = await asyncio.start_server(on_connection, "127.0.0.1", 0)
    port: int = streams.sockets[0].getsockname()[1]
    loop = asyncio.get_running_loop()
    transport, _ = await loop.create_datagram_endpoint(lambda: _Datagrams(datagram), local_addr=("127.0.0.1", port))
    try:
        yield port
    finally:
        transport.close()
        streams.close()
        await streams.wait_closed()
        await asyncio.gather(*serving, return_exceptions=True)
