"""The one HTTP client for what strangers name: libcurl's multi interface on the event loop.

Two ways in. `request` is for a single exchange whose answer matters (verification, fetching a topic). A `PostChannel`
is for fan-out: its posts only report a status, cost no task and no future each, and their answers' bodies are
thrown away unread. What ended in one turn of libcurl is reported in one call.

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
from collections.abc import Callable, Mapping, Sequence

import pycurl

from serving.fairness import KnownPrefixes
from serving.outbound.addresses import AddressPolicy
from serving.outbound.errors import ClientBusyError, ClientClosedError, OutboundError, UrlRefusedError
from serving.outbound.transfer import Curl, Post, RequestHandle, Setup, Transfer
from serving.outbound.values import (
    ClientConfig,
    ClientCounts,
    Headers,
    OutboundResponse,
    PostCounted,
    PostOutcome,
    PostsDone,
)

__all__ = [
    "ClientConfig",
    "ClientCounts",
    "Headers",
    "OutboundClient",
    "OutboundResponse",
    "PostChannel",
    "PostOutcome",
]

IDLE_TICK = 0.025
EVENTS_PER_WAKE = 512
MAX_KNOWN_URLS = 65_536
COMPLETIONS_PER_READ = 256
SOCKET_EVENTS = select.EPOLLIN | select.EPOLLOUT | select.EPOLLET | select.EPOLLRDHUP


class OutboundClient:
    """Make it anywhere; it attaches to the running loop at its first request. Close it with `close`."""

    def __init__(self, config: ClientConfig | None = None) -> None:
        self._config = config or ClientConfig()
        self.counts = ClientCounts()
        self.prefixes = KnownPrefixes()
        """Where the names were last connected to, for whoever shares something out fairly."""
        self.multi = pycurl.CurlMulti()
        self.multi.setopt(pycurl.M_MAXCONNECTS, self._config.kept_connections)
        self._epoll = select.epoll()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = 0.0
        self.known_urls: set[str] = set()
        self.turn_is_due = False
        self.is_closed = False
        self.transfers: dict[Curl, Transfer] = {}
        self._lanes: list[PostChannel] = []
        self._idle: list[RequestHandle] = []
        self._setup = Setup(self._config, self.counts, self._watch, self.prefixes)

    @property
    def under_way(self) -> int:
        return len(self.transfers)

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
        counted: Callable[[str], bool] | None = None,
    ) -> OutboundResponse:
        """One exchange. Raises `OutboundError` when there is no whole answer within the bounds.

        `counted` is asked before a connection is made, with the prefix of the address: False means that this prefix has
        its share already, and the exchange ends with `ShareTakenError`. Connections that are kept were counted under
        what is known of the name.
        """
        self.admit(url)
        exchange = self._idle.pop() if self._idle and method == "GET" and body is None else self._new_request()
        future: asyncio.Future[OutboundResponse] = asyncio.get_running_loop().create_future()
        try:
            exchange.prepare(method, url, headers, body, timeout, max_bytes, future, counted)
        except (pycurl.error, ValueError, TypeError) as error:
            exchange.close()
            raise OutboundError(f"the request could not be made: {error}") from error
        self.start(exchange)
        try:
            return await future
        finally:
            if exchange.future is future:  # cancelled: nobody waits for the answer any more
                self.abandon(exchange)

    def _new_request(self) -> RequestHandle:
        return RequestHandle(self._setup, self._idle)

    def channel(
        self, timeout: float, max_bytes: int, done: PostsDone, counted: PostCounted | None = None
    ) -> "PostChannel":
        """For many posts with the same bounds; `done` is told on the loop how they ended, several at a time.

        `counted` is asked before each connection, as that of `request`.
        """
        channel = PostChannel(self, self._setup, timeout, max_bytes, done, counted)
        self._lanes.append(channel)
        return channel

    async def close(self) -> None:
        """Cut what is under way (each ends with `ClientClosedError`) and let go of all connections."""
        if self.is_closed:
            return
        self.is_closed = True
        if self._timer is not None:
            self._timer.cancel()
        if self._loop is not None:
            self._loop.remove_reader(self._epoll.fileno())
        for curl, transfer in self.transfers.items():
            self.multi.remove_handle(curl)
            transfer.finish(ClientClosedError("the hub is stopping"))
        self.transfers.clear()
        for channel in self._lanes:
            channel.report()
            channel.close()
        for request in self._idle:
            request.close()
        self._idle.clear()
        self.multi.close()
        self._epoll.close()

    def admit(self, url: str) -> None:
        """Raises `OutboundError` when this URL may not be asked, or nothing may now."""
        if self.is_closed:
            raise ClientClosedError("the hub is stopping")
        if len(self.transfers) >= self._config.max_under_way:
            self.counts.refused_busy += 1
            raise ClientBusyError(f"{self._config.max_under_way} requests are under way already")
        if url in self.known_urls:
            return
        refusal = self._config.policy.url_refusal(url)
        if refusal is not None:
            self.counts.refused_urls += 1
            raise UrlRefusedError(refusal)
        # The same callbacks come back with every publication, and what is refused for its text alone never changes.
        if len(self.known_urls) >= MAX_KNOWN_URLS:
            self.known_urls.clear()
        self.known_urls.add(url)

    def start(self, transfer: Transfer) -> None:
        self.transfers[transfer.curl] = transfer
        self.multi.add_handle(transfer.curl)
        if not self.turn_is_due:
            self.turn_soon()

    def turn_soon(self) -> None:
        if self._loop is None:
            self._loop = asyncio.get_running_loop()
            self._loop.add_reader(self._epoll.fileno(), self._on_ready)
        self.turn_is_due = True
        self._loop.call_soon(self._turn)

    def abandon(self, transfer: Transfer) -> None:
        """Break a request off; nobody is told how it ended."""
        if self.transfers.pop(transfer.curl, None) is not None:
            self.multi.remove_handle(transfer.curl)
            transfer.close()

    def _on_timer(self) -> None:
        # Forgotten at once: a loop that fires a little early must not make it look as if it were still to come.
        self._timer = None
        if not self.turn_is_due:
            self._turn()

    def _on_ready(self) -> None:
        if not self.turn_is_due:
            self._turn()

    def _turn(self) -> None:
        """Let libcurl work, hand out what is finished, and arm the timer for its next turn."""
        self.turn_is_due = False
        if self.is_closed:
            return
        # Edge-triggered: reading the events re-arms the set. What is ready does not matter, `perform` looks itself;
        # but events left unread would cause a turn for answers that this one has taken.
        self._epoll.poll(0, EVENTS_PER_WAKE)
        multi, taken = self.multi, self.transfers.pop
        remove = multi.remove_handle  # asking pycurl's objects for a method is slow
        multi.perform()
        waiting = 1
        while waiting:
            waiting, finished, failed = multi.info_read(COMPLETIONS_PER_READ)
            for curl in finished:
                remove(curl)
                taken(curl).finish(None)
            for curl, code, text in failed:
                remove(curl)
                transfer = taken(curl)
                transfer.finish(transfer.failure(code, text))
        for channel in self._lanes:
            channel.report()
        self._arm()

    def _arm(self) -> None:
        if self.turn_is_due or self.is_closed or self._loop is None:
            return
        delay = IDLE_TICK
        if self.transfers:
            wanted = self.multi.timeout()
            if wanted == 0:
                self.turn_is_due = True
                self._loop.call_soon(self._turn)
                return
            if wanted > 0:
                delay = min(IDLE_TICK, wanted / 1000)
        now = self._loop.time()
        if self._timer is not None:
            if self.transfers and now < self._timer_at <= now + delay:
                return  # it fires early enough, and re-arming it each turn costs more than an early turn
            self._timer.cancel()
            self._timer = None
        if self.transfers:
            self._timer_at = now + delay
            self._timer = self._loop.call_at(self._timer_at, self._on_timer)

    def _watch(self, descriptor: int, _purpose: int) -> int:
        """libcurl has a new socket. The kernel takes it out of the set when libcurl closes it."""
        try:
            self._epoll.register(descriptor, SOCKET_EVENTS)
        except OSError:
            return int(pycurl.SOCKOPT_ERROR)
        return int(pycurl.SOCKOPT_OK)


class PostChannel:
    """Posts that share a time-out, a bound on their answers, and who is told how they ended."""

    def __init__(
        self,
        client: OutboundClient,
        setup: Setup,
        timeout: float,
        max_bytes: int,
        done: PostsDone,
        counted: PostCounted | None,
    ) -> None:
        self._client = client
        self._setup = setup
        self._timeout = timeout
        self._max_bytes = max_bytes
        self._done = done
        self._counted = counted
        self._most_under_way = setup.config.max_under_way
        self._add_handle = client.multi.add_handle
        self._idle: list[Post] = []
        self._outcomes: list[PostOutcome] = []

    def post(self, url: str, headers: Sequence[bytes], body: bytes, tag: object) -> Post:
        """Post `body`; `headers` are whole lines. Its outcome, with `tag`, is reported exactly once.

        Raises `OutboundError` at once, and reports nothing, when the request cannot be made. What is returned is good
        for `cut` until the outcome was reported.
        """
        # The client's `admit` and `start` are written out here: this is every delivery.
        client = self._client
        transfers = client.transfers
        if url not in client.known_urls or len(transfers) >= self._most_under_way or client.is_closed:
            client.admit(url)
        idle = self._idle
        post = idle.pop() if idle else self._new_post()
        setopt = post.setopt
        try:
            setopt(_URL, url)
            setopt(_HTTPHEADER, headers)
            if body is not post.body:
                setopt(_POSTFIELDS, body)
                post.body = body
        except (pycurl.error, ValueError, TypeError) as error:
            post.close()
            raise OutboundError(f"the request could not be made: {error}") from error
        post.tag = tag
        post.url = url
        transfers[post.curl] = post
        self._add_handle(post.curl)
        if not client.turn_is_due:
            client.turn_soon()
        return post

    def _new_post(self) -> Post:
        return Post(self._setup, self._timeout, self._max_bytes, self._idle, self._outcomes, self._counted)

    def cut(self, post: Post) -> None:
        """Break a request off; its outcome is not reported."""
        self._client.abandon(post)

    def report(self) -> None:
        """Called by the client when libcurl had its turn."""
        if self._outcomes:
            outcomes = self._outcomes[:]
            self._outcomes.clear()
            self._done(outcomes)

    def close(self) -> None:
        for post in self._idle:
            post.close()
        self._idle.clear()


# Looked up once: these are used for every delivery.
_URL, _HTTPHEADER, _POSTFIELDS = pycurl.URL, pycurl.HTTPHEADER, pycurl.POSTFIELDS
