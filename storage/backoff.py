"""How long to wait before something that failed is tried again. Pure: time and randomness come in.

It stands here because every package waits for something, and every package may import this one.
"""

import random
from dataclasses import dataclass

MAX_EXPONENT = 64
MAX_FACTOR = 100
DAY = 86_400.0
_SPREAD = random.Random()  # noqa: S311  # spreads tries, guards no secret; to make one takes longer than to publish


@dataclass(frozen=True, slots=True)
class BackOff:
    """The n-th wait lies between half and the whole of `first * factor ** (n - 1)` seconds, at most `longest`."""

    first: float = 1.0
    factor: float = 2.0
    longest: float = 300.0

    def __post_init__(self) -> None:
        if not (0 < self.first <= self.longest < float("inf") and 1 <= self.factor <= MAX_FACTOR):
            raise ValueError(
                f"a back-off needs 0 < first <= longest and a factor of 1 to {MAX_FACTOR}; it has "
                f"first {self.first:g}, longest {self.longest:g}, factor {self.factor:g}"
            )

    def most(self, failures: int) -> float:
        """The longest that may be waited after so many failures in a row."""
        # The exponent is bounded before it is used: a large count must not overflow.
        return min(self.longest, self.first * self.factor ** min(max(failures, 1) - 1, MAX_EXPONENT))

    def wait(self, failures: int, rng: random.Random | None = None) -> float:
        """Without randomness it is the whole of it."""
        return self.most(failures) * (1.0 if rng is None else 0.5 + 0.5 * rng.random())


class Waits:
    """The waits of one thing that is tried again and again."""

    def __init__(self, back_off: BackOff, rng: random.Random | None = None) -> None:
        self._back_off = back_off
        self._rng = _SPREAD if rng is None else rng
        self.failures = 0

    def next(self) -> float:
        """It failed once more: how long to wait."""
        self.failures += 1
        return self._back_off.wait(self.failures, self._rng)

    def reset(self) -> None:
        """It succeeded."""
        self.failures = 0


@dataclass(frozen=True, slots=True)
class RetrySchedule(BackOff):
    """When to try again, and when to stop: bounded in count and in age.

    A server's `Retry-After` may lengthen a wait up to `longest_asked`, never shorten it.
    """

    first: float = 5.0
    factor: float = 3.0
    longest: float = 3600.0
    longest_asked: float = 6 * 3600.0
    attempts: int = 12
    max_age: float = DAY
    last_at_end: bool = False
    """Whether a try that would come after the end is made once more just at the end."""

    def next_try(
        self, attempts: int, since: float, now: float, retry_after: float = 0.0, rng: random.Random | None = None
    ) -> float | None:
        """The time of the next try after `attempts` failed ones; None: give up."""
        if attempts >= self.attempts or now - since >= self.max_age:
            return None
        at = self.after(now, self.most(attempts), retry_after, rng)
        return min(at, since + self.max_age) if self.last_at_end else at

    def after(self, now: float, wait: float, retry_after: float, rng: random.Random | None = None) -> float:
        """`wait` from now, spread by chance, or as much later as the server asked for."""
        spread = wait * (1.0 if rng is None else 0.5 + 0.5 * rng.random())
        return now + max(spread, min(max(retry_after, 0.0), self.longest_asked))
