"""The domain's seal: who knows the secret may speak, everybody else is noise.

A seal is a keyed BLAKE2b over the payload and its context (the frame's scope and destination, so that none can be
taken from one frame into another). It says that a member of the domain wrote this, not which one, and does not hide
anything. A domain without a secret has no seals.
"""

import hmac
from hashlib import blake2b

SEAL_BYTES = 16
MIN_SECRET_BYTES = 16
_PERSON = b"psph domain seal"


class SealError(ValueError):
    """A payload that nobody who knows the domain's secret has sealed."""


class Seal:
    """Puts seals on and checks them."""

    __slots__ = ("_base",)

    def __init__(self, secret: bytes | None) -> None:
        """`secret` is None for a domain that is open to everybody."""
        if secret is not None and len(secret) < MIN_SECRET_BYTES:
            raise ValueError(f"a domain's secret has at least {MIN_SECRET_BYTES} bytes, not {len(secret)}")
        self._base = (
            None
            if secret is None
            # Secrets may be longer than BLAKE2b's key: they are hashed to its size first.
            else blake2b(key=blake2b(secret, person=_PERSON).digest(), digest_size=SEAL_BYTES, person=_PERSON)
        )

    @property
    def overhead(self) -> int:
        """Bytes that sealing adds."""
        return 0 if self._base is None else SEAL_BYTES

    def seal(self, payload: bytes, context: bytes = b"") -> bytes:
        if self._base is None:
            return payload
        return self._of(payload, context) + payload

    def open(self, sealed: bytes, context: bytes = b"") -> bytes:
        """The payload; `SealError` when the seal is missing or wrong."""
        if self._base is None:
            return sealed
        if len(sealed) < SEAL_BYTES:
            raise SealError(f"a sealed payload has at least {SEAL_BYTES} bytes, not {len(sealed)}")
        payload = sealed[SEAL_BYTES:]
        if not hmac.compare_digest(self._of(payload, context), sealed[:SEAL_BYTES]):
            raise SealError("the seal is wrong: another domain's secret, or changed on the way")
        return payload

    def _of(self, payload: bytes, context: bytes) -> bytes:
        if self._base is None:
            raise AssertionError("an open domain has no seals")
        state = self._base.copy()
        state.update(len(context).to_bytes(4, "big"))
        state.update(context)
        state.update(payload)
        return state.digest()
