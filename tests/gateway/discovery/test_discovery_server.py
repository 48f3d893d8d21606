"""Discovery against a real name server: look-ups, dynamic updates, and what is refused."""

import asyncio
import random
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import dns.message
import dns.query
import dns.rcode
import dns.update
import pytest
import uvloop

from gateway.discovery import (
    Availability,
    FailoverConfig,
    GatewayRecord,
    Locator,
    LookupFailedError,
    OwnRecord,
    Registrar,
    RegistrarConfig,
    Resolver,
    ResolverConfig,
)
from gateway.discovery.events import (
    DiscoveryEvent,
    GatewayFailed,
    GatewayRecovered,
    RecordConfirmed,
    RecordRemoved,
    RecordWritten,
    RegistrationFailed,
)
from gateway.discovery.keys import read_key
from gateway.discovery.registration import (
    ChangedMeanwhileError,
    RecordPlace,
    check_update,
    question,
    read_present,
    update_to_register,
)
from serving.outbound.addresses import AddressPolicy
from storage.backoff import BackOff
from tests.gateway.discovery.name_server import ZONE, NameServer, key_text, why_not

pytestmark = pytest.mark.skipif(why_not() is not None, reason=str(why_not()))

NAME = f"_psirp._tcp.{ZONE}."
OTHERS = "10 10 5000 three.feeds.test."
OWN = OwnRecord("one.feeds.test", 4001)
OWN_TEXT = "10 10 4001 one.feeds.test."
NEVER = 10_000.0


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NameServer]:
    server = NameServer.prepare(tmp_path_factory.mktemp("named"))
    server.start()
    yield server
    server.stop()


@pytest.fixture
def server(running: NameServer) -> NameServer:
    """The server with no service record at the zone's own name."""
    running.administrate(("delete", NAME))
    return running


class Journal:
    """Remembers events and lets a test wait for the next of a kind."""

    def __init__(self) -> None:
        self._events: asyncio.Queue[DiscoveryEvent] = asyncio.Queue()

    def __call__(self, event: DiscoveryEvent) -> None:
        self._events.put_nowait(event)

    async def next(self) -> DiscoveryEvent:
        async with asyncio.timeout(30):
            return await self._events.get()

    def empty(self) -> bool:
        return self._events.empty()


def resolver_of(server: NameServer, *, allow_private: bool = True) -> Resolver:
    config = ResolverConfig(nameservers=("127.0.0.1",), port=server.port)
    return Resolver(config, AddressPolicy(allow_private=allow_private))


def config_of(server: NameServer, key: str = "gateway-key", record: OwnRecord = OWN) -> RegistrarConfig:
    return RegistrarConfig(
        domain=ZONE, server="127.0.0.1", port=server.port, key_file=server.key_file(key), record=record, interval=NEVER
    )


@asynccontextmanager
async def registrar_of(config: RegistrarConfig) -> AsyncIterator[tuple[Registrar, Journal]]:
    journal = Journal()
    registrar = Registrar(config, observer=journal, rng=random.Random(1))
    await registrar.start()
    try:
        yield registrar, journal
    finally:
        await registrar.stop()


async def test_the_gateways_of_a_domain_are_found(running: NameServer) -> None:
    found = await resolver_of(running).lookup("FIXED.feeds.test.")
    assert found.domain == "fixed.feeds.test"
    assert found.availability is Availability.AVAILABLE
    assert found.gateways == (
        GatewayRecord("one.feeds.test", 4001, 10, 60, ("::1", "127.0.0.11")),
        GatewayRecord("two.feeds.test", 4002, 10, 20, ("127.0.0.12",)),
        GatewayRecord("three.feeds.test", 4003, 20, 0, ("127.0.0.13",)),
    )
    # `two` has no AAAA record: the zone's negative time to live of 30 s is the shortest that counts.
    assert found.ttl == 30


async def test_an_alias_of_the_service_name_is_followed(running: NameServer) -> None:
    assert len(await resolver_of(running).gateways("aliased.feeds.test")) == 3


