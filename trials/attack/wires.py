"""Cables that run through the stranger's hands: everything on them is heard, and anything can be said on them.

What is said looks as if the neighbour at the other end of the cable had said it: its addresses, and on UDP its port.
"""

import asyncio
import socket
import struct
from collections import deque
from collections.abc import Sequence

HEARD_KEPT = 8192
"""Frames kept of what each end said."""
_ALL = 3
_OUTGOING = 4
_ETHERNET = 14
_IP = 20
_UDP = 8
_IPV4, _PSIRP = b"\x08\x00", b"\xac\xdc"
_UDP_NUMBER = 17


class Cable:
    """One of them. `ends` are names of the world; what an end says is heard at the bridge's port towards it."""

    def __init__(self, bridge: str, ends: tuple[str, str]) -> None:
        self.ends = ends
        self.heard: dict[str, deque[bytes]] = {end: deque(maxlen=HEARD_KEPT) for end in ends}
        """What was said by each end, without the headers of its carrier."""
        self._last: dict[str, bytes] = {}
        self._sockets: dict[str, socket.socket] = {}
        loop = asyncio.get_running_loop()
        for end in ends:
            sock = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(_ALL))
            sock.bind((f"{bridge}-{end}", 0))
            sock.setblocking(False)
            self._sockets[end] = sock
            loop.add_reader(sock, self._hear, end)

    def close(self) -> None:
        for sock in self._sockets.values():
            asyncio.get_running_loop().remove_reader(sock)
            sock.close()

    @property
    def is_heard(self) -> bool:
        """Whether both ends have spoken: only then it is known how they speak."""
        return len(self._last) == len(self.ends)

    def say(self, to: str, payloads: Sequence[bytes]) -> int:
        """In the name of the other end; how many found room."""
        other = self.ends[1 - self.ends.index(to)]
        said = 0
        for payload in payloads:
            try:
                self._sockets[to].send(in_place_of(self._last[other], payload))
            except OSError:
                continue  # no room in the queue, or longer than the cable takes
            said += 1
        return said

    def _hear(self, end: str) -> None:
        for _ in range(64):
            try:
                data, source = self._sockets[end].recvfrom(65_536)
            except BlockingIOError:
                return
            payload = payload_of(data)
            if payload is not None and source[2] != _OUTGOING:
                self._last[end] = data
                self.heard[end].append(payload)


def payload_of(data: bytes) -> bytes | None:
    """What the link's carrier carries, None for other things on the cable."""
    kind = data[12:14]
    if kind == _PSIRP:
        return data[_ETHERNET:]
    if kind == _IPV4 and data[_ETHERNET + 9] == _UDP_NUMBER:
        return data[_ETHERNET + _IP + _UDP :]
    return None


def in_place_of(data: bytes, payload: bytes) -> bytes:
    """A frame like this one with another payload."""
    if data[12:14] == _PSIRP:
        return data[:_ETHERNET] + payload
    ip = bytearray(data[_ETHERNET : _ETHERNET + _IP])
    ip[2:4] = (_IP + _UDP + len(payload)).to_bytes(2, "big")
    ip[10:12] = bytes(2)
    ip[10:12] = _checksum(bytes(ip)).to_bytes(2, "big")
    ports = data[_ETHERNET + _IP : _ETHERNET + _IP + 4]
    # A datagram over IPv4 needs no checksum of its own.
    return data[:_ETHERNET] + bytes(ip) + ports + struct.pack("!HH", _UDP + len(payload), 0) + payload


def _checksum(header: bytes) -> int:
    total: int = sum(struct.unpack(f"!{len(header) // 2}H", header))
    while total >> 16:
        total = (total & 0xFFFF) + (total >> 16)
    return 0xFFFF - total
