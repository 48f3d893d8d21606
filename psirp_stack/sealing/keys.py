"""Keys of sealed links: from the domain's secret and two fresh X25519 shares to the keys of a session.

The secret goes through HKDF-SHA256 once, to a key that checks offers and a key that is mixed into every session. A
session's keys come from the shared X25519 value with that key as salt; both shares and their numbers are bound in, so
that two neighbours who have different ideas of the handshake have different keys. Each direction has keys of its own:
nothing that one end sent opens at the same end.
"""

import hmac
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Self

from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from psirp_stack.wire.numbers import (
    AES_256_GCM,
    CONFIRMATION_BYTES,
    LABEL_BYTES,
    MAC_BYTES,
    PUBLIC_BYTES,
    SEAL_VERSION,
    SHARE_ID_BYTES,
)

MIN_SECRET_BYTES = 16
KEY_BYTES = 32
_SUITE = bytes((SEAL_VERSION, AES_256_GCM))
_OF_A_DIRECTION = KEY_BYTES + LABEL_BYTES + CONFIRMATION_BYTES

Entropy = Callable[[int], bytes]
"""So many random bytes that nobody can guess; `os.urandom` outside tests."""


class WeakShareError(ValueError):
    """A share with which every secret would be the same."""


@dataclass(frozen=True, slots=True)
class DomainKeys:
    """What the members of a domain have in common, derived from its secret."""

    offer: bytes = field(repr=False)
    session: bytes = field(repr=False)

    @classmethod
    def of(cls, secret: bytes) -> Self:
        if len(secret) < MIN_SECRET_BYTES:
            raise ValueError(f"a domain's secret has at least {MIN_SECRET_BYTES} bytes, not {len(secret)}")
        made = _hkdf(secret, b"", b"psph sealed links" + _SUITE, 2 * KEY_BYTES)
        return cls(made[:KEY_BYTES], made[KEY_BYTES:])

    def mac(self, offer: bytes) -> bytes:
        return hmac.digest(self.offer, offer, "sha256")[:MAC_BYTES]

    def proves(self, offer: bytes, mac: bytes) -> bool:
        """Whether somebody who knows the secret made this offer."""
        return hmac.compare_digest(self.mac(offer), mac)


@dataclass(frozen=True, slots=True)
class HandshakeShare:
    """One end's part of a handshake. It is used for one session and forgotten."""

    id: bytes
    public: bytes
    private: X25519PrivateKey = field(repr=False)

    @classmethod
    def new(cls, entropy: Entropy) -> Self:
        private = X25519PrivateKey.from_private_bytes(entropy(KEY_BYTES))
        return cls(entropy(SHARE_ID_BYTES), private.public_key().public_bytes_raw(), private)


@dataclass(frozen=True, slots=True)
class DirectionKeys:
    """One way of a session."""

    key: bytes = field(repr=False)
    label: bytes
    """Stands in each frame and tells which key opens it."""
    confirmation: bytes = field(repr=False)
    """Shown in the handshake: only who has the session's keys knows it."""


@dataclass(frozen=True, slots=True)
class SessionKeys:
    """What both ends of a link share, seen from one of them."""

    own: bytes
    peer: bytes
    """Numbers of the two shares that it was made of."""
    public: bytes
    """Our share, for whoever asks again."""
    send: DirectionKeys
    receive: DirectionKeys


def session_keys(domain: DomainKeys, share: HandshakeShare, peer: bytes, peer_public: bytes) -> SessionKeys:
    """The session of our share and the peer's. Raises `WeakShareError` for a share that is none."""
    if len(peer_public) != PUBLIC_BYTES:
        raise ValueError(f"a share has {PUBLIC_BYTES} bytes, not {len(peer_public)}")
    try:
        agreed = share.private.exchange(X25519PublicKey.from_public_bytes(peer_public))
    except ValueError:
        raise WeakShareError("a share of small order") from None
    ours, theirs = (share.id, share.public), (peer, peer_public)
    low, high = sorted((ours, theirs))
    made = _hkdf(agreed, domain.session, b"psph session" + _SUITE + b"".join(low + high), 2 * _OF_A_DIRECTION)
    from_low, from_high = _direction(made[:_OF_A_DIRECTION]), _direction(made[_OF_A_DIRECTION:])
    send, receive = (from_low, from_high) if low is ours else (from_high, from_low)
    return SessionKeys(share.id, peer, share.public, send, receive)


def _direction(made: bytes) -> DirectionKeys:
    return DirectionKeys(made[:KEY_BYTES], made[KEY_BYTES : KEY_BYTES + LABEL_BYTES], made[KEY_BYTES + LABEL_BYTES :])


def _hkdf(secret: bytes, salt: bytes, info: bytes, length: int) -> bytes:
    return HKDF(SHA256(), length, salt, info).derive(secret)
