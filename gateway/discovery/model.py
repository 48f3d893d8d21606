"""The values of discovery: a domain's gateways, what a look-up said, and what can go wrong. Sans-I/O."""

from dataclasses import dataclass
from enum import StrEnum

from identifiers.topic import TopicError, canonical_host

SERVICE = "_psirp._tcp"
"""The service and protocol labels under which a domain names its gateways."""

MAX_NAME = 253
MAX_16_BITS = 65_535
MAX_SECONDS = 30 * 86_400.0
"""The longest time a setting may ask for."""


class DiscoveryError(Exception):
    """Base of what this package raises; the text is one sentence for people."""


class DomainError(DiscoveryError):
    """The name is no domain that could have gateways."""


class LookupFailedError(DiscoveryError):
    """The question has no answer now: no name server answered, or what it said was not usable. Try again later."""


@dataclass(frozen=True, slots=True)
class GatewayRecord:
    """Where one gateway of a domain listens. `addresses` empty: its name leads nowhere at present."""

    target: str
    port: int
    priority: int
    weight: int
    addresses: tuple[str, ...] = ()

    @property
    def endpoint(self) -> tuple[str, int]:
        """What makes it the same gateway after its priority, weight or addresses change."""
        return self.target, self.port


class Availability(StrEnum):
    AVAILABLE = "available"
    NO_RECORD = "no record"
    NOT_OFFERED = "not offered"
    UNREACHABLE = "unreachable"


@dataclass(frozen=True, slots=True)
class Found:
    """What a look-up said about a domain, and for how many more seconds it may be believed.

    `gateways` are in a fixed order (priority, then the heavier first); `order.py` makes the order to try them in.
    """

    domain: str
    availability: Availability
    gateways: tuple[GatewayRecord, ...]
    ttl: float
    stale: bool = False
    """True: the name servers did not answer, and this is what they said last, beyond its time."""

    @property
    def explanation(self) -> str:
        name = f"{SERVICE}.{self.domain}"
        match self.availability:
            case Availability.NO_RECORD:
                return f"{name} has no SRV record: the domain names no gateway"
            case Availability.NOT_OFFERED:
                return f'{name} has the target ".": the domain says that it has no gateway'
            case Availability.UNREACHABLE:
                return f"none of the gateways that {name} names has an address that may be used"
            case Availability.AVAILABLE:
                return f"{len(self.gateways)} gateway(s)"


def check_seconds(name: str, value: float, *, zero: bool = False) -> None:
    """A setting in seconds: above 0 (or 0 where that has a meaning), and neither NaN nor without an end."""
    if not (0 < value <= MAX_SECONDS or (zero and value == 0)):
        least = "0" if zero else "above 0"
        raise DiscoveryError(f"{name} {value:g}: expected seconds from {least} to {MAX_SECONDS:.0f}")


def canonical_name(text: str) -> str:
    """The one spelling of a host or domain name (lower case, A-labels, no dot at the end), or DomainError."""
    try:
        name = canonical_host(text)
    except TopicError as error:
        raise DomainError(f"{text[:100]!r} is not a domain name: {error}") from None
    if name.startswith("[") or name.rpartition(".")[2].isdigit():
        raise DomainError(f"{text[:100]!r} is an address: expected a name such as example.org")
    return name


def canonical_domain(text: str) -> str:
    """A domain that has room for the service labels before it, in its one spelling, or DomainError."""
    name = canonical_name(text)
    if len(name) + len(SERVICE) + 1 > MAX_NAME:
        raise DomainError(f"the domain is too long to hold {SERVICE} records: expected {MAX_NAME} characters at most")
    return name
