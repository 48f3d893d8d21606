"""Ask name servers for the gateways of a domain: the asyncio shell around the cache and the reading of answers.

The service record first, then the addresses of each name it gives. Addresses that come unasked in the same answer are
not used: any domain may claim anything about any host there. One look-up is under way for a domain at a time.
"""

import asyncio
import ipaddress
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field, replace

import dns.asyncresolver
import dns.exception
import dns.message
import dns.name
import dns.rcode
import dns.resolver
from dns.rdata import Rdata
from dns.rdatatype import RdataType

from gateway.discovery.answers import AddressJudge, read_addresses, read_services
from gateway.discovery.cache import AnswerCache, CacheConfig
from gateway.discovery.events import AnswerTrimmed, DomainHadNone, GatewaysFound, LookupFailed, Observer
from gateway.discovery.model import (
    MAX_16_BITS,
    SERVICE,
    Availability,
    DiscoveryError,
    Found,
    GatewayRecord,
    LookupFailedError,
    canonical_domain,
    check_seconds,
)
from serving.outbound.addresses import AddressPolicy

EDNS_PAYLOAD = 1232
"""What goes through the Internet unfragmented; a longer answer comes over TCP."""
MAX_PROBLEM = 300
"""Characters of an explanation: parts of it come from the name server."""


@dataclass(frozen=True, slots=True)
class ResolverConfig:
    nameservers: tuple[str, ...] = ()
    """Addresses of recursive name servers; empty: those of the machine (/etc/resolv.conf)."""
    port: int = 53
    timeout: float = 2.0
    """Seconds for one name server to answer one question."""
    lifetime: float = 5.0
    """Seconds for one question, with every name server tried."""
    deadline: float = 15.0
    """Seconds for a whole look-up, with the time it waits for its turn: slow domains do not add up."""
    max_gateways: int = 16
    max_addresses: int = 8
    """For each gateway, of both families together."""
    max_questions: int = 16
    """Questions under way at once; the others wait."""
    max_lookups: int = 256
    """Domains being looked up at once; beyond it, a look-up fails."""
    cache: CacheConfig = field(default_factory=CacheConfig)

    def __post_init__(self) -> None:
        for address in self.nameservers:
            try:
                ipaddress.ip_address(address)
            except ValueError:
                raise DiscoveryError(f"name server {address!r}: expected an IP address") from None
        if not 1 <= self.port <= MAX_16_BITS:
            raise DiscoveryError(f"name server port {self.port}: expected 1 to {MAX_16_BITS}")
        check_seconds("resolver timeout", self.timeout)
        check_seconds("resolver lifetime", self.lifetime)
        check_seconds("resolver deadline", self.deadline)
        if min(self.max_gateways, self.max_addresses, self.max_questions, self.max_lookups) < 1:
            raise DiscoveryError("the resolver's bounds are 1 or more")


@dataclass(slots=True)
class ResolverCounts:
    questions: int = 0
    failed_questions: int = 0
    records_dropped: int = 0
    addresses_dropped: int = 0
    lookups_refused: int = 0
    deadlines_missed: int = 0


@dataclass(frozen=True, slots=True)
class _Reply:
    """The records of one question with their time to live; none at all: the name has no such record."""

    records: tuple[Rdata, ...]
    ttl: float


