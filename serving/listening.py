"""A listening socket that does not wait for slow clients.

aiohttp closes idle kept-alive connections by itself, but a connection that never finishes its first request head
would stay for ever; here it has a deadline. How many connections there are is `serving.acceptor`'s.
"""

import asyncio
import socket
import ssl
from collections.abc import Awaitable, Callable

from aiohttp import hdrs, web

from serving.acceptor import Acceptor, ConnectionRoom
from serving.events import LimitReached, Observer, RequestRefused

BACKLOG = 1024
SECOND_LOOK = 0.05
CLIENT = web.RequestKey("client", str)
"""Where a trusted proxy has said before the request whose it is (PROXY protocol): that address."""

_RequestHandler = Callable[[web.BaseRequest], Awaitable[web.StreamResponse]]


class RequestLog:
    """Stands where aiohttp wants a logger: what it has to say about a connection becomes a counted event.

    Otherwise every stranger who sends rubbish writes a stack trace into the operator's log.
    """

    def __init__(self, observer: Observer | None = None) -> None:
        self._observer = observer

    def debug(self, *_: object, **__: object) -> None:
        pass

    info = warning = debug

    def exception(self, *_: object, **__: object) -> None:
        if self._observer is not None:
            self._observer(RequestRefused(400, "this was no HTTP"))

    error = critical = exception


class Doorkeeper:
    """Knows which connections have not sent a whole request head yet, and cuts them off in time."""

    def __init__(self, header_timeout: float, max_connections: int, observer: Observer | None = None) -> None:
        self.header_timeout = header_timeout
        self._max_connections = max_connections
        self._observer = observer
        self._silent: set[asyncio.BaseProtocol] = set()
        self._clients: dict[asyncio.BaseProtocol, str] = {}
        self.cut = 0

    @web.middleware
    async def note(
        self, request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
    ) -> web.StreamResponse:
        self._silent.discard(request.protocol)
        client = self._clients.get(request.protocol)
        if client is not None:
            request[CLIENT] = client
        return await handler(request)

    def forget(self, protocol: asyncio.BaseProtocol) -> None:
        self._clients.pop(protocol, None)

    def admit(self, server: web.Server, client: str | None = None) -> asyncio.BaseProtocol:
        """The protocol of a new connection.

        aiohttp also counts those whose client has left, as long as their handler goes on.
        """
        if len(server.connections) >= self._max_connections:
            self._note_cut("max_connections")
            return _Refusal()
        protocol = server()
        if client is not None:
            self._clients[protocol] = client
        self._silent.add(protocol)
        asyncio.get_running_loop().call_later(self.header_timeout, self._look_again, protocol)
        return protocol

    def _look_again(self, protocol: web.RequestHandler) -> None:
        """A loop that was held up may find the deadline and a whole head at the same time: the head comes first."""
        if protocol in self._silent:
            asyncio.get_running_loop().call_later(SECOND_LOOK, self._cut, protocol)

    def _cut(self, protocol: web.RequestHandler) -> None:
        if protocol not in self._silent:
            return
        self._silent.discard(protocol)
        transport = protocol.transport
        if transport is None or transport.is_closing():
            return
        self._note_cut("header_timeout")
        transport.abort()

    def _note_cut(self, bound: str) -> None:
        self.cut += 1
        if self._observer is not None:
            self._observer(LimitReached(bound))


class _Refusal(asyncio.Protocol):
    """A connection above the bound: closed as soon as it is there."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        transport.close()


class GuardedSite(web.BaseSite):
    """An aiohttp site whose connections pass the doorkeeper."""

    def __init__(
        self,
        runner: web.AppRunner,
        listening: socket.socket,
        doorkeeper: Doorkeeper,
        room: ConnectionRoom,
        tls: ssl.SSLContext | None = None,
        observer: Observer | None = None,
        *,
        proxy_protocol: bool = False,
    ) -> None:
        super().__init__(runner, backlog=BACKLOG, ssl_context=tls)
        self._proxy_protocol = proxy_protocol
        self._socket = listening
        self._doorkeeper = doorkeeper
        self._room = room
        self._observer = observer
        self._acceptor: Acceptor | None = None

    @property
    def name(self) -> str:
        host, port, *_ = self._socket.getsockname()
        scheme = "http" if self._ssl_context is None else "https"
        return f"{scheme}://[{host}]:{port}" if ":" in host else f"{scheme}://{host}:{port}"

    async def start(self) -> None:
        await super().start()
        server = self._runner.server
        if server is None:
            raise RuntimeError("the runner is not set up")
        server.request_handler = _checked(server.request_handler)
        self._acceptor = Acceptor(
            self._socket,
            self._room,
            lambda client: self._doorkeeper.admit(server, client),
            tls=self._ssl_context,
            handshake_timeout=self._doorkeeper.header_timeout,
            proxy_protocol=self._proxy_protocol,
            gone=self._doorkeeper.forget,
            observer=self._observer,
        )

    async def stop(self) -> None:
        if self._acceptor is not None:
            self._acceptor.close()
        await super().stop()


def _checked(handler: _RequestHandler) -> _RequestHandler:
    """Refuses what aiohttp itself, before any middleware, would break on or play along with."""

    async def checked(request: web.BaseRequest) -> web.StreamResponse:
        if request.headers.get(hdrs.EXPECT, "100-continue").lower() != "100-continue":
            return web.Response(status=417, text="the only thing this hub understands in Expect is 100-continue\n")
        return await handler(request)

    return checked


def open_socket(host: str, port: int) -> socket.socket:
    """Bind and listen; port 0 takes a free one. Raises OSError."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listening = socket.socket(family, socket.SOCK_STREAM)
    try:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind((host, port))
        listening.listen(BACKLOG)
        listening.setblocking(False)
    except OSError as error:
        listening.close()
        place = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        raise OSError(error.errno, f"{place}: {error.strerror}") from None
    return listening
