"""The hub on HTTP: one endpoint for subscribing and publishing, a page for people, health.

Nothing a stranger sends is waited for longer, read further or remembered more than the configuration says. A
request is acknowledged only after what it asks for is on disk; what cannot be taken now is refused with
`Retry-After`, never dropped.
"""

import asyncio
import re
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field, replace

from aiohttp import HttpVersion11, hdrs, web

from push_hub.bounds import MAX_ADDRESS_LENGTH
from push_hub.events import HubEvent, IntentAsked, Observer, PingAccepted, PingArrived, PingRefused
from push_hub.feed_proxy.proxy import PER_READER
from push_hub.health import HealthReport
from push_hub.intake.config import IntakeConfig
from push_hub.model import Content
from push_hub.pages import host_meta, host_meta_json, hub_page, robots, well_known
from push_hub.ports import OverloadedError, PingTaker, PublisherPolicy
from push_hub.protocol.numbers import Mode
from push_hub.protocol.requests import (
    PublishRequest,
    RequestError,
    RequestRules,
    SubscribeRequest,
    UnsubscribeRequest,
    parse_request,
)
from push_hub.protocol.urls import UrlError, normalised
from push_hub.protocol.verification import intent_of
from push_hub.verifier import IntentVerifier
from serving.answers import ALLOWED_HEADERS, PREFLIGHT_SECONDS, HttpError, bearer, body_of, refusal
from serving.events import LimitReached, RequestBroke, RequestRefused
from serving.fairness import KnownPrefixes
from serving.gate import Gate, GateConfig, Share, TooManyError
from serving.limits import Rate
from serving.outbound.addresses import AddressPolicy
from serving.proxies import ProxyHeader
from storage import StorageError
from storage.clock import steady

_HOST = re.compile(r"[0-9A-Za-z._:\[\]-]{1,300}")
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]

NOTHING_HERE = "there is nothing at this address: the hub, and help for people, is at /"
HTTP_CONFLICT = 409
MAX_SHOWN = 200
PER_CALLBACK_HOST = "per_callback_host"
PER_TOPIC = "per_topic"
NEW_SUBSCRIPTIONS = "new_subscriptions"


@dataclass(frozen=True, slots=True)
class ServerConfig:
    """Every bound of the HTTP surface. Rates are per second with a burst."""

    max_body: int = 64 * 1024
    max_fat_ping: int = 4 * 1024 * 1024
    body_timeout: float = 10.0
    header_timeout: float = 10.0
    keepalive_timeout: float = 30.0
    linger: float = 1.0
    """How long a sender whose body was refused unread may go on sending, so that it sees the answer."""
    max_connections: int = 20_000
    connections_per_client: int = 1_000
    per_client: Rate = field(default_factory=lambda: Rate(200, 2_000))
    per_callback_host: Rate = field(default_factory=lambda: Rate(200, 5_000))
    per_topic: Rate = field(default_factory=lambda: Rate(20, 200))
    new_subscriptions: Rate = field(default_factory=lambda: Rate(100, 2_000))
    """Requests of one network about subscriptions that are not there: each has the hub ask a callback."""
    feeds_per_client: Rate = field(default_factory=lambda: Rate(5, 200))
    """Feeds that are fetched for readers of one network."""
    max_limiter_keys: int = 50_000
    storage_retry_after: float = 5.0
    rules: RequestRules = field(default_factory=RequestRules)
    trusted_proxies: frozenset[str] = frozenset()
    proxy_header: ProxyHeader = ProxyHeader.X_FORWARDED_FOR
    publisher_tokens: tuple[str, ...] = ()
    moved_to: str | None = None
    public_url: str | None = None
    max_document: int = IntakeConfig().max_body_bytes
    """What publishers are told: how large a topic's document may be."""


def gate_config(config: ServerConfig) -> GateConfig:
    shares = {
        PER_CALLBACK_HOST: Share(config.per_callback_host, "too many requests for this callback's host"),
        NEW_SUBSCRIPTIONS: Share(config.new_subscriptions, "your network asks for too many new subscriptions"),
        PER_TOPIC: Share(config.per_topic, "this topic is pinged too often"),
        PER_READER: Share(config.feeds_per_client, "too many feeds are fetched for your network"),
    }
    return GateConfig(config.per_client, shares, config.max_limiter_keys, config.trusted_proxies, config.proxy_header)


