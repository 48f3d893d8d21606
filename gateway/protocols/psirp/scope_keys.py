"""Publications sealed from gateway to gateway: nodes between them see identifiers and sizes, not names and contents.

A file lists what is sealed, by a scope's identifier or by how names begin, and with which keys. The first key of an
entry seals, all of them open: so a key is changed without a gap, by giving all gateways the next one first.

Sealed is with AES-SIV, which gives equal publications equal bytes: two gateways of one domain that bring the same one
still make one version of it. The network sees that anyway, by version ids. What is sealed is bound to the item it was
sealed for and to the form of the envelope: nothing sealed opens under another name.
"""

import base64
import hashlib
import json
import os
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import msgspec
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESSIV
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF
from msgspec import Meta, Struct

from gateway.protocols.psirp.envelope import ENVELOPE_VERSION, EnvelopeError, Header, seal, unseal
from identifiers import Identifier, ItemId
from psirp_stack.authentication.files import read_key_file, write_new
from psirp_stack.authentication.keys import KeyFileError

KEY_BYTES = 32
MARK = b"\xffSC1"
"""Begins what is sealed; an open envelope begins with a length, which is far below this."""
ID_BYTES = 8
MAX_KEYS = 8
"""Of one entry: more than two are there only by mistake."""
MAX_ENTRIES = 1024
MAX_FILE_BYTES = 16 * 1024 * 1024
_CONTEXT = b"psph sealed publication 1"
_SIV_BYTES = 64


class _Entry(Struct, frozen=True, forbid_unknown_fields=True):
    keys: Annotated[tuple[str, ...], Meta(min_length=1, max_length=MAX_KEYS)]
    prefix: Annotated[str, Meta(min_length=1, max_length=8192)] | None = None
    scope: str | None = None


class _File(Struct, frozen=True, forbid_unknown_fields=True):
    sealed: Annotated[tuple[_Entry, ...], Meta(max_length=MAX_ENTRIES)] = ()


class ScopeKey:
    """One key, known by the beginning of its hash."""

    __slots__ = ("_aead", "id")

    def __init__(self, raw: bytes) -> None:
        if len(raw) != KEY_BYTES:
            raise ValueError(f"a key has {KEY_BYTES} bytes, not {len(raw)}")
        self.id = hashlib.sha256(_CONTEXT + raw).digest()[:ID_BYTES]
        self._aead = AESSIV(HKDF(SHA256(), _SIV_BYTES, salt=None, info=_CONTEXT).derive(raw))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ScopeKey) and self.id == other.id

    def __hash__(self) -> int:
        return hash(self.id)

    def seal(self, item: ItemId, plain: bytes) -> bytes:
        return MARK + self.id + self._aead.encrypt(plain, self._bound_to(item))

    def open(self, item: ItemId, sealed: bytes) -> bytes:
        try:
            return self._aead.decrypt(sealed[len(MARK) + ID_BYTES :], self._bound_to(item))
        except (InvalidTag, ValueError):
            raise EnvelopeError("sealed for another item, or changed on the way") from None

    def _bound_to(self, item: ItemId) -> list[bytes]:
        return [_CONTEXT, bytes((ENVELOPE_VERSION,)), bytes(item), self.id]


@dataclass(frozen=True, slots=True)
class SealedScope:
    """What is sealed, and its keys: the first seals."""

    keys: tuple[ScopeKey, ...]
    prefix: str | None = None
    scope: Identifier | None = None

    def covers(self, item: ItemId, name: str) -> bool:
        return item.sid == self.scope if self.prefix is None else name.startswith(self.prefix)


class ScopeKeys:
    """All that a gateway seals and opens."""

    def __init__(self, scopes: Sequence[SealedScope] = ()) -> None:
        # Of several beginnings that fit, the longest says which key.
        self._scopes = sorted(scopes, key=lambda scope: -len(scope.prefix or ""))
        self._by_key = {key.id: (scope, key) for scope in scopes for key in scope.keys}

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ScopeKeys) and self._scopes == other._scopes

    def __hash__(self) -> int:
        return hash(tuple(self._scopes))

    def __bool__(self) -> bool:
        return bool(self._scopes)

    @classmethod
    def load(cls, path: Path) -> "ScopeKeys":
        """Those of a file; `KeyFileError` says what is wrong with it."""
        try:
            return cls([_scope(entry) for entry in _entries(path)])
        except ValueError as error:
            raise KeyFileError(f"{path}: {error}") from None

    def put_up(self, item: ItemId, header: Header, body: bytes) -> bytes:
        """A publication as it travels: sealed, if its scope or name is among what is."""
        envelope = seal(header, body)
        scope = self._scope_of(item, header.name)
        return envelope if scope is None else scope.keys[0].seal(item, envelope)

    def opened(self, item: ItemId, data: bytes) -> tuple[Header, bytes]:
        """What another gateway put up. `EnvelopeError` for what is not sealed and should be, too."""
        if not data.startswith(MARK):
            header, body = unseal(data)
            if self._scope_of(item, header.name) is not None:
                raise EnvelopeError("not sealed, and it should be")
            return header, body
        found = self._by_key.get(data[len(MARK) : len(MARK) + ID_BYTES])
        if found is None:
            raise EnvelopeError("sealed with a key that is not known here")
        scope, key = found
        header, body = unseal(key.open(item, data))
        if not scope.covers(item, header.name):
            raise EnvelopeError("sealed with the key of another scope")
        return header, body

    def _scope_of(self, item: ItemId, name: str) -> SealedScope | None:
        return next((scope for scope in self._scopes if scope.covers(item, name)), None)


