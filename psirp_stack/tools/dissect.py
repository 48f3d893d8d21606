"""Captured frames as values for people and for JSON: every header with its fields, and what is wrong with a frame.

Fields come from the scapy layers, so that a broken frame still shows the headers before the break; the reason comes
from the codec.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from scapy.packet import Packet

from psirp_stack.tools.decoded import DecodedMessage, decode_payload
from psirp_stack.tools.layers import PSIRPForwarding, PSIRPHeader
from psirp_stack.tools.pcap import LINKTYPE_ETHERNET, Record
from psirp_stack.wire.codec import WireError, walk
from psirp_stack.wire.numbers import ETHERNET_HEADER_BYTES, ETHERTYPE, HeaderType

FieldValue = int | str
"""Numbers as numbers, byte strings as hex digits."""


@dataclass(frozen=True, slots=True)
class DissectedHeader:
    kind: str
    """forwarding, rendezvous, metadata or authentication."""
    text: str
    """The header in a few words."""
    fields: tuple[tuple[str, FieldValue], ...]


@dataclass(frozen=True, slots=True)
class DissectedFrame:
    number: int
    """Position in the capture, from 1."""
    time_ns: int
    source: str | None
    """Ethernet addresses; None in a capture of bare frames."""
    destination: str | None
    length: int
    headers: tuple[DissectedHeader, ...]
    payload: bytes
    message: DecodedMessage | None
    """What the payload says, where it is no content."""
    error: str | None
    """Why the frame is malformed, None when it is not."""

    @property
    def lines(self) -> list[str]:
        """One for each header, one for the payload, and what it says."""
        parts = [header.text for header in self.headers]
        if self.payload:
            parts.append(f"payload {len(self.payload)} bytes")
        message = self.message
        while message is not None:
            parts.append(message.text)
            message = message.carries
        return parts


def bare_frame(record: Record) -> bytes | None:
    """The PSIRP frame in a record, from its forwarding header on; None when it is some other protocol."""
    if record.linktype != LINKTYPE_ETHERNET:
        return record.data
    if record.data[12:ETHERNET_HEADER_BYTES] != ETHERTYPE.to_bytes(2, "big"):
        return None
    return record.data[ETHERNET_HEADER_BYTES:]


def dissect(records: Iterable[Record]) -> Iterator[DissectedFrame]:
    """Every PSIRP frame among the records; frames of other protocols are passed over."""
    for number, record in enumerate(records, 1):
        frame = bare_frame(record)
        if frame is not None:
            yield dissect_frame(number, record, frame)


def dissect_frame(number: int, record: Record, frame: bytes) -> DissectedFrame:
    ethernet = record.linktype == LINKTYPE_ETHERNET
    payload = b""
    error = None
    try:
        chain = walk(frame)
        if chain.last == HeaderType.PAYLOAD:
            payload = frame[chain.end :]
    except WireError as problem:
        error = str(problem)
        if record.wire_length > len(record.data):
            error += f" (the capture kept {len(record.data)} of {record.wire_length} bytes)"
    return DissectedFrame(
        number=number,
        time_ns=record.time_ns,
        source=record.data[6:12].hex(":") if ethernet else None,
        destination=record.data[:6].hex(":") if ethernet else None,
        length=record.wire_length,
        headers=tuple(_headers(frame)),
        payload=payload,
        message=decode_payload(frame) if payload else None,
        error=error,
    )


def _headers(frame: bytes) -> Iterator[DissectedHeader]:
    try:
        layer: Packet | None = PSIRPForwarding(frame) if frame else None
    except ValueError:
        return
    while isinstance(layer, PSIRPHeader):
        fields = ((field.name, layer.getfieldval(field.name)) for field in layer.fields_desc)
        shown = tuple((name, value.hex() if isinstance(value, bytes) else int(value)) for name, value in fields)
        yield DissectedHeader(layer.kind, layer.text(), shown)
        layer = layer.payload
