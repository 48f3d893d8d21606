"""Raw Ethernet: PSIRP frames on a network interface under their own EtherType, with no IP beneath them.

The socket is bound to one interface and to that EtherType, so the kernel wakes us for nothing else; promiscuous mode is
not used. Needs CAP_NET_RAW. Interfaces pad what is shorter than 46 bytes: such a frame arrives with zeros at its end.
"""

import fcntl
import socket
import struct
from collections.abc import Sequence

from psirp_stack.links.interface import DEFAULT_BATCH
from psirp_stack.links.sockets import NO_ROOM, RECEIVE_BUFFER_BYTES, SocketLink
from psirp_stack.wire.numbers import ETHERNET_HEADER_BYTES, ETHERTYPE

BROADCAST_MAC = b"\xff" * 6
_GET_HARDWARE_ADDRESS = 0x8927  # SIOCGIFHWADDR, linux/sockios.h
_GET_MTU = 0x8921  # SIOCGIFMTU
_INTERFACE_REQUEST = struct.Struct("16s16s")
_SOL_PACKET = 263
_PACKET_IGNORE_OUTGOING = 23  # linux/if_packet.h: do not show us what we send
_ADDRESSES = slice(0, 12)


class EthernetLink(SocketLink):
    """A link over a network interface, to everybody on its segment or to one station."""

    def __init__(
        self, interface: str, *, peer: bytes = BROADCAST_MAC, receive_buffer: int = RECEIVE_BUFFER_BYTES
    ) -> None:
        """Open `interface`. With a `peer` address only that station is sent to and heard.

        Raises OSError when the interface does not exist or the process may not open raw sockets.
        """
        if len(peer) != len(BROADCAST_MAC):
            raise ValueError(f"peer address has {len(peer)} bytes: expected 6")
        sock = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0)
        try:
            sock.setsockopt(_SOL_PACKET, _PACKET_IGNORE_OUTGOING, 1)
            self.address = _interface_request(sock, interface, _GET_HARDWARE_ADDRESS)[2:8]
            mtu = int.from_bytes(_interface_request(sock, interface, _GET_MTU)[:4], "little")
            # Bound only now: protocol 0 hears nothing, so no frame of another interface slips in before.
            sock.bind((interface, ETHERTYPE))
        except OSError:
            sock.close()
            raise
        super().__init__(sock, mtu, receive_buffer)
        self.interface = interface
        self.peer = peer
        self._header = peer + self.address + ETHERTYPE.to_bytes(2, "big")
        self._to_us = (self.address, BROADCAST_MAC)
        self._from_peer = tuple(to + peer for to in self._to_us)
        self._anybody = peer == BROADCAST_MAC

    def send(self, frame: bytes) -> bool:
        size = len(frame)
        if size > self.mtu:
            return self._refused(frame, None)
        try:
            self._socket.send(self._header + frame)
        except OSError as error:
            return self._refused(frame, error)
        counters = self.counters
        counters.sent += 1
        counters.sent_bytes += size
        return True

    def send_many(self, frames: Sequence[bytes]) -> int:
        send, header, most = self._socket.send, self._header, self.mtu
        sent = sent_bytes = 0
        for place, frame in enumerate(frames):
            size = len(frame)
            if size > most:
                self._refused(frame, None)
                continue
            try:
                send(header + frame)
            except OSError as error:
                self._refused(frame, error)
                if error.errno not in NO_ROOM:
                    continue
                # Nor will there be for those behind it, and they must not overtake.
                self.counters.queue_full += len(frames) - place - 1
                break
            sent += 1
            sent_bytes += size
        self.counters.sent += sent
        self.counters.sent_bytes += sent_bytes
        return sent

    def drain(self, limit: int = DEFAULT_BATCH) -> int:
        frames: list[bytes] = []
        # Without the address that `recvfrom` would make of each: the frame itself says from whom and to whom it is.
        receive, anybody, to_us, from_peer = self._socket.recv, self._anybody, self._to_us, self._from_peer
        most = self.mtu + ETHERNET_HEADER_BYTES
        read = 0
        try:
            while read < limit:
                # One byte more than fits, so that a frame cut short by the buffer is noticed.
                data = receive(most + 1)
                read += 1
                # For another station: seen because somebody else made the port promiscuous.
                if data[:6] not in to_us if anybody else data[_ADDRESSES] not in from_peer:
                    self.counters.from_strangers += 1
                elif len(data) > most:
                    self.counters.receive_errors += 1
                else:
                    frames.append(data[ETHERNET_HEADER_BYTES:])
        except BlockingIOError:
            pass
        except OSError as error:
            self.counters.receive_errors += 1
            self._in_trouble(error)
        self._hand_on(frames)
        return read


def _interface_request(sock: socket.socket, interface: str, request: int) -> bytes:
    name = interface.encode()
    if len(name) > 15:
        raise OSError(f"interface name {interface!r} is longer than 15 bytes")
    answer = fcntl.ioctl(sock.fileno(), request, _INTERFACE_REQUEST.pack(name, b""))
    return answer[16:]
