"""From the records of a name server's answer to gateways and addresses. Sans-I/O.

Whoever owns a domain writes its records, so all of it is hostile: what cannot be used is dropped and counted, what is
too much is cut off after the most preferred, and nothing raises.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import chain, zip_longest
from typing import Protocol

import dns.name
from dns.rdata import Rdata
from dns.rdtypes.IN.A import A
from dns.rdtypes.IN.AAAA import AAAA
from dns.rdtypes.IN.SRV import SRV

from gateway.discovery.model import DomainError, GatewayRecord, canonical_name
from gateway.discovery.order import stable_order


class AddressJudge(Protocol):
    """What decides whether an address may be used; `serving.outbound.addresses.AddressPolicy` is one."""

    def refusal(self, address: str, port: int | None = None, /) -> str | None: ...


@dataclass(frozen=True, slots=True)
class Services:
    """The SRV records of a domain: gateways without their addresses yet."""

    gateways: tuple[GatewayRecord, ...]
    not_offered: bool
    dropped: int


@dataclass(frozen=True, slots=True)
class Addresses:
    usable: tuple[str, ...]
    dropped: int


def read_services(records: Iterable[Rdata], limit: int) -> Services:
    """The gateways that SRV records name, at most `limit` of them.

    A target of "." says that there is none. Beside other records it says nothing and counts as dropped.
    """
    gateways: list[GatewayRecord] = []
    refusals = dropped = 0
    for record in records:
        if not isinstance(record, SRV):
            dropped += 1
        elif record.target == dns.name.root:
            refusals += 1
        elif (target := _host_name(record.target)) is None or record.port == 0:
            dropped += 1
        else:
            gateways.append(GatewayRecord(target, record.port, record.priority, record.weight))
    distinct: dict[tuple[str, int], GatewayRecord] = {}
    for gateway in stable_order(gateways):
        distinct.setdefault(gateway.endpoint, gateway)
    kept = tuple(distinct.values())[:limit]
    dropped += len(gateways) - len(kept) + (refusals if kept else 0)
    return Services(kept, refusals > 0 and not kept, dropped)


def read_addresses(records: Iterable[Rdata], judge: AddressJudge, limit: int) -> Addresses:
    """The addresses that may be used, at most `limit`, both families in turn so that one dead family costs one try."""
    six: list[str] = []
    four: list[str] = []
    dropped = 0
    for record in records:
        if not isinstance(record, A | AAAA) or judge.refusal(record.address) is not None:
            dropped += 1
        else:
            (six if isinstance(record, AAAA) else four).append(record.address)
    both = [each for each in chain.from_iterable(zip_longest(sorted(set(six)), sorted(set(four)))) if each is not None]
    return Addresses(tuple(both[:limit]), dropped + max(0, len(both) - limit))


def _host_name(name: dns.name.Name) -> str | None:
    try:
        return canonical_name(name.to_text(omit_final_dot=True))
    except DomainError:
        return None
