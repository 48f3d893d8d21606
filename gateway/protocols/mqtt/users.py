"""Who may connect: users with passwords, tokens, and everybody else where that is allowed.

A users file has lines NAME:HASH as mosquitto_passwd writes them ($7$, PBKDF2 with SHA-512).
"""

import base64
import binascii
import hashlib
import hmac
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

KIND = "7"
MAX_ITERATIONS = 1_000_000
MAX_KEY = 1_024


class UsersFileError(ValueError):
    """A line that is none; the text says which."""


@dataclass(frozen=True, slots=True)
class PasswordHash:
    iterations: int
    salt: bytes
    digest: bytes

    def fits(self, password: bytes) -> bool:
        made = hashlib.pbkdf2_hmac("sha512", password, self.salt, self.iterations, len(self.digest))
        return hmac.compare_digest(made, self.digest)


NOBODYS = PasswordHash(101, bytes(12), bytes(64))
"""For names that nobody has: to say no takes as long."""


@dataclass(frozen=True, slots=True)
class KnownUsers:
    """`allow_anonymous`: who says no name may come in, too."""

    users: Mapping[str, PasswordHash] = field(default_factory=dict)
    tokens: tuple[str, ...] = ()
    allow_anonymous: bool = False

    @property
    def is_empty(self) -> bool:
        return not self.users and not self.tokens

    def has_token(self, password: bytes) -> bool:
        found = False
        for token in self.tokens:
            found |= hmac.compare_digest(token.encode(), password)
        return found

    def has_password(self, user: str, password: bytes) -> bool:
        """Takes a while."""
        known = self.users.get(user)
        return (known or NOBODYS).fits(password) and known is not None


def read_users(lines: Sequence[str]) -> dict[str, PasswordHash]:
    """Raises `UsersFileError`."""
    found: dict[str, PasswordHash] = {}
    for number, line in enumerate(lines, start=1):
        name, colon, written = line.strip().partition(":")
        if not name or not colon:
            raise UsersFileError(f"line {number}: expected NAME:HASH, as mosquitto_passwd writes it")
        found[name] = _hash_from(written, number)
    return found


def _hash_from(written: str, number: int) -> PasswordHash:
    parts = written.split("$")
    try:
        _, kind, iterations, salt, digest = parts
        if kind != KIND or not 0 < int(iterations) <= MAX_ITERATIONS:
            raise ValueError
        found = PasswordHash(int(iterations), base64.b64decode(salt, validate=True), base64.b64decode(digest))
    except (ValueError, binascii.Error):
        raise UsersFileError(
            f"line {number}: expected $7$ITERATIONS$SALT$HASH behind the name (PBKDF2): make it with mosquitto_passwd"
        ) from None
    if not 0 < len(found.digest) <= MAX_KEY:
        raise UsersFileError(f"line {number}: the hash is empty or too long")
    return found
