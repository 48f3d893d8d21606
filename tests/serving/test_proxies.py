"""Whose request it is behind proxies: only what a trusted proxy added is believed."""

import asyncio
import struct
from collections.abc import AsyncIterator
from pathlib import Path

import aiohttp
import pytest
from hypothesis import given
from hypothesis import strategies as st

from push_hub.canary import CanaryConfig
from push_hub.hub import Hub, HubConfig
from push_hub.server import ServerConfig
from serving.events import LimitReached, RequestRefused
from serving.limits import Rate
from serving.proxies import (
    SIGNATURE,
    ProxyHeader,
    ProxyProtocolError,
    address_of_block,
    address_of_line,
    block_length,
    client_of,
    is_trusted,
)

LIST, NODES = ProxyHeader.X_FORWARDED_FOR, ProxyHeader.FORWARDED
TRUSTED = frozenset({"127.0.0.1", "10.0.0.0/8", "2001:db8:1::/48"})


@pytest.mark.parametrize(
    ("peer", "header", "values", "client"),
    [
        ("192.0.2.1", LIST, ["203.0.113.9"], "192.0.2.1"),  # nobody who is trusted says it
        ("127.0.0.1", LIST, [], "127.0.0.1"),
        ("127.0.0.1", LIST, ["203.0.113.9"], "203.0.113.9"),
        ("127.0.0.1", LIST, ["6.6.6.6, 203.0.113.9"], "203.0.113.9"),  # the client wrote the first itself
        ("127.0.0.1", LIST, ["6.6.6.6", "203.0.113.9"], "203.0.113.9"),  # the proxy added a header of its own
        ("127.0.0.1", LIST, ["6.6.6.6, 203.0.113.9, 10.1.2.3"], "203.0.113.9"),  # two proxies
        ("127.0.0.1", LIST, ["10.1.2.3"], "10.1.2.3"),
        ("127.0.0.1", LIST, ["203.0.113.9:5123"], "203.0.113.9"),
        ("127.0.0.1", LIST, ["[2001:db8::1]:5123"], "2001:db8::1"),
        ("127.0.0.1", LIST, ["2001:DB8:0::1"], "2001:db8::1"),
        ("127.0.0.1", LIST, ["203.0.113.9, nonsense"], "127.0.0.1"),
        ("127.0.0.1", LIST, ["203.0.113.9, nonsense, 10.1.2.3"], "10.1.2.3"),
        ("2001:db8:1::5", LIST, ["203.0.113.9"], "203.0.113.9"),
        ("::ffff:10.1.1.1", LIST, ["203.0.113.9"], "203.0.113.9"),
        ("127.0.0.1", NODES, ["for=6.6.6.6, for=203.0.113.9;proto=https;by=10.0.0.1"], "203.0.113.9"),
        ("127.0.0.1", NODES, ['proto=http;For="[2001:db8::1]:443"'], "2001:db8::1"),
        ("127.0.0.1", NODES, ['for="6.6.6.6', 'for="203.0.113.9:80"'], "203.0.113.9"),  # a quote that is left open
        ("127.0.0.1", NODES, ["for=6.6.6.6", "for=unknown"], "127.0.0.1"),
        ("127.0.0.1", NODES, ["for=6.6.6.6", "by=10.0.0.1"], "127.0.0.1"),
    ],
)
def test_the_client(peer: str, header: ProxyHeader, values: list[str], client: str) -> None:
    assert client_of(peer, header, values, TRUSTED) == client


@given(st.text(max_size=200), st.sampled_from([LIST, NODES]))
def test_what_a_client_writes_before_the_proxy_changes_nothing(written: str, header: ProxyHeader) -> None:
    added = "203.0.113.9" if header is LIST else "for=203.0.113.9"
    assert client_of("127.0.0.1", header, [f"{written}, {added}"], TRUSTED) == "203.0.113.9"
    assert client_of("127.0.0.1", header, [written, added], TRUSTED) == "203.0.113.9"


def test_networks_may_be_trusted() -> None:
    assert is_trusted("10.9.8.7", TRUSTED)
    assert not is_trusted("11.0.0.1", TRUSTED)
    assert not is_trusted("", TRUSTED)


def block(command: int, family: int, payload: bytes) -> bytes:
    return SIGNATURE + bytes([command, family]) + struct.pack(">H", len(payload)) + payload


V4 = bytes([203, 0, 113, 9, 127, 0, 0, 1]) + struct.pack(">HH", 5123, 80)
V6 = bytes.fromhex("20010db8000000000000000000000001" * 2) + struct.pack(">HH", 5123, 80)
TLV = b"\x03\x00\x04abcd"


@pytest.mark.parametrize(
    ("given_block", "client"),
    [
        (block(0x21, 0x11, V4), "203.0.113.9"),
        (block(0x21, 0x11, V4 + TLV), "203.0.113.9"),
        (block(0x21, 0x21, V6), "2001:db8::1"),
        (block(0x20, 0x11, V4), None),  # the proxy's own health check
        (block(0x21, 0x00, b""), None),
        (block(0x21, 0x31, bytes(216)), None),
    ],
)
def test_version_2(given_block: bytes, client: str | None) -> None:
    assert block_length(given_block[:16]) == len(given_block) - 16
    assert address_of_block(given_block[:16], given_block[16:]) == client


@pytest.mark.parametrize(
    ("line", "client"),
    [
        (b"PROXY TCP4 203.0.113.9 127.0.0.1 5123 80\r\n", "203.0.113.9"),
        (b"PROXY TCP6 2001:db8::1 ::1 5123 80\r\n", "2001:db8::1"),
        (b"PROXY UNKNOWN\r\n", None),
        (b"PROXY UNKNOWN ffff::1 ffff::2 65535 65535\r\n", None),
    ],
)
def test_version_1(line: bytes, client: str | None) -> None:
    assert address_of_line(line) == client


