"""Takes connections off a listening socket: a bounded number in all, and of each network no more than its share.

A connection counts from the moment the kernel hands it over until its socket is closed, so also while TLS is being
agreed on: whoever begins handshakes and ends none has no more than others. What is refused is closed at once and costs
neither a protocol nor a task.
"""

import asyncio
import errno
import socket
import ssl
from collections import Counter
from collections.abc import Callable, Collection
from contextlib import suppress
from ipaddress import ip_address
from typing import Any

from serving.events import LimitReached, Observer
from serving.fairness import prefix_of
from serving.proxies import (
    MAX_LINE,
    SIGNATURE,
    ProxyProtocolError,
    address_of_block,
    address_of_line,
    block_length,
    is_trusted,
)

ACCEPTS_AT_ONCE = 64
PAUSE = 0.5
"""Seconds without accepting when the process or the machine has no more descriptors or memory."""
_NO_ROOM = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM})


class ConnectionRoom:
    """Who holds how many connections.

    Proxies that are trusted speak for many, and this machine's own programs are no strangers: only all connections
    together are bounded for them.
    """

    def __init__(self, most: int, most_of_a_network: int, proxies: Collection[str] = ()) -> None:
        self.proxies = proxies
        self._most = most
        self._most_of_a_network = most_of_a_network
        self._held: Counter[str] = Counter()
        self.total = 0
        self.refused = 0

    def bound_reached(self, network: str | None) -> str | None:
        """The name of the bound that has no room for one more."""
        if self.total >= self._most:
            return "max_connections"
        if network is not None and self._held[network] >= self._most_of_a_network:
            return "connections_per_client"
        return None

    def enter(self, network: str | None) -> None:
        self.total += 1
        if network is not None:
            self._held[network] += 1

    def leave(self, network: str | None) -> None:
        self.total -= 1
        if network is not None:
            self._held[network] -= 1
            if not self._held[network]:
                del self._held[network]

    def network_of(self, address: str) -> str | None:
        """What a connection from there counts against beside the sum of all."""
        if is_trusted(address, self.proxies) or ip_address(address.partition("%")[0]).is_loopback:
            return None
        return prefix_of(address)


class _CountedSocket(socket.socket):
    """Says once when it is closed, or given up to a loop that closes the descriptor by itself."""

    when_gone: Callable[[], None] | None = None

    def close(self) -> None:
        super().close()
        self._gone()

    def detach(self) -> int:
        descriptor = super().detach()
        self._gone()
        return descriptor

    def __del__(self) -> None:
        self.close()

    def _gone(self) -> None:
        if self.when_gone is not None:
            when_gone, self.when_gone = self.when_gone, None
            when_gone()


