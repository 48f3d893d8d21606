"""What an operator may set about zones and subscriptions in other domains."""

from dataclasses import dataclass
from enum import StrEnum

from identifiers import NoZoneError, TopicError, Zone, zone_of
from identifiers.topic import canonical_host


class Unmanaged(StrEnum):
    """What becomes of a subscription to a topic that nobody in the network answers for."""

    DENY = "deny"
    ACCEPT = "accept"


@dataclass(frozen=True, slots=True)
class BootstrappingConfig:
    """Times are in seconds. `zones` are the registrable domains that this gateway manages."""

    zones: tuple[str, ...] = ()
    unmanaged: Unmanaged = Unmanaged.DENY
    manager: str = ""
    """What this gateway calls itself in announcements and answers; the address of its hub when empty."""
    answer_timeout: float = 8.0
    """A subscriber whose topic nobody answers for in this time is denied."""
    lease: float = 3600.0
    """How long a request to another zone's manager holds; it is renewed at half of that."""
    unconfirmed: float = 120.0
    """A request whose subscriber never confirmed is taken back after so long."""
    tick: float = 1.0
    max_lease: float = 24 * 3600.0
    """The longest lease that a manager grants."""
    max_requesters: int = 10_000
    max_topics_per_requester: int = 2_000
    max_topics: int = 100_000
    max_zones: int = 10_000
    """Zones of others that subscribers here may want something of."""
    requester_keys: tuple[str, ...] = ()
    """Hashes of the keys, in hex, of the gateways that may ask here. None: everybody that the network lets ask."""
    manager_keys: tuple[str, ...] = ()
    """Hashes of the keys of the gateways whose announcements and answers are believed. None: everybody's."""
    upstream_lease: int = 10 * 24 * 3600
    upstream_confirm: float = 3.0
    """How long a hub may take to confirm or deny before a request to it counts as accepted."""
    upstream_at_once: int = 16
    secret_over_http: bool = True
    """Send a secret to a plain http hub as well: it keeps out everybody who did not see the request go by."""
    poll: bool = False
    """Look at topics that name no hub from time to time, rather than deny them."""
    poll_every: float = 300.0


def zones_named(domains: tuple[str, ...]) -> dict[str, Zone]:
    """The zones of configured domains; `ValueError` for what is no registrable domain."""
    zones: dict[str, Zone] = {}
    for domain in domains:
        try:
            host = canonical_host(domain)
            zone = zone_of(host)
        except (TopicError, NoZoneError) as error:
            raise ValueError(f"zones: {domain!r}: {error}") from None
        if zone.domain != host:
            raise ValueError(f"zones: {domain!r} is not a registrable domain; do you mean {zone.domain!r}?")
        zones[zone.domain] = zone
    return zones
