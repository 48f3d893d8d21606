"""How much each client, and each thing that is asked about, may ask for."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

from aiohttp import web

from serving.events import LimitReached, Observer
from serving.fairness import prefix_of
from serving.limits import Limiter, Rate
from serving.listening import CLIENT
from serving.proxies import ProxyHeader, client_of
from serving.tokens import TokenGuesses


@dataclass(frozen=True, slots=True)
class Share:
    """What one key of a kind may have, and what somebody is told who wants more."""

    rate: Rate
    text: str


@dataclass(frozen=True, slots=True)
class GateConfig:
    per_client: Rate = field(default_factory=lambda: Rate(200, 2_000))
    shares: Mapping[str, Share] = field(default_factory=dict)
    """Other kinds of keys, by the name of their bound."""
    max_keys: int = 50_000
    """Of each kind; those that have been quiet longest are forgotten first."""
    trusted_proxies: frozenset[str] = frozenset()
    """Addresses and networks."""
    proxy_header: ProxyHeader = ProxyHeader.X_FORWARDED_FOR


class TooManyError(Exception):
    """Somebody asks more than their share (429), which is not the same as being full (503)."""

    def __init__(self, retry_after: float, text: str) -> None:
        super().__init__(text)
        self.retry_after = retry_after
        self.text = text


class Gate:
    """Counts what is asked, and raises `TooManyError` when it is too much."""

    def __init__(self, config: GateConfig, clock: Callable[[], float], observer: Observer | None) -> None:
        self._clock = clock
        self._observer = observer
        self._config = config
        self._clients = Limiter(config.per_client, config.max_keys)
        self._shares = {name: Limiter(share.rate, config.max_keys) for name, share in config.shares.items()}
        self._guesses = TokenGuesses()

    def reconfigure(self, config: GateConfig) -> None:
        """Other rates and proxies from now on; nobody's account is cleared where the rate stays."""
        before, self._config = self._config, config
        if config.per_client != before.per_client:
            self._clients = Limiter(config.per_client, config.max_keys)
        for name, share in config.shares.items():
            if share.rate != before.shares[name].rate:
                self._shares[name] = Limiter(share.rate, config.max_keys)

    def client(self, request: web.Request, requests: int = 1) -> None:
        """With how many requests it counts."""
        self._take(self._clients, self.client_key(request), "per_client", "you send too many requests", requests)

    def share(self, name: str, key: str) -> None:
        self._take(self._shares[name], key, name, self._config.shares[name].text)

    def knows(self, request: web.Request, given: str, tokens: Iterable[str]) -> bool:
        """Whether a token that came with a request is one of these. Raises `TooManyError` to whoever guesses."""
        network, now = self.client_key(request), self._clock()
        self._pass(self._guesses.wait(network, now), "wrong_tokens", "too many wrong tokens came from your network")
        return self._guesses.is_known(given, tokens, network, now)

    def client_address(self, request: web.Request) -> str:
        config = self._config
        if config.proxy_header is ProxyHeader.PROXY_PROTOCOL:
            return request.get(CLIENT) or request.remote or ""
        values = request.headers.getall(config.proxy_header, ())
        return client_of(request.remote or "", config.proxy_header, values, config.trusted_proxies)

    def client_key(self, request: web.Request) -> str:
        """Whom a request counts against: the network around its address."""
        return prefix_of(self.client_address(request))

    def _take(self, limiter: Limiter, key: str, name: str, text: str, tokens: int = 1) -> None:
        self._pass(limiter.take(key, self._clock(), tokens), name, text)

    def _pass(self, wait: float, name: str, text: str) -> None:
        if wait > 0:
            if self._observer is not None:
                self._observer(LimitReached(name))
            raise TooManyError(wait, f"{text}: try again later")
