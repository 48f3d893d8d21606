"""What the two carriers on sockets share: room in the kernel, counting what goes wrong instead of raising, closing."""

import errno
import select
import socket
import struct

from psirp_stack.links.interface import CarrierListener, CarrierState, LinkCounters, Receiver

NO_ROOM = frozenset({errno.ENOBUFS, errno.EAGAIN, errno.EWOULDBLOCK, errno.ENOMEM})
CLOSED = -1
_STATES = {
    errno.ENETDOWN: CarrierState.DOWN,
    errno.ENODEV: CarrierState.DOWN,
    errno.ENXIO: CarrierState.DOWN,
    errno.ECONNREFUSED: CarrierState.DOUBTFUL,
    errno.EHOSTUNREACH: CarrierState.DOUBTFUL,
    errno.EHOSTDOWN: CarrierState.DOUBTFUL,
    errno.ENETUNREACH: CarrierState.DOUBTFUL,
}
"""What others say (ICMP) may be wrong or forged; what this machine says of its interface is not."""
RECEIVE_BUFFER_BYTES = 4 * 1024 * 1024
"""Room for frames that arrive while the process does something else. The kernel's usual 208 KiB are full after some
hundred of them (it counts what a frame occupies, not its length); others are lost on a wire that loses none."""
SEND_BUFFER_BYTES = 1024 * 1024

_SO_RCVBUFFORCE = 33  # asm-generic/socket.h; beyond the system's limit, for who has CAP_NET_ADMIN
_SO_SNDBUFFORCE = 32
_SO_MEMINFO = 55
_MEMINFO = struct.Struct("=9I")
_MEMINFO_DROPS = 8  # linux/sock_diag.h


class SocketLink:
    """A link on a non-blocking socket of its own."""

    def __init__(self, sock: socket.socket, mtu: int, receive_buffer: int = RECEIVE_BUFFER_BYTES) -> None:
        sock.setblocking(False)
        self.mtu = mtu
        self.counters = LinkCounters()
        self.receive_buffer = _grow(sock, receive_buffer, _SO_RCVBUFFORCE, socket.SO_RCVBUF)
        """Bytes that the kernel grants, in its own way of counting; perhaps less than what was asked for."""
        self.send_buffer = _grow(sock, SEND_BUFFER_BYTES, _SO_SNDBUFFORCE, socket.SO_SNDBUF)
        self._wanted = receive_buffer
        self._socket = sock
        # Watched instead of the socket: readable for errors too. Of a socket with an error libuv, and with it uvloop,
        # says so once and watches it no more.
        self._ready = select.epoll()
        self._ready.register(sock, select.EPOLLIN)
        self._receiver: Receiver | None = None
        self._carrier: CarrierListener | None = None

    def on_receive(self, receiver: Receiver | None) -> None:
        self._receiver = receiver

    def on_carrier(self, listener: CarrierListener | None) -> None:
        """Say who hears that the interface went down, or that the other end is not there."""
        self._carrier = listener

    def fileno(self) -> int:
        """The descriptor to watch; -1 once closed."""
        return CLOSED if self._ready.closed else self._ready.fileno()

    def close(self) -> None:
        self._ready.close()
        self._socket.close()

    @property
    def shortage(self) -> str | None:
        """What to tell the operator when the kernel grants less room than was asked for."""
        if self.receive_buffer >= self._wanted and self.send_buffer >= SEND_BUFFER_BYTES:
            return None
        return (
            f"the kernel grants {self.receive_buffer >> 10} KiB to receive and {self.send_buffer >> 10} KiB to send, "
            f"not {self._wanted >> 10} and {SEND_BUFFER_BYTES >> 10}: frames that come in bursts will be lost "
            f"(sysctl -w net.core.rmem_max={self._wanted} net.core.wmem_max={SEND_BUFFER_BYTES})"
        )

    @property
    def lost_in_kernel(self) -> int:
        """Frames that arrived and found the receive buffer full."""
        try:
            info = self._socket.getsockopt(socket.SOL_SOCKET, _SO_MEMINFO, _MEMINFO.size)
        except OSError:
            return 0
        return int(_MEMINFO.unpack(info)[_MEMINFO_DROPS]) if len(info) == _MEMINFO.size else 0

    def _refused(self, frame: bytes, error: OSError | None) -> bool:
        """Count why a frame could not be sent; always False, for `send` to return."""
        if error is None or error.errno == errno.EMSGSIZE:
            self.counters.oversized += 1
        elif self._ready.closed:
            self.counters.after_close += 1
        elif error.errno in NO_ROOM:
            self.counters.queue_full += 1
        else:
            self.counters.send_errors += 1
            self._in_trouble(error)
        return False

    def _in_trouble(self, error: OSError) -> None:
        """Tell what an error says of the carrier, if anything."""
        state = _STATES.get(error.errno or 0)
        if state is not None and self._carrier is not None:
            self._carrier(state)

    def _hand_on(self, frames: list[bytes]) -> None:
        if frames:
            counters = self.counters
            counters.received += len(frames)
            counters.received_bytes += sum(map(len, frames))
            if self._receiver is not None:
                self._receiver(frames)


def _grow(sock: socket.socket, wanted: int, force: int, ask: int) -> int:
    """Ask for a buffer of this size, and say what there is now. A larger one is left as it is."""
    for option in (force, ask):
        if _granted(sock, ask) < wanted:
            try:
                sock.setsockopt(socket.SOL_SOCKET, option, wanted)
            except OSError:  # without the right to go beyond the system's limit
                continue
    return _granted(sock, ask)


def _granted(sock: socket.socket, option: int) -> int:
    # The kernel doubles what it is asked for, for its own bookkeeping, and says the doubled number.
    return sock.getsockopt(socket.SOL_SOCKET, option) // 2
