"""Rules for who may do what with which topic. The first that matches decides; after the last, the default does.

A rule has conditions; it matches when all that it states hold. A condition about something that is not known of a
request (the address of whoever publishes in another network) does not hold, so a rule that lets somebody in by it
lets in nobody else. No I/O.
"""

import ipaddress
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from urllib.parse import urlsplit

from identifiers import NoZoneError, Topic, TopicError, split_user, zone_of

Network = ipaddress.IPv4Network | ipaddress.IPv6Network
Address = ipaddress.IPv4Address | ipaddress.IPv6Address


class Act(StrEnum):
    PUBLISH = "publish"
    SUBSCRIBE = "subscribe"


class Effect(StrEnum):
    ALLOW = "allow"
    DENY = "deny"


class EntrySide(StrEnum):
    """Where a publication comes from."""

    WEB = "web"
    """This gateway's own HTTP side."""
    NETWORK = "network"
    """The PSIRP network: another gateway brought it."""


@dataclass(frozen=True, slots=True)
class AccessRequest:
    """Somebody wants to do something. What is None is not known."""

    act: Act
    name: str
    """A topic's URL, or user@domain with perhaps a path behind it."""
    origin: EntrySide = EntrySide.WEB
    callback: str | None = None
    client: str | None = None
    token: bool = False
    signer: str | None = None
    """Hash of the key that a publication in the network is signed with, in hex."""


@dataclass(frozen=True, slots=True)
class Rule:
    """Empty conditions hold always."""

    effect: Effect
    acts: frozenset[Act] = frozenset(Act)
    topics: tuple[str, ...] = ()
    """Addresses without their scheme: one that ends in a slash stands for all below it, others for themselves."""
    zones: tuple[str, ...] = ()
    """Domains, with everything below them."""
    callbacks: tuple[str, ...] = ()
    """As topics, but with their scheme: where deliveries go."""
    clients: tuple[Network, ...] = ()
    signers: frozenset[str] = frozenset()
    origin: EntrySide | None = None
    token: bool = False
    """Only with a publisher's token."""
    reason: str = ""

    def matches(self, request: AccessRequest, place: "NamePlace") -> bool:
        return (
            request.act in self.acts
            and (not self.topics or any(_covers(pattern, place.address) for pattern in self.topics))
            and (not self.zones or any(_within(place.host, zone) for zone in self.zones))
            and (not self.callbacks or any(_covers(pattern, request.callback or "") for pattern in self.callbacks))
            and (not self.clients or _among(request.client, self.clients))
            and (not self.signers or request.signer in self.signers)
            and (self.origin is None or request.origin is self.origin)
            and (not self.token or request.token)
        )


@dataclass(frozen=True, slots=True)
class NamePlace:
    """What rules look at in a name."""

    host: str
    address: str


@dataclass(frozen=True, slots=True)
class AccessRules:
    """All rules, in their order."""

    rules: tuple[Rule, ...] = ()
    default: Effect = Effect.ALLOW

    def refusal(self, request: AccessRequest) -> str | None:
        """Why somebody may not, or None when they may."""
        if not self.rules and self.default is Effect.ALLOW:
            return None
        place = place_of(request.name)
        if place is None:
            return "this is no name that rules could be applied to"
        for rule in self.rules:
            if rule.matches(request, place):
                if rule.effect is Effect.ALLOW:
                    return None
                return rule.reason or f"a rule of this gateway does not let you {request.act} here"
        if self.default is Effect.ALLOW:
            return None
        return f"no rule of this gateway lets you {request.act} here"


def place_of(name: str) -> NamePlace | None:
    """Both spellings of a topic, http and https, are one place, as they are one item."""
    try:
        if "://" not in name:
            # What is below somebody's name, like their receipts, is theirs as the name itself is.
            user, domain = split_user(name.partition("/")[0])
            return NamePlace(domain, f"{domain}/{user}")
        parts = urlsplit(Topic.parse(name).url)
    except (TopicError, ValueError):
        return None
    address = name_without_scheme(parts.geturl())
    return NamePlace(parts.hostname or "", address)


def name_without_scheme(url: str) -> str:
    address = url.split("://", 1)[1]
    return address if "/" in address else f"{address}/"


def topic_pattern(text: str) -> str:
    """A pattern as it is compared, from how people write it. Raises `ValueError`."""
    with_scheme = text if "://" in text else f"https://{text}"
    try:
        if "@" in text and "/" not in text:
            user, domain = split_user(text)
            return f"{domain}/{user}"
        pattern = name_without_scheme(Topic.parse(with_scheme).url)
    except TopicError as error:
        raise ValueError(str(error)) from None
    return pattern


def zone_pattern(text: str) -> str:
    """A domain as it is compared. Raises `ValueError`."""
    try:
        host = split_user(f"someone@{text}")[1]
        zone_of(host)
    except (TopicError, NoZoneError) as error:
        raise ValueError(str(error)) from None
    return host


def client_networks(texts: Sequence[str]) -> tuple[Network, ...]:
    """Addresses and networks. Raises `ValueError`."""
    return tuple(ipaddress.ip_network(text) for text in texts)


def _covers(pattern: str, address: str) -> bool:
    return address.startswith(pattern) if pattern.endswith("/") else address == pattern


def _within(host: str, zone: str) -> bool:
    return host == zone or host.endswith(f".{zone}")


def _among(client: str | None, networks: Sequence[Network]) -> bool:
    try:
        address: Address = ipaddress.ip_address(client or "")
    except ValueError:
        return False
    if isinstance(address, ipaddress.IPv6Address) and address.ipv4_mapped is not None:
        address = address.ipv4_mapped
    return any(address in network for network in networks)