class Resolver:
    """Looks up the gateways of domains. `judge` decides which of their addresses may be used."""

    def __init__(
        self,
        config: ResolverConfig | None = None,
        judge: AddressJudge | None = None,
        *,
        observer: Observer | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.config = config or ResolverConfig()
        self.counts = ResolverCounts()
        self.cache = AnswerCache(self.config.cache)
        self._judge: AddressJudge = judge or AddressPolicy()
        self._observer = observer
        self._clock = clock
        self._stub = _stub(self.config)
        self._questions = asyncio.Semaphore(self.config.max_questions)
        self._under_way: dict[str, asyncio.Task[Found | LookupFailedError]] = {}

    async def gateways(self, domain: str) -> list[GatewayRecord]:
        """The gateways of a domain; none when it has none. LookupFailedError: it cannot be said now."""
        return list((await self.lookup(domain)).gateways)

    async def lookup(self, domain: str) -> Found:
        """What is known about a domain's gateways, with the reason when there are none."""
        name = canonical_domain(domain)
        task = self._under_way.get(name)
        if task is None:
            known = self.cache.get(name, self._clock())
            if known is not None:
                return known
            if len(self._under_way) >= self.config.max_lookups:
                self.counts.lookups_refused += 1
                raise LookupFailedError(f"{self.config.max_lookups} domains are being looked up: try again later")
            task = asyncio.get_running_loop().create_task(self._ask(name))
            self._under_way[name] = task
            task.add_done_callback(lambda _: self._under_way.pop(name, None))
        # Several may wait for one task: the shield lets one of them give up without taking the answer from the rest.
        result = await asyncio.shield(task)
        if isinstance(result, LookupFailedError):
            raise LookupFailedError(str(result))
        return result

    async def close(self) -> None:
        """Give up what is under way."""
        tasks = list(self._under_way.values())
        for task in tasks:
            task.cancel()
        for task in tasks:
            with suppress(asyncio.CancelledError):
                await task

    async def _ask(self, domain: str) -> Found | LookupFailedError:
        try:
            found, hasty = await self._found_in_time(domain)
        except LookupFailedError as error:
            try:
                stale = self.cache.put_failure(domain, str(error), self._clock())
            except LookupFailedError as without:
                self._tell(LookupFailed(domain, str(without), used_stale=False))
                return without
            self._tell(LookupFailed(domain, str(error), used_stale=True))
            return stale
        found = self.cache.put(found, self._clock(), hasty=hasty)
        if found.availability is Availability.AVAILABLE:
            self._tell(GatewaysFound(domain, len(found.gateways), found.ttl))
        else:
            self._tell(DomainHadNone(domain, found.explanation))
        return found

    async def _found_in_time(self, domain: str) -> tuple[Found, bool]:
        try:
            async with asyncio.timeout(self.config.deadline):
                return await self._found(domain)
        except TimeoutError:
            self.counts.deadlines_missed += 1
            limit = f"{self.config.deadline:g} s"
            raise LookupFailedError(f"the gateways of {domain} could not be looked up within {limit}") from None

    async def _found(self, domain: str) -> tuple[Found, bool]:
        """The answer, and whether an address is missing from it that a later question might bring."""
        reply = await self._question(f"{SERVICE}.{domain}", RdataType.SRV)
        services = read_services(reply.records, self.config.max_gateways)
        if not services.gateways:
            self._trimmed(domain, services.dropped, 0)
            state = Availability.NOT_OFFERED if services.not_offered else Availability.NO_RECORD
            return Found(domain, state, (), reply.ttl), False
        targets = list({each.target: None for each in services.gateways})
        hosts = await asyncio.gather(*map(self._addresses, targets))
        by_target = dict(zip(targets, hosts, strict=True))
        gateways = tuple(replace(each, addresses=by_target[each.target].usable) for each in services.gateways)
        self._trimmed(domain, services.dropped, sum(host.dropped for host in hosts))
        problems = [host.problem for host in hosts if host.problem is not None]
        state = Availability.AVAILABLE
        if not any(each.addresses for each in gateways):
            if problems:
                raise LookupFailedError(problems[0])
            state = Availability.UNREACHABLE
        ttl = min(reply.ttl, *(host.ttl for host in hosts))
        return Found(domain, state, gateways, ttl), bool(problems)

    async def _addresses(self, target: str) -> "_Host":
        replies = await asyncio.gather(
            self._question(target, RdataType.AAAA), self._question(target, RdataType.A), return_exceptions=True
        )
        good = [reply for reply in replies if isinstance(reply, _Reply)]
        problems = [str(reply) for reply in replies if isinstance(reply, BaseException)]
        read = read_addresses(
            [record for reply in good for record in reply.records], self._judge, self.config.max_addresses
        )
        ttl = min((reply.ttl for reply in good), default=0.0)
        return _Host(read.usable, read.dropped, ttl, problems[0] if problems else None)

    async def _question(self, name: str, kind: RdataType) -> _Reply:
        async with self._questions:
            self.counts.questions += 1
            try:
                answer = await self._stub.resolve(
                    dns.name.from_text(name), kind, raise_on_no_answer=False, lifetime=self.config.lifetime
                )
            except dns.resolver.NXDOMAIN as error:
                return _Reply((), _negative_ttl(error))
            except Exception as error:  # a name server may send anything, and the library's checks include assertions
                self.counts.failed_questions += 1
                raise LookupFailedError(_in_words(error, name, kind, self.config.lifetime)) from error
        return _Reply(tuple(answer), float(answer.chaining_result.minimum_ttl))

    def _trimmed(self, domain: str, records: int, addresses: int) -> None:
        self.counts.records_dropped += records
        self.counts.addresses_dropped += addresses
        if records or addresses:
            self._tell(AnswerTrimmed(domain, records, addresses))

    def _tell(self, event: GatewaysFound | DomainHadNone | LookupFailed | AnswerTrimmed) -> None:
        if self._observer is not None:
            self._observer(event)


@dataclass(frozen=True, slots=True)
class _Host:
    usable: tuple[str, ...]
    dropped: int
    ttl: float
    problem: str | None


def _stub(config: ResolverConfig) -> dns.asyncresolver.Resolver:
    try:
        stub = dns.asyncresolver.Resolver(configure=not config.nameservers)
    except dns.resolver.NoResolverConfiguration as error:
        raise DiscoveryError(f"this machine names no name server ({error}): give the address of one") from error
    if config.nameservers:
        stub.nameservers = list(config.nameservers)
        stub.port = config.port
    stub.timeout = config.timeout
    stub.use_search_by_default = False
    stub.use_edns(0, 0, EDNS_PAYLOAD)
    return stub


def _negative_ttl(error: dns.resolver.NXDOMAIN) -> float:
    responses = error.kwargs.get("responses") or {}
    for response in responses.values():
        if isinstance(response, dns.message.QueryMessage):
            with suppress(dns.exception.DNSException):
                return float(response.resolve_chaining().minimum_ttl)
    return 0.0


def _in_words(error: Exception, name: str, kind: RdataType, lifetime: float) -> str:
    question = f"{kind.name} records of {name}"
    if isinstance(error, dns.exception.Timeout):
        return f"no name server answered for the {question} within {lifetime:g} s"
    if isinstance(error, dns.resolver.NoNameservers):
        reasons = [_server_in_words(entry) for entry in error.kwargs.get("errors") or ()]
        text = "; ".join(dict.fromkeys(reasons)) or "none is configured"
        return f"no name server could be used for the {question}: {text}"[:MAX_PROBLEM]
    return f"no usable answer for the {question}: {type(error).__name__} {error}"[:MAX_PROBLEM]


def _server_in_words(entry: tuple[object, ...]) -> str:
    server, cause, response = entry[0], entry[3], entry[4]
    where = str(server).removeprefix("Do53:")
    if isinstance(cause, str) and isinstance(response, dns.message.Message):
        return f"{where} answered {dns.rcode.to_text(response.rcode())}"
    if isinstance(cause, dns.message.ChainTooLong):
        return f"{where} answered with a chain of aliases without an end"
    if isinstance(cause, dns.exception.Timeout):
        return f"{where} did not answer in time"
    text = str(cause) or type(cause).__name__
    return f"{where}: {text.strip()}"
