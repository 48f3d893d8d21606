"""The sections of the configuration file for people and scripts: [web] and [chat]."""

import ipaddress
from collections.abc import Callable
from typing import Annotated
from urllib.parse import urlsplit

from msgspec import Meta, Struct

from gateway.adapters.chat import ChatConfig
from gateway.adapters.stream import StreamConfig
from gateway.tls_section import TlsSection
from gateway.web.server import WebConfig
from identifiers import Topic, TopicError
from identifiers.topic import canonical_host
from serving.limits import Rate
from serving.tls import TlsFiles

Count = Annotated[int, Meta(ge=1)]
Positive = Annotated[float, Meta(gt=0.0)]
ANY = "*"


class SectionError(ValueError):
    """A value that cannot be used, and its key."""

    def __init__(self, key: str, what: str) -> None:
        super().__init__(what)
        self.key = key
        self.what = what


class WebSection(Struct, frozen=True, forbid_unknown_fields=True):
    """The port for people and scripts; without `listen` there is none."""

    listen: str = ""
    public_url: str | None = None
    names: tuple[str, ...] = ()
    trusted_proxies: tuple[str, ...] = ()
    anyone_may_publish: bool = False
    publish_tokens_file: str | None = None
    publish_below: tuple[str, ...] = ()
    cors_origins: tuple[str, ...] = ()
    connections: Count = WebConfig().max_connections
    connections_per_client: Count = WebConfig().connections_per_client
    requests_per_client: Positive = WebConfig().per_client.per_second
    requests_per_client_burst: Positive = WebConfig().per_client.burst
    publications_per_topic: Positive = WebConfig().per_topic.per_second
    publications_per_topic_burst: Positive = WebConfig().per_topic.burst
    readers: Count = StreamConfig().max_streams
    readers_per_client: Count = StreamConfig().max_streams_per_client
    waiting_bytes: Count = StreamConfig().max_waiting_bytes
    published_bytes: Count = StreamConfig().max_body
    tls: TlsSection | None = None


class ChatSection(Struct, frozen=True, forbid_unknown_fields=True):
    """The chat page. It is there when the gateway has a domain and a web port."""

    enabled: bool = True
    people: Count = ChatConfig("example.com").max_users
    partners: Count = ChatConfig("example.com").max_partners
    kept_messages: Count = ChatConfig("example.com").keep
    waiting_messages: Count = ChatConfig("example.com").max_waiting
    messages_per_second: Positive = ChatConfig("example.com").messages_per_second
    messages_burst: Positive = ChatConfig("example.com").message_burst
    idle_days: Positive = ChatConfig("example.com").idle_days
    unused_days: Positive = ChatConfig("example.com").unused_days
    pages: Count = ChatConfig("example.com").max_pages
    pages_per_person: Count = ChatConfig("example.com").max_pages_per_user
    pages_per_client: Count = ChatConfig("example.com").max_pages_per_client


def web_config(
    section: WebSection,
    chat: ChatSection,
    domain: str | None,
    address: Callable[[str, str], tuple[str, int]],
    secrets: Callable[[str, str | None], tuple[str, ...]],
    tls: Callable[[str, TlsSection | None], TlsFiles | None],
) -> WebConfig | None:
    """What the two sections say. `address`, `secrets` and `tls` read such values of a key. Raises `SectionError`."""
    if not section.listen:
        return None
    host, port = address("web.listen", section.listen)
    for key, origins in (("web.cors_origins", section.cors_origins), ("web.public_url", _some(section.public_url))):
        for origin in origins:
            if origin != ANY and not _is_http(origin):
                raise SectionError(key, f"expected http://HOST or https://HOST, not {origin[:200]!r}")
    for proxy in section.trusted_proxies:
        try:
            ipaddress.ip_address(proxy)
        except ValueError:
            raise SectionError("web.trusted_proxies", f"expected IP addresses, not {proxy[:80]!r}") from None
    for prefix in section.publish_below:
        try:
            Topic.parse(prefix)
        except TopicError as error:
            raise SectionError("web.publish_below", f"{prefix[:200]!r}: {error}") from None
    return WebConfig(
        host=host,
        port=port,
        public_url=section.public_url,
        names=frozenset(map(_name, section.names)),
        chat=_chat(chat, domain),
        streams=StreamConfig(
            max_streams=section.readers,
            max_streams_per_client=section.readers_per_client,
            max_waiting_bytes=section.waiting_bytes,
            max_body=section.published_bytes,
            tokens=secrets("web.publish_tokens_file", section.publish_tokens_file),
            anyone_may_publish=section.anyone_may_publish,
            publish_below=section.publish_below,
            cors_origins=section.cors_origins,
        ),
        per_client=Rate(section.requests_per_client, section.requests_per_client_burst),
        per_topic=Rate(section.publications_per_topic, section.publications_per_topic_burst),
        trusted_proxies=frozenset(section.trusted_proxies),
        max_connections=section.connections,
        connections_per_client=section.connections_per_client,
        tls=tls("web.tls", section.tls),
    )


def _chat(section: ChatSection, domain: str | None) -> ChatConfig | None:
    if domain is None or not section.enabled:
        return None
    return ChatConfig(
        domain,
        max_users=section.people,
        max_partners=section.partners,
        keep=section.kept_messages,
        max_waiting=section.waiting_messages,
        idle_days=section.idle_days,
        unused_days=section.unused_days,
        messages_per_second=section.messages_per_second,
        message_burst=section.messages_burst,
        max_pages=section.pages,
        max_pages_per_user=section.pages_per_person,
        max_pages_per_client=section.pages_per_client,
    )


def _name(given: str) -> str:
    if given == ANY:
        return given
    try:
        return canonical_host(given)
    except TopicError as error:
        raise SectionError("web.names", f"{given[:80]!r} is no host name: {error}") from None


def _some(value: str | None) -> tuple[str, ...]:
    return () if value is None else (value,)


def _is_http(url: str) -> bool:
    try:
        parts = urlsplit(url)
    except ValueError:
        return False
    return parts.scheme in ("http", "https") and bool(parts.hostname)
