"""The whole hub, put together: store, protocol, verifier, intake, delivery, server.

    hub = Hub(HubConfig(data=Path("var"), port=8080))
    await hub.start()
    ...
    await hub.stop()

It runs alone. Somebody who wants more (a gateway) adds a listener, and hands publications in with `deliver`.
"""

import asyncio
import time
from collections.abc import Callable, Coroutine, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path

from aiohttp import web

from push_hub.bounds import SubscriptionBounds
from push_hub.canary import MIGRATIONS as CANARY_TABLES
from push_hub.canary import Canary, CanaryConfig, remove_traces
from push_hub.delivery import MIGRATIONS as DELIVERY_TABLES
from push_hub.delivery import ContentRefusedError, Delivery, DeliveryConfig, QueueLimits, Retention
from push_hub.delivery import DeliveryOverloadedError as DeliveryOverloadedError
from push_hub.diagnostics import Diagnostics, DiagnosticsConfig
from push_hub.feed_proxy.proxy import FeedProxy, FeedProxyConfig
from push_hub.health import MIGRATIONS as HEALTH_TABLES
from push_hub.health import Check, Health, HealthConfig, HealthReport, QueueLevel
from push_hub.intake import MIGRATIONS as INTAKE_TABLES
from push_hub.intake import Intake, IntakeConfig
from push_hub.listeners import GuardedListener
from push_hub.model import Content, Dialect, HubListener, HubPublication, HubSubscription
from push_hub.policy import AllOf, AllPublisherPolicies, OnlyOwnSelf, OnlyTopics
from push_hub.ports import Elsewhere, GetFailedError, GetResponse, Nowhere, OverloadedError, PublisherPolicy, Validator
from push_hub.protocol.numbers import Mode
from push_hub.protocol.requests import RequestError
from push_hub.protocol.verification import Intent
from push_hub.schema import HUB_TABLES, SUBSCRIPTION_TABLES
from push_hub.server import HubServer, ServerConfig
from push_hub.sse import HubStreamConfig, Streams
from push_hub.subscriptions import DEFAULT_HISTORY_ROWS, Change, Subscriptions
from push_hub.verifier import IntentVerifier, IntentVerifierConfig
from push_hub.without_canary import WithoutCanary
from serving.outbound.addresses import AddressPolicy
from serving.outbound.client import ClientConfig, OutboundClient
from serving.outbound.errors import AddressRefusedError, OutboundError, ShareTakenError, UrlRefusedError
from serving.port import Port, PortConfig
from serving.tls import TlsFiles
from storage import Database, StorageError, Transaction
from storage.clock import steady
from storage.memory import MemoryBudget
from storage.private import make_private_folder
from storage.queues import QueueObserver

DATABASE_NAME = "hub.sqlite"
TABLES = [*HUB_TABLES, *DELIVERY_TABLES, *SUBSCRIPTION_TABLES, *INTAKE_TABLES, *HEALTH_TABLES, *CANARY_TABLES]


@dataclass(frozen=True, slots=True)
class HubConfig:
    """Everything an operator may set. `public_url` is what subscribers are told; without it, the listening address."""

    data: Path
    host: str = "127.0.0.1"
    port: int = 0
    public_url: str | None = None
    allow_private: bool = False
    hosts: tuple[tuple[str, str], ...] = ()
    """(name, address) pairs that the hub's own requests use before the name service, as in /etc/hosts."""
    topics: tuple[str, ...] = ()
    """When given, only topics below these addresses are served."""
    only_own_self: bool = False
    """Refuse a topic whose document names another address as its own (costs a fetch for each new subscription)."""
    server: ServerConfig = field(default_factory=ServerConfig)
    verifier: IntentVerifierConfig = field(default_factory=IntentVerifierConfig)
    bounds: SubscriptionBounds = field(default_factory=SubscriptionBounds)
    deliveries: QueueLimits = field(default_factory=QueueLimits)
    retention: Retention = field(default_factory=Retention)
    max_requests_out: int = 4096
    intake: IntakeConfig = field(default_factory=IntakeConfig)
    streams: HubStreamConfig = field(default_factory=HubStreamConfig)
    diagnostics: DiagnosticsConfig = field(default_factory=DiagnosticsConfig)
    feeds: FeedProxyConfig = field(default_factory=FeedProxyConfig)
    canary: CanaryConfig = field(default_factory=CanaryConfig)
    health: HealthConfig = field(default_factory=HealthConfig)
    history_rows: int = DEFAULT_HISTORY_ROWS
    stop_grace: float = 5.0
    memory: MemoryBudget = field(default_factory=MemoryBudget)
    tls: TlsFiles | None = None
    """Speak TLS, and nothing else, with these."""


