"""Rules for who may do what with which topic. The first that matches decides; after the last, the default does.

A rule has conditions; it matches when all that it states hold. A condition about something that is not known of a
request (the address of whoever publishes in another network) does not hold, so a rule that lets somebody in by it
lets in nobody else. No I/O.

An item may be named by its ids, and a protocol may have names that no namespace knows: they may stand for any other
name. A rule about topics or zones that keeps out is taken to be about them too, one that lets in is not.
"""

import ipaddress
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from identifiers import NoZoneError, TopicError, split_user, zone_of
from identifiers.namespaces import ITEM_PREFIX, STANDARD, Name, Namespaces

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
    """As some namespace has it: a topic's URL, user@domain, an item's ids."""
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
    """Places as namespaces say them: one that ends in a slash stands for all below it, others for themselves."""
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

    def matches(self, request: AccessRequest, name: Name | None) -> bool:
        """`name` is None when no namespace knows it."""
        return (
            request.act in self.acts
            and (not self.topics or self._is_about(name))
            and (not self.zones or self._is_in_zone(name))
            and (not self.callbacks or any(_covers(pattern, request.callback or "") for pattern in self.callbacks))
            and (not self.clients or _among(request.client, self.clients))
            and (not self.signers or request.signer in self.signers)
            and (self.origin is None or request.origin is self.origin)
            and (not self.token or request.token)
        )

    def _is_about(self, name: Name | None) -> bool:
        if name is not None and any(_covers(pattern, name.place) for pattern in self.topics):
            return True
        if name is not None and not name.is_any:
            return False
        return self.effect is Effect.DENY and any(not pattern.startswith(ITEM_PREFIX) for pattern in self.topics)

    def _is_in_zone(self, name: Name | None) -> bool:
        if name is None or name.is_any:
            return self.effect is Effect.DENY
        return any(_within(name.host, zone) for zone in self.zones)


@dataclass(frozen=True, slots=True)
class AccessRules:
    """All rules, in their order."""

    rules: tuple[Rule, ...] = ()
    default: Effect = Effect.ALLOW
    namespaces: Namespaces = STANDARD

    def refusal(self, request: AccessRequest) -> str | None:
        """Why somebody may not, or None when they may."""
        if not self.rules and self.default is Effect.ALLOW:
            return None
        namespace = self.namespaces.of(request.name)
        try:
            name = None if namespace is None else namespace.read(request.name)
        except TopicError as error:
            return f"this is no name that rules could be applied to: {error}"
        for rule in self.rules:
            if rule.matches(request, name):
                if rule.effect is Effect.ALLOW:
                    return None
                return rule.reason or f"a rule of this gateway does not let you {request.act} here"
        if self.default is Effect.ALLOW:
            return None
        return f"no rule of this gateway lets you {request.act} here"


def topic_pattern(text: str, namespaces: Namespaces = STANDARD) -> str:
    """A pattern as it is compared, from how people write it. Raises `ValueError`."""
    namespace = namespaces.of(text)
    return namespaces.read(f"https://{text}").place if namespace is None else namespace.pattern(text)


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
