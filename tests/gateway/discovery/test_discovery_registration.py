"""Updates of one's own record on paper: what they change, what they cannot, and the key that signs them."""

import asyncio
import os
import random
import re
from dataclasses import replace
from pathlib import Path

import dns.flags
import dns.message
import dns.name
import dns.rcode
import dns.rdata
import dns.rdataclass
import dns.rdatatype
import dns.rrset
import dns.tsigkeyring
import dns.update
import pytest
from dns.rdtypes.IN.SRV import SRV
from hypothesis import given
from hypothesis import strategies as st

from gateway.discovery import DiscoveryError, OwnRecord, Registrar, RegistrarConfig, UpdateKeyError
from gateway.discovery.events import DiscoveryEvent, RegistrationFailed
from gateway.discovery.keys import parse_key, read_key
from gateway.discovery.registration import (
    MAX_RECORDS,
    ChangedMeanwhileError,
    Present,
    RecordPlace,
    RegistrationError,
    check_update,
    question,
    read_present,
    update_to_register,
    update_to_remove,
)
from storage.backoff import BackOff
from tests.gateway.discovery.lying_name_server import Answerer, answering
from tests.gateway.discovery.name_server import SECRETS, key_text

PLACE = RecordPlace.of("feeds.test")
NAME = PLACE.dns_name
OWN = OwnRecord("me.feeds.test", 4000, 1, 2, 60)


def srv(text: str) -> SRV:
    record = dns.rdata.from_text(dns.rdataclass.IN, dns.rdatatype.SRV, text)
    assert isinstance(record, SRV)
    return record


class Zone:
    """The rules of RFC 2136 for the service records of one name, written from its text: the judge of our messages."""

    def __init__(self, records: set[SRV], ttl: int | None) -> None:
        self.records, self.ttl = records, ttl

    def carry_out(self, message: dns.update.UpdateMessage) -> dns.rcode.Rcode:
        expected: set[SRV] = set()
        for rrset in message.prerequisite:
            assert rrset.name == NAME
            absent = rrset.deleting == dns.rdataclass.NONE
            if absent and rrset.rdtype == dns.rdatatype.SRV and self.records:
                return dns.rcode.YXRRSET
            if not absent:
                expected |= {record for record in rrset if isinstance(record, SRV)}
        if expected and expected != self.records:
            return dns.rcode.NXRRSET
        for rrset in message.update:
            assert rrset.name == NAME
            assert rrset.rdtype == dns.rdatatype.SRV
            assert rrset.deleting in (None, dns.rdataclass.NONE), "never a whole record set"
            for record in rrset:
                assert isinstance(record, SRV)
                if rrset.deleting is None:
                    self.records.add(record)
                    self.ttl = int(rrset.ttl)
                else:
                    self.records.discard(record)
        return dns.rcode.NOERROR

    def present(self) -> Present:
        return Present(tuple(self.records), self.ttl if self.records else None)


targets = st.sampled_from(["me.feeds.test", "you.feeds.test", "them.example"])
own_records = st.builds(
    OwnRecord, targets, st.sampled_from([4000, 4001]), st.integers(0, 2), st.integers(0, 2), st.sampled_from([30, 60])
)
zones = st.builds(Zone, st.sets(st.builds(OwnRecord.rdata, own_records), max_size=8), st.sampled_from([30, 60, 77]))


def endpoint(record: SRV) -> tuple[str, int]:
    return record.target.to_text(omit_final_dot=True), record.port


def over_the_wire(message: dns.update.UpdateMessage) -> dns.update.UpdateMessage:
    read = dns.message.from_wire(message.to_wire())
    assert isinstance(read, dns.update.UpdateMessage)
    return read


@given(zones, own_records, st.lists(own_records, max_size=2))
def test_registering_leaves_others_alone_and_is_done_once(zone: Zone, own: OwnRecord, formers: list[OwnRecord]) -> None:
    former = [each.endpoint for each in formers]
    mine = {own.endpoint, *former}
    others = {record for record in zone.records if endpoint(record) not in mine}
    ttl_before = zone.ttl
    update = update_to_register(PLACE, zone.present(), own, former)
    if update is not None:
        assert zone.carry_out(over_the_wire(update)) == dns.rcode.NOERROR
    assert zone.records == {*others, own.rdata()}
    assert zone.ttl == (ttl_before if others else own.ttl)
    assert update_to_register(PLACE, zone.present(), own, former) is None


@given(zones, own_records)
def test_removing_takes_only_ones_own(zone: Zone, own: OwnRecord) -> None:
    others = {record for record in zone.records if endpoint(record) != own.endpoint}
    update = update_to_remove(PLACE, zone.present(), [own.endpoint])
    if update is not None:
        assert zone.carry_out(over_the_wire(update)) == dns.rcode.NOERROR
    assert zone.records == others
    assert update_to_remove(PLACE, zone.present(), [own.endpoint]) is None


