"""Whose request it is behind proxies: what trusted ones say, in headers or before them (PROXY protocol). Sans-I/O.

Only what a trusted proxy added is believed: a list of addresses is read from its end, and the first that is no trusted
proxy is the client. What stands before it the client may have written itself.
"""

import re
import struct
from collections.abc import Collection, Sequence
from enum import StrEnum
from functools import lru_cache
from ipaddress import IPv4Address, IPv6Address, IPv6Network, ip_address, ip_network

MAX_LISTED = 4096
"""Bytes of a list of addresses that are looked at, from its end."""
MAX_LINE = 107
SIGNATURE = b"\r\n\r\n\x00\r\nQUIT\n"
"""Begins version 2; as many bytes tell which version it is."""
MAX_BLOCK = 2048
_LINE = re.compile(
    rb"PROXY (?:UNKNOWN(?: [ -~]*)?|(TCP4|TCP6) ([0-9a-fA-F.:]{2,39}) [0-9a-fA-F.:]{2,39} \d{1,5} \d{1,5})\r\n"
)
_FOR = re.compile(r"(?i)(?:^|;)\s*for\s*=\s*([^;]*)")
_LOCAL, _PROXIED = 0x20, 0x21
_FAMILIES = {0x11: 4, 0x12: 4, 0x21: 16, 0x22: 16}


class ProxyHeader(StrEnum):
    """Where trusted proxies say who asks. One, because the others come through proxies as clients wrote them."""

    X_FORWARDED_FOR = "x-forwarded-for"
    FORWARDED = "forwarded"
    PROXY_PROTOCOL = "proxy-protocol"


class ProxyProtocolError(Exception):
    """A trusted proxy sent something else than a header of the PROXY protocol."""


def is_trusted(address: str, trusted: Collection[str]) -> bool:
    """`trusted` are addresses and networks."""
    if address in trusted:
        return True
    if not any("/" in one for one in trusted):
        return False
    try:
        found = ip_address(address.partition("%")[0])
    except ValueError:
        return False
    return any(_holds(one, found) for one in trusted if "/" in one)


def _holds(network: str, address: IPv4Address | IPv6Address) -> bool:
    found = _network(network)
    if isinstance(address, IPv6Address) and address.ipv4_mapped is not None and not isinstance(found, IPv6Network):
        address = address.ipv4_mapped
    return address in found


_network = lru_cache(maxsize=1024)(ip_network)


def client_of(peer: str, header: ProxyHeader, values: Sequence[str], trusted: Collection[str]) -> str:
    """The client behind a connection from `peer`; `values` are all headers of that name, in their order."""
    if not is_trusted(peer, trusted):
        return peer
    text = ",".join(values)[-MAX_LISTED:]
    client = peer
    # No quotes are looked at: one that a client left open would hide what the proxy wrote behind it.
    for one in reversed(text.split(",")):
        found = _FOR.search(one) if header is ProxyHeader.FORWARDED else None
        address = _address(one if header is not ProxyHeader.FORWARDED else "" if found is None else found[1])
        if address is None:  # what the proxy next to us does not know, nobody knows
            return client
        client = address
        if not is_trusted(client, trusted):
            return client
    return client


def _address(text: str) -> str | None:
    """An address as it stands in a list: with a port, in brackets, quoted, or not at all (`unknown`, `_hidden`)."""
    text = text.strip().strip('"').strip()
    if text.startswith("["):
        text = text[1:].partition("]")[0]
    elif text.count(":") == 1:
        text = text.partition(":")[0]
    try:
        return str(ip_address(text))
    except ValueError:
        return None


def address_of_line(line: bytes) -> str | None:
    """Version 1: who is behind the proxy, None when it does not say. Raises `ProxyProtocolError`."""
    found = _LINE.fullmatch(line)
    if found is None:
        raise ProxyProtocolError("expected PROXY TCP4|TCP6|UNKNOWN and addresses")
    if found[1] is None:
        return None
    try:
        return str(ip_address(found[2].decode("ascii")))
    except ValueError:
        raise ProxyProtocolError("the line holds no address") from None


def block_length(head: bytes) -> int:
    """Version 2: how many bytes follow these, the signature and four more. Raises `ProxyProtocolError`."""
    length: int = struct.unpack_from(">H", head, 14)[0]
    if head[:12] != SIGNATURE or head[12] not in (_LOCAL, _PROXIED) or length > MAX_BLOCK:
        raise ProxyProtocolError("expected version 2")
    return length


def address_of_block(head: bytes, block: bytes) -> str | None:
    """Version 2: who is behind the proxy; None when it speaks for itself or for something without an address."""
    size = _FAMILIES.get(head[13])
    if head[12] == _LOCAL or size is None:
        return None
    if len(block) < 2 * size + 4:
        raise ProxyProtocolError("too short for its addresses")
    return str(ip_address(block[:size]))
