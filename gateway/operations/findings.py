"""What a check found, and what to do about it."""

from dataclasses import dataclass
from enum import StrEnum


class FindingLevel(StrEnum):
    GOOD = "ok"
    DOUBTFUL = "doubtful"
    """It works, or may work; somebody should look."""
    BAD = "bad"
    UNKNOWN = "skipped"
    """It could not be looked at; the text says why."""


@dataclass(frozen=True, slots=True)
class Finding:
    check: str
    verdict: FindingLevel
    text: str
    fix: str = ""
    """What the operator can do; empty only where there is nothing to do."""


def good(check: str, text: str) -> Finding:
    return Finding(check, FindingLevel.GOOD, text)


def bad(check: str, text: str, fix: str) -> Finding:
    return Finding(check, FindingLevel.BAD, text, fix)


def doubtful(check: str, text: str, fix: str) -> Finding:
    return Finding(check, FindingLevel.DOUBTFUL, text, fix)


def unknown(check: str, text: str) -> Finding:
    return Finding(check, FindingLevel.UNKNOWN, text)
