"""The web port put together: chat page, its files and its API, and the facade, on one aiohttp application."""

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit

from aiohttp import web

from gateway.adapters.chat import ChatAdapter, ChatConfig
from gateway.adapters.stream import StreamAdapter, StreamConfig
from gateway.web.answers import Answers
from gateway.web.chat_routes import ChatRoutes
from gateway.web.stream_routes import StreamRoutes
from push_hub.server import Gate, ServerConfig
from serving.limits import Rate
from serving.listening import Doorkeeper, GuardedSite, RequestLog, open_socket
from serving.tls import TlsFiles, TlsPort

STATIC = Path(__file__).parent / "static"
FILES = {
    "/chat/": ("index.html", "text/html"),
    "/chat/chat.css": ("chat.css", "text/css"),
    "/chat/chat.js": ("chat.js", "text/javascript"),
    "/chat/icon.svg": ("icon.svg", "image/svg+xml"),
}
PAGE_HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; "
    "require-trusted-types-for 'script'; trusted-types 'none'",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-cache",
}


@dataclass(frozen=True, slots=True)
class WebConfig:
    """The port for people and scripts. Without `chat`, only the facade is there."""

    host: str = "127.0.0.1"
    port: int = 0
    public_url: str | None = None
    """Where people find it, when that is not where it listens: behind a proxy, for instance."""
    names: frozenset[str] = frozenset()
    """Host names that it answers to, beside addresses and `localhost`; `*` for all."""
    chat: ChatConfig | None = None
    streams: StreamConfig = field(default_factory=StreamConfig)
    per_client: Rate = field(default_factory=lambda: Rate(50, 500))
    """Requests a second of one client, and how many at once."""
    per_topic: Rate = field(default_factory=lambda: ServerConfig().per_topic)
    """Publications of one topic."""
    trusted_proxies: frozenset[str] = frozenset()
    header_timeout: float = 10.0
    keepalive_timeout: float = 30.0
    max_connections: int = 10_000
    stop_grace: float = 2.0
    tls: TlsFiles | None = None
    """With it the port speaks https only."""


class WebServer:
    def __init__(
        self,
        config: WebConfig,
        streams: StreamAdapter,
        chat: ChatAdapter | None,
        observer: Callable[[object], None] | None = None,
    ) -> None:
        self.config = config
        self.streams = streams
        self.chat = chat
        self._observer = observer
        self._tls: TlsPort | None = None
        self._watching: asyncio.Task[None] | None = None
        self._doorkeeper = Doorkeeper(config.header_timeout, config.max_connections, observer)
        answers = Answers(_names(config), config.streams.cors_origins, observer)
        gate_config = ServerConfig(
            per_client=config.per_client, per_topic=config.per_topic, trusted_proxies=config.trusted_proxies
        )
        gate = Gate(gate_config, time.monotonic, observer)
        app = web.Application(middlewares=[self._doorkeeper.note, answers.middleware])
        StreamRoutes(streams, gate, answers).add_to(app)
        if chat is not None:
            ChatRoutes(chat, gate, answers).add_to(app)
            _add_page(app)
        self._runner = web.AppRunner(
            app,
            access_log=None,
            auto_decompress=False,
            handler_cancellation=True,
            logger=RequestLog(observer),
            keepalive_timeout=config.keepalive_timeout,
            shutdown_timeout=config.stop_grace,
        )

    @property
    def url(self) -> str:
        """For people; ends in a slash."""
        return self.local_url if self.config.public_url is None else f"{self.config.public_url.rstrip('/')}/"

    @property
    def local_url(self) -> str:
        host, port = self._runner.addresses[0][:2]
        scheme = "http" if self.config.tls is None else "https"
        return f"{scheme}://[{host}]:{port}/" if ":" in host else f"{scheme}://{host}:{port}/"

    async def start(self) -> None:
        listening = open_socket(self.config.host, self.config.port)
        try:
            tls = self._tls = None if self.config.tls is None else TlsPort(self.config.tls, self._observer)
            await self.streams.start()
            if self.chat is not None:
                await self.chat.start()
            await self._runner.setup()
            await GuardedSite(self._runner, listening, self._doorkeeper, None if tls is None else tls.context).start()
        except BaseException:
            listening.close()
            raise
        if tls is not None:
            self._watching = asyncio.get_running_loop().create_task(tls.watch())

    def take_up(self, tls: TlsFiles | None) -> None:
        """Look at the certificate now, or at another one. A port does not change between http and https."""
        if self._tls is not None:
            self._tls.refresh(tls)

    async def keep_to_rules(self) -> int:
        """End what the rules forbid by now; says how much."""
        return self.streams.keep_to_rules() + (0 if self.chat is None else await self.chat.keep_to_rules())

    async def stop(self) -> None:
        if self._watching is not None:
            self._watching.cancel()
            await asyncio.gather(self._watching, return_exceptions=True)
        self.streams.close()
        if self.chat is not None:
            self.chat.close()
        await self._runner.cleanup()
        if self.chat is not None:
            await self.chat.stop()


def _names(config: WebConfig) -> frozenset[str]:
    own = urlsplit(config.public_url).hostname if config.public_url is not None else None
    return config.names | {own} if own else config.names


def _add_page(app: web.Application) -> None:
    """A few files, read once; no path of a request is ever a path of the disk."""
    for path, (name, content_type) in FILES.items():
        app.router.add_get(path, _File((STATIC / name).read_bytes(), content_type).serve)
    for path in ("/", "/chat"):
        app.router.add_get(path, _to_the_page)


class _File:
    """Serves one file."""

    def __init__(self, body: bytes, content_type: str) -> None:
        self._body = body
        self._content_type = content_type

    async def serve(self, _request: web.Request) -> web.StreamResponse:
        charset = None if self._content_type.startswith("image/") else "utf-8"
        return web.Response(body=self._body, content_type=self._content_type, charset=charset, headers=PAGE_HEADERS)


async def _to_the_page(_request: web.Request) -> web.StreamResponse:
    return web.Response(status=302, headers={"Location": "/chat/"})