@given(zones, own_records, own_records)
def test_an_update_on_an_old_look_changes_nothing(zone: Zone, own: OwnRecord, intruder: OwnRecord) -> None:
    update = update_to_register(PLACE, zone.present(), own)
    if update is None or intruder.rdata() in zone.records:
        return
    zone.records.add(intruder.rdata())
    before = set(zone.records)
    code = zone.carry_out(over_the_wire(update))
    assert code in (dns.rcode.NXRRSET, dns.rcode.YXRRSET)
    assert zone.records == before


def test_no_gateway_is_added_beside_the_statement_that_there_is_none() -> None:
    with pytest.raises(RegistrationError, match="remove that record"):
        update_to_register(PLACE, Present((srv("0 0 0 ."),), 60), OWN)


def response(*texts: str, kind: str = "SRV", code: dns.rcode.Rcode = dns.rcode.NOERROR) -> dns.message.Message:
    message = dns.message.make_response(question(PLACE))
    message.flags |= dns.flags.AA
    message.set_rcode(code)
    if texts:
        message.answer.append(dns.rrset.from_text(NAME, 60, "IN", kind, *texts))
    return dns.message.from_wire(message.to_wire())


def test_what_is_present_is_read() -> None:
    assert read_present(PLACE, response()) == Present((), None)
    assert read_present(PLACE, response(code=dns.rcode.NXDOMAIN)) == Present((), None)
    assert read_present(PLACE, response("1 2 3 a.test.")) == Present((srv("1 2 3 a.test."),), 60)


def test_an_answer_of_a_server_that_is_not_responsible_is_not_used() -> None:
    message = response("1 2 3 a.test.")
    message.flags &= ~dns.flags.AA
    with pytest.raises(RegistrationError, match="not responsible"):
        read_present(PLACE, message)


def test_too_many_records_are_refused() -> None:
    texts = [f"1 2 {number} a.test." for number in range(1, MAX_RECORDS + 2)]
    assert len(read_present(PLACE, response(*texts[:-1])).records) == MAX_RECORDS
    with pytest.raises(RegistrationError, match=f"{MAX_RECORDS} at most"):
        read_present(PLACE, response(*texts))


def test_an_alias_is_refused() -> None:
    with pytest.raises(RegistrationError, match="alias"):
        read_present(PLACE, response("a.test.", kind="CNAME"))


@pytest.mark.parametrize("code", [code for code in dns.rcode.Rcode if code < 16])
def test_every_answer_to_an_update_is_success_a_lost_race_or_words(code: dns.rcode.Rcode) -> None:
    message = response(code=code)
    if code == dns.rcode.NOERROR:
        check_update(PLACE, message)
        return
    with pytest.raises(RegistrationError) as caught:
        check_update(PLACE, message)
    assert len(str(caught.value)) > 20
    races = (dns.rcode.NXRRSET, dns.rcode.YXRRSET, dns.rcode.NXDOMAIN, dns.rcode.YXDOMAIN)
    assert isinstance(caught.value, ChangedMeanwhileError) == (code in races)


def test_a_place_is_inside_its_zone() -> None:
    assert RecordPlace.of("News.Feeds.test", "feeds.test") == RecordPlace("feeds.test", "_psirp._tcp.news.feeds.test")
    with pytest.raises(DiscoveryError, match="does not hold"):
        RecordPlace.of("myfeeds.test", "feeds.test")


@pytest.mark.parametrize(
    "wrong", [{"port": 0}, {"port": 65_536}, {"priority": -1}, {"weight": 65_536}, {"ttl": 0}, {"target": "10.0.0.1"}]
)
def test_a_record_that_cannot_be_is_refused(wrong: dict[str, int]) -> None:
    with pytest.raises(DiscoveryError, match="expected"):
        replace(OWN, **wrong)


# The key file.


def write_key(path: Path, text: str, mode: int = 0o600) -> Path:
    path.write_text(text)
    path.chmod(mode)
    return path


def test_a_key_is_read_and_keeps_its_secret_to_itself(tmp_path: Path) -> None:
    key = read_key(write_key(tmp_path / "key", "# by hand\n" + key_text("gateway-key")))
    assert (key.name, key.algorithm, len(key.secret)) == ("gateway-key.", "hmac-sha256", 33)
    assert "secret" not in repr(key)


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o660, 0o601, 0o777])
def test_a_key_that_others_may_read_is_refused(tmp_path: Path, mode: int) -> None:
    path = write_key(tmp_path / "key", key_text("gateway-key"), mode)
    with pytest.raises(UpdateKeyError, match=r"others can read .*expected mode 0600"):
        read_key(path)