async def test_private_addresses_need_permission(running: NameServer) -> None:
    resolver = resolver_of(running, allow_private=False)
    found = await resolver.lookup("fixed.feeds.test")
    assert found.availability is Availability.UNREACHABLE
    assert [gateway.addresses for gateway in found.gateways] == [(), (), ()]
    assert resolver.counts.addresses_dropped == 4


@pytest.mark.parametrize(
    ("domain", "availability", "words", "ttl"),
    [
        ("none.feeds.test", Availability.NOT_OFFERED, "says that it has no gateway", 120),
        ("unheard-of.feeds.test", Availability.NO_RECORD, "no SRV record", 30),
        ("one.feeds.test", Availability.NO_RECORD, "no SRV record", 30),
        ("lost.feeds.test", Availability.UNREACHABLE, "none of the gateways", 30),
    ],
)
async def test_a_domain_without_gateways_says_why(
    running: NameServer, domain: str, availability: Availability, words: str, ttl: int
) -> None:
    resolver = resolver_of(running)
    found = await resolver.lookup(domain)
    assert found.availability is availability
    assert words in found.explanation
    assert found.ttl == ttl
    assert (await resolver.lookup(domain)).availability is availability
    assert resolver.cache.counts.hits == 1


async def test_unusable_records_cost_only_themselves(running: NameServer) -> None:
    """A name without address, port 0, a link-local address, an alias without end and "." beside others."""
    resolver = resolver_of(running)
    candidates = await Locator(resolver, rng=random.Random(1)).candidates("mixed.feeds.test")
    assert [(each.target, each.addresses) for each in candidates] == [("alias.feeds.test", ("127.0.0.12",))]
    assert resolver.counts.records_dropped == 2
    assert resolver.counts.addresses_dropped == 1


async def test_an_alias_without_end_is_an_error_in_words(running: NameServer) -> None:
    """BIND notices it and answers SERVFAIL; a server that does not is among the hostile ones of another test."""
    with pytest.raises(LookupFailedError, match=r"_psirp\._tcp\.looped\.feeds\.test"):
        await resolver_of(running).gateways("looped.feeds.test")


async def test_a_domain_the_server_does_not_know_is_an_error_in_words(running: NameServer) -> None:
    with pytest.raises(LookupFailedError, match="REFUSED"):
        await resolver_of(running).gateways("example.org")


def test_it_works_on_uvloop(running: NameServer) -> None:
    async def both() -> int:
        count = len(await resolver_of(running).gateways("fixed.feeds.test"))
        async with registrar_of(config_of(running)) as (_, journal):
            assert isinstance(await journal.next(), RecordWritten | RecordConfirmed)
        return count

    assert uvloop.run(both()) == 3


async def test_the_record_comes_and_goes_with_the_gateway(server: NameServer) -> None:
    async with registrar_of(config_of(server)) as (registrar, journal):
        assert await journal.next() == RecordWritten(NAME[:-1], f"SRV {OWN_TEXT}")
        assert server.services_with_ttl() == {(OWN_TEXT, OWN.ttl)}
        assert [each.endpoint for each in await resolver_of(server).gateways(ZONE)] == [OWN.endpoint]
        registrar.refresh()
        assert isinstance(await journal.next(), RecordConfirmed)
        assert await registrar.stop()
        assert isinstance(await journal.next(), RecordRemoved)
    assert server.services() == set()
    assert (registrar.counts.written, registrar.counts.removed, registrar.problem) == (1, 1, None)


async def test_others_records_and_their_time_to_live_stay(server: NameServer) -> None:
    server.administrate(("add", NAME, "77", "SRV", OTHERS))
    async with registrar_of(config_of(server)) as (registrar, journal):
        assert isinstance(await journal.next(), RecordWritten)
        assert server.services_with_ttl() == {(OTHERS, 77), (OWN_TEXT, 77)}
        registrar.change(replace(OWN, port=4444, weight=3))
        assert isinstance(await journal.next(), RecordWritten)
        assert server.services_with_ttl() == {(OTHERS, 77), ("10 3 4444 one.feeds.test.", 77)}
    assert server.services_with_ttl() == {(OTHERS, 77)}


