"""UDP: for containers and hosts without raw sockets. One socket, one configured peer; nobody else is heard.

A batch goes to the kernel, and comes from it, several frames at a time (UDP_SEGMENT and UDP_GRO): datagrams of one size
are one piece to it until they are on the wire, or all the way where both ends are on one machine. A kernel or a device
that cannot do so gets them one by one.
"""

import contextlib
import errno
import ipaddress
import socket
import struct
from collections.abc import Sequence
from dataclasses import dataclass

from psirp_stack.links.interface import DEFAULT_BATCH
from psirp_stack.links.sockets import RECEIVE_BUFFER_BYTES, SocketLink

DEFAULT_MTU = 1472
"""What an Ethernet packet of 1500 bytes leaves beside the IPv4 and UDP headers."""
MAX_MTU = 65_507
MAX_ERRORS_READ = 64
ERROR_BYTES = 512
_RECEIVE_ERRORS = (socket.IPPROTO_IP, 11)  # IP_RECVERR, linux/in.h
_RECEIVE_ERRORS_6 = (socket.IPPROTO_IPV6, 25)  # IPV6_RECVERR
MAX_SEGMENTS = 16
"""Frames that are one piece to the kernel. Larger pieces gain little, and what drops one drops all of it."""

_UDP_SEGMENT = 103  # linux/udp.h
_UDP_GRO = 104
_SEGMENT_SIZE = struct.Struct("=H")
_GRO_SIZE = struct.Struct("=i")
_CONTROL_BYTES = socket.CMSG_SPACE(_GRO_SIZE.size)
_MAX_PIECE = 65_535
_CANNOT_SEGMENT = frozenset({errno.EINVAL, errno.EIO, errno.ENOPROTOOPT, errno.EOPNOTSUPP, errno.EMSGSIZE})


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

    def __init__(
        self,
        sock: socket.socket,
        peer: UdpAddress,
        *,
        mtu: int = DEFAULT_MTU,
        receive_buffer: int = RECEIVE_BUFFER_BYTES,
    ) -> None:
        if not 1 <= mtu <= MAX_MTU:
            raise ValueError(f"mtu is {mtu}: expected 1 to {MAX_MTU}")
        super().__init__(sock, mtu, receive_buffer)
        # What routers and the other machine say of frames that could not be delivered (ICMP) is then told here.
        sock.setsockopt(*(_RECEIVE_ERRORS_6 if sock.family == socket.AF_INET6 else _RECEIVE_ERRORS), 1)
        self.peer = peer
        self._peer = (peer.host, peer.port)
        self._segments = True
        self._piece = bytearray(_MAX_PIECE)
        self._piece_view = memoryview(self._piece)
        with contextlib.suppress(OSError):  # an older kernel: datagrams come one by one
            sock.setsockopt(socket.IPPROTO_UDP, _UDP_GRO, 1)

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
        sent = at = 0
        while at < len(frames):
            end = self._same_size(frames, at) if self._segments else at + 1
            if end - at > 1 and self._send_piece(frames[at:end]):
                sent += end - at
            else:
                for place in range(at, end):
                    full = self.counters.queue_full
                    if self.send(frames[place]):
                        sent += 1
                    elif self.counters.queue_full > full:
                        # Nor will there be room for those behind it, and they must not overtake.
                        self.counters.queue_full += len(frames) - place - 1
                        return sent
            at = end
        return sent

    def _same_size(self, frames: Sequence[bytes], at: int) -> int:
        """Up to where frames can be one piece from there on: all of one size, the last one perhaps shorter."""
        size = len(frames[at])
        if not 0 < size <= self.mtu:
            return at + 1
        most = min(len(frames), at + MAX_SEGMENTS, at + MAX_MTU // size)
        end = at + 1
        while end < most and len(frames[end]) == size:
            end += 1
        return end + 1 if end < most and 0 < len(frames[end]) < size else end

    def _send_piece(self, frames: Sequence[bytes]) -> bool:
        """Whether the kernel took them as one piece; if it never will, none is offered to it again."""
        size = _SEGMENT_SIZE.pack(len(frames[0]))
        try:
            done = self._socket.sendmsg(frames, [(socket.IPPROTO_UDP, _UDP_SEGMENT, size)], 0, self._peer)
        except OSError as error:
            self._segments = error.errno not in _CANNOT_SEGMENT
            return False
        counters = self.counters
        counters.sent += len(frames)
        counters.sent_bytes += done
        return True

    def drain(self, limit: int = DEFAULT_BATCH) -> int:
        frames: list[bytes] = []
        receive, peer, most = self._socket.recvmsg_into, self._peer, self.mtu
        buffers, view = [self._piece], self._piece_view
        read = 0
        try:
            while read < limit:
                length, control, _, address = receive(buffers, _CONTROL_BYTES)
                size = _GRO_SIZE.unpack(control[0][2])[0] if control else length or 1
                count = -(-length // size) or 1
                read += count
                if address[:2] != peer:
                    self.counters.from_strangers += count
                elif size > most:
                    self.counters.receive_errors += count
                elif count == 1:
                    frames.append(bytes(view[:length]))
                else:
                    frames += [bytes(view[start : min(start + size, length)]) for start in range(0, length, size)]
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
