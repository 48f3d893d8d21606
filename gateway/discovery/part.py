"""Discovery as one part of a gateway: its own record kept current, and the way to gateways of other domains.

The record is written when everything else is up, and taken away before anything else goes down: who finds it finds
somebody.
"""

import asyncio
from dataclasses import dataclass, field
from pathlib import Path

from gateway.discovery.events import Observer
from gateway.discovery.locator import Locator
from gateway.discovery.model import DiscoveryError
from gateway.discovery.registrar import Registrar, RegistrarConfig
from gateway.discovery.registration import OwnRecord
from gateway.discovery.resolver import Resolver, ResolverConfig
from identifiers import NoZoneError, Topic, TopicError, zone_of
from push_hub.ports import Validator
from serving.outbound.addresses import AddressPolicy

MAX_SHOWN = 3
"""Gateways that a denied subscriber is told of."""


@dataclass(frozen=True, slots=True)
class RegisterConfig:
    """The own record, and where it is written."""

    domain: str
    server: str
    key_file: Path
    target: str
    port: int | None = None
    """None: the port that the hub listens on."""
    priority: int = 10
    weight: int = 10
    ttl: int = 60
    zone: str | None = None
    server_port: int = 53
    interval: float = 300.0

    def registrar(self, hub_port: int) -> RegistrarConfig:
        """Raises `DiscoveryError` for what cannot be."""
        return RegistrarConfig(
            domain=self.domain,
            server=self.server,
            key_file=self.key_file,
            record=OwnRecord(self.target, self.port or hub_port, self.priority, self.weight, self.ttl),
            zone=self.zone,
            port=self.server_port,
            interval=self.interval,
        )


@dataclass(frozen=True, slots=True)
class DiscoveryConfig:
    register: RegisterConfig | None = None
    """None: somebody else keeps the domain's records."""
    say_where: bool = False
    """Tell a subscriber who is denied which gateways the topic's domain names."""
    patience: float = 3.0
    """Seconds that this may take."""
    resolver: ResolverConfig = field(default_factory=ResolverConfig)


class Discovery:
    def __init__(
        self, config: DiscoveryConfig, *, allow_private: bool = False, observer: Observer | None = None
    ) -> None:
        self.config = config
        self.registrar: Registrar | None = None
        self._policy = AddressPolicy(allow_private=allow_private)
        self._observer = observer
        self._locator: Locator | None = None

    @property
    def locator(self) -> Locator:
        """Made when it is first asked for: a machine without name servers may still run a gateway."""
        if self._locator is None:
            resolver = Resolver(self.config.resolver, self._policy, observer=self._observer)
            self._locator = Locator(resolver, observer=self._observer)
        return self._locator

    async def start(self, hub_port: int) -> None:
        """Begin to keep the record; a server that does not answer is tried again and holds up nothing."""
        if self.config.register is not None:
            registrar = Registrar(self.config.register.registrar(hub_port), observer=self._observer)
            await registrar.start()
            self.registrar = registrar

    async def stop(self) -> None:
        registrar, self.registrar = self.registrar, None
        if registrar is not None:
            await registrar.stop()

    async def where(self, topic: str) -> str:
        """The gateways of a topic's domain in words; empty when none can be named."""
        try:
            domain = zone_of(Topic.parse(topic).host).domain
            async with asyncio.timeout(self.config.patience):
                found = await self.locator.candidates(domain)
        except (TopicError, NoZoneError, DiscoveryError, TimeoutError):
            return ""
        names = ", ".join(f"{gateway.target}:{gateway.port}" for gateway in found[:MAX_SHOWN])
        return f"{domain} names as its gateways: {names}" if names else ""


class Signpost:
    """A policy's refusals, with a word on where else to ask."""

    def __init__(self, policy: Validator, discovery: Discovery) -> None:
        self._policy = policy
        self._discovery = discovery

    async def refusal(self, topic: str, callback: str) -> str | None:
        reason = await self._policy.refusal(topic, callback)
        if reason is None:
            return None
        where = await self._discovery.where(topic)
        return f"{reason} ({where})" if where else reason
