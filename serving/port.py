"""The one way to open a port for HTTP: socket, TLS, limits on connections, and an application behind them.

The socket is bound when a `Port` is made, so that its address is known, and taken, before anything answers there.
"""

import asyncio
import socket
from collections.abc import Callable
from dataclasses import dataclass

from aiohttp import web

from serving.acceptor import ConnectionRoom
from serving.listening import Doorkeeper, GuardedSite, RequestLog, open_socket
from serving.proxies import ProxyHeader
from serving.tls import TlsFiles, TlsPort


@dataclass(frozen=True, slots=True)
class PortConfig:
    """Where to listen, and what one connection and all of them may take."""

    host: str = "127.0.0.1"
    port: int = 0
    """0 takes a free one."""
    tls: TlsFiles | None = None
    """With it the port speaks https only."""
    header_timeout: float = 10.0
    keepalive_timeout: float = 30.0
    max_connections: int = 10_000
    connections_per_client: int = 1_000
    """Of the network around one address; programs of this machine and `proxies` have no such bound."""
    proxies: frozenset[str] = frozenset()
    proxy_header: ProxyHeader = ProxyHeader.X_FORWARDED_FOR
    linger: float = 10.0
    """How long a sender whose body was refused unread may go on sending, so that it sees the answer."""
    stop_grace: float = 2.0
    """What requests under way are given when the port is closed."""
    cancel_handlers: bool = False
    """Whether a handler is cancelled when its client goes away."""


class Port:
    """Raises `OSError` when the address cannot be had, and `TlsError` when certificate or key cannot be used."""

    def __init__(self, config: PortConfig, observer: Callable[[object], None] | None = None) -> None:
        self._config = config
        self._observer = observer
        self._doorkeeper = Doorkeeper(config.header_timeout, config.max_connections, observer)
        self._room = ConnectionRoom(config.max_connections, config.connections_per_client, config.proxies)
        self._runner: web.AppRunner | None = None
        self._watching: asyncio.Task[None] | None = None
        self._socket: socket.socket = open_socket(config.host, config.port)
        try:
            self._tls = None if config.tls is None else TlsPort(config.tls, observer)
        except BaseException:
            self._socket.close()
            raise
        host, port, *_ = self._socket.getsockname()
        self.address: tuple[str, int] = (host, port)

    @property
    def url(self) -> str:
        """Ends in a slash."""
        host, port = self.address
        scheme = "http" if self._tls is None else "https"
        return f"{scheme}://[{host}]:{port}/" if ":" in host else f"{scheme}://{host}:{port}/"

    @property
    def cut(self) -> int:
        """Connections that were ended by a limit."""
        return self._doorkeeper.cut + self._room.refused

    async def serve(self, app: web.Application) -> None:
        """Answer from now on."""
        config = self._config
        app.middlewares.insert(0, self._doorkeeper.note)
        self._runner = web.AppRunner(
            app,
            access_log=None,
            auto_decompress=False,
            handler_cancellation=config.cancel_handlers,
            logger=RequestLog(self._observer),
            keepalive_timeout=config.keepalive_timeout,
            lingering_time=config.linger,
            # aiohttp waits this long twice: for handlers to end, then for cancelled ones.
            shutdown_timeout=config.stop_grace / 2,
        )
        await self._runner.setup()
        context = None if self._tls is None else self._tls.context
        site = GuardedSite(
            self._runner,
            self._socket,
            self._doorkeeper,
            self._room,
            context,
            self._observer,
            proxy_protocol=config.proxy_header is ProxyHeader.PROXY_PROTOCOL,
        )
        await site.start()
        if self._tls is not None:
            self._watching = asyncio.create_task(self._tls.watch())

    def take_up(self, tls: TlsFiles | None, proxies: frozenset[str] | None = None) -> None:
        """Look at the certificate now, or at another one. A port does not change between http and https."""
        if proxies is not None:
            self._room.proxies = proxies
        if self._tls is not None:
            self._tls.refresh(tls)

    async def stop(self) -> None:
        """Idempotent, and also for a port that never served."""
        if self._watching is not None:
            self._watching.cancel()
            await asyncio.gather(self._watching, return_exceptions=True)
            self._watching = None
        if self._runner is not None:
            await self._runner.cleanup()
            self._runner = None
        self._socket.close()
