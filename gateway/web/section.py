"""The section [web] of the configuration, as far as it is about the port; protocols have keys of their own there."""

from typing import Annotated
from urllib.parse import urlsplit

from msgspec import Meta, Struct

from gateway.sections import ANY, SectionError, Sections, address, host_name, proxies
from gateway.tls_section import TlsSection
from gateway.web.server import WebConfig
from serving.limits import Rate
from serving.proxies import ProxyHeader

Count = Annotated[int, Meta(ge=1)]
Positive = Annotated[float, Meta(gt=0.0)]


class WebSection(Struct, frozen=True, forbid_unknown_fields=True):
    """The port for people and scripts; without `listen` there is none."""

    listen: str = ""
    public_url: str | None = None
    names: tuple[str, ...] = ()
    trusted_proxies: tuple[str, ...] = ()
    proxy_header: ProxyHeader = ProxyHeader.X_FORWARDED_FOR
    cors_origins: tuple[str, ...] = ()
    connections: Count = WebConfig().max_connections
    connections_per_client: Count = WebConfig().connections_per_client
    requests_per_client: Positive = WebConfig().per_client.per_second
    requests_per_client_burst: Positive = WebConfig().per_client.burst
    publications_per_topic: Positive = WebConfig().per_topic.per_second
    publications_per_topic_burst: Positive = WebConfig().per_topic.burst
    tls: TlsSection | None = None


def web_config(sections: Sections) -> WebConfig | None:
    """Raises `SectionError`."""
    section = sections.read("web", WebSection)
    if not section.listen:
        return None
    host, port = address("web.listen", section.listen)
    public = () if section.public_url is None else (section.public_url,)
    for key, origins in (("web.cors_origins", section.cors_origins), ("web.public_url", public)):
        for origin in origins:
            if origin != ANY and not _is_http(origin):
                raise SectionError(key, f"expected http://HOST or https://HOST, not {origin[:200]!r}")
    return WebConfig(
        host=host,
        port=port,
        public_url=section.public_url,
        names=frozenset(host_name("web.names", name) for name in section.names),
        cors_origins=section.cors_origins,
        per_client=Rate(section.requests_per_client, section.requests_per_client_burst),
        per_topic=Rate(section.publications_per_topic, section.publications_per_topic_burst),
        trusted_proxies=proxies("web.trusted_proxies", section.trusted_proxies),
        proxy_header=section.proxy_header,
        max_connections=section.connections,
        connections_per_client=section.connections_per_client,
        tls=sections.tls("web.tls", section.tls),
    )


def _is_http(url: str) -> bool:
    try:
        parts = urlsplit(url)
    except ValueError:
        return False
    return parts.scheme in ("http", "https") and bool(parts.hostname)