def test_what_is_no_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UpdateKeyError, match="No such file"):
        read_key(tmp_path / "missing")
    os.mkfifo(tmp_path / "pipe", 0o600)
    for path in (tmp_path, tmp_path / "pipe"):
        with pytest.raises(UpdateKeyError, match=r"regular file|directory"):
            read_key(path)
    with pytest.raises(UpdateKeyError, match="larger than"):
        read_key(write_key(tmp_path / "long", key_text("gateway-key") + " " * 5000))
    (tmp_path / "bytes").write_bytes(b"\xff\xfe")
    (tmp_path / "bytes").chmod(0o600)
    with pytest.raises(UpdateKeyError, match="not text"):
        read_key(tmp_path / "bytes")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "expected one `key"),
        ("gateway-key c2VjcmV0", "expected one `key"),
        (key_text("gateway-key") * 2, "expected one `key"),
        (key_text("gateway-key", algorithm="hmac-md5"), "hmac-md5"),
        (key_text("gateway-key", secret="c2hvcnQ="), "5 bytes"),
        (key_text("gateway-key", secret="%%%"), "base64"),
        ('key "a" { algorithm hmac-sha256; };', "a secret"),
        ('key "a" { secret "c2hvcnQ="; secret "c2hvcnQ="; };', "twice"),
        ('key "a" { algorithm hmac-sha256; secret "c2hvcnQ="; more yes; };', "nothing else"),
        (key_text("gateway-key").replace("gateway-key", "a..b"), "not a domain name"),
    ],
)
def test_what_is_no_key_is_refused(text: str, words: str) -> None:
    with pytest.raises(UpdateKeyError, match=words):
        parse_key(text)


@given(st.text(max_size=200) | st.text('key {};"ab=algorithmsecret \n', max_size=200))
def test_any_text_is_a_key_or_refused(text: str) -> None:
    try:
        parse_key(text)
    except UpdateKeyError as error:
        assert len(str(error)) < 300


# Servers that lie.


def unsigned_yes(message: bytes) -> bytes:
    query = dns.message.from_wire(message, keyring=False)
    reply = dns.message.make_response(question(PLACE), recursion_available=False)
    reply.id, reply.flags = query.id, reply.flags | dns.flags.AA
    return reply.to_wire()


def signed_by_another(message: bytes) -> bytes:
    query = dns.message.from_wire(message, keyring=False)
    reply = dns.message.make_response(question(PLACE))
    reply.id, reply.flags = query.id, reply.flags | dns.flags.AA
    ring = dns.tsigkeyring.from_text({"gateway-key": ("hmac-sha256", SECRETS["other-key"])})
    reply.use_tsig(ring, keyname="gateway-key", algorithm="hmac-sha256")
    return reply.to_wire()


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (unsigned_yes, r"TSIG|did not sign"),
        (signed_by_another, "not signed with the key"),
        (lambda _: random.Random(1).randbytes(100), "no usable answer"),
        (lambda message: message, "no usable answer|not signed"),
        (lambda _: b"", "cannot be reached|no usable answer"),
    ],
)
async def test_a_server_that_lies_is_not_believed(tmp_path: Path, answer: Answerer, words: str) -> None:
    events: asyncio.Queue[DiscoveryEvent] = asyncio.Queue()
    async with answering(answer) as port:
        config = RegistrarConfig(
            "feeds.test",
            "127.0.0.1",
            write_key(tmp_path / "key", key_text("gateway-key")),
            OWN,
            port=port,
            back_off=BackOff(1000, 1, 1000),
        )
        registrar = Registrar(config, observer=events.put_nowait, rng=random.Random(1))
        await registrar.start()
        event = await events.get()
        assert isinstance(event, RegistrationFailed)
        assert re.search(words, event.reason), event.reason
        assert event.retry_in is not None
        assert 500 <= event.retry_in <= 1000
        assert not await registrar.stop()
        assert not await registrar.stop()
    assert (registrar.counts.written, registrar.counts.removed) == (0, 0)


async def test_a_server_that_is_silent_does_not_hold_up_the_end(tmp_path: Path) -> None:
    asked = asyncio.Event()

    def silent(_: bytes) -> None:
        asked.set()

    key = write_key(tmp_path / "key", key_text("gateway-key"))
    async with answering(silent) as port, asyncio.timeout(30):
        registrar = Registrar(
            RegistrarConfig("feeds.test", "127.0.0.1", key, OWN, port=port, timeout=30, stop_timeout=0.05)
        )
        await registrar.start()
        await asked.wait()
        assert not await registrar.stop()
    assert "did not answer within 0.05 s" in str(registrar.problem)


async def test_a_registrar_without_a_key_does_not_start(tmp_path: Path) -> None:
    registrar = Registrar(RegistrarConfig("feeds.test", "127.0.0.1", tmp_path / "missing", OWN))
    with pytest.raises(UpdateKeyError):
        await registrar.start()
    assert not await registrar.stop()


@pytest.mark.parametrize(
    "wrong",
    [
        {"server": ""},
        {"port": 0},
        {"interval": 0.0},
        {"timeout": float("nan")},
        {"exchanges": 0},
        {"domain": "::1"},
        {"zone": "other.test"},
    ],
)
def test_settings_that_make_no_sense_are_refused(wrong: dict[str, str], tmp_path: Path) -> None:
    with pytest.raises(DiscoveryError):
        replace(RegistrarConfig("feeds.test", "127.0.0.1", tmp_path, OWN), **wrong)
