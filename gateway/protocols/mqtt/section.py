"""The section [mqtt] of a gateway's configuration."""

from dataclasses import dataclass, field
from typing import Annotated

from msgspec import Meta, Struct

from gateway.protocols.mqtt.bridge import BridgePlan, check_plan
from gateway.protocols.mqtt.broker import BrokerConfig
from gateway.protocols.mqtt.packets import CodecError
from gateway.protocols.mqtt.users import KnownUsers, UsersFileError, read_users
from gateway.sections import SectionError, Sections, address
from gateway.tls_section import TlsSection
from identifiers import TopicError
from identifiers.topic import canonical_host
from serving.tls import TlsFiles

_DEFAULTS = BrokerConfig()
LOCAL_DOMAIN = "localhost"
"""Of topics, where the gateway has no domain."""

Count = Annotated[int, Meta(ge=1)]
Word = Annotated[int, Meta(ge=1, le=65_535)]
Seconds = Annotated[float, Meta(ge=0.0)]


@dataclass(frozen=True, slots=True)
class MqttRedirect:
    """Where clients are sent."""

    server: str
    """HOST:PORT of another broker."""
    moved: bool = False
    """For good: clients should remember it."""
    active: bool = False
    """The other broker knows their topics already."""


class MqttBridgeSection(Struct, frozen=True, forbid_unknown_fields=True):
    """A bridge to another broker."""

    name: Annotated[str, Meta(min_length=1, max_length=40, pattern="^[A-Za-z0-9_-]+$")]
    server: Annotated[str, Meta(min_length=3, max_length=255)]
    """HOST:PORT."""
    outgoing: tuple[str, ...] = ()
    incoming: tuple[str, ...] = ()
    share: Annotated[str, Meta(max_length=100, pattern="^[^+#/]*$")] = ""
    qos: Annotated[int, Meta(ge=0, le=2)] = 1
    user: str | None = None
    password_file: str | None = None


class MqttSection(Struct, frozen=True, forbid_unknown_fields=True):
    listen: str | None = None
    tls_listen: str | None = None
    tls: TlsSection | None = None
    websocket: str = ""
    domain: str | None = None
    allow_anonymous: bool = False
    users_file: str | None = None
    tokens_file: str | None = None
    clients: Count = 20_000
    clients_per_network: Count = 1_000
    sessions: Count = _DEFAULTS.max_sessions
    subscriptions: Count = _DEFAULTS.max_subscriptions
    queued: Annotated[int, Meta(ge=1, le=60_000)] = _DEFAULTS.max_queued
    queued_bytes: Count = _DEFAULTS.max_queued_bytes
    retained: Count = _DEFAULTS.max_retained
    retained_bytes: Count = _DEFAULTS.max_retained_bytes
    packet_bytes: Annotated[int, Meta(ge=1024, le=268_435_455)] = _DEFAULTS.max_packet
    inflight: Word = _DEFAULTS.max_inflight
    receive_maximum: Word = _DEFAULTS.receive_maximum
    topic_aliases: Annotated[int, Meta(ge=0, le=65_535)] = _DEFAULTS.topic_aliases
    keep_alive_max: Annotated[int, Meta(ge=0, le=65_535)] = _DEFAULTS.max_keep_alive
    figures_every: Seconds = 10.0
    extension: bool = True
    relay: bool = False
    redirect: Annotated[str, Meta(max_length=255)] = ""
    redirect_moved: bool = False
    redirect_active: bool = False
    bridge: tuple[MqttBridgeSection, ...] = ()


@dataclass(frozen=True, slots=True)
class MqttPlace:
    """Where a door is."""

    host: str
    port: int
    tls: TlsFiles | None = None


