"""`Identifier`: the flat 32-byte id of PSIRP, and `ItemId`: the pair (Sid, Rid) that names one item.

Text form: lower-case hex, two digits a byte, with `::` in place of the longest run of two or more zero bytes (the
first such run when two are equally long). `::` alone is the root scope, 32 zero bytes. A pair is `sid/rid`.
"""

import re
from dataclasses import dataclass
from functools import total_ordering
from typing import Final, Self

IDENTIFIER_BYTES: Final = 32
GAP: Final = "::"
PAIR_SEPARATOR: Final = "/"
_ZERO_RUN = re.compile(rb"\x00{2,}")
_NOT_HEX = re.compile(r"[^0-9a-fA-F]")


class IdentifierSyntaxError(ValueError):
    """Text that is not an identifier; the message shows where it stops being one."""

    def __init__(self, text: str, position: int, problem: str) -> None:
        shown = text if len(text) <= 80 else text[:77] + "..."
        super().__init__(f"{problem} at character {position + 1} of {shown!r}")
        self.text = text
        self.position = position


@total_ordering
class Identifier:
    """An immutable 32-byte value: ordered and hashed as its bytes."""

    __slots__ = ("_value",)
    _value: bytes

    def __init__(self, value: bytes) -> None:
        if len(value) != IDENTIFIER_BYTES:
            raise ValueError(f"an identifier has {IDENTIFIER_BYTES} bytes, not {len(value)}")
        object.__setattr__(self, "_value", bytes(value))

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read the text form; also accepts all 64 digits and upper case."""
        head, gap, tail = text.partition(GAP)
        first = _hex_bytes(text, head, 0)
        if not gap:
            if len(first) != IDENTIFIER_BYTES:
                raise IdentifierSyntaxError(
                    text, len(text), f"expected {2 * IDENTIFIER_BYTES} hex digits or a {GAP!r}, got {len(text)} digits"
                )
            return cls(first)
        last = _hex_bytes(text, tail, len(head) + len(GAP))
        filled = IDENTIFIER_BYTES - len(first) - len(last)
        if filled < 1:
            raise IdentifierSyntaxError(text, len(head), f"{GAP!r} leaves no room: all 32 bytes are given")
        return cls(first + bytes(filled) + last)

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError("an Identifier cannot be changed")

    def __delattr__(self, name: str) -> None:
        raise AttributeError("an Identifier cannot be changed")

    def __reduce__(self) -> tuple[type[Self], tuple[bytes]]:
        return type(self), (self._value,)

    def __bytes__(self) -> bytes:
        return self._value

    def __hash__(self) -> int:
        return hash(self._value)

    def __eq__(self, other: object) -> bool:
        return self._value == other._value if isinstance(other, Identifier) else NotImplemented

    def __lt__(self, other: object) -> bool:
        return self._value < other._value if isinstance(other, Identifier) else NotImplemented

    def __str__(self) -> str:
        longest = max(_ZERO_RUN.finditer(self._value), key=lambda run: run.end() - run.start(), default=None)
        if longest is None:
            return self._value.hex()
        return self._value[: longest.start()].hex() + GAP + self._value[longest.end() :].hex()

    def __repr__(self) -> str:
        return f"Identifier.parse({str(self)!r})"


ROOT_SCOPE: Final = Identifier(bytes(IDENTIFIER_BYTES))


@dataclass(frozen=True, slots=True, order=True, eq=True)
class ItemId:
    """The name of one item in PSIRP: its scope and its rendezvous id."""

    sid: Identifier
    rid: Identifier

    @classmethod
    def parse(cls, text: str) -> Self:
        sid, separator, rid = text.partition(PAIR_SEPARATOR)
        if not separator:
            raise IdentifierSyntaxError(text, len(text), f"expected 'sid{PAIR_SEPARATOR}rid', found no separator")
        try:
            first = Identifier.parse(sid)
        except IdentifierSyntaxError as error:
            raise IdentifierSyntaxError(text, error.position, f"in the Sid: {_problem(error)}") from None
        try:
            return cls(first, Identifier.parse(rid))
        except IdentifierSyntaxError as error:
            position = len(sid) + len(separator) + error.position
            raise IdentifierSyntaxError(text, position, f"in the Rid: {_problem(error)}") from None

    def __bytes__(self) -> bytes:
        return self.sid._value + self.rid._value

    # Written out: what is keyed by items asks a hundred times for each publication.
    def __hash__(self) -> int:
        return hash((self.rid._value, self.sid._value))

    def __eq__(self, other: object) -> bool:
        if other.__class__ is not ItemId:
            return NotImplemented
        return self.rid._value == other.rid._value and self.sid._value == other.sid._value

    def __str__(self) -> str:
        return f"{self.sid}{PAIR_SEPARATOR}{self.rid}"


def _hex_bytes(text: str, part: str, offset: int) -> bytes:
    wrong = _NOT_HEX.search(part)
    if wrong is not None:
        raise IdentifierSyntaxError(text, offset + wrong.start(), f"expected a hex digit, found {wrong.group()!r}")
    if len(part) % 2:
        raise IdentifierSyntaxError(text, offset + len(part), "half a byte: expected an even number of hex digits")
    if len(part) > 2 * IDENTIFIER_BYTES:
        raise IdentifierSyntaxError(text, offset + 2 * IDENTIFIER_BYTES, "too long: an identifier has 32 bytes")
    return bytes.fromhex(part)


def _problem(error: IdentifierSyntaxError) -> str:
    return str(error).rpartition(" at character ")[0]
