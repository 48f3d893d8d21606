"""Bearer tokens: compared in constant time, and guessed slowly. No clock: the time comes in."""

import hmac
from collections.abc import Iterable

from serving.limits import Limiter, Rate

WRONG_TOKENS = Rate(0.2, 10)
"""Tries with a wrong token that one network has."""
MAX_GUESSERS = 50_000


def is_one_of(given: str, tokens: Iterable[str]) -> bool:
    """Every token is compared, in constant time."""
    found = False
    for token in tokens:
        found |= hmac.compare_digest(token.encode(), given.encode("utf-8", "surrogateescape"))
    return found


class TokenGuesses:
    """Who sends wrong tokens is soon not listened to: nothing that they send is compared any more, right or wrong.

    Otherwise whoever guesses would not be slowed down at all: wrong tokens would be refused with other words, and the
    right one let in.
    """

    def __init__(self) -> None:
        self._wrong = Limiter(WRONG_TOKENS, MAX_GUESSERS)

    def wait(self, network: str, now: float) -> float:
        """Seconds for which nothing of this network is to be compared."""
        return self._wrong.wait(network, now)

    def is_known(self, given: str, tokens: Iterable[str], network: str, now: float) -> bool:
        if is_one_of(given, tokens):
            return True
        self._wrong.take(network, now)
        return False
