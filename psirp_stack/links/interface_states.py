"""What the kernel says of network interfaces, at once when it changes: up with a carrier, or not.

A veth pair whose other end went down, a cable that was pulled, an interface that was deleted: frames would vanish
without a word, and a neighbour only be missed after several silent intervals.
"""

import errno
import socket
import struct

from psirp_stack.links.interface import CarrierListener, CarrierState

READ_BYTES = 1 << 16
MAX_READS = 64
_LINK_GROUP = 1  # RTMGRP_LINK, linux/rtnetlink.h
_NEW_LINK, _DELETED_LINK = 16, 17  # RTM_NEWLINK, RTM_DELLINK
_UP, _LOWER_UP = 0x1, 0x10000  # IFF_UP, IFF_LOWER_UP
_HEADER = struct.Struct("=IHHII")
_LINK = struct.Struct("=BxHiII")
_ALIGNED = 4


class InterfaceStates:
    """A socket that hears of all interfaces of this network namespace; whoever runs the event loop calls `drain`."""

    def __init__(self) -> None:
        self.missed = 0
        """Times the kernel had more to say than fitted."""
        self._listeners: dict[int, list[CarrierListener]] = {}
        self._last: dict[int, CarrierState] = {}
        self._socket = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_NONBLOCK, socket.NETLINK_ROUTE)
        self._socket.bind((0, _LINK_GROUP))

    def watch(self, interface: str, listener: CarrierListener) -> None:
        """Tell somebody when this interface goes down, and when it is up again."""
        self._listeners.setdefault(socket.if_nametoindex(interface), []).append(listener)

    def fileno(self) -> int:
        return self._socket.fileno()

    def drain(self) -> None:
        for _ in range(MAX_READS):
            try:
                data = self._socket.recv(READ_BYTES)
            except OSError as error:
                if error.errno == errno.ENOBUFS:
                    self.missed += 1
                    continue
                return
            for index, state in states_in(data):
                if self._last.get(index, CarrierState.UP) is not state:
                    self._last[index] = state
                    for listener in self._listeners.get(index, ()):
                        listener(state)

    def close(self) -> None:
        self._socket.close()


def states_in(data: bytes) -> list[tuple[int, CarrierState]]:
    """Interface numbers and their states in what the kernel wrote."""
    found = []
    offset = 0
    while offset + _HEADER.size + _LINK.size <= len(data):
        size, kind, _, _, _ = _HEADER.unpack_from(data, offset)
        if size < _HEADER.size:
            break
        if kind in (_NEW_LINK, _DELETED_LINK):
            _, _, index, flags, _ = _LINK.unpack_from(data, offset + _HEADER.size)
            works = kind == _NEW_LINK and flags & _UP and flags & _LOWER_UP
            found.append((index, CarrierState.UP if works else CarrierState.DOWN))
        offset += -(-size // _ALIGNED) * _ALIGNED
    return found
