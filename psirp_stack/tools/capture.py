"""Take PSIRP frames from a network interface, or from a capture file, and keep those of one topic.

An interface is read through a packet socket that sees both directions, with the EtherType tested in the kernel so
that other traffic costs nothing. With a UDP port given, the frames inside UDP datagrams are taken instead and written
as if they had travelled on Ethernet: one kind of capture file for all links.
"""

import ctypes
import socket
import struct
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Self

from psirp_stack.tools.dissect import bare_frame
from psirp_stack.tools.pcap import LINKTYPE_ETHERNET, PcapWriter, Record
from psirp_stack.wire.codec import WireError, walk
from psirp_stack.wire.numbers import (
    AUTHENTICATION_TYPE,
    ETHERNET_HEADER_BYTES,
    ETHERTYPE,
    FORWARDING_TYPE,
    ID_BYTES,
    RID_OFFSET,
    SID_OFFSET,
)

MAX_FRAME_BYTES = 65_535
RECEIVE_BUFFER_BYTES = 8 * 1024 * 1024
POLL_SECONDS = 0.2
"""How long a read waits before it looks at the clock again."""

_ETH_P_ALL = 0x0003
_SO_ATTACH_FILTER = 26
_SOL_PACKET = 263
_PACKET_STATISTICS = 6
_ARPHRD_LOOPBACK = 772
_ETHERTYPE_IPV4, _ETHERTYPE_IPV6 = 0x0800, 0x86DD
_PROTOCOL_UDP = 17
_UDP_HEADER_BYTES = 8
_OF_A_PORT = 0x02000000
"""Begins a locally administered Ethernet address; the port is its end."""
_BARE_ETHERNET = bytes(12) + ETHERTYPE.to_bytes(2, "big")


@dataclass(frozen=True, slots=True)
class TopicFilter:
    """Keeps frames whose rendezvous or metadata header names the topic. None stands for any id."""

    sid: bytes | None = None
    rid: bytes | None = None

    def matches(self, frame: bytes) -> bool:
        if self.sid is None and self.rid is None:
            return True
        try:
            headers = walk(frame).headers
        except WireError:
            return False
        return any(
            self._names(frame, offset)
            for header_type, offset in headers
            if header_type not in (FORWARDING_TYPE, AUTHENTICATION_TYPE)
        )

    def _names(self, frame: bytes, offset: int) -> bool:
        sid = frame[offset + SID_OFFSET : offset + SID_OFFSET + ID_BYTES]
        rid = frame[offset + RID_OFFSET : offset + RID_OFFSET + ID_BYTES]
        return self.sid in (None, sid) and self.rid in (None, rid)


@dataclass(slots=True)
class CaptureCounts:
    """What a capture did; every frame seen is either written, filtered out or of another protocol."""

    written: int = 0
    filtered_out: int = 0
    other_protocol: int = 0
    lost_in_kernel: int = 0


def capture(
    records: Iterable[Record], writer: PcapWriter, wanted: TopicFilter, limit: int, counts: CaptureCounts
) -> None:
    """Write the wanted PSIRP frames until the records end or `limit` frames are written."""
    for record in records:
        frame = bare_frame(record)
        if frame is None:
            counts.other_protocol += 1
        elif not wanted.matches(frame):
            counts.filtered_out += 1
        else:
            writer.write(_on_ethernet(record))
            counts.written += 1
            if counts.written >= limit:
                return


def _on_ethernet(record: Record) -> Record:
    if record.linktype == LINKTYPE_ETHERNET:
        return record
    return Record(record.time_ns, _BARE_ETHERNET + record.data, record.wire_length + ETHERNET_HEADER_BYTES)


class InterfaceCapture:
    """A packet socket on one interface. Needs root, or the capability CAP_NET_RAW."""

    def __init__(self, interface: str, udp_port: int | None = None) -> None:
        self._udp_port = udp_port
        self._socket = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0)
        try:
            if udp_port is None:
                _attach_ethertype_filter(self._socket)
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, RECEIVE_BUFFER_BYTES)
            self._socket.settimeout(POLL_SECONDS)
            # Bound last: until then nothing arrives, so nothing slips past the filter.
            self._socket.bind((interface, _ETH_P_ALL))
        except BaseException:
            self._socket.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._socket.close()

    def records(self, clock_ns: Callable[[], int], ended: Callable[[], bool]) -> Iterator[Record]:
        """Frames as they come, until `ended` says so; it is asked after each frame and several times a second."""
        while not ended():
            try:
                data, (_, _, packet_type, hardware, _) = self._socket.recvfrom(MAX_FRAME_BYTES)
            except TimeoutError:
                continue
            if packet_type == socket.PACKET_OUTGOING and hardware == _ARPHRD_LOOPBACK:
                continue  # the loopback interface shows each packet twice, as it leaves and as it arrives
            record = Record(clock_ns(), data, len(data))
            inner = record if self._udp_port is None else frame_in_udp(record, self._udp_port)
            if inner is not None:
                yield inner

    def lost(self) -> int:
        """How many frames the kernel dropped because this process was too slow, since the last call."""
        packets_dropped = self._socket.getsockopt(_SOL_PACKET, _PACKET_STATISTICS, 8)
        return int(struct.unpack("II", packets_dropped)[1])


def frame_in_udp(record: Record, port: int) -> Record | None:
    """The PSIRP frame in a UDP datagram from or to `port`, put behind the Ethernet addresses it travelled with."""
    data = record.data
    ethertype = int.from_bytes(data[12:ETHERNET_HEADER_BYTES], "big")
    packet = data[ETHERNET_HEADER_BYTES:]
    if ethertype == _ETHERTYPE_IPV4 and len(packet) >= 20 and packet[9] == _PROTOCOL_UDP:
        fragment = int.from_bytes(packet[6:8], "big") & 0x3FFF
        datagram = b"" if fragment else packet[(packet[0] & 0x0F) * 4 : int.from_bytes(packet[2:4], "big")]
    elif ethertype == _ETHERTYPE_IPV6 and len(packet) >= 40 and packet[6] == _PROTOCOL_UDP:
        datagram = packet[40 : 40 + int.from_bytes(packet[4:6], "big")]
    else:
        return None
    if len(datagram) < _UDP_HEADER_BYTES or port not in struct.unpack_from("!HH", datagram):
        return None
    addresses = data[:12]
    if not any(addresses):  # on loopback all are zero: ports say which end sent it, as addresses of nobody's card
        source, target = struct.unpack_from("!HH", datagram)
        addresses = struct.pack("!IHIH", _OF_A_PORT, target, _OF_A_PORT, source)
    frame = addresses + ETHERTYPE.to_bytes(2, "big") + datagram[_UDP_HEADER_BYTES:]
    return replace(record, data=frame, wire_length=len(frame))


def _attach_ethertype_filter(packet_socket: socket.socket) -> None:
    """Four instructions of classic BPF: load the EtherType, keep the whole frame when it is ours, else nothing."""
    instructions = (
        (0x28, 0, 0, 12),
        (0x15, 0, 1, ETHERTYPE),
        (0x06, 0, 0, MAX_FRAME_BYTES),
        (0x06, 0, 0, 0),
    )
    program = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *each) for each in instructions))
    packet_socket.setsockopt(
        socket.SOL_SOCKET, _SO_ATTACH_FILTER, struct.pack("HL", len(instructions), ctypes.addressof(program))
    )
