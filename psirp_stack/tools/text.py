"""Byte strings in one-line summaries: identifiers in their text form, long runs of digits by their two ends."""

from identifiers import Identifier
from identifiers.identifier import GAP

ABBREVIATED_DIGITS = 16


def short_id(identifier: bytes) -> str:
    """The text form of an identifier (`aa::bb`), each side of the gap abbreviated."""
    return GAP.join(map(short_hex, str(Identifier(identifier)).split(GAP)))


def short_hex(digits: str) -> str:
    if len(digits) <= ABBREVIATED_DIGITS:
        return digits
    return f"{digits[: ABBREVIATED_DIGITS // 2]}…{digits[-ABBREVIATED_DIGITS // 2 :]}"
