"""Where the gateways of a domain are, and how others find this one: SRV records of `_psirp._tcp` in the DNS."""

from gateway.discovery.cache import CacheConfig
from gateway.discovery.events import DiscoveryEvent, Observer
from gateway.discovery.failover import Failover, FailoverConfig
from gateway.discovery.keys import UpdateKeyError
from gateway.discovery.locator import Locator
from gateway.discovery.model import (
    SERVICE,
    Availability,
    DiscoveryError,
    DomainError,
    Found,
    GatewayRecord,
    LookupFailedError,
)
from gateway.discovery.order import order_to_try
from gateway.discovery.part import Discovery, DiscoveryConfig, RegisterConfig, Signpost
from gateway.discovery.registrar import Registrar, RegistrarConfig
from gateway.discovery.registration import OwnRecord, RegistrationError
from gateway.discovery.resolver import Resolver, ResolverConfig

__all__ = [
    "SERVICE",
    "Availability",
    "CacheConfig",
    "Discovery",
    "DiscoveryConfig",
    "DiscoveryError",
    "DiscoveryEvent",
    "DomainError",
    "Failover",
    "FailoverConfig",
    "Found",
    "GatewayRecord",
    "Locator",
    "LookupFailedError",
    "Observer",
    "OwnRecord",
    "RegisterConfig",
    "Registrar",
    "RegistrarConfig",
    "RegistrationError",
    "Resolver",
    "ResolverConfig",
    "Signpost",
    "UpdateKeyError",
    "order_to_try",
]
