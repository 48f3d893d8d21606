"""What name servers may send: any records in any shape, and bytes that are no message at all."""

import asyncio
import random

import dns.flags
import dns.message
import dns.name
import dns.rcode
import dns.rdata
import dns.rdataclass
import dns.rdatatype
import dns.rrset
import pytest
from dns.rdata import Rdata
from hypothesis import given
from hypothesis import strategies as st

from gateway.discovery import (
    Availability,
    CacheConfig,
    DiscoveryError,
    Found,
    LookupFailedError,
    Resolver,
    ResolverConfig,
)
from gateway.discovery.answers import read_addresses, read_services
from gateway.discovery.events import AnswerTrimmed, DiscoveryEvent, DomainHadNone, GatewaysFound, LookupFailed
from serving.outbound.addresses import AddressPolicy
from tests.gateway.discovery.lying_name_server import Answerer, answering

LIMIT = 4
ANY_ADDRESS = AddressPolicy(allow_private=True)


def rdata(kind: str, text: str) -> Rdata:
    return dns.rdata.from_text(dns.rdataclass.IN, dns.rdatatype.from_text(kind), text)


def srv_from_wire(priority: int, weight: int, port: int, labels: list[bytes]) -> Rdata:
    """A record as it comes from the network, where a label may hold any bytes."""
    name = b"".join(bytes([len(label)]) + label for label in labels) + b"\0"
    numbers = b"".join(number.to_bytes(2, "big") for number in (priority, weight, port))
    wire = numbers + name
    return dns.rdata.from_wire(dns.rdataclass.IN, dns.rdatatype.SRV, wire, 0, len(wire))


numbers = st.integers(0, 65_535)
labels = st.lists(
    st.binary(min_size=1, max_size=20) | st.sampled_from([b"a", b"B", b"1", b"127", b"xn--a"]), max_size=5
)
services = st.lists(st.builds(srv_from_wire, numbers, numbers, numbers | st.just(0), labels), max_size=30)


@given(services)
def test_any_service_records_give_at_most_the_bound_of_plain_names(records: list[Rdata]) -> None:
    read = read_services(records, LIMIT)
    assert len(read.gateways) <= LIMIT
    assert len({each.endpoint for each in read.gateways}) == len(read.gateways)
    refusals = sum(record.target == dns.name.root for record in records)  # type: ignore[attr-defined]
    if read.gateways:
        assert not read.not_offered
        assert read.dropped == len(records) - len(read.gateways)
    else:
        assert read.not_offered == (refusals > 0)
        assert read.dropped == len(records) - refusals
    for gateway in read.gateways:
        assert gateway.port > 0
        assert gateway.target == gateway.target.lower()
        assert not set(gateway.target) - set("abcdefghijklmnopqrstuvwxyz0123456789-_.")


def test_beyond_the_bound_the_preferred_are_kept() -> None:
    records = [rdata("SRV", f"{number} 0 4000 host{number}.test.") for number in reversed(range(10))]
    read = read_services(records, LIMIT)
    assert [each.priority for each in read.gateways] == [0, 1, 2, 3]
    assert read.dropped == 6


def test_one_gateway_under_two_priorities_counts_once() -> None:
    read = read_services([rdata("SRV", "5 0 4000 A.test."), rdata("SRV", "1 0 4000 a.test.")], LIMIT)
    assert [(each.target, each.priority) for each in read.gateways] == [("a.test", 1)]


def test_records_of_other_kinds_are_dropped() -> None:
    assert read_services([rdata("A", "192.0.2.1")], LIMIT).dropped == 1
    assert read_addresses([rdata("SRV", "0 0 1 a.test.")], ANY_ADDRESS, LIMIT).dropped == 1


def test_both_families_stand_in_turn() -> None:
    records = [rdata("A", "10.0.0.1"), rdata("A", "10.0.0.2"), rdata("A", "10.0.0.1"), rdata("AAAA", "fd00::1")]
    assert read_addresses(records, ANY_ADDRESS, LIMIT).usable == ("fd00::1", "10.0.0.1", "10.0.0.2")


@given(st.lists(st.ip_addresses(), max_size=20))
def test_any_addresses_give_at_most_the_bound_of_permitted_ones(addresses: list[object]) -> None:
    policy = AddressPolicy()
    records = [rdata("A" if "." in str(each) else "AAAA", str(each)) for each in addresses]
    read = read_addresses(records, policy, LIMIT)
    assert len(read.usable) <= LIMIT
    assert all(policy.refusal(each) is None for each in read.usable)


