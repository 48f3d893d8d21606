"""Which publications are traced: decided from their id, so that every node decides alike and a publication is whole.

What follows an `@` in an id says which visit of a publication it was, and decides nothing.
"""

from typing import Final
from zlib import crc32

_SPACE: Final = 1 << 32
_CACHE: Final = 4096


class Sampler:
    """Says yes to about `rate` of all publications; always the same answer to the same id."""

    __slots__ = ("_answers", "_below", "rate")

    def __init__(self, rate: float = 1.0) -> None:
        if not 0.0 <= rate <= 1.0:
            raise ValueError(f"the sampling rate is {rate}; it must be between 0 and 1")
        self.rate = rate
        self._below = round(rate * _SPACE)
        self._answers: dict[str, bool] = {}

    def takes(self, publication: str) -> bool:
        answer = self._answers.get(publication)
        if answer is None:
            if len(self._answers) >= _CACHE:
                self._answers.clear()
            answer = self._answers[publication] = (
                crc32(publication.partition("@")[0].encode("utf-8", "replace")) < self._below
            )
        return answer
