"""Results of `psph bench matching --out FILE`, which two of the prototype's figures are drawn from."""

from dataclasses import dataclass
from pathlib import Path
from typing import Final

import msgspec

LARGEST: Final = 16 << 20


class ResultsError(Exception):
    """A file is not what a benchmark wrote; the text says what is wrong."""


@dataclass(frozen=True, slots=True)
class MatchingPoint:
    structure: str
    keyed_by: str
    topics: int
    microseconds: float
    """The mean of the medians of known and unknown topics: `psph bench matching` compares the same."""


@dataclass(frozen=True, slots=True)
class _Row:
    structure: str
    keyed_by: str
    topics: int
    known_p50_us: float | None = None
    unknown_p50_us: float | None = None


@dataclass(frozen=True, slots=True)
class _Document:
    bench: str
    results: list[_Row]


def read_matching(path: Path) -> list[MatchingPoint]:
    try:
        if path.stat().st_size > LARGEST:
            raise ResultsError(f"{path} is larger than {LARGEST} bytes")
        document = msgspec.json.decode(path.read_bytes(), type=_Document)
    except OSError as error:
        raise ResultsError(f"{path} cannot be read: {error.strerror}") from None
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise ResultsError(f"{path} is not a result of `psph bench matching`: {error}") from None
    if document.bench != "matching":
        raise ResultsError(f"{path} is a result of `psph bench {document.bench}`; that of `matching` is expected")
    return [
        MatchingPoint(row.structure, row.keyed_by, row.topics, (row.known_p50_us + row.unknown_p50_us) / 2)
        for row in document.results
        if row.known_p50_us is not None and row.unknown_p50_us is not None
    ]
