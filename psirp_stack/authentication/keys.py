"""Keys of publishers and subscribers, and the files they live in.

A key is known to others by its hash: SHA-256 of the 32 bytes of the public key. Private keys are PKCS #8 in PEM and
readable by their owner alone: a file that others can read is not loaded, because nobody can say who has it by now.
"""

import hashlib
import os
from pathlib import Path
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
MAX_KEY_FILE_BYTES = 16 * 1024
PRIVATE_MODE = 0o600
OTHERS = 0o077


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

    @classmethod
    def load(cls, path: Path) -> Self:
        try:
            return cls.from_pem(read_key_file(path))
        except ValueError as error:
            raise KeyFileError(f"{path}: {error}") from None

    def save(self, path: Path) -> None:
        write_new(path, self.pem())


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

    def save(self, path: Path) -> None:
        """Write a new file that only its owner can read; an existing file is never replaced."""
        write_new(path, self._key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))

    @classmethod
    def load(cls, path: Path) -> Self:
        data = read_key_file(path, private=True)
        try:
            key = load_pem_private_key(data, password=None)
        except (ValueError, TypeError, UnsupportedAlgorithm) as error:
            raise KeyFileError(f"{path}: no private key in PEM without a password: {error}") from None
        if not isinstance(key, Ed25519PrivateKey):
            raise KeyFileError(f"{path}: the key is of another kind: Ed25519 is expected")
        return cls(key.private_bytes_raw())


def write_new(path: Path, data: bytes) -> None:
    """Create a file of mode 0600 with this content; `KeyFileError` when it is there already."""
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, PRIVATE_MODE)
    except FileExistsError:
        raise KeyFileError(f"{path} is there already and is not overwritten") from None
    except OSError as error:
        raise KeyFileError(f"cannot write {path}: {error.strerror}") from None
    with os.fdopen(descriptor, "wb") as file:
        os.fchmod(descriptor, PRIVATE_MODE)  # whatever the umask says
        file.write(data)
        file.flush()
        os.fsync(descriptor)


def read_key_file(path: Path, *, private: bool = False, most: int = MAX_KEY_FILE_BYTES) -> bytes:
    """A file with keys. `private`: nobody but its owner may be able to read it."""
    try:
        with path.open("rb") as file:
            mode = os.fstat(file.fileno()).st_mode
            if private and mode & OTHERS:
                raise KeyFileError(
                    f"{path} can be read by others (mode {mode & 0o777:03o}): chmod 600 it, or make a new key"
                )
            data = file.read(most + 1)
    except OSError as error:
        raise KeyFileError(f"cannot read {path}: {error.strerror}") from None
    if len(data) > most:
        raise KeyFileError(f"{path} is longer than {most} bytes: no key is")
    return data
