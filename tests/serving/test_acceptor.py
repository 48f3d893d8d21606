import asyncio
import errno
import socket
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import pytest
from aiohttp import web

from serving import acceptor
from serving.acceptor import ConnectionRoom
from serving.events import LimitReached
from serving.port import Port, PortConfig
from serving.tls import TlsFiles
from tests.serving.test_outbound_client import certificate
from tests.waiting import until

PATIENCE = 5.0
REQUEST = b"GET / HTTP/1.1\r\nHost: h\r\n\r\n"
Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]


@asynccontextmanager
async def serving(config: PortConfig, told: list[object]) -> AsyncIterator[Port]:
    async def hello(_: web.Request) -> web.Response:
        return web.Response(text="hello")

    app = web.Application()
    app.router.add_get("/", hello)
    port = Port(config, told.append)
    await port.serve(app)
    try:
        yield port
    finally:
        await port.stop()


@pytest.fixture
def strangers_here(monkeypatch: pytest.MonkeyPatch) -> None:
    """Programs of this machine count like strangers, each address of loopback as one network."""
    monkeypatch.setattr(ConnectionRoom, "network_of", lambda _, address: address)


async def connect(port: Port, source: str = "127.0.0.1") -> Streams:
    return await asyncio.open_connection(*port.address, local_addr=(source, 0))


async def is_served(streams: Streams) -> bool:
    """Closes them, too."""
    reader, writer = streams
    with suppress(ConnectionError):
        writer.write(REQUEST)
        async with asyncio.timeout(PATIENCE):
            status = await reader.readline()
        writer.close()
        return status == b"HTTP/1.1 200 OK\r\n"
    return False


@pytest.mark.usefixtures("strangers_here")
async def test_one_network_has_no_more_than_its_share_of_connections() -> None:
    told: list[object] = []
    async with serving(PortConfig(connections_per_client=3), told) as port:
        held = [await connect(port) for _ in range(3)]
        assert not await is_served(await connect(port))
        assert told == [LimitReached("connections_per_client")]
        assert port.cut == 1
        assert await is_served(await connect(port, "127.0.0.2"))
        assert await is_served(held[0])
        await until(lambda: port._room.total == 2, PATIENCE)
        assert await is_served(await connect(port))  # a place that was given back is free again
        for _, writer in held[1:]:
            writer.close()
        await until(lambda: port._room.total == 0, PATIENCE)


@pytest.mark.usefixtures("strangers_here")
async def test_handshakes_that_nobody_ends_count_too(tmp_path: Path) -> None:
    told: list[object] = []
    files = certificate(tmp_path)
    files.chmod(0o600)
    config = PortConfig(connections_per_client=2, tls=TlsFiles(files, files), header_timeout=30.0)
    async with serving(config, told) as port:
        silent = [await connect(port) for _ in range(2)]
        await until(lambda: port._room.total == 2, PATIENCE)
        reader, writer = await connect(port)
        assert await asyncio.wait_for(reader.read(), PATIENCE) == b""
        assert told == [LimitReached("connections_per_client")]
        trusting = ssl.create_default_context(cafile=str(files))
        secured = await asyncio.open_connection(
            *port.address, ssl=trusting, server_hostname="127.0.0.1", local_addr=("127.0.0.2", 0)
        )
        assert await is_served(secured)
        silent[0][1].write(b"this is no TLS\r\n" * 10)
        silent[1][1].close()
        await until(lambda: port._room.total == 0, PATIENCE)
        for one in (silent[0][1], writer):
            one.close()


async def test_programs_of_this_machine_have_no_bound_of_their_own() -> None:
    async with serving(PortConfig(connections_per_client=1), []) as port:
        assert [await is_served(await connect(port)) for _ in range(3)] == [True] * 3


def test_what_a_connection_counts_against() -> None:
    room = ConnectionRoom(10, 2, {"203.0.113.9"})
    assert room.network_of("203.0.113.8") == room.network_of("203.0.113.200") == "203.0.113.0/24"
    assert room.network_of("203.0.113.9") is None
    assert room.network_of("::1") is None
    assert room.network_of("2001:db8::1") == "2001:db8::/64"
    assert room.network_of("fe80::1%eth0") is not None
    for _ in range(2):
        assert room.bound_reached("one") is None
        room.enter("one")
    assert room.bound_reached("one") == "connections_per_client"
    assert room.bound_reached("other") is None
    for _ in range(8):
        room.enter(None)
    assert room.bound_reached("other") == room.bound_reached(None) == "max_connections"
    room.leave("one")
    assert room.bound_reached("one") is None


async def test_a_process_without_descriptors_rests_and_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(acceptor, "PAUSE", 0.01)
    told: list[object] = []
    async with serving(PortConfig(), told) as port:
        refusals = iter([errno.EMFILE, errno.EMFILE])
        accept = socket.socket.accept

        def exhausted(self: socket.socket) -> tuple[socket.socket, object]:
            if (number := next(refusals, None)) is not None:
                raise OSError(number, "none left")
            return accept(self)

        monkeypatch.setattr(socket.socket, "accept", exhausted)
        streams = await connect(port)
        assert await is_served(streams)
        assert told == [LimitReached("open_files")] * 2