class GuardedGetter:
    """The verifier's GETs, by the hub's one client."""

    def __init__(self, client: OutboundClient) -> None:
        self._client = client

    async def get(
        self,
        url: str,
        *,
        timeout: float,  # noqa: ASYNC109 - a bound of the port
        max_bytes: int,
        counted: Callable[[str], bool] | None = None,
    ) -> GetResponse:
        try:
            answer = await self._client.request(
                "GET",
                url,
                headers={"Accept": "*/*"},
                body=None,
                timeout=timeout,
                max_bytes=max_bytes,
                counted=counted,
            )
        except ShareTakenError:
            raise
        except OutboundError as error:
            lasting = isinstance(error, AddressRefusedError | UrlRefusedError)
            raise GetFailedError(error.reason, lasting) from error
        return GetResponse(answer.status, answer.body)


class Hub:
    def __init__(
        self,
        config: HubConfig,
        *,
        validator: Validator | None = None,
        publishers: PublisherPolicy | None = None,
        observer: Callable[[object], None] | None = None,
        clock: Callable[[], float] = steady,
        monotonic: Callable[[], float] = time.monotonic,
        queues: QueueObserver | None = None,
    ) -> None:
        """`queues` is told of every stay in a queue, and of callbacks that are left alone."""
        self._queues = queues
        self._config = config
        self._validator = validator
        self._publishers = publishers
        self._observer = None if observer is None else WithoutCanary(observer)
        self._clock = clock
        self._monotonic = monotonic
        self.elsewhere: Elsewhere = Nowhere()
        """Who may want topics beyond this hub; set before the start."""
        self._listeners: list[HubListener] = []
        self._mounts: list[tuple[str, web.Application]] = []
        self._background: set[asyncio.Task[None]] = set()
        self._parts: _Parts | None = None

    # -- for users of the hub

    @property
    def url(self) -> str:
        return self._running.url

    @property
    def local_url(self) -> str:
        """Where it listens, whatever it is called outside."""
        return self._running.port.url

    @property
    def subscriptions(self) -> Subscriptions:
        return self._running.subscriptions

    @property
    def delivery(self) -> Delivery:
        return self._running.delivery

    @property
    def verifier(self) -> IntentVerifier:
        return self._running.verifier

    @property
    def canary(self) -> Canary | None:
        return self._running.canary

    def add_listener(self, listener: HubListener) -> None:
        self._listeners.append(GuardedListener(listener, self._observer))

    @property
    def outbound(self) -> OutboundClient:
        """The guarded client, for whoever makes requests in the hub's name."""
        return self._running.client

    def mount(self, prefix: str, app: web.Application) -> None:
        """Serve an application of somebody else below a path, from the next start on."""
        self._mounts = [(known, other) for known, other in self._mounts if known != prefix] + [(prefix, app)]

    def reconfigure(self, server: ServerConfig, tls: TlsFiles | None = None) -> None:
        """For requests from now on: see `HubServer.reconfigure`. Certificates are looked at as well."""
        parts = self._running
        config = self._config
        parts.server.reconfigure(
            replace(server, public_url=config.public_url, max_document=config.intake.max_body_bytes)
        )
        parts.port.take_up(tls, server.trusted_proxies)

    async def ping(self, topics: Sequence[str]) -> None:
        """As if a publisher had said that these changed. On disk when this returns. Raises `OverloadedError`."""
        await self._running.intake.ping(topics)

    async def wanted(self, topic: str) -> None:
        """Somebody elsewhere wants the topic now. If it was pinged when nobody did, it is fetched."""
        await self._running.intake.wanted(topic)

    def pinged_unwanted(self, after: str, limit: int) -> Sequence[str]:
        """Topics that were pinged and that nobody wanted, in the order of their names, after one that is known."""
        return self._running.intake.unwanted_after(after, limit)

    async def offer(self, topic: str, self_url: str, content: Content) -> None:
        """Take a state of a topic as if its publisher had brought it; what is new is published, also beyond this hub.

        It is on disk when this returns. Raises `OverloadedError`, and `RequestError` for content that is refused.
        """
        await self._running.intake.offer(topic, content, self_url)

    async def deliver(self, topic: str, self_url: str, content: Content) -> HubPublication:
        """Send this state of a topic to its subscribers here. It is on disk when this returns.

        Listeners are not told: whoever calls this knows, and a gateway must not hear its own echo.
        """
        publication = await self._accept(topic, self_url, content)
        self._running.streams.published(topic)
        return publication

    async def bring(self, topic: str, self_url: str, content: Content) -> None:
        """Take a state of a topic that a gateway brought from another network: what is new in it goes to subscribers.

        It is on disk when this returns. The same state again changes nothing. Raises `OverloadedError`, and
        `RequestError` for content that is refused.
        """
        await self._running.intake.offer(topic, replace(content, brought=True), self_url)

    async def deny(self, topic: str, callback: str, reason: str) -> None:
        """End or refuse a subscription, and tell its callback."""
        verifier = self._running.verifier
        subscription = self._running.subscriptions.find(topic, callback, self._clock())
        dialect = subscription.dialect if subscription is not None else Dialect.WEBSUB
        await verifier.deny(
            Intent(Mode.DENIED, topic, callback, dialect, self._clock(), verifier.new_nonce(), reason=reason)
        )

    # -- for the operator; each says whether there was something to do

    def is_subscribed(self, topic: str, callback: str) -> bool:
        return self._running.subscriptions.find(topic, callback, self._clock()) is not None

    async def retry_now(self, topic: str, callback: str) -> bool:
        """Try what is owed to a subscription without waiting for its next try."""
        found = self._running.subscriptions.find(topic, callback, self._clock())
        return found is not None and await self._running.delivery.retry_now(found)

    async def pause(self, topic: str, callback: str) -> bool:
        """Leave a callback alone: what it misses is owed to it. Raises `TooManyPausedError`."""
        found = self._running.subscriptions.find(topic, callback, self._clock())
        if found is None or self._running.delivery.is_paused(found.id):
            return False
        await self._running.delivery.pause(found.id)
        return True

    async def resume(self, topic: str, callback: str) -> bool:
        found = self._running.subscriptions.find(topic, callback, self._clock())
        return found is not None and await self._running.delivery.resume(found.id)

    async def reverify(self, topic: str, callback: str) -> bool:
        """Ask a callback again whether it wants its subscription. Yes renews the lease; no ends the subscription.

        Raises `OverloadedError`.
        """
        found = self._running.subscriptions.find(topic, callback, self._clock())
        if found is None:
            return False
        verifier = self._running.verifier
        # Only 0.3 has these, and its subscribers know a check by its token.
        kept = self._running.database.read(
            "SELECT verify_token, lease_asked FROM refreshes WHERE subscription = ?", (found.id,)
        )
        token, lease_asked = kept[0] if kept else (None, None)
        intent = Intent(
            Mode.SUBSCRIBE,
            topic,
            callback,
            found.dialect,
            self._clock(),
            verifier.new_nonce(),
            secret=found.secret,
            signature=found.signature,
            lease_asked=lease_asked,
            verify_token=token,
            refresh=True,
            difference=found.difference,
        )
        await verifier.submit(intent)
        return True

    async def health(self) -> HealthReport:
        return await self._running.health.report()

    @property
    def queues(self) -> Sequence[QueueLevel]:
        """What waits, and from how many on more is refused."""
        return self._running.health.levels()

    @property
    def database(self) -> Database:
        """For whoever shows what is in it. Only the hub writes to it."""
        return self._running.database

    # -- life

    async def start(self) -> None:
        config = self._config
        make_private_folder(config.data, (DATABASE_NAME,))
        port = Port(self._port_config(), self._observer)
        canary: Canary | None = None
        try:
            if config.canary.enabled:
                canary = Canary(config.canary, clock=self._clock, monotonic=self._monotonic, observer=self._observer)
            database = Database.open(config.data / DATABASE_NAME, TABLES, queues=self._queues)
        except BaseException:
            await port.stop()
            if canary is not None:
                await canary.stop()
            raise
        if self._observer is not None:
            self._observer.topic = None if canary is None else canary.topic
        parts = self._parts = self._put_together(config.public_url or port.url, database, canary, port)
        try:
            remove_traces(database, canary.topic if canary is not None else None)
            await parts.delivery.start()
            await parts.verifier.start()
            await parts.intake.start()
            await port.serve(parts.app)
            if canary is not None:
                await canary.start(parts.subscriptions, parts.verifier, parts.intake)
        except BaseException:
            await self.stop()
            raise

    def _port_config(self) -> PortConfig:
        config, server = self._config, self._config.server
        return PortConfig(
            config.host,
            config.port,
            config.tls,
            header_timeout=server.header_timeout,
            keepalive_timeout=server.keepalive_timeout,
            max_connections=server.max_connections,
            connections_per_client=server.connections_per_client,
            proxies=server.trusted_proxies,
            proxy_header=server.proxy_header,
            linger=server.linger,
            stop_grace=config.stop_grace,
        )

    def _put_together(self, url: str, database: Database, canary: Canary | None, port: Port) -> "_Parts":
        config = self._config
        subscriptions = Subscriptions(database, history_rows=config.history_rows, bounds=config.bounds)
        policy = AddressPolicy(config.allow_private, own=frozenset([canary.address] if canary is not None else ()))
        client = OutboundClient(ClientConfig(policy, config.max_requests_out, hosts=config.hosts))
        delivery_config = DeliveryConfig(
            url, limits=config.deliveries, retention=config.retention, kept_bytes=config.memory.delivered
        )
        delivery = Delivery(
            database,
            subscriptions,
            client,
            delivery_config,
            self._clock,
            self._observer,
            gone=self._gone,
            queues=self._queues,
        )
        verifier = IntentVerifier(
            subscriptions,
            GuardedGetter(client),
            config.verifier,
            changed=self._changed,
            validator=self._policy(client, canary),
            observer=self._observer,
            clock=self._clock,
            prefixes=client.prefixes,
        )
        intake = Intake(
            database,
            client,
            _ListenedSink(self),
            config.intake,
            self._clock,
            self._observer,
            prefixes=client.prefixes,
            elsewhere=self.elsewhere,
            queues=self._queues,
        )
        health = Health(
            config.health,
            database,
            lambda: (
                QueueLevel("unfinished fan-outs", delivery.backlog, delivery_config.max_backlog),
                QueueLevel("topics to fetch", intake.waiting, config.intake.max_waiting_topics),
                QueueLevel("callbacks to verify", verifier.waiting, config.verifier.max_pending),
            ),
            lambda: _canary_check(canary),
            clock=self._clock,
            monotonic=self._monotonic,
        )
        server = HubServer(
            replace(config.server, public_url=config.public_url, max_document=config.intake.max_body_bytes),
            verifier,
            intake,
            health=health.report,
            publishers=self._publisher_policy(),
            observer=self._observer,
            clock=self._clock,
            monotonic=self._monotonic,
            prefixes=client.prefixes,
            addresses=policy,
        )
        streams = Streams(config.streams, delivery, server.gate)
        app = server.application()
        streams.add_routes(app)
        diagnostics = Diagnostics(
            config.diagnostics, database, subscriptions, delivery, server.gate, self._topic_refusal(policy), self._clock
        )
        diagnostics.add_routes(app)
        feeds = FeedProxy(
            config.feeds,
            client,
            config.intake,
            server.gate,
            hub_url=server.url,
            refusal=self._topic_refusal(policy),
            monotonic=self._monotonic,
        )
        if config.feeds.enabled:
            feeds.add_routes(app)
        for prefix, mounted in self._mounts:
            app.add_subapp(prefix, mounted)
        return _Parts(
            url,
            database,
            subscriptions,
            client,
            delivery,
            verifier,
            intake,
            streams,
            feeds,
            app,
            health,
            canary,
            server,
            port,
        )

    def _topic_refusal(self, addresses: AddressPolicy) -> Callable[[str], str | None]:
        """Why nobody can have a topic here, whoever asks, as far as its name says it."""
        only = OnlyTopics(self._config.topics) if self._config.topics else None

        def refusal(topic: str) -> str | None:
            reason = addresses.url_refusal(topic)
            if reason is not None:
                return f"this hub does not contact its address: {reason}"
            return None if only is None else only.publisher_refusal(topic, "", token=False)

        return refusal

    def _publisher_policy(self) -> PublisherPolicy:
        policies: list[PublisherPolicy] = [] if self._publishers is None else [self._publishers]
        if self._config.topics:
            policies.append(OnlyTopics(self._config.topics))
        return AllPublisherPolicies(policies)

    def _policy(self, client: OutboundClient, canary: Canary | None) -> Validator | None:
        config = self._config
        policies: list[Validator] = []
        if config.topics:
            policies.append(OnlyTopics(config.topics))
        if self._validator is not None:
            policies.append(self._validator)
        if config.only_own_self:
            policies.append(OnlyOwnSelf(client, config.intake))
        return _ForStrangers(AllOf(policies), canary) if policies else None

    async def stop(self) -> None:
        """Take nothing new, give what is under way a moment, write down what is known. Idempotent."""
        if self._parts is None:
            return
        parts = self._parts
        if parts.canary is not None:
            await parts.canary.stop()
        parts.streams.close()
        # Before the server: a request that waits for its synchronous check is answered now.
        await parts.verifier.stop()
        await parts.feeds.stop()
        await parts.port.stop()
        await parts.health.stop()
        await parts.intake.stop()
        await parts.delivery.stop()
        await asyncio.gather(*self._background, return_exceptions=True)
        await parts.client.close()
        self._parts = None
        parts.database.close()

    # -- inside

    @property
    def _running(self) -> "_Parts":
        if self._parts is None:
            raise RuntimeError("the hub is not running")
        return self._parts

    async def accept_from_intake(
        self, topic: str, self_url: str, content: Content, along: Callable[[Transaction], None] | None
    ) -> HubPublication:
        publication = await self._accept(topic, self_url, content, along)
        canary = self._running.canary
        if canary is not None and topic == canary.topic:
            canary.accepted()
            return publication
        if not content.brought:
            for listener in self._listeners:
                listener.publication_accepted(publication)
        self._running.streams.published(topic)
        return publication

    async def _accept(
        self, topic: str, self_url: str, content: Content, along: Callable[[Transaction], None] | None = None
    ) -> HubPublication:
        try:
            return await self._running.delivery.accept(topic, self_url, content, along)
        except DeliveryOverloadedError as error:
            raise OverloadedError(error.retry_after) from error
        except ContentRefusedError as error:
            raise RequestError(str(error)) from error

    def _changed(self, change: Change) -> None:
        canary = self._running.canary
        if canary is not None and change.topic == canary.topic:
            canary.subscribers_changed(change.live)
            return
        if change.live:
            self._in_background(self._wanted_here(change.topic))
        for listener in self._listeners:
            listener.subscription_changed(change.topic, change.live)

    def _gone(self, subscription: HubSubscription) -> None:
        self._in_background(self._remove(subscription))

    def _in_background(self, work: Coroutine[None, None, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._background.add(task)
        task.add_done_callback(self._background.discard)

    async def _wanted_here(self, topic: str) -> None:
        with suppress(StorageError):  # the intake's next round sees that somebody is subscribed
            await self._running.intake.wanted(topic)

    async def _remove(self, subscription: HubSubscription) -> None:
        with suppress(StorageError):  # the next delivery gets a 410 again
            change = await self._running.subscriptions.remove(
                subscription.id, "its callback answered 410 (gone)", self._clock()
            )
            if change is not None:
                self._changed(change)


class _ForStrangers:
    """The operator's policy for everybody but the hub's own canary."""

    def __init__(self, validator: Validator, canary: Canary | None) -> None:
        self._validator = validator
        self._canary = canary

    async def refusal(self, topic: str, callback: str) -> str | None:
        if self._canary is not None and (topic, callback) == (self._canary.topic, self._canary.callback):
            return None
        return await self._validator.refusal(topic, callback)


def _canary_check(canary: Canary | None) -> Check:
    if canary is None:
        return Check("canary", True, "switched off")
    trouble = canary.trouble()
    if trouble is not None:
        return Check("canary", False, trouble)
    ago = canary.seconds_since_arrival
    return Check("canary", True, "on its first way" if ago is None else f"arrived {ago:.0f} seconds ago")


class _ListenedSink:
    """What intake finds goes to delivery and to the listeners."""

    def __init__(self, hub: Hub) -> None:
        self._hub = hub

    async def accept(
        self, topic: str, self_url: str, content: Content, along: Callable[[Transaction], None] | None = None
    ) -> HubPublication:
        return await self._hub.accept_from_intake(topic, self_url, content, along)


@dataclass(frozen=True, slots=True)
class _Parts:
    url: str
    database: Database
    subscriptions: Subscriptions
    client: OutboundClient
    delivery: Delivery
    verifier: IntentVerifier
    intake: Intake
    streams: Streams
    feeds: FeedProxy
    app: web.Application
    health: Health
    canary: Canary | None
    server: HubServer
    port: Port