@pytest.mark.parametrize("address", ["127.0.0.1", "10.1.2.3", "169.254.169.254", "224.0.0.1", "0.0.0.0"])
def test_addresses_that_strangers_may_not_name(address: str) -> None:
    assert read_addresses([rdata("A", address)], AddressPolicy(), LIMIT).usable == ()


PATIENT, IMPATIENT = 20.0, 0.2
"""Seconds: for answers that come, on a machine however busy; and for those that never do."""


def resolver_at(
    port: int, events: list[DiscoveryEvent] | None = None, patience: float = PATIENT, **settings: object
) -> Resolver:
    config = ResolverConfig(
        nameservers=("127.0.0.1",),
        port=port,
        timeout=patience,
        lifetime=patience,
        **settings,  # type: ignore[arg-type]
    )
    return Resolver(config, ANY_ADDRESS, observer=None if events is None else events.append)


def answer_with(*lines: tuple[str, int, str, str], truncated: bool = False) -> Answerer:
    """Answers every question with those of the records that were asked for by type, and all aliases."""

    def answer(question: bytes) -> bytes:
        query = dns.message.from_wire(question)
        response = dns.message.make_response(query)
        if truncated:
            response.flags |= dns.flags.TC
            return response.to_wire()
        wanted = query.question[0]
        for name, ttl, kind, text in lines:
            owner = dns.name.from_text(name)
            if kind == "CNAME" or (dns.rdatatype.from_text(kind) == wanted.rdtype and owner == wanted.name):
                rrset = response.find_rrset(
                    response.answer, owner, dns.rdataclass.IN, dns.rdatatype.from_text(kind), create=True
                )
                rrset.add(rdata(kind, text), ttl)
        return response.to_wire(max_size=65_535)

    return answer


SRV_NAME = "_psirp._tcp.a.test."
GOOD = ((SRV_NAME, 60, "SRV", "0 0 4000 g.a.test."), ("g.a.test.", 40, "A", "127.0.0.9"))


async def test_a_long_answer_comes_over_tcp() -> None:
    many = tuple((SRV_NAME, 60, "SRV", f"{number} 0 4000 g.a.test.") for number in range(3))
    async with answering(answer_with(truncated=True), answer_with(*many, *GOOD[1:])) as port:
        events: list[DiscoveryEvent] = []
        found = await resolver_at(port, events).lookup("a.test")
    assert [each.addresses for each in found.gateways] == [("127.0.0.9",)]
    assert AnswerTrimmed("a.test", 2, 0) in events
    assert isinstance(events[-1], GatewaysFound)


async def test_a_thousand_records_are_cut_to_the_bound_and_so_are_the_questions() -> None:
    many = tuple((SRV_NAME, 60, "SRV", f"{n % 7} 1 {1 + n} h{n}.a.test.") for n in range(1000))
    async with answering(answer_with(truncated=True), answer_with(*many)) as port:
        resolver = resolver_at(port, max_gateways=5)
        found = await resolver.lookup("a.test")
    assert len(found.gateways) == 5
    assert found.availability is Availability.UNREACHABLE
    assert resolver.counts.questions == 1 + 2 * 5
    assert resolver.counts.records_dropped == 995


async def test_an_alias_without_end_is_named() -> None:
    loop = answer_with((SRV_NAME, 60, "CNAME", "x.a.test."), ("x.a.test.", 60, "CNAME", SRV_NAME))
    async with answering(loop) as port:
        with pytest.raises(LookupFailedError, match="chain of aliases without an end"):
            await resolver_at(port).lookup("a.test")


def garbage(question: bytes) -> bytes:
    """The header of a good answer, then noise."""
    return question[:2] + b"\x84\x00" + b"\x00\x01\xff\xff\x00\x00\x00\x00" + random.Random(question[:2]).randbytes(80)


def pointer_loop(question: bytes) -> bytes:
    return question[:2] + b"\x84\x00\x00\x01\x00\x01\x00\x00\x00\x00" + b"\xc0\x0c" * 40


def other_question(question: bytes) -> bytes:
    query = dns.message.make_query("other.test", "SRV", id=int.from_bytes(question[:2], "big"))
    return dns.message.make_response(query).to_wire()


def update_opcode(question: bytes) -> bytes:
    return question[:2] + b"\xa8\x00" + question[4:]


@pytest.mark.parametrize(
    "answer", [garbage, pointer_loop, other_question, update_opcode, lambda _: b"", lambda _: None, lambda q: q]
)
async def test_bytes_that_are_no_answer_end_in_words(answer: Answerer) -> None:
    async with answering(answer) as port:
        events: list[DiscoveryEvent] = []
        resolver = resolver_at(port, events, IMPATIENT)
        with pytest.raises(LookupFailedError, match=r"_psirp\._tcp\.a\.test") as caught:
            await resolver.lookup("a.test")
    assert len(str(caught.value)) <= 300
    assert events == [LookupFailed("a.test", str(caught.value), used_stale=False)]
    assert resolver.counts.failed_questions == 1
    with pytest.raises(LookupFailedError):
        await resolver.lookup("a.test")
    assert resolver.counts.questions == 1, "a failure is not asked again at once"


