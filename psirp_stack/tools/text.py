"""Identifiers as people write them: hex digits, with `::` for the longest run of zero bytes (`aa::bb`)."""

ABBREVIATED_DIGITS = 16


def id_text(identifier: bytes) -> str:
    """The whole identifier. All zeros is `::`; without a zero byte there is no `::`."""
    start, length = _longest_zero_run(identifier)
    if not length:
        return identifier.hex()
    return f"{identifier[:start].hex()}::{identifier[start + length :].hex()}"


def short_id(identifier: bytes) -> str:
    """As `id_text`, but a long run of digits keeps only its two ends: for one-line summaries."""
    return "::".join(_abbreviate(part) for part in id_text(identifier).split("::"))


def parse_id(text: str, size: int) -> bytes:
    """The inverse of `id_text`. Raises ValueError with a text for people."""
    head, gap, tail = text.partition("::")
    try:
        front, back = bytes.fromhex(head), bytes.fromhex(tail)
    except ValueError:
        raise ValueError(f"{text!r} is not hex digits, two for each byte, with at most one «::»") from None
    missing = size - len(front) - len(back)
    if missing < 0 or (missing > 0 and not gap):
        raise ValueError(f"{text!r} has {len(front) + len(back)} bytes, not {size} (`::` stands for zero bytes)")
    return front + bytes(missing) + back


def _abbreviate(digits: str) -> str:
    if len(digits) <= ABBREVIATED_DIGITS:
        return digits
    return f"{digits[: ABBREVIATED_DIGITS // 2]}…{digits[-ABBREVIATED_DIGITS // 2 :]}"


def _longest_zero_run(identifier: bytes) -> tuple[int, int]:
    best = (0, 0)
    start = None
    for index, byte in enumerate(identifier + b"\x01"):
        if byte == 0:
            start = index if start is None else start
        elif start is not None:
            if index - start > best[1]:
                best = (start, index - start)
            start = None
    return best
