"""One's own service record among those of others: what to change, as one update of RFC 2136. Sans-I/O.

An update is a comparison and an exchange. Its prerequisites say exactly which records were there when we looked, and
that the name is no alias; the server carries it out only if that still holds, all of it or nothing. Only records with
one's own target and port are ever deleted, each by its full contents. A record set has one time to live, so beside
others' records the own one takes theirs over instead of changing it.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Self

import dns.flags
import dns.message
import dns.name
import dns.rcode
import dns.rdataclass
import dns.rdatatype
import dns.update
from dns.rdtypes.IN.SRV import SRV

from gateway.discovery.model import MAX_16_BITS, SERVICE, DiscoveryError, canonical_domain, canonical_name

Endpoint = tuple[str, int]
"""Target and port: what makes a record one's own, whatever its other numbers."""

MAX_TTL = 86_400
MAX_RECORDS = 64
"""Service records of one domain that we add ours to. All of them stand in the prerequisites of an update."""


class RegistrationError(DiscoveryError):
    """The record could not be brought up to date; the reason is one sentence for people."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


class ChangedMeanwhileError(RegistrationError):
    """Somebody else changed the records between our look and our update: look again."""


@dataclass(frozen=True, slots=True)
class OwnRecord:
    """What this gateway says about itself."""

    target: str
    port: int
    priority: int = 10
    weight: int = 10
    ttl: int = 60

    def __post_init__(self) -> None:
        object.__setattr__(self, "target", canonical_name(self.target))
        if not 1 <= self.port <= MAX_16_BITS:
            raise DiscoveryError(f"port {self.port}: expected 1 to {MAX_16_BITS}")
        for name, value in (("priority", self.priority), ("weight", self.weight)):
            if not 0 <= value <= MAX_16_BITS:
                raise DiscoveryError(f"{name} {value}: expected 0 to {MAX_16_BITS}")
        if not 1 <= self.ttl <= MAX_TTL:
            raise DiscoveryError(f"ttl {self.ttl}: expected 1 to {MAX_TTL} seconds")

    @property
    def endpoint(self) -> Endpoint:
        return self.target, self.port

    def __str__(self) -> str:
        return f"SRV {self.priority} {self.weight} {self.port} {self.target}."

    def rdata(self) -> SRV:
        target = dns.name.from_text(self.target)
        return SRV(
            dns.rdataclass.IN,
            dns.rdatatype.SRV,
            self.priority,
            self.weight,
            self.port,
            target,  # type: ignore[no-untyped-call]
        )


@dataclass(frozen=True, slots=True)
class RecordPlace:
    """Where the record stands: the zone that is updated, and the name in it."""

    zone: str
    name: str

    @classmethod
    def of(cls, domain: str, zone: str | None = None) -> Self:
        inner = canonical_domain(domain)
        outer = canonical_name(zone) if zone is not None else inner
        if inner != outer and not inner.endswith(f".{outer}"):
            raise DiscoveryError(f"the zone {outer} does not hold the domain {inner}")
        return cls(outer, f"{SERVICE}.{inner}")

    @property
    def dns_name(self) -> dns.name.Name:
        return dns.name.from_text(self.name)


@dataclass(frozen=True, slots=True)
class Present:
    """What stands at the place now. `ttl` is None when nothing does."""

    records: tuple[SRV, ...]
    ttl: int | None

    def of_endpoint(self, endpoint: Endpoint) -> list[SRV]:
        target = dns.name.from_text(endpoint[0])
        return [each for each in self.records if each.port == endpoint[1] and each.target == target]


def question(place: RecordPlace) -> dns.message.QueryMessage:
    """What to ask the zone's primary server before an update. Not recursive: only its own zone counts."""
    message = dns.message.make_query(place.dns_name, dns.rdatatype.SRV)
    message.flags = dns.flags.Flag(0)
    return message