async def test_random_answers_never_escape_as_anything_else() -> None:
    noise = random.Random(5)

    def mutated(question: bytes) -> bytes:
        good = bytearray(answer_with(*GOOD)(question) or b"")
        for _ in range(noise.randint(1, 6)):
            good[noise.randrange(2, len(good))] = noise.randrange(256)
        return bytes(good)

    async with answering(mutated) as port:
        resolver = resolver_at(port, patience=IMPATIENT, max_questions=100)
        asked = (resolver.lookup(f"d{number}.test") for number in range(100))
        outcomes = await asyncio.gather(*asked, return_exceptions=True)
    assert all(isinstance(each, Found | LookupFailedError) for each in outcomes)
    assert any(isinstance(each, LookupFailedError) for each in outcomes)


async def test_addresses_that_come_unasked_are_not_used() -> None:
    def answer(question: bytes) -> bytes:
        query = dns.message.from_wire(question)
        response = dns.message.make_response(query)
        if query.question[0].rdtype == dns.rdatatype.SRV:
            response.answer.append(dns.rrset.from_text(SRV_NAME, 60, "IN", "SRV", "0 0 4000 bank.example."))
            response.additional.append(dns.rrset.from_text("bank.example.", 60, "IN", "A", "127.6.6.6"))
        return response.to_wire()

    async with answering(answer) as port:
        events: list[DiscoveryEvent] = []
        found = await resolver_at(port, events).lookup("a.test")
    assert [each.addresses for each in found.gateways] == [()]
    assert isinstance(events[-1], DomainHadNone)


async def test_one_missing_family_is_asked_again_soon() -> None:
    def answer(question: bytes) -> bytes | None:
        query = dns.message.from_wire(question)
        if query.question[0].rdtype != dns.rdatatype.AAAA:
            return answer_with(*GOOD)(question)
        response = dns.message.make_response(query)
        response.set_rcode(dns.rcode.SERVFAIL)
        return response.to_wire()

    async with answering(answer) as port:
        found = await resolver_at(port, cache=CacheConfig(failure=3)).lookup("a.test")
    assert [each.addresses for each in found.gateways] == [("127.0.0.9",)]
    assert found.ttl == 3


async def test_many_who_ask_at_once_cost_one_question_and_one_may_give_up() -> None:
    asked = asyncio.Event()

    def answer(question: bytes) -> bytes | None:
        asked.set()
        return answer_with(*GOOD)(question)

    async with answering(answer) as port:
        resolver = resolver_at(port)
        waiting = [asyncio.create_task(resolver.gateways("a.test")) for _ in range(20)]
        await asyncio.sleep(0)
        waiting[0].cancel()
        results = await asyncio.gather(*waiting[1:])
        assert asked.is_set()
    assert all(len(result) == 1 for result in results)
    assert resolver.counts.questions == 3


async def test_a_look_up_that_waits_for_slow_ones_ends_in_time() -> None:
    async with answering(lambda _: None) as port:
        resolver = resolver_at(port, max_questions=1, deadline=0.1)
        asked = (resolver.gateways(f"d{number}.test") for number in range(3))
        outcomes = await asyncio.gather(*asked, return_exceptions=True)
    assert all(isinstance(each, LookupFailedError) and "within 0.1 s" in str(each) for each in outcomes)
    assert resolver.counts.deadlines_missed == 3


async def test_look_ups_at_once_are_bounded() -> None:
    async with answering(lambda _: None) as port:
        resolver = resolver_at(port, max_lookups=2)
        waiting = [asyncio.create_task(resolver.gateways(f"d{number}.test")) for number in range(2)]
        await asyncio.sleep(0)
        with pytest.raises(LookupFailedError, match="try again later"):
            await resolver.gateways("d3.test")
        assert resolver.counts.lookups_refused == 1
        await resolver.close()
        for task in waiting:
            with pytest.raises(asyncio.CancelledError):
                await task


@pytest.mark.parametrize(
    "settings", [{"nameservers": ("ns.test",)}, {"port": 0}, {"timeout": 0.0}, {"max_gateways": 0}, {"lifetime": -1.0}]
)
def test_settings_that_make_no_sense_are_refused(settings: dict[str, object]) -> None:
    with pytest.raises(DiscoveryError, match=r"expected|above 0|1 or more"):
        ResolverConfig(**settings)  # type: ignore[arg-type]
