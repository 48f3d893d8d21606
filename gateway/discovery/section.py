"""The section [discovery] of a gateway's configuration."""

from pathlib import Path
from typing import Annotated

from msgspec import Meta, Struct

from gateway.discovery.keys import read_key
from gateway.discovery.model import DiscoveryError
from gateway.discovery.part import DiscoveryConfig, RegisterConfig
from gateway.discovery.resolver import ResolverConfig

Port = Annotated[int, Meta(ge=1, le=65_535)]
Number = Annotated[int, Meta(ge=0, le=65_535)]
Seconds = Annotated[float, Meta(gt=0.0)]
ANY_PORT = 80
"""Stands for the hub's port, which is known when it listens, while the rest is checked."""


class RegisterSection(Struct, frozen=True, forbid_unknown_fields=True):
    """Keep this gateway's SRV record current (RFC 2136, signed with TSIG)."""

    server: Annotated[str, Meta(min_length=1)]
    key_file: Annotated[str, Meta(min_length=1)]
    target: Annotated[str, Meta(min_length=1)]
    port: Port | None = None
    domain: str | None = None
    zone: str | None = None
    priority: Number = 10
    weight: Number = 10
    ttl: Annotated[int, Meta(ge=1)] = 60
    server_port: Port = 53
    interval: Seconds = 300.0


class DiscoverySection(Struct, frozen=True, forbid_unknown_fields=True):
    say_where: bool = False
    nameservers: tuple[str, ...] = ()
    nameserver_port: Port = 53
    patience: Seconds = 3.0
    register: RegisterSection | None = None


class DiscoveryKeyError(ValueError):
    """A key that cannot be used."""

    def __init__(self, key: str, what: str) -> None:
        super().__init__(what)
        self.key = key


def discovery_config(section: DiscoverySection, folder: Path, domain: str | None) -> DiscoveryConfig:
    """Raises `DiscoveryKeyError`. `domain` is the gateway's own, for a registration that names none."""
    try:
        resolver = ResolverConfig(nameservers=section.nameservers, port=section.nameserver_port)
    except DiscoveryError as error:
        raise DiscoveryKeyError("discovery.nameservers", str(error)) from None
    return DiscoveryConfig(_register(section.register, folder, domain), section.say_where, section.patience, resolver)


def _register(section: RegisterSection | None, folder: Path, domain: str | None) -> RegisterConfig | None:
    if section is None:
        return None
    own = section.domain or domain
    if own is None:
        raise DiscoveryKeyError("discovery.register.domain", "expected this, or gateway.domain")
    key_file = folder / section.key_file
    try:
        read_key(key_file)
    except DiscoveryError as error:
        raise DiscoveryKeyError("discovery.register.key_file", str(error)) from None
    config = RegisterConfig(
        domain=own,
        server=section.server,
        key_file=key_file,
        target=section.target,
        port=section.port,
        priority=section.priority,
        weight=section.weight,
        ttl=section.ttl,
        zone=section.zone,
        server_port=section.server_port,
        interval=section.interval,
    )
    try:
        config.registrar(ANY_PORT)
    except DiscoveryError as error:
        raise DiscoveryKeyError("discovery.register", str(error)) from None
    return config
