"""The web port put together: chat page, its files and its API, and the facade, on one aiohttp application."""

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit

from aiohttp import web

from gateway.adapters.chat import ChatAdapter, ChatConfig
from gateway.adapters.stream import StreamAdapter, StreamConfig
from gateway.web.chat_routes import ChatRoutes
from gateway.web.refusals import translated
from gateway.web.stream_routes import PER_TOPIC, StreamRoutes
from serving.answers import AnswerMiddleware
from serving.gate import Gate, GateConfig, Share
from serving.limits import Rate
from serving.port import Port, PortConfig
from serving.static import add_files
from serving.tls import TlsFiles

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
    per_topic: Rate = field(default_factory=lambda: Rate(20, 200))
    """Publications of one topic."""
    trusted_proxies: frozenset[str] = frozenset()
    header_timeout: float = 10.0
    keepalive_timeout: float = 30.0
    max_connections: int = 10_000
    connections_per_client: int = 1_000
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
        self._port: Port | None = None
        answers = AnswerMiddleware(_names(config), config.streams.cors_origins, observer, translated)
        shares = {PER_TOPIC: Share(config.per_topic, "this topic is published too often")}
        gate_config = GateConfig(config.per_client, shares, trusted_proxies=config.trusted_proxies)
        gate = Gate(gate_config, time.monotonic, observer)
        self._app = web.Application(middlewares=[answers.middleware])
        StreamRoutes(streams, gate, answers).add_to(self._app)
        if chat is not None:
            ChatRoutes(chat, gate, answers).add_to(self._app)
            add_files(self._app, STATIC, FILES, PAGE_HEADERS)
            for path in ("/", "/chat"):
                self._app.router.add_get(path, _to_the_page)

    @property
    def url(self) -> str:
        """For people; ends in a slash."""
        return self.local_url if self.config.public_url is None else f"{self.config.public_url.rstrip('/')}/"

    @property
    def local_url(self) -> str:
        if self._port is None:
            raise RuntimeError("the web port is not open")
        return self._port.url

    async def start(self) -> None:
        config = self.config
        port = self._port = Port(
            PortConfig(
                config.host,
                config.port,
                config.tls,
                header_timeout=config.header_timeout,
                keepalive_timeout=config.keepalive_timeout,
                max_connections=config.max_connections,
                connections_per_client=config.connections_per_client,
                proxies=config.trusted_proxies,
                stop_grace=config.stop_grace,
                cancel_handlers=True,
            ),
            self._observer,
        )
        try:
            if self.chat is not None:
                await self.chat.start()
            await port.serve(self._app)
        except BaseException:
            await port.stop()
            raise

    def take_up(self, tls: TlsFiles | None) -> None:
        """Look at the certificate now, or at another one."""
        if self._port is not None:
            self._port.take_up(tls)

    async def keep_to_rules(self) -> int:
        """End what the rules forbid by now; says how much."""
        return self.streams.keep_to_rules() + (0 if self.chat is None else await self.chat.keep_to_rules())

    async def stop(self) -> None:
        self.streams.close()
        if self.chat is not None:
            self.chat.close()
        if self._port is not None:
            await self._port.stop()
        if self.chat is not None:
            await self.chat.stop()


def _names(config: WebConfig) -> frozenset[str]:
    own = urlsplit(config.public_url).hostname if config.public_url is not None else None
    return config.names | {own} if own else config.names


async def _to_the_page(_request: web.Request) -> web.StreamResponse:
    return web.Response(status=302, headers={"Location": "/chat/"})
