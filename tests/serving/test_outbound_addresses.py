"""The address guard over generated and named addresses."""

import ipaddress
from ipaddress import IPv4Address, IPv6Address

import pytest
from hypothesis import given
from hypothesis import strategies as st

from serving.outbound.addresses import METADATA, AddressPolicy

OPEN = AddressPolicy()
PRIVATE = AddressPolicy(allow_private=True)
NEVER_V4 = ["169.254.0.0/16", "224.0.0.0/4", "0.0.0.0/32", "168.63.129.16/32", "100.100.100.200/32"]
ONLY_PRIVATE = ["127.0.0.0/8", "10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16", "::1/128", "fd12::/16"]
CLOSED_V4 = [
    "100.64.0.0/10",
    "0.0.0.0/8",
    "240.0.0.0/4",
    "192.0.2.0/24",
    "198.18.0.0/15",
    "192.0.0.0/24",
    "203.0.113.0/24",
]


def inside(networks: list[str]) -> st.SearchStrategy[ipaddress.IPv4Address | ipaddress.IPv6Address]:
    def members(text: str) -> st.SearchStrategy[ipaddress.IPv4Address | ipaddress.IPv6Address]:
        network = ipaddress.ip_network(text)
        first, last = int(network.network_address), int(network.broadcast_address)
        kind = IPv4Address if network.version == 4 else IPv6Address
        return st.integers(first, last).map(kind)

    return st.one_of([members(text) for text in networks])


def wrapped(inner: IPv4Address) -> list[str]:
    """Every IPv6 address that carries this IPv4 address."""
    low = int(inner)
    teredo = (0x20010000 << 96) | (int(IPv4Address("8.8.8.8")) << 64) | (low ^ 0xFFFFFFFF)
    teredo_server = (0x20010000 << 96) | (low << 64) | (int(IPv4Address("8.8.8.8")) ^ 0xFFFFFFFF)
    values = [
        (0xFFFF << 32) | low,
        (0x2002 << 112) | (low << 80),
        (0x0064FF9B << 96) | low,
        low,
        teredo,
        teredo_server,
    ]
    return [str(IPv6Address(value)) for value in values]


@given(inside([*NEVER_V4, *ONLY_PRIVATE, *CLOSED_V4, "fe80::/10", "ff00::/8"]))
def test_the_default_policy_refuses_everything_that_is_not_public(address: IPv4Address | IPv6Address) -> None:
    assert OPEN.refusal(str(address)) is not None


@given(inside([*NEVER_V4, *ONLY_PRIVATE[:4], *CLOSED_V4]))
def test_no_ipv6_wrapping_hides_a_refused_address(address: IPv4Address) -> None:
    for text in wrapped(address):
        assert OPEN.refusal(text) is not None, text


@given(inside([*NEVER_V4, "fe80::/10", "ff00::/8"]))
def test_link_local_metadata_and_multicast_are_refused_whatever_is_allowed(address: IPv4Address | IPv6Address) -> None:
    everything = AddressPolicy(
        allow_private=True, allow=(ipaddress.ip_network("0.0.0.0/0"), ipaddress.ip_network("::/0"))
    )
    assert everything.refusal(str(address)) is not None
    if isinstance(address, IPv4Address):
        mapped = str(IPv6Address((0xFFFF << 32) | int(address)))
        assert everything.refusal(mapped) is not None


@pytest.mark.parametrize("address", sorted(map(str, METADATA)))
def test_metadata_services_are_refused_with_allow_private(address: str) -> None:
    assert PRIVATE.refusal(address) is not None


@given(inside(ONLY_PRIVATE))
def test_allow_private_admits_loopback_and_private_ranges(address: IPv4Address | IPv6Address) -> None:
    assert PRIVATE.refusal(str(address)) is None
    if isinstance(address, IPv4Address):
        assert PRIVATE.refusal(str(IPv6Address((0xFFFF << 32) | int(address)))) is None


@given(inside(CLOSED_V4[:1]))
def test_shared_address_space_needs_the_allow_list(address: IPv4Address) -> None:
    listed = AddressPolicy(allow=(ipaddress.ip_network("100.64.0.0/10"),))
    if address not in METADATA:
        assert PRIVATE.refusal(str(address)) is not None
        assert listed.refusal(str(address)) is None


@pytest.mark.parametrize("address", ["8.8.8.8", "1.1.1.1", "93.184.216.34", "2606:4700::1111", "::ffff:8.8.8.8"])
def test_public_addresses_pass(address: str) -> None:
    assert OPEN.refusal(address) is None


def test_the_allow_list_is_no_wider_than_it_says() -> None:
    policy = AddressPolicy(allow=(ipaddress.ip_network("10.1.0.0/16"),))
    assert policy.refusal("10.1.2.3") is None
    assert policy.refusal("10.2.2.3") is not None
    assert policy.refusal("127.0.0.1") is not None


@pytest.mark.parametrize(
    "url",
    [
        "ftp://example.com/",
        "file:///etc/passwd",
        "gopher://example.com/",
        "http://user:secret@example.com/",
        "http://user@example.com/",
        "http:///path",
        "http://example.com:0/",
        "http://example.com:99999/",
        "http://127.0.0.1/",
        "http://[::1]/",
        "http://[::ffff:169.254.169.254]/latest",
        "http://example.com/a b",
        "http://example.com\\@127.0.0.1/",
        "http://exa\nmple.com/",
        "http://[::1/",
        "http://example.com/" + "a" * 9000,
        "",
        "//example.com/",
    ],
)
def test_urls_against_the_policy_are_refused_before_any_name_is_resolved(url: str) -> None:
    assert OPEN.url_refusal(url) is not None


def test_the_port_policy() -> None:
    policy = AddressPolicy(ports=frozenset({80, 443, 8080}))
    assert policy.url_refusal("http://example.com/") is None
    assert policy.url_refusal("https://example.com:8080/x?y") is None
    assert policy.url_refusal("http://example.com:22/") == "port 22 is not one this hub connects to"
    assert OPEN.url_refusal("http://example.com:8443/") is None


@given(st.text(max_size=60))
def test_no_text_makes_the_guard_raise(text: str) -> None:
    assert OPEN.refusal(text) is None or OPEN.refusal(text)
    assert OPEN.url_refusal(text) is None or OPEN.url_refusal(text)
    OPEN.url_refusal("http://" + text)
