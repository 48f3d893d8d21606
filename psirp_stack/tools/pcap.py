"""Capture files: read pcap and pcapng, write pcap.

Read here rather than by scapy because scapy ends quietly where a file is broken, and a person who looks for lost
frames must be told.
"""

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from typing import IO

LINKTYPE_ETHERNET = 1
LINKTYPE_USER0 = 147
"""Set aside for private use: frames that begin at the forwarding header."""
LINKTYPES = {LINKTYPE_ETHERNET, LINKTYPE_USER0}

MAX_CAPTURED_BYTES = 262_144
"""The largest frame a capture file may hold, as in tcpdump: a larger length means that the file is broken."""

_MAGIC_MICRO = 0xA1B2C3D4
_MAGIC_NANO = 0xA1B23C4D
_MAGIC_PCAPNG = b"\x0a\x0d\x0d\x0a"
_PCAPNG_ORDER = 0x1A2B3C4D
_PCAPNG_SECTION, _PCAPNG_INTERFACE, _PCAPNG_SIMPLE, _PCAPNG_ENHANCED = 0x0A0D0D0A, 1, 3, 6
_PCAPNG_RESOLUTION_OPTION = 9
_PCAPNG_MAX_BLOCK = 16 * 1024 * 1024
_PCAPNG_MAX_INTERFACES = 4096
_FILE_HEADER = "IHHiIII"
_RECORD_HEADER = "IIII"


class PcapError(Exception):
    """The file is no capture file, or breaks off. Frames before the break have been given out already."""


@dataclass(frozen=True, slots=True)
class Record:
    """One frame of a capture."""

    time_ns: int
    data: bytes
    wire_length: int
    """What was on the wire; more than `data` when the capture cut the frame."""
    linktype: int = LINKTYPE_ETHERNET


def read_pcap(file: IO[bytes]) -> Iterator[Record]:
    """The frames of an open capture file, one by one."""
    magic = file.read(4)
    if magic == _MAGIC_PCAPNG:
        yield from _read_pcapng(file)
        return
    for endian in "<>":
        if len(magic) == 4 and struct.unpack(f"{endian}I", magic)[0] in (_MAGIC_MICRO, _MAGIC_NANO):
            yield from _read_classic(file, magic, endian)
            return
    raise PcapError(f"not a capture file: begins with {magic.hex() or 'nothing'}, neither pcap nor pcapng")


def _read_classic(file: IO[bytes], magic: bytes, endian: str) -> Iterator[Record]:
    header = struct.Struct(endian + _FILE_HEADER)
    start = magic + file.read(header.size - len(magic))
    if len(start) < header.size:
        raise PcapError("the file ends in its header")
    number, *_, linktype = header.unpack(start)
    linktype &= 0xFFFF  # the upper half holds flags about frame check sequences
    _check_linktype(linktype)
    nanoseconds = 1 if number == _MAGIC_NANO else 1000
    record = struct.Struct(endian + _RECORD_HEADER)
    count = 0
    while head := file.read(record.size):
        count += 1
        if len(head) < record.size:
            raise PcapError(f"the file ends in the header of frame {count}")
        seconds, fraction, captured, wire_length = record.unpack(head)
        if captured > MAX_CAPTURED_BYTES:
            raise PcapError(f"frame {count} claims {captured} bytes; {MAX_CAPTURED_BYTES} is the most: file corrupt")
        data = file.read(captured)
        if len(data) < captured:
            raise PcapError(f"the file ends inside frame {count}: {captured} bytes expected, {len(data)} there")
        yield Record(seconds * 1_000_000_000 + fraction * nanoseconds, data, wire_length, linktype)


