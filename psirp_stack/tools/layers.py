"""The wire format as scapy layers: the readable truth.

    Ether(type=0xACDC) / PSIRPForwarding(fid=...) / PSIRPPublishData(sid=..., rid=...) / Raw(b"...")

Each layer lists its fields in order with their sizes. `bind_layers` fills in the `next` bytes when a packet is built
and finds the following layer when one is dissected. What a `next` byte announces but the bytes do not hold (unknown
type, cut short, other type byte, other `proto`, a second header of one kind) is dissected as `Raw`.
"""

from typing import Any, ClassVar

from scapy.fields import ByteEnumField, ByteField, LongField, XByteField, XStrFixedLenField
from scapy.layers.l2 import Ether
from scapy.packet import Packet, Padding, Raw, bind_layers

from psirp_stack.tools.text import short_hex, short_id
from psirp_stack.wire.numbers import ETHERTYPE, PROTO_OFFSETS, PROTOCOL_VERSION, HeaderType

NAMES = {int(number): number.name.lower().replace("_", " ") for number in HeaderType}


def type_field(header_type: HeaderType) -> ByteEnumField:
    return ByteEnumField("type", int(header_type), NAMES)


def next_field() -> ByteEnumField:
    return ByteEnumField("next", int(HeaderType.NONE), NAMES)


def id_field(name: str) -> XStrFixedLenField:
    return XStrFixedLenField(name, bytes(32), length=32)


def bytes_field(name: str, size: int) -> XStrFixedLenField:
    return XStrFixedLenField(name, bytes(size), length=size)


class PSIRPHeader(Packet):
    """What all headers share: a type byte of its own, a fixed size, and no second header of a kind in one chain."""

    header_type: ClassVar[HeaderType]
    size: ClassVar[int]
    kind: ClassVar[str]

    def pre_dissect(self, s: bytes) -> bytes:
        if len(s) < self.size or s[0] != self.header_type:
            raise ValueError(f"not a {self.kind} header")
        proto_at = PROTO_OFFSETS.get(self.header_type)
        if proto_at is not None and s[proto_at] != PROTOCOL_VERSION:
            raise ValueError(f"a {self.kind} header of another protocol version")
        return s

    def text(self) -> str:
        """The header in a few words."""
        return self.kind

    def mysummary(self) -> tuple[str, list[type[Packet]]]:  # type: ignore[override]  # scapy allows both
        # scapy leaves out the layers below the last one that has a summary, unless that one asks for them.
        return self.text(), [PSIRPForwarding, *CHAINED]

    def guess_payload_class(self, payload: bytes) -> type[Packet]:
        guess: type[Packet] = super().guess_payload_class(payload)
        if not issubclass(guess, PSIRPHeader):
            return guess
        layer: Packet | None = self
        while isinstance(layer, PSIRPHeader):
            if layer.kind == guess.kind:
                return Raw
            layer = layer.underlayer
        return guess


class PSIRPForwarding(PSIRPHeader):
    name = "PSIRP forwarding"
    header_type = HeaderType.FORWARDING
    size = 42
    kind = "forwarding"
    fields_desc: ClassVar[list[Any]] = [
        type_field(HeaderType.FORWARDING),
        next_field(),
        ByteField("ttl", 0xFF),
        ByteField("d", 0),
        ByteField("proto", 1),
        bytes_field("reserved", 5),
        id_field("fid"),
    ]

    def text(self) -> str:
        return f"PSIRP ttl {self.ttl} fid {short_hex(self.fid[:-1].hex())} table {self.fid[-1]}"


class PSIRPRendezvous(PSIRPHeader):
    """The four rendezvous headers differ only in their type."""

    name = "PSIRP rendezvous"
    size = 112
    kind = "rendezvous"
    match_subclass = True

    def text(self) -> str:
        return f"{NAMES[self.header_type]} {short_id(self.sid)}/{short_id(self.rid)} seqnum {self.seqnum}"


