"""What the two carriers on sockets share: counting what goes wrong instead of raising it, and closing."""

import errno
import socket

from psirp_stack.links.interface import LinkCounters, Receiver

NO_ROOM = frozenset({errno.ENOBUFS, errno.EAGAIN, errno.EWOULDBLOCK, errno.ENOMEM})
CLOSED = -1


class SocketLink:
    """A link on a non-blocking socket of its own."""

    def __init__(self, sock: socket.socket, mtu: int) -> None:
        sock.setblocking(False)
        self.mtu = mtu
        self.counters = LinkCounters()
        self._socket = sock
        self._receiver: Receiver | None = None

    def on_receive(self, receiver: Receiver | None) -> None:
        self._receiver = receiver

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
        return False

    def _hand_on(self, frames: list[bytes]) -> None:
        if frames:
            counters = self.counters
            counters.received += len(frames)
            counters.received_bytes += sum(map(len, frames))
            if self._receiver is not None:
                self._receiver(frames)
