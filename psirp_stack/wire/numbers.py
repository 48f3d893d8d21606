"""The numbers of the wire format: types, sizes and byte offsets, each of them only here.

A frame is what follows the 14-byte Ethernet header: a forwarding header, then chained headers. Every header begins
with its own type and the type of what follows it. Offsets below count from the first byte of their own header.
"""

from enum import IntEnum, IntFlag

ETHERTYPE = 0xACDC
ETHERNET_HEADER_BYTES = 14
ETHERNET_MIN_PAYLOAD = 46
"""Shorter frames arrive padded with zeros, so bytes after a chain that ends in `NONE` are padding and no error."""


class HeaderType(IntEnum):
    """First byte of a header, and second byte of the header before it. Numbers not listed are free for later use."""

    NONE = 0x00
    """Nothing follows."""
    FORWARDING = 0x01
    SUBSCRIBE_DATA = 0x02
    SUBSCRIBE_METADATA = 0x03
    PUBLISH_DATA = 0x04
    PUBLISH_METADATA = 0x05
    METADATA = 0x06
    AUTHENTICATION = 0x07
    PAYLOAD = 0xF0
    """Everything up to the end of the frame is payload; it has no header of its own."""


class MetadataFlag(IntFlag):
    """Bits of the metadata header's flags."""

    CHANNEL = 0x01
    """A channel subscription: it stays for the versions to come."""
    NO_VIRTUAL_INTERFACE = 0x80
    """Do not add the node's own interface to the collected FID."""


FORWARDING_TYPE = int(HeaderType.FORWARDING)
METADATA_TYPE = int(HeaderType.METADATA)
AUTHENTICATION_TYPE = int(HeaderType.AUTHENTICATION)
RENDEZVOUS_TYPES = frozenset(
    {
        HeaderType.SUBSCRIBE_DATA,
        HeaderType.SUBSCRIBE_METADATA,
        HeaderType.PUBLISH_DATA,
        HeaderType.PUBLISH_METADATA,
    }
)

PROTOCOL_VERSION = 0x01
"""Value of every `proto` field. Another one would be another layout, so a frame that has it is malformed."""
INITIAL_TTL = 0xFF
ID_BYTES = 32
FID_BYTES = 32
KEY_HASH_BYTES = 32
SIGNATURE_BYTES = 64

# Every header.
TYPE_OFFSET = 0
NEXT_OFFSET = 1

# Forwarding header, always first: its offsets are offsets into the frame too.
FORWARDING_BYTES = 42
TTL_OFFSET = 2
D_OFFSET = 3
FORWARDING_PROTO_OFFSET = 4
FORWARDING_RESERVED_OFFSET = 5
FORWARDING_RESERVED_BYTES = 5
MARKS_OFFSET = FORWARDING_RESERVED_OFFSET
"""The first reserved byte holds marks that forwarders set."""
CONGESTION_MARK = 0x01
"""The frame waited in a queue that was filling up."""
FID_OFFSET = 10
TABLE_INDEX_OFFSET = FID_OFFSET + FID_BYTES - 1

# Rendezvous and metadata headers begin alike.
SID_OFFSET = 2
RID_OFFSET = 34
VRID_OFFSET = 66

RENDEZVOUS_BYTES = 112
SEQNUM_OFFSET = 98
RENDEZVOUS_PROTO_OFFSET = 106
RENDEZVOUS_RESERVED_OFFSET = 107
RENDEZVOUS_RESERVED_BYTES = 5

METADATA_BYTES = 152
COLLECTED_FID_OFFSET = 98
LENGTH_OFFSET = 130
MAX_SEQNUM_OFFSET = 138
RENDEZVOUS_TYPE_OFFSET = 146
METADATA_FLAGS_OFFSET = 147
METADATA_RESERVED_OFFSET = 148
METADATA_RESERVED_BYTES = 4

AUTHENTICATION_BYTES = 128
SIGNER_OFFSET = 2
TIMESTAMP_OFFSET = 34
AUTHENTICATION_SEQUENCE_OFFSET = 42
EXPIRY_OFFSET = 50
AUTHENTICATION_FLAGS_OFFSET = 58
AUTHENTICATION_RESERVED_OFFSET = 59
AUTHENTICATION_RESERVED_BYTES = 5
SIGNATURE_OFFSET = 64

HEADER_BYTES: dict[int, int] = {
    HeaderType.FORWARDING: FORWARDING_BYTES,
    **dict.fromkeys(RENDEZVOUS_TYPES, RENDEZVOUS_BYTES),
    HeaderType.METADATA: METADATA_BYTES,
    HeaderType.AUTHENTICATION: AUTHENTICATION_BYTES,
}
"""Size of each header by its type."""

PROTO_OFFSETS: dict[int, int] = {
    HeaderType.FORWARDING: FORWARDING_PROTO_OFFSET,
    **dict.fromkeys(RENDEZVOUS_TYPES, RENDEZVOUS_PROTO_OFFSET),
}
"""Where the headers that have a `proto` field keep it, by their type."""

# Frames of a sealed link: a PSIRP frame begins with FORWARDING_TYPE, so the first byte tells them apart.
SEALED_TYPE = 0x10
"""A PSIRP frame, encrypted for the neighbour at the other end of the link."""
OFFER_TYPE = 0x11
"""A frame of the handshake in which two neighbours prove the domain's secret to each other."""
SEAL_VERSION = 0x01
AES_256_GCM = 0x01
"""The only cipher there is; a frame that names another one is malformed."""

# Sealed frame. The header is the nonce of its cipher, so that it cannot be changed either.
LABEL_OFFSET = 1
LABEL_BYTES = 5
COUNTER_OFFSET = LABEL_OFFSET + LABEL_BYTES
COUNTER_BYTES = 6
SEALED_HEADER_BYTES = COUNTER_OFFSET + COUNTER_BYTES
TAG_BYTES = 16
SEALED_OVERHEAD = SEALED_HEADER_BYTES + TAG_BYTES
"""Bytes by which a frame grows when it is sealed."""

# Offer, always of the same size: more than Ethernet pads.
OFFER_VERSION_OFFSET = 1
OFFER_CIPHER_OFFSET = 2
OFFER_STEP_OFFSET = 3
OFFER_SHARE_OFFSET = 4
SHARE_ID_BYTES = 16
OFFER_PUBLIC_OFFSET = OFFER_SHARE_OFFSET + SHARE_ID_BYTES
PUBLIC_BYTES = 32
OFFER_ECHO_OFFSET = OFFER_PUBLIC_OFFSET + PUBLIC_BYTES
OFFER_CONFIRMATION_OFFSET = OFFER_ECHO_OFFSET + SHARE_ID_BYTES
CONFIRMATION_BYTES = 16
OFFER_MAC_OFFSET = OFFER_CONFIRMATION_OFFSET + CONFIRMATION_BYTES
MAC_BYTES = 16
OFFER_BYTES = OFFER_MAC_OFFSET + MAC_BYTES

MAX_CHAIN_BYTES = FORWARDING_BYTES + RENDEZVOUS_BYTES + METADATA_BYTES + AUTHENTICATION_BYTES
"""All headers of one frame: there is at most one of each kind."""
