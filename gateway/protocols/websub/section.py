"""The sections of the configuration that are about the hub: [hub], and most of [limits]."""

import ipaddress
from typing import Annotated

from msgspec import Meta, Struct

from gateway.sections import SectionError, Sections, address, proxies
from gateway.tls_section import TlsSection
from identifiers import TopicError
from identifiers.topic import canonical_host
from push_hub.bounds import SubscriptionBounds
from push_hub.canary import CanaryConfig
from push_hub.delivery import QueueLimits, Retention
from push_hub.diagnostics import DiagnosticsConfig
from push_hub.feed_proxy.proxy import FeedProxyConfig
from push_hub.hub import HubConfig
from push_hub.intake import IntakeConfig
from push_hub.protocol.leases import LeasePolicy
from push_hub.protocol.urls import UrlError, beginning, normalised
from push_hub.server import ServerConfig
from push_hub.sse import HubStreamConfig
from push_hub.verifier import IntentVerifierConfig
from serving.limits import Rate
from serving.proxies import ProxyHeader

Count = Annotated[int, Meta(ge=1)]
Seconds = Annotated[float, Meta(gt=0.0)]


class CanarySection(Struct, frozen=True, forbid_unknown_fields=True):
    enabled: bool = True
    interval: Seconds = 60.0
    deadline: Seconds = 30.0


class HubSection(Struct, frozen=True, forbid_unknown_fields=True):
    """The HTTP side."""

    listen: str = "127.0.0.1:8080"
    public_url: str | None = None
    allow_private: bool = False
    topics: tuple[str, ...] = ()
    only_own_self: bool = False
    aliases: dict[str, str] = {}
    poll: bool = False
    poll_min: Seconds = 300.0
    poll_max: Seconds = 86_400.0
    trusted_proxies: tuple[str, ...] = ()
    proxy_header: ProxyHeader = ProxyHeader.X_FORWARDED_FOR
    feeds: bool = False
    publisher_tokens_file: str | None = None
    operator_token_file: str | None = None
    stop_grace: Seconds = 5.0
    hosts: dict[str, str] = {}
    canary: CanarySection = CanarySection()
    tls: TlsSection | None = None


class HubLimits(Struct, frozen=True, forbid_unknown_fields=True):
    """What strangers may hold, and how fast they may ask."""

    lease_min: Count = LeasePolicy().minimum
    lease_default: Count = LeasePolicy().default
    lease_max: Count = LeasePolicy().maximum
    connections: Count = ServerConfig().max_connections
    connections_per_client: Count = ServerConfig().connections_per_client
    request_bytes: Count = ServerConfig().max_body
    document_bytes: Count = IntakeConfig().max_body_bytes
    requests_per_client: Seconds = ServerConfig().per_client.per_second
    requests_per_client_burst: Seconds = ServerConfig().per_client.burst
    requests_per_topic: Seconds = ServerConfig().per_topic.per_second
    requests_per_topic_burst: Seconds = ServerConfig().per_topic.burst
    pending_checks: Count = IntentVerifierConfig().max_pending
    subscriptions: Count = SubscriptionBounds().in_all
    subscriptions_per_network: Count = SubscriptionBounds().per_network
    subscriptions_per_address: Count = SubscriptionBounds().per_address
    pending_per_network: Count = SubscriptionBounds().pending_per_network
    new_subscriptions: Seconds = ServerConfig().new_subscriptions.per_second
    new_subscriptions_burst: Seconds = ServerConfig().new_subscriptions.burst
    waiting_topics: Count = IntakeConfig().max_waiting_topics
    fetches: Count = IntakeConfig().max_fetches
    deliveries: Count = QueueLimits().in_flight
    deliveries_per_host: Count = QueueLimits().per_host
    delivery_timeout: Seconds = QueueLimits().timeout
    streams: Count = HubStreamConfig().max_streams
    kept_publications: Count = Retention().publications
    kept_bytes: Count = Retention().bytes
    kept_age: Seconds = Retention().age


def hub_config(sections: Sections) -> HubConfig:
    """Raises `SectionError`."""
    hub, limits = sections.read("hub", HubSection), sections.read("limits", HubLimits)
    host, port = address("hub.listen", hub.listen)
    for key, urls in (("hub.topics", hub.topics), ("hub.public_url", (hub.public_url,) if hub.public_url else ())):
        for url in urls:
            try:
                normalised(url)
            except UrlError as error:
                raise SectionError(key, f"{url[:200]!r} {error}") from None
    try:
        leases = LeasePolicy(limits.lease_min, limits.lease_default, limits.lease_max)
    except ValueError as error:
        raise SectionError("limits.lease_default", str(error)) from None
    operator = sections.secrets("hub.operator_token_file", hub.operator_token_file)
    return HubConfig(
        data=sections.data / "hub",
        host=host,
        port=port,
        public_url=hub.public_url,
        allow_private=hub.allow_private,
        hosts=_hosts(hub.hosts),
        topics=hub.topics,
        only_own_self=hub.only_own_self,
        intake=IntakeConfig(
            max_waiting_topics=limits.waiting_topics,
            max_fetches=limits.fetches,
            max_body_bytes=limits.document_bytes,
            poll=hub.poll,
            poll_min=hub.poll_min,
            poll_max=hub.poll_max,
            aliases=_aliases(hub.aliases),
        ),
        server=ServerConfig(
            max_body=limits.request_bytes,
            max_connections=limits.connections,
            connections_per_client=limits.connections_per_client,
            per_client=Rate(limits.requests_per_client, limits.requests_per_client_burst),
            per_topic=Rate(limits.requests_per_topic, limits.requests_per_topic_burst),
            new_subscriptions=Rate(limits.new_subscriptions, limits.new_subscriptions_burst),
            trusted_proxies=proxies("hub.trusted_proxies", hub.trusted_proxies),
            proxy_header=hub.proxy_header,
            publisher_tokens=sections.secrets("hub.publisher_tokens_file", hub.publisher_tokens_file),
        ),
        verifier=IntentVerifierConfig(max_pending=limits.pending_checks, leases=leases),
        bounds=SubscriptionBounds(
            limits.subscriptions,
            limits.subscriptions_per_network,
            limits.subscriptions_per_address,
            limits.pending_per_network,
        ),
        deliveries=QueueLimits(
            in_flight=limits.deliveries, per_host=limits.deliveries_per_host, timeout=limits.delivery_timeout
        ),
        retention=Retention(limits.kept_publications, limits.kept_bytes, limits.kept_age),
        streams=HubStreamConfig(max_streams=limits.streams),
        feeds=FeedProxyConfig(hub.feeds),
        diagnostics=DiagnosticsConfig(operator_token=operator[0] if operator else None),
        canary=CanaryConfig(hub.canary.enabled, hub.canary.interval, hub.canary.deadline),
        stop_grace=hub.stop_grace,
        memory=sections.memory,
        tls=sections.tls("hub.tls", hub.tls),
    )


def _aliases(aliases: dict[str, str]) -> tuple[tuple[str, str], ...]:
    try:
        return tuple((beginning(here), beginning(there)) for here, there in aliases.items())
    except UrlError as error:
        raise SectionError("hub.aliases", f'expected "URL" = "URL": {error}') from None


def _hosts(hosts: dict[str, str]) -> tuple[tuple[str, str], ...]:
    for name, where in hosts.items():
        try:
            canonical_host(name)
            ipaddress.IPv4Address(where)
        except (TopicError, ValueError) as error:
            raise SectionError("hub.hosts", f'expected NAME = "IPv4 ADDRESS": {error}') from None
    return tuple((canonical_host(name), where) for name, where in hosts.items())