@pytest.mark.parametrize(
    "line", [b"GET / HTTP/1.1\r\n", b"PROXY TCP4 1.2.3 x 1 2\r\n", b"PROXY TCP4 1.2.3.999 1.1.1.1 1 2\r\n"]
)
def test_what_is_no_header_is_refused(line: bytes) -> None:
    with pytest.raises(ProxyProtocolError):
        address_of_line(line)


@pytest.mark.parametrize("head", [b"x" * 16, block(0x31, 0x11, V4)[:16], SIGNATURE + b"\x21\x11\xff\xff"])
def test_a_head_that_is_none_is_refused(head: bytes) -> None:
    with pytest.raises(ProxyProtocolError):
        block_length(head)


def test_a_block_without_room_for_its_addresses_is_refused() -> None:
    with pytest.raises(ProxyProtocolError):
        address_of_block(block(0x21, 0x21, V4)[:16], V4)


# On a port.

PING = "hub.mode=publish&hub.url=http://a.example/"
REQUEST = (
    "POST / HTTP/1.1\r\nHost: h\r\nContent-Type: application/x-www-form-urlencoded\r\n"
    f"Content-Length: {len(PING)}\r\nConnection: close\r\n\r\n{PING}"
).encode()


@pytest.fixture
async def http() -> AsyncIterator[aiohttp.ClientSession]:
    async with aiohttp.ClientSession() as session:
        yield session


async def answered(port: int, sent: bytes) -> bytes:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(sent)
    try:
        return await reader.read()
    except ConnectionError:
        return b""
    finally:
        writer.close()


async def test_limits_and_what_is_told_go_by_the_client_behind_the_proxy(tmp_path: Path) -> None:
    """Each address has a share of its own, and a client cannot take another one's name."""
    told: list[object] = []
    server = ServerConfig(
        per_client=Rate(0.001, 1), trusted_proxies=frozenset({"127.0.0.1"}), proxy_header=ProxyHeader.PROXY_PROTOCOL
    )
    config = HubConfig(tmp_path, server=server, canary=CanaryConfig(enabled=False))
    hub = Hub(config, observer=told.append)
    await hub.start()
    try:
        port = int(hub.local_url.rstrip("/").rpartition(":")[2])
        one = b"PROXY TCP4 203.0.113.9 127.0.0.1 5123 80\r\n"
        other = b"PROXY TCP4 198.51.100.7 127.0.0.1 5123 80\r\n"
        spoofed = REQUEST.replace(b"Host:", b"X-Forwarded-For: 192.0.2.77\r\nHost:")
        assert (await answered(port, one + REQUEST)).startswith(b"HTTP/1.1 204 ")
        assert (await answered(port, one + spoofed)).startswith(b"HTTP/1.1 429 ")
        assert (await answered(port, block(0x21, 0x11, V4) + REQUEST)).startswith(b"HTTP/1.1 429 ")
        assert (await answered(port, other + REQUEST)).startswith(b"HTTP/1.1 204 ")
        refused = [event for event in told if isinstance(event, RequestRefused)]
        assert [(event.status, event.client) for event in refused] == [(429, "203.0.113.9")] * 2
        # Without a header of the proxy, nothing is answered.
        assert await answered(port, REQUEST) == b""
        assert await answered(port, b"PROXY TCP4 nonsense\r\n" + REQUEST) == b""
        assert told.count(LimitReached("proxy_protocol")) == 2
    finally:
        await hub.stop()


async def test_connections_count_against_the_client_behind_the_proxy(tmp_path: Path) -> None:
    told: list[object] = []
    server = ServerConfig(
        connections_per_client=1, trusted_proxies=frozenset({"127.0.0.1"}), proxy_header=ProxyHeader.PROXY_PROTOCOL
    )
    hub = Hub(HubConfig(tmp_path, server=server, canary=CanaryConfig(enabled=False)), observer=told.append)
    await hub.start()
    try:
        port = int(hub.local_url.rstrip("/").rpartition(":")[2])
        line = b"PROXY TCP4 203.0.113.9 127.0.0.1 5123 80\r\n"
        keeping = REQUEST.replace(b"Connection: close\r\n", b"")
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(line + keeping)
        assert (await reader.readuntil(b"\r\n")).startswith(b"HTTP/1.1 204 ")
        assert await answered(port, line + REQUEST) == b""
        assert LimitReached("connections_per_client") in told
        writer.close()
        await writer.wait_closed()
        async with asyncio.timeout(10):
            while not (await answered(port, line + REQUEST)).startswith(b"HTTP/1.1 204 "):
                pass
    finally:
        await hub.stop()


async def test_headers_are_believed_of_the_last_who_added_one(tmp_path: Path, http: aiohttp.ClientSession) -> None:
    """A client that sends a header of its own, and a proxy that adds another one of the same name."""
    told: list[object] = []
    server = ServerConfig(per_client=Rate(0.001, 1), trusted_proxies=frozenset({"127.0.0.0/8"}))
    hub = Hub(HubConfig(tmp_path, server=server, canary=CanaryConfig(enabled=False)), observer=told.append)
    await hub.start()
    try:
        statuses = []
        for own in ("192.0.2.1", "192.0.2.130", "198.18.0.1"):
            headers = [("X-Forwarded-For", own), ("X-Forwarded-For", "203.0.113.9")]
            form = {"hub.mode": "publish", "hub.url": "http://a.example/"}
            async with http.post(hub.local_url, data=form, headers=headers) as answer:
                statuses.append(answer.status)
        assert statuses == [204, 429, 429]
    finally:
        await hub.stop()