def _read_pcapng(file: IO[bytes]) -> Iterator[Record]:
    """The file's first four bytes are read already: they are the type of its first section header."""
    endian = "<"
    interfaces: list[tuple[int, int]] = []
    head = _MAGIC_PCAPNG
    count = 0
    while head:
        count += 1
        if len(head) < 4:
            raise PcapError(f"the file ends in the header of block {count}")
        if head == _MAGIC_PCAPNG:
            endian, body = _section_header(file, count)
            interfaces = []
        else:
            body = _block_body(file, endian, count, file.read(4))
        kind = struct.unpack(f"{endian}I", head)[0]
        try:
            if kind == _PCAPNG_INTERFACE:
                interfaces.append(_interface(body, endian))
                if len(interfaces) > _PCAPNG_MAX_INTERFACES:
                    raise PcapError(f"more than {_PCAPNG_MAX_INTERFACES} interfaces: file corrupt")
            elif kind == _PCAPNG_ENHANCED:
                number, high, low, captured, wire_length = struct.unpack_from(f"{endian}IIIII", body)
                linktype, resolution = interfaces[number]
                yield _record(body[20:], captured, wire_length, linktype, ((high << 32) + low) * 10**9 // resolution)
            elif kind == _PCAPNG_SIMPLE:
                (wire_length,) = struct.unpack_from(f"{endian}I", body)
                yield _record(body[4:], min(wire_length, len(body) - 4), wire_length, interfaces[0][0], 0)
        except (struct.error, IndexError):
            raise PcapError(f"block {count} of the pcapng file is corrupt") from None
        head = file.read(4)


def _section_header(file: IO[bytes], count: int) -> tuple[str, bytes]:
    length, order = file.read(4), file.read(4)
    for endian in "<>":
        if len(order) == 4 and struct.unpack(f"{endian}I", order)[0] == _PCAPNG_ORDER:
            return endian, _block_body(file, endian, count, length, order)
    raise PcapError(f"block {count} of the pcapng file is corrupt: its byte order mark reads {order.hex()}")


def _block_body(file: IO[bytes], endian: str, count: int, length: bytes, start: bytes = b"") -> bytes:
    if len(length) < 4:
        raise PcapError(f"the file ends in the header of block {count}")
    size = struct.unpack(f"{endian}I", length)[0]
    if size % 4 or not 12 + len(start) <= size <= _PCAPNG_MAX_BLOCK:
        raise PcapError(f"block {count} claims {size} bytes: file corrupt")
    rest = file.read(size - 8 - len(start))
    if len(rest) < size - 8 - len(start):
        raise PcapError(
            f"the file ends inside block {count}: {size} bytes expected, {8 + len(start) + len(rest)} there"
        )
    if rest[-4:] != length:
        raise PcapError(f"block {count} gives two lengths: file corrupt")
    return start + rest[:-4]


def _interface(body: bytes, endian: str) -> tuple[int, int]:
    """Link type, and ticks a second."""
    linktype = struct.unpack_from(f"{endian}H", body)[0]
    _check_linktype(linktype)
    at = 8
    while at + 4 <= len(body):
        code, size = struct.unpack_from(f"{endian}HH", body, at)
        if code == _PCAPNG_RESOLUTION_OPTION and size == 1:
            exponent = body[at + 4]
            return linktype, 2 ** (exponent & 0x7F) if exponent & 0x80 else 10**exponent
        at += 4 + size + -size % 4
    return linktype, 10**6


def _record(data: bytes, captured: int, wire_length: int, linktype: int, time_ns: int) -> Record:
    if captured > min(len(data), MAX_CAPTURED_BYTES):
        raise PcapError(f"a frame claims {captured} bytes, its block holds {len(data)}: file corrupt")
    return Record(time_ns, data[:captured], wire_length, linktype)


def _check_linktype(linktype: int) -> None:
    if linktype not in LINKTYPES:
        raise PcapError(
            f"link type {linktype}: only Ethernet ({LINKTYPE_ETHERNET}) and bare frames ({LINKTYPE_USER0}) are read"
        )


class PcapWriter:
    """Writes Ethernet frames with nanosecond times."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file
        file.write(struct.pack("<" + _FILE_HEADER, _MAGIC_NANO, 2, 4, 0, 0, MAX_CAPTURED_BYTES, LINKTYPE_ETHERNET))

    def write(self, record: Record) -> None:
        seconds, fraction = divmod(record.time_ns, 1_000_000_000)
        data = record.data[:MAX_CAPTURED_BYTES]
        self._file.write(
            struct.pack("<" + _RECORD_HEADER, seconds & 0xFFFFFFFF, fraction, len(data), record.wire_length)
        )
        self._file.write(data)
        # Whoever follows the file or the pipe sees each frame at once.
        self._file.flush()