async def test_what_a_crash_left_behind_is_replaced(server: NameServer) -> None:
    server.administrate(("add", NAME, "60", "SRV", "1 2 4001 one.feeds.test."))
    async with registrar_of(config_of(server)) as (_, journal):
        assert isinstance(await journal.next(), RecordWritten)
        assert server.services() == {OWN_TEXT}


async def test_another_time_to_live_is_corrected_once(server: NameServer) -> None:
    server.administrate(("add", NAME, "300", "SRV", "10 10 4001 ONE.feeds.test."))
    async with registrar_of(config_of(server)) as (registrar, journal):
        assert isinstance(await journal.next(), RecordWritten)
        assert {ttl for _, ttl in server.services_with_ttl()} == {OWN.ttl}
        registrar.refresh()
        assert isinstance(await journal.next(), RecordConfirmed)
        assert len(server.services()) == 1


async def test_a_registrar_may_start_again(server: NameServer) -> None:
    journal = Journal()
    registrar = Registrar(config_of(server), observer=journal)
    for _ in range(2):
        await registrar.start()
        assert isinstance(await journal.next(), RecordWritten)
        assert await registrar.stop()
        assert isinstance(await journal.next(), RecordRemoved)
    assert server.services() == set()


async def test_a_change_during_an_update_replaces_what_that_wrote(server: NameServer) -> None:
    async with registrar_of(config_of(server)) as (registrar, journal):
        await asyncio.sleep(0)  # the first update is under way now
        registrar.change(replace(OWN, port=7000))
        assert await journal.next() == RecordWritten(NAME[:-1], f"SRV {OWN_TEXT}")
        assert await journal.next() == RecordWritten(NAME[:-1], "SRV 10 10 7000 one.feeds.test.")
        assert server.services() == {"10 10 7000 one.feeds.test."}


async def test_an_update_under_way_is_finished_before_the_removal(server: NameServer) -> None:
    async with registrar_of(replace(config_of(server), stop_timeout=30)) as (registrar, journal):
        await asyncio.sleep(0)
        assert await registrar.stop()
        assert isinstance(await journal.next(), RecordWritten)
        assert isinstance(await journal.next(), RecordRemoved)
    assert server.services() == set()


async def test_changes_in_quick_succession_leave_one_record(server: NameServer) -> None:
    async with registrar_of(config_of(server)) as (registrar, journal):
        for port in range(7000, 7010):
            registrar.change(replace(OWN, port=port))
            if port % 3 == 0:
                await journal.next()
        while server.services() != {"10 10 7009 one.feeds.test."}:
            await journal.next()
        assert registrar.counts.failed == 0
    assert server.services() == set()


async def test_a_removed_record_comes_back(server: NameServer) -> None:
    async with registrar_of(replace(config_of(server), interval=0.05)) as (_, journal):
        assert isinstance(await journal.next(), RecordWritten)
        assert isinstance(await journal.next(), RecordConfirmed)  # by the interval alone
        server.administrate(("delete", NAME))
        while not isinstance(await journal.next(), RecordWritten):
            pass
        assert server.services() == {OWN_TEXT}


async def test_many_gateways_at_once_do_not_take_each_others_records(server: NameServer) -> None:
    records = [replace(OWN, port=6000 + number) for number in range(6)]
    registrars = []
    journal = Journal()
    for number, record in enumerate(records):
        config = replace(config_of(server, record=record), exchanges=2, back_off=BackOff(0.01, 2.0, 0.1))
        registrars.append(Registrar(config, observer=journal, rng=random.Random(number)))
    await asyncio.gather(*(each.start() for each in registrars))
    written = 0
    while written < len(records):
        written += isinstance(await journal.next(), RecordWritten)
    assert server.services() == {f"10 10 {record.port} one.feeds.test." for record in records}
    half = registrars[:3]
    while half:
        half = [each for each in half if not await each.stop()]
    assert server.services() == {f"10 10 {record.port} one.feeds.test." for record in records[3:]}
    for each in registrars[3:]:
        assert await each.stop()


