"""The one HTTP client of the hub: libcurl's multi interface on the event loop.

Two ways in. `request` is for a single exchange whose answer matters (verification, fetching a topic). `post` is for
fan-out: it only reports a status, costs no task and no future, and its answer's body is thrown away unread.

How libcurl is driven, and why so: the usual way on an event loop (`socket_action` with a socket and a timer callback)
calls back into Python about five times a request and measured 58,000 requests a second where `perform` measures 72,000.
So `perform` it is. Sockets are put into an epoll set of our own, edge-triggered, when libcurl makes them; that set is
one descriptor on the event loop, and a wake-up costs one callback however many sockets are ready. libcurl's own
timeout is honoured, and while anything is under way `perform` runs at least every `IDLE_TICK` seconds, so that an
event this set cannot see (a name resolver's) is noticed soon.

Safety: the address is judged in the callback that opens the socket, after name resolution, on the very address that is
connected to. Redirects are not followed, nothing is decompressed, no cookie, netrc, proxy from the environment or
protocol other than http and https is used, and certificates are verified.
"""

import asyncio
import select
from collections import deque
from collections.abc import Mapping, Sequence

import pycurl

from push_hub.outbound.addresses import MAX_URL_LENGTH, UNSAFE, AddressPolicy
from push_hub.outbound.errors import ClientBusyError, ClientClosedError, OutboundError, UrlRefusedError
from push_hub.outbound.transfer import (
    ClientConfig,
    ClientCounts,
    Curl,
    Exchange,
    Headers,
    OutboundResponse,
    Post,
    PostDone,
    Setup,
    header_line,
)

__all__ = ["ClientConfig", "ClientCounts", "Headers", "OutboundClient", "OutboundResponse", "header_line"]

IDLE_TICK = 0.025
EVENTS_PER_WAKE = 512
MAX_KNOWN_ORIGINS = 10_000
COMPLETIONS_PER_READ = 256
SOCKET_EVENTS = select.EPOLLIN | select.EPOLLOUT | select.EPOLLET | select.EPOLLRDHUP