class KeyStep(StrEnum):
    """How a key is changed: each step is taken at one gateway, and its file then given to all before the next."""

    NEXT = "next"
    """Make the key that comes next; it opens, and does not seal yet."""
    SWITCH = "switch"
    """The next key seals, the former one opens what is under way."""
    DROP = "drop"
    """Only the key that seals opens."""


def change(path: Path, what: str, step: KeyStep | None) -> str:
    """Make an entry for a prefix or a scope, or take a step with the keys of one; says what that was, in words."""
    entries = list(_entries(path)) if path.exists() else []
    scope = _as_scope(what)
    wanted = (None, str(scope)) if scope is not None else (what, None)
    place = next((at for at, entry in enumerate(entries) if (entry.prefix, entry.scope) == wanted), None)
    if place is None:
        if step is not None:
            raise KeyFileError(f"{path}: {what} has no key yet: make one first, without a step")
        entries.append(_Entry((_new_key(),), *wanted))
        said = f"{what} is sealed with a new key"
    else:
        entry = entries[place]
        keys, said = _stepped(path, entry, step)
        entries[place] = _Entry(keys, entry.prefix, entry.scope)
    _write(path, entries)
    return said


def _stepped(path: Path, entry: _Entry, step: KeyStep | None) -> tuple[tuple[str, ...], str]:
    keys = entry.keys
    match step:
        case KeyStep.NEXT if len(keys) < MAX_KEYS:
            return (*keys, _new_key()), "the next key opens; give this file to all gateways, then switch"
        case KeyStep.SWITCH if len(keys) > 1:
            return (
                keys[-1],
                *keys[:-1],
            ), "the next key seals; give this file to all gateways, then drop the former"
        case KeyStep.DROP if len(keys) > 1:
            return keys[:1], "only the key that seals opens"
    reasons = {
        None: "it has a key: changing it takes three steps, next, switch and drop",
        KeyStep.NEXT: f"it has {MAX_KEYS} keys already: drop some",
        KeyStep.SWITCH: "there is no next key to switch to",
        KeyStep.DROP: "there is only the key that seals",
    }
    raise KeyFileError(f"{path}: {entry.prefix or entry.scope}: {reasons[step]}")


def _entries(path: Path) -> tuple[_Entry, ...]:
    data = read_key_file(path, private=True, most=MAX_FILE_BYTES)
    try:
        return msgspec.convert(tomllib.loads(data.decode()), _File).sealed
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, msgspec.ValidationError) as error:
        raise KeyFileError(f"{path}: {error}") from None


def _write(path: Path, entries: Sequence[_Entry]) -> None:
    lines = ["# What this gateway seals, and with which keys: the first seals, all of them open.", ""]
    for entry in entries:
        key, value = ("prefix", entry.prefix) if entry.scope is None else ("scope", entry.scope)
        lines += ["[[sealed]]", f"{key} = {json.dumps(value)}", f"keys = {json.dumps(list(entry.keys))}", ""]
    fresh = path.with_name(f".{path.name}.new")
    fresh.unlink(missing_ok=True)
    write_new(fresh, "\n".join(lines).encode())
    fresh.replace(path)


def _new_key() -> str:
    return base64.b64encode(os.urandom(KEY_BYTES)).decode()


def _as_scope(what: str) -> Identifier | None:
    try:
        return Identifier.parse(what)
    except ValueError:
        return None


def _scope(entry: _Entry) -> SealedScope:
    if (entry.prefix is None) == (entry.scope is None):
        raise ValueError("an entry has either a prefix of names or the identifier of a scope")
    keys = tuple(ScopeKey(base64.b64decode(key, validate=True)) for key in entry.keys)
    return SealedScope(keys, entry.prefix, None if entry.scope is None else Identifier.parse(entry.scope))