class Acceptor:
    """Accepts as long as it is open; each connection gets a protocol from `factory`, behind TLS if there is any.

    `factory` is given the client's address where a trusted proxy has said it before anything else (PROXY protocol), and
    otherwise None; `gone` is told when the connection of such a protocol ends.
    """

    def __init__(
        self,
        listening: socket.socket,
        room: ConnectionRoom,
        factory: Callable[[str | None], asyncio.BaseProtocol],
        *,
        tls: ssl.SSLContext | None,
        handshake_timeout: float,
        proxy_protocol: bool = False,
        gone: Callable[[asyncio.BaseProtocol], None] = lambda _: None,
        observer: Observer | None = None,
    ) -> None:
        self._listening = listening
        self._room = room
        self._factory = factory
        self._tls = tls
        self._handshake_timeout = None if tls is None else handshake_timeout
        self._header_timeout = handshake_timeout
        self._proxy_protocol = proxy_protocol
        self._tell_gone = gone
        self._observer = observer
        self._loop = asyncio.get_running_loop()
        self._opening: set[asyncio.Task[Any]] = set()
        self._pause: asyncio.TimerHandle | None = None
        self._open = True
        self._loop.add_reader(listening.fileno(), self._accept)

    def close(self) -> None:
        """Take no more connections, and let go of the address; the connections that are there stay."""
        if not self._open:
            return
        self._open = False
        if self._pause is not None:
            self._pause.cancel()
        else:
            self._loop.remove_reader(self._listening.fileno())
        self._listening.close()
        for task in self._opening:
            task.cancel()

    def _accept(self) -> None:
        for _ in range(ACCEPTS_AT_ONCE):
            try:
                accepted, address = self._listening.accept()
            except (BlockingIOError, InterruptedError):
                return
            except ConnectionAbortedError:
                continue
            except OSError as error:
                if error.errno not in _NO_ROOM:
                    raise
                self._rest()
                return
            self._take(accepted, address[0])

    def _take(self, accepted: socket.socket, address: str) -> None:
        network = self._room.network_of(address)
        bound = self._room.bound_reached(network)
        if bound is not None:
            accepted.close()
            self._room.refused += 1
            self._tell(bound)
            return
        self._room.enter(network)
        connection = _CountedSocket(accepted.family, accepted.type, accepted.proto, fileno=accepted.detach())
        connection.when_gone = lambda: self._room.leave(network)
        connection.setblocking(False)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if self._proxy_protocol and is_trusted(address, self._room.proxies):
            work = self._open_behind_proxy(connection, network)
        else:
            work = self._open_transport(connection, None)
        task = self._loop.create_task(work)
        self._opening.add(task)
        task.add_done_callback(self._opening.discard)

    async def _open_transport(self, connection: _CountedSocket, client: str | None) -> None:
        def made() -> asyncio.BaseProtocol:
            protocol = self._factory(client)
            if client is not None:
                leave = connection.when_gone

                def leave_and_tell() -> None:
                    if leave is not None:
                        leave()
                    self._tell_gone(protocol)

                connection.when_gone = leave_and_tell
            return protocol

        # The client went away, or speaks no TLS. The loop closes the socket, which may still be in use here.
        with suppress(OSError, TimeoutError):
            await self._loop.connect_accepted_socket(
                made, connection, ssl=self._tls, ssl_handshake_timeout=self._handshake_timeout
            )

    async def _open_behind_proxy(self, connection: _CountedSocket, proxy: str | None) -> None:
        """A connection counts against its client's network as soon as the proxy has said who that is."""
        try:
            async with asyncio.timeout(self._header_timeout):
                client = await _client_said(self._loop, connection)
        except (OSError, TimeoutError, ProxyProtocolError):
            connection.close()
            self._tell("proxy_protocol")
            return
        except asyncio.CancelledError:
            connection.close()
            raise
        if client is not None:
            network = self._room.network_of(client)
            bound = self._room.bound_reached(network)
            if bound is not None:
                connection.close()
                self._room.refused += 1
                self._tell(bound)
                return
            self._room.leave(proxy)
            self._room.enter(network)
            connection.when_gone = lambda: self._room.leave(network)
        await self._open_transport(connection, client)

    def _rest(self) -> None:
        """Nothing can be accepted now, and asking again at once would only keep the processor busy."""
        self._tell("open_files")
        self._loop.remove_reader(self._listening.fileno())
        self._pause = self._loop.call_later(PAUSE, self._go_on)

    def _go_on(self) -> None:
        self._pause = None
        self._loop.add_reader(self._listening.fileno(), self._accept)

    def _tell(self, bound: str) -> None:
        if self._observer is not None:
            self._observer(LimitReached(bound))


async def _client_said(loop: asyncio.AbstractEventLoop, connection: socket.socket) -> str | None:
    """The PROXY protocol's header, and not a byte of what follows it. Raises `ProxyProtocolError`, `OSError`."""
    head = await _exactly(loop, connection, len(SIGNATURE))
    if head == SIGNATURE:
        head += await _exactly(loop, connection, 4)
        return address_of_block(head, await _exactly(loop, connection, block_length(head)))
    while not head.endswith(b"\r\n") and len(head) < MAX_LINE and head.startswith(b"PROXY "):
        head += await _exactly(loop, connection, 1)
    return address_of_line(head)


async def _exactly(loop: asyncio.AbstractEventLoop, connection: socket.socket, count: int) -> bytes:
    data = b""
    while len(data) < count:
        more = await loop.sock_recv(connection, count - len(data))
        if not more:
            raise ProxyProtocolError("the connection ended")
        data += more
    return data