class OutboundClient:
    """Make it anywhere; it attaches to the running loop at its first request. Close it with `close`."""

    def __init__(self, config: ClientConfig | None = None) -> None:
        self._config = config or ClientConfig()
        self.counts = ClientCounts()
        self._multi = pycurl.CurlMulti()
        self._multi.setopt(pycurl.M_MAXCONNECTS, self._config.kept_connections)
        self._epoll = select.epoll()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = 0.0
        self._known_origins: set[str] = set()
        self._soon = False
        self._closed = False
        self._exchanges: dict[Curl, Exchange | Post] = {}
        self._idle_posts: deque[Post] = deque()
        self._setup = Setup(self._config, self.counts, self._watch, self._idle_posts)

    @property
    def under_way(self) -> int:
        return len(self._exchanges)

    @property
    def policy(self) -> AddressPolicy:
        return self._config.policy

    async def request(
        self,
        method: str,
        url: str,
        *,
        headers: Mapping[str, str],
        body: bytes | None,
        timeout: float,  # noqa: ASYNC109 - libcurl keeps this time, and the message should name the server
        max_bytes: int,
    ) -> OutboundResponse:
        """One exchange. Raises `OutboundError` when there is no whole answer within the bounds."""
        self._admit(url)
        exchange = Exchange(self._setup)
        future: asyncio.Future[OutboundResponse] = asyncio.get_running_loop().create_future()
        try:
            exchange.prepare(method, url, headers, body, timeout, max_bytes, future)
        except (pycurl.error, ValueError, TypeError) as error:
            exchange.curl.close()
            raise OutboundError(f"the request could not be made: {error}") from error
        self._start(exchange)
        try:
            return await future
        finally:
            if exchange.future is future:  # cancelled: nobody waits for the answer any more
                self._abandon(exchange)

    def post(
        self,
        url: str,
        headers: Sequence[bytes],
        body: bytes,
        timeout_ms: int,
        max_bytes: int,
        tag: object,
        done: PostDone,
    ) -> Post:
        """Post `body`; later `done(tag, status, retry_after, error)` is called on the loop, exactly once.

        `headers` are whole lines. Raises at once, without calling `done`, when the request cannot be made. What is
        returned is good for `cut` until `done` was called.
        """
        self._admit(url)
        post = self._idle_posts.pop() if self._idle_posts else Post(self._setup)
        try:
            post.prepare(url, headers, body, timeout_ms, max_bytes, tag, done)
        except (pycurl.error, ValueError, TypeError) as error:
            post.curl.close()
            raise OutboundError(f"the request could not be made: {error}") from error
        self._start(post)
        return post

    def cut(self, post: Post) -> None:
        """Break a request off; its `done` is not called."""
        self._abandon(post)

    async def close(self) -> None:
        """Cut what is under way (each ends with `ClientClosedError`) and let go of all connections."""
        if self._closed:
            return
        self._closed = True
        if self._timer is not None:
            self._timer.cancel()
        if self._loop is not None:
            self._loop.remove_reader(self._epoll.fileno())
        for exchange in list(self._exchanges.values()):
            self._multi.remove_handle(exchange.curl)
            exchange.finish(ClientClosedError("the hub is stopping"))
            exchange.curl.close()
        self._exchanges.clear()
        for idle in self._idle_posts:
            idle.curl.close()
        self._idle_posts.clear()
        self._multi.close()
        self._epoll.close()

    def _admit(self, url: str) -> None:
        if self._closed:
            raise ClientClosedError("the hub is stopping")
        if len(self._exchanges) >= self._config.max_under_way:
            self.counts.refused_busy += 1
            raise ClientBusyError(f"{self._config.max_under_way} requests are under way already")
        # All that depends on the scheme, host and port is known from the last URL that began the same way.
        origin = url[: url.find("/", len("https://"))]
        if origin in self._known_origins and len(url) <= MAX_URL_LENGTH and url.isascii() and not UNSAFE.search(url):
            return
        refusal = self._config.policy.url_refusal(url)
        if refusal is not None:
            self.counts.refused_urls += 1
            raise UrlRefusedError(refusal)
        if "/" in url[len("https://") :]:
            if len(self._known_origins) >= MAX_KNOWN_ORIGINS:
                self._known_origins.clear()
            self._known_origins.add(origin)

    def _start(self, exchange: Exchange | Post) -> None:
        if self._loop is None:
            self._loop = asyncio.get_running_loop()
            self._loop.add_reader(self._epoll.fileno(), self._on_ready)
        self.counts.sent += 1
        self._exchanges[exchange.curl] = exchange
        self._multi.add_handle(exchange.curl)
        if not self._soon:
            self._soon = True
            self._loop.call_soon(self._turn)

    def _abandon(self, exchange: Exchange | Post) -> None:
        if self._exchanges.pop(exchange.curl, None) is not None:
            self._multi.remove_handle(exchange.curl)
            exchange.curl.close()

    def _on_ready(self) -> None:
        # Edge-triggered: reading the events re-arms the set. What is ready does not matter, `perform` looks itself.
        self._epoll.poll(0, EVENTS_PER_WAKE)
        self._turn()

    def _turn(self) -> None:
        """Let libcurl work, hand out what is finished, and arm the timer for its next turn."""
        self._soon = False
        if self._closed:
            return
        exchanges = self._exchanges
        multi = self._multi
        multi.perform()
        waiting = 1
        while waiting:
            waiting, finished, failed = multi.info_read(COMPLETIONS_PER_READ)
            for curl in finished:
                multi.remove_handle(curl)
                exchanges.pop(curl).finish(None)
            for curl, code, text in failed:
                multi.remove_handle(curl)
                exchange = exchanges.pop(curl)
                exchange.finish(exchange.failure(code, text))
        self._arm()

    def _arm(self) -> None:
        if self._soon or self._closed or self._loop is None:
            return
        delay = IDLE_TICK
        if self._exchanges:
            wanted = self._multi.timeout()
            if wanted == 0:
                self._soon = True
                self._loop.call_soon(self._turn)
                return
            if wanted > 0:
                delay = min(IDLE_TICK, wanted / 1000)
        now = self._loop.time()
        if self._timer is not None:
            if self._exchanges and now < self._timer_at <= now + delay:
                return  # it fires early enough, and re-arming it each turn costs more than an early turn
            self._timer.cancel()
            self._timer = None
        if self._exchanges:
            self._timer_at = now + delay
            self._timer = self._loop.call_at(self._timer_at, self._wake_up)

    def _wake_up(self) -> None:
        # Forgotten first: uvloop fires up to a millisecond early, and then `_arm` would take it for still set.
        self._timer = None
        self._turn()

    def _watch(self, descriptor: int, _purpose: int) -> int:
        """libcurl has a new socket. The kernel takes it out of the set when libcurl closes it."""
        try:
            self._epoll.register(descriptor, SOCKET_EVENTS)
        except OSError:
            return int(pycurl.SOCKOPT_ERROR)
        return int(pycurl.SOCKOPT_OK)
