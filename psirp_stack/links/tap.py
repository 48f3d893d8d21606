"""Watch a link: a wrapper that shows every frame it sends or receives to an observer, and an observer that passes them
on to whoever captures.

A capture listens on a Unix datagram socket; the tap sends to its path and never waits: with nobody there, or a listener
that is too slow, frames are counted and forgotten. So a node can have its tap configured all the time, and links that
no interface shows, in process or between containers, can be captured like any other.

A datagram of the tap is `HEADER`, then the frame: whether it was sent (1) or received (0), the link's number at its
node, and nanoseconds since 1970.
"""

import socket
import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from psirp_stack.forwarding_model import LinkNumber
from psirp_stack.links.interface import Link, LinkCounters, Receiver

HEADER = struct.Struct("!BHQ")
MAX_LINK_NUMBER = 0xFFFF
MAX_TAP_PATH_BYTES = 100
"""What fits the kernel's address of a Unix socket, with a little to spare."""

Observer = Callable[[bool, bytes], object]
"""Called with True for a frame that was sent, False for one that was received, and the frame."""


class TappedLink:
    """A link that does what the one it wraps does, watched. Frames that were refused are not shown."""

    def __init__(self, link: Link, observe: Observer) -> None:
        self.link = link
        self._observe = observe

    @property
    def mtu(self) -> int:
        return self.link.mtu

    @property
    def counters(self) -> LinkCounters:
        return self.link.counters

    def on_receive(self, receiver: Receiver | None) -> None:
        if receiver is None:
            self.link.on_receive(None)
            return
        observe = self._observe

        def shown_and_received(frames: Sequence[bytes]) -> None:
            for frame in frames:
                observe(False, frame)
            receiver(frames)

        self.link.on_receive(shown_and_received)

    def send(self, frame: bytes) -> bool:
        accepted = self.link.send(frame)
        if accepted:
            self._observe(True, frame)
        return accepted

    def send_many(self, frames: Sequence[bytes]) -> int:
        return sum(map(self.send, frames))

    def close(self) -> None:
        self.link.close()


@dataclass(slots=True)
class TapCounters:
    shown: int = 0
    unheard: int = 0
    """Nobody captured, or not fast enough."""


class SocketTap:
    """Sends what it is shown to the capture that listens at a path, if there is one."""

    def __init__(self, path: Path, clock_ns: Callable[[], int]) -> None:
        if len(bytes(path)) > MAX_TAP_PATH_BYTES:
            raise ValueError(f"the path of a tap has {len(bytes(path))} bytes: expected {MAX_TAP_PATH_BYTES} at most")
        self.path = path
        self.counters = TapCounters()
        self._clock_ns = clock_ns
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.setblocking(False)

    def watch(self, number: LinkNumber, link: Link) -> TappedLink:
        """The link, with its frames shown here under its number."""
        if not 0 <= number <= MAX_LINK_NUMBER:
            raise ValueError(f"link {number} cannot be tapped: expected a number of 0 to {MAX_LINK_NUMBER}")

        def show(sent: bool, frame: bytes) -> None:
            try:
                self._socket.sendto(HEADER.pack(sent, number, self._clock_ns()) + frame, str(self.path))
                self.counters.shown += 1
            except OSError:
                self.counters.unheard += 1

        return TappedLink(link, show)

    def close(self) -> None:
        self._socket.close()