def rendezvous_fields(header_type: HeaderType) -> list[Any]:
    return [
        type_field(header_type),
        next_field(),
        id_field("sid"),
        id_field("rid"),
        id_field("vrid"),
        LongField("seqnum", 0),
        ByteField("proto", 1),
        bytes_field("reserved", 5),
    ]


class PSIRPSubscribeData(PSIRPRendezvous):
    name = "PSIRP subscribe data"
    header_type = HeaderType.SUBSCRIBE_DATA
    fields_desc: ClassVar[list[Any]] = rendezvous_fields(HeaderType.SUBSCRIBE_DATA)


class PSIRPSubscribeMetadata(PSIRPRendezvous):
    name = "PSIRP subscribe metadata"
    header_type = HeaderType.SUBSCRIBE_METADATA
    fields_desc: ClassVar[list[Any]] = rendezvous_fields(HeaderType.SUBSCRIBE_METADATA)


class PSIRPPublishData(PSIRPRendezvous):
    name = "PSIRP publish data"
    header_type = HeaderType.PUBLISH_DATA
    fields_desc: ClassVar[list[Any]] = rendezvous_fields(HeaderType.PUBLISH_DATA)


class PSIRPPublishMetadata(PSIRPRendezvous):
    name = "PSIRP publish metadata"
    header_type = HeaderType.PUBLISH_METADATA
    fields_desc: ClassVar[list[Any]] = rendezvous_fields(HeaderType.PUBLISH_METADATA)


class PSIRPMetadata(PSIRPHeader):
    name = "PSIRP metadata"
    header_type = HeaderType.METADATA
    size = 152
    kind = "metadata"
    fields_desc: ClassVar[list[Any]] = [
        type_field(HeaderType.METADATA),
        next_field(),
        id_field("sid"),
        id_field("rid"),
        id_field("vrid"),
        id_field("collected_fid"),
        LongField("length", 0),
        LongField("max_seqnum", 0),
        ByteEnumField("rendezvous_type", 0, NAMES),
        XByteField("flags", 0),
        bytes_field("reserved", 4),
    ]

    def text(self) -> str:
        name = f"{short_id(self.sid)}/{short_id(self.rid)}"
        back = f"back {short_hex(self.collected_fid[:-1].hex())} table {self.collected_fid[-1]}"
        return f"metadata {name} length {self.length} max_seqnum {self.max_seqnum} {back}"


class PSIRPAuthentication(PSIRPHeader):
    name = "PSIRP authentication"
    header_type = HeaderType.AUTHENTICATION
    size = 128
    kind = "authentication"
    fields_desc: ClassVar[list[Any]] = [
        type_field(HeaderType.AUTHENTICATION),
        next_field(),
        id_field("signer"),
        LongField("timestamp", 0),
        LongField("sequence", 0),
        LongField("expiry", 0),
        XByteField("flags", 0),
        bytes_field("reserved", 5),
        bytes_field("signature", 64),
    ]

    def text(self) -> str:
        return f"signed by {short_id(self.signer)} sequence {self.sequence}"


CHAINED = (
    PSIRPSubscribeData,
    PSIRPSubscribeMetadata,
    PSIRPPublishData,
    PSIRPPublishMetadata,
    PSIRPMetadata,
    PSIRPAuthentication,
)
"""What can follow the forwarding header, in any order."""

bind_layers(Ether, PSIRPForwarding, type=ETHERTYPE)
for lower in (PSIRPForwarding, *CHAINED):
    for upper in CHAINED:
        bind_layers(lower, upper, next=int(upper.header_type))
    bind_layers(lower, Raw, next=int(HeaderType.PAYLOAD))
    bind_layers(lower, Padding, next=int(HeaderType.NONE))


def chain_of(frame: bytes) -> list[PSIRPHeader] | None:
    """The headers of a frame without its Ethernet header; None when they are no unbroken chain."""
    try:
        layer: Packet = PSIRPForwarding(frame) if frame else Raw()
    except ValueError:
        return None
    headers = []
    while isinstance(layer, PSIRPHeader):
        headers.append(layer)
        layer = layer.payload
    ended = bool(headers) and headers[-1].next in (HeaderType.NONE, HeaderType.PAYLOAD)
    return headers if ended else None