def read_present(place: RecordPlace, response: dns.message.Message) -> Present:
    """What the server's answer says is there, or RegistrationError in words."""
    code = response.rcode()
    if code not in (dns.rcode.NOERROR, dns.rcode.NXDOMAIN):
        raise RegistrationError(refusal_in_words(place, code))
    if not response.flags & dns.flags.AA:
        raise RegistrationError(f"the server is not responsible for the zone {place.zone}: expected its primary server")
    if response.get_rrset(response.answer, place.dns_name, dns.rdataclass.IN, dns.rdatatype.CNAME) is not None:
        raise RegistrationError(_alias(place))
    found = response.get_rrset(response.answer, place.dns_name, dns.rdataclass.IN, dns.rdatatype.SRV)
    if found is None:
        return Present((), None)
    records = tuple(each for each in found if isinstance(each, SRV))
    if len(records) > MAX_RECORDS:
        raise RegistrationError(f"{place.name} has {len(records)} records: expected {MAX_RECORDS} at most")
    return Present(records, int(found.ttl))


def update_to_register(
    place: RecordPlace, present: Present, own: OwnRecord, former: Iterable[Endpoint] = ()
) -> dns.update.UpdateMessage | None:
    """What makes the own record the only one of its target and port, and clears the former ones; None: it is so."""
    if any(each.target == dns.name.root for each in present.records):
        raise RegistrationError(f'{place.name} has the target ".", no gateway: remove that record to offer one')
    wanted = own.rdata()
    surplus: list[SRV] = [each for each in present.of_endpoint(own.endpoint) if each != wanted]
    for endpoint in set(former) - {own.endpoint}:
        surplus += present.of_endpoint(endpoint)
    others = [each for each in present.records if each not in surplus and each != wanted]
    ttl = own.ttl if not others or present.ttl is None else present.ttl
    if not surplus and wanted in present.records and present.ttl == ttl:
        return None
    message = _update(place, present)
    for each in surplus:
        message.delete(place.dns_name, each)
    message.add(place.dns_name, ttl, wanted)
    return message


def update_to_remove(
    place: RecordPlace, present: Present, endpoints: Iterable[Endpoint]
) -> dns.update.UpdateMessage | None:
    """What takes the own records away; None: none is there."""
    surplus = [each for endpoint in set(endpoints) for each in present.of_endpoint(endpoint)]
    if not surplus:
        return None
    message = _update(place, present)
    for each in surplus:
        message.delete(place.dns_name, each)
    return message


def check_update(place: RecordPlace, response: dns.message.Message) -> None:
    """Nothing when the server has carried the update out; else RegistrationError in words."""
    code = response.rcode()
    if code in (dns.rcode.NXRRSET, dns.rcode.YXRRSET, dns.rcode.NXDOMAIN, dns.rcode.YXDOMAIN):
        raise ChangedMeanwhileError(f"the records of {place.name} were changed by somebody else at the same moment")
    if code != dns.rcode.NOERROR:
        raise RegistrationError(refusal_in_words(place, code))


def refusal_in_words(place: RecordPlace, code: dns.rcode.Rcode) -> str:
    match code:
        case dns.rcode.REFUSED:
            return f"the server refused: the key may not change {place.name}, or the server takes no updates"
        case dns.rcode.NOTAUTH:
            return f"the server is not responsible for the zone {place.zone}, or does not accept the key"
        case dns.rcode.NOTZONE:
            return f"{place.name} is not inside the zone {place.zone}"
        case dns.rcode.NOTIMP:
            return "the server knows no dynamic updates (RFC 2136)"
        case dns.rcode.SERVFAIL:
            return f"the server failed at the zone {place.zone} (SERVFAIL): its log says why"
        case dns.rcode.FORMERR:
            return "the server did not understand the message (FORMERR)"
    return f"the server answered {dns.rcode.to_text(code)}"


def _update(place: RecordPlace, present: Present) -> dns.update.UpdateMessage:
    message = dns.update.UpdateMessage(dns.name.from_text(place.zone))
    message.absent(place.dns_name, dns.rdatatype.CNAME)
    if present.records:
        message.present(place.dns_name, *present.records)
    else:
        message.absent(place.dns_name, dns.rdatatype.SRV)
    return message


def _alias(place: RecordPlace) -> str:
    return f"{place.name} is an alias (CNAME): remove it, or set the records where it leads"
