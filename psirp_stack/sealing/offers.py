"""Offers: the one frame of the handshake, as bytes and as a value. Its layout is in `psirp_stack.wire.numbers`."""

import struct
from dataclasses import dataclass
from enum import IntEnum

from psirp_stack.wire.numbers import (
    AES_256_GCM,
    CONFIRMATION_BYTES,
    MAC_BYTES,
    OFFER_BYTES,
    OFFER_CIPHER_OFFSET,
    OFFER_MAC_OFFSET,
    OFFER_STEP_OFFSET,
    OFFER_TYPE,
    OFFER_VERSION_OFFSET,
    PUBLIC_BYTES,
    SEAL_VERSION,
    SHARE_ID_BYTES,
    TYPE_OFFSET,
)

_OFFER = struct.Struct(f"!BBBB{SHARE_ID_BYTES}s{PUBLIC_BYTES}s{SHARE_ID_BYTES}s{CONFIRMATION_BYTES}s{MAC_BYTES}s")
NOBODY = bytes(SHARE_ID_BYTES)
"""Echo of an offer whose sender has heard no offer yet."""
NOT_CONFIRMED = bytes(CONFIRMATION_BYTES)


class OfferError(ValueError):
    """Bytes that are no offer; the text says at which byte and why."""


class Step(IntEnum):
    """How far the sender of an offer is."""

    ASK = 0
    """It offers its share; the echo says whose share it has heard, if any."""
    CONFIRM = 1
    """It has the keys and proves so; it waits for the other's proof."""
    SETTLED = 2
    """It has seen the other's proof: nothing is left to be said."""


_STEPS = {int(step): step for step in Step}


@dataclass(frozen=True, slots=True)
class Offer:
    """What an offer says, apart from the MAC that proves its sender knows the secret."""

    step: Step
    share: bytes
    """Random number of the sender's share."""
    public: bytes
    """The share itself: an X25519 public key."""
    echo: bytes = NOBODY
    """Number of the share that the sender answers: whoever made it sees that the sender is there now."""
    confirmation: bytes = NOT_CONFIRMED


def pack_offer(offer: Offer) -> bytes:
    """The offer without its MAC."""
    whole = _OFFER.pack(
        OFFER_TYPE,
        SEAL_VERSION,
        AES_256_GCM,
        offer.step,
        offer.share,
        offer.public,
        offer.echo,
        offer.confirmation,
        bytes(MAC_BYTES),
    )
    return whole[:OFFER_MAC_OFFSET]


def parse_offer(frame: bytes) -> tuple[Offer, bytes]:
    """The offer and its MAC, which is still to be checked."""
    if len(frame) != OFFER_BYTES:
        raise OfferError(f"an offer has {OFFER_BYTES} bytes, not {len(frame)}")
    kind, version, cipher, step, share, public, echo, confirmation, mac = _OFFER.unpack(frame)
    if kind != OFFER_TYPE:
        raise OfferError(f"byte {TYPE_OFFSET}: type 0x{kind:02x} where 0x{OFFER_TYPE:02x} was expected")
    if version != SEAL_VERSION:
        raise OfferError(f"byte {OFFER_VERSION_OFFSET}: version {version} where {SEAL_VERSION} was expected")
    if cipher != AES_256_GCM:
        raise OfferError(f"byte {OFFER_CIPHER_OFFSET}: cipher {cipher} where {AES_256_GCM} was expected")
    known = _STEPS.get(step)
    if known is None:
        raise OfferError(f"byte {OFFER_STEP_OFFSET}: step {step} is not known")
    if share == NOBODY:
        raise OfferError("the share's number is zero")
    return Offer(known, share, public, echo, confirmation), mac
