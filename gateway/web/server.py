"""The web port: one aiohttp application to which protocols add their routes before it opens."""

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from urllib.parse import urlsplit

from aiohttp import web

from gateway.web.refusals import translated
from serving.answers import AnswerMiddleware, HttpError
from serving.gate import Gate, GateConfig, Share
from serving.limits import Rate
from serving.port import Port, PortConfig
from serving.proxies import ProxyHeader
from serving.tls import TlsFiles

PER_TOPIC = "per_topic"
"""The share of the gate that publications of one topic have."""


@dataclass(frozen=True, slots=True)
class WebConfig:
    """The port for people and scripts."""

    host: str = "127.0.0.1"
    port: int = 0
    public_url: str | None = None
    """Where people find it, when that is not where it listens: behind a proxy, for instance."""
    names: frozenset[str] = frozenset()
    """Host names that it answers to, beside addresses and `localhost`; `*` for all."""
    cors_origins: tuple[str, ...] = ()
    """Sites whose scripts may use it; `*` for all."""
    per_client: Rate = field(default_factory=lambda: Rate(50, 500))
    """Requests a second of one client, and how many at once."""
    per_topic: Rate = field(default_factory=lambda: Rate(20, 200))
    """Publications of one topic."""
    trusted_proxies: frozenset[str] = frozenset()
    proxy_header: ProxyHeader = ProxyHeader.X_FORWARDED_FOR
    header_timeout: float = 10.0
    keepalive_timeout: float = 30.0
    max_connections: int = 10_000
    connections_per_client: int = 1_000
    stop_grace: float = 2.0
    tls: TlsFiles | None = None
    """With it the port speaks https only."""


class WebServer:
    def __init__(self, config: WebConfig, observer: Callable[[object], None] | None = None) -> None:
        self.config = config
        self._observer = observer
        self._port: Port | None = None
        self._translators: list[Callable[[Exception], HttpError | None]] = [translated]
        shares = {PER_TOPIC: Share(config.per_topic, "this topic is published too often")}
        gate_config = GateConfig(
            config.per_client, shares, trusted_proxies=config.trusted_proxies, proxy_header=config.proxy_header
        )
        self.gate = Gate(gate_config, time.monotonic, observer)
        self.answers = AnswerMiddleware(
            _names(config), config.cors_origins, observer, self._translated, self.gate.client_address
        )
        self.app = web.Application(middlewares=[self.answers.middleware])
        """Protocols add their routes before the port opens."""

    def translate(self, translator: Callable[[Exception], HttpError | None]) -> None:
        """What to answer when a protocol's own errors are raised; None for errors of others."""
        self._translators.insert(0, translator)

    def _translated(self, error: Exception) -> HttpError | None:
        answers = (translator(error) for translator in self._translators)
        return next((answer for answer in answers if answer is not None), None)

    @property
    def is_open(self) -> bool:
        return self._port is not None

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
                proxy_header=config.proxy_header,
                stop_grace=config.stop_grace,
                cancel_handlers=True,
            ),
            self._observer,
        )
        try:
            await port.serve(self.app)
        except BaseException:
            await port.stop()
            raise

    def take_up(self, tls: TlsFiles | None) -> None:
        """Look at the certificate now, or at another one."""
        if self._port is not None:
            self._port.take_up(tls)

    async def stop(self) -> None:
        if self._port is not None:
            await self._port.stop()


def _names(config: WebConfig) -> frozenset[str]:
    own = urlsplit(config.public_url).hostname if config.public_url is not None else None
    return config.names | {own} if own else config.names