@dataclass(frozen=True, slots=True)
class MqttConfig:
    doors: tuple[MqttPlace, ...] = ()
    websocket: str = ""
    """The path of the port that HTTP protocols share; empty: none."""
    domain: str = LOCAL_DOMAIN
    users: KnownUsers = field(default_factory=KnownUsers)
    broker: BrokerConfig = field(default_factory=BrokerConfig)
    clients: int = 20_000
    clients_per_network: int = 1_000
    figures_every: float = 10.0
    """Seconds; 0: there is nothing below $SYS."""
    extension: bool = True
    """Whether clients may ask for the redirection extension of 3.1."""
    redirect: MqttRedirect | None = None
    bridges: tuple[BridgePlan, ...] = ()


def mqtt_config(sections: Sections) -> MqttConfig | None:
    section = sections.read("mqtt", MqttSection)
    if section.websocket and not sections.has_web_port:
        raise SectionError("mqtt.websocket", "WebSockets are on the port of [web], which is not there")
    if section.websocket and not section.websocket.startswith("/"):
        raise SectionError("mqtt.websocket", f"expected a path like /mqtt, not {section.websocket[:80]!r}")
    doors: list[MqttPlace] = []
    if section.listen is not None:
        doors.append(MqttPlace(*address("mqtt.listen", section.listen)))
    if section.tls_listen is not None:
        files = sections.tls("mqtt.tls", section.tls)
        if files is None:
            raise SectionError("mqtt.tls", "expected a certificate and its key, for mqtt.tls_listen")
        doors.append(MqttPlace(*address("mqtt.tls_listen", section.tls_listen), files))
    if not doors and not section.websocket:
        return None
    users = _users(sections, section)
    if users.is_empty and not users.allow_anonymous:
        raise SectionError(
            "mqtt.users_file", "nobody could connect: name a file of users or of tokens, or set mqtt.allow_anonymous"
        )
    return MqttConfig(
        tuple(doors),
        section.websocket,
        _domain(section.domain or sections.domain or LOCAL_DOMAIN),
        users,
        BrokerConfig(
            max_sessions=section.sessions,
            max_subscriptions=section.subscriptions,
            max_queued=section.queued,
            max_queued_bytes=section.queued_bytes,
            max_retained=section.retained,
            max_retained_bytes=section.retained_bytes,
            max_inflight=section.inflight,
            receive_maximum=section.receive_maximum,
            topic_aliases=section.topic_aliases,
            max_packet=section.packet_bytes,
            max_keep_alive=section.keep_alive_max,
            relays_callbacks=section.relay,
        ),
        section.clients,
        section.clients_per_network,
        section.figures_every,
        section.extension,
        MqttRedirect(section.redirect, section.redirect_moved, section.redirect_active) if section.redirect else None,
        tuple(_bridge(sections, place, one) for place, one in enumerate(section.bridge)),
    )


def _bridge(sections: Sections, place: int, given: MqttBridgeSection) -> BridgePlan:
    key = f"mqtt.bridge[{place}]"
    host, colon, port = given.server.rpartition(":")
    if not colon or not host or not port.isdigit():
        raise SectionError(f"{key}.server", f"expected HOST:PORT, not {given.server[:80]!r}")
    secrets = sections.secrets(f"{key}.password_file", given.password_file)
    plan = BridgePlan(
        given.name,
        host,
        int(port),
        given.outgoing,
        given.incoming,
        given.share,
        given.qos,
        given.user,
        secrets[0] if secrets else None,
    )
    try:
        check_plan(plan)
    except CodecError as error:
        raise SectionError(key, str(error)) from None
    return plan


def _domain(given: str) -> str:
    try:
        return canonical_host(given)
    except TopicError as error:
        raise SectionError("mqtt.domain", str(error)) from None


def _users(sections: Sections, section: MqttSection) -> KnownUsers:
    try:
        users = read_users(sections.secrets("mqtt.users_file", section.users_file))
    except UsersFileError as error:
        raise SectionError("mqtt.users_file", str(error)) from None
    return KnownUsers(users, sections.secrets("mqtt.tokens_file", section.tokens_file), section.allow_anonymous)
