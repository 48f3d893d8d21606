"""Which addresses the hub may connect to: the guard against being used to reach what only the hub can reach.

The hub connects to URLs that strangers name. `AddressPolicy.refusal` judges the address a socket is about to
connect to, after name resolution, so a name that resolves to something else the second time gains nothing.
An IPv6 address that carries an IPv4 address inside (mapped, 6to4, NAT64, Teredo) is judged by what it carries as well.

Three classes of addresses:

    never     link-local, metadata services, multicast, unspecified, reserved: no setting admits them
    private   loopback and the private ranges: `allow_private` or the allow-list admits them
    special   everything else that is not globally reachable (100.64/10, documentation, ...): only the allow-list
"""

import ipaddress
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network
from urllib.parse import urlsplit

Address = IPv4Address | IPv6Address
Network = IPv4Network | IPv6Network

MAX_URL_LENGTH = 8192
DEFAULT_PORTS = {"http": 80, "https": 443}

# Services that hand credentials or configuration to whoever asks from inside a machine. Some are outside the
# link-local range, two are even globally routable.
METADATA = frozenset(
    ipaddress.ip_address(text)
    for text in (
        "169.254.169.254",
        "169.254.170.2",
        "100.100.100.200",
        "168.63.129.16",
        "192.0.0.192",
        "fd00:ec2::254",
        "fd20:ce::254",
        "fd00:42::42",
    )
)
PRIVATE: tuple[Network, ...] = tuple(
    ipaddress.ip_network(text)
    for text in ("127.0.0.0/8", "10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16", "::1/128", "fc00::/7")
)
# Not globally reachable, though the standard library of some versions says otherwise.
SPECIAL: tuple[Network, ...] = tuple(
    ipaddress.ip_network(text)
    for text in ("100.64.0.0/10", "192.0.0.0/24", "192.88.99.0/24", "64:ff9b:1::/48", "100::/64", "fec0::/10")
)
IPV4_COMPATIBLE = IPv6Network("::/96")
NAT64 = IPv6Network("64:ff9b::/96")
LOW_32_BITS = 0xFFFF_FFFF
ADDRESSES_KEPT = 4_096
"""Reading and judging an address takes longer than asking again for one that was judged."""
LONGEST_ADDRESS = 64

# Characters that libraries disagree about inside a URL: none of them is legal there unescaped.
UNSAFE = re.compile(r"[\x00-\x20\x7f\\]")


@dataclass(frozen=True, slots=True)
class AddressPolicy:
    """What the operator lets the hub connect to. `ports` empty: any port."""

    allow_private: bool = False
    allow: tuple[Network, ...] = ()
    ports: frozenset[int] = frozenset()
    own: frozenset[tuple[str, int]] = frozenset()
    """(address, port) pairs this very process listens on for itself: the canary's, where nobody else is served."""

    def refusal(self, address: str, port: int | None = None) -> str | None:
        """Why the hub does not connect to this numeric address; None when it does."""
        if self.own and (address, port) in self.own:
            return None
        return _judged(self, address) if len(address) <= LONGEST_ADDRESS else self.judged(address)

    def judged(self, address: str) -> str | None:
        """The same, whatever listens there."""
        try:
            parsed = ipaddress.ip_address(address)
        except ValueError:
            return f"{address!r} is not a numeric address"
        for judged in (parsed, *_carried(parsed)):
            reason = self._judge(judged)
            if reason is not None:
                return (
                    f"{address} is {reason}" if judged == parsed else f"{address} carries {judged}, which is {reason}"
                )
        return None

    def url_refusal(self, url: str) -> str | None:
        """Why the hub does not use this URL at all, seen without resolving its name; None when it may try."""
        if len(url) > MAX_URL_LENGTH:
            return f"the URL is longer than {MAX_URL_LENGTH} characters"
        if not url.isascii() or UNSAFE.search(url):
            return "the URL has a character that must be percent-encoded"
        try:
            parts = urlsplit(url)
            port = parts.port
        except ValueError as error:
            return f"the URL cannot be read: {error}"
        if parts.scheme not in DEFAULT_PORTS:
            return "only http and https URLs are used"
        if "@" in parts.netloc:
            return "the URL has a user name or password in it"
        if not parts.hostname:
            return "the URL has no host"
        if port is None:
            port = DEFAULT_PORTS[parts.scheme]
        if port == 0 or (self.ports and port not in self.ports):
            return f"port {port} is not one this hub connects to"
        host = parts.hostname
        literal = _known_literal(host) if len(host) <= LONGEST_ADDRESS else _literal(host)
        return None if literal is None else self.refusal(literal, port)

    def _judge(self, address: Address) -> str | None:
        if address in METADATA:
            return "a metadata service's address"
        if address.is_link_local:
            return "a link-local address"
        if address.is_multicast:
            return "a multicast address"
        if address.is_unspecified:
            return "the unspecified address"
        if any(_contains(network, address) for network in self.allow):
            return None
        if any(_contains(network, address) for network in PRIVATE):
            return None if self.allow_private else "a loopback or private address"
        if isinstance(address, IPv6Address):
            if address.ipv4_mapped is not None:
                return None  # judged by what it carries
            if address in IPV4_COMPATIBLE:
                return "an IPv4-compatible address, which nobody uses honestly any more"
            if address.sixtofour is not None or address in NAT64:
                return None
        if any(_contains(network, address) for network in SPECIAL):
            return "not an address of the public Internet"
        if not address.is_global or address.is_reserved:
            return "not an address of the public Internet"
        return None


def _literal(host: str) -> str | None:
    """The numeric address that a host is, if it is one and not a name."""
    try:
        return str(ipaddress.ip_address(host))
    except ValueError:
        return None


_known_literal = lru_cache(maxsize=ADDRESSES_KEPT)(_literal)
_judged = lru_cache(maxsize=ADDRESSES_KEPT)(AddressPolicy.judged)


def _contains(network: Network, address: Address) -> bool:
    return network.version == address.version and address in network


def _carried(address: Address) -> Iterator[IPv4Address]:
    """The IPv4 addresses inside an IPv6 address."""
    if not isinstance(address, IPv6Address):
        return
    if address.ipv4_mapped is not None:
        yield address.ipv4_mapped
    if address.sixtofour is not None:
        yield address.sixtofour
    if address.teredo is not None:
        yield from address.teredo
    if address in NAT64:
        yield IPv4Address(int(address) & LOW_32_BITS)
