"""Keys of publishers and subscribers. `files.py` has how they are kept on disk.

A key is known to others by its hash: SHA-256 of the 32 bytes of the public key.
"""

import hashlib
from typing import Self

from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
    load_pem_private_key,
    load_pem_public_key,
)

RAW_KEY_BYTES = 32

FIELD_PRIME = (1 << 255) - 19
WEAK_Y = frozenset(
    (
        0,
        1,
        FIELD_PRIME - 1,
        int.from_bytes(bytes.fromhex("26e8958fc2b227b045c3f489f2ef98f0d5dfac05d3c63339b13802886d53fc05"), "little"),
        int.from_bytes(bytes.fromhex("c7176a703d4dd84fba3c0b760d10670f2a2053fa2c39ccc64ec7fd7792ac037a"), "little"),
    )
)
"""The points whose order divides 8: for them one can find signatures that fit anything, so they are no keys."""


class KeyFileError(Exception):
    """A key file that cannot be used; the text says which and why."""


def key_hash(public_bytes: bytes) -> bytes:
    """The name of a key: 32 bytes."""
    return hashlib.sha256(public_bytes).digest()


class PublicKey:
    """A key that can check signatures."""

    __slots__ = ("_key", "hash", "raw")

    def __init__(self, raw: bytes) -> None:
        if len(raw) != RAW_KEY_BYTES:
            raise ValueError(f"a public key has {RAW_KEY_BYTES} bytes, not {len(raw)}")
        if (int.from_bytes(raw, "little") & ((1 << 255) - 1)) % FIELD_PRIME in WEAK_Y:
            raise ValueError("not a key: a point of small order, for which anybody can sign")
        self.raw = raw
        self.hash = key_hash(raw)
        self._key = Ed25519PublicKey.from_public_bytes(raw)

    def verifies(self, signature: bytes, data: bytes) -> bool:
        try:
            self._key.verify(signature, data)
        except InvalidSignature:
            return False
        return True

    def __eq__(self, other: object) -> bool:
        return isinstance(other, PublicKey) and self.raw == other.raw

    def __hash__(self) -> int:
        return hash(self.raw)

    def pem(self) -> bytes:
        return self._key.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)

    @classmethod
    def from_pem(cls, data: bytes) -> Self:
        """Raises `ValueError` for everything that is no Ed25519 public key in PEM."""
        try:
            key = load_pem_public_key(data)
        except (ValueError, UnsupportedAlgorithm) as error:
            raise ValueError(f"no public key in PEM: {error}") from None
        if not isinstance(key, Ed25519PublicKey):
            raise ValueError("the key is of another kind: Ed25519 is expected")
        return cls(key.public_bytes_raw())


class KeyPair:
    """A key that can sign."""

    __slots__ = ("_key", "public")

    def __init__(self, raw_private: bytes) -> None:
        if len(raw_private) != RAW_KEY_BYTES:
            raise ValueError(f"a private key has {RAW_KEY_BYTES} bytes, not {len(raw_private)}")
        self._key = Ed25519PrivateKey.from_private_bytes(raw_private)
        self.public = PublicKey(self._key.public_key().public_bytes_raw())

    @classmethod
    def generate(cls) -> Self:
        return cls(Ed25519PrivateKey.generate().private_bytes_raw())

    @property
    def hash(self) -> bytes:
        return self.public.hash

    def sign(self, data: bytes) -> bytes:
        return self._key.sign(data)

    def __repr__(self) -> str:
        return f"KeyPair({self.hash.hex()[:16]}...)"

    def pem(self) -> bytes:
        """The private key: for its owner's file alone."""
        return self._key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())

    @classmethod
    def from_pem(cls, data: bytes) -> Self:
        """Raises `ValueError` for everything that is no Ed25519 private key in PEM."""
        try:
            key = load_pem_private_key(data, password=None)
        except (ValueError, TypeError, UnsupportedAlgorithm) as error:
            raise ValueError(f"no private key in PEM without a password: {error}") from None
        if not isinstance(key, Ed25519PrivateKey):
            raise ValueError("the key is of another kind: Ed25519 is expected")
        return cls(key.private_bytes_raw())
