"""What happened in discovery: small, past tense, for whoever observes. Cheap when nobody does. Sans-I/O."""

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class GatewaysFound:
    domain: str
    gateways: int
    ttl: float


@dataclass(frozen=True, slots=True)
class DomainHadNone:
    domain: str
    reason: str


@dataclass(frozen=True, slots=True)
class LookupFailed:
    domain: str
    reason: str
    used_stale: bool


@dataclass(frozen=True, slots=True)
class AnswerTrimmed:
    """Parts of an answer were not usable, or more than a bound admits."""

    domain: str
    records: int
    addresses: int


@dataclass(frozen=True, slots=True)
class GatewayFailed:
    target: str
    port: int
    until: float


@dataclass(frozen=True, slots=True)
class GatewayRecovered:
    target: str
    port: int


@dataclass(frozen=True, slots=True)
class RecordWritten:
    """The own record was added, or replaced one of other numbers."""

    name: str
    record: str


@dataclass(frozen=True, slots=True)
class RecordConfirmed:
    """The own record was there already, as it should be."""

    name: str
    record: str


@dataclass(frozen=True, slots=True)
class RecordRemoved:
    name: str
    record: str


@dataclass(frozen=True, slots=True)
class RegistrationFailed:
    """`retry_in` None: it is not tried again, because the gateway is stopping."""

    name: str
    reason: str
    retry_in: float | None


DiscoveryEvent = (
    GatewaysFound
    | DomainHadNone
    | LookupFailed
    | AnswerTrimmed
    | GatewayFailed
    | GatewayRecovered
    | RecordWritten
    | RecordConfirmed
    | RecordRemoved
    | RegistrationFailed
)
Observer = Callable[[DiscoveryEvent], None]
