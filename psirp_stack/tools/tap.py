"""The listening end of a tap: frames that a node shows of its links, as records for a capture file.

They are written behind an Ethernet header of made-up addresses that say which link and which way: 02:00:LL:LL:00:01 is
the node on its link LL:LL, 02:00:LL:LL:00:02 its neighbour there.
"""

import errno
import socket
import stat
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Self

from psirp_stack.links.tap import HEADER, MAX_TAP_PATH_BYTES
from psirp_stack.tools.pcap import Record
from psirp_stack.wire.numbers import ETHERTYPE
from storage.private import close_to_others

MAX_DATAGRAM_BYTES = 65_536 + HEADER.size
POLL_SECONDS = 0.2
RECEIVE_BUFFER_BYTES = 8 * 1024 * 1024


class TapCapture:
    """Listens at a path for as long as the block lasts."""

    def __init__(self, path: Path) -> None:
        if len(bytes(path)) > MAX_TAP_PATH_BYTES:
            raise OSError(errno.ENAMETOOLONG, f"a tap's path has {MAX_TAP_PATH_BYTES} bytes at most")
        self.path = path
        self.malformed = 0
        """Datagrams that no tap sent."""
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        try:
            self._clear_the_way()
            self._socket.bind(str(path))
            close_to_others(path)
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, RECEIVE_BUFFER_BYTES)
            self._socket.settimeout(POLL_SECONDS)
        except BaseException:
            self._socket.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._socket.close()
        self.path.unlink(missing_ok=True)

    def records(self, ended: Callable[[], bool]) -> Iterator[Record]:
        """Frames as they come, until `ended` says so; it is asked after each frame and several times a second."""
        while not ended():
            try:
                datagram = self._socket.recv(MAX_DATAGRAM_BYTES)
            except TimeoutError:
                continue
            record = record_of(datagram)
            if record is None:
                self.malformed += 1
            else:
                yield record

    def _clear_the_way(self) -> None:
        """Remove what a capture left that did not end well; refuse to take the place of a living one."""
        try:
            found = self.path.lstat().st_mode
        except FileNotFoundError:
            return
        if not stat.S_ISSOCK(found):
            raise FileExistsError(errno.EEXIST, "there is a file of that name")
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as probe:
            if probe.connect_ex(str(self.path)) != errno.ECONNREFUSED:
                raise FileExistsError(errno.EADDRINUSE, "another capture listens there")
        self.path.unlink()


def record_of(datagram: bytes) -> Record | None:
    """The frame in a datagram of a tap, on Ethernet; None when it is none."""
    if len(datagram) < HEADER.size:
        return None
    sent, number, time_ns = HEADER.unpack_from(datagram)
    if sent > 1:
        return None
    node, neighbour = (b"\x02\x00" + number.to_bytes(2, "big") + bytes((0, end)) for end in (1, 2))
    addresses = neighbour + node if sent else node + neighbour
    data = addresses + ETHERTYPE.to_bytes(2, "big") + datagram[HEADER.size :]
    return Record(time_ns, data, len(data))