class HubServer:
    """The handlers. `application` makes the aiohttp application; others may add their routes to it."""

    def __init__(
        self,
        config: ServerConfig,
        verifier: IntentVerifier,
        pings: PingTaker,
        *,
        health: Callable[[], Awaitable[HealthReport]],
        publishers: PublisherPolicy | None = None,
        observer: Observer | None = None,
        clock: Callable[[], float] = steady,
        monotonic: Callable[[], float] = time.monotonic,
        prefixes: KnownPrefixes | None = None,
        addresses: AddressPolicy | None = None,
    ) -> None:
        """`prefixes`: where the names of callbacks are. `addresses`: which the hub contacts."""
        self._addresses = AddressPolicy(allow_private=True) if addresses is None else addresses
        self._prefixes = KnownPrefixes() if prefixes is None else prefixes
        self._config = config
        self._verifier = verifier
        self._pings = pings
        self._health = health
        self._publishers = publishers
        self._observer = observer
        self._clock = clock
        self.gate = Gate(gate_config(config), monotonic, observer)

    def reconfigure(self, config: ServerConfig) -> None:
        """For requests from now on: body sizes, rates, tokens, rules, trusted proxies, addresses."""
        self._config = config
        self.gate.reconfigure(gate_config(config))

    def application(self) -> web.Application:
        app = web.Application(client_max_size=self._config.max_body, middlewares=[self._answer_errors])
        app.router.add_get("/", self.show)
        app.router.add_post("/", self.take)
        app.router.add_get("/health", self.show_health)
        app.router.add_get("/robots.txt", self.show_robots)
        app.router.add_get("/.well-known/websub", self.show_well_known)
        app.router.add_get("/.well-known/host-meta", self.show_host_meta)
        app.router.add_get("/.well-known/host-meta.json", self.show_host_meta_json)
        return app

    # -- handlers

    async def show(self, request: web.Request) -> web.StreamResponse:
        return web.Response(
            text=hub_page(
                self.url(request),
                max_topics=self._config.rules.max_topics_per_ping,
                max_document=self._config.max_document,
            ),
            content_type="text/html",
            headers={
                "Content-Security-Policy": "default-src 'none'; style-src 'unsafe-inline'",
                "Link": f'<{self.url(request).rstrip("/")}/.well-known/websub>; rel="service-desc"; '
                'type="application/json"',
                "Vary": "Host",
            },
        )

    async def show_robots(self, _request: web.Request) -> web.StreamResponse:
        return web.Response(text=robots())

    async def show_well_known(self, request: web.Request) -> web.StreamResponse:
        rules = self._config.rules
        document = well_known(
            self.url(request),
            max_body=self._config.max_body,
            max_topics=rules.max_topics_per_ping,
            max_document=self._config.max_document,
        )
        return web.json_response(document, headers={"Vary": "Host"})

    async def show_host_meta(self, request: web.Request) -> web.StreamResponse:
        return web.Response(
            text=host_meta(self.url(request)), content_type="application/xrd+xml", headers={"Vary": "Host"}
        )

    async def show_host_meta_json(self, request: web.Request) -> web.StreamResponse:
        return web.json_response(
            host_meta_json(self.url(request)), content_type="application/jrd+json", headers={"Vary": "Host"}
        )

    def url(self, request: web.Request) -> str:
        """The hub's address: what the operator says it is, or what this client calls it."""
        if self._config.public_url is not None:
            return self._config.public_url
        if _HOST.fullmatch(request.host) is None:
            raise RequestError("the Host header is no host name")
        return f"{request.scheme}://{request.host}/"

    async def show_health(self, _request: web.Request) -> web.StreamResponse:
        report = await self._health()
        return web.json_response(
            {
                "status": "ok" if report.ok else "failing",
                "reasons": [check.text for check in report.checks if not check.ok],
                "checks": {check.name: {"ok": check.ok, "text": check.text} for check in report.checks},
            },
            status=200 if report.ok else 503,
            headers={"Cache-Control": "no-store"},
        )

    async def take(self, request: web.Request) -> web.StreamResponse:
        """POST /: subscribe, unsubscribe or publish."""
        if self._config.moved_to is not None:
            return web.Response(status=308, text="this hub has moved\n", headers={"Location": self._config.moved_to})
        self.gate.client(request)
        if request.query.get("hub.mode") == Mode.PUBLISH and self._may_bring_content(request):
            return await self._take_content(request)
        body = await self._body(request, self._config.max_body)
        try:
            asked = parse_request(request.headers.get(hdrs.CONTENT_TYPE, ""), body, self._config.rules)
        except RequestError as error:
            if "hub.mode" in request.query:
                hint = "hub.mode stands in the address: send it and the rest in the body, as curl -d does"
                raise RequestError(f"{error.text} ({hint})", error.status) from None
            raise
        if isinstance(asked, PublishRequest):
            for topic in asked.topics:
                self._check_address("topic", topic)
                self._check_publisher(request, topic, token=False)
            # A hundred names cost what a hundred requests cost.
            self.gate.client(request, len(asked.topics) - 1)
            return await self._take_ping(asked, self.gate.client_key(request))
        return await self._take_subscription(asked, request)

    async def _take_ping(self, asked: PublishRequest, client: str) -> web.StreamResponse:
        for topic in asked.topics:
            self.gate.share(PER_TOPIC, topic)
        await self._told(asked.topics, self._pings.ping(asked.topics, client))
        return web.Response(status=204)

    async def _told(self, topics: Sequence[str], taking: Awaitable[None]) -> None:
        for topic in topics:
            self._tell(PingArrived(topic))
        try:
            await taking
        except Exception:
            for topic in topics:
                self._tell(PingRefused(topic))
            raise
        for topic in topics:
            self._tell(PingAccepted(topic))

    async def _take_subscription(
        self, asked: SubscribeRequest | UnsubscribeRequest, request: web.Request
    ) -> web.StreamResponse:
        network = self.gate.client_key(request)
        if not self._verifier.is_known(asked.topic, asked.callback):
            if isinstance(asked, SubscribeRequest):
                self._check_address("callback", asked.callback)
                self._check_address("topic", asked.topic)
            self.gate.share(NEW_SUBSCRIPTIONS, network)
            self.gate.share(PER_CALLBACK_HOST, self._prefixes.of_url(asked.callback))
        intent = replace(
            intent_of(asked, self._clock(), self._verifier.new_nonce()),
            address=self.gate.client_address(request)[:MAX_ADDRESS_LENGTH],
            network=network,
        )
        self._tell(IntentAsked(intent.mode, intent.topic, intent.callback))
        if not asked.synchronous:
            await self._verifier.submit(intent)
            return web.Response(status=202, text="accepted: your callback will be asked to confirm\n")
        reason = await self._verifier.check_now(intent)
        if reason is None:
            return web.Response(status=204)
        raise RequestError(f"not confirmed: {reason}", HTTP_CONFLICT)

    def _check_address(self, what: str, url: str) -> None:
        """Refuse what will never be contacted, and say so in the answer: its callback could not be told.

        Only what the URL itself says. Where a name leads is found out later, and not told to strangers: they would
        learn which names are inside the hub's network.
        """
        reason = self._addresses.url_refusal(url)
        if reason is not None:
            raise RequestError(f"this hub does not contact the {what} {url[:MAX_SHOWN]}: {reason}", 403)

    def _check_publisher(self, request: web.Request, topic: str, *, token: bool) -> None:
        if self._publishers is None:
            return
        reason = self._publishers.publisher_refusal(topic, self.gate.client_address(request), token=token)
        if reason is not None:
            raise RequestError(reason, 403)

    def _may_bring_content(self, request: web.Request) -> bool:
        """Whether this is a publisher the operator lets push content; every token is compared, in constant time."""
        given = bearer(request)
        if given is None:
            raise RequestError("bringing content along needs an allowed publisher's token", 401)
        if not self.gate.knows(request, given, self._config.publisher_tokens):
            raise RequestError("this token does not belong to an allowed publisher", 403)
        return True

    async def _take_content(self, request: web.Request) -> web.StreamResponse:
        """A fat ping: the document is the body, its topic is in the query."""
        given = [*request.query.getall("hub.url", []), *request.query.getall("hub.topic", [])]
        if len(given) != 1:
            raise RequestError("content belongs to exactly one hub.url (or hub.topic) in the query")
        try:
            topic = normalised(given[0])
        except UrlError as error:
            raise RequestError(f"hub.url {error}") from None
        content_type = request.headers.get(hdrs.CONTENT_TYPE, "")
        if not content_type:
            raise RequestError("the content needs a Content-Type")
        self._check_publisher(request, topic, token=True)
        self.gate.share(PER_TOPIC, topic)
        body = await self._body(request, self._config.max_fat_ping)
        await self._told([topic], self._pings.offer(topic, Content(content_type, body), topic))
        return web.Response(status=204)

    async def _body(self, request: web.Request, limit: int) -> bytes:
        return await body_of(request, limit, self._config.body_timeout)

    # -- errors

    @web.middleware
    async def _answer_errors(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """Every refusal is a short plain text; every answer can be read by a script of another site."""
        try:
            if request.version > HttpVersion11:
                raise RequestError("this hub speaks HTTP/1.1")
            response = await handler(request)
        except RequestError as error:
            response = self._refusal(request, error.status, error.text)
        except HttpError as error:
            if error.bound:
                self._tell(LimitReached(error.bound))
            response = self._refusal(request, error.status, error.text, error.retry_after)
        except TooManyError as error:
            response = self._refusal(request, 429, error.text, error.retry_after)
        except OverloadedError as error:
            response = self._refusal(request, 503, error.text, error.retry_after)
        except StorageError:
            self._tell(LimitReached("storage"))
            response = self._refusal(
                request, 503, "the hub cannot write to its store now", self._config.storage_retry_after
            )
        except web.HTTPMethodNotAllowed as error:
            allowed = ", ".join(sorted({*error.allowed_methods, hdrs.METH_OPTIONS}))
            if request.method == hdrs.METH_OPTIONS:
                response = _options(allowed)
            else:
                response = self._refusal(
                    request, 405, f"{error.method[:20]} is not possible here: use one of {allowed}"
                )
                response.headers["Allow"] = allowed
        except web.HTTPNotFound:
            response = self._refusal(request, 404, NOTHING_HERE)
        except web.HTTPException as error:
            if error.status < 400:
                raise
            response = self._refusal(request, error.status, error.reason.lower())
        except (asyncio.CancelledError, ConnectionError):
            raise
        except Exception as error:  # our fault: said so, counted, and the connection goes on
            self._tell(RequestBroke(f"{type(error).__name__}: {error}"[:300]))
            response = self._refusal(request, 500, "the hub made a mistake")
        if not response.prepared:
            response.headers.setdefault("Access-Control-Allow-Origin", "*")
            response.headers.setdefault("Access-Control-Expose-Headers", "Allow, Link, Retry-After")
            response.headers.setdefault("X-Content-Type-Options", "nosniff")
        return response

    def _refusal(self, request: web.Request, status: int, text: str, retry_after: float | None = None) -> web.Response:
        self._tell(RequestRefused(status, text, self.gate.client_address(request)[:MAX_ADDRESS_LENGTH]))
        return refusal(HttpError(status, text, retry_after))

    def _tell(self, event: HubEvent) -> None:
        if self._observer is not None:
            self._observer(event)


def _options(allowed: str) -> web.Response:
    return web.Response(
        status=204,
        headers={
            "Allow": allowed,
            "Access-Control-Allow-Methods": allowed,
            "Access-Control-Allow-Headers": ALLOWED_HEADERS,
            "Access-Control-Max-Age": PREFLIGHT_SECONDS,
        },
    )