def test_the_server_refuses_an_update_on_an_old_look(server: NameServer) -> None:
    """The prerequisites, as a real server understands them: another's record came in between, so nothing changes."""
    place, key = RecordPlace.of(ZONE), read_key(server.key_file()).for_signing()

    def send(message: dns.message.Message) -> dns.message.Message:
        message.use_tsig(key)
        return dns.query.tcp(message, "127.0.0.1", timeout=5, port=server.port)

    update = update_to_register(place, read_present(place, send(question(place))), OWN)
    assert update is not None
    server.administrate(("add", NAME, "77", "SRV", OTHERS))
    with pytest.raises(ChangedMeanwhileError):
        check_update(place, send(update))
    assert server.services_with_ttl() == {(OTHERS, 77)}
    # An alias in an empty place: without the prerequisite, the server would ignore the update and call it a success.
    server.administrate(("delete", NAME))
    update = update_to_register(place, read_present(place, send(question(place))), OWN)
    assert update is not None
    server.administrate(("add", NAME, "60", "CNAME", "elsewhere.test."))
    with pytest.raises(ChangedMeanwhileError):
        check_update(place, send(update))
    server.administrate(("delete", NAME))


async def test_a_gateway_that_died_is_passed_over_and_comes_back(server: NameServer) -> None:
    """Two registered gateways that really listen; one dies without a word, so its record stays."""

    async def listen(address: str, port: int = 0) -> asyncio.Server:
        def greet(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            writer.close()

        return await asyncio.start_server(greet, address, port)

    async def reach(locator: Locator) -> tuple[str, int]:
        """What a gateway does: try one after the other, and say what became of it. Answers which one, at which try."""
        for tries, gateway in enumerate(await locator.candidates(ZONE), start=1):
            try:
                _, writer = await asyncio.open_connection(gateway.addresses[0], gateway.port)
            except OSError:
                locator.mark_failed(gateway)
                continue
            writer.close()
            await writer.wait_closed()
            locator.mark_good(gateway)
            return gateway.target, tries
        raise AssertionError("nobody was reached")

    now = 0.0
    first, second = await listen("127.0.0.12"), await listen("127.0.0.13")
    port = first.sockets[0].getsockname()[1]
    records = [
        OwnRecord("two.feeds.test", port, priority=1),
        OwnRecord("three.feeds.test", second.sockets[0].getsockname()[1], priority=2),
    ]
    async with (
        registrar_of(config_of(server, record=records[0])) as (_, journal),
        registrar_of(config_of(server, record=records[1])) as (_, other_journal),
    ):
        assert isinstance(await journal.next(), RecordWritten)
        assert isinstance(await other_journal.next(), RecordWritten)
        events: list[DiscoveryEvent] = []
        locator = Locator(
            resolver_of(server),
            FailoverConfig(BackOff(10, 2, 100)),
            rng=random.Random(1),
            observer=events.append,
            clock=lambda: now,
        )
        assert await reach(locator) == ("two.feeds.test", 1)
        first.close()
        await first.wait_closed()
        assert await reach(locator) == ("three.feeds.test", 2)
        assert await reach(locator) == ("three.feeds.test", 1), "it is not tried again at once"
        first = await listen("127.0.0.12", port)
        now = 10.0
        assert await reach(locator) == ("two.feeds.test", 1)
        assert [type(event) for event in events] == [GatewayFailed, GatewayRecovered]
    for listener in (first, second):
        listener.close()
        await listener.wait_closed()


async def test_a_domain_that_says_no_gateway_is_left_so(server: NameServer) -> None:
    server.administrate(("add", NAME, "60", "SRV", "0 0 0 ."))
    async with registrar_of(config_of(server)) as (_, journal):
        event = await journal.next()
        assert isinstance(event, RegistrationFailed)
        assert "remove that record" in event.reason
    assert server.services() == {"0 0 0 ."}


async def test_an_alias_in_the_way_is_named(server: NameServer) -> None:
    server.administrate(("add", NAME, "60", "CNAME", "_psirp._tcp.fixed.feeds.test."))
    async with registrar_of(config_of(server)) as (_, journal):
        event = await journal.next()
        assert isinstance(event, RegistrationFailed)
        assert "alias" in event.reason
    server.administrate(("delete", NAME))


async def test_a_key_without_the_right_changes_nothing(server: NameServer) -> None:
    server.administrate(("add", NAME, "60", "SRV", OTHERS))
    async with registrar_of(config_of(server, "stranger-key")) as (registrar, journal):
        event = await journal.next()
        assert isinstance(event, RegistrationFailed)
        assert "refused" in event.reason
        assert event.retry_in is not None
        assert registrar.problem == event.reason
    assert server.services() == {OTHERS}


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (key_text("gateway-key", secret="d3JvbmcgYnV0IGxvbmcgZW5vdWdoIHRvIGJlIHVzZWQ="), "another secret"),
        (key_text("nobodys-key", secret="d3JvbmcgYnV0IGxvbmcgZW5vdWdoIHRvIGJlIHVzZWQ="), "does not know the key"),
    ],
)
async def test_a_wrong_key_changes_nothing(server: NameServer, tmp_path: Path, text: str, words: str) -> None:
    path = tmp_path / "key"
    path.touch(mode=0o600)
    path.write_text(text)
    async with registrar_of(replace(config_of(server), key_file=path)) as (_, journal):
        event = await journal.next()
        assert isinstance(event, RegistrationFailed)
        assert words in event.reason
    assert server.services() == set()


