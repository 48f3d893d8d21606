"""UDP: for containers and hosts without raw sockets. One socket, one configured peer; nobody else is heard."""

import ipaddress
import socket
from collections.abc import Sequence
from dataclasses import dataclass

from psirp_stack.links.interface import DEFAULT_BATCH
from psirp_stack.links.sockets import SocketLink

DEFAULT_MTU = 1472
"""What an Ethernet packet of 1500 bytes leaves beside the IPv4 and UDP headers."""
MAX_MTU = 65_507
MAX_ERRORS_READ = 64
ERROR_BYTES = 512
_RECEIVE_ERRORS = (socket.IPPROTO_IP, 11)  # IP_RECVERR, linux/in.h
_RECEIVE_ERRORS_6 = (socket.IPPROTO_IPV6, 25)  # IPV6_RECVERR


@dataclass(frozen=True, slots=True)
class UdpAddress:
    """An IP address in figures, and a port."""

    host: str
    port: int

    def __post_init__(self) -> None:
        # Raises ValueError that names the text: names are not looked up here, which would block the loop.
        object.__setattr__(self, "host", str(ipaddress.ip_address(self.host)))
        if not 0 <= self.port <= 0xFFFF:
            raise ValueError(f"port is {self.port}: expected 0 to 65535")

    @property
    def family(self) -> socket.AddressFamily:
        return socket.AF_INET6 if ":" in self.host else socket.AF_INET


def bound_socket(local: UdpAddress) -> socket.socket:
    """A UDP socket at `local`; port 0 takes a free one."""
    sock = socket.socket(local.family, socket.SOCK_DGRAM)
    try:
        sock.bind((local.host, local.port))
    except OSError:
        sock.close()
        raise
    return sock


class UdpLink(SocketLink):
    """A link to one peer over UDP, on a socket that is bound already and belongs to the link from now on."""

    def __init__(self, sock: socket.socket, peer: UdpAddress, *, mtu: int = DEFAULT_MTU) -> None:
        if not 1 <= mtu <= MAX_MTU:
            raise ValueError(f"mtu is {mtu}: expected 1 to {MAX_MTU}")
        super().__init__(sock, mtu)
        # What routers and the other machine say of frames that could not be delivered (ICMP) is then told here.
        sock.setsockopt(*(_RECEIVE_ERRORS_6 if sock.family == socket.AF_INET6 else _RECEIVE_ERRORS), 1)
        self.peer = peer
        self._peer = (peer.host, peer.port)

    @property
    def local(self) -> UdpAddress:
        host, port = self._socket.getsockname()[:2]
        return UdpAddress(host, port)

    def send(self, frame: bytes) -> bool:
        size = len(frame)
        if size > self.mtu:
            return self._refused(frame, None)
        try:
            self._socket.sendto(frame, self._peer)
        except OSError as error:
            return self._refused(frame, error)
        counters = self.counters
        counters.sent += 1
        counters.sent_bytes += size
        return True

    def send_many(self, frames: Sequence[bytes]) -> int:
        sendto, peer, most = self._socket.sendto, self._peer, self.mtu
        sent = sent_bytes = 0
        for frame in frames:
            size = len(frame)
            if size > most:
                self._refused(frame, None)
                continue
            try:
                sendto(frame, peer)
            except OSError as error:
                self._refused(frame, error)
                continue
            sent += 1
            sent_bytes += size
        self.counters.sent += sent
        self.counters.sent_bytes += sent_bytes
        return sent

    def drain(self, limit: int = DEFAULT_BATCH) -> int:
        frames: list[bytes] = []
        receive, peer, most = self._socket.recvfrom, self._peer, self.mtu
        read = 0
        try:
            while read < limit:
                data, address = receive(most + 1)
                read += 1
                if address[:2] != peer:
                    self.counters.from_strangers += 1
                elif len(data) > most:
                    self.counters.receive_errors += 1
                else:
                    frames.append(data)
        except BlockingIOError:
            if not read:
                self._forget_errors()  # perhaps one that was told when sending is what woke us
        except OSError as error:
            self.counters.receive_errors += 1
            self._forget_errors()
            self._in_trouble(error)
        self._hand_on(frames)
        return read

    def _forget_errors(self) -> None:
        """Empty the kernel's queue of errors, which would keep the socket readable for ever."""
        try:
            for _ in range(MAX_ERRORS_READ):
                self._socket.recvmsg(0, ERROR_BYTES, socket.MSG_ERRQUEUE)
        except OSError:
            return
