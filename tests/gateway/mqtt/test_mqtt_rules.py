"""What the specifications forbid, byte by byte: who is answered what, and whose connection ends without a word."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from gateway.protocols.mqtt.numbers import Level
from tests.gateway.mqtt.broker_bench import BenchClient, BrokerBench, running_broker

V4, V5 = Level.V311, Level.V5
MALFORMED, PROTOCOL, ALIAS = b"\xe0\x01\x81", b"\xe0\x01\x82", b"\xe0\x01\x94"


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerBench]:
    with running_broker(tmp_path_factory.mktemp("rules")) as bench:
        yield bench


def frame(first: int, *parts: bytes | str | int) -> bytes:
    """A packet with its length; texts have theirs in front, numbers are two bytes."""
    body = b"".join(
        len(one.encode()).to_bytes(2) + one.encode()
        if isinstance(one, str)
        else one.to_bytes(2)
        if isinstance(one, int)
        else one
        for one in parts
    )
    assert len(body) < 128
    return bytes((first, len(body))) + body


def properties(*parts: bytes | str | int) -> bytes:
    return frame(0, *parts)[1:]


BAD_TEXTS = {
    "zero": b"to\0\0\0",
    "surrogate": b"to\xed\xa0\x80",
    "control": b"top\x01p",
    "delete": b"top\x7fp",
    "second control": b"to\xc2\x9fp",
}


def raw(text: bytes) -> bytes:
    return len(text).to_bytes(2) + text


# What a connected 5.0 client sends, and how it ends.
ENDS_5: dict[str, tuple[bytes, bytes]] = {
    "type 0": (b"\0\0", PROTOCOL),
    "type 0, before its length is there": (b"\x0a\xc0", PROTOCOL),
    "a length of five bytes": (b"\x30\x80\x80\x80\x80\x01", b""),
    "second CONNECT": (frame(0x10, "MQTT", b"\x05\x02\0\x0a\0", "p"), PROTOCOL),
    "CONNACK": (frame(0x20, b"\0\0\0"), PROTOCOL),
    "CONNACK with flags": (frame(0x29, b"\0\1"), PROTOCOL),
    "SUBACK": (frame(0x90, 1, b"\0\0"), PROTOCOL),
    "UNSUBACK": (frame(0xB0, 1, b"\0\0"), PROTOCOL),
    "PINGRESP": (frame(0xD0), PROTOCOL),
    "AUTH": (frame(0xF0, b"\0"), PROTOCOL),
    "AUTH with flags": (frame(0xF2), PROTOCOL),
    "PINGREQ with content": (frame(0xC0, b"\0"), b""),
    "PINGREQ with flags": (frame(0xC1), MALFORMED),
    "empty topic": (frame(0x30, "", b"\0", b"x"), MALFORMED),
    "QoS 0 again": (frame(0x38, "t", b"\0", b"x"), MALFORMED),
    "QoS 3": (frame(0x36, "t", 7, b"\0", b"x"), MALFORMED),
    "QoS 1 without an identifier": (frame(0x32, "t", 0, b"\0", b"x"), PROTOCOL),
    "wildcard in a topic": (frame(0x30, "a/+", b"\0", b"x"), MALFORMED),
    "topic cut off": (b"\x30\x04\0\x05ab", MALFORMED),
    "payload format 2": (frame(0x32, "t", 7, properties(b"\x01\x02")), PROTOCOL),
    "payload format without a value": (frame(0x32, "t", 7, b"\x01\x01"), MALFORMED),
    "expiry twice": (frame(0x32, "t", 7, properties(b"\x02\0\0\0\1\x02\0\0\0\1")), PROTOCOL),
    "alias 0": (frame(0x30, "t", properties(b"\x23\0\0")), ALIAS),
    "alias above what was said": (frame(0x30, "t", properties(b"\x23\0\x0b")), ALIAS),
    "alias that nobody knows": (frame(0x30, "", properties(b"\x23\0\x03")), ALIAS),
    "response topic with a wildcard": (frame(0x32, "t", 7, properties(b"\x08", "a/#")), PROTOCOL),
    "response topic of nothing": (frame(0x32, "t", 7, properties(b"\x08", "")), PROTOCOL),
    "subscription identifier of a client": (frame(0x32, "t", 7, properties(b"\x0b\x01")), PROTOCOL),
    "number longer than it has to be": (frame(0x32, "t", 7, properties(b"\x0b\x80\x00")), MALFORMED),
    "number that does not end": (frame(0x32, "t", 7, properties(b"\x0b\x80\x80\x80\x80\x01")), MALFORMED),
    "property of another packet": (frame(0x32, "t", 7, properties(b"\x21\0\5")), PROTOCOL),
    "property that there is not": (frame(0x32, "t", 7, properties(b"\x04\1")), MALFORMED),
    "half a user property": (frame(0x32, "t", 7, properties(b"\x26", "p")), MALFORMED),
    "PUBACK without flags": (frame(0x41, 1, b"\0"), MALFORMED),
    "PUBACK of nothing": (frame(0x40, 0, b"\0"), PROTOCOL),
    "PUBACK cut off": (frame(0x40, b"\1"), MALFORMED),
    "PUBACK with more": (frame(0x40, 1, b"\0\0\0"), MALFORMED),
    "PUBACK with an unknown reason": (frame(0x40, 1, b"\xff\0"), PROTOCOL),
    "PUBREL with flags of PUBACK": (frame(0x60, 1), MALFORMED),
    "PUBREC with a property of PUBLISH": (frame(0x50, 1, b"\0", properties(b"\1\0")), PROTOCOL),
    "PUBCOMP with two reason strings": (frame(0x70, 1, b"\0", properties(b"\x1f", "p", b"\x1f", "q")), PROTOCOL),
    "SUBSCRIBE with flags 0": (frame(0x80, 1, b"\0", "p", b"\0"), MALFORMED),
    "SUBSCRIBE of nothing": (frame(0x82, 1, b"\0"), MALFORMED),
    "SUBSCRIBE without an identifier": (frame(0x82, 0, b"\0", "p", b"\0"), MALFORMED),
    "SUBSCRIBE without options": (frame(0x82, 1, b"\0", "p"), MALFORMED),
    "SUBSCRIBE to nothing": (frame(0x82, 1, b"\0", "", b"\0"), MALFORMED),
    "SUBSCRIBE with QoS 3": (frame(0x82, 1, b"\0", "p", b"\3"), MALFORMED),
    "SUBSCRIBE with retain handling 3": (frame(0x82, 1, b"\0", "p", b"\x30"), MALFORMED),
    "SUBSCRIBE with reserved options": (frame(0x82, 1, b"\0", "p", b"\x40"), MALFORMED),
    "SUBSCRIBE with a misplaced #": (frame(0x82, 1, b"\0", "a/#/b", b"\0"), MALFORMED),
    "SUBSCRIBE with a misplaced +": (frame(0x82, 1, b"\0", "a+/b", b"\0"), MALFORMED),
    "SUBSCRIBE with identifier 0": (frame(0x82, 1, properties(b"\x0b\0"), "p", b"\0"), MALFORMED),
    "SUBSCRIBE with two identifiers": (frame(0x82, 1, properties(b"\x0b\1\x0b\1"), "p", b"\0"), PROTOCOL),
    "SUBSCRIBE with a property of PUBLISH": (frame(0x82, 1, properties(b"\1\0"), "p", b"\0"), MALFORMED),
    "shared without a filter": (frame(0x82, 1, b"\0", "$share/p", b"\0"), PROTOCOL),
    "shared with an empty filter": (frame(0x82, 1, b"\0", "$share/p/", b"\0"), PROTOCOL),
    "shared with a wildcard name": (frame(0x82, 1, b"\0", "$share/+/p", b"\0"), PROTOCOL),
    "shared and not local": (frame(0x82, 1, b"\0", "$share/p/p", b"\4"), PROTOCOL),
    "UNSUBSCRIBE of nothing": (frame(0xA2, 1, b"\0"), MALFORMED),
    "UNSUBSCRIBE with a property of PUBLISH": (frame(0xA2, 1, properties(b"\1\0"), "p"), MALFORMED),
    "DISCONNECT with flags": (frame(0xE1), MALFORMED),
    "DISCONNECT with a property of CONNECT": (frame(0xE0, b"\0", properties(b"\x21\0\5")), PROTOCOL),
    "DISCONNECT that prolongs what ends": (frame(0xE0, b"\0", properties(b"\x11\0\0\0\1")), PROTOCOL),
    "DISCONNECT": (frame(0xE0), b""),
    "DISCONNECT with a reason": (frame(0xE0, b"\x82", properties(b"\x1f", "bye")), b""),
    **{f"topic with {name}": (frame(0x30, raw(text), b"\0", b"x"), MALFORMED) for name, text in BAD_TEXTS.items()},
    **{f"filter with {name}": (frame(0x82, 1, b"\0", raw(text), b"\0"), MALFORMED) for name, text in BAD_TEXTS.items()},
}

# What it may send, and what it is answered.
STAYS_5: dict[str, tuple[bytes, bytes]] = {
    "PINGREQ": (frame(0xC0), b"\xd0\0"),
    "QoS 0": (frame(0x30, "t", b"\0", b"x"), b""),
    "QoS 1 to nobody": (frame(0x32, "t", 7, b"\0", b"x"), frame(0x40, 7, b"\x10")),
    "QoS 2": (frame(0x34, "t", 7, b"\0", b"x"), frame(0x50, 7)),
    "PUBACK of nothing that was sent": (frame(0x40, 9), b""),
    "PUBREC of nothing that was sent": (frame(0x50, 9), frame(0x62, 9)),
    "PUBREC that refuses": (frame(0x50, 9, b"\x80"), b""),
    "PUBREL of nothing that came": (frame(0x62, 9, b"\x92"), frame(0x70, 9)),
    "SUBSCRIBE": (frame(0x82, 1, b"\0", "p", b"\x0c", "q", b"\2"), frame(0x90, 1, b"\0\0\2")),
    "SUBSCRIBE with the largest identifier": (
        frame(0x82, 1, properties(b"\x0b\xff\xff\xff\x7f"), "p", b"\0"),
        frame(0x90, 1, b"\0\0"),
    ),
    "UNSUBSCRIBE": (frame(0xA2, 1, b"\0", "never"), frame(0xB0, 1, b"\0\x11")),
    "empty user property": (frame(0x32, "t", 7, properties(b"\x26", "", ""), b"x"), frame(0x40, 7, b"\x10")),
}

CONNECT_5: dict[str, tuple[bytes, bytes]] = {
    "more than belongs there": (frame(0x10, "MQTT", b"\x05\x02\0\x0a\0", "p", "q"), frame(0x20, b"\0\x81\0")),
    "expiry twice": (
        frame(0x10, "MQTT", b"\x05\x02\0\x0a", properties(b"\x11\0\0\0\1\x11\0\0\0\1"), "p"),
        frame(0x20, b"\0\x82\0"),
    ),
    "receive maximum 0": (
        frame(0x10, "MQTT", b"\x05\x02\0\x0a", properties(b"\x21\0\0"), "p"),
        frame(0x20, b"\0\x82\0"),
    ),
    "expiry without a value": (frame(0x10, "MQTT", b"\x05\x02\0\x0a\1\x11", "p"), frame(0x20, b"\0\x81\0")),
    "will with a property of CONNACK": (
        frame(0x10, "MQTT", b"\x05\x06\0\x0a\0", "p", properties(b"\x24\1"), "t", "m"),
        frame(0x20, b"\0\x82\0"),
    ),
    "authentication method": (
        frame(0x10, "MQTT", b"\x05\x02\0\x0a", properties(b"\x15", "SCRAM"), "p"),
        frame(0x20, b"\0\x8c\0"),
    ),
    "user that is announced and missing": (frame(0x10, "MQTT", b"\x05\x82\0\x0a\0", "p"), b""),
    "CONNACK larger than allowed": (
        frame(0x10, "MQTT", b"\x05\x02\0\x0a", properties(b"\x27\0\0\0\2"), "p"),
        b"",
    ),
    "version 6": (frame(0x10, "MQTT", b"\x06\0\0\x0a", "p"), frame(0x20, b"\0\x84\0")),
    "version 2": (frame(0x10, "MQIsdp", b"\x02\0\0\x0a", "p"), frame(0x20, b"\0\x84\0")),
    **{
        f"client with {name}": (frame(0x10, "MQTT", b"\x05\x02\0\x0a\0", raw(text)), frame(0x20, b"\0\x85\0"))
        for name, text in BAD_TEXTS.items()
    },
    **{
        f"user with {name}": (frame(0x10, "MQTT", b"\x05\x82\0\x0a\0", "p", raw(text)), b"")
        for name, text in BAD_TEXTS.items()
    },
    "3.1.1: no client, not clean": (frame(0x10, "MQTT", b"\x04\0\0\x0a", ""), frame(0x20, b"\0\2")),
    "3.1: no client": (frame(0x10, "MQIsdp", b"\x03\2\0\x0a", ""), frame(0x20, b"\0\2")),
    "3.1.1: flags of the packet": (frame(0x11, "MQTT", b"\x04\2\0\x0a", "p"), b""),
    "3.1.1: reserved flag": (frame(0x10, "MQTT", b"\x04\3\0\x0a", "p"), b""),
    "3.1.1: QoS of no will": (frame(0x10, "MQTT", b"\x04\x0a\0\x0a", "p"), b""),
    "3.1.1: will of QoS 3": (frame(0x10, "MQTT", b"\x04\x1e\0\x0a", "p", "t", "m"), b""),
    "3.1.1: password and no user": (frame(0x10, "MQTT", b"\x04\x42\0\x0a", "p", "w"), b""),
    "3.1.1: more than belongs there": (frame(0x10, "MQTT", b"\x04\2\0\x0a", "p", "q"), b""),
    "another protocol": (frame(0x10, "MQTU", b"\x04\2\0\x0a", "p"), b""),
    "no CONNECT": (frame(0x30, "t", b"x"), b""),
    "HTTP": (b"GET / HTTP/1.1\r\n\r\n", b""),
}


def connected(bench: BrokerBench, level: Level) -> BenchClient:
    client = bench.connect("rules", level)
    client.raw()
    return client


def exchanged(bench: BrokerBench, client: BenchClient, data: bytes) -> bytes:
    client.connection.receive(data, bench.now)
    bench.settle()
    return client.raw()


@pytest.mark.parametrize("name", ENDS_5)
def test_a_client_of_5_is_told_why_it_has_to_go(bench: BrokerBench, name: str) -> None:
    sent, answer = ENDS_5[name]
    client = connected(bench, V5)
    assert exchanged(bench, client, sent) == answer
    assert not client.is_open


@pytest.mark.parametrize("name", [name for name, (sent, _) in ENDS_5.items() if sent[0] & 0xF0 not in (0x80, 0xA0)])
def test_a_client_of_3_1_1_just_has_to_go(bench: BrokerBench, name: str) -> None:
    """What is wrong in 5.0 without its properties is wrong before: such a client is told nothing."""
    sent, _ = ENDS_5[name]
    client = connected(bench, V4)
    answer = exchanged(bench, client, sent)
    assert answer in (b"", frame(0x40, 7)) or client.is_open  # a property is a byte of the payload
    assert b"\xe0" not in answer[:1]


@pytest.mark.parametrize("name", STAYS_5)
def test_what_is_allowed_is_answered(bench: BrokerBench, name: str) -> None:
    sent, answer = STAYS_5[name]
    client = connected(bench, V5)
    assert exchanged(bench, client, sent) == answer
    assert client.is_open


@pytest.mark.parametrize("name", CONNECT_5)
def test_a_connect_that_is_none(bench: BrokerBench, name: str) -> None:
    sent, answer = CONNECT_5[name]
    client = bench.open()
    assert exchanged(bench, client, sent) == answer
    assert not client.is_open


def test_connack_says_what_a_client_must_know_and_no_more(bench: BrokerBench) -> None:
    client = bench.open()
    answer = exchanged(bench, client, frame(0x10, "MQTT", b"\x05\x02\0\x0a\0", "p"))
    assert answer == bytes.fromhex("200e00000b22000a27001e8480210014")
    client = bench.open()
    answer = exchanged(bench, client, frame(0x10, "MQTT", b"\x05\x02\0\x0a\0", ""))
    assert answer == bytes.fromhex("201700001422000a120006") + b"auto-1" + bytes.fromhex("27001e8480210014")
    client = bench.open()
    answer = exchanged(bench, client, frame(0x10, "MQTT", b"\x05\x02\0\x78\0", "p"))
    assert answer == bytes.fromhex("201100000e22000a13003c27001e8480210014"), "the server's keep alive"
    client = bench.open()
    assert exchanged(bench, client, frame(0x10, "MQIsdp", b"\x03\x01\0\x0a", "p")) == b"\x20\2\0\0"


def test_every_split_of_a_stream_reads_the_same(tmp_path: Path) -> None:
    stream = frame(0x10, "MQTT", b"\x05\x02\0\x0a\0", "p") + frame(0x82, 1, b"\0", "t", b"\1")
    stream += frame(0x32, "t", 7, b"\0", b"hello") + frame(0x40, 1)
    with running_broker(tmp_path) as bench:
        whole = exchanged(bench, bench.open(), stream)
        for at in range(1, len(stream)):
            client = bench.open()
            assert exchanged(bench, client, stream[:at]) + exchanged(bench, client, stream[at:]) == whole