def test_an_unsigned_update_changes_nothing(server: NameServer) -> None:
    """Not of our making: it shows that the server of these tests guards what the others rely on."""
    update = dns.update.UpdateMessage(ZONE)
    update.add(NAME, 60, "SRV", OWN_TEXT)
    response = dns.query.tcp(update, "127.0.0.1", timeout=5, port=server.port)
    assert response.rcode() == dns.rcode.REFUSED
    assert server.services() == set()


async def test_a_wrong_zone_is_named(server: NameServer) -> None:
    async with registrar_of(replace(config_of(server), domain="a.test", zone="test")) as (_, journal):
        event = await journal.next()
        assert isinstance(event, RegistrationFailed)
        assert "a.test" in event.reason or "zone test" in event.reason


async def test_it_waits_for_a_server_that_is_away(tmp_path: Path) -> None:
    server = NameServer.prepare(tmp_path)
    config = replace(config_of(server), back_off=BackOff(0.02, 1.0, 0.02))
    async with registrar_of(config) as (registrar, journal):
        for _ in range(3):
            event = await journal.next()
            assert isinstance(event, RegistrationFailed)
            assert "cannot be reached" in event.reason
        await asyncio.to_thread(server.start)
        try:
            while not isinstance(await journal.next(), RecordWritten):
                pass
            assert registrar.problem is None
            assert server.services() == {OWN_TEXT}
        finally:
            server.stop()
        assert not await registrar.stop()
        assert "cannot be reached" in str(registrar.problem)


async def test_old_answers_serve_while_the_name_server_is_away(tmp_path: Path) -> None:
    server = NameServer.prepare(tmp_path)
    await asyncio.to_thread(server.start)
    now = 0.0
    resolver = Resolver(
        ResolverConfig(nameservers=("127.0.0.1",), port=server.port, timeout=0.2, lifetime=0.5),
        AddressPolicy(allow_private=True),
        clock=lambda: now,
    )
    try:
        first = await resolver.lookup("brief.feeds.test")
    finally:
        server.stop()
    assert first.ttl == 5
    now = 4.9
    assert not (await resolver.lookup("brief.feeds.test")).stale
    now = 5.0
    later = await resolver.lookup("brief.feeds.test")
    assert later.stale
    assert later.gateways == first.gateways
    now = 5.0 + resolver.config.cache.stale
    with pytest.raises(LookupFailedError):
        await resolver.lookup("brief.feeds.test")
