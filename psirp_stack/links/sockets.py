"""What the two carriers on sockets share: counting what goes wrong instead of raising it, and closing."""

import errno
import socket

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


class SocketLink:
    """A link on a non-blocking socket of its own."""

    def __init__(self, sock: socket.socket, mtu: int) -> None:
        sock.setblocking(False)
        self.mtu = mtu
        self.counters = LinkCounters()
        self._socket = sock
        self._receiver: Receiver | None = None
        self._carrier: CarrierListener | None = None

    def on_receive(self, receiver: Receiver | None) -> None:
        self._receiver = receiver

    def on_carrier(self, listener: CarrierListener | None) -> None:
        """Say who hears that the interface went down, or that the other end is not there."""
        self._carrier = listener

    def fileno(self) -> int:
        """The descriptor to watch; -1 once closed."""
        return self._socket.fileno()

    def close(self) -> None:
        self._socket.close()

    def _refused(self, frame: bytes, error: OSError | None) -> bool:
        """Count why a frame could not be sent; always False, for `send` to return."""
        if error is None or error.errno == errno.EMSGSIZE:
            self.counters.oversized += 1
        elif self._socket.fileno() == CLOSED:
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
